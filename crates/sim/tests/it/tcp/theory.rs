//! Long flows compared with published formulas.

use plimsoll_sim::tcp::{Config, Congestion};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::pipe::{Fault, Link, OVERHEAD, Pipe, jain, lose_one_in};

fn with(congestion: Congestion) -> Config {
    match congestion {
        Congestion::Dctcp => Config::dctcp(),
        _ => Config { congestion, ..Config::default() },
    }
}

const ALL: [Congestion; 3] = [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp];

/// A path without a bottleneck: only the losses hold the flow back.
fn wide(rtt: Span) -> Link {
    Link { limit: Bytes::new(1 << 40), ..Link::new(BitRate::gbps(100), rtt) }
}

/// Mathis, Semke, Mahdavi and Ott (1997): 1.22 MSS / (RTT sqrt(p)), for losses at even distances. For random ones the
/// constant is sqrt(2) in the fluid limit; the band holds both.
#[test]
fn reno_under_random_loss_follows_the_square_root_law() {
    for one_in in [500, 2_000, 8_000] {
        let rtt = Span::millis(40);
        let mut pipe = Pipe::new(wide(rtt));
        pipe.add(&with(Congestion::NewReno), None, Nanos::ZERO);
        pipe.faults = lose_one_in(one_in, 7);
        pipe.run_until(Nanos::new(20_000_000_000));
        let rate = pipe.rates_over(Span::secs(400))[0];
        let law = 1.22 * 1_448.0 * 8.0 / rtt.as_secs_f64() * (one_in as f64).sqrt();
        println!("reno 1/{one_in}: {:.2} of the law", rate / law);
        assert!((0.85..1.2).contains(&(rate / law)), "1/{one_in}: {rate:.0} b/s, law {law:.0}");
        assert_eq!(pipe.flows[0].sender.stats().undone, 0);
    }
}

/// RFC 9438 §5.1: the mean window is 1.054 RTT^0.75 / p^0.75 segments for losses at even distances.
#[test]
fn cubic_follows_its_response_function() {
    for (one_in, millis) in [(10_000, 100), (2_000, 200), (50_000, 50)] {
        let rtt = Span::millis(millis);
        let mut pipe = Pipe::new(wide(rtt));
        let config = Config { receive_buffer: Bytes::new(1 << 30), ..with(Congestion::Cubic) };
        pipe.add(&config, None, Nanos::ZERO);
        pipe.faults = Box::new(move |n, _| if n % one_in == one_in - 1 { Fault::Drop } else { Fault::None });
        pipe.run_until(Nanos::new(100_000_000_000));
        let rate = pipe.rates_over(Span::secs(400))[0];
        let window = 1.054 * (rtt.as_secs_f64() * one_in as f64).powf(0.75);
        let law = window * 1_448.0 * 8.0 / rtt.as_secs_f64();
        println!("cubic 1/{one_in} {rtt}: {:.2} of the law", rate / law);
        assert!((0.85..1.15).contains(&(rate / law)), "1/{one_in}, {rtt}: {rate:.0} b/s, law {law:.0}");
    }
}

#[test]
fn a_buffer_of_one_product_keeps_the_link_full() {
    for congestion in ALL {
        let rate = BitRate::mbps(100);
        let mut link = Link::new(rate, Span::millis(20));
        link.mark_above = (congestion == Congestion::Dctcp).then(|| Bytes::new(60_000));
        let mut pipe = Pipe::new(link);
        pipe.add(&with(congestion), None, Nanos::ZERO);
        pipe.run_until(Nanos::new(10_000_000_000));
        let goodput = pipe.rates_over(Span::secs(60))[0];
        let possible = 1e8 * 1_448.0 / (1_448.0 + OVERHEAD as f64);
        println!("{congestion:?}: {:.3}", goodput / possible);
        assert!(goodput > 0.99 * possible, "{congestion:?}: {goodput:.0} of {possible:.0}");
        assert_eq!(pipe.flows[0].sender.stats().timeouts, 0, "{congestion:?}");
    }
}

#[test]
fn equal_flows_get_equal_shares() {
    for congestion in ALL {
        for flows in [2, 16] {
            let mut link = Link::new(BitRate::mbps(200), Span::millis(20));
            link.mark_above = (congestion == Congestion::Dctcp).then(|| Bytes::new(100_000));
            let mut pipe = Pipe::new(link);
            for flow in 0..flows {
                pipe.add(&with(congestion), None, Nanos::new(flow * 100_000_000));
            }
            pipe.run_until(Nanos::new(30_000_000_000));
            let shares = pipe.rates_over(Span::secs(120));
            println!("{congestion:?} x {flows}: {:.3}", jain(&shares));
            assert!(jain(&shares) > 0.95, "{congestion:?}: {shares:?}");
            let total: f64 = shares.iter().sum();
            assert!(total > 0.95 * 2e8 * 0.956, "{congestion:?}: {total:.0}");
        }
    }
}

