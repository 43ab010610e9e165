//! Tenants' promises: the verdict, and the cause of each breach.

use plimsoll_scenario::Run;
use plimsoll_slo::{Cause, TenantReport, Verdict};

use crate::support::first_run as run;

fn report<'r>(run: &'r Run, host: &str, tenant: &str) -> &'r TenantReport {
    &run.promises[host].tenants[tenant]
}

/// The verdict on a tenant, the cause of its first breach, and the tenant that caused it.
fn told(run: &Run, host: &str, tenant: &str) -> (Verdict, Option<Cause>, Option<String>) {
    let whole = &report(run, host, tenant).whole;
    let first = whole.breaches.first();
    eprintln!("{tenant}: {:?} {:?}", whole.verdict, whole.breaches);
    (whole.verdict, first.map(|breach| breach.cause), first.and_then(|breach| breach.who.clone()))
}

/// a and b send to c, each over 10 Gb/s.
fn fleet(keys: &str, tenants: &str, workloads: &str) -> Run {
    fleet_in(FLEET, keys, tenants, workloads)
}

fn fleet_in(text: &str, keys: &str, tenants: &str, workloads: &str) -> Run {
    run(&text.replace("KEYS", keys).replace("TENANTS", tenants).replace("WORKLOADS", workloads))
}

const FLEET: &str = "
name: promises
rate: 10Gbps
duration: 200ms
systems: [plimsoll]
hosts: {a: {transmit: {ring: 1024}}, b: {transmit: {ring: 1024}}, c: {receive: {ring: 512, drain: 100ns, cost: 400ns, slots: 256}}}
engine: {ring: 1024}
switches: [switch]
links:
  la: {between: [a, switch], rate: 10Gbps}
  lb: {between: [b, switch], rate: 10Gbps}
  lc: {between: [switch, c], rate: 10Gbps, queue: 1MB}
KEYS
tenants:
TENANTS
workloads:
WORKLOADS
measure: {from: 40ms, window: 20ms}
";

const TENANTS: &str = "
  x: {host: a, min: 1Gbps, max: 2Gbps}
  y: {host: a, min: 1Gbps, max: 9Gbps, delay: {p99: 400us}}
  u: {host: c, min: 1Gbps, max: 5Gbps}
  v: {host: c, min: 1Gbps, max: 10Gbps}
";

/// Two tenants, x and y, that send, and two on host c, u and v, to which they send.
fn tenants([x, y, u, v]: [&str; 4]) -> String {
    format!("  x: {{{x}}}\n  y: {{{y}}}\n  u: {{host: c{u}}}\n  v: {{host: c{v}}}")
}

/// A workload of full frames from a tenant to another one, at this rate.
fn udp(name: &str, [from, to]: [&str; 2], rate: &str) -> String {
    format!("  {name}: {{tenant: {from}, kind: udp, to: {to}, rate: {rate}, size: 1458B}}\n")
}

const CALM: &str = "  calm: {tenant: y, kind: udp, to: v, rate: 500Mbps, size: 458B}\n";

#[test]
fn who_sends_more_than_its_max_loses_its_own_and_its_neighbours_promise_holds() {
    let flood = udp("flood", ["x", "u"], "6Gbps") + CALM;
    let run = fleet("", TENANTS, &flood);
    assert_eq!(told(&run, "a", "x"), (Verdict::Beyond, Some(Cause::Itself), None));
    assert_eq!(told(&run, "a", "y"), (Verdict::Held, None, None));
    assert_eq!(told(&run, "c", "v").0, Verdict::Held);
    let calm = report(&run, "a", "y");
    assert_eq!((calm.kept, calm.seen), (8, 8), "windows of 20 ms from 40 ms on");
}

/// The rest of a run that is shorter than a window belongs to the last one: in a short window a burst would break a promise.
#[test]
fn the_end_of_a_run_is_judged_too() {
    let late = "  late: {tenant: x, kind: udp, to: u, rate: 6Gbps, size: 1458B, start: 195ms}";
    let text = FLEET.replace("window: 20ms", "window: 30ms");
    let run = fleet_in(&text, "", TENANTS, &(CALM.to_owned() + late));
    let last = report(&run, "a", "x").windows.last().expect("windows").clone();
    // Windows of 30 ms: the last one begins at 150, as only 20 are left after 180.
    assert_eq!(((last.from * 1e3).round(), (last.length * 1e3).round()), (150.0, 50.0));
    assert_eq!(told(&run, "a", "x"), (Verdict::Beyond, Some(Cause::Itself), None));
}

#[test]
fn who_only_receives_from_its_own_host_is_judged_too() {
    let tenants = tenants(["host: a, min: 1Gbps", "host: a, min: 1Gbps, max: 9Gbps", "", ""]);
    let run = fleet("", &tenants, &udp("near", ["x", "y"], "500Mbps"));
    assert_eq!(told(&run, "a", "y"), (Verdict::Held, None, None));
    let received = report(&run, "a", "y").whole.received;
    assert!((490e6..530e6).contains(&received), "{received}");
}

#[test]
fn a_neighbour_on_a_full_link_is_named() {
    let tenants = tenants(["host: a, min: 1Gbps, delay: {p99: 1us}", "host: a, min: 1Gbps", "", ""]);
    let calm = "  calm: {tenant: x, kind: udp, to: u, rate: 300Mbps, size: 458B}\n";
    let run = fleet("", &tenants, &(calm.to_owned() + &udp("flood", ["y", "v"], "12Gbps")));
    // A frame of the neighbour on the link takes longer than half a microsecond.
    assert_eq!(told(&run, "a", "x"), (Verdict::Broken, Some(Cause::NeighbourLink), Some("y".to_owned())));
}

