//! `plimsoll fleet policy`, `plan`, `apply`, `rollback` and `history`.
//!
//! Why: a policy for many hosts is tried at a few, and what breaks promises there goes back by itself.
//! From: `fleet::rollout`, which the hosts' agents drive as well: a command that ends halfway leaves nothing halfway.
//! Not here: when a rollout goes on or back.
//! Invariant: a text that is wrong for a host that uses it, or would, changes nothing.

use std::thread;
use std::time::Duration;

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_fleet::{
    HostObject, News, Outcome, PolicyInUse, RolloutState, State, Step, Transaction, Value, unix_time,
};
use plimsoll_policy::diff;
use serde_json::json;

use super::{after, change, check_hosts, checked, plain, text, trial};
use crate::args::{
    FleetApply, FleetHistory, FleetList, FleetNamed, FleetPlan, FleetPolicy, FleetPut, FleetShow,
};
use crate::failure::{Failure, print, print_json};
use crate::show::table;

/// Runs the subcommand.
pub(super) fn policy(args: &FleetPolicy) -> Result<(), Failure> {
    match args {
        FleetPolicy::Put(put) => self::put(put),
        FleetPolicy::Show(show) => self::show(show),
        FleetPolicy::List(list) => self::list(list),
    }
}

fn put(args: &FleetPut) -> Result<(), Failure> {
    let text = text(&args.file)?;
    let (mut number, mut users) = (0, Vec::new());
    change(&args.at, |state| {
        let (made, version) = plimsoll_fleet::put_policy(state, &args.name, &text, unix_time())?;
        number = version;
        let next = after(state, &made);
        users = users_of(&next, &args.name);
        let next = trial(&next)?;
        // A policy that no host uses yet is checked for all, as it may come to any.
        let hosts = if users.is_empty() { next.hosts.keys().cloned().collect() } else { users.clone() };
        let tried = using(&next, &hosts, &args.name, version);
        check_hosts(&tried, hosts.iter().map(String::as_str))?;
        Ok(made)
    })?;
    let users = if users.is_empty() {
        "no host uses it yet".to_owned()
    } else {
        format!("used by {}", users.join(", "))
    };
    let name = &args.name;
    print(&format!(
        "version {number} of policy {name} is in the directory; {users}. Next: plimsoll fleet plan {name}\n"
    ))
}

/// The hosts that use a policy, by name.
fn users_of(state: &State, policy: &str) -> Vec<String> {
    let uses = |host: &HostObject| host.policy.as_ref().is_some_and(|used| used.name == policy);
    state.hosts.iter().filter(|(_, host)| uses(host)).map(|(name, _)| name.clone()).collect()
}

/// The state in which these hosts use a version of a policy.
fn using(state: &State, hosts: &[String], policy: &str, version: u64) -> State {
    let used = PolicyInUse { name: policy.to_owned(), version };
    let changes = hosts.iter().filter_map(|name| {
        let host = HostObject { policy: Some(used.clone()), ..state.hosts.get(name)?.clone() };
        Some(plimsoll_fleet::Change { key: format!("hosts/{name}"), value: Some(host.write()) })
    });
    let mut state = state.clone();
    state.hear(&News::Changes(changes.collect()));
    state
}

fn show(args: &FleetShow) -> Result<(), Failure> {
    let state = args.at.state()?;
    let version = version_of(&state, &args.name, args.version)?;
    print(&format!("{}\n", state.policies[&args.name].versions[&version].text.trim_end()))
}

/// The stated version, or the newest; an error where there is none.
fn version_of(state: &State, policy: &str, version: Option<u64>) -> Result<u64, Failure> {
    let versions = state.policies.get(policy).map(|policy| &policy.versions);
    let versions = versions.ok_or_else(|| {
        Failure::Wrong(format!("there is no policy `{policy}`; `plimsoll fleet policy list` lists them"))
    })?;
    let found = version.map_or_else(
        || versions.keys().next_back().copied(),
        |wanted| versions.contains_key(&wanted).then_some(wanted),
    );
    found.ok_or_else(|| {
        let known: Vec<String> = versions.keys().map(ToString::to_string).collect();
        Failure::Wrong(format!("policy `{policy}` has the versions {}", known.join(", ")))
    })
}

fn list(args: &FleetList) -> Result<(), Failure> {
    let state = args.at.state()?;
    let rows = state.policies.iter().map(|(name, policy)| {
        let newest = policy.versions.keys().next_back().copied().unwrap_or(0);
        (name, newest, users_of(&state, name))
    });
    if args.json {
        let rows =
            rows.map(|(name, newest, hosts)| json!({ "name": name, "newest": newest, "hosts": hosts }));
        return print_json(&json!({ "policies": rows.collect::<Vec<_>>() }));
    }
    let mut table = table(&["policy", "newest", "used by"], &[Left, Right, Left]);
    for (name, newest, hosts) in rows {
        let hosts = if hosts.is_empty() { "-".to_owned() } else { hosts.join(", ") };
        table.add_row([name.clone(), newest.to_string(), hosts]);
    }
    print(&format!("{table}\n"))
}

