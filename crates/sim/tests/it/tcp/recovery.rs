//! Losses, reordering, silence: one fault at a time.

use plimsoll_sim::tcp::{
    Ack, Config, Congestion, Ecn, Flags, LocalQueue, Receiver, SackBlock, Segment, Sender, SenderStats,
};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::pipe::{Dice, Fault, Link, Pipe, lose_these};

const RTT: Span = Span::millis(20);

/// A path that queues little: 1 Gb/s.
fn path() -> Link {
    Link { limit: Bytes::new(1 << 30), ..Link::new(BitRate::gbps(1), RTT) }
}

/// Sends `segments` full segments and says how long it took, in round trips after the handshake.
fn transfer(config: &Config, segments: u64, faults: super::pipe::Faults) -> (f64, Pipe) {
    let mut pipe = Pipe::new(path());
    pipe.trace = Some(Vec::new());
    pipe.faults = faults;
    pipe.add(config, Some(Bytes::new(segments * 1_448)), Nanos::ZERO);
    pipe.run_to_end(Nanos::new(600_000_000_000));
    let finished = pipe.flows[0].finished.expect("the transfer ends");
    (((finished - Nanos::ZERO).as_secs_f64() / RTT.as_secs_f64()) - 1.0, pipe)
}

fn stats(pipe: &Pipe) -> SenderStats {
    pipe.flows[0].sender.stats()
}

fn none() -> super::pipe::Faults {
    Box::new(|_, _| Fault::None)
}

#[test]
fn slow_start_doubles_from_ten() {
    // 10 + 20 + 40 + 80 = 150 segments take 3.5 round trips, for the last flight has to arrive only.
    let (rounds, pipe) = transfer(&Config::default(), 150, none());
    assert!((3.5..3.7).contains(&rounds), "{rounds}");
    assert_eq!(stats(&pipe).retransmitted, Bytes::ZERO);
}

#[test]
fn a_loss_is_repaired_within_a_round_trip() {
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
        for sack in [true, false] {
            let config =
                Config { congestion, sack, ecn: congestion == Congestion::Dctcp, ..Config::default() };
            // Packet 0 is the SYN; the 20th is in the second flight.
            let (_, pipe) = transfer(&config, 500, lose_these([20]));
            let stats = stats(&pipe);
            assert_eq!((stats.timeouts, stats.recoveries), (0, 1), "{congestion:?}, sack {sack}: {stats:?}");
            assert_eq!(stats.retransmitted, Bytes::new(1_448), "{congestion:?}, sack {sack}");
        }
    }
}

#[test]
fn sack_repairs_a_burst_in_a_round_trip_and_newreno_in_as_many_as_it_lost() {
    // Round trips from the first retransmission to the last.
    let repair = |sack| {
        let config = Config { sack, ..Config::default() };
        let (_, pipe) = transfer(&config, 2_000, lose_these(100..130));
        let stats = stats(&pipe);
        assert_eq!((stats.timeouts, stats.recoveries), (0, 1), "sack {sack}: {stats:?}");
        assert_eq!(stats.retransmitted, Bytes::new(30 * 1_448), "sack {sack}: and nothing else");
        let trace = pipe.trace.as_ref().expect("traced").iter();
        let again: Vec<Nanos> = trace
            .filter(|(_, _, segment)| segment.flags.contains(Flags::RETRANSMISSION))
            .map(|&(at, ..)| at)
            .collect();
        (again[again.len() - 1] - again[0]).as_secs_f64() / RTT.as_secs_f64()
    };
    let (with, without) = (repair(true), repair(false));
    assert!(with < 1.0, "{with} round trips");
    assert!((29.0..30.0).contains(&without), "{without} round trips");
}

