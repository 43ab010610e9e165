//! The heavy hitters, as the API gives them.
//!
//! Why: `plimsoll heavy` and other programs must read the same.
//! From: the engine's list (`engine::heavy`).
//! Not here: counting.
//! Invariant: rates are means over the time that counts cover.

use std::net::IpAddr;

use plimsoll_queues::Tally;
use plimsoll_units::{Nanos, Span};
use serde::{Deserialize, Serialize};

use crate::engine::{HeavyFlow, HeavyNow};

/// The heavy hitters at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeavyReport {
    /// Seconds that the counts cover: the last two to four.
    pub over: f64,
    /// The flows, the one with most packets first.
    pub flows: Vec<HeavyRow>,
    /// Packets a second of all flows that are counted.
    pub packets: f64,
    /// Bits a second of all flows that are counted.
    pub bits: f64,
    /// Packets that were counted since the start, and those of them that the tables had no place for.
    pub counted: [u64; 2],
}

/// A heavy hitter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeavyRow {
    /// The tenant that sends or receives it.
    pub tenant: String,
    /// `out` or `in`, as the tenant sees it.
    pub direction: String,
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Number of the protocol behind IP.
    pub protocol: Option<u8>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// The EtherType, where it is not IP.
    pub ethertype: Option<u16>,
    /// Packets a second.
    pub packets: f64,
    /// Bits a second.
    pub bits: f64,
    /// Its part of all packets that are counted, from 0 to 1.
    pub part: f64,
    /// Seconds since it was found.
    pub age: f64,
}

impl HeavyReport {
    /// What the engine lists, at this time.
    #[must_use]
    pub fn new(now: &HeavyNow, at: Nanos) -> Self {
        let HeavyNow { flows, all, over, counters } = now;
        let (packets, bits) = rates(*all, *over);
        Self {
            over: over.as_secs_f64(),
            flows: flows.iter().map(|flow| HeavyRow::new(flow, *all, *over, at)).collect(),
            packets,
            bits,
            counted: [counters.seen.packets, counters.unlisted.packets],
        }
    }
}

impl HeavyRow {
    fn new(heavy: &HeavyFlow, all: Tally, over: Span, at: Nanos) -> Self {
        let HeavyFlow { tenant, inward, flow, sent, since } = heavy;
        let (packets, bits) = rates(*sent, over);
        Self {
            tenant: tenant.clone(),
            direction: if *inward { "in" } else { "out" }.to_owned(),
            src: flow.addresses().map(|(src, _)| src),
            dst: flow.addresses().map(|(_, dst)| dst),
            protocol: flow.protocol(),
            src_port: flow.ports().map(|(src, _)| src),
            dst_port: flow.ports().map(|(_, dst)| dst),
            ethertype: flow.ethertype(),
            packets,
            bits,
            part: sent.packets as f64 / all.packets.max(1) as f64,
            age: at.since(*since).as_secs_f64(),
        }
    }
}

fn rates(sent: Tally, over: Span) -> (f64, f64) {
    let seconds = over.as_secs_f64().max(1e-9);
    (sent.packets as f64 / seconds, sent.bytes as f64 * 8.0 / seconds)
}
