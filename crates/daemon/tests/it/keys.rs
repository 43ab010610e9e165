//! Two hosts whose uplinks are joined in memory go over to another key of the fleet, by reloads, while their tenants send.

use crate::fleet::file;
use crate::support::{KEY, World, drain, number, policy, udp};
use plimsoll_control::{Fingerprint, FleetKeys};
use plimsoll_daemon::{Change, HostStats, Stats};
use plimsoll_units::Span;

const STEP: Span = Span::micros(50);
const NEW: [u8; 32] = [9; 32];
/// Tenants by the last byte of their addresses, one at each host.
const SHOP: u8 = 1;
const QUIET: u8 = 12;

const SEALED: &str =
    "  sealed: true\n  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n";

/// Both hosts. `shop` at host a and `quiet` at host b send to each other all the time.
struct Hosts {
    worlds: [World; 2],
    sent: u32,
    came: [Vec<u32>; 2],
}

impl Hosts {
    fn new() -> Self {
        let worlds = ["a", "b"].map(|host| World::new(&file(host, "geneve", false, SEALED), false));
        let mut hosts = Self { worlds, sent: 0, came: Default::default() };
        hosts.run(Span::millis(60), false);
        hosts
    }

    fn run(&mut self, span: Span, sends: bool) {
        for _ in 0..span.as_u64() / STEP.as_u64() {
            if sends {
                self.worlds[0].send(0, &udp(SHOP, QUIET, 7, self.sent, 300));
                self.worlds[1].send(1, &udp(QUIET, SHOP, 7, self.sent, 300));
                self.sent += 1;
            }
            let [a, b] = &mut self.worlds;
            let (from_a, from_b) = (a.run(STEP, STEP), b.run(STEP, STEP));
            from_a.iter().for_each(|packet| _ = b.wire.send(packet, None).expect("there"));
            from_b.iter().for_each(|packet| _ = a.wire.send(packet, None).expect("there"));
            for (host, (came, place)) in self.came.iter_mut().zip([0, 1]).enumerate() {
                came.extend(drain(&mut self.worlds[host].tenants[place]).iter().map(|frame| number(frame).1));
            }
        }
    }

    /// A reload of a host, which reads these keys.
    fn reload(&mut self, host: usize, own: [u8; 32], others: &[[u8; 32]]) {
        let text = policy(&file(["a", "b"][host], "geneve", false, SEALED));
        let world = &mut self.worlds[host];
        let change = world.change(&text, &text);
        let now = world.now;
        world.engine.install(Change { keys: Some(FleetKeys::new(own, others)), ..change }, now);
    }

    /// What a host shows of the other one.
    fn shown(&mut self, host: usize) -> (Option<String>, HostStats) {
        let world = &mut self.worlds[host];
        let fleet = Stats::from(&world.engine.snapshot(world.now)).fleet.expect("a fleet");
        (fleet.key.clone(), fleet.hosts.into_values().next().expect("the other one"))
    }

    fn lost(&mut self) -> Vec<(&'static str, u64)> {
        let [a, b] = &mut self.worlds;
        let all = [a.losses("uplink"), b.losses("uplink"), a.losses("shop"), b.losses("quiet")];
        let events = [a.events("uplink"), b.events("uplink")].concat();
        let bad = |(name, _): &(&str, u64)| name.starts_with("feedback") || name.contains("forged");
        all.concat().into_iter().chain(events.into_iter().filter(bad)).collect()
    }
}

#[test]
fn a_key_changes_in_three_steps_and_no_frame_and_no_message_is_lost() {
    let mut hosts = Hosts::new();
    let [old, new] = [KEY, NEW].map(|key| Fingerprint::of(&key).to_string());
    let shows = |hosts: &mut Hosts, key: &String| {
        (0..2).all(|host| {
            let (own, other) = hosts.shown(host);
            own.as_ref() == Some(key)
                && other.key_to.as_ref() == Some(key)
                && other.keys_from == [key.clone()]
        })
    };
    hosts.run(Span::millis(20), true);
    assert!(shows(&mut hosts, &old));
    for (own, others) in [(KEY, vec![NEW]), (NEW, vec![KEY]), (NEW, vec![])] {
        for host in [0, 1] {
            hosts.reload(host, own, &others);
            hosts.run(Span::millis(30), true);
        }
    }
    assert!(shows(&mut hosts, &new));
    hosts.run(Span::millis(1), false);
    let all: Vec<u32> = (0..hosts.sent).collect();
    assert_eq!(hosts.came, [all.clone(), all]);
    assert_eq!(hosts.lost(), []);
    // With the old key only, nothing comes in any more.
    hosts.reload(1, KEY, &[]);
    hosts.run(Span::millis(50), true);
    let came = hosts.came.clone();
    hosts.run(Span::millis(50), true);
    assert_eq!(hosts.came, came);
    let (_, other) = hosts.shown(1);
    assert_eq!((other.session, other.key_to), (Some(false), None));
}

/// Half of the fleet has not read the new key yet: it is shown, and all goes on.
#[test]
fn a_host_that_does_not_know_the_key_yet_is_shown_and_loses_nothing() {
    let mut hosts = Hosts::new();
    let [old, new] = [KEY, NEW].map(|key| Fingerprint::of(&key).to_string());
    hosts.run(Span::millis(20), true);
    hosts.reload(0, NEW, &[KEY]);
    hosts.run(Span::millis(200), true);
    let (own, other) = hosts.shown(0);
    assert_eq!((own, other.key_to, other.keys_from), (Some(new), Some(old.clone()), vec![old]));
    hosts.run(Span::millis(1), false);
    let all: Vec<u32> = (0..hosts.sent).collect();
    assert_eq!(hosts.came, [all.clone(), all]);
}
