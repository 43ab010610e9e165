//! Promises judged by hand-made snapshots.

use std::sync::Arc;

use plimsoll_units::Nanos;
use proptest::prelude::*;

use super::*;

const POLICY: &str = "{uplink: {port: memory, rate: 100Mbps}, tenants: {
    shop: {port: memory, min: 40Mbps, max: 80Mbps, delay: {p99: 2ms}},
    batch: {port: memory, min: 10Mbps, max: 60Mbps}}}";

/// Two tenants and a clock; each snapshot is a second after the last.
struct World {
    ledger: Ledger,
    now: Watched,
}

impl World {
    fn new() -> Self {
        let checked = plimsoll_policy::check_str("slo.yaml", POLICY).expect("a policy");
        let lane = |name: &str, targets| LaneWatched {
            name: name.to_owned(),
            parts: Some(Box::new(Parts::new(targets))),
            ..LaneWatched::default()
        };
        let now = Watched {
            at: Nanos::ZERO,
            program: Arc::new(checked.program),
            rates: Arc::default(),
            lanes: vec![lane("shop", 1), lane("batch", 0)],
            uplink: Default::default(),
            pulse: Pulse { no_core: Some(Span::ZERO), ..Pulse::default() },
        };
        let mut world = Self { ledger: Ledger::default(), now };
        world.ledger.note(world.now.clone());
        world
    }

    fn lane(&mut self, name: &str) -> &mut LaneWatched {
        self.now.lanes.iter_mut().find(|lane| lane.name == name).expect("a tenant")
    }

    fn parts(&mut self, name: &str) -> &mut Parts {
        self.lane(name).parts.as_mut().expect("put there after each look")
    }

    /// In this second the tenant offers `offered` Mb/s and sends `sent`.
    fn sends(&mut self, name: &str, offered: u64, sent: u64) {
        self.lane(name).offered_bytes += offered * 125_000;
        self.parts(name).sent_bytes += sent * 125_000;
        self.now.uplink.sent_bytes += sent * 125_000;
    }

    /// `packets` packets wait `micros` each on egress.
    fn waits(&mut self, name: &str, packets: u64, micros: u64) {
        let half = self.ledger.promised.promises[name].delay.first().map(|target| target.each_way);
        let parts = self.parts(name);
        parts.egress.record_n(micros * 1_000, packets).expect("in range");
        if half.is_some_and(|half| micros as f64 > half) {
            parts.late[0][0] += packets;
        }
    }

    fn loses(&mut self, name: &str, reason: &'static str, count: u64) {
        *self.lane(name).losses.entry(reason).or_default() += count;
    }

    fn look(&mut self) -> SloReport {
        self.now.at += Span::secs(1);
        self.ledger.note(self.now.clone());
        for (lane, targets) in self.now.lanes.iter_mut().zip([1, 0]) {
            lane.parts = Some(Box::new(Parts::new(targets)));
        }
        self.now.pulse.late = Span::ZERO;
        self.ledger.report(Span::secs(1), Span::ZERO)
    }
}

fn told(report: &SloReport, name: &str) -> (Verdict, Option<Cause>) {
    let whole = &report.tenants[name].whole;
    (whole.verdict, whole.breaches.first().map(|breach| breach.cause))
}

#[test]
fn seconds_are_counted_by_their_judgement() {
    let mut world = World::new();
    world.look();
    world.sends("shop", 40, 20);
    world.waits("shop", 10, 5_000);
    world.look();
    let seconds = world.ledger.promise_seconds();
    let broken = PromiseSeconds { idle: 1, broken: 1, ..PromiseSeconds::default() };
    assert_eq!((seconds["shop"], seconds["batch"].idle), (broken, 2));
}

