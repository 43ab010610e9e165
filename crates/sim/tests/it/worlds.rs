//! Worlds of more than one host: links, buses, CPUs, rings and control.

use crate::support::{first_run, outcome, scenario};
use plimsoll_scenario::{Run, Status, judge};
use plimsoll_sim::{Options, SimError, run};
use plimsoll_units::Span;

/// Two hosts with a switch between them; `more` is added to the first host and to the workloads.
fn pair(host: &str, workloads: &str) -> Run {
    let text = format!(
        "
name: pair
rate: 1Gbps
duration: 400ms
systems: [plimsoll]
hosts: {{a: {{{host}}}, b: {{nic: fifo}}}}
switches: [core]
links:
  left:  {{between: [a, core], rate: 1Gbps, delay: 10us}}
  right: {{between: [core, b], rate: 2Gbps, delay: 20us}}
tenants: {{x: {{host: a}}, y: {{host: b}}}}
workloads:
{workloads}
"
    );
    first_run(&text)
}

/// The longest latency of a workload.
fn slowest(run: &Run, workload: &str) -> Option<Span> {
    run.workloads[workload].samples.iter().map(|sample| sample.latency).max()
}

#[test]
fn every_hop_adds_its_serialisation_and_delay() {
    let run = pair("", "  ping: {tenant: x, kind: probe, to: y, size: 83B, rate: 500}");
    // 125 B: 1,000 ns and 500 ns there and back, and 10 us and 20 us each way.
    let samples = &run.workloads["ping"].samples;
    assert!(samples.len() > 100);
    assert!(samples.iter().all(|sample| sample.latency == Span::ns(63_000)));
}

#[test]
fn an_engines_cpu_bounds_its_packet_rate() {
    let run = pair(
        "cpu: {process: 1us, pull: 3us}",
        "  flood: {tenant: x, kind: udp, to: y, rate: 300kpps, size: 60B}",
    );
    // 3 us for each that is sent, and 1 us for each of 300,000 that are taken, refused ones too: 233,333 a second.
    let sent = run.workloads["flood"].bytes.iter().sum::<u64>() / 102;
    assert!((93_200..=93_500).contains(&sent), "{sent}");
    let cpu = run.cpu.expect("measured").as_secs_f64();
    assert!((0.39..0.41).contains(&cpu), "{cpu}");
}

#[test]
fn a_receive_ring_drops_what_its_cpu_cannot_take() {
    let text = "
name: ring
rate: 1Gbps
duration: 100ms
systems: [plimsoll]
hosts: {a: {}, b: {nic: fifo, receive: {ring: 100, cost: 10us}}}
links: {wire: {between: [a, b], rate: 1Gbps}}
tenants: {x: {host: a}, y: {host: b}}
workloads:
  flood: {tenant: x, kind: udp, to: y, rate: 200kpps, size: 83B}
";
    let run = first_run(text);
    // 20,000 come, one in two is taken, and a hundred are in the ring.
    let lost = run.drops["x"]["rx_ring_full"];
    assert!(lost.abs_diff(9_900) <= 2, "{lost}");
}

