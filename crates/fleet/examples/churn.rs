//! A fleet of 200 hosts with 50 tenants each in a real etcd, whose tenants move all the time.
//!
//! $ make fleet
//!
//! Every host is a watcher with a connection and a lease of its own, as its agent has; two of them also compose their policies
//! and check them. Prints what the directory carries, and how long a move takes to be known at all hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_fleet::{
    Access, Alive, Change, Composed, Directory, EtcdDirectory, FleetObject, HostObject, News, Outcome, State,
    TenantObject, Transaction, VERSION, Value, compose, init, move_tenant,
};
use plimsoll_units::{BitRate, Span};

#[path = "../tests/etcd/server.rs"]
mod server;

const HOSTS: usize = 200;
const TENANTS: usize = 50;
/// Moves that are made, and the time between two.
const MOVES: usize = 500;
const EVERY: Duration = Duration::from_millis(40);
const LEASE: Duration = Duration::from_secs(10);
/// Hosts that compose their policies, too: two cores have no time for all.
const COMPOSING: usize = 2;

/// What the hosts share.
#[derive(Default)]
struct Shared {
    ready: AtomicUsize,
    /// Requests that were not answered in time.
    failures: AtomicUsize,
    over: AtomicBool,
    /// For each move how many hosts have heard of it, and when the last did, in microseconds since the start.
    heard: Vec<(AtomicUsize, AtomicU64)>,
    traffic: Mutex<Vec<(u64, u64, u64)>>,
    composed: Mutex<Vec<(Duration, Duration)>>,
}

fn main() {
    let Some(etcd) = server::Etcd::start("churn", &[]) else { return };
    let url = etcd.url("churn");
    let open = || EtcdDirectory::new(&url, &Access::default()).expect("a directory");
    let mut directory = open();
    let begun = Instant::now();
    let mut state = fill(&mut directory);
    let bytes: usize = state.keys().iter().map(|(key, value)| key.len() + value.len()).sum();
    println!(
        "{HOSTS} hosts, {} tenants: {} keys, {:.1} MB, put in {:.1?}",
        HOSTS * TENANTS,
        state.keys().len(),
        mega(bytes),
        begun.elapsed()
    );

    let heard = (0..MOVES).map(|_| Default::default()).collect();
    let shared = Arc::new(Shared { heard, ..Shared::default() });
    let start = Instant::now();
    let watchers: Vec<_> = (0..HOSTS)
        .map(|host| {
            let (shared, directory) = (Arc::clone(&shared), open());
            thread::spawn(move || watch(host, directory, &shared, start))
        })
        .collect();
    while shared.ready.load(Ordering::Relaxed) < HOSTS && start.elapsed() < Duration::from_secs(120) {
        thread::sleep(Duration::from_millis(5));
    }
    println!(
        "all hosts have read everything and hold a lease: {:.1?}; {} requests were not answered in time, and made again",
        start.elapsed(),
        shared.failures.load(Ordering::Relaxed)
    );

    let before = totals(&shared);
    let begun = Instant::now();
    let mut began = Vec::new();
    for n in 0..MOVES {
        began.push(start.elapsed());
        let tenant = format!("t{}", n * 7919 % (HOSTS * TENANTS));
        let made = move_tenant(&state, &tenant, Some(&host_name(n * 31 % HOSTS)), true).expect("a move");
        assert_eq!(directory.commit(&marked(made.clone(), n)).expect("etcd answers"), Outcome::Done);
        state.hear(&News::Changes(made.changes));
        thread::sleep((EVERY * (n as u32 + 1)).saturating_sub(begun.elapsed()));
    }
    let all = |shared: &Shared| shared.heard.iter().all(|(hosts, _)| hosts.load(Ordering::Relaxed) >= HOSTS);
    let end = Instant::now() + Duration::from_secs(60);
    while !all(&shared) && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    let mut times: Vec<Duration> = shared
        .heard
        .iter()
        .zip(&began)
        .map(|((_, last), began)| Duration::from_micros(last.load(Ordering::Relaxed)).saturating_sub(*began))
        .collect();
    times.sort_unstable();
    assert!(all(&shared), "some hosts have not heard of all moves");
    println!(
        "{MOVES} moves in {took:.1?}: each known at all {HOSTS} hosts after {:.1?} (median), {:.1?} (99 %), {:.1?} (most)",
        times[MOVES / 2],
        times[MOVES * 99 / 100],
        times[MOVES - 1]
    );
    thread::sleep(Duration::from_millis(200));
    let after = totals(&shared);
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "etcd told the hosts {:.0} changes and {:.2} MB a second, {:.0} bytes a move and host; the hosts renewed leases {:.0} times a second",
        (after.0 - before.0) as f64 / seconds,
        mega((after.1 - before.1) as usize) / seconds,
        (after.1 - before.1) as f64 / (MOVES * HOSTS) as f64,
        (after.2 - before.2) as f64 / seconds
    );
    let composed = shared.composed.lock().expect("no panic beside");
    let mean = |of: fn(&(Duration, Duration)) -> Duration| {
        composed.iter().map(of).sum::<Duration>() / composed.len().max(1) as u32
    };
    println!(
        "{} requests were not answered in time, and made again; composing one host's policy of {} tenants in the map: {:.1?}, checking it: {:.1?} (beside all that)",
        shared.failures.load(Ordering::Relaxed),
        HOSTS * TENANTS,
        mean(|one| one.0),
        mean(|one| one.1)
    );
    drop(composed);
    shared.over.store(true, Ordering::Relaxed);
    watchers.into_iter().for_each(|watcher| watcher.join().expect("no panic"));
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