#[test]
fn a_tenant_that_offers_more_than_its_max_is_blamed_and_its_neighbours_promise_holds() {
    let mut world = World::new();
    world.sends("batch", 90, 55);
    world.loses("batch", "flow_full", 3_000);
    world.sends("shop", 40, 40);
    world.waits("shop", 1_000, 300);
    let report = world.look();
    assert_eq!(told(&report, "batch"), (Verdict::Beyond, Some(Cause::Itself)));
    assert_eq!(told(&report, "shop"), (Verdict::Held, None));
    assert!(report.tenants["batch"].whole.breaches[0].why.contains("90Mbps of at most 60Mbps"));
}

#[test]
fn a_second_is_judged_by_the_policy_that_was_in_force_then() {
    let mut world = World::new();
    for _ in 0..3 {
        world.sends("shop", 80, 80);
        world.look();
    }
    let lower = POLICY.replace("min: 40Mbps, max: 80Mbps", "min: 10Mbps, max: 20Mbps");
    let checked = plimsoll_policy::check_str("slo.yaml", &lower).expect("a policy");
    world.now.program = Arc::new(checked.program);
    world.sends("shop", 80, 45);
    world.look();
    for _ in 0..2 {
        world.sends("shop", 20, 20);
        world.look();
    }
    let report = |world: &World| world.ledger.report(Span::secs(60), Span::ZERO);
    let shop = &report(&world).tenants["shop"];
    assert_eq!((shop.kept, shop.seen, shop.promise.out_max), (6, 6, Some(20_000_000)));
    assert_eq!((shop.whole.verdict, &shop.whole.breaches[..]), (Verdict::Held, &[][..]));
    // (3 x 80 + 45 + 2 x 20) / 6.
    assert!((shop.whole.sent - 325e6 / 6.0).abs() < 1.0 && shop.whole.length == 6.0, "{shop:?}");

    world.sends("shop", 80, 80);
    world.look();
    let shop = &report(&world).tenants["shop"];
    assert_eq!((shop.kept, shop.seen), (6, 7), "the new promise holds from its second on");
    assert_eq!((shop.whole.verdict, shop.whole.breaches[0].cause), (Verdict::Broken, Cause::Engine));
    // By the minute as well.
    let by_minute = world.ledger.report(Span::secs(3_600), Span::ZERO);
    assert_eq!(by_minute.tenants["shop"].whole.breaches.len(), 1);

    let mut raised = World::new();
    raised.sends("shop", 30, 30);
    raised.look();
    let higher = POLICY.replace("min: 40Mbps, max: 80Mbps", "min: 70Mbps, max: 90Mbps");
    raised.now.program = Arc::new(plimsoll_policy::check_str("slo.yaml", &higher).expect("a policy").program);
    raised.sends("shop", 75, 60);
    raised.parts("shop").waited = Span::millis(1);
    assert_eq!(told(&raised.look(), "shop"), (Verdict::Held, None), "40 were promised for part of it");
    raised.sends("shop", 75, 60);
    raised.parts("shop").waited = Span::millis(1);
    assert_eq!(told(&raised.look(), "shop").0, Verdict::Broken);
}

/// A rate of 80 Mb/s is a promise of 80, and of 20 from the second on in which it is changed to 20.
#[test]
fn a_second_is_judged_by_the_rates_that_were_in_force_then() {
    let text = POLICY.replace("min: 40Mbps, max: 80Mbps, ", "").replace("min: 10Mbps, max: 60Mbps", "")
        + ", policy: {root: {rate_share: {shop: 80Mbps, batch: 20Mbps}}}}";
    let text = text.replace("}}, policy", "}, policy");
    let checked = plimsoll_policy::check_str("slo.yaml", &text).expect("a policy");
    let mut world = World::new();
    world.now.program = Arc::new(checked.program);
    let offers = |world: &mut World, sent| {
        world.sends("shop", 80, sent);
        world.parts("shop").waited = Span::millis(1);
        told(&world.look(), "shop").0
    };
    offers(&mut world, 80);
    assert_eq!(offers(&mut world, 80), Verdict::Held);
    let shop = world.now.program.find("shop").expect("a class");
    let rate = |mbps| Arc::new(BTreeMap::from([(shop, BitRate::mbps(mbps))]));
    world.now.rates = rate(20);
    assert_eq!(offers(&mut world, 45), Verdict::Held, "80 for a part of it");
    assert_eq!(offers(&mut world, 20), Verdict::Held);
    assert_eq!(offers(&mut world, 10), Verdict::Broken, "20 are promised");
    assert_eq!(offers(&mut world, 30), Verdict::Broken, "and no more is let through");
    let promise = &world.ledger.report(Span::secs(1), Span::ZERO).tenants["shop"].promise;
    assert_eq!((promise.out_min, promise.out_max), (Some(20_000_000), Some(20_000_000)));
    world.now.rates = rate(60);
    offers(&mut world, 30);
    assert_eq!(offers(&mut world, 20), Verdict::Broken, "changed again");
}

