//! The changes that a reload makes.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::words::{describe_match, order_words, scope_words};
use crate::check::Checked;
use crate::config::{Config, FleetHost};
use crate::press::Ecn;
use crate::program::{NodeKind, Program, RankProgram};

/// Everything that differs between two policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// In the order: uplink, engine, API, tenants, overlay, hosts, backpressure, classes, limits, classification.
    pub changes: Vec<Change>,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The kind of thing: `class`, `limit`, `tenant`, `uplink`, ...
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// The property that differs; empty if the whole thing is new or gone.
    pub property: &'static str,
    /// Its value before; `None` if it is new.
    pub old: Option<String>,
    /// Its value after; `None` if it is gone.
    pub new: Option<String>,
}

/// A thing's properties by name.
type Properties = BTreeMap<&'static str, String>;
/// Things by name.
type Things = BTreeMap<String, Properties>;

/// The changes that replacing `old` by `new` makes.
#[must_use]
pub fn diff(old: &Checked, new: &Checked) -> Diff {
    let mut diff = Diff::default();
    let both = |of: fn(&Config) -> Things| (of(&old.config), of(&new.config));
    diff.compare("uplink", both(uplink));
    diff.compare("engine", both(engine));
    diff.compare("api", both(api));
    diff.compare("tenant", (tenants(old), tenants(new)));
    diff.compare("overlay", both(overlay));
    diff.compare("host", both(hosts));
    diff.compare("backpressure", both(backpressure));
    diff.compare("class", (classes(&old.program), classes(&new.program)));
    diff.compare("limit", (limits(&old.program), limits(&new.program)));
    diff.compare("classification", (rules(&old.program), rules(&new.program)));
    diff
}

impl Diff {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn compare(&mut self, what: &'static str, (old, new): (Things, Things)) {
        for (name, before) in &old {
            match new.get(name) {
                Some(after) => self.properties(what, name, before, after),
                None => self.push(what, name, "", Some(summary(before)), None),
            }
        }
        for (name, after) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
            self.push(what, name, "", None, Some(summary(after)));
        }
    }

    fn properties(&mut self, what: &'static str, name: &str, before: &Properties, after: &Properties) {
        let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
        for key in keys {
            let (old, new) = (before.get(key), after.get(key));
            if old != new {
                self.push(what, name, key, old.cloned(), new.cloned());
            }
        }
    }

    fn push(
        &mut self,
        what: &'static str,
        name: &str,
        property: &'static str,
        old: Option<String>,
        new: Option<String>,
    ) {
        self.changes.push(Change { what, name: name.to_owned(), property, old, new });
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing changes");
        }
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, name, property, old, new } = self;
        let gap = if name.is_empty() { "" } else { " " };
        let none = "none";
        match (property.is_empty(), old, new) {
            (true, None, Some(new)) => write!(f, "+ {what}{gap}{name} ({new})"),
            (true, Some(old), None) => write!(f, "- {what}{gap}{name} ({old})"),
            _ => {
                let (old, new) = (old.as_deref().unwrap_or(none), new.as_deref().unwrap_or(none));
                write!(f, "~ {what}{gap}{name}: {property} {old} -> {new}")
            }
        }
    }
}

fn summary(properties: &Properties) -> String {
    properties.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}

fn some<T: ToString>(properties: &mut Properties, key: &'static str, value: Option<T>) {
    if let Some(value) = value {
        properties.insert(key, value.to_string());
    }
}

