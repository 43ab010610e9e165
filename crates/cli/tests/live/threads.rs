//! Two engine threads share an uplink.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use plimsoll_daemon::{Health, Reloaded, Stats};

use crate::alone;
use crate::support::{Daemon, Stage, ip, skip};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);

fn address(tenant: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, tenant)
}

fn policy(stage: &Stage, weights: [u32; 2]) -> String {
    policy_of(stage, "100Mbps", &[("a", weights[0]), ("b", weights[1])])
}

fn policy_of(stage: &Stage, rate: &str, tenants: &[(&str, u32)]) -> String {
    policy_over(stage, "af_packet", rate, tenants)
}

fn policy_over(stage: &Stage, uplink: &str, rate: &str, tenants: &[(&str, u32)]) -> String {
    let tenant = |name: &str, number: u8, weight| {
        format!(
            "  {name}: {{port: {{tap: {{netns: {}, name: eth0}}}}, weight: {weight}, interface: {{addresses: {}/24}}}}\n",
            stage.netns(name),
            address(number)
        )
    };
    let tenants: String =
        (1..).zip(tenants).map(|(number, (name, weight))| tenant(name, number, *weight)).collect();
    format!(
        "uplink: {{port: {{{uplink}: up0}}, rate: {rate}}}\nengine: {{threads: 2}}\napi: {{socket: {}}}\ntenants:\n{tenants}",
        stage.file("api.sock").display(),
    )
}

/// The CPU time of a process so far.
fn cpu(process: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
    let fields: Vec<u64> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    // utime and stime, in ticks of 10 ms.
    Duration::from_millis(10 * (fields[11] + fields[12]))
}

#[test]
fn two_threads_share_the_uplink_by_weight_and_their_tenants_reach_each_other() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("thr", &["host", "far", "a", "b"]) else { return };
    let [host, far] = ["host", "far"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    fs::write(stage.file("policy.yaml"), policy(&stage, [3, 1])).expect("written");
    let mut daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let health: Health = stage.client().get("/v1/health").expect("it answers");
    let tenants: Vec<String> = health.threads.values().flatten().cloned().collect();
    assert_eq!((health.threads.len(), tenants), (2, vec!["a".to_owned(), "b".to_owned()]));

    // Both ways, between threads, and to the far end by either thread's queue.
    stage.eventually("a reaches b", || stage.ping("a", address(2), 56));
    stage.eventually("b reaches a, with a long packet", || stage.ping("b", address(1), 1_400));
    for tenant in ["a", "b"] {
        stage.eventually("the far end", || stage.ping(tenant, FAR, 56));
    }

    // Each wants nine tenths of the link.
    let from = [("a", address(1)), ("b", address(2))];
    let traffic = [7_071, 7_072]
        .map(|port| stage.traffic(from[usize::from(port == 7_072)], ("far", FAR), port, 11_000));
    let rates = || {
        let marks = traffic.each_ref().map(|one| one.mark());
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs(3));
        let took = begun.elapsed().as_secs_f64();
        [0, 1].map(|one| traffic[one].since(marks[one]).arrived as f64 * 8_000.0 / took / 1e6)
    };
    std::thread::sleep(Duration::from_secs(1));
    let [a, b] = rates();
    assert!((2.2..4.0).contains(&(a / b)) && a + b > 75.0 && a + b < 101.0, "{a:.1} and {b:.1} Mb/s");
    let page = stage.client().text("GET", "/metrics").expect("it answers");
    assert!(page.contains("plimsoll_engine_threads 2\n"), "{page}");
    assert!(page.contains("plimsoll_lease_share_error_ratio "), "{page}");

    // The other way round, from one moment to the next.
    fs::write(stage.file("policy.yaml"), policy(&stage, [1, 3])).expect("written");
    let reloaded: Reloaded = stage.client().post("/v1/reload").expect("reloaded");
    assert_eq!(reloaded.generation, 1);
    std::thread::sleep(Duration::from_secs(1));
    let [a, b] = rates();
    assert!((2.2..4.0).contains(&(b / a)) && a + b > 75.0, "{a:.1} and {b:.1} Mb/s after the reload");
    traffic.into_iter().for_each(|one| one.end());
    let stats: Stats = stage.client().get("/v1/stats").expect("counters");
    assert!(
        stats.threads.as_ref().is_some_and(|threads| threads.count == 2 && threads.unleased == 0),
        "{stats:?}"
    );
    let sent: u64 = ["a", "b"].iter().map(|name| stats.tenants[*name].rx_packets).sum();
    assert!(stats.uplink.tx_packets <= sent && stats.uplink.tx_packets > sent / 3, "{stats:?}");

    // Nothing passes: nothing wakes the threads up.
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu(daemon.id());
    std::thread::sleep(Duration::from_secs(4));
    let used = cpu(daemon.id()) - before;
    assert!(used < Duration::from_millis(120), "{used:?} of CPU time in 4 s at rest");
    let (code, took) = daemon.end(Signal::SIGTERM).expect("it ends");
    assert!(
        code == Some(0) && took < Duration::from_secs(6),
        "{code:?} after {took:?}: {}",
        stage.read("log")
    );
}