#[test]
fn late_packets_break_a_promise_only_beyond_its_percentile() {
    let mut world = World::new();
    world.sends("shop", 10, 10);
    world.waits("shop", 990, 300);
    world.waits("shop", 10, 1_500);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Held, None), "one in a hundred may");
    world.sends("shop", 10, 10);
    world.waits("shop", 989, 300);
    world.waits("shop", 11, 1_500);
    world.now.pulse.no_core = Some(Span::millis(30));
    let report = world.look();
    assert_eq!(told(&report, "shop"), (Verdict::Broken, Some(Cause::NoCore)));
    assert!(report.tenants["shop"].whole.breaches[0].why.contains("30ms"), "{report:?}");
}

#[test]
fn what_is_measured_names_the_cause() {
    let late = |world: &mut World| {
        world.sends("shop", 10, 10);
        world.waits("shop", 100, 1_500);
    };
    let mut world = World::new();
    late(&mut world);
    world.now.pulse.late = Span::micros(1_400);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Broken, Some(Cause::LateWakeUp)));
    late(&mut world);
    world.sends("batch", 85, 85);
    assert_eq!(told(&world.look(), "shop").1, Some(Cause::NeighbourLink));
    late(&mut world);
    world.now.uplink.away = true;
    assert_eq!(told(&world.look(), "shop").1, Some(Cause::LinkDown));
    world.now.uplink.away = false;
    world.look();
    late(&mut world);
    world.now.pulse.cpu += Span::millis(950);
    world.lane("batch").inward.cpu += Span::millis(800);
    let report = world.look();
    assert_eq!(told(&report, "shop").1, Some(Cause::NeighbourCpu));
    assert_eq!(report.tenants["shop"].whole.breaches[0].who.as_deref(), Some("batch"));
    late(&mut world);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Broken, Some(Cause::Unknown)));
}

#[test]
fn a_minimum_is_missed_only_by_a_tenant_that_wants_it() {
    let mut world = World::new();
    world.sends("shop", 20, 20);
    assert_eq!(told(&world.look(), "shop").0, Verdict::Held, "it asked for no more");
    world.sends("shop", 45, 20);
    assert_eq!(told(&world.look(), "shop").0, Verdict::Broken);
    assert_eq!(told(&world.look(), "shop").0, Verdict::Idle);
    // Behind a limit of its own it waits as the policy says.
    world.sends("shop", 45, 20);
    world.parts("shop").shaped = Span::secs(2);
    assert_eq!(told(&world.look(), "shop").0, Verdict::Held);
}

#[test]
fn a_tenant_that_does_not_read_causes_its_own_loss() {
    let mut world = World::new();
    world.parts("shop").unread = 5;
    world.lane("shop").inward.queue_full = 7;
    let report = world.look();
    assert_eq!(told(&report, "shop"), (Verdict::Beyond, Some(Cause::NotReading)));
    assert_eq!(report.tenants["shop"].whole.lost_in, 12);
    world.lane("batch").inward.bytes += 80 * 125_000;
    world.lane("batch").inward.queue_full += 100;
    assert_eq!(told(&world.look(), "batch"), (Verdict::Beyond, Some(Cause::ItsSenders)));
}

