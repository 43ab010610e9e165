//! Tenants' promises beyond the tree: the way in, weights, and delay.
//!
//! Why: a promise that the link or the engine cannot keep is worse than none, in either direction.
//! From: PicNIC §4 (the sum of minima fits the line rate, in the hose model), §5.1 (weights); `docs/policy.md`,
//! "What a tenant is promised".
//! Not here: the way out's envelopes (`envelope`), what follows from a target (`slo`), bounds themselves (`bounds`).
//! Invariant: a policy whose minima do not fit the link, in either direction, yields no program.

use std::collections::HashMap;

use plimsoll_units::{BitRate, NS_PER_SEC, Span};

use super::graph::Graph;
use super::link::Link;
use crate::bounds::{Bound, IDLE, OUT_OF_ORDER, bounds};
use crate::law::{Law, Problem, Problems};
use crate::program::{NodeId, Program, Tenant};
use crate::read::MAX_WEIGHT;
use crate::read::syntax::TenantEntry;
use crate::slo::{DelayTarget, Envelope, Slo, each_way, weights_of};
use plimsoll_document::Located;

/// Promises that a message lists, at most.
const SHOWN: usize = 6;

/// Each tenant's weight: as stated, or in the ratio of the maxima where no tenant states one and each has a `max`.
pub(super) fn weights(tenants: &[TenantEntry]) -> Vec<u32> {
    let maxima: Option<Vec<BitRate>> =
        tenants.iter().map(|tenant| tenant.class.max.map(|max| max.value)).collect();
    match maxima {
        Some(maxima) if tenants.iter().all(|tenant| tenant.weight.is_none()) => {
            weights_of(&maxima, MAX_WEIGHT)
        }
        _ => tenants.iter().map(|tenant| tenant.weight.map_or(1, |weight| weight.value)).collect(),
    }
}

/// The figures that follow from each tenant's promises, in the order of the graph's tenants.
pub(super) fn slos(graph: &Graph, tenants: &[TenantEntry], weights: &[u32]) -> Vec<Slo> {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let slo = |(index, tenant): (usize, &TenantEntry)| {
        let rate = graph.tenants[index].node.and_then(|node| graph.nodes[node].rate);
        let value = |found: Option<Located<BitRate>>| found.map(|found| found.value);
        let envelope = |min: Option<Located<BitRate>>, max| Envelope { min: value(min), max: value(max) };
        let egress = envelope(tenant.class.min.or(rate), tenant.class.max.or(rate));
        let ingress = envelope(tenant.ingress_min(), tenant.ingress_max());
        let slo = Slo::new(egress, ingress, targets(tenant), weights[index], total);
        let cpu = tenant.program.as_ref().and_then(|stated| stated.program.cpu);
        Slo { weight: cpu.unwrap_or(slo.weight), ..slo }
    };
    let with_port = tenants.iter().enumerate().map(slo);
    let rest = graph.tenants.len().saturating_sub(tenants.len());
    with_port.chain(core::iter::repeat_n(Slo::default(), rest)).collect()
}

fn targets(tenant: &TenantEntry) -> Vec<DelayTarget> {
    tenant.delay.iter().map(|target| target.value).collect()
}

/// Checks what tenants may receive. Minima and maxima that are taken over from the way out are judged there (`envelope`).
pub(super) fn judge(tenants: &[TenantEntry], link: Link, problems: &mut Problems) {
    for tenant in tenants {
        one_fits(tenant, link, problems);
    }
    all_fit(tenants, link, problems);
}

