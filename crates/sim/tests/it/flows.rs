//! Flows that arrive, incast, and traces over time.

use std::num::NonZeroUsize;

use plimsoll_scenario::{FlowSample, Run};
use plimsoll_sim::{Options, run};
use plimsoll_units::{Nanos, Span};

use crate::support::{assert_holds, first_run, outcome, scenario};

/// Four hosts of 10 Gb/s at one switch.
fn rack(system: &str, workloads: &str) -> String {
    format!(
        "name: rack\nrate: 10Gbps\nduration: 200ms\nrepeat: {{h: 4}}\nhosts: [h<h>]\nswitches: [tor]\n\
         links:\n  up<h>: {{between: [h<h>, tor], rate: 10Gbps, delay: 5us, queue: 500kB}}\n\
         systems: [{system}]\ntenants:\n  a: {{host: [h<h>]}}\nworkloads:\n{workloads}"
    )
}

fn flows(run: &Run) -> &[FlowSample] {
    &run.workloads["w"].flows
}

/// Ten segments fit the initial window, so that nothing but the network takes time.
#[test]
fn a_flow_that_is_alone_takes_the_ideal_time() {
    for (system, handshake) in [("fifo", true), ("fifo", false), ("plimsoll", true)] {
        let workload = format!(
            "  w: {{tenant: a, to: a, kind: flows, sizes: 14kB, rate: 200, handshake: {handshake}}}\n"
        );
        let run = first_run(&(rack(system, &workload) + "jitter: 0s\n"));
        let slowdowns = flows(&run)
            .iter()
            .map(|flow| flow.took.expect("complete").as_secs_f64() / flow.ideal.as_secs_f64());
        let mut slowdowns: Vec<f64> = slowdowns.collect();
        slowdowns.sort_by(f64::total_cmp);
        assert!(slowdowns.len() > 20, "{}", slowdowns.len());
        let (least, middle) = (slowdowns[0], slowdowns[slowdowns.len() / 2]);
        assert!((1.0..1.02).contains(&least) && middle < 1.02, "{system}: {least}, {middle}");
    }
}

#[test]
fn every_system_gets_the_same_flows_and_a_seed_the_same_results() {
    let workload = "  w: {tenant: a, to: a, kind: flows, sizes: hadoop, load: 0.4}\n";
    let text = rack("fifo, plimsoll, htb", workload);
    let (one, other) = (outcome(&scenario(&text), 1), outcome(&scenario(&text), 2));
    let kept = |run: &Run| flows(run).iter().map(|flow| (flow.at, flow.size)).collect::<Vec<_>>();
    let runs = &one.results.runs;
    assert!(flows(&runs[0]).len() > 2_000, "{}", flows(&runs[0]).len());
    assert!(runs.iter().all(|run| kept(run) == kept(&runs[0])));
    for (run, again) in runs.iter().zip(&other.results.runs) {
        assert_eq!(flows(run), flows(again), "{}", run.system);
        let complete = flows(run).iter().filter(|flow| flow.took.is_some()).count();
        assert!(
            complete * 100 >= flows(run).len() * 99,
            "{}: {complete} of {}",
            run.system,
            flows(run).len()
        );
        assert!(
            flows(run).iter().all(|flow| flow.took.is_none_or(|took| took >= flow.ideal)),
            "{}",
            run.system
        );
        assert!(run.workloads["w"].retransmits.is_some(), "counted beyond the connections' ends");
    }
}

#[test]
fn flows_that_are_not_complete_are_counted() {
    // Each takes 0.8 s alone, and the run ends 0.7 s after its start.
    let text = rack("fifo", "  w: {tenant: a, to: a, kind: flows, sizes: 1GB, rate: 100}\n")
        + "expect:
  - fifo.w.flows >= 10
  - fifo.w.unfinished ~ fifo.w.flows +- 0
  - fifo.w.flows_above_1GB <= 0
  - fifo.w.flows_upto_1GB ~ fifo.w.flows +- 0
  - fifo.w.offered ~ fifo.w.flows * 40Gbps +- 1%
";
    let scenario = scenario(&text);
    assert_holds(&scenario, &outcome(&scenario, 1));
    let run = first_run(&text);
    assert!(flows(&run).iter().all(|flow| flow.took.is_none()));
}

