//! The policy file that an engine runs for one system of a scenario.
//!
//! Why: a scenario carries the policy, a world knows the ports; `plimsoll run` wants both in one file.
//! From: `docs/policy.md`; Loom §2.2 and §6 for the baselines (one queue per core, one queue per flow).
//! Not here: kernel queueing disciplines, which `lab` makes for the systems that do not run on the engine.
//! Invariant: same scenario and wiring, same text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, absolute};

use plimsoll_document::{Tree, Value};
use plimsoll_units::BitRate;

use crate::model::{Scenario, Tenant};
use crate::network::{Host, Ingress};
use crate::sections::PolicySections;
use crate::system::{System, SystemKind};
use plimsoll_document::yaml;

/// The settings that only the world knows: ports and sockets, each as YAML on one line.
#[derive(Clone, Debug, Default)]
pub struct Wiring {
    /// The uplink's port: `{tap: {netns: world, name: up0}}`.
    pub uplink: String,
    /// Each tenant's port.
    pub tenants: BTreeMap<String, String>,
    /// The value of `api:`, if any: `{socket: /tmp/x/api.sock}`.
    pub api: Option<String>,
    /// Rate of this host's own link, where it is not the scenario's.
    pub rate: Option<BitRate>,
    /// Whether the run is live: the real engine is then slowed down on the way in as the file says, and does without what
    /// the system turns off. Virtual time has models for both.
    pub live: bool,
    /// Whether the run is in virtual time, where an engine has all the time that it needs: no policy is too costly.
    pub virtual_time: bool,
}

/// Ephemeral ports of Linux, which spread flows over the queues of [`SystemKind::Mq`].
const EPHEMERAL: (u32, u32) = (32_768, 60_999);

impl Scenario {
    /// The policy file for a system that runs on the engine ([`SystemKind::on_engine`]).
    #[must_use]
    pub fn policy_file(&self, system: &System, wiring: &Wiring) -> String {
        let mut sections = self.sections(system);
        sections.worsen(experiment(None, system).filter(|_| wiring.live));
        self.write(system, &sections, self.tenants.iter(), wiring)
    }

    /// The policy file of one of several hosts, with the host's own sections where it has some. Tenants that live elsewhere
    /// are promised nothing here; they are named only if the policy may name them.
    #[must_use]
    pub fn policy_file_of(&self, host: &Host, system: &System, wiring: &Wiring) -> String {
        let mut sections = self.sections(system);
        if let Some(own) = &host.policy {
            sections.override_with(own);
        }
        let at_home = |tenant: &Tenant| tenant.homes.iter().any(|home| home.host == host.name);
        let here = self.tenants.iter().filter(|tenant| at_home(tenant)).map(|tenant| tenant.name.as_str());
        let here: BTreeSet<&str> = here.collect();
        for (name, entries) in &mut sections.tenants {
            if !here.contains(name.as_str()) {
                entries.clear();
            }
        }
        sections.backpressure = sections.backpressure.filter(|_| system.backpressure);
        sections.press_only(&here);
        sections.worsen(experiment(Some(host), system).filter(|_| wiring.live));
        let mut named = BTreeSet::new();
        [&sections.policy, &sections.limits].into_iter().flatten().for_each(|tree| words(tree, &mut named));
        let named = |tenant: &Tenant| named.contains(tenant.name.as_str());
        let tenants = self.tenants.iter().filter(|tenant| at_home(tenant) || named(tenant));
        self.write(system, &sections, tenants, wiring)
    }