/// A list in one line; none if it is empty.
fn joined<T: ToString>(list: &[T]) -> Option<String> {
    (!list.is_empty()).then(|| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

fn alone(properties: Properties) -> Things {
    Things::from([(String::new(), properties)])
}

fn uplink(config: &Config) -> Things {
    let uplink = &config.uplink;
    let mut properties = Properties::from([
        ("port", uplink.port.to_string()),
        ("rate", uplink.rate.to_string()),
        ("overhead", uplink.overhead.to_string()),
        ("mtu", uplink.mtu.to_string()),
    ]);
    some(&mut properties, "standby", uplink.standby.as_ref());
    some(&mut properties, "hold_off", uplink.standby.as_ref().map(|_| uplink.hold_off));
    some(&mut properties, "grain", uplink.grain);
    alone(properties)
}

fn engine(config: &Config) -> Things {
    let engine = &config.engine;
    let mut properties = Properties::from([
        ("busy_poll", engine.busy_poll.to_string()),
        ("queues", engine.queues.to_string()),
        ("ring", engine.ring.to_string()),
        ("descriptors", engine.descriptors.to_string()),
        ("verify", engine.verify.to_string()),
    ]);
    some(&mut properties, "cpu", engine.cpu);
    some(
        &mut properties,
        "experiment",
        engine.experiment.as_ref().map(|experiment| format!("{experiment:?}")),
    );
    alone(properties)
}

fn api(config: &Config) -> Things {
    let mut properties = Properties::from([("socket", config.api.socket.display().to_string())]);
    some(&mut properties, "metrics", config.api.metrics);
    alone(properties)
}

fn tenants(checked: &Checked) -> Things {
    let tenant = |(tenant, compiled): (&crate::config::TenantConfig, &crate::program::Tenant)| {
        let slo = &compiled.slo;
        let mut properties = Properties::from([
            ("port", tenant.port.to_string()),
            ("descriptors", tenant.descriptors.to_string()),
            ("part of a core", slo.weight.to_string()),
            ("queue in", slo.slots.to_string()),
        ]);
        let targets: Vec<String> = slo.delay.iter().map(ToString::to_string).collect();
        some(&mut properties, "delay", (!targets.is_empty()).then(|| targets.join(",")));
        let stated = tenant.addresses.texts();
        some(&mut properties, "addresses", (!stated.is_empty()).then(|| stated.join(",")));
        some(
            &mut properties,
            "binding",
            (tenant.addresses.word() != "unbound").then(|| tenant.addresses.word()),
        );
        some(&mut properties, "program", tenant.program.as_ref());
        let interface = &tenant.interface;
        some(&mut properties, "interface addresses", joined(&interface.addresses));
        some(&mut properties, "interface routes", joined(&interface.routes));
        some(&mut properties, "interface mtu", interface.mtu);
        some(&mut properties, "interface persist", interface.persist.then_some(true));
        some(&mut properties, "ecn", (tenant.ecn != Ecn::default()).then_some(tenant.ecn));
        if slo.ingress != slo.egress {
            some(&mut properties, "ingress min", slo.ingress.min);
            some(&mut properties, "ingress max", slo.ingress.max);
        }
        (tenant.name.clone(), properties)
    };
    checked.config.tenants.iter().zip(&checked.program.tenants).map(tenant).collect()
}

fn backpressure(config: &Config) -> Things {
    let Some(backpressure) = &config.backpressure else { return Things::new() };
    let mut properties = Properties::from([
        ("tenants", backpressure.tenants.join(",")),
        ("heavy", backpressure.heavy.to_string()),
    ]);
    if let Some(press) = &backpressure.press {
        properties.extend([
            ("watch", press.watch.to_string()),
            ("threshold", press.threshold.to_string()),
            ("release", press.release.to_string()),
            ("poll", press.poll.to_string()),
            ("part", press.part.to_string()),
            ("mode", press.mode.to_string()),
            ("rate", press.rate.to_string()),
            ("lifetime", press.lifetime.to_string()),
            ("burst", press.burst.to_string()),
            ("flows", press.flows.to_string()),
        ]);
        some(&mut properties, "cores", press.cores.map(|thousandths| f64::from(thousandths) / 1_000.0));
    }
    alone(properties)
}

fn overlay(config: &Config) -> Things {
    let Some(overlay) = &config.overlay else { return Things::new() };
    let mut properties = Properties::from([
        ("kind", format!("{:?}", overlay.kind).to_lowercase()),
        ("dscp", overlay.dscp.to_string()),
        ("v6_checksum", overlay.v6_checksum.to_string()),
        ("sealed", format!("{:?}", overlay.sealed).to_lowercase()),
        ("host", overlay.own().name.clone()),
    ]);
    some(&mut properties, "vni", overlay.vni);
    let networks = overlay.networks.iter().map(|network| format!("{} {}", network.name, network.vni));
    let networks: Vec<String> = networks.collect();
    some(&mut properties, "networks", (!networks.is_empty()).then(|| networks.join(", ")));
    some(&mut properties, "port", overlay.port);
    some(&mut properties, "gateway", overlay.gateway);
    some(&mut properties, "key", overlay.key.as_ref().map(|key| key.display()));
    let keys: Vec<String> = overlay.accept_keys.iter().map(|key| key.display().to_string()).collect();
    some(&mut properties, "accept_keys", (!keys.is_empty()).then(|| keys.join(", ")));
    if let Some(feedback) = &overlay.feedback {
        properties.extend([
            ("via", format!("{:?}", feedback.via).to_lowercase()),
            ("epoch", feedback.epoch.to_string()),
            ("lapse", feedback.lapse.to_string()),
            ("delay", feedback.delay.to_string()),
            ("fallback", feedback.fallback.to_string()),
            ("ecn", feedback.ecn.to_string()),
            ("control", format!("{:?}", feedback.control).to_lowercase()),
            ("idle", format!("{:?}", feedback.idle).to_lowercase()),
        ]);
        some(&mut properties, "distributor", feedback.distributor.map(|host| &overlay.hosts[host].name));
    }
    alone(properties)
}

fn hosts(config: &Config) -> Things {
    let Some(overlay) = &config.overlay else { return Things::new() };
    let host = |host: &FleetHost| {
        let tenants = host.tenants.iter().map(|tenant| {
            let macs: Vec<String> = tenant.macs.iter().map(ToString::to_string).collect();
            let weight =
                if tenant.weight == 1 { String::new() } else { format!(" weight {}", tenant.weight) };
            let balancer = if tenant.balancer { " balancer" } else { "" };
            let network = match overlay.vni == Some(tenant.network) {
                true => String::new(),
                false => format!(" network {}", overlay.network_name(tenant.network)),
            };
            format!("{} {}{weight}{balancer}{network}", tenant.name, macs.join(" "))
        });
        let tenants: Vec<String> = tenants.collect();
        let mut properties =
            Properties::from([("address", host.address.to_string()), ("tenants", tenants.join(", "))]);
        some(&mut properties, "mac", host.mac);
        some(&mut properties, "channel", host.channel);
        some(&mut properties, "fallback", host.fallback);
        (host.name.clone(), properties)
    };
    overlay.hosts.iter().map(host).collect()
}

fn classes(program: &Program) -> Things {
    let class = |node: &crate::program::Node| {
        let mut properties = Properties::from([("order", order_words(program, node))]);
        if super::words::weighed(program, node) {
            properties.insert("weight", node.weight.to_string());
        }
        some(&mut properties, "rate", node.rate);
        if let NodeKind::Program(id) = node.kind {
            properties.insert("text", fingerprint(&program.ranks[id.0 as usize]));
        }
        if !node.children.is_empty() {
            let children = node.children.iter().map(|&child| super::words::short(program.node(child)));
            properties.insert("children", children.collect::<Vec<_>>().join(","));
        }
        some(&mut properties, "min", node.min);
        some(&mut properties, "max", node.max.map(|max| program.limit(max).rate));
        some(&mut properties, "burst", node.max.map(|max| program.limit(max).burst));
        some(&mut properties, "descriptors", node.descriptors);
        (node.name.clone(), properties)
    };
    program.nodes.iter().map(class).collect()
}

/// Tells apart two texts of a rank program that have the same name; comments and spaces do not count.
fn fingerprint(rank: &RankProgram) -> String {
    let bytes = format!("{:?}", rank.code).into_bytes();
    // FNV-1a
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:08x} of {} instructions", (hash >> 32) ^ hash & 0xffff_ffff, rank.instructions)
}

fn limits(program: &Program) -> Things {
    let stated =
        program.limits.iter().filter(|limit| matches!(limit.scope, crate::program::Scope::Match { .. }));
    let limit = |limit: &crate::program::Limit| {
        let (matches, via) = scope_words(program, limit);
        let properties = Properties::from([
            ("rate", limit.rate.to_string()),
            ("burst", limit.burst.to_string()),
            ("match", matches),
            ("via", via.join(",")),
        ]);
        (limit.name.clone(), properties)
    };
    stated.map(limit).collect()
}

/// Each class's matches, in their order.
fn rules(program: &Program) -> Things {
    let mut things = Things::new();
    for rule in &program.rules {
        let properties = things.entry(program.node(rule.class).name.clone()).or_default();
        let matches = properties.entry("match").or_default();
        let gap = if matches.is_empty() { "" } else { " | " };
        matches.push_str(&format!("{gap}{}", describe_match(program, &rule.matches)));
    }
    let default = Properties::from([("everything else", program.node(program.default_class).name.clone())]);
    things.insert(String::new(), default);
    things
}