#[test]
fn more_flows_than_memory_bears_are_refused() {
    let scenario = scenario(&rack("fifo", "  w: {tenant: a, to: a, kind: flows, sizes: 100B, load: 1}\n"));
    let error = run(&scenario, &Options::default(), &|_| {}).expect_err("too many").to_string();
    assert!(error.contains("about 10000000 flows arrive from workload `w`"), "{error}");
    assert!(error.contains("lower its load"), "{error}");
}

#[test]
fn answers_of_many_take_as_long_as_their_port() {
    let incast = |rest: &str| {
        format!(
            "name: incast\nrate: 10Gbps\nduration: 300ms\nrepeat: {{h: 8}}\nhosts: [front, h<h>]\nswitches: [tor]\n\
             links:\n  f: {{between: [front, tor], rate: 10Gbps, delay: 5us, queue: 10MB}}\n  \
             up<h>: {{between: [h<h>, tor], rate: 10Gbps, delay: 5us, queue: 1MB}}\n\
             systems: [fifo]\ntenants:\n  asker: {{host: front}}\n  workers: {{host: [h<h>]}}\nworkloads:\n  \
             q: {{tenant: workers, to: asker, kind: incast, senders: 8, size: 100kB, {rest}}}\n"
        )
    };
    // 8 * 100 kB and their headers (66 of 1,514 bytes) at 10 Gb/s are 669 us.
    let open = incast("rate: 100")
        + "expect:
  - fifo.q.p50 >= 669us
  - fifo.q.p50 <= 800us
  - fifo.q.samples >= 20
  - fifo.q.errors <= 0
";
    let open = scenario(&open);
    assert_holds(&open, &outcome(&open, 1));
    let closed = first_run(&incast("pause: 10ms"));
    let samples = &closed.workloads["q"].samples;
    assert!((27..=29).contains(&samples.len()), "a round takes 10.7 ms: {}", samples.len());
    let gaps = samples.windows(2).map(|two| (two[1].at - two[0].at) - two[0].latency);
    assert!(gaps.into_iter().all(|gap| gap == Span::millis(10)));
    // An answer that is lost waits for its timeout: incast as it is known.
    let lossy = incast("rate: 20").replace("queue: 10MB", "queue: 20kB") + "jitter: 0s\n";
    let collapsed = first_run(&lossy);
    assert!(collapsed.workloads["q"].samples.iter().any(|sample| sample.latency > Span::millis(150)));
}

#[test]
fn traces_show_windows_and_queues_and_change_nothing() {
    let workload = "  w: {tenant: a, to: a, kind: flows, sizes: web_search, load: 0.5}\n  b: {tenant: a, to: a, kind: bulk, flows: 1}\n";
    for system in ["fifo", "plimsoll"] {
        let scenario = scenario(&(rack(system, workload) + "measure: {interval: 200us}\n"));
        let options = Options { seeds: 1, threads: NonZeroUsize::new(1), series: true, ..Options::default() };
        let traced = run(&scenario, &options, &|_| {}).expect("a run").results.runs.remove(0);
        let plain = outcome(&scenario, 1).results.runs.remove(0);
        assert_eq!(flows(&traced), flows(&plain));
        assert_eq!(plain.series, None);
        let series = traced.series.expect("traces");
        assert_eq!((series.interval, series.links.len()), (Span::micros(200), 8));
        let queues = || series.links.iter().map(|trace| trace.points.iter().map(|point| point.queue).max());
        assert!(
            queues().flatten().max() > Some(200_000),
            "a queue fills: {:?}",
            queues().collect::<Vec<_>>()
        );
        for trace in &series.links {
            assert_eq!(trace.points.len(), 1_001, "{}", trace.link);
            let most = trace.points.windows(2).map(|two| two[1].sent - two[0].sent).max();
            assert!(most <= Some(250_000 + 2 * 1_514), "{} sends at most its rate: {most:?}", trace.link);
        }
        let bulk: Vec<_> = series.flows.iter().filter(|trace| trace.workload == "b").collect();
        assert_eq!(bulk.len(), 12, "each host to each other, and none of the acknowledging ends");
        for trace in &bulk {
            let last = trace.points.last().expect("points");
            assert!(last.cwnd > 0 && last.rtt.is_some() && last.acked > 0, "{last:?}");
            assert!(trace.points.windows(2).all(|two| two[0].acked <= two[1].acked));
        }
        let arriving = series.flows.iter().filter(|trace| trace.workload == "w" && trace.begun > Nanos::ZERO);
        assert!(arriving.count() > 20);
    }
}
