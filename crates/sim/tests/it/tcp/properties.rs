//! Whatever the network does, up to a bound: every byte arrives once, in order, and the transfer ends.

use proptest::prelude::*;

use plimsoll_sim::tcp::{
    Ack, Config, Congestion, Ecn, Flags, LocalQueue, Receiver, SackBlock, Segment, Sender,
};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::pipe::{Fault, Link, Pipe};

pub fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        3 => Just(Fault::Drop),
        1 => Just(Fault::Duplicate),
        2 => (1_u64..300_000).prop_map(|us| Fault::Delay(Span::micros(us))),
    ];
    proptest::collection::vec(fault, 0..200)
}

pub fn configs() -> impl Strategy<Value = Config> {
    let congestion = prop_oneof![
        Just(Congestion::NewReno),
        Just(Congestion::Cubic),
        Just(Congestion::Dctcp),
        Just(Congestion::Bbr)
    ];
    let queue = prop_oneof![
        Just(LocalQueue::Unlimited),
        Just(LocalQueue::Small(Bytes::kib(256))),
        (1_u64..200_000).prop_map(|bytes| LocalQueue::Fixed(Bytes::new(bytes))),
    ];
    let switches = any::<(bool, bool, bool, bool, bool, bool)>();
    let sizes = (1_u16..9_000, 0_u64..100_000, 1_u64..3_000_000, 1_u32..100, 0_u64..60);
    (congestion, queue, switches, sizes).prop_map(|(congestion, local_queue, switches, sizes)| {
        let (ecn, sack, handshake, pacing, tail_loss_probe, hystart) = switches;
        let (mss, offload, receive_buffer, initial_window, delayed_ack) = sizes;
        Config {
            congestion,
            local_queue,
            ecn,
            sack,
            handshake,
            pacing,
            tail_loss_probe,
            hystart,
            mss,
            offload: Bytes::new(offload),
            receive_buffer: Bytes::new(receive_buffer),
            initial_window,
            delayed_ack: Span::millis(delayed_ack),
            ..Config::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// The pipe asserts delivery in order, without a gap and without a byte too many, the window, and that nothing
    /// goes backwards, at every step.
    #[test]
    fn a_transfer_ends_whatever_befalls_its_packets(
        config in configs(),
        segments in 1_u64..300,
        odd in 0_u64..1_000,
        data in faults(),
        acks in faults(),
        limit in 10_000_u64..500_000,
        mark in proptest::option::of(0_u64..100_000),
    ) {
        let rate = BitRate::mbps(50);
        let link = Link {
            limit: Bytes::new(limit),
            mark_above: mark.map(Bytes::new),
            ..Link::new(rate, Span::millis(4))
        };
        let mut pipe = Pipe::new(link);
        pipe.faults = Box::new(move |n, _| data.get(n as usize).copied().unwrap_or(Fault::None));
        pipe.ack_faults = Box::new(move |n| acks.get(n as usize).copied().unwrap_or(Fault::None));
        let bytes = (segments * u64::from(config.mss)).saturating_sub(odd).max(1);
        pipe.add(&config, Some(Bytes::new(bytes)), Nanos::ZERO);
        pipe.run_to_end(Nanos::new(100_000_000_000_000));
        let flow = &pipe.flows[0];
        prop_assert!(flow.finished.is_some(), "{bytes} B: {:?}", flow.sender);
        prop_assert!(flow.sender.is_idle());
        prop_assert_eq!(flow.receiver.delivered(), Bytes::new(bytes));
        prop_assert_eq!(flow.sender.in_flight(), Bytes::ZERO);
    }

    /// DCTCP's sender has to learn how many bytes were marked (RFC 8257 §3.2), although acknowledgements are delayed.
    #[test]
    fn dctcp_acknowledges_exactly_what_was_marked(marks in proptest::collection::vec(any::<bool>(), 1..200)) {
        let config = Config { handshake: false, quick_acks: 0, ..Config::dctcp() };
        let mut receiver = Receiver::new(&config);
        let (mut acked, mut marked) = (0, 0);
        let mut take = |receiver: &mut Receiver| {
            while let Some(ack) = receiver.poll_ack(Nanos::ZERO) {
                marked += if ack.ece() { ack.ack - acked } else { 0 };
                acked = ack.ack;
            }
        };
        for (n, &mark) in marks.iter().enumerate() {
            let ecn = if mark { Ecn::Ce } else { Ecn::Ect0 };
            let (seq, flags) = (1_000 * n as u64, Flags::default());
            let segment = Segment { seq, sent: Nanos::ZERO, len: 1_000, mss: 1_000, flags, ecn };
            receiver.handle_segment(&segment, Nanos::ZERO);
            take(&mut receiver);
        }
        receiver.handle_timeout(Nanos::new(1_000_000_000));
        take(&mut receiver);
        prop_assert_eq!(acked, 1_000 * marks.len() as u64);
        prop_assert_eq!(marked, 1_000 * marks.iter().filter(|&&mark| mark).count() as u64);
    }

    /// Acknowledgements from nowhere: of bytes never sent, stale, with blocks that contradict each other.
    #[test]
    fn hostile_acknowledgements_do_no_harm(
        config in configs(),
        moves in proptest::collection::vec(
            (any::<u8>(), 0_u64..400_000, any::<u32>(), proptest::collection::vec((0_u64..400_000, 0_u64..400_000), 0..4)),
            1..200,
        ),
    ) {
        let mut sender = Sender::new(&config);
        sender.write(Bytes::new(300_000));
        let mut now = Nanos::ZERO;
        let mut sent = 0;
        let mut acked = Bytes::ZERO;
        for (what, ack, more, blocks) in moves {
            now += Span::ns(u64::from(more));
            match what % 4 {
                0 => sender.handle_timeout(now),
                1 => if let Some(due) = sender.poll_timeout() {
                    now = now.max(due);
                    sender.handle_timeout(now);
                },
                _ => {
                    let window = if what & 16 == 0 { more } else { 0 };
                    let echo = Nanos::new(u64::from(more));
                    let ack = if what & 32 == 0 { ack } else { u64::MAX - ack };
                    let mut ack = Ack::new(ack, window, echo).with_ece(what & 64 != 0).with_syn(what & 128 != 0);
                    for (start, end) in blocks {
                        ack = ack.with_block(SackBlock { start, end });
                    }
                    sender.handle_ack(&ack, now);
                }
            }
            let mut burst = 0;
            while let Some(segment) = sender.poll_transmit(now) {
                prop_assert!(segment.end() <= 300_000, "nothing beyond what was written");
                sent = sent.max(segment.end());
                sender.handle_sent(Bytes::new(segment.len.into()));
                burst += 1;
                prop_assert!(burst < 1_000_000, "what leaves at one moment is bounded");
            }
            prop_assert!(sender.acked() >= acked && sender.acked() <= Bytes::new(sent));
            acked = sender.acked();
        }
    }

    /// Segments from nowhere, and reads of what is not there.
    #[test]
    fn hostile_segments_do_no_harm(
        config in configs(),
        moves in proptest::collection::vec((any::<u8>(), any::<u64>(), any::<u32>(), any::<u16>()), 1..200),
    ) {
        let mut receiver = Receiver::new(&config);
        let mut delivered = Bytes::ZERO;
        for (what, seq, len, mss) in moves {
            let now = Nanos::new(u64::from(len));
            let seq = if what & 1 == 0 { seq } else { receiver.delivered().as_u64() + seq % 5_000 };
            let mut flags = Flags::default();
            flags |= if what & 2 == 0 { Flags::default() } else { Flags::SYN };
            flags |= if what & 4 == 0 { Flags::default() } else { Flags::CWR | Flags::ECN_SETUP };
            let ecn = if what & 8 == 0 { Ecn::Ect0 } else { Ecn::Ce };
            let segment = Segment { seq, sent: now, len: len % 100_000, mss: mss.max(1), flags, ecn };
            receiver.handle_segment(&segment, now);
            receiver.read(Bytes::new(u64::from(len >> 8)));
            receiver.handle_timeout(now);
            let mut acks = 0;
            while receiver.poll_ack(now).is_some() {
                acks += 1;
            }
            prop_assert!(acks <= 2);
            prop_assert!(receiver.delivered() >= delivered);
            delivered = receiver.delivered();
        }
    }
}
