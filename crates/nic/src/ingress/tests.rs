use super::*;
use proptest::prelude::*;

fn station(weight: u32, slots: u32) -> Station {
    Station { weight, slots, ceiling: None }
}

fn packet(addr: u64, at: Nanos) -> Arrival {
    Arrival { addr, len: 100, at, ecn: Ecn::NotEct }
}

/// Keeps every tenant's queue full and serves packets of the tenants' costs until `end`; CPU time each has had.
fn backlogged(weights: &[u32], costs: &[u64], end: Span) -> Vec<u64> {
    let stations: Vec<Station> = weights.iter().map(|&weight| station(weight, 4)).collect();
    let mut ingress = Ingress::new(&stations);
    let mut now = Nanos::ZERO;
    while now < Nanos::ZERO + end {
        for tenant in 0..weights.len() as u32 {
            while ingress.offer(tenant, packet(0, now)).is_ok() {}
        }
        let tenant = ingress.next(now).expect("every tenant waits");
        ingress.take(tenant, now);
        let cost = Span::ns(costs[tenant as usize]);
        now += cost;
        ingress.charge(tenant, cost, now);
    }
    (0..weights.len() as u32).map(|tenant| ingress.seen(tenant).cpu.as_u64()).collect()
}

/// PicNIC §5.2: a million small packets a second may cost more than 200,000 large ones; time is what is shared.
#[test]
fn time_is_shared_by_weight_whatever_packets_cost() {
    let had = backlogged(&[1, 1, 2], &[200, 2_000, 500], Span::millis(400));
    let part = |tenant: usize| had[tenant] * 1_000 / had.iter().sum::<u64>();
    assert!((248..=252).contains(&part(0)) && (248..=252).contains(&part(1)), "{had:?}");
    assert!((497..=503).contains(&part(2)), "{had:?}");
}

#[test]
fn a_flood_fills_its_own_queue_and_is_passed() {
    let mut ingress = Ingress::new(&[station(1, 8), station(1, 100)]);
    let mut now = Nanos::ZERO;
    let (calm, flood) = (0, 1);
    let mut longest = Span::ZERO;
    for round in 0..10_000_u64 {
        for addr in 0..3 {
            ingress.offer(flood, packet(addr, now)).ok();
        }
        if round % 5 == 0 {
            ingress.offer(calm, packet(round, now)).expect("its queue is its own");
        }
        let tenant = ingress.next(now).expect("the flood waits");
        let (arrival, _) = ingress.take(tenant, now).expect("next has something");
        if tenant == calm {
            longest = longest.max(now.since(arrival.at));
        }
        now += Span::ns(400);
        ingress.charge(tenant, Span::ns(400), now);
    }
    assert_eq!(ingress.seen(calm).drops, 0);
    assert!(ingress.seen(flood).drops > 10_000);
    assert!(longest <= Span::ns(400), "{longest}");
    assert!(ingress.seen(flood).mean_wait() > Some(Span::micros(40)), "a full queue's wait is the flood's");
}

/// The average alone would give it the CPU until it had caught up with the other's: half a millisecond and more.
#[test]
fn silence_earns_no_more_than_the_credit() {
    let mut ingress = Ingress::new(&[station(1, 1_000), station(1, 1_000)]);
    let mut now = Nanos::ZERO;
    let (steady, late) = (0, 1);
    let mut waited = Span::ZERO;
    for round in 0..40_000 {
        if round >= 20_000 {
            while ingress.offer(late, packet(0, now)).is_ok() {}
        }
        if round % 3 == 0 {
            ingress.offer(steady, packet(0, now)).expect("it needs a third of the time");
        }
        if let Some(tenant) = ingress.next(now) {
            let (arrival, _) = ingress.take(tenant, now).expect("next has something");
            if tenant == steady {
                waited = waited.max(now.since(arrival.at));
            }
            ingress.charge(tenant, Span::ns(300), now + Span::ns(300));
        }
        now += Span::ns(300);
    }
    assert!(waited <= Span::micros(11), "{waited}");
}

