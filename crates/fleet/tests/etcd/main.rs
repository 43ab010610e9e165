//! The directory in a real etcd, on loopback: transactions, leases, watches over restarts and compaction, passwords and TLS.
//!
//! Says so when it has to skip: there is no etcd.

#[path = "server.rs"]
mod server;

use std::time::{Duration, Instant};

use plimsoll_fleet::{
    Access, Change, Directory, DirectoryError, EtcdDirectory, Keys, News, Outcome, Transaction,
};
use server::Etcd;

fn put(key: &str, value: &str) -> Change {
    Change { key: key.to_owned(), value: Some(value.as_bytes().to_vec()) }
}

/// Makes changes; on a connection that an end of etcd broke the first try fails.
fn commit(directory: &mut dyn Directory, changes: Vec<Change>) {
    let made = Transaction { conditions: Vec::new(), changes };
    let done = (0..5).find_map(|_| directory.commit(&made).inspect_err(|error| eprintln!("{error}")).ok());
    assert_eq!(done, Some(Outcome::Done));
}

/// Waits for news that are not empty.
fn news(directory: &mut dyn Directory) -> News {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end, "no news");
        match directory.wait(Duration::from_secs(1)) {
            Ok(News::Changes(changes)) if changes.is_empty() => {}
            Ok(news) => return news,
            Err(error) => eprintln!("{error}"),
        }
    }
}

#[test]
fn a_member_that_is_down_is_passed_over() {
    let Some(etcd) = Etcd::start("member", &[]) else { return };
    let place = format!("http://127.0.0.1:1,{}", etcd.url("prod"));
    let mut directory = EtcdDirectory::new(&place, &Access::default()).expect("a directory");
    let answers = (0..20).filter(|_| directory.read().is_ok()).count();
    assert_eq!(answers, 20);
}

#[test]
fn transactions_leases_and_watches_of_a_fleet_in_etcd() {
    let Some(etcd) = Etcd::start("watch", &[]) else { return };
    let open = |fleet: &str| EtcdDirectory::new(&etcd.url(fleet), &Access::default()).expect("a directory");
    let (mut one, mut other, mut stranger) = (open("prod"), open("prod"), open("prod2"));
    assert_eq!(news(&mut one), News::All(Keys::new()));
    commit(&mut other, vec![put("fleet", "1"), put("hosts/a", "2")]);
    commit(&mut stranger, vec![put("fleet", "x")]);
    assert_eq!(
        news(&mut one),
        News::Changes(vec![put("fleet", "1"), put("hosts/a", "2")]),
        "in one transaction"
    );
    let stale = Transaction {
        conditions: vec![("hosts/a".to_owned(), None)],
        changes: vec![put("hosts/a", "3"), put("hosts/b", "3")],
    };
    assert_eq!(one.commit(&stale).expect("answers"), Outcome::Conflict);
    assert_eq!(other.read().expect("answers").len(), 2, "nothing of it was done");
    // More keys than one page has.
    for many in (0..1_000).collect::<Vec<u32>>().chunks(100) {
        commit(&mut other, many.iter().map(|n| put(&format!("tenants/t{n}"), "4")).collect());
    }
    assert_eq!(one.read().expect("answers").len(), 1_002);
    let mut seen = 0;
    while seen < 1_000 {
        let News::Changes(changes) = news(&mut one) else { panic!("nothing was missed") };
        seen += changes.len();
    }
    // A lease of a second ends by itself, and holds while it is renewed.
    other.keep("alive/a", b"5", Duration::from_secs(1)).expect("kept");
    assert_eq!(news(&mut one), News::Changes(vec![put("alive/a", "5")]));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(400));
        other.keep("alive/a", b"5", Duration::from_secs(1)).expect("kept");
    }
    assert_eq!(one.wait(Duration::from_millis(1)).expect("answers"), News::Changes(Vec::new()));
    assert_eq!(news(&mut one), News::Changes(vec![Change { key: "alive/a".to_owned(), value: None }]));
}