fn host_name(host: usize) -> String {
    format!("h{host:03}")
}

/// Puts all objects, some in each transaction.
fn fill(directory: &mut EtcdDirectory) -> State {
    let fleet = FleetObject {
        v: VERSION,
        networks: BTreeMap::from([("tenants".to_owned(), 7)]),
        overlay: BTreeMap::from([("kind".to_owned(), "geneve".into())]),
        lease: Span::secs(10),
        free_after: Some(Span::secs(60)),
    };
    let mut changes = init(&State::default(), &fleet).expect("a fleet").changes;
    for host in 0..HOSTS {
        let object = HostObject {
            v: VERSION,
            address: [10, 0, (host / 250) as u8, (host % 250 + 1) as u8].into(),
            rate: BitRate::gbps(100),
            template: "uplink: {port: memory, rate: 100Gbps}".to_owned(),
            policy: None,
            more: BTreeMap::new(),
        };
        changes.push(Change { key: format!("hosts/{}", host_name(host)), value: Some(object.write()) });
    }
    for tenant in 0..HOSTS * TENANTS {
        let [high, low] = (tenant as u16 + 1).to_be_bytes();
        let object = TenantObject {
            v: VERSION,
            network: "tenants".to_owned(),
            host: Some(host_name(tenant / TENANTS)),
            mac: vec![format!("02:00:00:00:{high:02x}:{low:02x}")],
            addresses: vec![format!("10.7.{high}.{low}/16")],
            min: Some(BitRate::mbps(100)),
            max: None,
            weight: None,
            port: serde_json::json!({"tap": {"netns": "{tenant}", "name": "eth0"}}),
            policy: None,
            more: BTreeMap::new(),
        };
        changes.push(Change { key: format!("tenants/t{tenant}"), value: Some(object.write()) });
    }
    let mut state = State::default();
    for part in changes.chunks(100) {
        let made = Transaction { conditions: Vec::new(), changes: part.to_vec() };
        assert_eq!(directory.commit(&made).expect("etcd answers"), Outcome::Done);
        state.hear(&News::Changes(made.changes));
    }
    state
}

/// A move with a mark, by which hosts know it: a key that no agent heeds.
fn marked(mut made: Transaction, n: usize) -> Transaction {
    made.changes.push(Change { key: format!("mark/{n}"), value: Some(b"1".to_vec()) });
    made
}

/// The number of the move that a key marks.
fn mark(key: &str) -> Option<usize> {
    key.strip_prefix("mark/")?.parse().ok()
}

fn watch(host: usize, mut directory: EtcdDirectory, shared: &Shared, start: Instant) {
    let own = format!("alive/{}", host_name(host));
    let alive = Alive { v: VERSION, ..Alive::default() }.write();
    let (mut state, mut ready, mut beat) = (State::default(), false, None::<Instant>);
    let (mut known, mut composed_at) = (BTreeSet::new(), None::<Instant>);
    while !shared.over.load(Ordering::Relaxed) {
        let news = match directory.wait(Duration::from_millis(500)) {
            Ok(news) => news,
            Err(error) => {
                // As an agent does; and what came meanwhile is made up for.
                if shared.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                    eprintln!("{error}");
                }
                thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        // All at once tells of moves, too.
        let marks: Vec<usize> = match &news {
            News::Changes(changes) => changes.iter().filter_map(|change| mark(&change.key)).collect(),
            News::All(keys) => keys.keys().filter_map(|key| mark(key)).collect(),
        };
        for n in marks.into_iter().filter(|n| known.insert(*n)) {
            let (hosts, last) = &shared.heard[n];
            last.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
            hosts.fetch_add(1, Ordering::Relaxed);
        }
        if host < COMPOSING && news != News::Changes(Vec::new()) {
            state.hear(&news);
        }
        let due = composed_at.is_none_or(|at| at.elapsed() > Duration::from_secs(1));
        if host < COMPOSING && due && !state.hosts.is_empty() {
            composed_at = Some(Instant::now());
            let begun = Instant::now();
            let composed: Composed = compose(&state, &host_name(host)).expect("composed");
            let took = begun.elapsed();
            let checked = composed.check(&mut |sources, file| {
                plimsoll_document::parse(sources, file).map_err(plimsoll_policy::Unread::Syntax)
            });
            checked.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
            shared.composed.lock().expect("no panic beside").push((took, begun.elapsed() - took));
        }
        if beat.is_none_or(|at| at.elapsed() > LEASE / 3) {
            if directory.keep(&own, &alive, LEASE).is_ok() {
                beat = Some(Instant::now());
            } else {
                shared.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        if !ready && beat.is_some() {
            ready = true;
            shared.ready.fetch_add(1, Ordering::Relaxed);
        }
        let traffic = directory.traffic;
        let mut all = shared.traffic.lock().expect("no panic beside");
        all.resize(HOSTS, (0, 0, 0));
        all[host] = (traffic.told, traffic.bytes, traffic.requests);
    }
}

/// Changes and bytes told, and requests made, by all hosts.
fn totals(shared: &Shared) -> (u64, u64, u64) {
    let all = shared.traffic.lock().expect("no panic beside");
    all.iter().fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
}
