//! Three daemons in three network namespaces: several networks with the same addresses, and the fleet's key changed under load.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::support::fleet::{Fleet, HOSTS, PLAIN, Plan, inner};
use crate::support::traffic::Traffic;
use plimsoll_daemon::Reloaded;

const SEALED: &str = "  sealed: true\n  key: KEY\n  feedback: {key: KEY, epoch: 10ms, lapse: 600ms, delay: 20ms, fallback: 200Mbps}\n";

/// At each host `t1` is in the network blue and `t2` in red; both have the addresses of `t1`.
fn two_networks(fleet: &Fleet) {
    for host in 0..3 {
        let file = fleet.policy_file(host);
        let mut text = fs::read_to_string(&file).expect("written");
        text = text.replace("  vni: 77\n", "  networks: {blue: 77, red: 78}\n");
        for at in 0..3 {
            let (one, two) = (format!("t1: 02:00:00:00:0{at}:01"), format!("t2: 02:00:00:00:0{at}:02"));
            let in_network = |name: &str, network: &str| {
                format!("{name}: {{mac: 02:00:00:00:0{at}:01, network: {network}}}")
            };
            text = text.replace(&one, &in_network("t1", "blue")).replace(&two, &in_network("t2", "red"));
        }
        fs::write(&file, text).expect("written");
    }
}

#[test]
fn tenants_of_two_networks_have_the_same_addresses_and_never_meet() {
    let Some(mut fleet) = Fleet::new("nw", &Plan { max: "400Mbps", ..PLAIN }) else { return };
    two_networks(&fleet);
    for (host, name) in HOSTS.into_iter().enumerate() {
        fleet.launch(host);
        let client = fleet.client(host);
        fleet.eventually("the daemon answers", || client.text("GET", "/v1/health").is_ok());
        for tenant in [1, 2] {
            let netns = fleet.netns(&format!("{name}{tenant}"));
            fleet.ip(&format!("-n {netns} address add {}/24 dev eth0", inner(host, 1)));
        }
    }
    for tenant in [1, 2] {
        fleet.eventually("every tenant reaches those of its network", || {
            fleet.ping((0, tenant), inner(1, 1), 56) && fleet.ping((2, tenant), inner(1, 1), 56)
        });
    }
    // The same addresses and ports in both networks, at different rates: each receiver hears its own.
    let send = |tenant: u8, rate| {
        let [from, to] = ["a", "b"].map(|host| format!("{host}{tenant}"));
        fleet.traffic((&from, inner(0, 1)), (&to, inner(1, 1)), 7_031, rate)
    };
    let mut both = [send(1, 600), send(2, 150)];
    thread::sleep(Duration::from_secs(2));
    let seen = both.each_mut().map(|traffic| traffic.drain());
    eprintln!("of blue and red, sent and came: {seen:?}");
    for (sent, came) in seen {
        assert!(came > 200 && came <= sent && came + sent / 20 >= sent, "{seen:?}: {:?}", fleet.losses());
    }
    assert!(seen[0].1 > 2 * seen[1].1, "{seen:?}");
    both.into_iter().for_each(Traffic::end);
    broadcasts_stay(&fleet);
    forged_networks_are_dropped(&fleet);
    let refused = "blue: 77, red: 79";
    let file = fleet.policy_file(0);
    let text = fs::read_to_string(&file).expect("written").replace("blue: 77, red: 78", refused);
    fs::write(&file, text).expect("written");
    let refused = fleet.client(0).post::<Reloaded>("/v1/reload").expect_err("tenants would change networks");
    assert!(refused.to_string().contains("tenant t2 is in network 78"), "{refused}");
}

/// A broadcast of `a1` reaches `b1` and `c1`, and no tenant of the other network, on any host.
fn broadcasts_stay(fleet: &Fleet) {
    const ALL: [&str; 5] = ["b1", "c1", "a2", "b2", "c2"];
    let arrived = || ALL.map(|place| fleet.arrivals(place, "eth0"));
    let before = arrived();
    let sent = fleet.inside("a1", || {
        let socket = UdpSocket::bind((inner(0, 1), 0)).expect("bound");
        socket.set_broadcast(true).expect("set");
        for _ in 0..200 {
            socket.send_to(b"to all", "10.8.0.255:7032").expect("sent");
            thread::sleep(Duration::from_millis(1));
        }
    });
    sent.join().expect("sent");
    let came = || {
        let now = arrived();
        [0, 1, 2, 3, 4].map(|place| now[place] - before[place])
    };
    fleet.eventually("its network hears them", || came()[..2].iter().all(|came| *came >= 200));
    // Red tenants ask for each other's hardware addresses at most.
    assert!(came()[2..].iter().all(|came| *came < 20), "{:?} at {ALL:?}", came());
}