#[test]
fn changes_are_not_missed_over_restarts_and_compaction() {
    let Some(mut etcd) = Etcd::start("compact", &[]) else { return };
    let open = || EtcdDirectory::new(&etcd.url("prod"), &Access::default()).expect("a directory");
    let (mut one, mut other) = (open(), open());
    assert_eq!(news(&mut one), News::All(Keys::new()));
    etcd.kill();
    let error = one.wait(Duration::from_secs(5)).expect_err("it is gone");
    assert!(matches!(error, DirectoryError::Unreachable { .. }), "{error}");
    assert!(one.commit(&Transaction::default()).is_err());
    etcd.launch();
    for n in 0..5 {
        commit(&mut other, vec![put("hosts/a", &n.to_string())]);
    }
    let News::Changes(changes) = news(&mut one) else { panic!("nothing is compacted yet") };
    assert_eq!(changes.last(), Some(&put("hosts/a", "4")), "{changes:?}");
    etcd.kill();
    let _ = one.wait(Duration::from_secs(5));
    etcd.launch();
    commit(&mut other, vec![put("hosts/b", "1")]);
    commit(&mut other, vec![put("hosts/a", "9")]);
    etcd.compact();
    let News::All(keys) = news(&mut one) else { panic!("a part of the changes is compacted away") };
    assert_eq!((keys["hosts/a"].as_slice(), keys.len()), (&b"9"[..], 2));
    commit(&mut other, vec![put("hosts/a", "10")]);
    assert_eq!(news(&mut one), News::Changes(vec![put("hosts/a", "10")]));
}

/// An etcd that is there and says nothing, as behind a broken link.
#[test]
fn silence_is_an_error_in_seconds() {
    let Some(etcd) = Etcd::start("silence", &[]) else { return };
    let mut one = EtcdDirectory::new(&etcd.url("prod"), &Access::default()).expect("a directory");
    assert_eq!(news(&mut one), News::All(Keys::new()));
    etcd.pause(true);
    let begun = Instant::now();
    assert!(one.keep("alive/a", b"1", Duration::from_secs(5)).is_err());
    assert!(one.read().is_err());
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    etcd.pause(false);
    one.keep("alive/a", b"1", Duration::from_secs(5)).expect("it is back");
    assert_eq!(news(&mut one), News::Changes(vec![put("alive/a", "1")]));
}

/// A lease that ended while its holder was away is made anew.
#[test]
fn a_lease_that_ended_unseen_is_made_anew() {
    let Some(mut etcd) = Etcd::start("ended", &[]) else { return };
    let open = || EtcdDirectory::new(&etcd.url("prod"), &Access::default()).expect("a directory");
    let (mut one, mut other) = (open(), open());
    one.keep("alive/a", b"1", Duration::from_secs(1)).expect("kept");
    etcd.kill();
    assert!(one.keep("alive/a", b"1", Duration::from_secs(1)).is_err());
    etcd.launch();
    let end = Instant::now() + Duration::from_secs(20);
    while !other.read().expect("answers").is_empty() {
        assert!(Instant::now() < end, "the lease holds");
        std::thread::sleep(Duration::from_millis(100));
    }
    let again = (0..3).any(|_| one.keep("alive/a", b"1", Duration::from_secs(1)).is_ok());
    assert!(again && other.read().expect("answers").contains_key("alive/a"));
}

#[test]
fn users_need_their_password() {
    let Some(etcd) = Etcd::start("users", &[]) else { return };
    etcd.enable_auth("root", "secret");
    let folder = tempfile::tempdir().expect("a folder");
    let access = |password: &str| {
        let file = folder.path().join(password);
        std::fs::write(&file, format!("{password}\n")).expect("written");
        Access { user: Some(("root".to_owned(), file)), ..Access::default() }
    };
    let open = |access: &Access| EtcdDirectory::new(&etcd.url("prod"), access).expect("a directory");
    assert_eq!(open(&access("secret")).read().expect("allowed"), Keys::new());
    let wrong = open(&access("guess")).read().expect_err("refused");
    assert!(matches!(wrong, DirectoryError::Refused { .. }), "{wrong}");
    let none = open(&Access::default()).read().expect_err("refused");
    assert!(matches!(none, DirectoryError::Refused { .. }), "{none}");
}

#[test]
fn tls_needs_the_authority_and_the_clients_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(pem) = server::certificates(folder.path()) else { return };
    let file = |name: &str| pem.join(name).display().to_string();
    let options = [
        "--cert-file",
        &file("server.pem"),
        "--key-file",
        &file("server.key"),
        "--client-cert-auth",
        "--trusted-ca-file",
        &file("ca.pem"),
    ]
    .map(str::to_owned);
    let Some(etcd) = Etcd::start("tls", &options) else { return };
    let url = etcd.url("prod").replace("http:", "https:");
    let identity = Some((pem.join("client.pem"), pem.join("client.key")));
    let access = Access { ca: Some(pem.join("ca.pem")), identity, user: None };
    let mut one = EtcdDirectory::new(&url, &access).expect("a directory");
    let end = Instant::now() + Duration::from_secs(10);
    while let Err(error) = one.read() {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut stranger = EtcdDirectory::new(&url, &Access { identity: None, ..access }).expect("a directory");
    assert!(stranger.read().is_err());
    assert!(EtcdDirectory::new(&url, &Access::default()).is_err_and(|why| why.to_string().contains("--ca")));
}