/// After more than an hour there are no more windows than allowed, and one bad second is in its minute.
#[test]
fn windows_are_bounded_and_add_up() {
    let mut world = World::new();
    for second in 0..3_700 {
        world.sends("shop", 10, 10);
        world.waits("shop", 100, if second == 3_650 { 1_500 } else { 300 });
        world.look();
    }
    assert_eq!((world.ledger.seconds.len(), world.ledger.minutes.len()), (SECONDS, MINUTES));
    let minute = world.ledger.report(Span::secs(60), Span::ZERO);
    assert_eq!((minute.span.round(), minute.by_minute), (60.0, false));
    let shop = &minute.tenants["shop"];
    assert_eq!((shop.kept, shop.seen, shop.whole.verdict), (59, 60, Verdict::Broken));
    assert!((shop.whole.sent - 10e6).abs() < 1.0, "{}", shop.whole.sent);
    let hour = world.ledger.report(Span::secs(3_600), Span::ZERO);
    let shop = &hour.tenants["shop"];
    assert_eq!((hour.by_minute, shop.seen, shop.kept), (true, 60, 59));
    assert_eq!(shop.whole.verdict, Verdict::Held, "100 of 360,000 packets are less than one in a hundred");
}

/// A report from a moment on covers nothing before it, and as much after it as is kept.
#[test]
fn what_was_before_the_moment_asked_for_is_left_out() {
    let mut world = World::new();
    for second in 0..250 {
        world.sends("shop", 10, 10);
        world.waits("shop", 100, if second < 70 { 1_500 } else { 300 });
        world.look();
    }
    let hour = Span::secs(3_600);
    let all = world.ledger.report(hour, Span::ZERO);
    assert_eq!((all.span.round(), all.tenants["shop"].whole.verdict), (250.0, Verdict::Broken));
    // The minute that began at 60 s is no longer known by the second: what is judged begins at 120 s.
    let late = world.ledger.report(hour, Span::secs(70));
    assert_eq!((late.span.round(), late.by_minute), (130.0, true));
    assert_eq!((late.tenants["shop"].whole.verdict, late.tenants["shop"].seen), (Verdict::Held, 3));
    // Of the last minute's 49 seconds only ten are a minute of their own.
    let last = world.ledger.report(hour, Span::secs(201));
    assert_eq!((last.span.round(), last.by_minute), (49.0, false));
    assert_eq!(world.ledger.report(Span::secs(5), Span::secs(201)).tenants["shop"].seen, 5);
    assert!(world.ledger.report(hour, Span::secs(250)).tenants.is_empty(), "nothing has been since");
}

#[test]
fn a_report_passes_through_json() {
    let mut world = World::new();
    world.sends("batch", 90, 55);
    world.loses("batch", "flow_full", 3_000);
    let report = world.look();
    let text = serde_json::to_string(&report).expect("plain data");
    assert_eq!(serde_json::from_str::<SloReport>(&text).expect("the same"), report);
}

proptest! {
    /// The bytes sent in the whole report are the sum of those in its windows.
    #[test]
    fn the_whole_is_the_sum_of_its_windows(seconds in proptest::collection::vec((0_u64..90, 0_u64..90, 0_u64..50, 0_u64..3_000), 1..80)) {
        let mut world = World::new();
        for &(offered, sent, packets, micros) in &seconds {
            world.sends("shop", offered.max(sent), sent);
            if packets > 0 {
                world.waits("shop", packets, micros);
            }
            world.look();
        }
        let report = world.ledger.report(Span::secs(60), Span::ZERO);
        let shop = &report.tenants["shop"];
        let kept = &seconds[seconds.len().saturating_sub(60)..];
        let sent: u64 = kept.iter().map(|second| second.1).sum();
        prop_assert_eq!(shop.windows.len(), kept.len());
        prop_assert!((shop.whole.sent * kept.len() as f64 - sent as f64 * 1e6).abs() < 1.0);
        prop_assert_eq!(shop.kept as usize, shop.windows.iter().filter(|window| window.verdict != Verdict::Broken).count());
    }
}