#[test]
fn a_lost_retransmission_is_found_without_a_timeout() {
    // The 20th packet, and then its retransmission.
    let (mut first, mut spared) = (None, false);
    let faults = move |n, segment: &Segment| {
        let again = first == Some(segment.seq) && !core::mem::replace(&mut spared, true);
        if n == 20 {
            first = Some(segment.seq);
        }
        if n == 20 || again { Fault::Drop } else { Fault::None }
    };
    let (_, pipe) = transfer(&Config::default(), 2_000, Box::new(faults));
    let stats = stats(&pipe);
    assert_eq!(stats.timeouts, 0, "{stats:?}");
    assert!(stats.retransmitted >= Bytes::new(2 * 1_448), "{stats:?}");
}

#[test]
fn limited_transmit_keeps_three_segments_alive() {
    // RFC 3042: with a window of four a loss leaves three duplicates' worth, when each lets a new segment out.
    for sack in [true, false] {
        let config = Config { initial_window: 3, sack, tail_loss_probe: false, ..Config::default() };
        let (rounds, pipe) = transfer(&config, 8, lose_these([1]));
        assert_eq!(stats(&pipe).timeouts, 0, "sack {sack}: {:?}", stats(&pipe));
        assert!(rounds < 6.0, "sack {sack}: {rounds}");
    }
}

#[test]
fn a_lost_tail_is_probed_for_and_without_probes_times_out() {
    // Ten segments, the last three are lost.
    let (with, pipe) = transfer(&Config::default(), 10, lose_these(8..11));
    assert_eq!((stats(&pipe).probes, stats(&pipe).timeouts), (1, 0), "{:?}", stats(&pipe));
    assert!((2.0..6.0).contains(&with), "{with} round trips");
    let config = Config { tail_loss_probe: false, ..Config::default() };
    let (without, pipe) = transfer(&config, 10, lose_these(8..11));
    assert_eq!((stats(&pipe).probes, stats(&pipe).timeouts), (0, 1));
    // 200 ms are ten round trips.
    assert!(without > 11.0, "{without} round trips");
}

#[test]
fn a_needless_probe_costs_nothing() {
    // The last acknowledgement is late: the probe's duplicate says that nothing was lost.
    let mut pipe = Pipe::new(path());
    pipe.add(&Config::default(), Some(Bytes::new(14_480)), Nanos::ZERO);
    pipe.ack_faults = Box::new(|n| if n > 0 { Fault::Delay(Span::millis(60)) } else { Fault::None });
    pipe.run_to_end(Nanos::new(10_000_000_000));
    let stats = stats(&pipe);
    assert_eq!((stats.probes, stats.recoveries, stats.timeouts), (1, 0, 0), "{stats:?}");
}

#[test]
fn timeouts_double_while_nothing_comes_back() {
    let mut pipe = Pipe::new(path());
    pipe.add(&Config { tail_loss_probe: false, ..Config::default() }, None, Nanos::ZERO);
    pipe.run_until(Nanos::new(50_000_000));
    pipe.faults = Box::new(|_, _| Fault::Drop);
    pipe.run_until(Nanos::new(10_000_000_000));
    let at = pipe.flows[0].timeouts_at.clone();
    let gaps: Vec<u64> = at.windows(2).map(|pair| (pair[1] - pair[0]).as_u64() / 1_000_000).collect();
    assert!(at.len() >= 5, "{at:?}");
    assert!(gaps.windows(2).all(|pair| pair[1].abs_diff(2 * pair[0]) <= 2), "{gaps:?}");
    assert_eq!(pipe.flows[0].sender.cwnd(), Bytes::new(1_448));
    // The path comes back: so does the transfer, at the next timeout, and with the timeout as it was.
    pipe.faults = none();
    let before = pipe.flows[0].receiver.delivered();
    pipe.run_until(Nanos::new(25_000_000_000));
    assert!(pipe.flows[0].receiver.delivered() > before + Bytes::new(100_000_000));
}

