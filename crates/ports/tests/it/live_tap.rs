//! TAPs against the real kernel: traffic passes whole, and a tenant that disappears is noticed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::guest::Guest;
use crate::support::{PATIENCE, live, quiet, skip, until};
use plimsoll_ports::netns::{Netns, NetnsRef};
use plimsoll_ports::{
    DropReason, FRAME_ROOM, Frame, PacketConfig, PacketSocket, Port, PortError, Sending, Tap, TapConfig,
    Took, Trouble, VhostUser, VhostUserConfig,
};
use plimsoll_wire::VnetHeader;

fn tap(netns: &Netns, address: &str) -> Tap {
    let mut config = TapConfig::new(NetnsRef::Path(netns.path()), "eth0");
    config.addresses.push(address.parse().unwrap());
    Tap::open(&config).expect("open a TAP")
}

/// Two namespaces joined by the simplest copy loop; notes the longest frame.
struct Spliced {
    a: Netns,
    b: Netns,
}

impl Spliced {
    fn run(job: impl FnOnce(&Self)) -> usize {
        let (a, b) = (quiet("a"), quiet("b"));
        let mut ports = [Port::Tap(tap(&a, "10.9.0.1/24")), Port::Tap(tap(&b, "10.9.0.2/24"))];
        let (stop, longest) = (AtomicBool::new(false), AtomicUsize::new(0));
        // The namespaces outlive the loop, which sends into them.
        let ends = Self { a, b };
        thread::scope(|scope| {
            scope.spawn(|| copy(&mut ports, &stop, &longest));
            // A job that panics must still end the loop.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job(&ends)));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        longest.into_inner()
    }
}

fn copy(ports: &mut [Port; 2], stop: &AtomicBool, longest: &AtomicUsize) {
    let mut buffer = vec![0; FRAME_ROOM];
    while !stop.load(Ordering::Relaxed) {
        let mut moved = false;
        for from in 0..2 {
            let Ok(Some(frame)) = ports[from].receive(&mut buffer) else { continue };
            longest.fetch_max(frame.len, Ordering::Relaxed);
            let sent = ports[1 - from].send(&buffer[..frame.len], frame.vnet.as_ref());
            assert_eq!(sent, Ok(Sending::Sent));
            moved = true;
        }
        if !moved {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

#[test]
fn tcp_passes_between_two_namespaces_in_frames_of_64_kib() {
    if !live() {
        return;
    }
    const BYTES: usize = 16 << 20;
    let longest = Spliced::run(|pair| {
        let listener = pair.b.run(|| TcpListener::bind("10.9.0.2:5001")).unwrap().unwrap();
        let mut sender = pair.a.run(|| TcpStream::connect("10.9.0.2:5001")).unwrap().unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        sender.set_write_timeout(Some(PATIENCE)).unwrap();
        let writer = thread::spawn(move || {
            let chunk: Vec<u8> = (0..1 << 16).map(|n: u32| n.to_le_bytes()[0]).collect();
            for _ in 0..BYTES >> 16 {
                sender.write_all(&chunk).unwrap();
            }
        });
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        assert_eq!(got.len(), BYTES);
        assert!(got.iter().enumerate().all(|(at, &byte)| byte == at.to_le_bytes()[0]), "bytes in order");
    });
    assert!(longest > 60_000, "the longest frame had {longest} bytes: segmentation was not left to us");
}

#[test]
fn ping_is_answered() {
    if !live() {
        return;
    }
    Spliced::run(|pair| {
        let answer =
            match pair.a.command("ping").args(["-c", "2", "-i", "0.2", "-w", "10", "10.9.0.2"]).output() {
                Ok(answer) => answer,
                Err(error) => return skip(format_args!("no `ping` here: {error}")),
            };
        let text = String::from_utf8_lossy(&answer.stdout);
        // It asks on until it has two answers, so that a late one is not taken for a lost one.
        let answered = [1, 2].iter().all(|seq| text.contains(&format!("icmp_seq={seq} ttl")));
        assert!(answered, "{text}{}", String::from_utf8_lossy(&answer.stderr));
    });
}

#[test]
fn a_deleted_namespace_makes_the_port_gone_and_leaves_the_other() {
    if !live() {
        return;
    }
    let (doomed, kept) = (quiet("doomed"), quiet("kept"));
    let mut lost = Port::Tap(tap(&doomed, "10.9.1.1/24"));
    let mut other = Port::Tap(tap(&kept, "10.9.1.2/24"));
    assert_eq!(lost.probe(), Ok(()));
    drop(doomed);
    let mut buffer = vec![0; FRAME_ROOM];
    until("the kernel to take the namespace down", || lost.probe() == Err(Trouble::Gone));
    assert_eq!(lost.receive(&mut buffer), Err(Trouble::Gone));
    assert_eq!(lost.send(&[0xff; 60], None), Err(Trouble::Gone));
    assert_eq!(lost.counters().tx_drops, [0; DropReason::COUNT], "the frame is its owner's still");
    assert_eq!(other.send(&[0xff; 60], None), Ok(Sending::Sent));
    assert_eq!(other.probe(), Ok(()));
}

#[test]
fn a_deleted_interface_makes_the_port_gone() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let mut port = tap(&netns, "10.9.2.1/24");
    netns.links().delete("eth0").unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    assert_eq!(port.receive(&mut buffer), Err(Trouble::Gone));
    assert_eq!(port.send(&[0xff; 60], None), Err(Trouble::Gone));
}

#[test]
fn an_interface_that_is_down_comes_back() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let mut port = tap(&netns, "10.9.3.1/24");
    netns.links().set_down("eth0").unwrap();
    for _ in 0..3 {
        assert_eq!(port.send(&[0xff; 60], None), Err(Trouble::Down));
    }
    netns.links().set_up("eth0").unwrap();
    assert_eq!(port.send(&[0xff; 60], None), Ok(Sending::Sent));
    let counters = port.counters();
    assert_eq!(
        (counters.tx_packets, counters.tx_drops),
        (1, [0; DropReason::COUNT]),
        "it left once, and was not lost"
    );
}

#[test]
fn hostile_offload_fields_are_refused_and_counted() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let mut port = tap(&netns, "10.9.4.1/24");
    // A checksum far behind the end of the frame.
    let header = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        csum_start: 0xffff,
        csum_offset: 0xffff,
        ..VnetHeader::default()
    };
    assert_eq!(port.send(&[0xff; 60], Some(&header)), Ok(Sending::Refused(DropReason::BadOffload)));
    assert_eq!(port.send(&[0xff; 13], None), Ok(Sending::Refused(DropReason::TooShort)));
    assert_eq!(port.send(&vec![0xff; FRAME_ROOM], None), Ok(Sending::Refused(DropReason::Oversize)));
}

/// A frame whose payload lies in a guest's memory: what the kernel takes in is the whole frame.
#[test]
fn a_payload_goes_from_a_guests_memory_into_a_tap() {
    if !live() {
        return;
    }
    let netns = quiet("gather");
    let mut tap = Port::Tap(tap(&netns, "10.9.0.1/24"));
    let tenant = PacketConfig::new(NetnsRef::Path(netns.path()), "eth0");
    let mut tenant = PacketSocket::open(&tenant).expect("a packet socket");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("guest");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let guest = Guest::start(&mut port, &path, 16, 1 << 32);
    // An ethertype that no program reads.
    let mut frame = vec![0xff; 1_514];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..].iter_mut().zip(0..).for_each(|(byte, at): (_, u32)| *byte = at as u8);
    guest.post(3, &frame);