#[test]
fn what_a_receiver_refuses_is_its_senders_own_and_what_the_fabric_loses_is_not() {
    let mut world = World::new();
    world.sends("shop", 40, 10);
    world.loses("shop", "flow_full", 500);
    world.parts("shop").shaped = Span::secs(2);
    world.lane("shop").pressed = [("c".to_owned(), 400), ("d".to_owned(), 3)].into();
    let report = world.look();
    assert_eq!(told(&report, "shop"), (Verdict::Beyond, Some(Cause::Receiver)));
    assert_eq!(report.tenants["shop"].whole.breaches[0].who.as_deref(), Some("c"));
    world.sends("shop", 10, 10);
    world.lane("shop").strayed += 3;
    assert_eq!(told(&world.look(), "shop"), (Verdict::Broken, Some(Cause::Fabric)));
    world.lane("shop").inward.over_max += 9;
    assert_eq!(told(&world.look(), "shop"), (Verdict::Beyond, Some(Cause::ItsSenders)));
}

/// The flow of a tenant with a promise of 40 Mb/s is held to 20 Mb/s. Its TCP then offers no more than that.
#[test]
fn a_promise_that_backpressure_keeps_from_holding_is_broken_by_it() {
    let mut world = World::new();
    let mut look = |offered, sent, waited: Span, by: &str, lost| {
        world.sends("shop", offered, sent);
        world.parts("shop").pressed(waited, 1);
        *world.lane("shop").pressed.entry(by.to_owned()).or_default() += 400;
        if lost > 0 {
            world.loses("shop", "flow_over_rate", lost);
        }
        let report = world.look();
        let breaches = &report.tenants["shop"].whole.breaches;
        (told(&report, "shop"), breaches.first().and_then(|breach| breach.who.clone()))
    };
    let here = "backpressure of this host";
    let broken = ((Verdict::Broken, Some(Cause::Backpressure)), Some(here.to_owned()));
    assert_eq!(look(20, 20, Span::millis(1_500), here, 0), broken, "a packet waited at any time");
    assert_eq!(look(60, 20, Span::ZERO, here, 9), broken, "what was beyond the rate was dropped");
    let there = "x at c (backpressure)";
    let by_another = ((Verdict::Broken, Some(Cause::Backpressure)), Some(there.to_owned()));
    assert_eq!(look(20, 20, Span::secs(3), there, 0), by_another);
    assert_eq!(look(20, 20, Span::millis(200), here, 0).0, (Verdict::Held, None), "it had no more to send");
    assert_eq!(look(41, 41, Span::secs(3), here, 0).0, (Verdict::Held, None), "it has its minimum");
}

/// Without a core for 3 % of a second, about 3 % of the packets may be lost for that, not half of them.
#[test]
fn a_short_stall_does_not_explain_what_a_receiver_refused() {
    let mut world = World::new();
    let mut look = |left, lost, shaped| {
        world.sends("shop", 50, 48);
        world.waits("shop", left, 10);
        world.parts("shop").shaped = Span::secs(shaped);
        world.loses("shop", "flow_full", lost);
        *world.lane("shop").pressed.entry("c".to_owned()).or_default() += 400;
        *world.now.pulse.no_core.as_mut().expect("known") += Span::millis(30);
        told(&world.look(), "shop")
    };
    assert_eq!(look(500, 500, 2), (Verdict::Beyond, Some(Cause::Receiver)));
    assert_eq!(look(970, 30, 2), (Verdict::Broken, Some(Cause::NoCore)));
    assert_eq!(look(500, 500, 0), (Verdict::Broken, Some(Cause::NoCore)), "it waited for no limit");
}

