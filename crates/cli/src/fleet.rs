//! `plimsoll fleet`: the directory of many hosts, and each host's agent.
//!
//! Why: an operator of many hosts states once which host has which tenant, and under which policy.
//! From: the crate `fleet`, whose decisions and transactions these commands make.
//! Not here: what a change is and when it is refused (`fleet::change`).
//! Invariant: a change is made only if the policies that it leads to were checked, on the values that it was decided on.

mod agent;
mod keys;
mod lists;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use plimsoll_document::{Sources, Tree, Value as Yaml, parse};
use plimsoll_fleet::{
    Access, Composed, Directory, DirectoryError, FleetObject, HostObject, News, Outcome, PolicyInUse,
    Refusal, State, TenantObject, Transaction, VERSION, compose,
};
use plimsoll_policy::{Checked, FileId};
use plimsoll_units::{BitRate, Span};
use serde_json::Value as Json;

use crate::args::{At, Fleet, FleetAdd, FleetInit, FleetJoin, FleetMove, FleetNamed, Kind};
use crate::failure::{Failure, print};
use crate::reader;

/// Runs the subcommand.
pub(crate) fn fleet(args: &Fleet) -> Result<(), Failure> {
    match args {
        Fleet::Init(init) => self::init(init),
        Fleet::Join(join) => self::join(join),
        Fleet::Leave(host) => leave(host),
        Fleet::Hosts(list) => lists::hosts(list),
        Fleet::Tenants(list) => lists::tenants(list),
        Fleet::Add(add) => self::add(add),
        Fleet::Remove(tenant) => remove(tenant),
        Fleet::Move(moved) => self::move_tenant(moved),
        Fleet::Place(place) => lists::place(place),
        Fleet::Policy(policy) => self::policy::policy(policy),
        Fleet::Plan(plan) => policy::plan(plan),
        Fleet::Apply(apply) => policy::apply(apply),
        Fleet::Rollback(named) => policy::rollback(named),
        Fleet::History(history) => policy::history(history),
        Fleet::RotateKey(rotate) => self::keys::rotate(rotate),
        Fleet::Agent(agent) => self::agent::agent(agent),
    }
}

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Place { .. } => Self::Wrong(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Wrong(refusal.to_string())
    }
}

impl At {
    fn open(&self) -> Result<Box<dyn Directory>, Failure> {
        let access = Access {
            ca: self.ca.clone(),
            identity: self.cert.clone().zip(self.cert_key.clone()),
            user: self.user.clone().zip(self.password_file.clone()),
        };
        Ok(plimsoll_fleet::open(&self.directory, &access)?)
    }

    /// The fleet as the directory has it; values that are wrong are told.
    fn state(&self) -> Result<State, Failure> {
        let state = State::new(&self.open()?.read()?);
        warn(&state);
        if state.value("fleet").is_none() {
            let place = plain(&self.directory);
            return Err(Failure::Wrong(format!(
                "there is no fleet at {place}; `plimsoll fleet init` makes one"
            )));
        }
        Ok(state)
    }
}

fn warn(state: &State) {
    for (key, why) in &state.wrong {
        eprintln!("warning: left out {}: {}", plain(key), plain(why));
    }
}

/// Text from the directory, which others may have written, as a terminal may show it.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// How often a change is decided anew because others were faster.
const TRIES: usize = 20;

/// Makes a change in the directory, decided on what is there; returns the state after it.
fn change(at: &At, mut decide: impl FnMut(&State) -> Result<Transaction, Failure>) -> Result<State, Failure> {
    let mut directory = at.open()?;
    for _ in 0..TRIES {
        let state = State::new(&directory.read()?);
        warn(&state);
        let made = decide(&state)?;
        if directory.commit(&made)? == Outcome::Done {
            return Ok(after(&state, &made));
        }
    }
    Err(Failure::Failed(
        "others change the same objects all the time, so nothing was changed; try again".to_owned(),
    ))
}

