//! Capture files: what is written is read back, and a full disk loses frames and nothing else.

use std::path::Path;
use std::process::Command;

use plimsoll_ports::{
    Capture, DropReason, FRAME_ROOM, PcapConfig, PcapPort, Port, PortError, Received, Sending,
};
use plimsoll_units::Nanos;
use proptest::prelude::*;

fn read_all(path: &Path) -> Vec<(Nanos, Vec<u8>)> {
    let mut port = PcapPort::open(&PcapConfig { read: Some(path.to_owned()), write: None }).unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    let mut frames = Vec::new();
    while !port.finished() {
        if let Some(Received { len, at: Some(at), vnet: None, .. }) = port.receive(&mut buffer).unwrap() {
            frames.push((at, buffer[..len].to_vec()));
        }
    }
    assert_eq!(port.counters().rx_packets, frames.len() as u64);
    assert!(port.take_problem().is_none());
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames, times and order survive the file, whatever the comments.
    #[test]
    fn what_is_written_is_read_back(
        frames in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 1..2_000), any::<Option<String>>()), 0..20),
        flush_every in 1usize..5,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcapng");
        let mut capture = Capture::create(&path).unwrap();
        for (index, (at, frame, comment)) in frames.iter().enumerate() {
            prop_assert!(capture.record(Nanos::new(*at), frame, comment.as_deref()));
            if index % flush_every == 0 {
                prop_assert_eq!(capture.flush().frames, 0);
            }
        }
        drop(capture);
        let expected: Vec<_> = frames.into_iter().map(|(at, frame, _)| (Nanos::new(at), frame)).collect();
        prop_assert_eq!(read_all(&path), expected);
    }

    /// Whatever a file holds, reading it ends, without a panic.
    #[test]
    fn any_bytes_are_read_to_an_end(magic in 0usize..3, bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcap");
        std::fs::write(&path, [HEADS[magic], &bytes].concat()).unwrap();
        if let Ok(mut port) = PcapPort::open(&PcapConfig { read: Some(path), write: None }) {
            let mut buffer = vec![0; FRAME_ROOM];
            let calls = (0..1_000).take_while(|_| port.receive(&mut buffer).is_ok() && !port.finished()).count();
            prop_assert!(calls < 1_000, "each call takes bytes from the file");
        }
    }
}

/// Beginnings that make a reader go on: pcap, pcapng with an interface, nothing.
const HEADS: [&[u8]; 3] = [
    &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0],
    &[
        0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0,
    ],
    &[],
];

#[test]
fn a_classic_pcap_in_microseconds_is_read_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.pcap");
    // One record: 2 s and 3 µs, 4 bytes kept of 6.
    let record = [2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 9, 9, 9, 9];
    std::fs::write(&path, [HEADS[0], &record].concat()).unwrap();
    assert_eq!(read_all(&path), [(Nanos::new(2_000_003_000), vec![9, 9, 9, 9, 0, 0])]);
}

#[test]
fn a_capture_with_a_snap_length_gives_whole_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapped.pcap");
    let mut head = HEADS[0].to_vec();
    head[16..20].copy_from_slice(&4_u32.to_le_bytes());
    let record = [2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 9, 9, 9, 9];
    std::fs::write(&path, [head, record.to_vec(), record.to_vec()].concat()).unwrap();
    assert_eq!(read_all(&path), vec![(Nanos::new(2_000_003_000), vec![9, 9, 9, 9, 0, 0]); 2]);
    let mut port = PcapPort::open(&PcapConfig { read: Some(path), write: None }).unwrap();
    port.receive(&mut [0; 100]).unwrap();
    assert_eq!(port.captured(), 4);
}

#[test]
fn a_damaged_file_gives_what_came_before_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.pcapng");
    let mut capture = Capture::create(&path).unwrap();
    for number in 0..3 {
        capture.record(Nanos::new(number), &[7; 100], None);
    }
    drop(capture);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 50]).unwrap();

    let mut port = PcapPort::open(&PcapConfig { read: Some(path), write: None }).unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    while !port.finished() {
        port.receive(&mut buffer).unwrap();
    }
    assert_eq!(port.counters().rx_packets, 2);
    assert_eq!(port.counters().rx_dropped(DropReason::BadRecord), 1);
    let problem = port.take_problem().unwrap().to_string();
    assert!(problem.contains("cut.pcapng: is damaged"), "{problem}");
}

#[test]
fn what_is_no_capture_is_refused_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "this is not a capture file, is it?").unwrap();
    let open = |path: &Path| PcapPort::open(&PcapConfig { read: Some(path.to_owned()), write: None });
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("notes.txt: is no capture") && error.contains("tcpdump -w"), "{error}");
    let missing = open(&folder.path().join("none")).unwrap_err().to_string();
    assert!(missing.contains("cannot be read: No such file"), "{missing}");
    let nowhere = Capture::create(&folder.path().join("no/such/folder.pcapng")).unwrap_err().to_string();
    assert!(nowhere.contains("make the folder first"), "{nowhere}");
}

#[test]
fn a_device_that_is_always_full_is_refused_at_once() {
    let error = Capture::create(Path::new("/dev/full")).unwrap_err().to_string();
    assert!(error.contains("No space left on device") && error.contains("make room"), "{error}");
}

/// A file system of 64 KiB, unmounted when dropped.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(folder.path())
            .output()
            .is_ok_and(|run| run.status.success());
        if !mounted {
            let required = std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_some_and(|value| value == "1");
            assert!(!required, "SKIPPED: a small file system cannot be mounted here");
            eprintln!("SKIPPED: a small file system cannot be mounted here; run as root");
        }
        mounted.then(|| Self(folder))
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_disk_that_fills_up_loses_frames_and_nothing_else() {
    let Some(disk) = TinyDisk::mount() else { return };
    let path = disk.0.path().join("left.pcapng");
    let mut port = PcapPort::open(&PcapConfig { read: None, write: Some(path.clone()) }).unwrap();
    let mut refused = 0;
    for _ in 0..200 {
        match port.send(&[7; 1_000], None).unwrap() {
            Sending::Refused(DropReason::FileFull) => refused += 1,
            other => assert_eq!(other, Sending::Sent),
        }
        port.flush().unwrap();
    }
    let counters = port.counters();
    assert!(refused > 100, "{counters:?}");
    assert_eq!(counters.tx_packets + counters.tx_dropped(DropReason::FileFull), 200, "each counted once");
    let late: u64 = std::iter::from_fn(|| port.take_refused()).map(|told| told.frames).sum();
    assert!(late > 0);
    assert_eq!(refused + late, counters.tx_dropped(DropReason::FileFull), "each told once");
    let problem = port.take_problem().unwrap();
    assert!(matches!(problem, PortError::File { .. }));
    assert!(problem.to_string().contains("left.pcapng: cannot be written: No space left"), "{problem}");
    assert!(port.take_problem().is_none(), "told once");
    Port::Pcap(port).close();
    assert_eq!(read_all(&path).len() as u64, counters.tx_packets, "the file ends with a whole block");
}
