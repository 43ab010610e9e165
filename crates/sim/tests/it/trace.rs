//! A trace has a frame for each packet, which any parser reads, with the scheduler's decision.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use crate::support::{self, scenario};
use etherparse::{PacketHeaders, TransportHeader};
use pcap_file::pcapng::{Block, PcapNgReader};
use plimsoll_sim::{Options, Outcome, Trace, run};

const TEXT: &str = "
name: traced
rate: 100Mbps
duration: 200ms
systems: [plimsoll]
hosts: {a: {}, b: {nic: fifo}}
links: {wire: {between: [a, b], rate: 100Mbps, delay: 1ms, loss: 1%}}
tenants: {x: {host: a}, y: {host: b}}
workloads:
  up:   {tenant: x, to: y, kind: bulk, flows: 3, congestion: dctcp}
  big:  {tenant: x, to: y, kind: udp, size: 4000B, rate: 10Mbps}
  ping: {tenant: x, to: y, kind: probe, rate: 1000}
";

/// The frames of a link as on the wire, and the number of packets that crossed the uplink.
fn frames(at: &str) -> (Vec<Vec<u8>>, u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("t.pcapng");
    let trace = Trace { file: file.clone(), at: vec![at.to_owned()] };
    let options = Options { trace: Some(trace), ..Options::default() };
    let outcome = run(&scenario(TEXT), &options, &|_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut reader = PcapNgReader::new(File::open(file).expect("written")).expect("a capture");
    let (mut frames, mut last) = (Vec::new(), Duration::ZERO);
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("a block") else { continue };
        assert!(packet.timestamp >= last, "in the order of time");
        last = packet.timestamp;
        let mut frame = packet.data.to_vec();
        frame.resize(packet.original_len as usize, 0);
        frames.push(frame);
    }
    let packets = |found: &Outcome| found.results.runs[0].workloads.values().map(|w| w.packets).sum::<u64>();
    let untraced = support::outcome(&scenario(TEXT), 1);
    assert_eq!(
        (packets(&outcome), outcome.events),
        (packets(&untraced), untraced.events),
        "a trace changes nothing"
    );
    let packets = packets(&outcome);
    (frames, packets)
}

#[test]
fn every_frame_is_sound_and_none_is_missing() {
    let (out, crossed) = frames("wire");
    // One in a hundred is lost on the wire, after it has left.
    assert!(
        out.len() as u64 > crossed && (out.len() as u64) < crossed * 103 / 100,
        "{} {crossed}",
        out.len()
    );
    let mut sequence: BTreeMap<u16, Vec<(u32, usize)>> = BTreeMap::new();
    for frame in &out {
        let headers = PacketHeaders::from_ethernet_slice(frame).expect("headers");
        let Some(etherparse::NetHeaders::Ipv4(ip, _)) = &headers.net else { panic!("IPv4") };
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(usize::from(ip.total_len), frame.len() - 14);
        if let Some(TransportHeader::Tcp(tcp)) = &headers.transport {
            let payload = headers.payload.slice();
            let syn = tcp.syn && tcp.sequence_number == 0;
            assert_eq!(tcp.ack, !syn, "all but a SYN acknowledges");
            assert!(tcp.window_size > 0, "there is room at the other end");
            assert_eq!(tcp.checksum, tcp.calc_checksum_ipv4(ip, payload).expect("it fits"));
            let next = tcp.sequence_number.wrapping_add(u32::from(tcp.syn) + payload.len() as u32);
            sequence.entry(tcp.source_port).or_default().push((tcp.sequence_number, next as usize));
        }
    }
    assert_eq!(sequence.len(), 3, "one stream for each flow");
    for stream in sequence.values() {
        assert_eq!(stream[0], (0, 1), "it begins with a SYN");
        let mut end = 1;
        for &(from, next) in &stream[1..] {
            assert!(from as usize <= end, "no gap: what is sent again begins earlier");
            end = end.max(next);
        }
    }
}

#[test]
fn what_comes_back_acknowledges() {
    let (back, _) = frames("wire back");
    let acks = back.iter().filter(|frame| {
        let headers = PacketHeaders::from_ethernet_slice(frame).expect("headers");
        matches!(headers.transport, Some(TransportHeader::Tcp(tcp)) if tcp.ack && tcp.acknowledgment_number > 1)
    });
    assert!(acks.count() > 100);
}

#[test]
fn a_link_that_is_none_is_said_with_those_that_are() {
    let trace = Trace { file: "/nonexistent/t.pcapng".into(), at: vec!["wine".to_owned()] };
    let options = Options { trace: Some(trace), ..Options::default() };
    let error = run(&scenario(TEXT), &options, &|_| {}).expect_err("no such link").to_string();
    assert!(error.contains("`wine`") && error.contains("`wire back`"), "{error}");
}
