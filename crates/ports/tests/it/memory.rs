//! Memory pairs against a plain queue as their model.

use std::collections::VecDeque;

use plimsoll_ports::{MemoryConfig, MemoryEnd, MemoryPort, Sending};
use plimsoll_wire::VnetHeader;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, frame: Vec<u8>, gso_size: u16 },
    Receive { at: usize },
    Flush { from: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..2usize, prop::collection::vec(any::<u8>(), 0..64), any::<u16>())
            .prop_map(|(from, frame, gso_size)| Step::Send { from, frame, gso_size }),
        3 => (0..2usize).prop_map(|at| Step::Receive { at }),
        1 => (0..2usize).prop_map(|from| Step::Flush { from }),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Both directions are bounded queues that keep order, bytes and headers, and never mix.
    #[test]
    fn a_pair_is_two_bounded_queues(slots in 1usize..9, wakes: bool, steps in steps()) {
        let config = MemoryConfig { slots, frame: 64, segmentation: true, wakes, ..MemoryConfig::default() };
        let (a, b) = MemoryPort::pair("model", config).unwrap();
        let mut ends = [a, b];
        let mut queues: [VecDeque<(Vec<u8>, VnetHeader)>; 2] = Default::default();
        let mut buffer = [0; 64];
        for step in steps {
            match step {
                Step::Send { from, frame, gso_size } => {
                    let vnet = VnetHeader { gso_size, ..VnetHeader::default() };
                    let room = queues[1 - from].len() < slots;
                    let expected = if room { Sending::Sent } else { Sending::Full };
                    prop_assert_eq!(ends[from].send(&frame, Some(&vnet)), Ok(expected));
                    if room {
                        queues[1 - from].push_back((frame, vnet));
                    }
                }
                Step::Receive { at } => {
                    let got = ends[at].receive(&mut buffer).unwrap();
                    let got = got.map(|got| (buffer[..got.len].to_vec(), got.vnet.unwrap()));
                    prop_assert_eq!(got, queues[at].pop_front());
                }
                Step::Flush { from } => ends[from].flush().unwrap(),
            }
        }
    }

    /// Values come out in order, and what does not fit comes back.
    #[test]
    fn ends_of_values_are_bounded_queues(slots in 1usize..9, posts in prop::collection::vec(any::<Option<u32>>(), 0..100)) {
        let (mut here, mut there) = MemoryEnd::pair(slots);
        let mut queue = VecDeque::new();
        for post in posts {
            match post {
                Some(value) if queue.len() < slots => {
                    prop_assert_eq!(here.post(value), Ok(()));
                    queue.push_back(value);
                }
                Some(value) => prop_assert_eq!(here.post(value), Err(value)),
                None => prop_assert_eq!(there.take(), queue.pop_front()),
            }
            prop_assert_eq!(here.room(), slots - queue.len());
        }
    }
}

#[test]
fn frames_cross_threads_whole_and_in_order() {
    const COUNT: u32 = 100_000;
    let (mut here, mut there) =
        MemoryPort::pair("threads", MemoryConfig { slots: 64, ..MemoryConfig::default() }).unwrap();
    let sender = std::thread::spawn(move || {
        for number in 0..COUNT {
            while here.send(&[&number.to_be_bytes()[..], &[7; 60]].concat(), None) == Ok(Sending::Full) {
                std::thread::yield_now();
            }
        }
    });
    let mut buffer = [0; 2_048];
    let mut expected = 0;
    while expected < COUNT {
        match there.receive(&mut buffer).unwrap() {
            Some(_) => {
                assert_eq!(buffer[..4], expected.to_be_bytes());
                expected += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    sender.join().unwrap();
    assert_eq!(there.counters().rx_packets, u64::from(COUNT));
}

#[test]
fn a_sleeper_is_woken() {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::BorrowedFd;

    let config = MemoryConfig { wakes: true, ..MemoryConfig::default() };
    let (mut here, mut there) = MemoryPort::pair("bell", config).unwrap();
    let fd = there.fds().receive.unwrap();
    let readable = || {
        // SAFETY: `there` keeps the descriptor open until the end of the test.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
    };
    assert!(!readable());
    here.send(&[1; 60], None).unwrap();
    here.flush().unwrap();
    assert!(readable());
    let mut buffer = [0; 2_048];
    assert!(there.receive(&mut buffer).unwrap().is_some());
    assert!(there.receive(&mut buffer).unwrap().is_none());
    assert!(!readable(), "silent again once it has been asked in vain");
}
