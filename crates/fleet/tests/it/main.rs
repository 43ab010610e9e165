//! The directory of a fleet without a store behind it: objects, composition, placement, rollouts, and a file.

mod agent;

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_fleet::{
    Alive, Change, ComposeError, Directory, FileDirectory, FleetObject, HostObject, Keys, News, Outcome,
    PolicyInUse, RolloutState, State, Step, TenantObject, Transaction, VERSION, Value, add, behind, canaries,
    compose, forget_host, init, join, move_tenant, place, put_policy, remove, rollback, start, step,
};
use plimsoll_units::{BitRate, Span};
use proptest::prelude::*;
use serde_json::json;

const TEMPLATE: &str = "# of the operator\nuplink: {port: memory, rate: 1Gbps}";

fn fleet() -> FleetObject {
    FleetObject {
        v: VERSION,
        networks: BTreeMap::from([("shops".to_owned(), 7)]),
        overlay: BTreeMap::from([("kind".to_owned(), json!("geneve"))]),
        lease: Span::secs(10),
        free_after: Some(Span::secs(60)),
    }
}

fn host(last: u8) -> HostObject {
    HostObject {
        v: VERSION,
        address: [192, 0, 2, last].into(),
        rate: BitRate::gbps(1),
        template: TEMPLATE.to_owned(),
        policy: None,
        more: BTreeMap::new(),
    }
}

fn tenant(at: Option<&str>, last: u8) -> TenantObject {
    TenantObject {
        v: VERSION,
        network: "shops".to_owned(),
        host: at.map(str::to_owned),
        mac: vec![format!("02:00:00:00:00:{last:02x}")],
        addresses: vec![format!("10.7.0.{last}/24")],
        min: Some(BitRate::mbps(100)),
        max: None,
        weight: None,
        port: json!({"tap": {"netns": "{tenant}-{host}", "name": "eth0"}}),
        policy: None,
        more: BTreeMap::new(),
    }
}

fn make(state: &mut State, transaction: &Transaction) {
    for (key, value) in &transaction.conditions {
        assert_eq!(state.value(key), value.as_deref(), "{key}");
    }
    state.hear(&News::Changes(transaction.changes.clone()));
}

/// A fleet of hosts `a` and `b` that are alive, with tenant `shop` at `a`.
fn two_hosts() -> State {
    let mut state = State::default();
    let made = init(&state, &fleet()).expect("a fleet");
    make(&mut state, &made);
    for (name, last) in [("a", 1), ("b", 2)] {
        let made = join(&state, name, &host(last)).expect("joined");
        make(&mut state, &made);
        alive(&mut state, name, &Alive { v: VERSION, ..Alive::default() });
    }
    let made = add(&state, "shop", &tenant(Some("a"), 1), false).expect("added");
    make(&mut state, &made);
    state
}

fn alive(state: &mut State, host: &str, said: &Alive) {
    let change = Change { key: format!("alive/{host}"), value: Some(said.write()) };
    state.hear(&News::Changes(vec![change]));
}

fn checked(state: &State, host: &str) -> plimsoll_policy::Checked {
    let composed = compose(state, host).expect("composed");
    let checked = composed.check(&mut |sources, file| {
        plimsoll_document::parse(sources, file).map_err(plimsoll_policy::Unread::Syntax)
    });
    checked.unwrap_or_else(|errors| panic!("{}\n{}", composed.text, errors.render(false)))
}

