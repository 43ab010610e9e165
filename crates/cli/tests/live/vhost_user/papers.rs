//! PicNIC's experiments at the sender, in a Linux guest with real virtio-net, NAPI and TCP small queues: PN-E1 (Figure 2) and
//! PN-E9 (Table 4).
//!
//! With the other tests runs one short pair of each, with wide margins: the guest's processor is emulated, and other
//! tests run beside it. The long forms hold the papers' criteria against medians, and print the rows of `docs/fidelity.md`:
//! `cargo test -p plimsoll-cli --test live -- vhost_user --ignored --nocapture --test-threads 1`.

use std::fmt::Write as _;
use std::fs;

use plimsoll_daemon::Stats;

use super::world::{Machine, World};
use crate::support::TRIES;

/// The results of the guest's TCP and pings to 10.9.0.9.
#[derive(Clone, Copy, Debug)]
struct Got {
    /// Bits a second.
    tcp: f64,
    /// Milliseconds that one in a hundred of the pings exceeds.
    ping: f64,
}

/// One way of completing descriptors, without and with datagrams to 10.9.0.8, which a limit holds to a two-hundredth of the line.
#[derive(Clone, Copy, Debug)]
struct Pair {
    alone: Got,
    beside: Got,
}

impl Pair {
    fn tcp(&self) -> f64 {
        self.beside.tcp / self.alone.tcp
    }

    fn ping(&self) -> f64 {
        self.beside.ping / self.alone.ping
    }
}