#[test]
fn a_lost_syn_costs_a_second_and_the_next_two_more() {
    for (lost, seconds) in [(0, 0.0), (1, 1.0), (2, 3.0)] {
        // One segment: after two lost SYNs the window is no larger.
        let (rounds, pipe) = transfer(&Config::default(), 1, lose_these(0..lost));
        let took = (rounds - 0.5) * RTT.as_secs_f64();
        assert!((took - seconds).abs() < 0.002 * f64::from(lost as u32 + 1), "{lost} lost: {took} s");
        let syns = pipe.trace.as_ref().expect("traced").iter();
        let syns = syns.filter(|(_, _, segment)| segment.flags.contains(Flags::SYN)).count();
        assert_eq!(syns as u64, lost + 1);
    }
}

#[test]
fn a_delay_spike_is_undone() {
    // Everything is held up for half a second, and then arrives: the timeout was needless.
    let mut pipe = Pipe::new(path());
    pipe.add(&Config::default(), Some(Bytes::new(20_000_000)), Nanos::ZERO);
    pipe.run_until(Nanos::new(100_000_000));
    let before = pipe.flows[0].sender.cwnd();
    let mut held = 0;
    pipe.faults = Box::new(move |_, _| {
        held += 1;
        // What leaves within the spike arrives after it, in order.
        if held < 2_000 { Fault::Delay(Span::ns(500_000_000 - held * 10_000)) } else { Fault::None }
    });
    pipe.run_until(Nanos::new(1_000_000_000));
    let stats = stats(&pipe);
    assert!(stats.timeouts >= 1 && stats.undone >= 1, "{stats:?}");
    assert!(pipe.flows[0].sender.cwnd() >= before);
}

#[test]
fn mild_reordering_costs_little() {
    let run = |reorder: bool| {
        let link = Link { limit: Bytes::new(2_000_000), ..Link::new(BitRate::mbps(200), RTT) };
        let mut pipe = Pipe::new(link);
        pipe.add(&Config::default(), None, Nanos::ZERO);
        let mut dice = Dice::new(5);
        if reorder {
            // One packet in fifty is late by up to 3 ms, which is fifty packets.
            pipe.faults = Box::new(move |_, _| match dice.one_in(50) {
                true => Fault::Delay(Span::ns(dice.next() % 3_000_000)),
                false => Fault::None,
            });
        }
        pipe.run_until(Nanos::new(2_000_000_000));
        let rate = pipe.rates_over(Span::secs(10))[0];
        (rate, stats(&pipe))
    };
    let ((ordered, _), (reordered, stats)) = (run(false), run(true));
    println!("{:.3} of the ordered rate, {stats:?}", reordered / ordered);
    assert!(reordered > 0.97 * ordered, "{reordered:.0} against {ordered:.0}: {stats:?}");
    assert_eq!(stats.timeouts, 0);
}

#[test]
fn duplicates_and_late_acknowledgements_do_no_harm() {
    let mut pipe = Pipe::new(path());
    pipe.add(&Config::default(), Some(Bytes::new(5_000_000)), Nanos::ZERO);
    let mut dice = Dice::new(9);
    pipe.faults = Box::new(move |_, _| if dice.one_in(10) { Fault::Duplicate } else { Fault::None });
    let mut dice = Dice::new(10);
    pipe.ack_faults = Box::new(move |_| match dice.next() % 10 {
        0 => Fault::Drop,
        1 => Fault::Delay(Span::ns(dice.next() % 5_000_000)),
        2 => Fault::Duplicate,
        _ => Fault::None,
    });
    pipe.run_to_end(Nanos::new(60_000_000_000));
    let stats = stats(&pipe);
    assert!(pipe.flows[0].finished.is_some());
    assert_eq!((stats.timeouts, stats.recoveries, stats.retransmitted), (0, 0, Bytes::ZERO), "{stats:?}");
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    let mut pipe = Pipe::new(path());
    let config = Config { auto_read: false, receive_buffer: Bytes::new(50_000), ..Config::default() };
    pipe.add(&config, Some(Bytes::new(120_000)), Nanos::ZERO);
    // The application sleeps for ten seconds.
    pipe.run_until(Nanos::new(10_000_000_000));
    assert_eq!(pipe.flows[0].receiver.available(), Bytes::new(50_000), "the buffer is full, and no more");
    assert_eq!(pipe.flows[0].sender.stats().timeouts, 0, "silence is no loss");
    // The announcement that it reads again is lost: the next probe finds out.
    pipe.ack_faults = Box::new(|n| if n < 20 { Fault::Drop } else { Fault::None });
    let probes = |pipe: &Pipe| pipe.flows[0].sender.stats().segments;
    let before = probes(&pipe);
    pipe.flows[0].receiver.read(Bytes::new(50_000));
    pipe.send_acks(0);
    pipe.run_until(Nanos::new(40_000_000_000));
    assert!(probes(&pipe) > before);
    assert_eq!(pipe.flows[0].receiver.delivered(), Bytes::new(100_000));
    pipe.flows[0].receiver.read(Bytes::new(50_000));
    pipe.send_acks(0);
    pipe.run_until(Nanos::new(200_000_000_000));
    assert_eq!(pipe.flows[0].receiver.delivered(), Bytes::new(120_000));
}