#[test]
fn an_epoch_is_what_came_since_the_last() {
    let mut ingress = Ingress::new(&[station(1, 2)]);
    for addr in 0..3 {
        ingress.offer(0, packet(addr, Nanos::ZERO)).ok();
    }
    ingress.take(0, Nanos::ZERO + Span::micros(3));
    let first = ingress.take_epoch(0);
    assert_eq!((first.packets, first.drops, first.served, first.peak), (3, 1, 1, 2));
    assert_eq!((first.mean_wait(), first.longest), (Some(Span::micros(3)), Span::micros(3)));
    let second = ingress.take_epoch(0);
    assert_eq!((second.packets, second.peak, second.mean_wait()), (0, 1, None));
    assert_eq!(ingress.seen(0).packets, 3);
}

/// Three packets are taken each microsecond while packets wait, for two microseconds of an epoch of ten.
/// Also of a tenant that rests as it has had its maximum.
#[test]
fn what_another_thread_takes_over_counts_once() {
    let ceiling = Ceiling { burst: Bytes::new(150), ..CEILING };
    let mut ingress = Ingress::new(&[station(1, 8), Station { ceiling: Some(ceiling), ..station(1, 8) }]);
    let now = Nanos::ZERO + Span::millis(1);
    for tenant in [0, 1] {
        (0..4).for_each(|addr| ingress.offer(tenant, packet(addr, now)).expect("room"));
    }
    while let Some(tenant) = ingress.next(now) {
        ingress.take(tenant, now).expect("next has something");
        ingress.charge(tenant, Span::ns(1), now);
    }
    let served = ingress.seen(1).served;
    assert!((1..4).contains(&served), "{served}");
    let waiting = ingress.take_all(1);
    let addresses: Vec<u64> = waiting.iter().map(|arrival| arrival.addr).collect();
    assert_eq!(addresses, (served..4).collect::<Vec<_>>());
    assert_eq!((ingress.held(), ingress.next(now + Span::secs(1))), (0, None));
    // The other thread's.
    let mut other = Ingress::new(&[station(1, 8), Station { ceiling: Some(ceiling), ..station(1, 8) }]);
    for arrival in waiting {
        other.offer(1, arrival).expect("room");
        other.counted_elsewhere(1, arrival.len);
    }
    while let Some(tenant) = other.next(now + Span::secs(1)) {
        other.take(tenant, now + Span::secs(1)).expect("next has something");
        other.charge(tenant, Span::ns(1), now);
    }
    let (here, there) = (ingress.seen(1), other.seen(1));
    assert_eq!((here.packets, there.packets, here.bytes + there.bytes), (4, 0, 400));
    assert_eq!(here.served + there.served, 4);
    // It may come back.
    ingress.offer(1, packet(9, now)).expect("room");
    assert_eq!(ingress.next(now + Span::secs(1)), Some(1));
}

#[test]
fn the_service_rate_is_that_of_the_time_in_which_packets_wait() {
    let mut ingress = Ingress::new(&[station(1, 64)]);
    let at = |us| Nanos::ZERO + Span::micros(us);
    for us in 0..8 {
        ingress.offer(0, packet(us, at(us))).expect("it is empty");
        ingress.take(0, at(us)).expect("it came");
    }
    assert_eq!(ingress.seen(0).service_rate(), None, "no packet waited");
    (0..9).for_each(|addr| ingress.offer(0, packet(addr, at(8))).expect("there is room"));
    for us in 8..11 {
        (0..3).for_each(|_| _ = ingress.take(0, at(us)).expect("it waits"));
    }
    assert_eq!(ingress.take_epoch(0).service_rate(), PacketRate::new(3_000_000));
    assert_eq!(ingress.take_epoch(0).service_rate(), None);
}

#[test]
fn tenants_are_added_while_packets_wait() {
    let mut ingress = Ingress::new(&[station(1, 2)]);
    ingress.offer(0, packet(7, Nanos::ZERO)).expect("it is empty");
    ingress.set_stations(&[station(1, 1), station(3, 4)], Nanos::ZERO);
    assert!(ingress.offer(0, packet(8, Nanos::ZERO)).is_err(), "a slot less");
    ingress.offer(1, packet(9, Nanos::ZERO)).expect("it is new");
    let taken: Vec<u64> =
        take_all(&mut ingress, Nanos::ZERO).iter().map(|(_, arrival)| arrival.addr).collect();
    assert_eq!(taken, [7, 9]);
}

