//! Packet sockets against the real kernel, over veth pairs.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{PATIENCE, live, number_of, numbered, quiet, until, waits_without_a_carrier};
use plimsoll_ports::netns::{Netns, NetnsRef};
use plimsoll_ports::{
    DropReason, FRAME_ROOM, PacketConfig, PacketSocket, Port, PortError, Sending, Tap, TapConfig, Trouble,
};
use plimsoll_wire::VnetHeader;

/// `left` of one namespace joined to `right` of another, both up.
fn veth() -> (Netns, Netns) {
    let (a, b) = (quiet("a"), quiet("b"));
    a.links().add_veth("left", &b, "right").unwrap();
    a.links().set_up("left").unwrap();
    b.links().set_up("right").unwrap();
    (a, b)
}

fn config(netns: &Netns, interface: &str) -> PacketConfig {
    PacketConfig::new(NetnsRef::Path(netns.path()), interface)
}

fn exchange(vnet: bool, bypass: bool) {
    const COUNT: u32 = 2_000;
    let (a, b) = veth();
    let mut sender = PacketSocket::open(&PacketConfig { vnet, bypass, ..config(&a, "left") }).unwrap();
    let mut receiver = PacketSocket::open(&PacketConfig { vnet, bypass, ..config(&b, "right") }).unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    let mut expected = 0;
    let mut take = |receiver: &mut PacketSocket| {
        while let Some(got) = receiver.receive(&mut buffer).unwrap() {
            assert_eq!(got.vnet.is_some(), vnet);
            if let Some(number) = number_of(&buffer[..got.len]) {
                assert_eq!((number, got.len), (expected, 60 + number as usize % 1_400), "in order and whole");
                expected += 1;
            }
        }
        expected
    };
    for number in 0..COUNT {
        let frame = numbered(number, 60 + number as usize % 1_400);
        until("room to send", || sender.send(&frame, None).unwrap() == Sending::Sent);
        if number % 64 == 0 {
            sender.flush().unwrap();
            take(&mut receiver);
        }
    }
    until("all frames", || {
        sender.flush().unwrap();
        take(&mut receiver) == COUNT
    });
    assert_eq!(sender.counters().tx_packets, u64::from(COUNT));
    assert_eq!(sender.counters().rx_packets, 0, "it does not hear itself");
    assert_eq!(receiver.counters().rx_dropped(DropReason::KernelFull), 0);
}

#[test]
fn every_frame_arrives_once_and_in_order() {
    if live() {
        exchange(true, false);
    }
}

#[test]
fn without_offloads_and_past_the_queue_too() {
    if live() {
        exchange(false, true);
    }
}

#[test]
fn frames_wait_while_the_far_end_has_no_carrier() {
    if !live() {
        return;
    }
    let (a, b) = veth();
    let mut sender = Port::AfPacket(PacketSocket::open(&config(&a, "left")).unwrap());
    let mut receiver = PacketSocket::open(&config(&b, "right")).unwrap();
    waits_without_a_carrier(&mut sender, &b, "right");
    sender.flush().unwrap();
    let (mut buffer, mut came) = (vec![0; FRAME_ROOM], Vec::new());
    until("both frames", || {
        while let Ok(Some(got)) = receiver.receive(&mut buffer) {
            came.extend(number_of(&buffer[..got.len]));
        }
        came.len() == 2
    });
    assert_eq!((came, sender.counters().tx_packets), (vec![0, 1], 2));

    // One that is opened without a carrier knows it at once, and one that has disappeared is not only down.
    b.links().set_down("right").unwrap();
    let mut late = PacketSocket::open(&config(&a, "left")).unwrap();
    until("no carrier", || late.is_down());
    a.links().delete("left").unwrap();
    until("it has gone", || late.send(&numbered(2, 100), None).and(late.flush()) == Err(Trouble::Gone));
}

#[test]
fn vlan_tags_arrive() {
    if !live() {
        return;
    }
    let (a, b) = veth();
    let mut sender = PacketSocket::open(&config(&a, "left")).unwrap();
    let mut receiver = PacketSocket::open(&config(&b, "right")).unwrap();
    let mut frame = numbered(1, 80);
    frame.splice(12..12, [0x81, 0, 0x20, 42]);
    assert_eq!(sender.send(&frame, None), Ok(Sending::Sent));
    sender.flush().unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    until("the tagged frame", || match receiver.receive(&mut buffer).unwrap() {
        Some(got) => buffer[..got.len] == frame,
        None => false,
    });
}

