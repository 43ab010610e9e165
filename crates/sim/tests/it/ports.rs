//! Source ports of flows that arrive: reused, and only when the connection that had them is over.

use std::collections::BTreeMap;
use std::fs::File;

use etherparse::{PacketHeaders, TransportHeader};
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_scenario::{FlowSample, Form, Scenario};
use plimsoll_sim::{Options, Trace, run};
use plimsoll_units::{Nanos, Span};

/// Linux's ephemeral ports.
const PORTS: usize = 60_999 - 32_768 + 1;

/// A segment of the capture: its source port, whether it is a SYN, and the bytes of the stream at its ends.
struct Sent {
    port: u16,
    syn: bool,
    from: usize,
    to: usize,
}

/// Runs a scenario with one workload `w` and a link `wire`: its flows, and what crossed the link.
fn run_traced(text: &str, sizes: &str) -> (Vec<FlowSample>, Vec<Sent>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("sizes.csv"), sizes).expect("written");
    let scenario = Scenario::parse(text, "ports.yaml", folder.path(), Form::Full)
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let file = folder.path().join("t.pcapng");
    let trace = Trace { file: file.clone(), at: vec!["wire".to_owned()] };
    let options = Options { trace: Some(trace), ..Options::default() };
    let outcome = run(&scenario, &options, &|_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut reader = PcapNgReader::new(File::open(file).expect("written")).expect("a capture");
    let mut sent = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("a block") else { continue };
        let mut frame = packet.data.to_vec();
        frame.resize(packet.original_len as usize, 0);
        let headers = PacketHeaders::from_ethernet_slice(&frame).expect("headers");
        let Some(TransportHeader::Tcp(tcp)) = &headers.transport else { panic!("TCP") };
        // Ethernet pads short frames: what counts is the length of the IP packet.
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &headers.net else { panic!("IPv4") };
        let payload = usize::from(ip.total_len) - ip.header_len() - tcp.header_len();
        let from = tcp.sequence_number as usize;
        sent.push(Sent { port: tcp.source_port, syn: tcp.syn, from, to: from + payload });
    }
    (outcome.results.runs[0].workloads["w"].flows.clone(), sent)
}

/// 40,000 short flows and a few that last are more than there are ports between two hosts.
#[test]
fn a_port_is_used_again_when_its_connection_is_over_and_no_flow_is_mixed_up() {
    let text = "
name: ports
rate: 2Gbps
duration: 200ms
systems: [fifo]
hosts: [a, b]
links: {wire: {between: [a, b], rate: 2Gbps, delay: 5us, queue: 4MB, ecn: 100kB}}
tenants: {x: {host: a}, y: {host: b}}
workloads:
  w: {tenant: x, to: y, kind: flows, sizes: sizes.csv, rate: 200000, congestion: dctcp}
";
    let (flows, sent) = run_traced(text, "100,0\n200,0.9995\n50000000,1\n");
    assert!(flows.len() > PORTS + 8_000, "{}", flows.len());
    let late = Nanos::ZERO + Span::millis(190);
    let lost = |flow: &&FlowSample| flow.took.is_none() && flow.size <= 200 && flow.at < late;
    assert_eq!(flows.iter().filter(lost).count(), 0, "short flows are complete");

    // By port: the flow that has it now, and how far its stream has been sent. SYNs leave in the order of arrivals.
    let mut streams: BTreeMap<u16, (usize, usize)> = BTreeMap::new();
    let (mut begun, mut again) = (0, 0);
    for Sent { port, syn, from, to } in sent {
        if syn {
            let before = streams.insert(port, (begun, 1));
            begun += 1;
            if let Some((flow, end)) = before {
                again += 1;
                assert_eq!(end as u64, 1 + flows[flow].size, "port {port}: flow {flow} is over");
                let over = flows[flow].at + flows[flow].took.expect("its receiver has all of it");
                assert!(over <= flows[begun - 1].at, "port {port}: flow {flow} is complete");
            }
            continue;
        }
        let (flow, end) = streams.get_mut(&port).expect("a stream begins with a SYN");
        assert!(from <= *end, "flow {flow}: no gap in its stream");
        *end = to.max(*end);
        assert!(*end as u64 <= 1 + flows[*flow].size, "flow {flow}: no bytes of another one");
    }
    assert!(begun >= flows.len() - 1 && again > 8_000, "{begun} begun, {again} on a used port");
    let holds = |(n, flow): &(usize, &FlowSample)| {
        let after = flows.get(n + PORTS);
        after.is_some_and(|after| flow.took.is_none_or(|took| flow.at + took > after.at))
    };
    assert!(flows.iter().enumerate().filter(holds).count() > 0, "a flow still has the port whose turn it is");
}
