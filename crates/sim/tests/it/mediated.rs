//! Mediated ECN, and what is not to be changed, as captures on both sides of a gateway show it.

use std::collections::BTreeMap;
use std::fs::File;

use crate::support::{first_run, load};
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_scenario::{Form, Run};
use plimsoll_sim::{Options, Trace, run};

/// A client on `near` that asks for ECN, and a server on `far` whose TCP knows none. A round trip takes 0.8 ms.
fn one_flow(client: &str, server: &str, link: &str, rest: &str) -> Run {
    first_run(&format!(
        "name: mediated
rate: 1Gbps
duration: 1s
systems: [plimsoll]
hosts: {{near: {{}}, mid: {{receive: {{ring: 4096, slots: 4096, cost: 5us}}}}, far: {{}}}}
switches: [switch]
links:
  l1: {{between: [near, switch], rate: 1Gbps, delay: 100us}}
  l2: {{between: [far, switch], delay: 100us, {link}}}
  l3: {{between: [mid, switch], rate: 1Gbps, delay: 100us}}
tenants:
  client:  {{host: near, tcp_ecn: 1{client}}}
  server:  {{host: far, tcp_ecn: 0{server}}}
  gateway: {{host: mid, forwards: true}}
{rest}
measure: {{from: 500ms, window: 50ms}}"
    ))
}

/// Mb/s that arrived in the second half of the run.
fn mbps(run: &Run, workload: &str) -> f64 {
    run.workloads[workload].delivered[10..].iter().sum::<u64>() as f64 * 8.0 / 0.5 / 1e6
}

/// The gateway marks a flow for 300 Mb/s. The host of its sender holds it to the rate that the sender's policy states.
#[test]
fn a_reported_mark_holds_the_flow_at_its_source() {
    let pressed =
        "backpressure: {tenants: [gateway], heavy: 1kpps, watch: {tenant: gateway}, threshold: 5%, \
                   release: 2%, mode: mark, rate: 300Mbps}
workloads: {big: {tenant: client, kind: bulk, to: server, through: gateway}}";
    let [mediated, own] = [", ecn: mediated", ", ecn: {mediate: {rate: 100Mbps}}"];
    let run = one_flow(own, mediated, "rate: 1Gbps", pressed);
    assert_eq!((run.counters["ecn_asked"], run.counters["ecn_granted"], run.counters["notices"]), (0, 1, 0));
    assert!(run.counters["ecn_reported"] > 0 && run.workloads["big"].metered > Some(1_000));
    assert!((90.0..105.0).contains(&mbps(&run, "big")), "{}", mbps(&run, "big"));
    // The sender's host does not mediate: its TCP alone heeds the marks.
    let run = one_flow("", mediated, "rate: 1Gbps", pressed);
    assert_eq!(run.workloads["big"].metered, Some(0));
    assert!((200.0..330.0).contains(&mbps(&run, "big")), "{}", mbps(&run, "big"));
    assert!(run.counters["ecn_unmarked"] > 0 && run.workloads["big"].marks == Some(0));
    // No host of the server's takes its part: ECN is not agreed on, and the gateway tells the source.
    let run = one_flow(own, "", "rate: 1Gbps", pressed);
    assert_eq!(run.workloads["big"].ecn, Some([0, 0]));
    assert!(run.counters["ecn_reported"] == 0 && run.counters["notices"] > 0);
}

/// Marks of a link's queue are echoed too, and need no backpressure.
#[test]
fn a_networks_marks_are_echoed_without_backpressure() {
    let flow = "workloads: {big: {tenant: client, kind: bulk, to: server}}";
    let marks = "rate: 500Mbps, ecn: 50kB";
    let with = one_flow(", ecn: mediated", ", ecn: mediated", marks, flow);
    let echoed = with.workloads["big"].echoed;
    assert_eq!(with.workloads["big"].ecn, Some([1, 0]), "the client's TCP alone");
    assert!(echoed.is_some_and(|ends| ends[0] > 10 && ends[1] == 0), "{echoed:?}");
    assert!(with.counters["ecn_reported"] > 0 && with.workloads["big"].marks == Some(0));
    let without = one_flow("", "", marks, flow);
    assert_eq!(without.workloads["big"].echoed, Some([0, 0]));
    assert!(!without.counters.contains_key("ecn_asked"), "nothing is mediated");
}

/// The frames that crossed a link, by the server's port and the direction.
type Crossed = BTreeMap<(u16, bool), Vec<Vec<u8>>>;

/// What crossed each of these links in the short form of MI-E12.
fn captures(links: [&str; 4]) -> [Crossed; 4] {
    let mut scenario = load("examples/papers/mimic/e12-untouched.yaml", Form::VirtualShort);
    scenario.systems.retain(|system| system.name == "both");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t.pcapng");
    let trace = Trace { file: file.clone(), at: links.map(str::to_owned).into() };
    let options = Options { trace: Some(trace), ..Options::default() };
    run(&scenario, &options, &|_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut reader = PcapNgReader::new(File::open(file).expect("written")).expect("a capture");
    let mut crossed = [const { Crossed::new() }; 4];
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("a block") else { continue };
        let frame = packet.data.to_vec();
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (server, back) = if port(34) < 6_000 { (port(34), true) } else { (port(36), false) };
        crossed[packet.interface_id as usize].entry((server, back)).or_default().push(frame);
    }
    crossed
}

/// The places at which two frames differ.
fn differences(a: &[u8], b: &[u8]) -> Vec<usize> {
    assert_eq!(a.len(), b.len());
    (0..a.len()).filter(|&at| a[at] != b[at]).collect()
}

/// MI-E12. `elephant`, `claims`, `direct`, `datagrams` and `ask` have the ports 5001 to 5005; `marked` and `mediated` are beside
/// them.
#[test]
fn what_is_not_to_be_changed_is_the_same_on_both_sides_byte_for_byte() {
    let [from_clients, to_servers, from_servers, to_clients] = captures(["l1", "l2 back", "l2", "l1 back"]);
    for (sent, came) in [(&from_clients, &to_servers), (&from_servers, &to_clients)] {
        for (flow @ (port, _), frames) in came {
            // Some are under way when the run ends.
            let before = &sent[flow][..frames.len()];
            if (5_001..=5_005).contains(port) {
                assert!(frames.len() > 200 && before == &frames[..], "{flow:?}: {} frames", frames.len());
                continue;
            }
            let changed = before.iter().zip(frames).map(|(sent, came)| differences(sent, came));
            let changed: Vec<_> = changed.filter(|places| !places.is_empty()).collect();
            // Marks travel with data: from the client over `marked`, from the server over `mediated`.
            assert_eq!(changed.len() > 10, *flow == (5_006, false) || *flow == (5_007, true), "{flow:?}");
            // The ECN field, and IPv4's checksum.
            assert!(changed.iter().flatten().all(|place| [15, 24, 25].contains(place)), "{changed:?}");
        }
    }
    assert_eq!([to_servers.len(), to_clients.len()], [7, 5], "two flows of datagrams have no answers");
    // The client that knows no ECN asks for it on the wire: ECE and CWR in its SYN.
    assert_eq!(from_clients[&(5_007, false)][0][47], 0b1100_0010);
}