/// A flood for one tenant, at ten times the rate that the CPU can process, costs the other tenant nothing, unless all share a
/// queue.
#[test]
fn a_flood_on_the_way_in_is_the_floods_own_loss() {
    let text = "
name: ingress
rate: 10Gbps
duration: 100ms
systems: [plimsoll, one_queue: {kind: plimsoll, ingress: shared}]
hosts: {a: {}, b: {receive: {ring: 512, drain: 100ns, cost: 2us, slots: 64}}}
links: {wire: {between: [a, b], rate: 10Gbps}}
tenants: {x: {host: a}, calm: {host: a}, y: {host: b}, z: {host: b}}
workloads:
  flood: {tenant: x, kind: udp, to: y, rate: 2Mpps, size: 60B}
  ping: {tenant: calm, kind: probe, to: z, size: 60B, rate: 20000}
measure: {from: 5ms}
";
    let runs = outcome(&scenario(text), 1).results.runs;
    let (ours, shared) = (&runs[0], &runs[1]);
    assert_eq!(ours.drops["calm"].values().sum::<u64>(), 0, "{:?}", ours.drops);
    assert!(ours.drops["x"]["ingress_full"] > 50_000, "{:?}", ours.drops);
    assert!(shared.drops["calm"]["rx_ring_full"] > 100, "{:?}", shared.drops);
    let slowest = |run: &Run| slowest(run, "ping");
    // It waits for at most one packet in the CPU and one that is fetched, and its answer does too.
    assert!(slowest(ours) < Some(Span::micros(40)), "{:?}", slowest(ours));
    assert!(slowest(shared) > Some(Span::micros(1_000)), "{:?}", slowest(shared));
    // Fetching takes at most 64 % of the time, and only while there are packets to fetch.
    let goodput = ours.workloads["flood"].delivered.iter().sum::<u64>() / 102;
    assert!((17_000..=50_000).contains(&goodput), "{goodput}");
}

/// A frame of 1,514 bytes takes 121 ms at 100 kb/s: its turn lies beyond the horizon of the engine's wheel.
#[test]
fn a_rate_whose_frames_lie_far_apart_is_kept() {
    let rated = [
        "tenants: {x: {max: 100kbps}}",
        "tenants: {x: {via: [slow]}}\nlimits: {slow: {rate: 100kbps}}",
        "tenants: {x: {}}\npolicy: {root: {rate_share: {x: 100kbps}}}",
    ];
    for rated in rated {
        let text = format!(
            "
name: slow
rate: 1Gbps
duration: 10s
systems: [plimsoll]
{rated}
workloads: {{flood: {{tenant: x, kind: udp, rate: 1Mbps, size: 1458B}}}}
"
        );
        let run = first_run(&text);
        let bytes: u64 = run.workloads["flood"].bytes.iter().sum();
        assert!((120_000..135_000).contains(&bytes), "{rated}: {bytes} in ten seconds");
    }
}

#[test]
fn a_bus_adds_its_latency_and_bounds_the_rate() {
    let bus = "pcie: {rate: 8Gbps, latency: 1us, tlp: 125B, overhead: 25B, outstanding: 8}";
    let run = pair(bus, "  ping: {tenant: x, kind: probe, to: y, size: 83B, rate: 500}");
    // One TLP of 125 + 25 B at 8 Gb/s is 150 ns, and the request takes 1 us.
    assert!(run.workloads["ping"].samples.iter().all(|sample| sample.latency == Span::ns(64_150)));
    let narrow = "pcie: {rate: 8Gbps, latency: 100us, tlp: 125B, overhead: 0B, outstanding: 4}";
    let run = pair(narrow, "  flood: {tenant: x, kind: udp, to: y, rate: flood, size: 1458B}");
    // Four requests of 125 B every 100 us are 5 MB/s, whatever the bus carries.
    let bytes: u64 = run.workloads["flood"].bytes.iter().sum();
    assert!(bytes.abs_diff(2_000_000) < 10_000, "{bytes}");
}

#[test]
fn completions_in_order_wait_for_the_slowest_flow() {
    // Two flows of one tenant: one is limited to 1 Mb/s, the other is not.
    let goodput = |completions: &str| {
        let text = format!(
            "
name: order
rate: 1Gbps
duration: 1s
systems: [plimsoll]
hosts: {{a: {{transmit: {{ring: 64, completions: {completions}}}}}}}
destinations: [near, far]
limits: {{slow: {{match: {{dst: 10.200.0.2}}, rate: 1Mbps}}}}
tenants: {{x: {{via: [slow]}}}}
workloads:
  fast: {{tenant: x, kind: bulk, to: near, flows: 1}}
  slow: {{tenant: x, kind: udp, to: far, rate: 1.2Mbps, size: 1458B}}
"
        );
        let run = first_run(&text);
        run.workloads["fast"].bytes.iter().sum::<u64>()
    };
    let (early, out_of_order, in_order) = (goodput("early"), goodput("out_of_order"), goodput("in_order"));
    assert!(early > 100_000_000 && out_of_order > 100_000_000, "{early} {out_of_order}");
    assert!(in_order < out_of_order / 2, "{in_order} {out_of_order}");
}