    port.begin().expect("always there");
    let Took::Frame(taken) = port.take() else { panic!("no frame") };
    let mut front = [0; 128];
    port.peek(&mut front);
    port.leave(front.len(), taken.ticket);
    let late = Frame::late(&front, port.kept(taken.ticket).expect("with its guest"));
    assert_eq!(tap.send_gathered(&[], &late, None), Ok(Sending::Sent));
    let mut buffer = vec![0; FRAME_ROOM];
    until("the frame comes in", || {
        let came = tenant.receive(&mut buffer).expect("it is up");
        came.is_some_and(|came| buffer[..came.len] == frame)
    });
    assert_eq!(tap.counters().tx_bytes, 1_514);
}

#[test]
fn the_interface_is_made_as_asked() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let mut config = TapConfig::new(NetnsRef::Path(netns.path()), "eth7");
    config.mac = Some([2, 0, 0, 0, 0, 7]);
    config.mtu = 9_000;
    config.txqueuelen = Some(77);
    config.most_segments = Some(44);
    let queues = Tap::open_queues(&config, 2).unwrap();
    let link = netns.links().get("eth7").unwrap();
    assert_eq!((link.mac, link.mtu, link.up), (Some([2, 0, 0, 0, 0, 7]), 9_000, true));
    assert_eq!(queues.len(), 2);
    let net = format!("--net={}", netns.path().display());
    let shown = Command::new("nsenter").args([&net, "ip", "-d", "link", "show", "eth7"]).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("qlen 77") && shown.contains("gso_max_segs 44"), "{shown}");
    assert_eq!(queues[1].mac(), [2, 0, 0, 0, 0, 7]);
    drop(queues);
    assert!(matches!(netns.links().get("eth7"), Err(PortError::NoInterface { .. })), "it ends with its file");
}