/// The state that a transaction leads to.
fn after(state: &State, made: &Transaction) -> State {
    let mut state = state.clone();
    state.hear(&News::Changes(made.changes.clone()));
    state
}

/// Composes and checks a host's policy.
fn checked(state: &State, host: &str) -> Result<(Composed, Checked), Failure> {
    let composed = compose(state, host).map_err(|error| Failure::Wrong(error.to_string()))?;
    let process = reader::process();
    let checked =
        composed.check(&mut |sources, file| plimsoll_daemon::reader::parse(&*process, sources, file));
    let checked = checked.map_err(|errors| {
        let mistakes = errors.render(false);
        Failure::Wrong(format!(
            "host `{host}` would get a wrong policy, so nothing was changed:\n{}",
            mistakes.trim_end()
        ))
    })?;
    Ok((composed, checked))
}

/// Checks the policies of these hosts, and that of the host with most tenants, whose limits the map exhausts first.
fn check_hosts<'a>(state: &State, hosts: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    let mut hosts: BTreeSet<&str> = hosts.into_iter().collect();
    hosts.extend(state.hosts.keys().max_by_key(|host| state.tenants_of(host).count()).map(String::as_str));
    for host in hosts.into_iter().filter(|host| state.hosts.contains_key(*host)) {
        checked(state, host)?;
    }
    Ok(())
}

/// The fleet as `init` makes it, before what is stated.
fn new_fleet() -> FleetObject {
    FleetObject {
        v: VERSION,
        networks: BTreeMap::from([("tenants".to_owned(), 1)]),
        overlay: BTreeMap::from([("kind".to_owned(), "geneve".into())]),
        lease: Span::secs(10),
        free_after: Some(Span::secs(60)),
    }
}

/// Changes what is stated of a fleet.
fn stated(args: &FleetInit, mut fleet: FleetObject) -> Result<FleetObject, Failure> {
    if !args.network.is_empty() {
        fleet.networks = args.network.iter().cloned().collect();
        if fleet.networks.len() < args.network.len() {
            return Err(Failure::Wrong("two of the networks have one name".to_owned()));
        }
    }
    fleet.overlay.extend(keys(&args.set)?);
    if let Some(kind) = args.kind {
        let kind = match kind {
            Kind::Geneve => "geneve",
            Kind::Vxlan => "vxlan",
        };
        fleet.overlay.insert("kind".to_owned(), kind.into());
    }
    if let Some(key) = &args.feedback_key {
        let feedback = fleet
            .overlay
            .entry("feedback".to_owned())
            .or_insert_with(|| Json::Object(serde_json::Map::new()));
        let Some(feedback) = feedback.as_object_mut() else {
            return Err(Failure::Wrong("`feedback` of `--set` is no map".to_owned()));
        };
        feedback.insert("key".to_owned(), key.display().to_string().into());
    }
    fleet.lease = args.lease.unwrap_or(fleet.lease);
    fleet.free_after = args.free_after.map_or(fleet.free_after, |never| never.0);
    Ok(fleet)
}

fn init(args: &FleetInit) -> Result<(), Failure> {
    let state = change(&args.at, |state| {
        let empty = State::default();
        let made = match (args.update, state.value("fleet")) {
            (true, None) => return Err(Failure::Wrong("there is no fleet; leave `--update` out".to_owned())),
            (true, Some(_)) => {
                let before = state.fleet.clone().unwrap_or_else(new_fleet);
                plimsoll_fleet::update(state, &stated(args, before)?)?
            }
            (false, _) => plimsoll_fleet::init(state, &stated(args, new_fleet())?)?,
        };
        // What a host's policy would say of it is checked at once, with a host of no consequence where there is none.
        let state = after(if state.hosts.is_empty() { &empty } else { state }, &made);
        trial(&state).and_then(|state| check_hosts(&state, state.hosts.keys().map(String::as_str)))?;
        Ok(made)
    })?;
    let networks = state.fleet.iter().flat_map(|fleet| &fleet.networks);
    let networks: Vec<String> = networks.map(|(name, vni)| format!("{name} ({vni})")).collect();
    let done = if args.update { "changed" } else { "made" };
    print(&format!("{done} the fleet at {}; networks: {}\n", args.at.directory, networks.join(", ")))
}