#[test]
fn the_host_holds_no_more_than_its_credit() {
    for (local_queue, most) in
        [(LocalQueue::Fixed(Bytes::new(10_000)), 10_000), (LocalQueue::Small(Bytes::kib(128)), 131_072)]
    {
        let config = Config {
            local_queue,
            handshake: false,
            initial_window: 500,
            offload: Bytes::new(4_344),
            ..Config::default()
        };
        let mut sender = Sender::new(&config);
        sender.write_unlimited();
        let mut out = Vec::new();
        while let Some(segment) = sender.poll_transmit(Nanos::ZERO) {
            out.push(u64::from(segment.len));
        }
        let queued: u64 = out.iter().sum();
        assert!(queued <= most && queued > most - 4_344, "{queued} of {most}");
        assert_eq!(sender.queued(), Bytes::new(queued));
        // Credit comes back with what has left.
        sender.handle_sent(Bytes::new(out[0]));
        assert_eq!(sender.poll_transmit(Nanos::ZERO).map(|segment| u64::from(segment.len)), Some(out[0]));
        assert_eq!(sender.poll_transmit(Nanos::ZERO), None);
    }
}

#[test]
fn a_slow_flow_holds_two_segments() {
    // 10 segments in 100 ms are far less than two in a millisecond.
    let config = Config { handshake: false, ..Config::default() };
    let mut sender = Sender::new(&config);
    let mut receiver = Receiver::new(&config);
    sender.write_unlimited();
    while let Some(segment) = sender.poll_transmit(Nanos::ZERO) {
        sender.handle_sent(Bytes::new(segment.len.into()));
        receiver.handle_segment(&segment, Nanos::ZERO);
    }
    let ack = receiver.poll_ack(Nanos::ZERO).expect("ten segments are acknowledged");
    sender.handle_ack(&ack, Nanos::new(100_000_000));
    let mut held = 0;
    while sender.poll_transmit(Nanos::new(100_000_000)).is_some() {
        held += 1;
    }
    assert_eq!(held, 2);
}

#[test]
fn idle_time_takes_the_window_back_to_its_start() {
    let mut pipe = Pipe::new(path());
    let flow = pipe.add(&Config::default(), Some(Bytes::new(1_000_000)), Nanos::ZERO);
    pipe.run_to_end(Nanos::new(1_000_000_000));
    assert!(pipe.flows[flow].sender.cwnd() > Bytes::new(100_000));
    let sender = &mut pipe.flows[flow].sender;
    sender.write(Bytes::new(1_000_000));
    let mut first_flight = 0;
    let later = Nanos::new(60_000_000_000);
    while let Some(segment) = sender.poll_transmit(later) {
        sender.handle_sent(Bytes::new(segment.len.into()));
        first_flight += 1;
    }
    assert_eq!(first_flight, 10);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut pipe = Pipe::new(path());
    let flow = pipe.add(&Config::default(), Some(Bytes::new(1_000)), Nanos::ZERO);
    for second in 1..50 {
        pipe.run_until(Nanos::new(second * 100_000_000));
        let now = pipe.now;
        let state = &mut pipe.flows[flow];
        state.sender.write(Bytes::new(1_000));
        while let Some(segment) = state.sender.poll_transmit(now) {
            state.sender.handle_sent(Bytes::new(segment.len.into()));
            state.receiver.handle_segment(&segment, now);
            while let Some(ack) = state.receiver.poll_ack(now) {
                state.sender.handle_ack(&ack, now + RTT);
            }
        }
    }
    assert_eq!(pipe.flows[flow].sender.cwnd(), Bytes::new(14_480));
}