#[test]
fn an_interface_that_persists_is_used_again_with_all_that_was_set_on_it() {
    if !live() {
        return;
    }
    let netns = quiet("stays");
    let mut config = TapConfig::new(NetnsRef::Path(netns.path()), "eth0");
    config.persist = true;
    config.addresses.push("10.9.0.1/24".parse().unwrap());
    config.routes.push(("10.77.0.0/16".parse().unwrap(), Some("10.9.0.9".parse().unwrap())));
    let first = Tap::open(&config).unwrap();
    let (links, mac, added) = (netns.links(), first.mac(), "10.9.1.1/24".parse().unwrap());
    let index = links.get("eth0").unwrap().index;
    links.add_address("eth0", added).unwrap();
    assert!(!first.is_resumed());
    assert!(matches!(Tap::open(&config), Err(PortError::NameTaken { .. })), "one file at a time");
    drop(first);
    assert_eq!(links.get("eth0").unwrap().index, index, "it is still there");

    let mut again = Tap::open(&config).unwrap();
    assert!(again.is_resumed());
    assert_eq!((links.get("eth0").unwrap().index, again.mac()), (index, mac));
    let taken = links.add_address("eth0", added);
    assert!(
        matches!(taken, Err(PortError::NameTaken { .. })),
        "the tenant's own address is there: {taken:?}"
    );
    let there = links.add_route(config.routes[0].0, config.routes[0].1, Some("eth0"));
    assert!(there.is_err(), "and so is the route");
    // It carries frames: the namespace asks for the neighbour of the route.
    let socket = netns.run(|| std::net::UdpSocket::bind("10.9.0.1:0")).unwrap().unwrap();
    let mut buffer = vec![0; FRAME_ROOM];
    until("a question for the gateway", || {
        socket.send_to(b"x", "10.77.0.1:9").unwrap();
        matches!(again.receive(&mut buffer), Ok(Some(got)) if buffer[..got.len][12..14] == [8, 6])
    });
    links.delete("eth0").unwrap();
}

#[test]
fn a_taken_name_is_explained() {
    if !live() {
        return;
    }
    let netns = quiet("tenant");
    let _first = tap(&netns, "10.9.5.1/24");
    let error = Tap::open(&TapConfig::new(NetnsRef::Path(netns.path()), "eth0")).unwrap_err();
    assert!(matches!(error, PortError::NameTaken { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("`eth0` is taken in network namespace /proc/"), "{message}");
    assert!(message.contains("another plimsoll may hold it"), "{message}");
}

#[test]
fn wrong_names_are_explained_before_anything_is_made() {
    let missing = Tap::open(&TapConfig::new("no-such-tenant".into(), "eth0")).unwrap_err().to_string();
    assert!(missing.contains("network namespace `no-such-tenant` does not exist"), "{missing}");
    let long = Tap::open(&TapConfig::new(NetnsRef::Own, "sixteen-bytes-xx")).unwrap_err().to_string();
    assert!(long.contains("`sixteen-bytes-xx` is longer than 15 bytes"), "{long}");
}

#[test]
fn named_namespaces_are_made_found_and_deleted() {
    let name = format!("plmtest{}", std::process::id());
    let made = match Netns::create(&name) {
        Ok(made) => made,
        Err(error) => return skip(format_args!("named namespaces cannot be made here: {error}")),
    };
    let again = Netns::create(&name).unwrap_err();
    assert!(matches!(again, PortError::NameTaken { .. }), "{again}");
    let mut port = Tap::open(&TapConfig::new(name.as_str().into(), "eth0")).unwrap();
    assert_eq!(port.name(), format!("tap {name}/eth0"));
    drop(made);
    until("the name to be gone", || Netns::open(&NetnsRef::from(name.as_str())).is_err());
    until("the port to be gone", || port.probe() == Err(Trouble::Gone));
}

#[test]
fn it_works_as_nobody_in_a_user_namespace() {
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "live_tap::tcp_passes_between_two_namespaces_in_frames_of_64_kib"])
        .output();
    let Ok(run) = run else { return skip("no `unshare` here") };
    let text = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    if text.contains("unshare failed") {
        return eprintln!("SKIPPED: user namespaces are not allowed here");
    }
    assert!(run.status.success() && text.contains("1 passed") && !text.contains("SKIPPED"), "{text}");
}