/// TCP, and pings to the same place all the while.
fn tcp_and_pings(world: &mut World, seconds: u32) -> Got {
    world.type_in(&format!("ping -i 0.02 -w {seconds} 10.9.0.9 >/tmp/pings &"));
    let tcp = world.tcp_from_guest(seconds);
    let said = world.ask("killall ping; wait; cat /tmp/pings");
    let times = said.split("time=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok());
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    assert!(times.len() > 20, "pings are answered: {said}");
    Got { tcp, ping: times[times.len() * 99 / 100] }
}

/// PN-E1 on a line of `line` Mbit/s, `pairs` times for each way, taking turns: with completions in any order, and in order.
/// The slow flow has a two-hundredth of the line.
fn slow_flow_beside_tcp(tag: &str, line: u32, pairs: u32, seconds: u32) -> Option<[Vec<Pair>; 2]> {
    let mut world = World::new(tag)?;
    let mut found = [Vec::new(), Vec::new()];
    for turn in 0..2 * pairs {
        let way = turn as usize % 2;
        world.completions = ["ooo", "in_order"][way];
        world.end_daemon(nix::sys::signal::Signal::SIGTERM);
        world.start(
            &format!("{line}Mbps"),
            &format!(
                "engine: {{flows: fifo}}\n\
                 limits: {{slow: {{match: {{dst: 10.9.0.8}}, rate: {}kbps, burst: 3KB}}}}\n\
                 policy: {{root: {{wfq: {{vm: 1}}, via: [slow]}}}}\n",
                line * 5
            ),
        );
        if turn == 0 && !world.boot(Machine::default()) {
            return None;
        }
        world.eventually("the guest is there", || world.answers());
        let alone = tcp_and_pings(&mut world, seconds);
        let server = world.serve("10.9.0.8", "5202");
        let floods =
            format!("iperf3 -u -c 10.9.0.8 -p 5202 -b 20M -l 1400 -t {} >/dev/null 2>&1 &", seconds + 10);
        world.type_in(&floods);
        world.eventually("the slow flow is there", || world.stats().limits["slow"].packets > 40);
        let beside = tcp_and_pings(&mut world, seconds);
        let vm = world.stats().tenants["vm"].clone();
        drop(server);
        world.ask("killall iperf3");
        assert!(vm.drops.is_empty(), "nothing of the guest's is lost: {vm:?}");
        found[way].push(Pair { alone, beside });
        eprintln!("PN-E1 {}: {:?}", world.completions, found[way].last());
    }
    Some(found)
}

#[test]
fn in_a_linux_guest_a_slow_flow_holds_up_no_other_and_with_completions_in_order_it_holds_up_all() {
    // A quarter of the paper's rates: the guest can send as much also while other tests use its cores.
    // One pair shows little on a machine that stalls meanwhile.
    for _ in 0..TRIES {
        let Some([any, order]) = slow_flow_beside_tcp("vh1", 50, 1, 4) else { return };
        let (any, order) = (any[0], order[0]);
        if any.tcp() > 0.8 && order.tcp() < 0.7 && 2.0 * any.beside.ping < order.beside.ping {
            return;
        }
    }
    panic!(
        "completions in any order hold no flow up, and those in order hold all up: in none of three pairs"
    );
}

/// The results of the throttled and the unthrottled flow of PN-E9.
#[derive(Clone, Copy, Debug)]
struct Flows {
    /// Bits a second of TCP.
    fast: f64,
    /// Bits a second of the datagrams that are held to 10 Mbit/s.
    slow: f64,
    /// The guest's descriptors in the engine, where it has most of them.
    held: u32,
    /// Packets lost since the slow flow has settled: before, the port may have begun to have a thread of its own, and the guest offers
    /// again what was taken back for that.
    drops: u64,
}

/// Descriptors that one flow may have in the engine.
const WHEEL: u32 = 4_096;

/// PN-E9: UDP to 10.9.0.8, which is held to 10 Mbit/s, and TCP beside it on a line faster than the guest.
fn throttled_and_not(tag: &str, completions: &'static str, napi: bool, seconds: u32) -> Option<Flows> {
    let mut world = World::new(tag)?;
    world.completions = completions;
    world.start(
        "10Gbps",
        &format!(
            "engine: {{ring: {WHEEL}, flows: fifo}}\n\
             limits: {{slow: {{match: {{dst: 10.9.0.8}}, rate: 10Mbps, burst: 3KB}}}}\n\
             policy: {{root: {{wfq: {{vm: 1}}, via: [slow]}}}}\n"
        ),
    );
    if !world.boot(Machine { napi, ..Machine::default() }) {
        return None;
    }
    let server = world.serve("10.9.0.8", "5202");
    let floods = format!("iperf3 -u -c 10.9.0.8 -p 5202 -b 0 -l 1400 -t {} >/dev/null 2>&1 &", seconds + 30);
    world.type_in(&floods);
    // Four megabytes at the limit's rate: longer than it takes to fill the engine.
    world.eventually("the slow flow has settled", || world.stats().limits["slow"].packets > 3_000);
    let before = world.stats();
    let fast = world.tcp_from_guest(seconds);
    let after = world.stats();
    let vm = &after.tenants["vm"];
    let bytes = after.limits["slow"].bytes - before.limits["slow"].bytes;
    let slow = bytes as f64 * 8.0 / (after.uptime - before.uptime);
    let held = before.tenants["vm"].held.max(vm.held);
    let lost = |stats: &Stats| stats.tenants["vm"].drops.values().sum::<u64>();
    let found = Flows { fast, slow, held, drops: lost(&after) - lost(&before) };
    eprintln!("PN-E9 {completions}, NAPI {napi}: {found:?}, in all {:?}", vm.drops);
    world.end_guest();
    drop(server);
    Some(found)
}

/// Whether PN-E9's claims about packets that wait and packets that are lost hold.
fn waits_where_it_belongs(ours: Flows, early: Flows) -> bool {
    let part = |flows: Flows| f64::from(flows.held) / f64::from(WHEEL);
    let below = |flows: Flows| flows.slow <= 1.1 * 10e6;
    part(ours) <= 0.05
        && part(early) >= 0.95
        && ours.drops == 0
        && early.drops > 0
        && below(ours)
        && below(early)
}

/// Whether all claims of PN-E9 hold.
fn table_4(ours: Flows, early: Flows) -> bool {
    let within = |flows: Flows| flows.slow >= 0.9 * 10e6;
    waits_where_it_belongs(ours, early) && ours.fast >= 1.05 * early.fast && within(ours) && within(early)
}

#[test]
fn in_a_linux_guest_a_throttled_socket_waits_and_completed_early_it_fills_the_engine() {
    let Some(ours) = throttled_and_not("vh9", "ooo", true, 4) else { return };
    let Some(early) = throttled_and_not("vh9e", "early", false, 4) else { return };
    // A guest's rate shows nothing while it shares its cores with other tests.
    assert!(waits_where_it_belongs(ours, early), "{ours:?} {early:?}");
}

#[test]
#[ignore = "minutes, on a machine that does nothing else"]
fn pn_e1_and_pn_e9_by_the_papers_criteria() {
    let pairs = 5;
    let mut rows = String::new();
    let Some([any, order]) = slow_flow_beside_tcp("vl1", 200, pairs, 10) else { return };
    let of = |pairs: &[Pair], figure: fn(&Pair) -> f64| median(pairs.iter().map(figure).collect());
    let e1 = [
        ("TCP beside it over alone, out of order, at least 0.95", of(&any, Pair::tcp), any.len(), true),
        (
            "pings' p99 beside it over alone, out of order, at most 1.5",
            of(&any, Pair::ping),
            any.len(),
            false,
        ),
        ("TCP beside it over alone, in order, at most 0.5", of(&order, Pair::tcp), order.len(), false),
        ("pings' p99 beside it over alone, in order, up", of(&order, Pair::ping), order.len(), true),
    ];
    let passed = e1[0].1 >= 0.95 && e1[1].1 <= 1.5 && e1[2].1 <= 0.5 && e1[3].1 > 1.5;
    head(&mut rows, "PN-E1", "Figure 2", pairs, passed);
    e1.iter().for_each(|(what, figure, ..)| line(&mut rows, what, format_args!("{figure:.2}")));

    let mut e9 = [Vec::new(), Vec::new()];
    for _ in 0..pairs {
        e9[0].extend(throttled_and_not("vl9", "ooo", true, 10));
        e9[1].extend(throttled_and_not("vl9e", "early", false, 10));
    }
    let all = e9[0].iter().zip(&e9[1]).all(|(&ours, &early)| table_4(ours, early));
    head(&mut rows, "PN-E9", "Table 4", pairs, all);
    for (flows, way) in e9.iter().zip(["completed at departure, NAPI", "completed early, without NAPI"]) {
        let of = |figure: fn(&Flows) -> f64| median(flows.iter().map(figure).collect());
        let megabits = |bits: f64| format!("{:.0} Mb/s", bits / 1e6);
        line(&mut rows, &format!("unthrottled, {way}"), megabits(of(|flows| flows.fast)));
        line(&mut rows, &format!("throttled, {way}"), format!("{:.2} Mb/s", of(|flows| flows.slow) / 1e6));
        line(&mut rows, &format!("packets that wait of {WHEEL}, {way}"), of(|flows| f64::from(flows.held)));
        line(&mut rows, &format!("drops, {way}"), of(|flows| flows.drops as f64));
    }
    eprintln!("\n{rows}");
    assert!(passed && all, "PN-E1 {passed}, PN-E9 {all}");
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn head(rows: &mut String, id: &str, place: &str, pairs: u32, passed: bool) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default();
    let word = if passed { "pass" } else { "**fails**" };
    let machine = format!("{cores} cores, load {load:.0}, medians of {pairs}");
    let _ = writeln!(rows, "| {id} | {place} | {machine} | {word} |");
}

fn line(rows: &mut String, what: &str, figure: impl std::fmt::Display) {
    let _ = writeln!(rows, "|  | - {what} | {figure} |  |");
}