/// The version and the hosts that a plan or a rollout is of.
fn subject(state: &State, args: &FleetPlan) -> Result<(u64, Vec<String>), Failure> {
    let version = version_of(state, &args.policy, args.version)?;
    let users = users_of(state, &args.policy);
    let hosts = match (args.host.is_empty(), users.is_empty()) {
        (false, _) => args.host.clone(),
        (true, false) => users,
        (true, true) => state.hosts.keys().cloned().collect(),
    };
    if let Some(host) = hosts.iter().find(|host| !state.hosts.contains_key(*host)) {
        return Err(Failure::Wrong(format!("there is no host `{host}`; `plimsoll fleet hosts` lists them")));
    }
    Ok((version, hosts))
}

/// Shows what would change at each host.
pub(super) fn plan(args: &FleetPlan) -> Result<(), Failure> {
    let state = args.at.state()?;
    let (version, hosts) = subject(&state, args)?;
    let next = using(&state, &hosts, &args.policy, version);
    let mut text = format!("policy {} {version} at {} hosts:\n", args.policy, hosts.len());
    for host in &hosts {
        let (before, then) = (checked(&state, host)?.1, checked(&next, host)?.1);
        let changes = diff(&before, &then);
        let changes = if changes.is_empty() { "nothing changes\n".to_owned() } else { changes.to_string() };
        text.push_str(&format!("\nhost {host}:\n"));
        changes.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    print(&text)
}

/// Brings a policy to hosts, the canaries first, and waits for the end.
pub(super) fn apply(args: &FleetApply) -> Result<(), Failure> {
    let policy = &args.plan.policy;
    let (mut version, mut canaries) = (0, Vec::new());
    change(&args.plan.at, |state| {
        let (wanted, hosts) = subject(state, &args.plan)?;
        version = wanted;
        check_hosts(&using(state, &hosts, policy, version), hosts.iter().map(String::as_str))?;
        canaries = plimsoll_fleet::canaries(&hosts, &args.canary)?;
        Ok(plimsoll_fleet::start(state, policy, version, &hosts, &canaries, (args.bake, unix_time()))?)
    })?;
    print(&format!("policy {policy} {version} goes to {} first, for {}\n", canaries.join(", "), args.bake))?;
    if args.no_wait { Ok(()) } else { follow(args, version) }
}

/// Drives a rollout to its end, beside the hosts' agents.
fn follow(args: &FleetApply, version: u64) -> Result<(), Failure> {
    let policy = &args.plan.policy;
    let mut directory = args.plan.at.open()?;
    let mut said = String::new();
    loop {
        let state = State::new(&directory.read()?);
        let words = match plimsoll_fleet::step(&state, policy, unix_time()) {
            Step::Wait(words) => words,
            Step::Make(made, words) => {
                // Where an agent was faster, the next look tells what it did.
                if directory.commit(&made)? == Outcome::Done { words } else { continue }
            }
            Step::Ended(RolloutState::RolledBack) => {
                let why =
                    state.rollouts.get(policy).and_then(|rollout| rollout.why.clone()).unwrap_or_default();
                return Err(Failure::Failed(format!(
                    "policy {policy} {version} was rolled back: {}",
                    plain(&why)
                )));
            }
            Step::Ended(_) => return print(&format!("policy {policy} {version} is at all hosts\n")),
        };
        // Words with a count of seconds would be a line each second.
        let kind = words.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default().to_owned();
        if kind != said {
            print(&format!("{words}\n"))?;
            said = kind;
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Gives hosts back what they had.
pub(super) fn rollback(args: &FleetNamed) -> Result<(), Failure> {
    // Of many hosts a transaction takes a part.
    loop {
        let state = change(&args.at, |state| -> Result<Transaction, Failure> {
            Ok(plimsoll_fleet::rollback(state, &args.name, "by command")?)
        })?;
        if state.rollouts.get(&args.name).is_none_or(|rollout| rollout.state == RolloutState::RolledBack) {
            return print(&format!("hosts have back what they had before policy {}\n", args.name));
        }
    }
}

/// Lists a policy's versions and its last rollout.
pub(super) fn history(args: &FleetHistory) -> Result<(), Failure> {
    let state = args.at.state()?;
    version_of(&state, &args.policy, None)?;
    let (policy, rollout) = (&state.policies[&args.policy], state.rollouts.get(&args.policy));
    if args.json {
        return print_json(&json!({ "versions": policy.versions, "rollout": rollout }));
    }
    let mut table = table(&["version", "put", "used by", "last rollout"], &[Right, Left, Left, Left]);
    for (number, version) in &policy.versions {
        let uses = |host: &HostObject| {
            host.policy.as_ref().is_some_and(|used| used.name == args.policy && used.version == *number)
        };
        let hosts: Vec<&str> =
            state.hosts.iter().filter(|(_, host)| uses(host)).map(|(name, _)| name.as_str()).collect();
        let last = rollout.filter(|rollout| rollout.to == *number).map(|rollout| {
            match (rollout.state, &rollout.why) {
                (RolloutState::Canary, _) => format!("at its canaries: {}", rollout.canaries.join(", ")),
                (RolloutState::Done, _) => "done".to_owned(),
                (RolloutState::RolledBack, why) => {
                    format!("rolled back: {}", plain(why.as_deref().unwrap_or_default()))
                }
            }
        });
        table.add_row([
            number.to_string(),
            format!("{} ago", age(unix_time().saturating_sub(version.at))),
            if hosts.is_empty() { "-".to_owned() } else { hosts.join(", ") },
            last.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    print(&format!("{table}\n"))
}

/// A time that has passed, in its largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