#[test]
fn dctcp_keeps_a_marking_queue_short() {
    let delay = |congestion: &str| {
        let text = format!(
            "
name: incast
rate: 10Gbps
duration: 300ms
systems: [plimsoll]
hosts: {{a: {{}}, b: {{}}, sink: {{nic: fifo}}}}
switches: [core]
links:
  a:    {{between: [a, core], rate: 10Gbps}}
  b:    {{between: [b, core], rate: 10Gbps}}
  sink: {{between: [core, sink], rate: 10Gbps, queue: 1MB, ecn: 90kB}}
tenants: {{one: {{host: a}}, two: {{host: b}}, files: {{host: sink}}}}
workloads:
  up1: {{tenant: one, kind: bulk, to: files, congestion: {congestion}}}
  up2: {{tenant: two, kind: bulk, to: files, congestion: {congestion}}}
  ask: {{tenant: one, kind: probe, to: files, rate: 2000}}
measure: {{from: 100ms}}
expect:
  - plimsoll.throughput >= 9.5Gbps
  - plimsoll.ask.p90 <= 200us
"
        );
        let scenario = scenario(&text);
        let results = outcome(&scenario, 1).results;
        judge(&scenario, &results)
            .into_iter()
            .map(|verdict| (verdict.status, verdict.detail))
            .collect::<Vec<_>>()
    };
    let dctcp = delay("dctcp");
    assert!(dctcp.iter().all(|(status, _)| *status == Status::Passed), "{dctcp:?}");
    let cubic = delay("cubic");
    assert_eq!(cubic[1].0, Status::Failed, "{cubic:?}");
}

#[test]
fn a_tenant_on_several_hosts_shuffles_all_to_all() {
    let text = "
name: shuffle
rate: 10Gbps
duration: 100ms
systems: [plimsoll]
hosts: [a, b, c]
switches: [s]
links:
  a: {between: [a, s], rate: 10Gbps}
  b: {between: [b, s], rate: 10Gbps}
  c: {between: [c, s], rate: 10Gbps}
tenants: {sort: {host: [a, b, c]}}
workloads:
  spark: {tenant: sort, kind: shuffle, to: sort, block: 1MB, pause: 1ms}
";
    let run = first_run(text);
    let spark = &run.workloads["spark"];
    // Six flows of 1 MB a round, each host sends two: 1.6 ms of its link, and TCP's beginning.
    assert!(spark.samples.len() > 20, "{}", spark.samples.len());
    assert!(spark.samples.iter().all(|sample| sample.latency > Span::micros(1_600)));
    let rounds = spark.samples.len() as u64;
    let bytes: u64 = spark.bytes.iter().sum();
    assert!((rounds * 6_000_000..(rounds + 1) * 6_600_000).contains(&bytes), "{bytes} in {rounds} rounds");
}

#[test]
fn buses_and_doorbells_are_counted() {
    let bus = "pcie: {rate: 8Gbps, latency: 1us, tlp: 250B, overhead: 25B, outstanding: 8}";
    let run = pair(bus, "  steady: {tenant: x, kind: udp, to: y, rate: 10kpps, size: 583B}");
    // 4,000 packets of 625 B: three TLPs each, and a doorbell each, as no two come together.
    assert_eq!(run.counters["pulls"], 4_000);
    assert_eq!(run.counters["bus_reads"], 12_000);
    assert_eq!(run.counters["doorbell_writes"], 4_000);
    assert_eq!(run.counters["doorbell_queue_writes"], 4_000);
}

fn refused(text: &str) -> SimError {
    run(&scenario(text), &Options::default(), &|_| {}).expect_err("a world that cannot be")
}

