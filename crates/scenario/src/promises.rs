//! Tenants' promises over all runs of each system: kept or broken.
//!
//! Why: a report must say whether promises held, besides throughput and delay.
//! From: `plimsoll slo` of a live host: the same judgement, here of what `sim` and `lab` measured.
//! Not here: the judgement itself (`plimsoll_slo`), expectations (`expect`).
//! Invariant: a tenant's worst run is shown, with the causes of its breaches there.

use std::collections::BTreeMap;

use plimsoll_slo::{Breach, Judged, SloReport, TenantReport, Verdict};
use serde::Serialize;
use serde_json::{Value, json as object};

use crate::{Results, Scenario};

/// One tenant's promise at one host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fared {
    /// The system.
    pub system: String,
    /// The host; empty where there is one only.
    pub host: String,
    /// The tenant.
    pub tenant: String,
    /// The verdict in its worst run.
    pub verdict: Verdict,
    /// Windows of all runs in which it was not broken.
    pub kept: u32,
    /// Windows of all runs.
    pub seen: u32,
    /// Breaches of a promise or of an envelope in that run, with their causes.
    pub breaches: Vec<Breach>,
}

/// The promises of every tenant that has one and had traffic, in the order of systems, hosts and names.
#[must_use]
pub fn promises(scenario: &Scenario, results: &Results) -> Vec<Fared> {
    let of_system = |name: &str| {
        let mut found: BTreeMap<(&String, &String), Fared> = BTreeMap::new();
        for run in results.runs.iter().filter(|run| run.system == name) {
            for (host, report) in &run.promises {
                for (tenant, report) in &report.tenants {
                    add(found.entry((host, tenant)).or_insert_with(|| new(name, host, tenant)), report);
                }
            }
        }
        found.into_values().filter(|fared| rank(fared.verdict) > rank(Verdict::Idle)).collect::<Vec<_>>()
    };
    scenario.systems.iter().flat_map(|system| of_system(&system.name)).collect()
}

fn new(system: &str, host: &str, tenant: &str) -> Fared {
    let [system, host, tenant] = [system, host, tenant].map(str::to_owned);
    Fared { system, host, tenant, verdict: Verdict::Unpromised, kept: 0, seen: 0, breaches: Vec::new() }
}

fn add(fared: &mut Fared, report: &TenantReport) {
    fared.kept += report.kept;
    fared.seen += report.seen;
    if rank(report.whole.verdict) > rank(fared.verdict) {
        fared.verdict = report.whole.verdict;
        fared.breaches.clone_from(&report.whole.breaches);
    }
}

/// The rank of a verdict: the worst has the highest.
pub(crate) fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Unpromised => 0,
        Verdict::Idle => 1,
        Verdict::Held => 2,
        Verdict::Beyond => 3,
        Verdict::Broken => 4,
    }
}

impl Fared {
    /// `shop`, or `shop at h1`.
    #[must_use]
    pub fn subject(&self) -> String {
        if self.host.is_empty() { self.tenant.clone() } else { format!("{} at {}", self.tenant, self.host) }
    }

    /// A line for each breach.
    #[must_use]
    pub fn why(&self) -> Vec<String> {
        self.breaches.iter().map(Breach::words).collect()
    }
}

/// A tenant's promise in one run, with the windows in which it was broken.
pub(crate) fn run_json(promises: &BTreeMap<String, SloReport>) -> Value {
    let bad = |judged: &&Judged| rank(judged.verdict) > rank(Verdict::Held);
    let tenant = |report: &TenantReport| {
        let windows: Vec<&Judged> = report.windows.iter().filter(bad).collect();
        object!({
            "promise": report.promise,
            "whole": report.whole,
            "kept": report.kept,
            "seen": report.seen,
            "windows": windows,
        })
    };
    let host = |report: &SloReport| {
        let tenants = report.tenants.iter().map(|(name, report)| (name.clone(), tenant(report)));
        Value::Object(tenants.collect())
    };
    Value::Object(promises.iter().map(|(name, report)| (name.clone(), host(report))).collect())
}