/// In one queue for all tenants a flood of small packets breaks a neighbour's promise; with a queue for each it breaks none.
#[test]
fn a_neighbour_that_uses_up_the_receivers_cpu_is_named() {
    let with = |ingress: &str| {
        run(&format!(
            "
name: cpu
rate: 10Gbps
duration: 100ms
systems: [plimsoll: {{ingress: {ingress}}}]
hosts: {{a: {{}}, b: {{receive: {{ring: 512, drain: 100ns, cost: 1us, slots: 256}}}}}}
links: {{wire: {{between: [a, b], rate: 10Gbps}}}}
tenants: {{x: {{host: a}}, calm: {{host: a}}, y: {{host: b, max: 5Gbps}}, z: {{host: b, max: 5Gbps, delay: {{p99: 400us}}}}}}
workloads:
  flood: {{tenant: x, kind: udp, to: y, rate: 2Mpps, size: 60B}}
  ping: {{tenant: calm, kind: probe, to: z, size: 60B, rate: 20000}}
measure: {{from: 20ms, window: 20ms}}
"
        ))
    };
    let shared = with("shared");
    assert_eq!(told(&shared, "b", "z"), (Verdict::Broken, Some(Cause::NeighbourCpu), Some("y".to_owned())));
    let fair = with("fair");
    assert_eq!(told(&fair, "b", "z").0, Verdict::Held);
    assert_eq!(told(&fair, "b", "y"), (Verdict::Beyond, Some(Cause::Itself), None));
}

#[test]
fn what_the_fabric_loses_is_laid_to_it() {
    let tenants = tenants(["host: a, min: 1Gbps", "host: b, min: 1Gbps", "", ""]);
    // 12 Gb/s meet before a link of 10.
    let both = udp("one", ["x", "u"], "6Gbps") + &udp("two", ["y", "v"], "6Gbps");
    let run = fleet("", &tenants, &both);
    // They send in step, so the second one always finds the queue full.
    assert!(run.drops["y"]["queue full"] > 10_000, "{:?}", run.drops);
    assert_eq!(told(&run, "b", "y"), (Verdict::Broken, Some(Cause::Fabric), None));
    assert_eq!(told(&run, "a", "x"), (Verdict::Held, None, None));
}

#[test]
fn a_receiver_that_presses_back_is_named_and_its_senders_loss_is_its_own() {
    let control = "control: {epoch: 500us, feedback: 100us, threshold: 10us}";
    let tenants = tenants(["host: a, min: 1Gbps", "host: b, min: 1Gbps", ", min: 1Gbps, max: 2Gbps", ""]);
    let both = udp("flood", ["x", "u"], "6Gbps") + &udp("calm", ["y", "v"], "1Gbps");
    let run = fleet(control, &tenants, &both);
    assert_eq!(told(&run, "a", "x"), (Verdict::Beyond, Some(Cause::Receiver), Some("u at c".to_owned())));
    assert_eq!(told(&run, "b", "y"), (Verdict::Held, None, None));
}

/// Without control the maximum is kept on arrival: its senders cause the loss, and no other tenant has any.
#[test]
fn what_comes_beyond_a_maximum_is_dropped_and_laid_to_its_senders() {
    let tenants = tenants(["host: a", "host: b", ", max: 2Gbps", ", max: 5Gbps"]);
    let both = udp("flood", ["x", "u"], "6Gbps") + &udp("calm", ["y", "v"], "1Gbps");
    let run = fleet("", &tenants, &both);
    assert_eq!(told(&run, "c", "u"), (Verdict::Beyond, Some(Cause::ItsSenders), None));
    assert_eq!(told(&run, "c", "v"), (Verdict::Held, None, None));
    assert!(run.drops["x"]["ingress_over_max"] > 10_000, "{:?}", run.drops);
    assert!(run.drops["y"].is_empty(), "{:?}", run.drops);
    let bytes: u64 = run.workloads["flood"].delivered[2..].iter().sum();
    let rate = bytes as f64 * 8.0 / 0.16;
    assert!((2.05e9..2.12e9).contains(&rate), "its maximum and a twentieth: {rate}");
}

#[test]
fn a_guest_that_does_not_read_and_a_daemon_that_was_gone_are_told_apart() {
    let calm = udp("one", ["x", "u"], "1Gbps") + &udp("two", ["y", "v"], "1Gbps");
    let stalled = fleet("faults: {stalled: [{tenant: u, from: 100ms, to: 120ms}]}", TENANTS, &calm);
    assert_eq!(told(&stalled, "c", "u"), (Verdict::Beyond, Some(Cause::NotReading), None));
    assert_eq!(told(&stalled, "c", "v").0, Verdict::Held);
    let gone = fleet("faults: {restart: [{host: a, at: 100ms, gap: 15ms}]}", TENANTS, &calm);
    for tenant in ["x", "y"] {
        assert_eq!(told(&gone, "a", tenant), (Verdict::Broken, Some(Cause::LateWakeUp), None));
    }
    assert_eq!(told(&gone, "c", "v").0, Verdict::Held);
    let deaf = fleet("faults: {restart: [{host: c, at: 100ms, gap: 15ms}]}", TENANTS, &calm);
    assert_eq!(told(&deaf, "c", "v"), (Verdict::Broken, Some(Cause::LateWakeUp), None));
    assert_eq!(told(&deaf, "a", "y").0, Verdict::Held);
}
