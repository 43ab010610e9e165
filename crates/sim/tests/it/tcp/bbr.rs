//! BBR against what its authors and others have published of it.

use plimsoll_sim::tcp::{Config, Congestion};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::pipe::{Fault, Link, OVERHEAD, Pipe};

fn bbr() -> Config {
    Config { congestion: Congestion::Bbr, ..Config::default() }
}

/// A link of 100 Mb/s and 20 ms, whose queue holds this many bandwidth-delay products.
fn link(products: u64) -> Link {
    let link = Link::new(BitRate::mbps(100), Span::millis(20));
    Link { limit: link.limit.times(products), ..link }
}

/// Payload bits a second of a full link.
fn possible() -> f64 {
    1e8 * 1_448.0 / (1_448.0 + OVERHEAD as f64)
}

#[test]
fn alone_it_fills_a_link_and_hardly_a_queue() {
    let mut pipe = Pipe::new(link(10));
    pipe.add(&bbr(), None, Nanos::ZERO);
    pipe.run_until(Nanos::new(2_000_000_000));
    pipe.measure_from_now();
    let rate = pipe.rates_over(Span::secs(40))[0];
    let product = 250_000.0;
    println!("{:.3} of the link, a queue of {:.2} products", rate / possible(), pipe.mean_queue() / product);
    // Of each ten seconds 200 ms are spent on the least round trip.
    assert!((0.96..1.0).contains(&(rate / possible())), "{rate:.0}");
    assert!(pipe.mean_queue() < 0.15 * product, "{:.0}", pipe.mean_queue());
    assert_eq!((pipe.drops, pipe.flows[0].sender.stats().timeouts), (0, 0));
}

#[test]
fn every_ten_seconds_it_empties_the_path() {
    let mut pipe = Pipe::new(link(10));
    pipe.add(&bbr(), None, Nanos::ZERO);
    let mut emptied = Vec::new();
    for tick in 1..3_500_u64 {
        pipe.run_until(Nanos::new(10_000_000 * tick));
        if pipe.flows[0].sender.cwnd() == Bytes::new(4 * 1_448) {
            emptied.push(tick);
        }
    }
    let begins = 1 + emptied.windows(2).filter(|two| two[1] - two[0] > 100).count();
    println!("{begins} times, for {} ms", 10 * emptied.len());
    assert_eq!(begins, 3, "{emptied:?}");
    assert!(
        (20 * begins..26 * begins).contains(&emptied.len()),
        "for 200 ms and a round trip each: {emptied:?}"
    );
}

/// Cardwell et al. 2016, figure 8: at 1 % of loss BBR fills the link, and CUBIC falls to a fraction.
#[test]
fn random_losses_do_not_slow_it_down() {
    let rate = |config: &Config| {
        let mut pipe = Pipe::new(link(2));
        pipe.add(config, None, Nanos::ZERO);
        pipe.faults = Box::new(|number, _| if number % 100 == 99 { Fault::Drop } else { Fault::None });
        pipe.run_until(Nanos::new(2_000_000_000));
        pipe.rates_over(Span::secs(20))[0] / possible()
    };
    let (bbr, cubic) = (rate(&bbr()), rate(&Config::default()));
    println!("bbr {bbr:.2}, cubic {cubic:.2}");
    assert!(bbr > 0.93 && cubic < 0.2, "{bbr:.2} {cubic:.2}");
}

/// Hock, Bless and Zitterbart 2017 and Ware et al. 2019: in a short queue BBR pushes CUBIC aside, in a long one it has the lesser
/// share, as its window is two bandwidth-delay products.
#[test]
fn the_queues_length_decides_between_it_and_cubic() {
    let part = |products| {
        let mut pipe = Pipe::new(link(products));
        pipe.add(&bbr(), None, Nanos::ZERO);
        pipe.add(&Config::default(), None, Nanos::new(50_000_000));
        pipe.run_until(Nanos::new(10_000_000_000));
        let rates = pipe.rates_over(Span::secs(60));
        rates[0] / (rates[0] + rates[1])
    };
    let (short, long) = (part(1), part(16));
    println!("BBR's part: {short:.2} with a queue of one product, {long:.2} with sixteen");
    assert!(short > 0.75 && long < 0.5, "{short:.2} {long:.2}");
}
