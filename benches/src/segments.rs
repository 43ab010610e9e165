//! Segments of 64 KiB from one guest to another, through the daemon and through `dpdk-testpmd`.
//!
//! Why: guests' TCP hands over segments that long, and their bytes are the cost.
//! From: the guests of `vhost`. testpmd's `csum` engine sends what it receives as segments to be cut; the first come from a capture file.
//! Not here: whole packets (`vhost`).
//! Invariant: the guests are the same on both sides; the payload is not touched by them.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::testpmd::{Testpmd, WARM_UP, per_second};
use crate::vhost::{MACS, device};

/// Bytes of a frame: headers, and 45 packets' payload. A frame that is to be in a capture file for DPDK may have 65,535.
const LEN: usize = 54 + 45 * 1_448;

/// Frames that go round.
const FRAMES: usize = 32;

/// Bytes of a guest's buffer, and how many there are. A segment takes sixteen of them, as with guests' pages of 4 KiB.
const GUESTS: (usize, usize) = (4_224, 16_384);

/// Bytes of a buffer in which testpmd as a switch keeps a part of a segment, and how many there are. Of 2,176, 10,000 and 65,535 bytes
/// with enough of each this was the fastest, twice and three times as fast as the others.
pub const SWITCH: (usize, usize) = (10_000, 8_192);

/// The switch's devices, which take segments and hand them on uncut.
pub fn vhost_devices(sockets: [&Path; 2]) -> [String; 2] {
    [0, 1].map(|n: usize| format!("net_vhost{n},iface={},tso=1,legacy-ol-flags=1", sockets[n].display()))
}

/// Its mode.
pub const SWITCH_MODE: [&str; 4] =
    ["--auto-start", "--forward-mode=io", "--max-pkt-len=65535", "--tx-offloads=0x8000"];

/// Segments a second that the second guest receives from the first, and sends to itself through it again.
pub fn received(switch: u32, sockets: [&Path; 2]) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let capture = dir.path().join("first.pcap");
    write_capture(&capture).context("the first segments")?;
    let devices = [0, 1].map(|n| device(n, sockets[n], 1_024));
    let first = format!("net_pcap0,rx_pcap={}", capture.display());
    let peers = [0, 1].map(|n: usize| format!("--eth-peer={n},{}", MACS[1 - n]));
    let mode = [
        "--forward-mode=csum",
        "--txd=1024",
        "--rxd=1024",
        // What has come to the second guest stays there until it sends.
        "--no-flush-rx",
        "--max-pkt-len=9700",
        "--max-lro-pkt-size=9700",
        &peers[0],
        &peers[1],
    ];
    let devices = [devices[0].as_str(), &devices[1], &first];
    let mut guests = Testpmd::with(&switch.to_string(), &devices, &mode, GUESTS)?;
    guests.received(0)?;
    guests.tell("port stop all")?;
    for port in [0, 1] {
        // A guest that completes no checksums may be given no segments.
        for offload in ["tcp_cksum", "tcp_lro", "scatter"] {
            guests.tell(&format!("port config {port} rx_offload {offload} on"))?;
        }
        guests.tell(&format!("tso set 1448 {port}"))?;
        guests.tell(&format!("csum set tcp hw {port}"))?;
    }
    for command in ["port start all", "set portlist 2,0"] {
        guests.tell(command)?;
    }
    guests.received(0)?;
    std::thread::sleep(WARM_UP);
    guests.tell("start")?;
    std::thread::sleep(WARM_UP);
    for command in ["stop", "set portlist 0,1", "start"] {
        guests.tell(command)?;
    }
    let rate = per_second(|| guests.received(1))?;
    let (packets, bytes) = guests.received_with_bytes(1)?;
    ensure!(bytes == packets * LEN as u64, "segments were cut: {packets} packets have {bytes} bytes");
    Ok(rate)
}

/// A capture file of TCP segments from the first guest to the second.
fn write_capture(path: &Path) -> Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let whole = u32::try_from(LEN)?;
    for word in [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 262_144, 1] {
        file.write_all(&word.to_le_bytes())?;
    }
    let frame = segment()?;
    for _ in 0..FRAMES {
        for word in [0, 0, whole, whole] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&frame)?;
    }
    Ok(file.flush()?)
}

/// One segment without checksums, which testpmd computes.
fn segment() -> Result<Vec<u8>> {
    let mut frame = vec![0; LEN];
    let mac = |text: &str| -> Vec<u8> {
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).expect("an address")).collect()
    };
    frame[..6].copy_from_slice(&mac(MACS[1]));
    frame[6..12].copy_from_slice(&mac(MACS[0]));
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&u16::try_from(LEN - 14)?.to_be_bytes());
    frame[20..24].copy_from_slice(&[0x40, 0, 64, 6]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..38].copy_from_slice(&[0x27, 0x10, 0x27, 0x11]);
    frame[46..50].copy_from_slice(&[0x50, 0x10, 0xff, 0xff]);
    Ok(frame)
}
