//! AF_XDP against the real kernel, over veth pairs.

use std::os::fd::OwnedFd;

use crate::support::{live, number_of, numbered, quiet, skip, until, waits_without_a_carrier};
use plimsoll_ports::netns::{Netns, NetnsRef};
use plimsoll_ports::{
    Capabilities, DropReason, FRAME_ROOM, Port, PortError, Sending, Trouble, XdpAttempt, XdpConfig,
    XdpHelper, XdpMode, XdpQueues, XdpSocket,
};

/// A veth pair with both ends up, or `None` where BPF is not allowed, which is said.
fn veth() -> Option<(Netns, Netns)> {
    if !live() {
        return None;
    }
    let (a, b) = (quiet("a"), quiet("b"));
    a.links().add_veth("left", &b, "right").unwrap();
    a.links().set_up("left").unwrap();
    b.links().set_up("right").unwrap();
    match XdpSocket::open(&config(&a, "left")) {
        Err(error @ PortError::Permission { .. }) => {
            skip(error);
            None
        }
        _ => Some((a, b)),
    }
}

fn config(netns: &Netns, interface: &str) -> XdpConfig {
    XdpConfig { frames: 256, ..XdpConfig::new(NetnsRef::Path(netns.path()), interface) }
}

fn exchange(best: XdpMode, expected_mode: XdpMode) {
    const COUNT: u32 = 3_000;
    let Some((a, b)) = veth() else { return };
    let mut sender = XdpSocket::open(&XdpConfig { mode: best, ..config(&a, "left") }).unwrap();
    let mut receiver = XdpSocket::open(&XdpConfig { mode: best, ..config(&b, "right") }).unwrap();
    assert_eq!(receiver.mode(), expected_mode);
    let mut buffer = vec![0; FRAME_ROOM];
    let mut expected = 0;
    let mut take = |receiver: &mut XdpSocket| {
        while let Some(got) = receiver.receive(&mut buffer).unwrap() {
            if let Some(number) = number_of(&buffer[..got.len]) {
                assert_eq!((number, got.len), (expected, 60 + number as usize % 1_400), "in order and whole");
                assert!(buffer[18..got.len].iter().all(|&byte| byte == 0x5a));
                expected += 1;
            }
        }
        expected
    };
    for number in 0..COUNT {
        let frame = numbered(number, 60 + number as usize % 1_400);
        until("room to send", || sender.send(&frame, None).unwrap() == Sending::Sent);
        if number % 64 == 63 {
            // The receive ring holds 256 frames; wait for them, so that none is dropped.
            until("the batch", || {
                sender.flush().unwrap();
                take(&mut receiver) == number + 1
            });
        }
    }
    until("all frames", || {
        sender.flush().unwrap();
        take(&mut receiver) == COUNT && sender.counters().tx_packets == u64::from(COUNT)
    });
    assert_eq!(receiver.counters().rx_packets, u64::from(COUNT));
    assert_eq!(receiver.counters().rx_dropped(DropReason::KernelFull), 0);
}

#[test]
fn every_frame_arrives_once_and_in_order_through_the_driver() {
    exchange(XdpMode::ZeroCopy, XdpMode::Copy);
}

#[test]
fn every_frame_arrives_once_and_in_order_behind_the_driver() {
    exchange(XdpMode::Generic, XdpMode::Generic);
}

#[test]
fn a_full_transmit_ring_says_so_and_counts_only_what_left() {
    let Some((a, _b)) = veth() else { return };
    let mut port = XdpSocket::open(&config(&a, "left")).unwrap();
    let sent = (0..1_000).take_while(|&n| port.send(&numbered(n, 60), None) == Ok(Sending::Sent)).count();
    assert_eq!(sent, 256);
    assert_eq!(port.counters().tx_packets, 0);
    until("all to leave", || {
        port.flush().unwrap();
        port.counters().tx_packets == 256
    });
    assert_eq!(port.send(&numbered(0, 60), None), Ok(Sending::Sent));
}

