//! An agent with a directory in a file, and a daemon that is only said to be there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use plimsoll_fleet::{
    Agent, Change, Composed, Directory, FileDirectory, HostObject, Local, Outcome, Settings, State,
    TenantObject, Transaction, Value, put_policy, start,
};
use plimsoll_units::Span;

use super::{fleet, host, tenant};

/// What the daemon was asked, and what it answers.
#[derive(Default)]
struct Daemon {
    reloads: usize,
    away: bool,
    broken: BTreeMap<String, String>,
}

struct Fake {
    daemon: Rc<RefCell<Daemon>>,
    file: std::path::PathBuf,
}

impl Local for Fake {
    fn check(&mut self, composed: &Composed) -> Result<(), String> {
        if composed.text.contains("wrong") { Err("it says wrong".to_owned()) } else { Ok(()) }
    }

    /// Refuses as a daemon does that cannot open a port.
    fn reload(&mut self) -> Result<(), String> {
        let mut daemon = self.daemon.borrow_mut();
        let text = fs::read_to_string(&self.file).expect("written before");
        match text.contains("\"netns\":\"bad") {
            _ if daemon.away => Err("no plimsoll answers".to_owned()),
            true => Err("there is no namespace".to_owned()),
            false => {
                daemon.reloads += 1;
                Ok(())
            }
        }
    }

    fn broken(&mut self, _: u64) -> Result<BTreeMap<String, String>, String> {
        Ok(self.daemon.borrow().broken.clone())
    }

    fn health(&mut self) -> Option<String> {
        None
    }
}

/// A directory with a fleet of the host `a`, and another hand on it.
struct Desk {
    folder: tempfile::TempDir,
    daemon: Rc<RefCell<Daemon>>,
}

impl Desk {
    fn new() -> Self {
        let desk = Self { folder: tempfile::tempdir().expect("a folder"), daemon: Rc::default() };
        desk.put("fleet", &fleet());
        desk.put("hosts/a", &host(1));
        desk
    }

    fn directory(&self) -> FileDirectory {
        FileDirectory::new(self.folder.path().join("fleet.json"))
    }

    fn put(&self, key: &str, object: &impl Value) {
        let changes = vec![Change { key: key.to_owned(), value: Some(object.write()) }];
        self.make(&Transaction { conditions: Vec::new(), changes });
    }

    fn make(&self, made: &Transaction) {
        assert_eq!(self.directory().commit(made).expect("written"), Outcome::Done);
    }

    fn state(&self) -> State {
        State::new(&self.directory().read().expect("read"))
    }

    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("a.yaml")
    }

    fn agent(&self) -> Agent<'static> {
        let settings = Settings { host: "a".to_owned(), file: self.file() };
        let local = Fake { daemon: Rc::clone(&self.daemon), file: self.file() };
        Agent::new(
            settings,
            Box::new(self.directory()),
            Box::new(local),
            Box::new(|line| eprintln!("{line}")),
        )
    }

    /// Turns the agent until its host's status in the directory is such.
    fn until(&self, agent: &mut Agent<'_>, what: &str, holds: impl Fn(&State) -> bool) {
        for _ in 0..40 {
            agent.turn();
            if holds(&self.state()) {
                return;
            }
        }
        panic!("{what}: {:?}", self.state().alive);
    }
}

fn text(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

#[test]
fn an_agent_writes_what_the_directory_says_and_tells_what_is_in_force() {
    let desk = Desk::new();
    desk.daemon.borrow_mut().away = true;
    let mut agent = desk.agent();
    desk.until(&mut agent, "it says why not", |state| {
        state.alive.get("a").is_some_and(|said| said.error.as_deref() == Some("no plimsoll answers"))
    });
    assert!(text(&desk.file()).contains("tenants: {}"), "a daemon that starts later finds its file");
    desk.daemon.borrow_mut().away = false;
    let well = |state: &State| state.alive.get("a").is_some_and(|said| said.error.is_none());
    desk.until(&mut agent, "it is well", well);
    desk.put(
        "tenants/shop",
        &TenantObject { policy: Some("policy: {root: {}}\n".to_owned()), ..tenant(Some("a"), 1) },
    );
    desk.until(&mut agent, "the tenant is there", |_| text(&desk.file()).contains("shop"));
    assert!(desk.folder.path().join("tenants-of-a/shop.yaml").exists());
    desk.put("tenants/shop", &tenant(Some("a"), 1));
    desk.until(&mut agent, "its text goes", |_| !desk.folder.path().join("tenants-of-a/shop.yaml").exists());
    // A policy that is wrong never comes to the file.
    let reloads = desk.daemon.borrow().reloads;
    desk.put("hosts/a", &HostObject { template: "wrong".to_owned(), ..host(1) });
    desk.until(&mut agent, "it says that it is wrong", |state| !well(state));
    assert!(!text(&desk.file()).contains("wrong"));
    assert_eq!(desk.daemon.borrow().reloads, reloads);
    desk.put("hosts/a", &host(1));
    desk.until(&mut agent, "it is well again", well);
}

#[test]
fn a_tenant_whose_port_cannot_be_opened_keeps_no_change_from_the_others() {
    let desk = Desk::new();
    let mut agent = desk.agent();
    desk.until(&mut agent, "it is well", |state| state.alive.contains_key("a"));
    let port = |netns: &str| serde_json::json!({"tap": {"netns": netns, "name": "eth0"}});
    desk.put("tenants/batch", &TenantObject { port: port("bad"), ..tenant(Some("a"), 2) });
    desk.put("tenants/shop", &tenant(Some("a"), 1));
    desk.until(&mut agent, "it names the tenant", |state| {
        state.alive["a"]
            .error
            .as_deref()
            .is_some_and(|why| why.contains("batch") && why.contains("namespace"))
    });
    let file = text(&desk.file());
    assert!(file.contains("\"shop\": {\"addresses\"") && !file.contains("batch"), "{file}");
    desk.put("tenants/batch", &TenantObject { port: port("good"), ..tenant(Some("a"), 2) });
    desk.until(&mut agent, "both are there", |state| state.alive["a"].error.is_none());
    assert!(text(&desk.file()).contains("batch"));
}

#[test]
fn a_canarys_agent_takes_a_policy_back_when_a_promise_is_broken() {
    let desk = Desk::new();
    let mut agent = desk.agent();
    desk.until(&mut agent, "it is well", |state| state.alive.contains_key("a"));
    let (made, _) = put_policy(&desk.state(), "p", "policy: {root: {wfq: [others]}}", 1).expect("put");
    desk.make(&made);
    let hosts = ["a".to_owned()];
    let now = plimsoll_fleet::unix_time();
    let made = start(&desk.state(), "p", 1, &hosts, &hosts, (Span::secs(60), now)).expect("started");
    desk.make(&made);
    desk.daemon.borrow_mut().broken = BTreeMap::from([("shop".to_owned(), "its neighbour".to_owned())]);
    desk.until(&mut agent, "it goes back", |state| state.hosts["a"].policy.is_none());
    let why = desk.state().rollouts["p"].why.clone().expect("why");
    assert!(why.contains("shop") && why.contains("its neighbour"), "{why}");
    desk.until(&mut agent, "the old one is in force", |state| state.alive["a"].applied.is_none());
    assert!(!text(&desk.file()).contains("others"));
}
