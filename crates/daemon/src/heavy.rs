//! The heavy hitters, as the API gives them.
//!
//! Why: `plimsoll heavy` and other programs must read the same.
//! From: the engine's list (`dataplane::heavy`).
//! Not here: counting.
//! Invariant: rates are means over the time that counts cover.

use std::net::IpAddr;

use plimsoll_policy::protocol_name;
use plimsoll_queues::Tally;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::FlowKey;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dataplane::{AskedBy, AskedNow, HeavyFlow, HeavyNow, Means, PressedNow, WatchedNow};

/// The heavy hitters at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// How often a count moved from a hash bucket to the flow table since the start.
    #[serde(default)]
    pub updates: UpdatesRow,
    /// What is watched, if anything is.
    pub watched: Option<WatchedRow>,
    /// Flows of tenants here that are held to a rate for other hosts, or as their receivers report marks.
    #[serde(default)]
    pub held: Vec<HeldRow>,
}

/// Updates of the flow table, by their reason (MIMIC §IV-B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpdatesRow {
    /// The bucket was full, and another flow needed the place.
    pub bucket_overflows: u64,
    /// The flow had sent a thousand packets.
    pub counter_overflows: u64,
    /// A millisecond had ended.
    pub periodic_updates: u64,
}

/// A flow that is held to a rate for another host, or as its receiver reports marks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldRow {
    /// Its headers in one line.
    pub flow: String,
    /// The tenant here that sends it.
    #[serde(default)]
    pub tenant: String,
    /// The tenant elsewhere that it goes to; empty where its receiver reports marks.
    pub to: String,
    /// The host of that tenant, which asked; empty where its receiver reports marks.
    pub host: String,
    /// The tenant here whose receiver reports marks (ECN).
    #[serde(default)]
    pub receiver_of: Option<String>,
    /// The rate in bits a second.
    pub rate: u64,
    /// Seconds for which it has been held.
    #[serde(default)]
    pub age: f64,
    /// Seconds until it is let go, if it is not asked for again.
    pub left: f64,
}

/// What is watched, and what followed from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WatchedRow {
    /// What it is, as in the policy file.
    pub what: String,
    /// Whether its load can be measured: not if a cgroup or thread does not exist, or has gone.
    #[serde(default = "yes")]
    pub measured: bool,
    /// Whether it was overloaded when it was last looked at.
    pub overloaded: bool,
    /// The part of heavy hitters' packets that the top flow had in the last overload, from 0 to 1 (MIMIC's figure 2).
    pub top: Option<f64>,
    /// Overloads since the start.
    pub overloads: u64,
    /// Flows that were slowed down since the start, and those that were let go again.
    pub started: u64,
    /// See `started`.
    pub ended: u64,
    /// Packets that were marked (CE) since the start, whether they were lost later or not.
    pub marked: u64,
    /// How often a flow was left alone as too many were slowed down.
    pub left: u64,
}

/// How a flow is slowed down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PressedRow {
    /// The rate that it is slowed down to, in bits a second.
    pub rate: u64,
    /// `marked`, `metered` (what is beyond the rate waits at this host), `dropped` (what is beyond is dropped at this host), `told` (the
    /// host that it comes from meters it), `marked and metered`, `marked and told`, or `window` (the receive window in its acknowledgements is made smaller).
    pub how: String,
    /// Where it is marked, one of how many packets is.
    pub interval: Option<u32>,
    /// Seconds for which it has been slowed down.
    pub age: f64,
}

/// A heavy hitter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeavyRow {
    /// The tenant that sends or receives it.
    pub tenant: String,
    /// `out` or `in`, as the tenant sees it.
    pub direction: String,
    /// The tenant that sends it to this one, `NAME` of this host or `NAME@HOST`, where that is known: others can copy its headers.
    #[serde(default)]
    pub from: Option<String>,
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
    /// Seconds of its round trip, if that is measured: where `watch` is stated, of TCP.
    #[serde(default)]
    pub round_trip: Option<f64>,
    /// How it is slowed down, if it is.
    pub pressed: Option<PressedRow>,
}

impl HeavyReport {
    /// What the engine lists, at this time; `None` where no flow is counted or held.
    #[must_use]
    pub fn new(now: Option<&HeavyNow>, asked: &[AskedNow], at: Nanos) -> Option<Self> {
        let held: Vec<HeldRow> = asked.iter().map(|asked| HeldRow::new(asked, at)).collect();
        let counted = now.map(|now| Self::of(now, at));
        let empty = || Self {
            over: 0.0,
            flows: Vec::new(),
            packets: 0.0,
            bits: 0.0,
            counted: [0; 2],
            updates: UpdatesRow::default(),
            watched: None,
            held: Vec::new(),
        };
        let report = counted.or_else(|| (!held.is_empty()).then(empty))?;
        Some(Self { held, ..report })
    }

