//! Short queues: uploads that fill the link, and a ping beside them.

use crate::support::first_run;
use plimsoll_scenario::Run;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

/// The rate of the uploads over the second half of a run, and the ping's p99.
#[derive(Clone, Copy, Debug)]
struct Seen {
    mbps: f64,
    p99: Span,
}

/// `flows` uploads and a ping of one tenant through a link of `mbps`, with a round trip of `rtt` ms.
fn upload(order: &str, (flows, mbps, rtt): (u32, u64, u64), more: &str, seconds: u64) -> (Seen, Run) {
    let text = format!(
        "
name: short-queues
rate: {mbps}Mbps
duration: {seconds}s
systems: [plimsoll]
hosts: {{a: {{}}, b: {{nic: fifo}}}}
links: {{wire: {{between: [a, b], rate: {mbps}Mbps, delay: {}us}}}}
tenants: {{x: {{host: a, flows: {order}}}, y: {{host: b}}}}
workloads:
  up:   {{tenant: x, kind: bulk, to: y, flows: {flows}{more}}}
  ping: {{tenant: x, kind: probe, to: y, size: 56B, rate: 17}}
",
        rtt * 500
    );
    let run = first_run(&text);
    let bytes: u64 = run.workloads["up"].bytes.iter().skip(run.workloads["up"].bytes.len() / 2).sum();
    let half = seconds as f64 / 2.0;
    let after = Nanos::ZERO + Span::millis(seconds * 500);
    let mut waits: Vec<Span> = run.workloads["ping"]
        .samples
        .iter()
        .filter(|sample| sample.at >= after)
        .map(|sample| sample.latency)
        .collect();
    waits.sort();
    let p99 = waits[(waits.len() * 99).div_ceil(100) - 1];
    (Seen { mbps: bytes as f64 * 8e-6 / half, p99 }, run)
}

/// The link stays as busy as with one queue for all, and a ping waits for a few frames, one target of 5 ms at most; beside a single
/// upload for the frame on the link, one that came with it, and its own.
///
/// A single CUBIC connection over a long way is the exception: a queue of 5 ms does not carry it over the time in which its window
/// is 30 % smaller. It gets 91 to 94 % of a link of 10 Mb/s at 40 and 100 ms; with Linux's `fq_codel` it gets as little
/// (docs/policy.md, "Short queues").
#[test]
fn a_ping_beside_uploads_waits_for_less_than_a_target() {
    for mbps in [10, 100, 1_000] {
        for rtt in [10, 40, 100] {
            for flows in [1, 16, 128] {
                let seconds = if mbps == 1_000 { 8 } else { 20 };
                let (fifo, _) = upload("fifo", (flows, mbps, rtt), "", seconds);
                let (fq, _) = upload("fq", (flows, mbps, rtt), "", seconds);
                let frame = BitRate::mbps(mbps).wire_time(Bytes::new(1_538));
                let own = BitRate::mbps(mbps).wire_time(Bytes::new(200)) + Span::micros(5);
                let case = format!("{mbps} Mb/s, {rtt} ms, {flows} flows: {fifo:?} by arrival, {fq:?}");
                let most = if flows == 1 { frame.times(2) + own } else { Span::millis(5) + frame.times(5) };
                assert!(fq.p99 <= Span::millis(rtt) + most, "{case}");
                let least = if flows == 1 && rtt > 10 { 0.9 } else { 0.95 };
                assert!(fq.mbps >= least * fifo.mbps, "{case}");
            }
        }
    }
}

#[test]
fn connections_that_use_ecn_are_marked_and_lose_nothing() {
    let (seen, run) = upload("fq", (16, 100, 10), ", congestion: dctcp", 5);
    assert!(seen.mbps >= 95.0 && seen.p99 <= Span::micros(10_400), "{seen:?}");
    assert_eq!(run.drops["x"].get("waited_too_long"), None, "{:?}", run.drops);
    let (_, run) = upload("fq", (16, 100, 10), "", 5);
    assert!(run.drops["x"]["waited_too_long"] > 100, "{:?}", run.drops);
}

/// A class with a `max` has its queue behind it: that counts as well.
#[test]
fn a_queue_behind_a_maximum_is_short_too() {
    let (seen, _) = upload("fq, max: 20Mbps", (16, 100, 10), "", 10);
    assert!((19.0..20.1).contains(&seen.mbps) && seen.p99 <= Span::millis(10 + 2), "{seen:?}");
}

/// Datagrams at a class's strict rate wait for their own pace only: none is dropped.
#[test]
fn datagrams_that_keep_a_strict_rate_lose_nothing() {
    let text = "
name: paced
rate: 100Mbps
duration: 10s
systems: [plimsoll]
tenants: {x: {flows: fq}, y: {flows: fq}}
policy: {root: {rate_share: {x: 1Mbps, y: 50Mbps}}}
workloads:
  calm: {tenant: x, kind: udp, size: 1400B, rate: 990kbps}
  busy: {tenant: y, kind: bulk, flows: 16}
";
    let run = first_run(text);
    assert!(run.drops.get("x").is_none_or(|drops| drops.is_empty()), "{:?}", run.drops);
    assert!(run.drops["y"]["waited_too_long"] > 10, "{:?}", run.drops);
}