#[test]
fn an_interface_that_goes_down_or_away_is_noticed() {
    let Some((a, b)) = veth() else { return };
    let mut port = Port::AfXdp(XdpSocket::open(&config(&a, "left")).unwrap());
    assert_eq!(port.probe(), Ok(()));
    a.links().set_down("left").unwrap();
    assert_eq!(port.probe(), Err(Trouble::Down));
    a.links().set_up("left").unwrap();
    assert_eq!(port.probe(), Ok(()));
    until("a frame is taken", || port.send(&numbered(0, 60), None) == Ok(Sending::Sent));
    b.links().delete("right").unwrap();
    assert_eq!(port.probe(), Err(Trouble::Gone));
    assert_eq!(port.flush(), Err(Trouble::Gone));
    assert_eq!(port.counters().tx_dropped(DropReason::Gone), 1);
    let mut buffer = vec![0; FRAME_ROOM];
    assert!((0..2_000).any(|_| port.receive(&mut buffer) == Err(Trouble::Gone)));
}

#[test]
fn closing_leaves_the_interface_as_it_was() {
    let Some((a, _b)) = veth() else { return };
    for _ in 0..5 {
        drop(XdpSocket::open(&config(&a, "left")).unwrap());
    }
    let shown = a.command("ip").args(["link", "show", "left"]).output();
    if let Ok(shown) = shown {
        assert!(!String::from_utf8_lossy(&shown.stdout).contains("xdp"), "no program is left attached");
    }
}

#[test]
fn what_cannot_work_is_explained() {
    let Some((a, b)) = veth() else { return };
    let first = XdpSocket::open(&config(&a, "left")).unwrap();
    assert_eq!(first.capabilities(), Capabilities { mtu: 1_500, ..Capabilities::default() });
    let busy = XdpSocket::open(&config(&a, "left")).unwrap_err().to_string();
    assert!(busy.contains("another XDP program or socket holds it"), "{busy}");

    // A veth pair with a program on one end takes no jumbo frames on the other.
    drop(first);
    b.links().set_mtu("right", 9_000).unwrap();
    let jumbo = XdpSocket::open(&config(&b, "right")).unwrap_err().to_string();
    assert!(jumbo.contains("the MTU is 9000 and AF_XDP carries at most 3814"), "{jumbo}");

    let missing = XdpSocket::open(&config(&b, "eth9")).unwrap_err().to_string();
    assert!(missing.contains("interface `eth9` does not exist"), "{missing}");
}

/// Does in place what another process does for one without privileges.
struct Helper {
    config: XdpConfig,
    attempt: Option<XdpAttempt>,
    queues: Option<XdpQueues>,
    joining: Option<(u32, OwnedFd)>,
}

impl Helper {
    fn new(config: &XdpConfig) -> Self {
        Self { config: config.clone(), attempt: None, queues: None, joining: None }
    }
}

impl XdpHelper for Helper {
    fn attach(&mut self, mode: XdpMode) -> std::io::Result<[OwnedFd; 3]> {
        self.attempt = None;
        let attempt = XdpAttempt::new(&self.config, mode).map_err(std::io::Error::other)??;
        let files = attempt.files().map(|file| file.try_clone_to_owned().expect("a descriptor"));
        self.attempt = Some(attempt);
        Ok(files)
    }

    fn register(&mut self) -> std::io::Result<()> {
        match (self.attempt.take(), self.joining.take(), &self.queues) {
            (Some(attempt), _, _) => attempt.register().map(|queues| self.queues = Some(queues)),
            (None, Some((queue, socket)), Some(queues)) => queues.register(queue, &socket),
            _ => panic!("nothing to register"),
        }
    }

    fn join(&mut self, queue: u32) -> std::io::Result<OwnedFd> {
        let queues = self.queues.as_ref().expect("the first queue is registered");
        let socket = queues.open().map_err(std::io::Error::other)??;
        self.joining = Some((queue, socket.try_clone()?));
        Ok(socket)
    }
}

#[test]
fn a_socket_that_was_made_with_help_carries_frames_and_leaves_nothing() {
    let Some((a, b)) = veth() else { return };
    let mut sender = XdpSocket::open(&config(&a, "left")).unwrap();
    let mut helper = Helper::new(&config(&b, "right"));
    let link = XdpAttempt::link(&helper.config).unwrap();
    let config = helper.config.clone();
    let mut receiver = XdpSocket::open_with(&config, &link, &mut helper).unwrap();
    assert!(helper.attempt.is_none(), "the helper holds nothing of it");
    let frame = numbered(7, 100);
    assert_eq!(sender.send(&frame, None).unwrap(), Sending::Sent);
    let mut buffer = vec![0; FRAME_ROOM];
    until("the frame", || {
        sender.flush().unwrap();
        receiver.receive(&mut buffer).unwrap().is_some_and(|got| buffer[..got.len] == frame)
    });
    drop(receiver);
    until("its place is free again", || XdpSocket::open(&config).is_ok());
}

