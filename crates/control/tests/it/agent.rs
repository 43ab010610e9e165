//! Two agents over a transport that loses, repeats and reorders messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_control::agent::{LocalVm, Presence, Settings};
use plimsoll_control::backpressure::Terms;
use plimsoll_control::{
    Agent, Allowance, BandwidthLaw, Envelope, For, HostId, Idle, Laws, Limits, Measured, Member, Membership,
    Notice, Rejected, Sealer, Sender, Vnic,
};
use plimsoll_units::{BitRate, Nanos, Span};
use proptest::prelude::*;

const KEY: [u8; 32] = [7; 32];
const EPOCH: Span = Span::millis(1);
const LAPSE: Span = Span::millis(50);
const A: HostId = HostId(1);
const B: HostId = HostId(2);
const C: HostId = HostId(3);

fn vm(host: HostId) -> Vnic {
    Vnic { network: 7, mac: [2, 0, 0, 0, 0, host.0 as u8] }
}

/// The agent of `own`. Each host has one VM; that of `own` may receive 1 Gb/s.
fn agent(own: HostId, others: &[HostId], balancers: &[HostId], distributor: Option<HostId>) -> Agent {
    let sender = |host: &HostId| Sender { balancer: balancers.contains(host), ..Sender::default() };
    let member = |(place, host): (usize, &HostId)| Member {
        name: "shop".to_owned(),
        vnic: vm(*host),
        host: place,
        sender: sender(host),
    };
    let vms = others.iter().enumerate().map(member).collect();
    let members = Membership::new(own, others.to_vec(), vms, vec![(7, sender(&own))], distributor);
    let laws = Laws { bandwidth: BandwidthLaw::default(), packets: None, idle: Idle::Lent, fabric: None };
    let settings = Settings { epoch: EPOCH, lapse: LAPSE, laws };
    let mut agent = Agent::new(settings, &KEY, [1_000, 1], Arc::new(members), Nanos::ZERO);
    let envelope = Envelope { min: None, max: BitRate::gbps(1) };
    agent.set_receivers(BitRate::gbps(10), &[LocalVm { vnic: vm(own), envelope, threshold: None, seed: 3 }]);
    agent
}

fn at(ms: u64) -> Nanos {
    Nanos::ZERO + Span::millis(ms)
}

fn bytes(bytes: u64) -> Measured {
    Measured { bytes, ..Measured::default() }
}

/// Runs an epoch in which the other host's VM sent and `received` bytes arrived, and returns the message that results.
fn epoch(agent: &mut Agent, received: u64, now: Nanos) -> Option<Vec<u8>> {
    (0..20).for_each(|_| _ = agent.handle_packet(Some(0), Some(0), 1_500, false, now));
    assert!(agent.handle_epoch(now, now, |_| bytes(received)));
    agent.poll_message(0)
}

fn bits(agent: &Agent) -> Option<u64> {
    agent.allowed(0, 0).map(|limits| limits.bits.get())
}

#[test]
fn a_limit_is_obeyed_until_it_lapses() {
    let (mut a, mut b) = (agent(A, &[B], &[], None), agent(B, &[A], &[], None));
    let message = epoch(&mut a, 250_000, at(1)).expect("news");
    assert_eq!(b.handle_message(&message, at(1)), Ok(0));
    assert_eq!((b.poll_order(), b.poll_order(), bits(&b)), (Some(0), None, Some(500_000_000)));
    assert!(b.handle_message(&message, at(2)).is_err(), "it comes again");
    assert!(b.handle_epoch(at(50), at(50), |_| bytes(0)));
    assert_eq!((b.poll_order(), bits(&b)), (None, Some(500_000_000)), "49 ms old");
    assert!(b.handle_epoch(at(51), at(51), |_| bytes(0)));
    assert_eq!((b.poll_order(), bits(&b)), (Some(0), None));
}

#[test]
fn what_holds_is_said_thrice_and_then_five_times_in_a_lapse() {
    let mut a = agent(A, &[B], &[], None);
    // As much comes as may come.
    let said: Vec<u64> = (1..40).filter(|&ms| epoch(&mut a, 125_000, at(ms)).is_some()).collect();
    assert_eq!(said, [1, 2, 3, 13, 23, 33]);
}