    fn write<'a>(
        &self,
        system: &System,
        sections: &PolicySections,
        tenants: impl Iterator<Item = &'a Tenant>,
        wiring: &Wiring,
    ) -> String {
        let mut text = String::new();
        let rate = wiring.rate.unwrap_or(self.rate).get();
        // Live, the policy has an overlay of its own, which counts its headers itself.
        let overlay = if wiring.virtual_time { self.overlay } else { 0 };
        let (uplink, mtu) = (&wiring.uplink, self.mtu - overlay.min(self.mtu - 1));
        let overhead = if overlay > 0 { format!(", overhead: {overlay}B") } else { String::new() };
        let _ = write!(text, "uplink: {{port: {uplink}, rate: {rate}bps, mtu: {mtu}{overhead}}}");
        if let Some(api) = &wiring.api {
            let _ = write!(text, "\napi: {api}");
        }
        if let Some(engine) = &engine(sections, wiring) {
            text.push_str("\nengine:");
            yaml::write(engine, &mut text, 2, 0);
        }
        text.push_str("\ntenants:");
        for tenant in tenants {
            self.write_tenant(&mut text, &tenant.name, system, sections, wiring);
        }
        if let Some(backpressure) = &sections.backpressure {
            text.push_str("\nbackpressure:");
            yaml::write(backpressure, &mut text, 2, 0);
        }
        let classes = sections.policy.as_ref().map(|classes| sections.rebase_classes(classes, wiring));
        for (name, section) in [("limits", &sections.limits), ("policy", &classes)] {
            if let Some(section) = section {
                let _ = write!(text, "\n{name}:");
                yaml::write(section, &mut text, 2, 1);
            }
        }
        text.push('\n');
        text
    }

    /// Asks the policy's checker about each system that runs on the engine; gives the names of those whose policy
    /// breaks a rule, with what it says. Places are those of [`Scenario::policy_file`]'s text.
    #[must_use]
    pub fn check_policies(&self) -> Vec<(String, plimsoll_policy::Errors)> {
        let check = |system: &System| Some((system.name.clone(), self.checked(system).err()?));
        self.systems.iter().filter(|system| system.kind.on_engine()).filter_map(check).collect()
    }

    /// The policy of a system that runs on the engine, with tenants' files, as the policy's checker has it.
    ///
    /// # Errors
    /// What the checker says.
    pub fn checked(&self, system: &System) -> Result<plimsoll_policy::Checked, plimsoll_policy::Errors> {
        let virtual_time = self.virtual_time;
        let wiring = Wiring { uplink: "memory".to_owned(), virtual_time, ..Wiring::default() };
        check_text(&format!("{}, policy of {}", self.name, system.name), self.policy_file(system, &wiring))
    }

    /// The tenants with what a system's own `tenants:` promises them, for systems of the kernel.
    #[must_use]
    pub fn tenants_of(&self, system: &System) -> Vec<Tenant> {
        let mut tenants = self.tenants.clone();
        let own = system.policy.iter().flat_map(|sections| &sections.tenants);
        for (name, entries) in own {
            let Some(tenant) = tenants.iter_mut().find(|tenant| tenant.name == *name) else { continue };
            let value = |key: &str| match entries.iter().find(|(k, _)| k == key).map(|(_, tree)| &tree.value)
            {
                Some(Value::Text(text)) => Some(text.as_str()),
                _ => None,
            };
            tenant.min = value("min").and_then(|text| text.parse().ok());
            tenant.max = value("max").and_then(|text| text.parse().ok());
            let weight: Option<u32> = value("weight").and_then(|text| text.parse().ok());
            (tenant.weight, tenant.weighted) = (weight.unwrap_or(1), weight.is_some());
        }
        self.hold_to_rates(&mut tenants, &self.sections(system));
        tenants
    }

    /// The tenants as [`Self::tenants_of`] has them, on one of several hosts, which may have a policy of its own.
    #[must_use]
    pub fn tenants_on(&self, host: &Host, system: &System) -> Vec<Tenant> {
        let mut tenants = self.tenants_of(system);
        if let Some(own) = &host.policy {
            self.hold_to_rates(&mut tenants, own);
        }
        tenants
    }

    /// Makes the rate that `rate_share` gives a tenant its `min` and its `max`, unless the file states others.
    fn hold_to_rates(&self, tenants: &mut [Tenant], sections: &PolicySections) {
        let classes = sections.policy.iter().flat_map(Tree::entries);
        let rates = classes.filter_map(|(_, class)| class.get("rate_share")).flat_map(Tree::entries);
        for (name, rate) in rates {
            let Value::Text(rate) = &rate.value else { continue };
            let rate: Option<BitRate> = rate.parse().ok();
            let found = tenants.iter_mut().find(|tenant| tenant.name == name.value);
            if let Some(tenant) = found.filter(|tenant| tenant.min.is_none() && tenant.max.is_none()) {
                (tenant.min, tenant.max) = (rate, rate);
            }
        }
    }

    fn write_tenant(
        &self,
        text: &mut String,
        name: &str,
        system: &System,
        sections: &PolicySections,
        wiring: &Wiring,
    ) {
        let port = wiring.tenants.get(name).map_or("memory", String::as_str);
        let _ = write!(text, "\n  {name}:\n    port: {port}");
        let entries = sections.tenants.iter().find(|(tenant, _)| tenant == name);
        for (key, value) in entries.iter().flat_map(|(_, entries)| entries) {
            let envelope = system.kind == SystemKind::Plimsoll;
            if envelope {
                let _ = write!(text, "\n    {key}:");
                yaml::write(&sections.rebase(key, value, wiring), text, 6, 0);
            }
        }
    }

    /// The system's own sections where it has some, else the scenario's or a baseline's.
    fn sections(&self, system: &System) -> PolicySections {
        let mut sections = self.policy.clone();
        match system.kind {
            SystemKind::Mq => (sections.policy, sections.limits) = (Some(self.per_core(system)), None),
            SystemKind::Qpf => (sections.policy, sections.limits) = (Some(self.per_flow()), None),
            _ => {}
        }
        if let Some(own) = &system.policy {
            sections.override_with(own);
        }
        sections.backpressure = sections.backpressure.filter(|_| system.backpressure);
        sections
    }

    /// Loom's multi-queue: the queues take turns; within one, packets leave as they came. A flow's queue follows
    /// from its client's port, whichever side the tenant is.
    fn per_core(&self, system: &System) -> Tree {
        let names = |n: u32| (format!("core{n}"), format!("core{n}_out"), format!("core{n}_back"));
        let turns = (0..system.queues).map(|n| (names(n).0, yaml::text("1")));
        let rest = [("rest".to_owned(), yaml::text("1"))];
        let mut classes = vec![("root".to_owned(), node("drr", yaml::map(turns.chain(rest))))];
        let width = (EPHEMERAL.1 - EPHEMERAL.0 + 1).div_ceil(system.queues);
        for n in 0..system.queues {
            let (core, out, back) = names(n);
            let first = EPHEMERAL.0 + n * width;
            let ports = format!("{first}-{}", (first + width - 1).min(EPHEMERAL.1));
            let mut queue = vec![("fifo".to_owned(), list([&out, &back]))];
            queue.extend(
                system.queue_rate.map(|rate| ("max".to_owned(), yaml::text(format!("{}bps", rate.get())))),
            );
            classes.push((core, yaml::map(queue)));
            classes.push((out, matching("src_port", &ports)));
            classes.push((back, matching("dst_port", &ports)));
        }
        let flows = yaml::text("fifo");
        let rest = [("match".to_owned(), self.everyone()), ("flows".to_owned(), flows)];
        classes.push(("rest".to_owned(), yaml::map(rest)));
        yaml::map(classes)
    }

    /// Loom's queue per flow: the queues of all flows take turns.
    fn per_flow(&self) -> Tree {
        let flows = [("match".to_owned(), self.everyone()), ("flows".to_owned(), yaml::text("drr"))];
        let root = ("root".to_owned(), node("fifo", list([&"flows".to_owned()])));
        yaml::map([root, ("flows".to_owned(), yaml::map(flows))])
    }

    /// A `match` that names every tenant: all packets of tenants have it.
    fn everyone(&self) -> Tree {
        let names = self.tenants.iter().map(|tenant| yaml::text(&tenant.name));
        yaml::map([("tenant".to_owned(), yaml::list(names))])
    }
}