#[test]
fn a_hosts_policy_has_its_template_its_tenants_and_the_map() {
    let mut state = two_hosts();
    let own = TenantObject {
        policy: Some("policy: {root: {priority: [x, y]}, x: {match: {dscp: ef}}, y: {}}\n".to_owned()),
        max: Some(BitRate::new(123_456_789).expect("positive")),
        more: BTreeMap::from([("delay".to_owned(), json!({"p99": "1ms"}))]),
        ..tenant(Some("b"), 2)
    };
    let made = add(&state, "batch", &own, false).expect("added");
    make(&mut state, &made);
    let (a, b) = (checked(&state, "a"), checked(&state, "b"));
    let overlay = a.config.overlay.as_ref().expect("an overlay");
    assert_eq!((overlay.vni, overlay.own().name.as_str(), overlay.hosts.len()), (Some(7), "a", 2));
    assert_eq!(overlay.hosts[1].tenants[0].name, "batch");
    assert!(compose(&state, "a").expect("composed").text.contains("# of the operator"), "comments stay");
    assert_eq!(a.config.tenants[0].interface.addresses[0].to_string(), "10.7.0.1/24");
    assert!(format!("{:?}", a.config.tenants[0].port).contains("shop-a"), "{:?}", a.config.tenants[0].port);
    assert_eq!(b.config.tenants.len(), 1);
    assert!(b.program.nodes.len() > 3, "the tenant's own policy is a part of it");
    assert_eq!(compose(&state, "b"), compose(&state.clone(), "b"));
    let made = remove(&state, "shop").expect("removed");
    make(&mut state, &made);
    assert!(checked(&state, "a").config.tenants.is_empty(), "a host without tenants has a policy, too");
}

#[test]
fn a_tenant_moves_and_a_silent_hosts_tenant_only_when_it_is_freed() {
    let mut state = two_hosts();
    let made = move_tenant(&state, "shop", Some("b"), false).expect("moved");
    make(&mut state, &made);
    assert_eq!(checked(&state, "b").config.tenants.len(), 1);
    assert!(forget_host(&state, "b").is_err_and(|why| why.to_string().contains("shop")));
    assert!(
        move_tenant(&state, "shop", Some("bb"), false)
            .is_err_and(|why| why.to_string().contains("did you mean `b`"))
    );
    state.hear(&News::Changes(vec![Change { key: "alive/b".to_owned(), value: None }]));
    assert!(move_tenant(&state, "shop", Some("a"), false).is_err_and(|why| why.to_string().contains("60s")));
    assert!(move_tenant(&state, "shop", Some("a"), true).is_ok());
    state
        .hear(&News::Changes(vec![Change { key: "freed/b".to_owned(), value: Some(b"{\"v\":1}".to_vec()) }]));
    let made = move_tenant(&state, "shop", Some("a"), false).expect("freed");
    make(&mut state, &made);
    let made = forget_host(&state, "b").expect("it is empty");
    make(&mut state, &made);
    assert!(state.freed.is_empty() && state.hosts.len() == 1);
}

#[test]
fn wrong_values_are_named_and_left_out() {
    let mut state = two_hosts();
    for (key, value, why) in [
        ("tenants/x", &b"\xff\x00"[..], "expected value"),
        ("tenants/y", b"{\"v\":9}", "version 9"),
        ("tenants/../z", b"{\"v\":1}", "no name"),
        ("hosts/c", b"{\"v\":1,\"address\":\"192.0.2.9\"}", "missing field"),
        ("policies/p", b"{\"v\":1,\"versions\":{}}", "0 versions"),
        ("elsewhere", b"1", "no such key"),
        ("fleet", b"7", "invalid type"),
    ] {
        state.hear(&News::Changes(vec![Change { key: key.to_owned(), value: Some(value.to_vec()) }]));
        assert!(state.wrong[key].contains(why), "{key}: {}", state.wrong[key]);
    }
    assert!(matches!(compose(&state, "a"), Err(ComposeError::NoFleet(Some(_)))));
    state.hear(&News::Changes(vec![Change { key: "fleet".to_owned(), value: Some(fleet().write()) }]));
    assert_eq!(checked(&state, "a").config.tenants.len(), 1, "the others stay");
    // What is sound by itself and contradicts others.
    let twin = TenantObject { mac: vec!["02:00:00:00:00:01".to_owned()], ..tenant(Some("b"), 9) };
    for (name, object) in [("zwin", &twin), ("lost", &tenant(Some("gone"), 8))] {
        let change = Change { key: format!("tenants/{name}"), value: Some(object.write()) };
        state.hear(&News::Changes(vec![change]));
    }
    let left: Vec<String> =
        compose(&state, "a").expect("composed").left_out.into_iter().map(|left| left.key).collect();
    assert_eq!(left, ["tenants/lost", "tenants/zwin"]);
    assert_eq!(checked(&state, "b").config.tenants.len(), 0);
}