#[test]
fn impossible_worlds_are_refused_with_their_names() {
    let text = |rate: &str, links: &str| {
        format!(
            "{{name: t, rate: {rate}, duration: 100ms, systems: [plimsoll], hosts: [a, b], switches: [s], {links} \
             tenants: {{x: {{host: a}}, y: {{host: b}}}}, workloads: {{w: {{tenant: x, to: y, kind: bulk}}}}}}"
        )
    };
    let no_route = refused(&text("1Gbps", "links: {l: {between: [a, s], rate: 1Gbps}},")).to_string();
    assert!(no_route.contains("workload `w`") && no_route.contains("`b`"), "{no_route}");
    let one_way = refused(&text("1Gbps", "links: {l: {from: a, to: b, rate: 1Gbps}},")).to_string();
    assert!(one_way.contains("from `b` to `a`"), "{one_way}");
    let two = "links: {l: {between: [a, b], rate: 1Gbps}, m: {between: [a, s], rate: 1Gbps}},";
    let two = refused(&text("1Gbps", two)).to_string();
    assert!(two.contains("host `a` has 2 links"), "{two}");
}

#[test]
fn more_connections_than_ports_are_refused() {
    let workload = |workload: &str| {
        let text = format!(
            "{{name: t, rate: 1Gbps, duration: 100ms, systems: [fifo], repeat: {{h: 4}}, hosts: [a<h>], switches: [s], \
             links: {{l<h>: {{between: [a<h>, s], rate: 1Gbps}}}}, tenants: {{x: {{host: [a<h>]}}}}, \
             workloads: {{w: {{tenant: x, to: x, {workload}}}}}}}"
        );
        run(&scenario(&text), &Options::default(), &|_| {}).map_err(|error| error.to_string())
    };
    // Twelve pairs of hosts have as many connections each.
    assert!(workload("kind: shuffle, flows: 2, block: 1kB").is_ok());
    let refusal = workload("kind: request_response, connections: 4000").expect_err("48,000 connections");
    assert!(refusal.contains("workload `w` has 48000 connections"), "{refusal}");
    assert!(refusal.contains("28232 source ports") && refusal.contains("a `port` of its own"), "{refusal}");
    let refusal = workload("kind: incast, senders: 2").expect_err("who asks?");
    assert!(
        refusal.contains("workload `w`: an incast has one end that asks, and `x` asks itself"),
        "{refusal}"
    );
}

#[test]
fn what_virtual_time_does_not_have_is_refused() {
    let refusal = refused(
        "{name: t, rate: 1Gbps, duration: 100ms, systems: [plimsoll], hosts: [a, b], switches: [s], \
         links: {l: {between: [a, s], rate: 1Gbps}, m: {between: [b, s], rate: 1Gbps}}, \
         tenants: {x: {host: a}, y: {host: b}}, backpressure: {watch: {pids: [1]}}, \
         workloads: {w: {tenant: x, to: y, kind: bulk}}}",
    );
    assert!(refusal.to_string().contains("host `a` watches a cgroup or threads"), "{refusal}");
    let refusal = refused(
        "{name: t, rate: 1Gbps, duration: 100ms, systems: [plimsoll], hosts: [a, b], switches: [s], \
         links: {l: {between: [a, s], rate: 1Gbps}, m: {between: [b, s], rate: 1Gbps}}, \
         tenants: {x: {host: a, program: {module: x.wasm, cpu: {cores: [1]}}}, y: {host: b}}, \
         workloads: {w: {tenant: x, to: y, kind: bulk}}}",
    );
    assert!(
        refusal.to_string().contains("tenant `x` of host `a` has a program with a core of its own"),
        "{refusal}"
    );
}

/// One host with a bulk sender and a neighbour that asks, with and without segmentation offload.
fn offloaded(offload: bool, host: &str) -> Run {
    let text = format!(
        "
name: offload
rate: 1Gbps
duration: 400ms
offload: {offload}
systems: [plimsoll]
hosts: {{a: {{{host}}}, b: {{nic: fifo}}}}
links: {{wire: {{between: [a, b], rate: 1Gbps, delay: 10us}}}}
engine: {{flows: fifo}}
tenants: {{x: {{host: a}}, y: {{host: a}}, z: {{host: b}}}}
workloads:
  bulk: {{tenant: x, kind: bulk, to: z, flows: 4}}
  ask:  {{tenant: y, kind: probe, to: z, size: 83B, rate: 1000}}
"
    );
    first_run(&text)
}

