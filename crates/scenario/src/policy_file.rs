//! The policy file that an engine runs for one system of a scenario.
//!
//! Why: a scenario carries the policy, a world knows the ports; `plimsoll run` wants both in one file.
//! From: `docs/policy.md`; Loom §2.2 and §6 for the baselines (one queue per core, one queue per flow).
//! Not here: kernel queueing disciplines, which `lab` makes for the systems that do not run on the engine.
//! Invariant: same scenario and wiring, same text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::model::{PolicySections, Scenario, System, SystemKind};
use crate::yaml::{Tree, Value};

/// What only the world knows: ports and sockets, each as YAML on one line.
#[derive(Clone, Debug, Default)]
pub struct Wiring {
    /// The uplink's port: `{tap: {netns: world, name: up0}}`.
    pub uplink: String,
    /// Each tenant's port.
    pub tenants: BTreeMap<String, String>,
    /// What follows `api:`, if anything: `{socket: /tmp/x/api.sock}`.
    pub api: Option<String>,
}

/// Ephemeral ports of Linux, which spread flows over the queues of [`SystemKind::Mq`].
const EPHEMERAL: (u32, u32) = (32_768, 60_999);

impl Scenario {
    /// The policy file for a system that runs on the engine ([`SystemKind::on_engine`]).
    #[must_use]
    pub fn policy_file(&self, system: &System, wiring: &Wiring) -> String {
        let sections = self.sections(system);
        let mut text = String::new();
        let (uplink, rate, mtu) = (&wiring.uplink, self.rate.get(), self.mtu);
        let _ = write!(text, "uplink: {{port: {uplink}, rate: {rate}bps, mtu: {mtu}}}");
        if let Some(api) = &wiring.api {
            let _ = write!(text, "\napi: {api}");
        }
        if let Some(engine) = &sections.engine {
            text.push_str("\nengine:");
            engine.write(&mut text, 2, 0);
        }
        text.push_str("\ntenants:");
        for tenant in &self.tenants {
            self.write_tenant(&mut text, &tenant.name, system, &sections, wiring);
        }
        for (name, section) in [("limits", &sections.limits), ("policy", &sections.policy)] {
            if let Some(section) = section {
                let _ = write!(text, "\n{name}:");
                section.write(&mut text, 2, 1);
            }
        }
        text.push('\n');
        text
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
                sections.rebase(key, value).write(text, 6, 0);
            }
        }
    }

    /// The system's own sections where it has some, else the scenario's or a baseline's.
    fn sections(&self, system: &System) -> PolicySections {
        let mut sections = self.policy.clone();
        match system.kind {
            SystemKind::Mq => (sections.policy, sections.limits) = (Some(self.per_core(system.queues)), None),
            SystemKind::Qpf => (sections.policy, sections.limits) = (Some(self.per_flow()), None),
            _ => {}
        }
        let Some(own) = &system.policy else { return sections };
        if own.policy.is_some() {
            (sections.policy, sections.limits) = (own.policy.clone(), own.limits.clone());
        } else if own.limits.is_some() {
            sections.limits = own.limits.clone();
        }
        if own.engine.is_some() {
            sections.engine = own.engine.clone();
        }
        if !own.tenants.is_empty() {
            sections.tenants = own.tenants.clone();
        }
        sections.base = own.base.clone();
        sections
    }

    /// Loom's multi-queue: the queues take turns; within one, packets leave as they came.
    fn per_core(&self, queues: u32) -> Tree {
        let names = |n: u32| (format!("core{n}"), format!("core{n}_out"), format!("core{n}_back"));
        let turns = (0..queues).map(|n| (names(n).0, Tree::text("1")));
        let mut classes = vec![("root".to_owned(), node("drr", Tree::map(turns)))];
        let width = (EPHEMERAL.1 - EPHEMERAL.0 + 1).div_ceil(queues);
        for n in 0..queues {
            let (core, out, back) = names(n);
            let first = EPHEMERAL.0 + n * width;
            // The outer queues also take what lies outside of the ephemeral ports.
            let from = if n == 0 { 1 } else { first };
            let to = if n + 1 == queues { 65_535 } else { first + width - 1 };
            let clients = format!("{}-{to}", from.max(EPHEMERAL.0));
            classes.push((core, node("fifo", list([&out, &back]))));
            classes.push((out, matching("src_port", &clients)));
            classes.push((back, matching("dst_port", &clients)));
        }
        Tree::map(classes)
    }

    /// Loom's queue per flow: every flow's queue takes its turn, whoever's it is.
    fn per_flow(&self) -> Tree {
        let flows = Tree::map([("flows".to_owned(), Tree::text("drr"))]);
        Tree::map([("root".to_owned(), flows)])
    }
}

impl PolicySections {
    /// A tenant's sub-policy is found from where the scenario's file lies.
    fn rebase(&self, key: &str, value: &Tree) -> Tree {
        match &value.value {
            Value::Text(path) if key == "policy" => {
                Tree::text(self.base.join(path).to_string_lossy().into_owned())
            }
            _ => value.clone(),
        }
    }
}

fn node(kind: &str, children: Tree) -> Tree {
    Tree::map([(kind.to_owned(), children)])
}

fn list<const N: usize>(names: [&String; N]) -> Tree {
    let items = names.into_iter().map(|name| Tree::text(name)).collect();
    Tree { at: 0..0, value: Value::List(items) }
}

fn matching(key: &str, ports: &str) -> Tree {
    let ports = Tree::map([(key.to_owned(), Tree::text(ports))]);
    Tree::map([("match".to_owned(), ports)])
}
