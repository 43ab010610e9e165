//! The tables that count a host's flows, with the sizes that an experiment states.
//!
//! Why: MIMIC varies the number of buckets and the flows in each, which the engine fixes.
//! From: `queues::HeavyHitters`, the code that runs live.
//! Not here: what is counted, and what follows (`press`).
//! Invariant: a flow's hash follows from its name and the seed alone, on any machine.

use plimsoll_control::HostId;
use plimsoll_control::backpressure::FlowSource;
use plimsoll_queues::{Heavy, HeavyConfig, HeavyCounters, HeavyHitters, Tally};
use plimsoll_scenario::{PressModel, Slots};
use plimsoll_units::Nanos;

use super::{Counted, Key};

/// The tables in which flows are counted, by the number of flows in a bucket, and the key of their hash.
#[derive(Debug)]
pub(super) struct Hitters {
    tables: Tables,
    seed: u64,
}

#[derive(Debug)]
enum Tables {
    Two(Box<HeavyHitters<Counted, 2>>),
    Four(Box<HeavyHitters<Counted, 4>>),
    Eight(Box<HeavyHitters<Counted, 8>>),
}

/// Does the same with the tables, whatever the number of slots.
macro_rules! each {
    ($tables:expr, $hitters:ident => $what:expr) => {
        match $tables {
            Tables::Two($hitters) => $what,
            Tables::Four($hitters) => $what,
            Tables::Eight($hitters) => $what,
        }
    };
}

impl Hitters {
    pub(super) fn new(config: HeavyConfig, model: PressModel, seed: u64, now: Nanos) -> Self {
        let config = HeavyConfig {
            buckets: model.buckets.map_or(config.buckets, |buckets| buckets as usize),
            counter_cap: model.counter_cap.unwrap_or(config.counter_cap),
            ..config
        };
        let tables = match model.slots {
            Slots::Two => Tables::Two(Box::new(HeavyHitters::new(config, now))),
            Slots::Four => Tables::Four(Box::new(HeavyHitters::new(config, now))),
            Slots::Eight => Tables::Eight(Box::new(HeavyHitters::new(config, now))),
        };
        Self { tables, seed }
    }

    pub(super) fn count(&mut self, flow: &Counted, frames: u32, bytes: u32) {
        let hash = hash(flow, self.seed);
        let frames = u16::try_from(frames).unwrap_or(u16::MAX);
        each!(&mut self.tables, hitters => hitters.count_many(hash, flow, frames, bytes));
    }

    pub(super) fn advance(&mut self, now: Nanos) {
        each!(&mut self.tables, hitters => hitters.advance(now));
    }

    pub(super) fn read(&mut self, max: usize, out: &mut Vec<Heavy<Counted>>) {
        each!(&mut self.tables, hitters => hitters.read(max, out));
    }

    /// What a flow sent in the running generation and the one before, whether it is heavy or not.
    pub(super) fn sent(&self, flow: &Counted) -> Option<Tally> {
        let hash = hash(flow, self.seed);
        each!(&self.tables, hitters => hitters.sent(hash))
    }

    pub(super) fn counters(&self) -> HeavyCounters {
        each!(&self.tables, hitters => hitters.counters())
    }

    pub(super) fn held(&self) -> Tally {
        each!(&self.tables, hitters => hitters.held())
    }
}

/// A keyed hash that is the same on any machine: `SplitMix64` over the parts of the name.
fn hash(flow: &Counted, seed: u64) -> u64 {
    // Whether it is untouched follows from the other parts.
    let Counted { key: Key { flow, back, claim }, tenant, inward, from, untouched: _ } = *flow;
    let from = match from {
        FlowSource::Here => 0,
        FlowSource::Elsewhere(_) => 1,
        FlowSource::Host(HostId(node), _) => 2 + u64::from(node),
    };
    let parts = [
        u64::from(flow) << 32 | u64::from(claim),
        u64::from(tenant) << 34 | from << 2 | u64::from(back) << 1 | u64::from(inward),
    ];
    parts.into_iter().fold(mix(seed), |hash, part| mix(hash ^ part))
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_control::backpressure::SenderMac;
    use std::collections::BTreeSet;

    /// Ports, directions, claims and sources each make another flow, and another seed another hash.
    #[test]
    fn flows_that_differ_in_anything_have_other_hashes() {
        let key = Key { flow: 1, back: false, claim: 2 };
        let flow = Counted { key, tenant: 3, inward: true, ..Counted::default() };
        let others = [
            flow,
            Counted { key: Key { flow: 2, ..key }, ..flow },
            Counted { key: Key { back: true, ..key }, ..flow },
            Counted { key: Key { claim: 3, ..key }, ..flow },
            Counted { tenant: 4, ..flow },
            Counted { inward: false, ..flow },
            Counted { from: FlowSource::Elsewhere(SenderMac::default()), ..flow },
            Counted { from: FlowSource::Host(HostId(0), SenderMac::default()), ..flow },
            Counted { from: FlowSource::Host(HostId(1), SenderMac::default()), ..flow },
        ];
        let hashes: BTreeSet<u64> =
            [1, 2].iter().flat_map(|&seed| others.map(|flow| hash(&flow, seed))).collect();
        assert_eq!(hashes.len(), 2 * others.len());
    }
}
