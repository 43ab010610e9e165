//! `plimsoll sim --replay` with a capture that keeps the beginning of each frame only, as `tcpdump -s 96` writes it.

use std::fs::File;
use std::process::{Command, Output};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use serde_json::{Value, json};

use crate::support::folder::Folder;

const SNAP: u32 = 96;

const POLICY: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {shop: {port: memory}}
policy:
  root: {wfq: [web, shop]}
  web:  {match: {tenant: shop, dst_port: 443}}
";

/// An IPv4 frame of this length, of TCP (20 bytes of header) or UDP, from 10.0.0.1 to this port.
fn ipv4(len: u16, protocol: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![0; len.into()];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&(len - 14).to_be_bytes());
    (frame[22], frame[23]) = (64, protocol);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    if protocol == 6 {
        frame[46] = 5 << 4;
    } else {
        frame[38..40].copy_from_slice(&(len - 34).to_be_bytes());
    }
    frame
}

/// An IPv6 frame whose UDP header is behind 48 bytes of options, beyond the snap length.
fn with_options() -> Vec<u8> {
    let mut frame = vec![0; 14 + 40 + 48 + 8 + 100];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]);
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&(48_u16 + 8 + 100).to_be_bytes());
    (frame[20], frame[21]) = (60, 64);
    (frame[22], frame[23], frame[37]) = (0x20, 0x01, 1);
    (frame[38], frame[39], frame[53]) = (0x20, 0x01, 2);
    // Destination options: UDP follows, 48 bytes, all of them padding.
    frame[54..58].copy_from_slice(&[17, 5, 1, 44]);
    frame[102 + 2..102 + 4].copy_from_slice(&443_u16.to_be_bytes());
    frame[102 + 4..102 + 6].copy_from_slice(&108_u16.to_be_bytes());
    frame
}

/// Writes the frames, a millisecond apart, each cut at the snap length.
fn capture(file: &std::path::Path, frames: &[Vec<u8>]) {
    let header = PcapHeader { snaplen: SNAP, ..PcapHeader::default() };
    let file = File::create(file).expect("created");
    let mut writer = PcapWriter::with_header(file, header).expect("a header");
    for (number, frame) in (0..).zip(frames) {
        let kept = &frame[..frame.len().min(SNAP as usize)];
        let whole = u32::try_from(frame.len()).expect("short");
        let packet = PcapPacket::new(Duration::from_millis(number), whole, kept);
        writer.write_packet(&packet).expect("written");
    }
}

fn replay(policy: &str, capture: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["sim", policy, "--replay", capture]).args(more).output().expect("the program")
}

#[test]
fn a_capture_with_a_snap_length_counts_by_the_lengths_on_the_wire() {
    let folder = Folder::new("snap");
    let policy = folder.write("p.yaml", POLICY);
    let file = folder.0.join("snapped.pcap");
    let mut frames = vec![ipv4(1_000, 17, 443); 10];
    frames.extend(vec![ipv4(1_514, 6, 22); 4]);
    // What a host hands to its NIC in one piece: 10 segments of 1,460 bytes, each with 54 of headers.
    frames.push(ipv4(54 + 14_600, 6, 443));
    // BIG TCP: 100 segments, in a packet that cannot state its length.
    let mut big = ipv4(54, 6, 443);
    big.resize(54 + 146_000, 0);
    (big[16], big[17]) = (0, 0);
    frames.push(big);
    // Shorter than the snap length.
    frames.push(ipv4(60, 17, 443));
    // Its headers are beyond what the capture has.
    frames.extend(vec![with_options(); 3]);
    capture(&file, &frames);
    let file = file.display().to_string();

    let done = replay(&policy, &file, &["--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    let found: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let class = |name: &str| {
        let classes = found["classes"].as_array().expect("classes");
        let class = classes.iter().find(|class| class["class"] == name);
        let class = class.unwrap_or_else(|| panic!("{name}: {found}"));
        (class["packets"].as_u64().expect("a count"), class["bytes"].as_u64().expect("a size"))
    };
    assert_eq!(class("web"), (10 + 10 + 100 + 1, 10 * 1_000 + 14_600 + 146_000 + 110 * 54 + 60));
    assert_eq!(class("shop"), (4, 4 * 1_514));
    assert_eq!(found["segmented"], 2);
    assert_eq!(found["not_sent"], json!({"headers cut off by the capture's snap length": 3}));

    let table = String::from_utf8_lossy(&replay(&policy, &file, &[]).stdout).into_owned();
    assert!(table.contains("not sent: 3 (headers cut off by the capture's snap length)\n"), "{table}");
    assert!(table.contains("in segments: 2 frames longer than the uplink carries\n"), "{table}");
}