/// Frames within the maximum that overran the burst only because the engine was away are not the senders' fault; frames
/// beyond the maximum are, whatever else went wrong.
#[test]
fn a_burst_that_the_host_itself_made_is_not_laid_to_the_senders() {
    let mut world = World::new();
    let came = |world: &mut World, megabits: u64| {
        let shop = &mut world.lane("shop").inward;
        (shop.bytes, shop.over_max) = (shop.bytes + megabits * 125_000, shop.over_max + 40);
    };
    came(&mut world, 70);
    world.now.pulse.late = Span::millis(300);
    let report = world.look();
    assert_eq!(told(&report, "shop"), (Verdict::Broken, Some(Cause::LateWakeUp)));
    assert_eq!(report.tenants["shop"].whole.breaches[0].detail, "ingress_over_max 40");
    came(&mut world, 70);
    *world.now.pulse.no_core.as_mut().expect("known") += Span::millis(200);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Broken, Some(Cause::NoCore)));
    // 80 Mb/s may come, for 1.3 seconds that is 104.
    came(&mut world, 110);
    world.now.pulse.late = Span::millis(300);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Beyond, Some(Cause::ItsSenders)));
    // The burst admits 50 ms of traffic at once.
    came(&mut world, 70);
    world.now.pulse.late = Span::millis(30);
    assert_eq!(told(&world.look(), "shop"), (Verdict::Beyond, Some(Cause::ItsSenders)));
    let whole = world.ledger.report(Span::secs(4), Span::ZERO).tenants["shop"].whole.clone();
    let of = |cause| {
        whole.breaches.iter().find(|breach| breach.cause == cause).map(|breach| breach.detail.as_str())
    };
    assert_eq!(whole.verdict, Verdict::Broken);
    assert_eq!(of(Cause::LateWakeUp).or(of(Cause::NoCore)), Some("ingress_over_max 80"));
    assert_eq!(of(Cause::ItsSenders), Some("ingress_over_max 80"));
}

/// A run of `seconds` seconds, in the third of which packets are late.
fn run(seconds: u64, mut looks: Looks) -> SloReport {
    let mut world = World::new();
    looks.note(world.now.clone());
    for second in 0..seconds {
        world.sends("shop", 10, 10);
        world.waits("shop", 100, if second == 2 { 1_500 } else { 300 });
        world.now.at += Span::secs(1);
        looks.note(world.now.clone());
        for (lane, targets) in world.now.lanes.iter_mut().zip([1, 0]) {
            lane.parts = Some(Box::new(Parts::new(targets)));
        }
    }
    looks.report()
}

/// A run is judged by the part of it that is asked for.
#[test]
fn a_run_is_judged_by_its_part() {
    let judged = |from, to| run(10, Looks::of(Span::secs(from), Span::secs(to)));
    let verdict = |from, to| judged(from, to).tenants["shop"].whole.verdict;
    assert_eq!(
        (verdict(0, 10), verdict(3, 10), verdict(2, 3)),
        (Verdict::Broken, Verdict::Held, Verdict::Broken)
    );
    assert_eq!(judged(3, 10).span.round() as u32, 7);
}

/// In a long run each entry joins several windows, and no traffic is lost; the warm-up is still left out.
#[test]
fn the_windows_of_a_long_run_are_bounded_and_add_up() {
    let from = Span::secs(1);
    for (seconds, each) in [(4_097, 1), (4_098, 2), (20_001, 8)] {
        let report = run(seconds, Looks::of(from, Span::secs(seconds)));
        let shop = &report.tenants["shop"];
        assert_eq!(report.span.round() as u64, seconds - 1);
        assert_eq!(u64::from(shop.seen), (seconds - 1).div_ceil(each), "{seconds}");
        assert_eq!(shop.windows[0].from.round() as u64, 1);
        assert_eq!((shop.seen - shop.kept, shop.windows[0].length.round() as u64), (1, each));
        assert!((shop.whole.sent - 10e6).abs() < 1.0 && shop.whole.egress.count == 100 * (seconds - 1));
    }
}