#[test]
fn two_threads_have_a_queue_each_of_an_uplink_on_af_xdp() {
    let _alone = alone();
    let Some(stage) = Stage::with_netns("thx", &["host", "far", "a", "b"]) else { return };
    let [host, far] = ["host", "far"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    let set = |place: &str, args: &[&str]| {
        stage.command(place, "ethtool").args(args).output().is_ok_and(|set| set.status.success())
    };
    if !set("far", &["-K", "eth0", "tx", "off"]) {
        return skip("ethtool is missing, or cannot set checksum offload");
    }
    let text = policy_over(&stage, "af_xdp", "100Mbps", &[("a", 3), ("b", 1)]);
    fs::write(stage.file("policy.yaml"), text).expect("written");

    // A new veth has one queue.
    let refused = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("refused"));
    let said = || stage.read("refused");
    let may_not = || said().contains("permission denied");
    stage.eventually("it is refused", || said().contains("the interface has fewer queues") || may_not());
    if may_not() {
        return skip("AF_XDP is not allowed here");
    }
    drop(refused);
    assert!(set("host", &["-L", "up0", "rx", "2", "tx", "2"]), "two queues");
    let mut daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let health: Health = stage.client().get("/v1/health").expect("it answers");
    assert_eq!(health.threads.len(), 2);
    stage.eventually("a reaches b", || stage.ping("a", address(2), 56));
    for tenant in ["a", "b"] {
        stage.eventually("the far end", || stage.ping(tenant, FAR, 56));
    }
    let from = [("a", address(1)), ("b", address(2))];
    let traffic = [7_071, 7_072]
        .map(|port| stage.traffic(from[usize::from(port == 7_072)], ("far", FAR), port, 11_000));
    std::thread::sleep(Duration::from_secs(1));
    let marks = traffic.each_ref().map(|one| one.mark());
    std::thread::sleep(Duration::from_secs(3));
    let [a, b] = [0, 1].map(|one| traffic[one].since(marks[one]).arrived as f64 * 8_000.0 / 3e6);
    assert!((2.0..4.4).contains(&(a / b)) && a + b > 60.0 && a + b < 110.0, "{a:.1} and {b:.1} Mb/s");
    traffic.into_iter().for_each(|one| one.end());
    let (code, _) = daemon.end(Signal::SIGTERM).expect("it ends");
    assert_eq!(code, Some(0), "{}", stage.read("log"));
}

#[test]
fn two_busy_tenants_of_one_thread_are_spread_over_both_and_lose_nothing_by_it() {
    let _alone = alone();
    let names = ["a", "b", "c", "d"];
    let Some(stage) = Stage::with_netns("tmv", &["host", "far", "a", "b", "c", "d"]) else { return };
    let [host, far] = ["host", "far"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    fs::write(stage.file("policy.yaml"), policy_of(&stage, "1Gbps", &names.map(|name| (name, 1))))
        .expect("written");
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let threads = || stage.client().get::<Health>("/v1/health").expect("it answers").threads;
    let thread_of = |name: &str| {
        let of =
            |(thread, tenants): (u32, Vec<String>)| tenants.iter().any(|one| one == name).then_some(thread);
        threads().into_iter().find_map(of).expect("one serves it")
    };
    assert_eq!((thread_of("a"), thread_of("c")), (0, 0), "{:?}", threads());

    let mut traffic = [("a", 1, 7_073), ("c", 3, 7_074)]
        .map(|(name, number, port)| stage.traffic((name, address(number)), ("far", FAR), port, 4_000));
    stage.eventually("one of them moves", || thread_of("a") != thread_of("c"));
    std::thread::sleep(Duration::from_secs(1));
    assert!(stage.ping("a", address(3), 56) && stage.ping("c", address(1), 1_400), "they reach each other");
    for one in &mut traffic {
        let (sent, came) = one.drain();
        assert!(sent > 1_000 && sent - came <= sent / 100, "{came} of {sent} came");
    }
    traffic.into_iter().for_each(|one| one.end());

    // Tenants of two threads get each other's TAPs.
    let text = policy_of(&stage, "1Gbps", &names.map(|name| (name, 1)));
    let text = text.replace("  a: ", "  x: ").replace("  c: ", "  a: ").replace("  x: ", "  c: ");
    fs::write(stage.file("policy.yaml"), text).expect("written");
    stage.client().post::<Reloaded>("/v1/reload").expect("reloaded");
    assert_eq!(thread_of("a"), thread_of("c"));
    let seen = || stage.client().get::<Stats>("/v1/stats").expect("counters").tenants["c"].rx_packets;
    let before = seen();
    assert!(stage.ping("a", FAR, 56) && stage.ping("c", FAR, 56));
    // Both answers may be of the same moment: the daemon keeps one for a while.
    stage.eventually("the tenant c has what was a's", || seen() > before);

    let stats: Stats = stage.client().get("/v1/stats").expect("counters");
    assert!(stats.threads.is_some_and(|threads| threads.migrations >= 1));
    assert!(stage.read("log").contains("serves it now"), "{}", stage.read("log"));
    let page = stage.client().text("GET", "/metrics").expect("it answers");
    assert!(page.contains("plimsoll_tenant_migrations_total "), "{page}");
}