/// RFC 8257 and Alizadeh et al. (2010): the queue swings below K + N, and alpha is near sqrt(2 / W).
#[test]
fn dctcp_keeps_the_queue_near_its_threshold() {
    let rate = BitRate::gbps(10);
    let rtt = Span::micros(100);
    let threshold = 65 * 1_514;
    let mut pipe = Pipe::new(Link {
        limit: Bytes::kib(1_024),
        mark_above: Some(Bytes::new(threshold)),
        ..Link::new(rate, rtt)
    });
    for _ in 0..2 {
        pipe.add(&Config { delayed_ack: Span::micros(500), ..Config::dctcp() }, None, Nanos::ZERO);
    }
    pipe.run_until(Nanos::new(200_000_000));
    pipe.measure_from_now();
    let shares = pipe.rates_over(Span::millis(300));
    let (mean, most) = (pipe.mean_queue(), pipe.queue_most);
    let alpha = f64::from(pipe.flows[0].sender.dctcp_alpha().expect("DCTCP has one")) / f64::from(1 << 10);
    println!("queue {:.0} packets mean, {} most, alpha {alpha:.3}, {shares:?}", mean / 1_514.0, most / 1_514);
    assert!((0.6..1.1).contains(&(mean / threshold as f64)), "mean queue {mean:.0}");
    assert!(most < 2 * threshold, "at most {most}");
    assert_eq!(pipe.drops, 0);
    // A flow's window is (product + K) / 2, about 74 packets.
    let expected = (2.0_f64 / 74.0).sqrt();
    assert!((0.5..2.0).contains(&(alpha / expected)), "alpha {alpha:.3}, expected about {expected:.3}");
    assert!(shares.iter().sum::<f64>() > 0.99 * 1e10 * 1_448.0 / 1_514.0);
    assert!(jain(&shares) > 0.98);
}

/// With marks instead of drops a flow with RFC 3168's ECN loses nothing and fills the link.
#[test]
fn marks_replace_losses() {
    for congestion in [Congestion::NewReno, Congestion::Cubic] {
        let rate = BitRate::mbps(100);
        let mut link = Link::new(rate, Span::millis(10));
        link.mark_above = Some(link.limit);
        link.limit = link.limit.times(4); // slow start doubles for a round trip beyond the first mark
        let mut pipe = Pipe::new(link);
        pipe.add(&Config { ecn: true, ..with(congestion) }, None, Nanos::ZERO);
        pipe.run_until(Nanos::new(2_000_000_000));
        pipe.measure_from_now();
        let goodput = pipe.rates_over(Span::secs(30))[0];
        let stats = pipe.flows[0].sender.stats();
        println!("{congestion:?}: {stats:?}, {} marks", pipe.marks);
        assert_eq!((pipe.drops, stats.retransmitted), (0, Bytes::ZERO));
        assert!(stats.mark_reductions > 10 && stats.recoveries == 0);
        assert!(goodput > 0.99 * 1e8 * 1_448.0 / 1_514.0, "{goodput:.0}");
    }
}

/// A flow sends one receive window each round trip, and no more.
#[test]
fn a_small_receive_window_holds_the_rate() {
    let mut pipe = Pipe::new(Link::new(BitRate::gbps(1), Span::millis(10)));
    let config = Config { receive_buffer: Bytes::new(100_000), ..Config::default() };
    pipe.add(&config, None, Nanos::ZERO);
    pipe.run_until(Nanos::new(1_000_000_000));
    let rate = pipe.rates_over(Span::secs(5))[0];
    let law = 100_000.0 * 8.0 / 0.010;
    println!("{:.2} of the law", rate / law);
    assert!((0.85..1.0).contains(&(rate / law)), "{rate:.0} of {law:.0}");
    assert_eq!(pipe.drops, 0);
}

#[test]
fn every_other_segment_is_acknowledged() {
    let mut pipe = Pipe::new(wide(Span::millis(10)));
    pipe.add(&Config::default(), Some(Bytes::new(1_448 * 1_016)), Nanos::ZERO);
    pipe.run_to_end(Nanos::new(10_000_000_000));
    // The SYN and sixteen quick ones, then one for two.
    let (acks, segments) = (pipe.flows[0].receiver.stats().acks, pipe.flows[0].receiver.stats().segments);
    println!("{acks} acks for {segments} segments");
    assert!(pipe.drops == 0 && (500..530).contains(&acks), "{acks} acks for {segments} segments");
}

/// Descriptors for segmentation offload change how often the host is asked, not what crosses the network.
#[test]
fn segmentation_offload_is_as_fast() {
    for pacing in [false, true] {
        let mut pipe = Pipe::new(Link::new(BitRate::gbps(1), Span::millis(2)));
        pipe.trace = Some(Vec::new());
        pipe.add(&Config { offload: Bytes::kib(64), pacing, ..Config::default() }, None, Nanos::ZERO);
        pipe.run_until(Nanos::new(1_000_000_000));
        let goodput = pipe.rates_over(Span::secs(2))[0];
        let trace = pipe.trace.take().expect("traced");
        let mean =
            trace.iter().map(|(_, _, segment)| u64::from(segment.len)).sum::<u64>() / trace.len() as u64;
        println!("pacing {pacing}: {goodput:.0}, descriptors of {mean} B, {} drops", pipe.drops);
        assert!(goodput > 0.98 * 1e9 * 1_448.0 / 1_514.0, "{goodput:.0}");
        assert!(mean > 20_000, "descriptors of {mean} B");
        assert!(trace.iter().all(|(_, _, segment)| segment.len <= 65_535));
    }
}

#[test]
fn the_same_inputs_give_the_same_outputs() {
    let run = || {
        let mut pipe = Pipe::new(Link::new(BitRate::mbps(50), Span::millis(10)));
        for congestion in ALL {
            pipe.add(&with(congestion), None, Nanos::ZERO);
        }
        pipe.faults = lose_one_in(300, 3);
        pipe.trace = Some(Vec::new());
        pipe.run_until(Nanos::new(5_000_000_000));
        pipe.trace
    };
    assert_eq!(run(), run());
}