#[test]
fn tenants_of_several_networks_may_have_the_same_address() {
    let mut state = two_hosts();
    let networks = |numbers: [u32; 2]| FleetObject {
        networks: BTreeMap::from([("shops".to_owned(), numbers[0]), ("banks".to_owned(), numbers[1])]),
        ..fleet()
    };
    let twins = Change { key: "fleet".to_owned(), value: Some(networks([7, 7]).write()) };
    state.hear(&News::Changes(vec![twins]));
    assert!(state.wrong["fleet"].contains("same number 7"), "{:?}", state.wrong);
    state.hear(&News::Changes(vec![Change {
        key: "fleet".to_owned(),
        value: Some(networks([7, 8]).write()),
    }]));
    let other = TenantObject { network: "banks".to_owned(), ..tenant(Some("a"), 1) };
    let made = add(&state, "other", &other, false).expect("the same address in another network");
    make(&mut state, &made);
    let overlay = checked(&state, "b").config.overlay.expect("an overlay");
    let found: Vec<_> =
        overlay.hosts[0].tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.network)).collect();
    assert_eq!(found, [("other", 8), ("shop", 7)]);
}

#[test]
fn a_host_is_behind_until_its_agent_says_that_the_settings_are_in_force() {
    let mut state = two_hosts();
    let hosts = |state: &State| behind(state).into_iter().map(|(host, _)| host).collect::<Vec<_>>();
    let overlay = state.fleet.as_ref().expect("a fleet").overlay.clone();
    assert!(!overlay.is_empty());
    alive(&mut state, "a", &Alive { v: VERSION, overlay, ..Alive::default() });
    assert_eq!(hosts(&state), ["b"]);
    state.hear(&News::Changes(vec![Change { key: "alive/a".to_owned(), value: None }]));
    assert_eq!(behind(&state)[0], ("a".to_owned(), "its agent is not heard".to_owned()));
}

#[test]
fn a_minimum_is_promised_where_there_is_room() {
    let mut state = two_hosts();
    let fits = place(&state, "new", BitRate::new(950_000_000)).expect("placed");
    assert_eq!(
        fits.iter().map(|fit| (fit.host.as_str(), fit.why.is_none())).collect::<Vec<_>>(),
        [("b", true), ("a", false)]
    );
    let why = fits[1].why.as_deref().expect("why not");
    assert!(why.contains("100Mbps of 1Gbps") && why.contains("900Mbps are left"), "{why}");
    assert_eq!(
        place(&state, "shop", None).expect("known")[0].host,
        "a",
        "its own minimum does not count against it"
    );
    state.hear(&News::Changes(vec![Change { key: "alive/b".to_owned(), value: None }]));
    assert!(
        place(&state, "new", BitRate::new(1)).expect("placed")[1]
            .why
            .as_deref()
            .is_some_and(|why| why.contains("not heard"))
    );
    assert!(place(&state, "new", None).is_err());
}

fn with_policy() -> (State, Vec<String>) {
    let mut state = two_hosts();
    let (made, number) = put_policy(&state, "p", "policy: {root: {wfq: [others]}}", 1).expect("put");
    make(&mut state, &made);
    assert_eq!(number, 1);
    (state, vec!["a".to_owned(), "b".to_owned()])
}

fn said(version: u64, judged: u64, broken: &[(&str, &str)]) -> Alive {
    let broken = broken.iter().map(|(tenant, why)| ((*tenant).to_owned(), (*why).to_owned())).collect();
    let applied = Some(PolicyInUse { name: "p".to_owned(), version });
    Alive { v: VERSION, applied, judged, broken, ..Alive::default() }
}