/// PN-E6's calibration: two million packets a second more than there is time for, and fetching leaves time to process.
#[test]
fn fetching_leaves_the_rest_of_the_time_to_processing() {
    for share in [200, 640, 900] {
        let mut drain = Drain::new(share);
        let (fetch, process) = (Span::ns(260), Span::ns(380));
        let (mut fetching, mut processing) = (0, 0);
        for _ in 0..100_000 {
            if drain.may() {
                drain.fetched(fetch);
                fetching += fetch.as_u64();
            } else {
                drain.processed(process);
                processing += process.as_u64();
            }
        }
        let part = fetching * 1_000 / (fetching + processing);
        assert!(part.abs_diff(u64::from(share)) <= 2, "{part} of {share}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u32),
    Serve,
    Charge(u32, u64),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_u32..5).prop_map(Step::Offer),
        4 => Just(Step::Serve),
        2 => (0_u32..5, any::<u64>()).prop_map(|(tenant, cost)| Step::Charge(tenant, cost)),
        1 => (0_u64..1 << 50).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Against plain queues, whatever is charged whenever: in order, nothing lost, and a tenant is next while any waits.
    #[test]
    fn keeps_every_packet_in_its_tenants_order(
        slots in proptest::collection::vec((1_u32..4, 0_u32..2_000_000), 5),
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let stations: Vec<Station> = slots.iter().map(|&(slots, weight)| station(weight, slots)).collect();
        let mut ingress = Ingress::new(&stations);
        let mut model = vec![VecDeque::new(); stations.len()];
        let mut now = Nanos::ZERO;
        for (addr, step) in (0..).zip(steps) {
            match step {
                Step::Offer(tenant) => {
                    let room = model[tenant as usize].len() < stations[tenant as usize].slots as usize;
                    prop_assert_eq!(ingress.offer(tenant, packet(addr, now)).is_ok(), room);
                    if room {
                        model[tenant as usize].push_back(addr);
                    }
                }
                Step::Serve => {
                    let next = ingress.next(now);
                    prop_assert_eq!(next.is_some(), model.iter().any(|queue| !queue.is_empty()));
                    if let Some(tenant) = next {
                        let taken = ingress.take(tenant, now).map(|(arrival, _)| arrival.addr);
                        prop_assert!(taken.is_some());
                        prop_assert_eq!(taken, model[tenant as usize].pop_front());
                    }
                }
                Step::Charge(tenant, cost) => ingress.charge(tenant, Span::ns(cost), now),
                Step::Wait(span) => now += Span::ns(span),
            }
            prop_assert_eq!(ingress.held() as usize, model.iter().map(VecDeque::len).sum::<usize>());
        }
    }

    /// Whatever the weights and costs, those that wait all the time get CPU by weight: within a credit and, for each of 30
    /// half-lives, a charge each.
    #[test]
    fn backlogged_tenants_share_by_weight(
        raw in proptest::collection::vec((1_u32..8, 50_u64..5_000), 2..6),
    ) {
        let (weights, costs): (Vec<u32>, Vec<u64>) = raw.into_iter().unzip();
        let had = backlogged(&weights, &costs, Span::millis(30));
        let normal = |tenant: usize| had[tenant] / u64::from(weights[tenant]);
        for a in 0..had.len() {
            for b in 0..had.len() {
                let slack = 30 * (costs[a] + costs[b]) + 10_000;
                prop_assert!(normal(a) <= normal(b) + slack, "{had:?} by {weights:?}");
            }
        }
    }
}

/// 8 Mb/s are a byte each microsecond; the burst is a thousand.
const CEILING: Ceiling = Ceiling {
    rate: match plimsoll_units::BitRate::new(8_000_000) {
        Some(rate) => rate,
        None => unreachable!(),
    },
    burst: Bytes::new(1_000),
};

/// Takes all that may be taken, one tenant after the other; what is to be dropped is left out.
fn take_all(ingress: &mut Ingress, now: Nanos) -> Vec<(u32, Arrival)> {
    let mut taken = Vec::new();
    while let Some(tenant) = ingress.next(now) {
        let (arrival, verdict) = ingress.take(tenant, now).expect("next has something");
        ingress.charge(tenant, Span::ns(100), now);
        if verdict != Verdict::Drop {
            taken.push((tenant, arrival));
        }
    }
    taken
}

/// A flow that fills the queue is told by marks where it understands them, and else by drops, and its packets' waits stay near the
/// target in the end.
#[test]
fn a_queue_behind_a_maximum_is_kept_short() {
    for ecn in [Ecn::NotEct, Ecn::Ect0] {
        let held = Station { ceiling: Some(CEILING), ..station(1, 256) };
        let mut ingress = Ingress::new(&[held]);
        // The sender keeps this number of packets on the way, one more after each that comes through without a word, and halves it
        // at each signal: TCP without its details.
        let (mut window, mut away, mut signals, mut longest) = (4.0_f64, 0_u32, 0, Span::ZERO);
        for micros in 0..4_000_000 {
            let now = Nanos::ZERO + Span::micros(micros);
            while f64::from(away) < window {
                ingress.offer(0, Arrival { ecn, ..packet(0, now) }).expect("the queue is longer");
                away += 1;
            }
            while ingress.next(now).is_some() {
                let (arrival, verdict) = ingress.take(0, now).expect("next has something");
                away -= 1;
                signals += u32::from(verdict != Verdict::Pass);
                window =
                    if verdict == Verdict::Pass { window + 1.0 / window } else { (window / 2.0).max(2.0) };
                assert!(verdict == Verdict::Pass || (verdict == Verdict::Mark) == (ecn == Ecn::Ect0));
                longest = if micros > 2_000_000 { longest.max(now.since(arrival.at)) } else { longest };
            }
        }
        let seen = ingress.seen(0);
        assert_eq!(seen.over_max, if ecn == Ecn::NotEct { u64::from(signals) } else { 0 });
        assert!(signals > 10 && longest < Span::millis(12), "{signals} {longest}");
        assert!(seen.served_bytes > 3_960_000, "{}", seen.served_bytes);
    }
}

#[test]
fn what_comes_beyond_what_a_tenant_may_receive_waits_and_no_other() {
    let held = Station { ceiling: Some(CEILING), ..station(1, 64) };
    let mut ingress = Ingress::new(&[held, station(1, 1)]);
    let (greedy, calm) = (0, 1);
    // Ten times its rate for a second, beside as much for a tenant without a maximum.
    let mut taken = [0, 0];
    for micros in (0..1_000_000).step_by(10) {
        let at = Nanos::ZERO + Span::micros(micros);
        let _ = ingress.offer(greedy, packet(0, at));
        ingress.offer(calm, packet(0, at)).expect("it has no maximum");
        take_all(&mut ingress, at).iter().for_each(|(tenant, _)| taken[*tenant as usize] += 1);
    }
    // 10,000 packets are the rate's, ten the burst's, and one is ahead.
    assert_eq!(taken, [10_010, 100_000]);
    let seen = ingress.seen(greedy);
    assert_eq!((seen.packets, seen.drops, seen.bytes), (100_000, 0, 10_000_000), "all that came is counted");
    assert_eq!(seen.packets - seen.over_max, 10_010 + 64, "a full queue is what its maximum has made");
    assert_eq!(ingress.seen(calm).over_max, 0);
    let last = Nanos::ZERO + Span::micros(999_990);
    assert!(ingress.next(last).is_none() && !ingress.is_ready(greedy));
    assert_eq!(ingress.due(), Some(Nanos::ZERO + Span::secs(1)));
    // A maximum that stays forgets nothing, and another one holds at once.
    ingress.set_stations(&[held, station(1, 1)], last);
    assert_eq!(take_all(&mut ingress, last), []);
    ingress.set_stations(&[station(1, 64), station(1, 1)], last);
    assert_eq!((take_all(&mut ingress, last).len(), ingress.due()), (64, None));
}

proptest! {
    /// Bytes taken in a run <= rate x elapsed + burst + a packet, whatever comes; what came is taken in its order or refused;
    /// a tenant that keeps to its rate waits for nothing; and while something waits, there is a moment when it may be taken.
    #[test]
    fn a_maximum_holds_and_spares_who_keeps_to_it(
        packets in proptest::collection::vec((0_u64..2_000_000, 60_u32..1_000), 1..200),
    ) {
        let held = Station { ceiling: Some(CEILING), ..station(1, 16) };
        let mut ingress = Ingress::new(&[held, held]);
        let (mut now, mut steady, mut bytes) = (Nanos::ZERO, Nanos::ZERO, 0_u64);
        let (mut order, mut accepted) = (Vec::new(), Vec::new());
        for (addr, (gap, len)) in (0..).zip(packets) {
            // All that becomes due meanwhile is taken at its moment.
            let until = now + Span::ns(gap);
            while let Some(due) = ingress.due().filter(|due| *due <= until) {
                now = now.max(due);
                for (tenant, arrival) in take_all(&mut ingress, now) {
                    prop_assert_eq!(tenant, 0);
                    bytes += u64::from(arrival.len);
                    order.push(arrival.addr);
                }
                prop_assert!(bytes <= now.as_u64() / 1_000 + 2_000, "{} at {:?}", bytes, now);
            }
            now = until;
            if ingress.offer(0, Arrival { addr, len, at: now, ecn: Ecn::NotEct }).is_ok() {
                accepted.push(addr);
            }
            if steady <= now {
                prop_assert_eq!(ingress.offer(1, Arrival { addr, len, at: now, ecn: Ecn::NotEct }), Ok(()));
                prop_assert!(ingress.is_ready(1));
                steady = now + Span::micros(u64::from(len));
            }
            for (tenant, arrival) in take_all(&mut ingress, now) {
                bytes += if tenant == 0 { u64::from(arrival.len) } else { 0 };
                order.extend((tenant == 0).then_some(arrival.addr));
            }
            prop_assert!(bytes <= now.as_u64() / 1_000 + 2_000, "{} at {:?}", bytes, now);
            prop_assert_eq!(ingress.held() > 0, ingress.due().is_some());
        }
        let mut accepted = accepted.into_iter();
        prop_assert!(order.iter().all(|addr| accepted.any(|accepted| accepted == *addr)), "in their order");
    }
}

#[test]
fn other_work_of_a_tenant_is_served_by_its_share_of_the_cpu() {
    let mut ingress = Ingress::new(&[station(1, 8), station(1, 8)]);
    let (program, plain) = (0, 1);
    let mut now = Nanos::ZERO;
    assert_eq!(ingress.next(now), None);
    ingress.set_work(program, true);
    assert_eq!((ingress.next(now), ingress.take(program, now)), (Some(program), None));
    let mut had = [Span::ZERO; 2];
    for addr in 0..20_000 {
        ingress.offer(plain, packet(addr, now)).ok();
        let tenant = ingress.next(now).expect("one of them");
        // A call of a program takes a hundred times as long as a packet.
        let cost = if tenant == program { Span::micros(50) } else { Span::ns(500) };
        if tenant == plain {
            assert!(ingress.take(plain, now).is_some());
        }
        now += cost;
        ingress.charge(tenant, cost, now);
        had[tenant as usize] += cost;
    }
    let part = had[0].as_u64() * 1_000 / (had[0].as_u64() + had[1].as_u64());
    assert!((450..=550).contains(&part), "{had:?}");
    ingress.set_work(program, false);
    while ingress.take(plain, now).is_some() {}
    assert_eq!(ingress.next(now), None);
}

proptest! {
    /// Whatever work a tenant has, its packets fare as they do without it, and it is next while it has some of either.
    #[test]
    fn work_changes_nothing_about_packets(
        steps in proptest::collection::vec((0_u8..4, 1_u64..20_000), 1..200),
        paced in any::<bool>(),
    ) {
        let with = Station { ceiling: paced.then_some(Ceiling { burst: Bytes::new(150), ..CEILING }), ..station(1, 8) };
        let (mut one, mut other) = (Ingress::new(&[with]), Ingress::new(&[with]));
        let mut now = Nanos::ZERO;
        for (addr, (step, after)) in (0..).zip(steps) {
            now += Span::ns(after);
            match step {
                0 | 1 => prop_assert_eq!(one.offer(0, packet(addr, now)), other.offer(0, packet(addr, now))),
                2 => one.set_work(0, addr % 2 == 0),
                _ => {
                    let (next, plain) = (one.next(now), other.next(now));
                    prop_assert_eq!(next.is_some(), plain.is_some() || one.has_work(0));
                    prop_assert_eq!(one.take(0, now), other.take(0, now));
                }
            }
            prop_assert_eq!((one.held(), one.due()), (other.held(), other.due()));
        }
    }
}