/// The fleet with a host, where it has none.
fn trial(state: &State) -> Result<State, Failure> {
    if !state.hosts.is_empty() {
        return Ok(state.clone());
    }
    let host = HostObject {
        v: VERSION,
        address: [192, 0, 2, 1].into(),
        rate: BitRate::gbps(1),
        template: "uplink: {port: memory, rate: 1Gbps}".to_owned(),
        policy: None,
        more: BTreeMap::new(),
    };
    Ok(after(state, &plimsoll_fleet::join(state, "host", &host)?))
}

fn join(args: &FleetJoin) -> Result<(), Failure> {
    let template = text(&args.template)?;
    let more = keys(&args.set)?;
    let mut rate = None;
    change(&args.at, |state| {
        let policy = match &args.policy {
            Some(name) => {
                let newest = state.policies.get(name).and_then(|policy| policy.versions.keys().next_back());
                let version = *newest.ok_or_else(|| {
                    Failure::Wrong(format!(
                        "there is no policy `{name}`; `plimsoll fleet policy put {name} FILE` makes it"
                    ))
                })?;
                Some(PolicyInUse { name: name.clone(), version })
            }
            None => state.hosts.get(&args.host).and_then(|host| host.policy.clone()),
        };
        let host = |rate| HostObject {
            v: VERSION,
            address: args.address,
            rate,
            template: template.clone(),
            policy: policy.clone(),
            more: more.clone(),
        };
        // The rate is the template's: it is known once that is checked.
        let tried = after(state, &plimsoll_fleet::join(state, &args.host, &host(BitRate::gbps(1)))?);
        let link = checked(&tried, &args.host)?.1.program.link;
        rate = Some(link);
        Ok(plimsoll_fleet::join(state, &args.host, &host(link))?)
    })?;
    let rate = rate.map_or_else(String::new, |rate| format!(", {rate}"));
    print(&format!(
        "host {} is in the fleet: {}{rate}. Run there: plimsoll fleet agent --host {}\n",
        args.host, args.address, args.host
    ))
}

fn leave(args: &FleetNamed) -> Result<(), Failure> {
    change(&args.at, |state| Ok(plimsoll_fleet::forget_host(state, &args.name)?))?;
    print(&format!("host {} has left the fleet; its agent can be stopped\n", args.name))
}

fn add(args: &FleetAdd) -> Result<(), Failure> {
    let policy = args.policy.as_deref().map(text).transpose()?;
    let (port, more) = (value("--port", &args.port)?, keys(&args.set)?);
    let state = change(&args.at, |state| {
        let networks = state.fleet.iter().flat_map(|fleet| fleet.networks.keys());
        let network = match (&args.network, networks.clone().count()) {
            (Some(network), _) => network.clone(),
            (None, 0 | 1) => networks.clone().next().cloned().unwrap_or_default(),
            (None, _) => {
                let names: Vec<&str> = networks.map(String::as_str).collect();
                return Err(Failure::Wrong(format!("state the tenant's `--network`: {}", names.join(", "))));
            }
        };
        let tenant = TenantObject {
            v: VERSION,
            network,
            host: args.host.clone(),
            mac: args.mac.clone(),
            addresses: args.address.clone(),
            min: args.min,
            max: args.max,
            weight: args.weight,
            port: port.clone(),
            policy: policy.clone(),
            more: more.clone(),
        };
        let made = plimsoll_fleet::add(state, &args.tenant, &tenant, args.replace)?;
        let next = after(state, &made);
        match &args.host {
            Some(host) => {
                check_hosts(&next, [host.as_str()])?;
                check_left(state, &next, &args.tenant)?;
            }
            None => check_anywhere(&next, &args.tenant)?,
        }
        Ok(made)
    })?;
    print(&format!("{}\n", whereabouts(&state, &args.tenant)))
}