/// The engine's `experiment` that makes it behave as the file says of this system, and of this one of several hosts.
fn experiment(host: Option<&Host>, system: &System) -> Option<Tree> {
    let mut entries = Vec::new();
    let mut say = |key: &str, value: String| entries.push((key.to_owned(), yaml::text(value)));
    if let Some(receive) = host.and_then(|host| host.receive.as_ref()) {
        say("drain", receive.drain.to_string());
        say("cost", receive.cost.to_string());
        say("drain_share", receive.drain_share.clamp(1, 999).to_string());
        say("ring", receive.ring.min(MOST_FRAMES).to_string());
        say("slots", receive.slots.min(MOST_FRAMES).to_string());
        if system.ingress == Ingress::Shared {
            say("ingress", "shared".to_owned());
        }
    }
    if !system.accounting {
        say("accounting", "false".to_owned());
    }
    if !system.limiter {
        say("limiter", "false".to_owned());
    }
    (!entries.is_empty()).then(|| yaml::map(entries))
}

/// The keys of `backpressure` that say which flows are counted.
const COUNTED: [&str; 2] = ["tenants", "heavy"];
/// Frames that a policy lets wait.
const MOST_FRAMES: u32 = 65_536;

impl PolicySections {
    /// Replaces the sections that `own` states.
    fn override_with(&mut self, own: &Self) {
        if own.policy.is_some() {
            (self.policy, self.limits) = (own.policy.clone(), own.limits.clone());
        } else if own.limits.is_some() {
            self.limits = own.limits.clone();
        }
        if own.engine.is_some() {
            self.engine = own.engine.clone();
        }
        match (&mut self.backpressure, &own.backpressure) {
            (Some(known), Some(over)) => yaml::overlay(known, over),
            (known @ None, Some(over)) => *known = Some(over.clone()),
            (_, None) => {}
        }
        if !own.tenants.is_empty() {
            self.tenants = own.tenants.clone();
        }
        self.base = own.base.clone();
    }

    /// Makes the engine worse on purpose.
    fn worsen(&mut self, experiment: Option<Tree>) {
        let Some(experiment) = experiment else { return };
        let engine = self.engine.get_or_insert_with(|| yaml::map([]));
        // Fails only where `engine` is not a map, which the policy's reader reports.
        let _ = yaml::set(engine, "experiment", experiment);
    }