#[test]
fn tcp_between_a_tap_and_an_interface_passes_in_frames_of_64_kib() {
    if !live() {
        return;
    }
    const BYTES: usize = 8 << 20;
    let (middle, far) = veth();
    far.links().add_address("right", "10.9.8.2/24".parse().unwrap()).unwrap();
    let tenant = quiet("tenant");
    let mut tap = TapConfig::new(NetnsRef::Path(tenant.path()), "eth0");
    tap.addresses.push("10.9.8.1/24".parse().unwrap());
    let tap = Port::Tap(Tap::open(&tap).unwrap());
    let uplink = Port::AfPacket(PacketSocket::open(&config(&middle, "left")).unwrap());

    let (stop, longest) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut ports = [tap, uplink];
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; FRAME_ROOM];
            while !stop.load(Ordering::Relaxed) {
                let mut moved = false;
                for from in 0..2 {
                    let Ok(Some(frame)) = ports[from].receive(&mut buffer) else { continue };
                    longest[from].fetch_max(frame.len, Ordering::Relaxed);
                    let _ = ports[1 - from].send(&buffer[..frame.len], frame.vnet.as_ref());
                    let _ = ports[1 - from].flush();
                    moved = true;
                }
                if !moved {
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let listener = far.run(|| TcpListener::bind("10.9.8.2:5001")).unwrap().unwrap();
            let up = tenant.run(|| TcpStream::connect("10.9.8.2:5001")).unwrap().unwrap();
            let (down, _) = listener.accept().unwrap();
            for (mut from, mut to) in [
                (up.try_clone().unwrap(), down.try_clone().unwrap()),
                (down.try_clone().unwrap(), up.try_clone().unwrap()),
            ] {
                from.set_write_timeout(Some(PATIENCE)).unwrap();
                to.set_read_timeout(Some(PATIENCE)).unwrap();
                let writer = thread::spawn(move || from.write_all(&vec![7; BYTES]));
                let mut got = vec![0; BYTES];
                to.read_exact(&mut got).unwrap();
                writer.join().unwrap().unwrap();
                assert!(got.iter().all(|&byte| byte == 7));
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    for (port, longest) in ["tap", "af_packet"].iter().zip(longest) {
        assert!(longest.into_inner() > 30_000, "segmentation was left to us on {port}");
    }
}

#[test]
fn an_interface_that_goes_down_or_away_is_noticed() {
    if !live() {
        return;
    }
    let (a, b) = veth();
    let mut port = Port::AfPacket(PacketSocket::open(&config(&a, "left")).unwrap());
    let mut buffer = vec![0; FRAME_ROOM];
    let mut fails_with = |port: &mut Port, trouble| {
        until("the trouble to show", || {
            let sent = port.send(&numbered(0, 60), None).and_then(|_| port.flush());
            sent == Err(trouble) || port.receive(&mut buffer) == Err(trouble)
        });
    };
    a.links().set_down("left").unwrap();
    fails_with(&mut port, Trouble::Down);
    a.links().set_up("left").unwrap();
    until("the interface to work again", || {
        port.send(&numbered(0, 60), None).and_then(|_| port.flush()) == Ok(())
    });
    // Deleting one end deletes the other.
    b.links().delete("right").unwrap();
    fails_with(&mut port, Trouble::Gone);
    assert_eq!(port.probe(), Err(Trouble::Gone));
}

#[test]
fn what_was_taken_leaves_once_the_interface_is_up_again() {
    if !live() {
        return;
    }
    let (a, b) = veth();
    let mut receiver = PacketSocket::open(&config(&b, "right")).unwrap();
    let mut port = Port::AfPacket(PacketSocket::open(&config(&a, "left")).unwrap());
    until("a carrier", || !port.is_down());
    for number in 0..5 {
        assert_eq!(port.send(&numbered(number, 60), None), Ok(Sending::Sent));
    }
    a.links().set_down("left").unwrap();
    assert_eq!(port.flush(), Err(Trouble::Down));
    assert_eq!(port.staged(), 5);
    a.links().set_up("left").unwrap();
    let (mut buffer, mut got) = (vec![0; FRAME_ROOM], Vec::new());
    until("all five", || {
        // A stale error may be told once more.
        let _ = port.flush();
        while let Ok(Some(received)) = receiver.receive(&mut buffer) {
            got.extend(number_of(&buffer[..received.len]));
        }
        got.len() == 5
    });
    assert_eq!(got, [0, 1, 2, 3, 4]);
    assert!(!port.pending());
    assert_eq!(port.counters().tx_drops.iter().sum::<u64>(), 0);
}

#[test]
fn hostile_offload_fields_are_refused_and_counted() {
    if !live() {
        return;
    }
    let (a, _b) = veth();
    let mut port = PacketSocket::open(&config(&a, "left")).unwrap();
    let absurd = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        csum_start: 0xffff,
        csum_offset: 0xffff,
        ..VnetHeader::default()
    };
    assert_eq!(port.send(&numbered(0, 60), Some(&absurd)), Ok(Sending::Sent));
    assert_eq!(port.send(&numbered(1, 60), None), Ok(Sending::Sent));
    assert_eq!(port.flush(), Ok(()));
    assert_eq!(port.counters().tx_dropped(DropReason::BadOffload), 1);
    assert_eq!(port.counters().tx_packets, 1, "the frame behind it leaves");
}

#[test]
fn a_missing_interface_is_explained() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let error = PacketSocket::open(&config(&netns, "eth9")).unwrap_err();
    assert!(matches!(error, PortError::NoInterface { .. }), "{error}");
    assert!(error.to_string().contains("`eth9` does not exist in network namespace"), "{error}");
}