#[test]
fn an_epoch_at_rest_waits_for_a_packet() {
    let mut a = agent(A, &[B], &[], None);
    assert_eq!(a.poll_timeout(), at(1) + Span::micros(250));
    (1..=3).for_each(|ms| _ = epoch(&mut a, 125_000, at(ms)));
    assert_eq!(a.next_epoch(), at(4), "with the next packet");
    assert_eq!(a.poll_timeout(), at(3) + Span::micros(6_250), "or after an eighth of the lapse");
    // Half a millisecond's packets came until 3.5 ms; the epoch ends at 9 and is a millisecond long.
    a.handle_packet(Some(0), Some(0), 1_500, false, at(3));
    assert!(a.handle_epoch(at(3) + Span::micros(500), at(9), |_| bytes(250_000)));
    assert_eq!(a.receivers().limits(0).bits, BitRate::mbps(500));
    assert_eq!(a.poll_timeout(), at(10) + Span::micros(250), "a limit has moved");
}

/// A core that polls ends each epoch in time, at rest as otherwise, as the simulated ones do.
#[test]
fn an_epoch_that_ends_in_time_is_no_other_at_rest() {
    let after = |restful: u64| {
        let mut a = agent(A, &[B], &[], None);
        (1..=restful).for_each(|ms| _ = epoch(&mut a, 125_000, at(ms)));
        _ = epoch(&mut a, 250_000, at(restful + 1));
        (a.receivers().limits(0), a.next_epoch() - Span::millis(restful + 1))
    };
    assert_eq!(after(20), after(0));
}

#[test]
fn what_did_not_leave_is_said_anew() {
    let mut a = agent(A, &[B], &[], None);
    let mut b = agent(B, &[A], &[], None);
    a.handle_packet(Some(0), Some(0), 1_500, false, at(0));
    for ms in 1..=2 {
        assert!(a.handle_epoch(at(ms), at(ms), |_| bytes(250_000)));
    }
    assert_eq!((a.contact(0).messages().len(), a.contact(0).unsent()), (1, 1));
    assert_eq!(b.handle_message(&a.poll_message(0).expect("the newest"), at(2)), Ok(0));
    assert_eq!(bits(&b), Some(250_000_000));
}

#[test]
fn a_host_speaks_for_its_own_vms_only() {
    let mut b = agent(B, &[A, C], &[], None);
    let mut message = Vec::new();
    let limits = Limits { bits: BitRate::mbps(1), packets: None };
    let allowances = [A, B, C].map(|host| Allowance { receiver: vm(host), whom: For::Each, limits });
    Sealer::new(&KEY, A, 5_000, 2).seal(B, &allowances, &mut message);
    assert_eq!(b.handle_message(&message, at(1)), Ok(2));
    assert_eq!((b.poll_order(), b.poll_order()), (Some(0), None));
    assert_eq!(b.presence(0, at(1)), Presence::Heard);
}

/// A host asks for flows to its own VMs only; what is forged, repeated or for another host changes nothing, and notices that
/// are not taken are bounded.
#[test]
fn a_host_asks_for_flows_to_its_own_vms_only() {
    let notice = |of: HostId| Notice {
        receiver: vm(of),
        flow: [7; 40],
        sender: [6; 6],
        terms: Terms::new(BitRate::mbps(850)),
    };
    let (mut gateway, mut sender) = (agent(A, &[B], &[], None), agent(B, &[A], &[], None));
    gateway.notify(0, &[notice(A), notice(B)]);
    let message = gateway.poll_message(0).expect("sealed at once");
    assert_eq!(sender.handle_message(&message, at(1)), Ok(1), "one is for a VM that is not the gateway's");
    assert_eq!(sender.poll_notice(), Some((A, notice(A))));
    assert_eq!(sender.poll_notice(), None);
    assert_eq!(sender.handle_message(&message, at(2)), Err(Rejected::Stale));
    let mut forged = message.clone();
    *forged.last_mut().expect("a tag") ^= 1;
    assert_eq!(sender.handle_message(&forged, at(2)), Err(Rejected::Forged));
    assert_eq!(sender.poll_notice(), None);
    for _ in 0..100 {
        gateway.notify(0, &[notice(A); 16]);
        let message = gateway.poll_message(0).expect("sealed at once");
        assert_eq!(sender.handle_message(&message, at(3)), Ok(0));
    }
    assert_eq!(std::iter::from_fn(|| sender.poll_notice()).count(), 1_024);
}