    /// Leaves out of `backpressure` the tenants that do not live `here`; all of it if none of those that it names does. Where
    /// the tenant that it watches lives elsewhere, flows are counted and none is slowed down.
    fn press_only(&mut self, here: &BTreeSet<&str>) {
        let Some(tree) = &mut self.backpressure else { return };
        let Value::Map(keys) = &mut tree.value else { return };
        let lives_here =
            |tree: &Tree| matches!(&tree.value, Value::Text(name) if here.contains(name.as_str()));
        let mut none_left = false;
        for (_, tree) in keys.iter_mut().filter(|(key, _)| key.value == "tenants") {
            match &mut tree.value {
                Value::List(names) => {
                    names.retain(lives_here);
                    none_left = names.is_empty();
                }
                _ => none_left = !lives_here(tree),
            }
        }
        let watched =
            keys.iter().find(|(key, _)| key.value == "watch").and_then(|(_, tree)| tree.get("tenant"));
        if watched.is_some_and(|tree| !lives_here(tree)) {
            keys.retain(|(key, _)| COUNTED.contains(&key.value.as_str()));
        }
        if none_left {
            self.backpressure = None;
        }
    }

    /// Makes the paths that classes state start where the scenario is.
    fn rebase_classes(&self, classes: &Tree, wiring: &Wiring) -> Tree {
        let mut rebased = classes.clone();
        let Value::Map(classes) = &mut rebased.value else { return rebased };
        for (_, class) in classes {
            let Value::Map(keys) = &mut class.value else { continue };
            keys.iter_mut().for_each(|(key, value)| *value = self.rebase(&key.value, value, wiring));
        }
        rebased
    }

    /// Makes the paths of a policy file, and of a program's module, start where the scenario is. A daemon, which has an API, reads
    /// them from another folder.
    fn rebase(&self, key: &str, value: &Tree, wiring: &Wiring) -> Tree {
        let place = |path: &str| {
            let path = self.base.join(path);
            let path = if wiring.api.is_some() { absolute(&path).unwrap_or(path) } else { path };
            yaml::text(path.to_string_lossy().into_owned())
        };
        let mut rebased = value.clone();
        match &mut rebased.value {
            Value::Text(path) if key == "policy" => place(path),
            Value::Map(keys) if key == "program" => {
                for (_, tree) in keys.iter_mut().filter(|(key, _)| key.value == "module") {
                    if let Value::Text(path) = &tree.value {
                        *tree = place(path);
                    }
                }
                rebased
            }
            _ => rebased,
        }
    }
}

/// Checks a policy file that a scenario makes, whose tenants' own files are on the disk. Errors call it `name`.
///
/// # Errors
/// What the checker says.
pub fn check_text(name: &str, text: String) -> Result<plimsoll_policy::Checked, plimsoll_policy::Errors> {
    let mut text = Some(text);
    let mut load = |path: &str| match text.take() {
        Some(text) => Ok(text),
        None => plimsoll_policy::read_text(Path::new(path), plimsoll_policy::MAX_FILE),
    };
    plimsoll_policy::check_with(name, &mut load)
}

/// The section `engine`. In virtual time no frame has to reach line rate, unless the file says which one must.
fn engine(sections: &PolicySections, wiring: &Wiring) -> Option<Tree> {
    if !wiring.virtual_time {
        return sections.engine.clone();
    }
    let mut engine = sections.engine.clone().unwrap_or_else(|| yaml::map([]));
    if engine.get("line_rate_frame").is_none() {
        // Fails only where `engine` is not a map, which the policy's reader reports.
        let _ = yaml::set(&mut engine, "line_rate_frame", yaml::text("1MB"));
    }
    Some(engine)
}

/// Every key and text of a tree.
fn words<'t>(tree: &'t Tree, to: &mut BTreeSet<&'t str>) {
    match &tree.value {
        Value::Null => {}
        Value::Text(text) => drop(to.insert(text)),
        Value::List(items) => items.iter().for_each(|item| words(item, to)),
        Value::Map(entries) => {
            for (key, tree) in entries {
                to.insert(&key.value);
                words(tree, to);
            }
        }
    }
}

fn node(kind: &str, children: Tree) -> Tree {
    yaml::map([(kind.to_owned(), children)])
}

fn list<const N: usize>(names: [&String; N]) -> Tree {
    yaml::list(names.into_iter().map(yaml::text))
}

/// A queue for packets with these ports, in the order in which they came.
fn matching(key: &str, ports: &str) -> Tree {
    let ports = yaml::map([(key.to_owned(), yaml::text(ports))]);
    yaml::map([("match".to_owned(), ports), ("flows".to_owned(), yaml::text("fifo"))])
}