/// Checks a tenant that is placed nowhere, as if it were at the first host.
fn check_anywhere(state: &State, tenant: &str) -> Result<(), Failure> {
    let tried = trial(state)?;
    let Some(host) = tried.hosts.keys().next().cloned() else { return Ok(()) };
    let placed = after(&tried, &plimsoll_fleet::move_tenant(&tried, tenant, Some(&host), true)?);
    checked(&placed, &host).map(|_| ())
}

fn remove(args: &FleetNamed) -> Result<(), Failure> {
    change(&args.at, |state| {
        let made = plimsoll_fleet::remove(state, &args.name)?;
        check_left(state, &after(state, &made), &args.name)?;
        Ok(made)
    })?;
    print(&format!("tenant {} is not in the fleet any more\n", args.name))
}

fn move_tenant(args: &FleetMove) -> Result<(), Failure> {
    let state = change(&args.at, |state| {
        let made = plimsoll_fleet::move_tenant(state, &args.tenant, args.to.as_deref(), args.force)?;
        let next = after(state, &made);
        check_hosts(&next, args.to.as_deref())?;
        check_left(state, &next, &args.tenant)?;
        Ok(made)
    })?;
    print(&format!("{}\n", whereabouts(&state, &args.tenant)))
}

/// Checks the policy of the host that a tenant leaves, which may name it. One that is wrong already is to be mended step by step.
fn check_left(before: &State, next: &State, tenant: &str) -> Result<(), Failure> {
    let host = before.tenants.get(tenant).and_then(|tenant| tenant.host.as_deref());
    let Some(host) = host.filter(|host| before.hosts.contains_key(*host)) else { return Ok(()) };
    if checked(before, host).is_err() { Ok(()) } else { checked(next, host).map(|_| ()) }
}

fn whereabouts(state: &State, tenant: &str) -> String {
    match state.tenants.get(tenant).and_then(|tenant| tenant.host.as_ref()) {
        Some(host) => format!("tenant {tenant} is placed at host {host}"),
        None => format!("tenant {tenant} is placed nowhere"),
    }
}

/// A file's text.
fn text(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::io(format!("read {}", file.display()), &error))
}

/// Settings `KEY=VALUE`, with values in YAML.
fn keys(settings: &[(String, String)]) -> Result<BTreeMap<String, Json>, Failure> {
    settings.iter().map(|(key, text)| Ok((key.clone(), value(&format!("--set {key}"), text)?))).collect()
}

/// YAML as JSON; numbers and words alike are texts, as a policy's reader takes them.
fn value(of: &str, text: &str) -> Result<Json, Failure> {
    let sources = Sources::one(of, text);
    let tree = parse(&sources, FileId(0))
        .map_err(|error| Failure::Wrong(format!("{of} `{text}`: {}", error.message)))?;
    Ok(json(&tree))
}

fn json(tree: &Tree) -> Json {
    match &tree.value {
        Yaml::Null => Json::Null,
        Yaml::Text(text) => text.clone().into(),
        Yaml::List(items) => items.iter().map(json).collect(),
        Yaml::Map(entries) => {
            Json::Object(entries.iter().map(|(key, value)| (key.value.clone(), json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_yaml_and_texts_stay_texts() {
        let port = value("--port", "{tap: {netns: \"{tenant}\", name: eth0}}").expect("YAML");
        assert_eq!(port, serde_json::json!({"tap": {"netns": "{tenant}", "name": "eth0"}}));
        assert_eq!(value("--set x", "[1, 2Mbps]").expect("YAML"), serde_json::json!(["1", "2Mbps"]));
        assert!(value("--port", "{tap: ").is_err_and(|why| why.words().contains("--port")));
    }

    #[test]
    fn a_terminal_gets_no_control_characters_from_the_directory() {
        assert_eq!(plain("a\u{1b}[31m\nb ü"), "a\\u{1b}[31m\\nb ü");
    }
}
