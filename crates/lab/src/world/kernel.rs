//! Linux's own queueing as a system to compare with: veth pairs into a bridge, and a queue of the uplink's rate.
//!
//! Why: an operator without Plimsoll would use this, with the same shares, on the same links.
//! From: tc-htb(8), tc-tbf(8). One FIFO of 1,000 packets is Linux's own default for a device (`txqueuelen`).
//!       Loom's "single queue" is HTB too: a whole software policy in front of one queue. Leaves are plain FIFOs,
//!       since fair leaves (`fq`, `sfq`) are missing from many kernels.
//! Not here: Plimsoll (`daemon`).
//! Invariant: only traffic to the world is limited; the reverse direction is not, in any system.

use super::{Drops, Member, SWITCH, TENANT_DEVICE, Tally, UPLINK, WORLD};
use crate::error::LabError;
use crate::netns::Netns;
use plimsoll_scenario::{Scenario, System, SystemKind, Tenant};
use serde_json::Value;
use std::collections::BTreeMap;

/// Length of a queue, in packets.
const QUEUE: u32 = 1_000;
/// The switch's device towards the world.
const OUT: &str = "out";
/// HTB class numbers of tenants start here.
const FIRST_CLASS: usize = 0x10;

/// The bridge with its queue.
pub(super) struct Queue {
    switch: Netns,
    shared: bool,
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
        let queue =
            if shared { fifo(scenario) } else { htb(scenario, &scenario.tenants_of(system), tenants) };
        switch.tc(&queue)?;
        Ok(Self { switch, shared })
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
            let lost = drops_of(&qdiscs, &format!("{:x}:", FIRST_CLASS + index));
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
/// divides the rate above the minima.
fn htb(scenario: &Scenario, promised: &[Tenant], tenants: &[Member]) -> Vec<String> {
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
        let class = format!("{:x}", FIRST_CLASS + index);
        let min = tenant.min.map_or_else(|| floor(rate), |min| min.get());
        let max = tenant.max.map_or(rate, |max| max.get()).max(min);
        let (burst, cburst) = (burst(scenario, min), burst(scenario, max));
        let quantum = u64::from(tenant.weight) * (u64::from(scenario.mtu) + 14);
        lines.push(format!(
            "class add dev {OUT} parent 1:2 classid 1:{class} htb rate {min}bit ceil {max}bit \
             burst {burst} cburst {cburst} quantum {quantum}"
        ));
        lines.push(format!("qdisc add dev {OUT} parent 1:{class} handle {class}: pfifo limit {QUEUE}"));
        lines.push(format!(
            "filter add dev {OUT} parent 1: protocol ip prio 1 u32 match ip src {}/32 flowid 1:{class}",
            member.address
        ));
    }
    lines
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