#[test]
fn a_policy_bakes_at_its_canary_before_the_others_get_it() {
    let (mut state, hosts) = with_policy();
    let canary = canaries(&hosts, "10%").expect("a share");
    assert_eq!(canary, ["a"]);
    let made = start(&state, "p", 1, &hosts, &canary, (Span::secs(5), 100)).expect("started");
    make(&mut state, &made);
    assert!(start(&state, "p", 1, &hosts, &canary, (Span::secs(5), 100)).is_err(), "one at a time");
    assert!(matches!(step(&state, "p", 101), Step::Wait(_)));
    alive(&mut state, "a", &said(1, 4, &[]));
    assert!(matches!(step(&state, "p", 105), Step::Wait(_)));
    assert_eq!(state.hosts["b"].policy, None);
    alive(&mut state, "a", &said(1, 5, &[]));
    for _ in 0..2 {
        let Step::Make(made, _) = step(&state, "p", 106) else { panic!("goes on") };
        make(&mut state, &made);
    }
    assert_eq!(step(&state, "p", 107), Step::Ended(RolloutState::Done));
    assert_eq!(state.hosts["b"].policy, state.hosts["a"].policy);
    assert!(checked(&state, "b").program.nodes.len() > 1);
    let made = rollback(&state, "p", "by hand").expect("afterwards, too");
    make(&mut state, &made);
    assert!(state.hosts.values().all(|host| host.policy.is_none()));
}

#[test]
fn a_broken_promise_takes_a_policy_back() {
    let (mut state, hosts) = with_policy();
    let made = start(&state, "p", 1, &hosts, &hosts[..1], (Span::secs(5), 100)).expect("started");
    make(&mut state, &made);
    alive(&mut state, "a", &said(7, 9, &[("shop", "of another version")]));
    assert!(matches!(step(&state, "p", 103), Step::Wait(_)), "said of another version");
    alive(&mut state, "a", &said(1, 2, &[("shop", "a neighbour")]));
    let Step::Make(made, words) = step(&state, "p", 103) else { panic!("goes back") };
    assert!(words.contains("shop") && words.contains("a neighbour"), "{words}");
    make(&mut state, &made);
    assert_eq!(step(&state, "p", 104), Step::Ended(RolloutState::RolledBack));
    assert!(state.hosts.values().all(|host| host.policy.is_none()));
    // A canary that says nothing.
    let made = start(&state, "p", 1, &hosts, &hosts[1..], (Span::secs(5), 200)).expect("started");
    make(&mut state, &made);
    assert!(matches!(step(&state, "p", 265), Step::Wait(_)));
    assert!(matches!(step(&state, "p", 266), Step::Make(..)));
}

#[test]
fn a_file_keeps_transactions_whole_and_leases_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fleet.json");
    let (mut one, mut other) = (FileDirectory::new(&path), FileDirectory::new(&path));
    assert_eq!(one.wait(Duration::ZERO).expect("nothing there"), News::All(Keys::new()));
    let state = State::default();
    let made = init(&state, &fleet()).expect("a fleet");
    assert_eq!(other.commit(&made).expect("written"), Outcome::Done);
    assert_eq!(other.commit(&made).expect("read"), Outcome::Conflict, "it is there now");
    let News::Changes(changes) = one.wait(Duration::from_secs(5)).expect("told") else {
        panic!("all at once")
    };
    assert_eq!(changes.len(), 1);
    assert_eq!(State::new(&one.read().expect("read")).fleet, Some(fleet()));
    other.keep("alive/a", &said(1, 0, &[]).write(), Duration::from_millis(300)).expect("kept");
    assert!(State::new(&one.read().expect("read")).alive.contains_key("a"));
    let News::Changes(changes) = one.wait(Duration::from_secs(5)).expect("told") else {
        panic!("all at once")
    };
    assert_eq!(changes[0].key, "alive/a");
    let News::Changes(changes) = one.wait(Duration::from_secs(5)).expect("told") else {
        panic!("all at once")
    };
    assert_eq!(changes, [Change { key: "alive/a".to_owned(), value: None }], "the lease ends");
    std::fs::write(&path, "no JSON").expect("written");
    assert!(one.read().is_err_and(|why| why.to_string().contains("fleet.json")));
}