#[test]
fn long_segments_are_scheduled_frame_by_frame_and_read_in_two_parts() {
    let bus = "pcie: {rate: 100Gbps, latency: 1us, tlp: 256B, overhead: 26B, outstanding: 64}";
    let (plain, cut) = (offloaded(false, bus), offloaded(true, bus));
    let bytes = |run: &Run| run.workloads["bulk"].bytes.iter().sum::<u64>() as f64;
    assert!((bytes(&cut) / bytes(&plain) - 1.0).abs() < 0.01, "{} and {}", bytes(&cut), bytes(&plain));
    // Many frames to a descriptor, so few doorbells; each cut frame is read in two parts.
    let counted = |run: &Run, name| run.counters[name] as f64;
    let part = |run: &Run| counted(run, "doorbell_queue_writes") / counted(run, "pulls");
    assert!(part(&plain) > 0.4 && part(&cut) < 0.25 * part(&plain), "{} and {}", part(&cut), part(&plain));
    assert_eq!(plain.counters["dma_reads"], plain.counters["pulls"]);
    let reads = counted(&cut, "dma_reads") / counted(&cut, "pulls");
    assert!((1.9..=2.0).contains(&reads), "{reads}");
    // 1,514 B are six parts of 256 B; 66 B of header and 1,448 B of payload are one and six.
    let parts = counted(&cut, "bus_reads") / counted(&cut, "pulls");
    assert!((6.5..7.0).contains(&parts), "{parts}");
    assert!(counted(&plain, "bus_reads") / counted(&plain, "pulls") < 6.0);
}

#[test]
fn no_tenant_waits_for_a_neighbours_whole_segment() {
    let run = offloaded(true, "");
    let slowest = slowest(&run, "ask");
    // A frame of 1,514 B takes 12 us on the wire and a segment of 64 kB 524 us: the probe meets one frame in the engine.
    // Its way there and back takes 22 us.
    assert!(slowest.is_some_and(|slowest| slowest < Span::micros(22 + 2 * 13)), "{slowest:?}");
}

/// A flow behind a limit, with a socket's buffer and completions, and without completions.
#[test]
fn a_sockets_buffer_holds_its_writer_back_and_engines_count_what_they_hold() {
    let text = "
name: sockets
rate: 1Gbps
duration: 200ms
systems: [plimsoll, early: {kind: plimsoll, completions: early}]
hosts: {a: {transmit: {ring: 256, completions: out_of_order}}}
engine: {ring: 128, flows: fifo}
tenants: {x: {via: [slow]}}
limits: {slow: {match: {dst: 10.200.0.1}, rate: 10Mbps}}
workloads: {u: {tenant: x, kind: udp, rate: 100Mbps, size: 958B, buffer: 50kB}}
measure: {window: 10ms, held: true}
";
    let runs = outcome(&scenario(text), 1).results.runs;
    let held = |run: &Run| run.workloads["u"].held[10..20].iter().sum::<u64>() as f64 / 100e6;
    // 50 frames of 1,000 bytes fill the buffer; without completions the flow's ring of 128 fills, and the rest is lost.
    assert!((49.0..=50.0).contains(&held(&runs[0])), "{}", held(&runs[0]));
    assert!((127.0..=128.0).contains(&held(&runs[1])), "{}", held(&runs[1]));
    assert_eq!(runs[0].drops["x"].values().sum::<u64>(), 0, "{:?}", runs[0].drops);
    assert!(runs[1].drops["x"]["flow_full"] > 1_000, "{:?}", runs[1].drops);
    for run in &runs {
        let sent = run.workloads["u"].bytes.iter().sum::<u64>();
        assert!((240_000..=260_000).contains(&sent), "{sent}: 10 Mb/s for 200 ms");
    }
}