/// From host b's own namespace, as if an attacker had access to the underlay: a network that no host has, and an address that the
/// network does not have at host b.
fn forged_networks_are_dropped(fleet: &Fleet) {
    let packet = |vni: u8, from: u8| {
        let mut packet = vec![0, 0, 0x65, 0x58, 0, 0, vni, 0];
        packet.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, from, 1, 0x88, 0xb5]);
        packet.resize(100, 0);
        packet
    };
    let forged = [packet(79, 1), packet(78, 2)];
    let lost = |reason: &str| fleet.stats(0).uplink.drops.get(reason).copied().unwrap_or(0);
    let reasons = ["overlay_unknown_network", "overlay_wrong_host"];
    let before = reasons.map(lost);
    let sent = fleet.inside("b", move || {
        let socket = UdpSocket::bind("192.0.2.2:0").expect("bound");
        for packet in forged {
            (0..20).for_each(|_| _ = socket.send_to(&packet, "192.0.2.1:6081"));
        }
    });
    sent.join().expect("sent");
    fleet.eventually("each is counted for its reason", || {
        reasons.map(lost).iter().zip(before).all(|(now, before)| *now == before + 20)
    });
}

/// The three steps of `docs/overlay.md`, "Change a key", host after host, while tenants send both ways.
#[test]
fn a_key_changes_under_load_without_a_lost_frame() {
    let Some(mut fleet) = Fleet::new("ky", &Plan { rest: SEALED, max: "400Mbps", ..PLAIN }) else { return };
    fs::write(fleet.file("new.key"), [9; 32]).expect("written");
    fs::set_permissions(fleet.file("new.key"), fs::Permissions::from_mode(0o600)).expect("set");
    fleet.start();
    let first: Vec<String> =
        (0..3).map(|host| fs::read_to_string(fleet.policy_file(host)).expect("there")).collect();
    let keys = ["fleet.key", "new.key"].map(|name| fleet.file(name).display().to_string());
    let step = |host: usize, own: &str, other: Option<&str>| {
        let mut text = first[host].replace(&keys[0], own);
        if let Some(other) = other {
            text.push_str(&format!("  accept_keys: {other}\n"));
        }
        fs::write(fleet.policy_file(host), text).expect("written");
        let _: Reloaded = fleet.client(host).post("/v1/reload").expect("reloaded");
    };
    let (own, before) = (fleet.fleet(0).key.expect("a key"), fleet.losses());
    let mut traffic = [fleet.flood((0, 1), (1, 1), 7_033, 1_000), fleet.flood((1, 2), (0, 2), 7_034, 1_000)];
    thread::sleep(Duration::from_millis(500));
    let [old, new] = [keys[0].as_str(), keys[1].as_str()];
    for (own, other) in [(old, Some(new)), (new, Some(old))] {
        (0..3).for_each(|host| step(host, own, other));
        thread::sleep(Duration::from_millis(500));
    }
    let changed = |host: usize| {
        let now = fleet.fleet(host);
        let key = now.key.clone().expect("a key");
        let uses =
            |key_to: &Option<String>, from: &[String]| key_to.as_ref() == Some(&key) && from == [key.clone()];
        key != own && now.hosts.values().all(|host| uses(&host.key_to, &host.keys_from))
    };
    fleet.eventually("every host uses the new key with every other", || (0..3).all(changed));
    (0..3).for_each(|host| step(host, new, None));
    thread::sleep(Duration::from_millis(500));
    let seen = traffic.each_mut().map(|traffic| traffic.drain());
    eprintln!("one way and the other, sent and came: {seen:?}");
    assert!(seen.iter().all(|(sent, came)| sent == came && *sent > 1_500), "{seen:?}: {:?}", fleet.losses());
    assert_eq!(fleet.losses(), before);
    traffic.into_iter().for_each(Traffic::end);
    // A host with the old key only.
    step(2, old, None);
    fleet.eventually("it is refused", || {
        fleet.fleet(0).hosts["c"].session == Some(false) || !fleet.ping((2, 1), inner(0, 1), 56)
    });
    assert!(!fleet.ping((2, 1), inner(0, 1), 56) && fleet.ping((1, 1), inner(0, 1), 56));
    let shown = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["stats", "--socket"])
        .arg(fleet.file("a.sock"))
        .output();
    let shown = String::from_utf8_lossy(&shown.expect("the binary is there").stdout).into_owned();
    let key = fleet.fleet(0).key.expect("a key");
    assert!(shown.contains(&format!("This host seals with key {key}.")), "{shown}");
}