#[test]
fn frames_wait_while_the_far_end_has_no_carrier() {
    for helped in [false, true] {
        let Some((a, b)) = veth() else { return };
        let config_a = config(&a, "left");
        let mut sender = Port::AfXdp(if helped {
            let mut helper = Helper::new(&config_a);
            let link = XdpAttempt::link(&config_a).unwrap();
            XdpSocket::open_with(&config_a, &link, &mut helper).unwrap()
        } else {
            XdpSocket::open(&config_a).unwrap()
        });
        let mut receiver = XdpSocket::open(&config(&b, "right")).unwrap();
        waits_without_a_carrier(&mut sender, &b, "right");
        let (mut buffer, mut came) = (vec![0; FRAME_ROOM], Vec::new());
        until("both frames", || {
            let _ = sender.flush();
            while let Ok(Some(got)) = receiver.receive(&mut buffer) {
                came.extend(number_of(&buffer[..got.len]));
            }
            came.len() == 2
        });
        assert_eq!((came, sender.counters().tx_packets), (vec![0, 1], 2));
        a.links().delete("left").unwrap();
        until("it has gone", || {
            sender.send(&numbered(2, 100), None).and(sender.flush()) == Err(Trouble::Gone)
        });
    }
}

/// Sets the number of queues of an interface, which is one for a new veth.
fn set_queues(netns: &Netns, interface: &str, queues: u32) -> bool {
    let queues = queues.to_string();
    let set = netns.run(|| {
        std::process::Command::new("ethtool").args(["-L", interface, "rx", &queues, "tx", &queues]).output()
    });
    set.unwrap().is_ok_and(|set| set.status.success())
}

/// Frames of several flows come by both queues of the interface, each flow by one, and both send.
#[test]
fn an_interface_with_two_queues_has_a_socket_for_each() {
    for helped in [false, true] {
        let Some((a, b)) = veth() else { return };
        if !set_queues(&a, "left", 2) || !set_queues(&b, "right", 2) {
            return skip("ethtool is missing, or cannot set the number of queues");
        }
        let [left, right] = [(&a, "left"), (&b, "right")]
            .map(|(netns, interface)| XdpConfig { queues: 2, ..config(netns, interface) });
        let mut senders = vec![XdpSocket::open(&left).unwrap()];
        senders.push(senders[0].open_next(&left, 1, None).unwrap());
        let mut helper = Helper::new(&right);
        let mut receivers = if helped {
            let link = XdpAttempt::link(&right).unwrap();
            let first = XdpSocket::open_with(&right, &link, &mut helper).unwrap();
            let next = first.open_next(&right, 1, Some(&mut helper)).unwrap();
            [first, next]
        } else {
            let first = XdpSocket::open(&right).unwrap();
            let next = first.open_next(&right, 1, None).unwrap();
            [first, next]
        };
        let missing = receivers[0].open_next(&right, 2, Some(&mut helper)).unwrap_err().to_string();
        assert!(missing.contains("the interface has fewer queues"), "{missing}");
        assert!(receivers.iter_mut().all(|receiver| receiver.take_problem().is_none()));
        // A veth's frames arrive by the queue with the number of that by which they were sent.
        for (number, sender) in (0..).zip(&mut senders) {
            assert_eq!(sender.send(&numbered(number, 100), None).unwrap(), Sending::Sent);
        }
        let (mut buffer, mut came) = (vec![0; FRAME_ROOM], [Vec::new(), Vec::new()]);
        until("a frame by each queue", || {
            senders.iter_mut().for_each(|sender| sender.flush().unwrap());
            for (receiver, came) in receivers.iter_mut().zip(&mut came) {
                while let Some(got) = receiver.receive(&mut buffer).unwrap() {
                    came.extend(number_of(&buffer[..got.len]));
                }
            }
            came.iter().map(Vec::len).sum::<usize>() == 2
        });
        assert_eq!(came, [vec![0], vec![1]]);
        drop((senders, receivers));
        let mut one = XdpSocket::open(&config(&b, "right")).unwrap();
        let told = one.take_problem().expect("one of two queues is opened").to_string();
        assert!(told.contains("receives from 1 of 2 queues"), "{told}");
        assert!(one.take_problem().is_none(), "once");
    }
}