    fn of(now: &HeavyNow, at: Nanos) -> Self {
        let HeavyNow { flows, all, over, counters, watched } = now;
        let (packets, bits) = rates(*all, *over);
        Self {
            over: over.as_secs_f64(),
            flows: flows.iter().map(|flow| HeavyRow::new(flow, *all, *over, at)).collect(),
            packets,
            bits,
            counted: [counters.seen.packets, counters.unlisted.packets],
            updates: UpdatesRow {
                bucket_overflows: counters.bucket_overflows,
                counter_overflows: counters.counter_overflows,
                periodic_updates: counters.periodic_updates,
            },
            watched: watched.as_ref().map(WatchedRow::new),
            held: Vec::new(),
        }
    }
}

impl HeavyRow {
    fn new(heavy: &HeavyFlow, all: Tally, over: Span, at: Nanos) -> Self {
        let HeavyFlow { tenant, inward, from, flow, sent, since, round_trip, pressed, .. } = heavy;
        let (packets, bits) = rates(*sent, over);
        Self {
            tenant: tenant.clone(),
            direction: if *inward { "in" } else { "out" }.to_owned(),
            from: from.clone(),
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
            round_trip: round_trip.map(Span::as_secs_f64),
            pressed: pressed.as_ref().map(|pressed| PressedRow::new(pressed, at)),
        }
    }

    /// The headers in one line: `tcp 10.0.0.1:4096 > 10.0.0.2:80`.
    #[must_use]
    pub fn headers(&self) -> String {
        let ports = self.src_port.zip(self.dst_port);
        in_line(self.src.zip(self.dst), self.protocol, ports, self.ethertype)
    }
}

impl HeldRow {
    fn new(AskedNow { flow, of, by, rate, since, until }: &AskedNow, at: Nanos) -> Self {
        let (to, host, receiver_of) = match by {
            AskedBy::Host { to, host } => (to.clone(), host.clone(), None),
            AskedBy::Receiver => (String::new(), String::new(), Some(of.clone())),
        };
        Self {
            flow: headers(flow),
            tenant: of.clone(),
            to,
            host,
            receiver_of,
            rate: rate.get(),
            age: at.since(*since).as_secs_f64(),
            left: until.since(at).as_secs_f64(),
        }
    }
}

impl WatchedRow {
    pub(crate) fn new(
        WatchedNow { what, measured, overloaded, top, counters: (counters, marked) }: &WatchedNow,
    ) -> Self {
        Self {
            what: what.to_string(),
            measured: *measured,
            overloaded: *overloaded,
            top: top.map(|top| f64::from(top) / 1_000.0),
            overloads: counters.overloads,
            started: counters.started,
            ended: counters.ended,
            marked: *marked,
            left: counters.full,
        }
    }
}

impl PressedRow {
    fn new(&PressedNow { rate, since, means, interval }: &PressedNow, at: Nanos) -> Self {
        let how = match means {
            Means::Marked => "marked",
            Means::MeteredHere => "metered",
            Means::Dropped => "dropped",
            Means::Told(_) => "told",
            Means::MarkedAndMetered => "marked and metered",
            Means::MarkedAndTold(_) => "marked and told",
            Means::Windowed => "window",
        };
        let interval = means.marks().then_some(interval);
        Self { rate: rate.get(), how: how.to_owned(), interval, age: at.since(since).as_secs_f64() }
    }
}

/// The state of what an older daemon says nothing about.
fn yes() -> bool {
    true
}

/// A flow's headers in one line.
pub(crate) fn headers(flow: &FlowKey) -> String {
    in_line(flow.addresses(), flow.protocol(), flow.ports(), flow.ethertype())
}

fn in_line(
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
    ethertype: Option<u16>,
) -> String {
    let end = |addr: IpAddr, port: Option<u16>| match (addr, port) {
        (addr, None) => addr.to_string(),
        (IpAddr::V4(addr), Some(port)) => format!("{addr}:{port}"),
        (IpAddr::V6(addr), Some(port)) => format!("[{addr}]:{port}"),
    };
    match (addresses, protocol) {
        (Some((src, dst)), Some(protocol)) => {
            let protocol = protocol_name(protocol);
            let (src, dst) = (end(src, ports.map(|(src, _)| src)), end(dst, ports.map(|(_, dst)| dst)));
            format!("{protocol} {src} > {dst}")
        }
        _ => format!("EtherType 0x{:04x}", ethertype.unwrap_or_default()),
    }
}

fn rates(sent: Tally, over: Span) -> (f64, f64) {
    let seconds = over.as_secs_f64().max(1e-9);
    (sent.packets as f64 / seconds, sent.bytes as f64 * 8.0 / seconds)
}