/// A receiver that reports what it never got, and takes back what it reported, gets its data nevertheless.
#[test]
fn reneging_ends_with_a_timeout_and_not_in_silence() {
    let config = Config { handshake: false, ..Config::default() };
    let mut sender = Sender::new(&config);
    sender.write(Bytes::new(14_480));
    let mut now = Nanos::ZERO;
    while sender.poll_transmit(now).is_some() {
        sender.handle_sent(Bytes::new(1_448));
    }
    let all = Ack::new(0, 1 << 20, now).with_block(SackBlock { start: 0, end: 14_480 });
    sender.handle_ack(&all, now + RTT);
    let mut again = 0;
    while let Some(due) = sender.poll_timeout() {
        assert!(due > now && due < Nanos::new(10_000_000_000));
        now = due;
        sender.handle_timeout(now);
        while let Some(segment) = sender.poll_transmit(now) {
            sender.handle_sent(Bytes::new(segment.len.into()));
            again += segment.len;
            sender.handle_ack(&Ack::new(segment.end(), 1 << 20, now), now);
        }
    }
    assert_eq!(again, 14_480);
    assert!(sender.is_idle() && sender.poll_timeout().is_none());
}

#[test]
fn a_mark_is_echoed_until_the_sender_says_that_it_has_reduced() {
    let config = Config { ecn: true, handshake: false, delayed_ack: Span::ZERO, ..Config::default() };
    let mut receiver = Receiver::new(&config);
    let mut echo = |n: u64, ecn, flags| {
        let segment = Segment { seq: n * 1_000, sent: Nanos::ZERO, len: 1_000, mss: 1_000, flags, ecn };
        receiver.handle_segment(&segment, Nanos::ZERO);
        receiver.poll_ack(Nanos::ZERO).expect("none is delayed").ece()
    };
    assert!(!echo(0, Ecn::Ect0, Flags::default()));
    assert!(echo(1, Ecn::Ce, Flags::default()));
    assert!(echo(2, Ecn::Ect0, Flags::default()));
    assert!(!echo(3, Ecn::Ect0, Flags::CWR));
    assert!(echo(4, Ecn::Ce, Flags::CWR), "a mark on the same packet is a new one");
}

#[test]
fn what_does_not_fit_is_not_said_to_have_arrived() {
    let config =
        Config { handshake: false, auto_read: false, receive_buffer: Bytes::new(1_500), ..Config::default() };
    let mut receiver = Receiver::new(&config);
    let give = |receiver: &mut Receiver, seq| {
        let (mss, flags, ecn) = (1_000, Flags::default(), Ecn::NotEct);
        receiver
            .handle_segment(&Segment { seq, sent: Nanos::ZERO, len: 1_000, mss, flags, ecn }, Nanos::ZERO);
        let ack = receiver.poll_ack(Nanos::ZERO).expect("at once");
        (ack.ack, ack.window, ack.blocks().collect::<Vec<_>>())
    };
    assert_eq!(give(&mut receiver, 0), (1_000, 500, vec![]));
    // Half of the next fits, nothing of the third; only the first half of the second is a duplicate then.
    assert_eq!(give(&mut receiver, 1_000), (1_500, 0, vec![]));
    assert_eq!(give(&mut receiver, 2_000), (1_500, 0, vec![]));
    assert_eq!(give(&mut receiver, 1_000), (1_500, 0, vec![SackBlock { start: 1_000, end: 1_500 }]));
    assert_eq!(receiver.stats().refused, 3);
}
