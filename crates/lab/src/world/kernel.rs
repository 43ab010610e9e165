//! Linux's own queueing as a system to compare with: veth pairs into a bridge, and a queue of the uplink's rate.
//!
//! Why: an operator without Plimsoll would use this, with the same shares, on the same links.
//! From: tc-htb(8), tc-tbf(8). A limit that several tenants share has no place in a tree of classes: HTB gets a class for each
//!       tenant and destination, and the limit is divided among the tenants that send there, by their weights. One FIFO of 1,000 packets is Linux's own default for a device (`txqueuelen`).
//!       Loom's "single queue" is HTB too: a whole software policy in front of one queue. Leaves are plain FIFOs,
//!       since fair leaves (`fq`, `sfq`) are missing from many kernels.
//! Not here: Plimsoll (`daemon`).
//! Invariant: only traffic to the world is limited; the reverse direction is not, in any system.

use super::{Drops, Member, SWITCH, TENANT_DEVICE, Tally, UPLINK, WORLD};
use crate::error::LabError;
use crate::netns::Netns;
use plimsoll_policy::{Limit, Match, Prefix, Scope};
use plimsoll_scenario::{Scenario, System, SystemKind, Tenant};
use serde_json::Value;
use std::collections::BTreeMap;

/// Length of a queue, in packets.
const QUEUE: u32 = 1_000;
/// The switch's device towards the world.
const OUT: &str = "out";
/// HTB class numbers of tenants start here, and those of a tenant's own classes at its number times `INNER`.
const FIRST_CLASS: usize = 0x10;
const INNER: usize = 0x10;

/// The bridge with its queue.
pub(super) struct Queue {
    switch: Netns,
    shared: bool,
    /// The limits to destinations.
    limits: Vec<Destination>,
}

/// A limit on what all tenants send to some addresses.
struct Destination {
    to: Vec<Prefix>,
    rate: u64,
}

impl Queue {
    /// Joins tenants and world, and installs the system's queue towards the world.
    pub(super) fn build(scenario: &Scenario, system: &System, tenants: &[Member]) -> Result<Self, LabError> {
        let switch = Netns::create(SWITCH)?;
        let mtu = scenario.mtu;
        let mut lines = vec![
            "link add bridge type bridge stp_state 0 mcast_snooping 0".to_owned(),
            format!("link add {OUT} mtu {mtu} type veth peer name {UPLINK} mtu {mtu} netns {WORLD}"),
            format!("link set {OUT} master bridge up"),
        ];
        for (index, tenant) in tenants.iter().enumerate() {
            let (port, netns) = (format!("port{index}"), tenant.netns.name());
            lines.push(format!(
                "link add {port} mtu {mtu} type veth peer name {TENANT_DEVICE} mtu {mtu} netns {netns}"
            ));
            lines.push(format!("link set {port} master bridge up"));
        }
        lines.push("link set bridge up".to_owned());
        switch.ip(&lines)?;
        if !scenario.offload {
            switch.offloads_off(OUT)?;
        }
        let shared = system.kind == SystemKind::Fifo;
        let limits = if shared { Vec::new() } else { destinations(scenario) };
        let queue = if shared {
            fifo(scenario)
        } else {
            htb(scenario, &scenario.tenants_of(system), tenants, &limits)
        };
        switch.tc(&queue)?;
        Ok(Self { switch, shared, limits })
    }

    /// Losses of each tenant; with one shared queue a note with their sum.
    pub(super) fn tally(&self, tenants: &[Member]) -> Result<Tally, LabError> {
        let qdiscs = self.switch.tc_json(&["qdisc", "show", "dev", OUT])?;
        if self.shared {
            let total = drops_of(&qdiscs, "1:");
            let notes = vec![format!("{total} packets were dropped by the one queue of all tenants")];
            return Ok(Tally { notes, ..Tally::default() });
        }
        let mut drops = Drops::new();
        for (index, tenant) in tenants.iter().enumerate() {
            let leaves = leaves(index, self.limits.len());
            let lost = leaves.iter().map(|leaf| drops_of(&qdiscs, &format!("{leaf:x}:"))).sum();
            drops.insert(tenant.name.clone(), BTreeMap::from([("queue full".to_owned(), lost)]));
        }
        Ok(Tally { drops, ..Tally::default() })
    }
}

/// One queue of the uplink's rate for all tenants.
fn fifo(scenario: &Scenario) -> Vec<String> {
    let rate = scenario.rate.get();
    let burst = burst(scenario, rate);
    let limit = u64::from(QUEUE) * (u64::from(scenario.mtu) + 14);
    vec![
        format!("qdisc add dev {OUT} root handle 1: tbf rate {rate}bit burst {burst} limit {limit}"),
        format!("qdisc add dev {OUT} parent 1:1 handle 2: pfifo limit {QUEUE}"),
    ]
}