#[test]
fn hosts_that_are_not_heard_have_one_senders_part() {
    let mut a = agent(A, &[B], &[], None);
    let admitted = |a: &mut Agent, now: Nanos| {
        (0..200).filter(|_| a.handle_packet(Some(0), Some(0), 1_500, false, now)).count()
    };
    a.handle_epoch(at(1), at(1), |_| bytes(0));
    assert_eq!(admitted(&mut a, at(1)), 200, "it has time to be heard");
    assert_eq!(admitted(&mut a, at(302)), 84, "1 Gb/s: 125 kB in a burst of a millisecond");
    assert_eq!(a.presence(0, at(302)), Presence::Silent);
    let sign = {
        let mut b = agent(B, &[A], &[], None);
        b.handle_sent(0, at(302));
        b.handle_epoch(at(302), at(302), |_| bytes(0));
        b.poll_message(0).expect("a sign of life")
    };
    assert_eq!(a.handle_message(&sign, at(302)), Ok(0));
    assert_eq!(admitted(&mut a, at(303)), 200);
}

/// B and C have a load balancer each; B divides.
#[test]
fn load_balancers_are_one_sender_and_one_host_divides() {
    let mut a = agent(A, &[B, C], &[B, C], Some(B));
    let mut b = agent(B, &[A, C], &[B, C], Some(B));
    let mut c = agent(C, &[A, B], &[B, C], Some(B));
    a.handle_packet(Some(0), Some(0), 1_500, false, at(0));
    a.handle_epoch(at(1), at(1), |_| bytes(250_000));
    assert!(a.poll_message(1).is_none(), "only the host that divides is told");
    assert_eq!(b.handle_message(&a.poll_message(0).expect("told"), at(1)), Ok(0));
    assert_eq!(bits(&b), None, "until its epoch ends");
    b.handle_epoch(at(2), at(2), |_| bytes(0));
    assert_eq!(c.handle_message(&b.poll_message(1).expect("told"), at(2)), Ok(0));
    // The group weighs two ordinary senders, so that each has what one may send.
    assert_eq!([bits(&b), bits(&c)], [Some(500_000_000); 2]);
}

/// The bytes that came in an epoch, and the delays after which its message arrives.
type Step = (u64, Vec<u64>);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Without a delay the message is lost; with two it comes twice.
    proptest::collection::vec((0_u64..400_000, proptest::collection::vec(0_u64..60, 0..3)), 1..150)
}

/// By millisecond: the sender's limit, and of the limits that have arrived the one that was sealed last, with its arrival.
#[expect(clippy::type_complexity, reason = "a tuple that is only compared")]
fn drive(steps: &[Step]) -> Vec<(Option<u64>, Option<(u64, u64)>)> {
    let (mut a, mut b) = (agent(A, &[B], &[], None), agent(B, &[A], &[], None));
    let mut under_way: BTreeMap<(u64, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let (mut posted, mut sealed, mut newest, mut log) = (0, Vec::new(), None, Vec::new());
    for (ms, (received, delays)) in (1..).zip(steps) {
        if let Some(message) = epoch(&mut a, *received, at(ms)) {
            for delay in delays {
                under_way.insert((ms + delay, posted), (sealed.len(), message.clone()));
                posted += 1;
            }
            sealed.push(a.receivers().limits(0).bits.get());
        }
        while let Some(first) = under_way.first_entry().filter(|first| first.key().0 <= ms) {
            let (number, message) = first.remove();
            let is_newer = newest.is_none_or(|(known, _)| number > known);
            assert_eq!(b.handle_message(&message, at(ms)).is_ok(), is_newer);
            if is_newer {
                newest = Some((number, ms));
            }
        }
        b.handle_epoch(at(ms), at(ms), |_| bytes(0));
        while b.poll_order().is_some() {}
        log.push((bits(&b), newest.map(|(number, ms)| (sealed[number], ms))));
    }
    log
}

proptest! {
    /// Of all limits that have arrived, the one that was sealed last holds until it lapses, and no other does; the same inputs give
    /// the same outputs.
    #[test]
    fn the_newest_limit_holds_until_it_lapses(steps in steps()) {
        let log = drive(&steps);
        for (ms, (held, newest)) in (1..).zip(&log) {
            let holds = newest.filter(|(_, arrived)| ms - arrived < LAPSE.as_u64() / 1_000_000);
            prop_assert_eq!(*held, holds.map(|(bits, _)| bits), "after {} ms", ms);
        }
        prop_assert_eq!(log, drive(&steps));
    }
}