/// Two processes that count at once lose no count.
#[test]
fn changes_of_several_writers_do_not_undo_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fleet.json");
    let writers = (0..4).map(|writer| {
        let path = path.clone();
        std::thread::spawn(move || {
            let mut directory = FileDirectory::new(path);
            for n in 0..10 {
                loop {
                    let keys = directory.read().expect("read");
                    let before = keys.get("count").cloned();
                    let count: u64 =
                        before.as_ref().map_or(0, |count| serde_json::from_slice(count).expect("a number"));
                    let changes = vec![
                        Change { key: "count".to_owned(), value: Some((count + 1).to_string().into_bytes()) },
                        Change { key: format!("by/{writer}-{n}"), value: Some(b"1".to_vec()) },
                    ];
                    let made = Transaction { conditions: vec![("count".to_owned(), before)], changes };
                    if directory.commit(&made).expect("answers") == Outcome::Done {
                        break;
                    }
                }
            }
        })
    });
    writers.collect::<Vec<_>>().into_iter().for_each(|writer| writer.join().expect("no panic"));
    let keys = FileDirectory::new(path).read().expect("read");
    assert_eq!((keys["count"].as_slice(), keys.len()), (&b"40"[..], 41));
}

/// Keys and values as anyone may write them: garbage, and objects with garbage in a place.
fn hostile() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let sound = prop_oneof![
        Just(fleet().write()),
        (1..4_u8).prop_map(|last| host(last).write()),
        (any::<Option<bool>>(), 1..4_u8).prop_map(|(at, last)| {
            tenant(at.map(|first| if first { "a" } else { "nowhere" }), last).write()
        }),
        Just(said(1, 1, &[]).write()),
    ];
    let spoilt = (sound, any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(
        |(mut value, at, byte, spoil)| {
            if spoil {
                let at = at.index(value.len());
                value[at] = byte;
            }
            value
        },
    );
    let value = prop_oneof![3 => spoilt, 1 => proptest::collection::vec(any::<u8>(), 0..40), 1 => "\\PC{0,40}".prop_map(String::into_bytes)];
    let key = prop_oneof![
        Just("fleet".to_owned()),
        "(hosts|tenants|policies|alive|freed|rollouts)/[ab]",
        "(hosts|tenants|policies|alive|freed|rollouts)/\\PC{0,6}",
        "\\PC{0,12}",
    ];
    proptest::collection::vec((key, value), 0..12)
}

proptest! {
    /// No value panics; each is an object or is named as wrong; the order in which values come does not matter.
    #[test]
    fn whatever_is_in_a_directory_is_read_or_named(values in hostile()) {
        let keys: Keys = values.iter().cloned().collect();
        let state = State::new(&keys);
        let objects = usize::from(state.fleet.is_some()) + state.hosts.len() + state.tenants.len() + state.policies.len()
            + state.rollouts.len() + state.alive.len() + state.freed.len();
        prop_assert_eq!(objects + state.wrong.len(), keys.len());
        let mut later = State::default();
        for (key, value) in &values {
            later.hear(&News::Changes(vec![Change { key: key.clone(), value: Some(value.clone()) }]));
        }
        prop_assert_eq!(&later, &state);
        for (key, _) in &values {
            later.hear(&News::Changes(vec![Change { key: key.clone(), value: None }]));
        }
        prop_assert_eq!(later, State::default());
    }

    /// Whatever objects there are, composing and checking a host's policy ends, with a policy or with words.
    #[test]
    fn hosts_of_any_directory_have_a_policy_or_an_error(values in hostile()) {
        let mut keys = two_hosts().keys().clone();
        keys.extend(values.into_iter().filter(|(key, _)| key != "fleet"));
        let state = State::new(&keys);
        if let Ok(composed) = compose(&state, "a") {
            let again = compose(&state, "a");
            prop_assert_eq!(again.as_ref(), Ok(&composed));
            let _ = composed.check(&mut |sources, file| {
                plimsoll_document::parse(sources, file).map_err(plimsoll_policy::Unread::Syntax)
            });
        }
        let _ = place(&state, "shop", None);
        let _ = step(&state, "a", 5);
    }
}
