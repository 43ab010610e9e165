//! Reading `systems`: the systems to compare.
//!
//! Why: the same traffic runs against each of them.
//! From: `docs/scenarios.md`, "systems".
//! Not here: models' keys (`model`).
//! Invariant: no two systems have one name.

use std::path::Path;

use plimsoll_document::{Tree, Value};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::{SYSTEM, SYSTEM_CONTROL};
use crate::network::{Control, ControlLevel, Ingress, TransmitCompletions};
use crate::system::{Model, System, SystemKind};
use plimsoll_document::yaml;

impl Reader {
    pub(super) fn systems(&mut self, file: &Fields<'_>, folder: &Path) -> Vec<System> {
        let Some(tree) = file.get("systems") else { return Vec::new() };
        let mut systems: Vec<System> = Vec::new();
        for item in self.list(tree, "`systems`") {
            let Some(system) = self.system(item, folder, file.get("control")) else { continue };
            if systems.iter().any(|other| other.name == system.name) {
                let problem = Problem::new(item.at, format!("there are two systems `{}`", system.name));
                self.problem(
                    problem.label("again").help("name it otherwise: `{other_name: {kind: plimsoll}}`"),
                );
            }
            systems.push(system);
        }
        if systems.is_empty() {
            let problem = Problem::new(tree.at, "no system is to be run").label("nothing to run");
            self.problem(problem.help("add `systems: [fifo, htb, plimsoll]`"));
        }
        systems
    }

    /// `fifo`, or `{name: {kind: fifo, ...}}`.
    fn system(&mut self, item: &Tree, folder: &Path, control: Option<&Tree>) -> Option<System> {
        let kinds = SystemKind::ALL.map(|kind| (kind.name(), kind));
        let Value::Map(entries) = &item.value else {
            let kind = self.choice(item, "system", &kinds)?;
            return Some(System {
                name: kind.name().to_owned(),
                kind,
                queues: 4,
                queue_rate: None,
                model: Model::default(),
                ingress: Ingress::default(),
                control: ControlLevel::default(),
                steering: None,
                completions: None,
                accounting: true,
                limiter: true,
                stripes: true,
                faults: true,
                backpressure: true,
                press_model: None,
                load_balancing: None,
                policy: None,
            });
        };
        let [(key, tree)] = entries.as_slice() else {
            let problem = Problem::new(item.at, "a system in the list has one name");
            self.problem(problem.label("several").help("write `- name: {kind: plimsoll, policy: ..}`"));
            return None;
        };
        self.name(key, "system");
        let fields = self.fields(tree, key.at, &format!("system `{}`", key.value), &SYSTEM);
        let named = kinds.iter().find(|(name, _)| *name == key.value).map(|(_, kind)| *kind);
        let stated = match fields.get("kind") {
            Some(tree) => self.choice(tree, "system", &kinds),
            None => named.or_else(|| {
                self.missing(&fields, "kind", "plimsoll");
                None
            }),
        };
        let kind = stated.unwrap_or(SystemKind::Plimsoll); // the other keys are read all the same
        let own = ["policy", "limits", "engine", "backpressure", "policy_file", "tenants"];
        let policy = own
            .iter()
            .any(|key| fields.get(key).is_some())
            .then(|| self.sections(&fields, fields.get("tenants"), folder));
        let queues = self.count(&fields, "queues", 4, 256);
        let queue_rate = self.optional(&fields, "queue_rate", "a rate such as `5Mbps`");
        let model = self.model(&fields, kind);
        let ways = [("fair", Ingress::Fair), ("shared", Ingress::Shared)];
        let ingress =
            fields.get("ingress").and_then(|tree| self.choice(tree, "way in", &ways)).unwrap_or_default();
        let (control, steering) = match fields.get("control") {
            Some(own) => self.control_of(own, control),
            None => (ControlLevel::default(), None),
        };
        let completions = fields.get("completions");
        let completions =
            completions.and_then(|tree| self.choice(tree, "way to complete", &TransmitCompletions::NAMES));
        let accounting = self.flag(&fields, "accounting", true);
        let limiter = self.flag(&fields, "limiter", true);
        let stripes = self.flag(&fields, "stripes", true);
        let faults = self.flag(&fields, "faults", true);
        let backpressure = Self::is_pressing(&fields);
        let press_model = self.press_model(&fields);
        let load_balancing = self.load_balancing(&fields);
        let name = key.value.clone();
        Some(System {
            name,
            kind: stated?,
            queues,
            queue_rate,
            model,
            ingress,
            control,
            steering,
            completions,
            accounting,
            limiter,
            stripes,
            faults,
            backpressure,
            press_model,
            load_balancing,
            policy,
        })
    }

    /// How much of `whole` a system has, as a word; or `{level: full, epoch: 1ms}`, with what is otherwise for it.
    fn control_of(&mut self, own: &Tree, whole: Option<&Tree>) -> (ControlLevel, Option<Control>) {
        let levels = [
            ("off", ControlLevel::Off),
            ("bandwidth", ControlLevel::Bandwidth),
            ("full", ControlLevel::Full),
        ];
        let Value::Map(entries) = &own.value else {
            return (self.choice(own, "control", &levels).unwrap_or_default(), None);
        };
        let fields = self.fields(own, own.at, "`control`", &SYSTEM_CONTROL);
        let level = fields.get("level").and_then(|tree| self.choice(tree, "control", &levels));
        let others = entries.iter().filter(|(key, _)| key.value != "level").cloned().collect();
        let mut tree = whole.cloned().unwrap_or_else(|| Tree { at: own.at, value: Value::Map(Vec::new()) });
        yaml::overlay(&mut tree, &Tree { at: own.at, value: Value::Map(others) });
        (level.unwrap_or_default(), Some(self.control(&tree)))
    }
}