fn one_fits(tenant: &TenantEntry, link: Link, problems: &mut Problems) {
    let name = &tenant.name.value;
    let (min, max) = (tenant.ingress_min(), tenant.ingress_max());
    if let Some(max) = tenant.ingress.max.filter(|max| max.value > link.rate) {
        let message = format!("`{name}` may receive {}, above the link's {}", max.value, link.rate);
        let problem = Problem::warning(Law::MaxAboveLink, max.at, message).label("limits nothing");
        problems.push(problem.help(format!("lower it below {}, or leave it out", link.rate)));
    }
    if let Some(min) = tenant.ingress.min.filter(|min| min.value > link.rate) {
        let message =
            format!("`{name}` is promised {} on the way in, above the link's {}", min.value, link.rate);
        let problem = Problem::error(Law::MinAboveLink, min.at, message).label("cannot be kept");
        problems.push(problem.help(format!("promise at most {}", link.rate)));
    }
    // Where both are taken over the way out's judge has told.
    let own = tenant.ingress.min.is_some() || tenant.ingress.max.is_some();
    if let (Some(min), Some(max), true) = (min, max, own)
        && max.value < min.value
    {
        let message = format!(
            "`{name}` is promised {} on the way in, above the {} that it may receive",
            min.value, max.value
        );
        let problem = Problem::error(Law::MinAboveMax, min.at, message).label("more than it may ever get");
        let help = "what `ingress` leaves out is as on the way out: lower this `min`, or raise that `max`";
        problems.push(problem.also(max.at, "what it may receive").help(help));
    }
}

fn all_fit(tenants: &[TenantEntry], link: Link, problems: &mut Problems) {
    let promised: Vec<(&str, Located<BitRate>)> = tenants
        .iter()
        .filter_map(|tenant| Some((tenant.name.value.as_str(), tenant.ingress_min()?)))
        .collect();
    let sum = promised.iter().fold(0_u64, |sum, (_, min)| sum.saturating_add(min.value.get()));
    let stated = tenants.iter().filter_map(|tenant| tenant.ingress.min);
    let (Some(first), Some(sum)) = (stated.map(|min| min.at).next(), BitRate::new(sum)) else { return };
    if sum <= link.rate || promised.len() < 2 {
        return;
    }
    let list = promised.iter().take(SHOWN).map(|(name, min)| format!("`{name}` {}", min.value));
    let list = list.collect::<Vec<_>>().join(", ");
    let more = if promised.len() > SHOWN { ", ..." } else { "" };
    let message =
        format!("the tenants are promised {sum} together on the way in, but the link carries {}", link.rate);
    let problem = Problem::error(Law::MinAboveLink, first, message).label("one of the promises");
    let others = promised.iter().filter(|(_, min)| min.at != first).take(SHOWN - 1);
    let problem = others
        .fold(problem, |problem, (name, min)| problem.also(min.at, format!("`{name}` is promised too")));
    problems.push(problem.help(format!(
        "lower a `min` so that the sum fits {}; promised are {list}{more} (`min` holds both ways, unless `ingress` says \
         otherwise)",
        link.rate
    )));
}

/// A tenant's longest delays, as far as there is a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Worst {
    /// The longest delay of its classes on the way out, or why there is no bound.
    pub egress: Result<Span, String>,
    /// The longest delay on the way in, behind a full queue.
    pub ingress: Span,
    /// Parts of the guaranteed rate, of which a class may send one for the bound to hold.
    pub parts: u64,
}

impl Worst {
    /// Another class of the tenant's.
    fn meet(&mut self, bound: &Bound) {
        if bound.delay_up_to != bound.guaranteed {
            self.parts = OUT_OF_ORDER;
        }
        match (&mut self.egress, bound.delay) {
            (Ok(longest), Some(delay)) => *longest = delay.max(*longest),
            (egress @ Ok(_), None) => *egress = Err(format!("`{}`: {}", bound.name, bound.why)),
            (Err(_), _) => {}
        }
    }

    /// Both ways together.
    pub fn total(&self) -> Option<Span> {
        self.egress
            .as_ref()
            .ok()
            .map(|egress| Span::ns(egress.as_u64().saturating_add(self.ingress.as_u64())))
    }
}

