//! Backpressure and the packet-rate law at one receiver (targets §6.6): whoever is pressed is not faulted twice.

use plimsoll_control::backpressure::{Backpressure, Order, Settings, Target, Work};
use plimsoll_control::{BandwidthLaw, Envelope, Idle, Laws, Measured, PacketRateLaw, Receivers};
use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{BitRate, Nanos, PacketRate, Span};

const EPOCH: Span = Span::micros(500);
/// Packets that the core serves in an epoch, and that wait in its queue.
const CORE: u64 = 1_000;
const SLOTS: u64 = 8_192;
/// Packets that each of three senders of mice, and the sender of the heavy flow, want to send in an epoch.
const MOUSE: u64 = 150;
const HEAVY: u64 = 800;
/// From a notice until the flow arrives at its rate: the way to its host, and what waits there.
const REMEDY: Span = Span::millis(5);
/// How long a flow that was just pressed is left out.
const WINDOW: Span = Span::millis(20);

/// Packets of mice that their limit held back in 200 ms, epochs with a packet-rate limit, and epochs before the core had room.
fn run(leaves_out: bool) -> [u64; 3] {
    let laws = Laws {
        bandwidth: BandwidthLaw::default(),
        packets: Some(PacketRateLaw::new(Span::micros(50))),
        idle: Idle::Reserved,
        fabric: None,
    };
    let envelope = Envelope { min: None, max: BitRate::gbps(100) };
    let mut receivers = Receivers::new(BitRate::gbps(100), laws, &[envelope]);
    let rate = BitRate::gbps(4);
    let settings = Settings { target: Target::Fixed(rate), ..Settings::default() };
    let mut backpressure: Backpressure<&str> = Backpressure::new(settings, Nanos::ZERO);
    let (mut waiting, mut heavy_waits, mut sent) = (0, 0, Tally::default());
    let (mut pressed_at, mut busy, mut served_of) = (None, Span::ZERO, 0);
    let [mut held, mut limited, mut full] = [0; 3];
    for epoch in 1..=400_u64 {
        let now = Nanos::ZERO + EPOCH.times(epoch);
        let limit = receivers.limits(0).packets.map_or(u64::MAX, PacketRate::get) / 2_000;
        limited += u64::from(limit < u64::MAX / 2_000);
        held += 3 * MOUSE.saturating_sub(limit);
        let obeys = pressed_at.is_some_and(|at| now.since(at) >= REMEDY);
        // 4 Gb/s of packets of 1,250 bytes.
        let heavy = if obeys { HEAVY.min(200) } else { HEAVY }.min(limit);
        let came = heavy + 3 * MOUSE.min(limit);
        let drops = (waiting + came).saturating_sub(SLOTS);
        waiting = (waiting + came).min(SLOTS);
        heavy_waits = (heavy_waits + heavy).min(waiting);
        let peak = waiting;
        let served = waiting.min(CORE);
        let of_heavy = heavy_waits * served / waiting.max(1);
        (waiting, heavy_waits) = (waiting - served, heavy_waits - of_heavy);
        full += u64::from(served == CORE);

        // Two epochs are a poll. The flow is known as a heavy hitter in its fourth millisecond.
        sent.packets += of_heavy;
        sent.bytes += of_heavy * 1_250;
        busy += Span::ns(EPOCH.as_u64() * served / CORE);
        served_of += served;
        if epoch.is_multiple_of(2) {
            let reported: &[_] = if epoch >= 8 { &[Heavy { key: "heavy", sent }] } else { &[] };
            let work = Work { busy, over: EPOCH.times(2), packets: served_of };
            (busy, served_of) = (Span::ZERO, 0);
            let orders = backpressure.poll(work, reported, |_| None, now);
            if orders.iter().any(|order| matches!(order, Order::Start(_))) {
                pressed_at = Some(now);
            }
        }
        let fresh = leaves_out && pressed_at.is_some_and(|at| now.since(at) < WINDOW);
        let measured = Measured {
            bytes: came * 1_250,
            served,
            left_out: if fresh { of_heavy } else { 0 },
            service: PacketRate::new(2_000_000).filter(|_| peak > CORE),
            delay: Some(Span::ns(peak * 500)),
            occupancy: (peak * 1_000 / SLOTS) as u32,
            drops,
            weights: 4_000,
            ..Measured::default()
        };
        receivers.epoch(EPOCH, &[measured]);
    }
    [held, limited, full]
}

/// A heavy flow overloads a receiver's core. Backpressure presses it after 4 ms and it obeys 5 ms later. Meanwhile the queue
/// builds up, and the packet-rate law limits every sender, whose mice wait although the overload ends without that.
#[test]
fn the_two_loops_do_not_fight() {
    let [fight, limited, _] = run(false);
    println!("both loops: {fight} packets of mice were held back, in {limited} epochs with a limit");
    assert!(fight > 500, "{fight}: else there is nothing to see");
    let [held, limited, full] = run(true);
    println!("the pressed flow left out: {held}, in {limited} epochs, and the core was full for {full}");
    assert_eq!((held, limited), (0, 0));
    assert!(full < 100, "{full} epochs: backpressure alone ends the overload");
}
