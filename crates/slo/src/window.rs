//! A window: traffic in a stretch of time, and the promises that were in force then.
//!
//! Why: a reload changes promises, and what passed before it is judged by the promises of that time.
//! From: `docs/operations.md`, "Whether promises held".
//! Not here: the judgement of traffic under one policy (`judge`).
//! Invariant: a window has a part for each policy that was in force in it, in order; a snapshot's window has one.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_policy::{Slo, Tenant};

use crate::judge::{Judged, Verdict, judge};
use crate::{Host, Passed, Promise, Watched};

/// What a policy promises to its tenants.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Promised {
    pub(crate) promises: BTreeMap<String, Promise>,
    /// The link's rate, in bits per second.
    link: u64,
}

/// The host's and the tenants' traffic in a stretch of time.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) host: Host,
    parts: Vec<Part>,
}

/// The part of a window in which the promises stayed the same.
#[derive(Clone, Debug)]
struct Part {
    host: Host,
    tenants: BTreeMap<String, Passed>,
    promised: Arc<Promised>,
}

impl Promised {
    /// The promises at the snapshot `now`, which are shared with those of the snapshot before where they are the same.
    pub(crate) fn next(before: &Arc<Self>, last: Option<&Watched>, now: &Watched) -> Arc<Self> {
        let same =
            |last: &Watched| Arc::ptr_eq(&last.program, &now.program) && Arc::ptr_eq(&last.rates, &now.rates);
        if last.is_some_and(same) {
            return Arc::clone(before);
        }
        let tenants = now.program.tenants.iter();
        let promises = tenants.map(|tenant| (tenant.name.clone(), Promise::in_force(tenant, now))).collect();
        let promised = Self { promises, link: now.program.link.get() };
        if promised == **before { Arc::clone(before) } else { Arc::new(promised) }
    }

    /// The promises of a stretch in which the policy changed, at a moment that is not known: those that hold either way.
    fn either(&self, other: &Self) -> Self {
        let promises = other.promises.iter().map(|(name, later)| {
            let both = self.promises.get(name).map(|earlier| earlier.either(later));
            (name.clone(), both.unwrap_or_default())
        });
        Self { promises: promises.collect(), link: self.link.max(other.link) }
    }
}

impl Promise {
    /// A tenant's promise, with the rates that were changed since the policy came into force. One that follows from the rate of
    /// the tenant's node follows the rate; no tenant is promised more than a node above it may send.
    fn in_force(tenant: &Tenant, now: &Watched) -> Self {
        let Slo { egress, .. } = &tenant.slo;
        let mut promise = Self::from(&tenant.slo);
        for id in now.program.path(tenant.node) {
            let Some(rate) = now.rates.get(&id) else { continue };
            let stated = now.program.node(id).rate.filter(|_| id == tenant.node);
            if stated.is_some() && egress.min == stated {
                promise.out_min = Some(rate.get());
            }
            if stated.is_some() && egress.max == stated {
                promise.out_max = Some(rate.get());
            }
            promise.out_min = promise.out_min.map(|min| min.min(rate.get()));
        }
        promise
    }

    fn either(&self, other: &Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.min(b));
        let most = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.max(b));
        Self {
            out_min: least(self.out_min, other.out_min),
            out_max: most(self.out_max, other.out_max),
            in_min: least(self.in_min, other.in_min),
            in_max: most(self.in_max, other.in_max),
            // Late packets are counted by the targets of one of both.
            delay: if self.delay == other.delay { self.delay.clone() } else { Vec::new() },
        }
    }
}

impl Window {
    /// The traffic between two snapshots, with the promises at each.
    pub(crate) fn between(
        before: &Watched,
        now: &Watched,
        earlier: &Arc<Promised>,
        later: &Arc<Promised>,
    ) -> Self {
        let promised = match Arc::ptr_eq(earlier, later) {
            true => Arc::clone(later),
            false => Arc::new(earlier.either(later)),
        };
        let host = Host::between(before, now);
        let tenants = now.lanes.iter().map(|lane| {
            let earlier = before.lanes.iter().find(|earlier| earlier.name == lane.name);
            let min = promised.promises.get(&lane.name).and_then(|promise| promise.out_min);
            (lane.name.clone(), Passed::between(earlier, lane, &host, min, slo_of(now, &lane.name)))
        });
        let tenants = tenants.collect();
        Self { parts: vec![Part { host: host.clone(), tenants, promised }], host }
    }

    pub(crate) fn add(&mut self, later: &Self) {
        self.host.add(&later.host);
        for part in &later.parts {
            match self.parts.last_mut() {
                Some(last) if Arc::ptr_eq(&last.promised, &part.promised) => last.add(part),
                _ => self.parts.push(part.clone()),
            }
        }
    }

    /// The judgement of a tenant's promises in all parts of the window.
    pub(crate) fn judge(&self, name: &str) -> Judged {
        let mut parts = self.parts.iter().filter_map(|part| part.judge(name));
        let Some(mut whole) = parts.next() else { return Judged::default() };
        parts.for_each(|part| whole.add(part));
        Judged { from: self.host.from, length: self.host.length, ..whole }
    }
}

impl Part {
    fn add(&mut self, later: &Self) {
        self.host.add(&later.host);
        for (name, later) in &later.tenants {
            match self.tenants.get_mut(name) {
                Some(passed) => passed.add(later),
                None => drop(self.tenants.insert(name.clone(), later.clone())),
            }
        }
    }

    fn judge(&self, name: &str) -> Option<Judged> {
        let promise = self.promised.promises.get(name)?;
        Some(judge(name, promise, self.promised.link, &self.host, &self.tenants))
    }
}

impl Judged {
    /// Joins the judgement of a later part of the window.
    fn add(&mut self, later: Self) {
        let length = self.length + later.length;
        let mean = |a: f64, b: f64| (a * self.length + b * later.length) / length.max(1e-9);
        (self.sent, self.received) = (mean(self.sent, later.sent), mean(self.received, later.received));
        self.length = length;
        self.verdict = self.verdict.or(later.verdict);
        self.breaches.extend(later.breaches);
        self.lost_out += later.lost_out;
        self.lost_in += later.lost_in;
        self.egress.add(&later.egress);
        self.nic.add(&later.nic);
        self.engine.add(&later.engine);
    }
}

impl Verdict {
    /// The verdict on two parts of a window.
    fn or(self, other: Self) -> Self {
        let worst = [Self::Broken, Self::Beyond, Self::Held, Self::Idle];
        worst.into_iter().find(|verdict| [self, other].contains(verdict)).unwrap_or(Self::Unpromised)
    }
}

fn slo_of<'w>(now: &'w Watched, tenant: &str) -> Option<&'w Slo> {
    now.program.tenants.iter().find(|known| known.name == tenant).map(|known| &known.slo)
}