/// A class for each tenant: `rate` is its min, `ceil` its max, and quanta are in proportion to the weights, by which HTB
/// divides the rate above the minima. With limits to destinations a tenant's class has one for each of them, with the tenant's part
/// of the limit, and one for the rest.
fn htb(scenario: &Scenario, promised: &[Tenant], tenants: &[Member], limits: &[Destination]) -> Vec<String> {
    let rate = scenario.rate.get();
    let whole = burst(scenario, rate);
    let mut lines = vec![
        format!("qdisc add dev {OUT} root handle 1: htb default 1"),
        format!(
            "class add dev {OUT} parent 1: classid 1:2 htb rate {rate}bit ceil {rate}bit burst {whole} cburst {whole}"
        ),
        format!("class add dev {OUT} parent 1:2 classid 1:1 htb rate {}bit ceil {rate}bit", floor(rate)),
    ];
    for (index, (tenant, member)) in promised.iter().zip(tenants).enumerate() {
        let min = tenant.min.map_or_else(|| floor(rate), |min| min.get());
        let max = tenant.max.map_or(rate, |max| max.get()).max(min);
        let weight = u64::from(tenant.weight);
        let own = FIRST_CLASS + index;
        lines.push(class(scenario, (2, own), (min, max), weight));
        let leaves = leaves(index, limits.len());
        let from = format!("ip src {}/32", member.address);
        let mut rest = min;
        for (limit, &leaf) in limits.iter().zip(&leaves[1..]) {
            let part = limit.part_of(scenario, promised, tenant).max(floor(rate));
            let promised = part.min(rest.saturating_sub(floor(rate))).max(floor(rate));
            rest = rest.saturating_sub(promised).max(floor(rate));
            lines.push(class(scenario, (own, leaf), (promised, part.min(max)), weight));
            for to in &limit.to {
                lines.push(filter(1, &format!("{from} match ip dst {}/{}", to.addr, to.len), leaf));
            }
        }
        if !limits.is_empty() {
            lines.push(class(scenario, (own, leaves[0]), (rest, max), weight));
        }
        for leaf in &leaves {
            lines.push(format!("qdisc add dev {OUT} parent 1:{leaf:x} handle {leaf:x}: pfifo limit {QUEUE}"));
        }
        lines.push(filter(2, &from, leaves[0]));
    }
    lines
}

/// The classes of a tenant that have a queue: for what no limit is for, and for each limit.
fn leaves(tenant: usize, limits: usize) -> Vec<usize> {
    let own = FIRST_CLASS + tenant;
    if limits == 0 { vec![own] } else { (0..=limits).map(|limit| own * INNER + limit).collect() }
}

fn class(
    scenario: &Scenario,
    (parent, own): (usize, usize),
    (rate, ceil): (u64, u64),
    weight: u64,
) -> String {
    let (burst, cburst) = (burst(scenario, rate), burst(scenario, ceil));
    let quantum = weight * (u64::from(scenario.mtu) + 14);
    format!(
        "class add dev {OUT} parent 1:{parent:x} classid 1:{own:x} htb rate {rate}bit ceil {ceil}bit burst {burst} \
         cburst {cburst} quantum {quantum}"
    )
}

fn filter(priority: u32, matches: &str, class: usize) -> String {
    format!(
        "filter add dev {OUT} parent 1: protocol ip prio {priority} u32 match {matches} flowid 1:{class:x}"
    )
}

impl Destination {
    /// The part of a tenant that sends there: by its weight among those that do. Others get none.
    fn part_of(&self, scenario: &Scenario, promised: &[Tenant], tenant: &Tenant) -> u64 {
        let sends = |tenant: &Tenant| {
            scenario.workloads.iter().any(|workload| {
                let address = scenario.destination_address(&workload.to);
                workload.tenant == tenant.name
                    && address.is_some_and(|address| self.to.iter().any(|to| to.contains(address.into())))
            })
        };
        let weights: u64 = promised.iter().filter(|one| sends(one)).map(|one| u64::from(one.weight)).sum();
        if sends(tenant) { self.rate * u64::from(tenant.weight) / weights.max(1) } else { 0 }
    }
}

/// The limits of the scenario's policy that are for addresses alone.
fn destinations(scenario: &Scenario) -> Vec<Destination> {
    // A policy that breaks a rule is told when its own system is to run.
    let own = scenario.systems.iter().find(|system| system.kind == SystemKind::Plimsoll);
    let Some(Ok(checked)) = own.map(|system| scenario.checked(system)) else { return Vec::new() };
    let destination = |limit: &Limit| match &limit.scope {
        Scope::Match { matches, .. } => {
            let others = Match { dst: Vec::new(), ..matches.clone() };
            let alone = others == Match::default() && !matches.dst.is_empty();
            alone.then(|| Destination { to: matches.dst.clone(), rate: limit.rate.get() })
        }
        _ => None,
    };
    checked.program.limits.iter().filter_map(destination).collect()
}

/// The rate of a class without a minimum, a thousandth of the link: HTB has no class without a rate.
fn floor(rate: u64) -> u64 {
    (rate / 1_000).max(8_000)
}

/// A burst of a millisecond at the rate, at least two frames.
fn burst(scenario: &Scenario, rate: u64) -> u64 {
    (rate / 8_000).max(2 * (u64::from(scenario.mtu) + 14))
}

fn drops_of(qdiscs: &Value, handle: &str) -> u64 {
    let one = qdiscs.as_array().and_then(|all| all.iter().find(|one| one["handle"] == handle));
    one.and_then(|one| one["drops"].as_u64()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_to_a_destination_is_divided_among_those_that_send_there() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/noisy-neighbour.yaml");
        let scenario = Scenario::load(file.as_ref(), plimsoll_scenario::Form::Full).expect("an example");
        let limits = destinations(&scenario);
        let [limit] = &limits[..] else { panic!("one limit") };
        assert_eq!((limit.rate, limit.to.len()), (25_000_000, 1));
        let parts: Vec<u64> = scenario
            .tenants
            .iter()
            .map(|tenant| limit.part_of(&scenario, &scenario.tenants, tenant))
            .collect();
        assert_eq!(parts, [0, 8_333_333, 8_333_333, 8_333_333]);
        assert_eq!((leaves(1, 1), leaves(1, 0)), (vec![0x110, 0x111], vec![0x11]));
    }
}
