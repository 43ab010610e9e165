//! Several engine threads: which policies they keep.

use plimsoll_policy::{LimitId, check_str};
use plimsoll_units::{Bytes, Span};

fn checked(threads: u32, rest: &str) -> Result<plimsoll_policy::Checked, String> {
    let tenants = "a: {port: memory}, b: {port: memory, min: 1Gbps}, c: {port: memory, max: 2Gbps}";
    let text = format!(
        "{{uplink: {{port: memory, rate: 10Gbps}}, engine: {{threads: {threads}}}, tenants: {{{tenants}}}{rest}}}"
    );
    check_str("p.yaml", &text).map_err(|errors| errors.render(false))
}

#[test]
fn tenants_spread_over_threads_below_wfq_and_priority() {
    let policy = ", policy: {root: {priority: [a, rest]}, rest: {wfq: {b: 2, c: 1}}}";
    let checked = checked(4, policy).expect("a policy for threads");
    assert_eq!(checked.config.engine.threads, 4);
    let program = &checked.program;
    let spans = |name| program.spanning()[program.find(name).expect("a node").0 as usize];
    assert!(spans("root") && spans("rest"), "they hold tenants of several threads");
    assert!(!spans("a") && !spans("b") && !spans("c"), "a tenant's port is on one thread");
    assert!(program.spanning_limits().is_empty(), "the `max` of c holds one tenant");
}

#[test]
fn an_order_by_arrival_above_tenants_needs_one_thread() {
    let policy = ", policy: {root: {fifo: [a, b, c]}}";
    assert!(checked(1, policy).is_ok());
    let refused = checked(2, policy).expect_err("no order among threads");
    assert!(refused.contains("`threads` is 2, but class `root` orders by `fifo`"), "{refused}");
}

#[test]
fn a_limit_is_exceeded_by_a_lease_and_a_frame_of_each_thread() {
    let limits = ", limits: {wan: {match: {tenant: [a, b], dst: 203.0.113.0/24}, rate: 800Mbps}}";
    let checked = checked(2, limits).expect("a policy for threads");
    let [wan] = checked.program.spanning_limits()[..] else { panic!("one limit holds several tenants") };
    assert_eq!(checked.program.limit(wan).name, "wan");
    // 800 Mb/s carry 10,000 bytes in 100 us; a frame has 1,518.
    assert_eq!(checked.program.excess(wan, 2), Bytes::new(10_000 + 2 * 1_518));
    assert_ne!(wan, LimitId(0), "the other one is the `max` of c");
}

#[test]
fn what_several_threads_cannot_do_yet_is_refused_with_a_way_out() {
    let refused = |uplink: &str, tenant: &str, rest: &str| {
        let text = format!(
            "{{uplink: {{{uplink}, rate: 1Gbps}}, engine: {{threads: 2}}, tenants: {{a: {{port: memory{tenant}}}}}{rest}}}"
        );
        check_str("p.yaml", &text).map_err(|errors| errors.render(false)).err().unwrap_or_default()
    };
    for port in ["af_packet: eth0", "af_xdp: eth0"] {
        assert_eq!(refused(&format!("port: {{{port}}}"), "", ""), "", "a queue for each thread");
    }
    for port in ["pcap: {read: a.pcap}", "tap: {name: up0}"] {
        let told = refused(&format!("port: {{{port}}}"), "", "");
        assert!(told.contains("`threads` is 2, but the uplink") && told.contains("has one queue"), "{told}");
        assert!(told.contains("af_packet") && told.contains("af_xdp"), "{told}");
    }
    let told = refused("port: {af_packet: eth0}, standby: {af_packet: eth1}", "", "");
    assert!(told.contains("a `standby` of the uplink works with one thread only"), "{told}");
    let told = refused("port: memory", ", ecn: mediated", "");
    assert!(told.contains("`ecn: mediated` works with one thread only"), "{told}");
    for program in ["module: a.wasm", "module: a.wasm, units: {aes: 1}"] {
        let told = refused("port: memory", &format!(", program: {{{program}}}"), "");
        assert_eq!(told, "", "it runs on its tenant's thread, and a coprocessor serves all threads");
    }
    let told = refused("port: memory", "", ", backpressure: {tenants: [a], heavy: 1kpps}");
    assert!(told.contains("`backpressure` works with one thread only"), "{told}");
}

#[test]
fn a_lease_carries_eight_frames_and_is_never_longer_than_a_millisecond() {
    let lease = |rate: &str| {
        let text = format!("{{uplink: {{port: memory, rate: {rate}}}, tenants: {{a: {{port: memory}}}}}}");
        check_str("p.yaml", &text).expect("a policy").program.lease()
    };
    assert_eq!(lease("100Gbps"), Span::micros(100));
    assert_eq!(lease("1Gbps"), Span::micros(100));
    // 8 frames of 1,518 bytes at 100 Mb/s.
    assert_eq!(lease("100Mbps"), Span::ns(971_520));
    assert_eq!(lease("10Mbps"), Span::millis(1));
}

#[test]
fn there_are_at_most_64_threads() {
    assert!(checked(64, "").is_ok());
    assert!(checked(65, "").is_err() && checked(0, "").is_err());
}