/// Each tenant's longest delays, in the order of the tenants.
pub(crate) fn worst(program: &Program) -> Vec<Worst> {
    let weights = program.tenants.iter().map(|tenant| u64::from(tenant.slo.weight)).sum();
    let new = |tenant: &Tenant| {
        let ingress = tenant.slo.worst_on_the_way_in(weights);
        Worst { egress: Ok(Span::ZERO), ingress, parts: 1 }
    };
    let mut found: Vec<Worst> = program.tenants.iter().map(new).collect();
    let mut at: HashMap<NodeId, Vec<usize>> = HashMap::new();
    for (index, tenant) in program.tenants.iter().enumerate() {
        at.entry(tenant.node).or_default().push(index);
    }
    for bound in bounds(program).into_iter().filter(|bound| bound.why != IDLE) {
        for &tenant in program.path(bound.class).filter_map(|node| at.get(&node)).flatten() {
            found[tenant].meet(&bound);
        }
    }
    found
}

/// Warns of targets that the worst case misses.
pub(super) fn not_held(tenants: &[TenantEntry], program: &Program, problems: &mut Problems) {
    if tenants.iter().all(|tenant| tenant.delay.is_empty()) {
        return;
    }
    for ((tenant, entry), worst) in program.tenants.iter().zip(tenants).zip(worst(program)) {
        let (Some(stated), Some(budget)) = (entry.delay.last(), each_way(&tenant.slo.delay)) else {
            continue;
        };
        let (name, target) = (&entry.name.value, stated.value);
        let message = match (&worst.egress, worst.total()) {
            (_, Some(total)) if total <= target.most => continue,
            (Ok(egress), Some(total)) => format!(
                "{target} of `{name}` is less than its worst case of {total}: {egress} on the way out, {} on the way in",
                worst.ingress
            ),
            (Err(why), _) => format!("{target} of `{name}` has no worst case behind it: {why}"),
            (Ok(_), None) => continue,
        };
        let problem = Problem::warning(Law::DelayNotHeld, stated.at, message).label("not held in every case");
        problems.push(problem.help(remedy(program, entry, &worst, target, budget)));
    }
}

/// The changes with which the worst case meets the target.
fn remedy(
    program: &Program,
    tenant: &TenantEntry,
    worst: &Worst,
    target: DelayTarget,
    budget: Span,
) -> String {
    let mut ways = Vec::new();
    let left = target.most.as_u64().saturating_sub(worst.ingress.as_u64());
    match &worst.egress {
        Err(_) => ways.push(format!("give `{}` a `min`, which bounds its delay", tenant.name.value)),
        Ok(egress) if *egress > budget || worst.ingress <= budget => {
            let least = least_min(program, Span::ns(left), worst.parts);
            ways.extend(
                least.map(|min| format!("raise its `min` to {min} or more, as far as the link allows")),
            );
        }
        Ok(_) => {}
    }
    if worst.ingress > budget {
        ways.push(
            "raise its `weight` among the tenants', which is its part of the core on the way in".to_owned(),
        );
    }
    if let Some(total) = worst.total() {
        ways.push(format!("write `{}: {total}`", target.percentile));
    }
    format!("{}; or leave it: it is kept as long as the worst case does not come", ways.join(", or "))
}

/// The `min`, directly below the root, that bounds the delay so: three frames at one of `parts` parts of that rate, and four on
/// the link.
fn least_min(program: &Program, most: Span, parts: u64) -> Option<BitRate> {
    let frame = program.max_frame + program.overhead;
    let rest = most.as_u64().checked_sub(program.link.wire_time(frame.times(4)).as_u64())?;
    let bits = u128::from(parts) * u128::from(frame.times(3).bits()) * u128::from(NS_PER_SEC);
    let rate = bits.checked_div(u128::from(rest))?;
    // Up to a whole megabit, as an operator would write it.
    let mbps = u64::try_from(rate.div_ceil(1_000_000)).ok()?.max(1);
    let min = BitRate::new(mbps.checked_mul(1_000_000)?)?;
    (min < program.link).then_some(min)
}
