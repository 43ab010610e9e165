//! The state of other hosts, for operators.
//!
//! Why: an operator must see whether a host is heard, which tenants are held back for which, and by how much.
//! From: PicNIC's PN-C3, the state of each VM reported; copied out between two turns.
//! Not here: tables and metrics (`stats`, `prometheus`).
//! Invariant: taking it costs time in proportion to hosts and tenants, never to packets.

use std::net::IpAddr;

use plimsoll_control::agent::Presence;
use plimsoll_control::{Fingerprint, Limits};
use plimsoll_nic::LimitCounters;
use plimsoll_policy::TenantId;
use plimsoll_units::{BitRate, Nanos, Span};

use super::super::Dataplane;
use super::super::mac_table::Mac;
use super::steer::Counts;

/// Other hosts at one moment.
#[derive(Clone, Debug, Default)]
pub struct FleetNow {
    /// The key that this host seals with, if it seals anything.
    pub key: Option<Fingerprint>,
    /// All hosts but this one.
    pub hosts: Vec<HostNow>,
    /// Tenants here, each with the tenants elsewhere that it has sent to.
    pub pairs: Vec<PairNow>,
    /// The limits that tenants here set.
    pub receivers: Vec<ReceiverNow>,
}

/// Whether a host sends feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostState {
    /// Hosts tell each other no limits.
    Uncontrolled,
    /// Feedback from it was heard recently.
    Heard,
    /// Frames go there or come from there, but no feedback: each pair is held to its fallback, and frames from there to one
    /// sender's part.
    Silent,
    /// No frames, and no feedback.
    Idle,
}

impl HostState {
    /// The word that operators see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncontrolled => "uncontrolled",
            Self::Heard => "heard",
            Self::Silent => "silent",
            Self::Idle => "idle",
        }
    }
}

/// Another host.
#[derive(Clone, Debug)]
pub struct HostNow {
    /// The operator's name for it.
    pub name: String,
    /// Its address on the underlay.
    pub address: IpAddr,
    /// The next hop's hardware address, once it is known.
    pub next_hop: Option<Mac>,
    /// Whether it is heard.
    pub state: HostState,
    /// How long ago it was last heard.
    pub heard: Option<Span>,
    /// Frames to it.
    pub sent: u64,
    /// Packets from it.
    pub received: u64,
    /// Messages.
    pub messages: Counts,
    /// The rate that holds while it is silent.
    pub fallback: BitRate,
    /// Whether frames to it are sealed; none where no frames are.
    pub session: Option<bool>,
    /// The key that frames to it are sealed with.
    pub to: Option<Fingerprint>,
    /// The keys that it seals with: its frames, and its last message.
    pub from: [Option<Fingerprint>; 2],
}

/// A pair of a tenant here and one elsewhere that it sends to.
#[derive(Clone, Debug)]
pub struct PairNow {
    /// The tenant here.
    pub tenant: String,
    /// The tenant elsewhere, and its host.
    pub peer: String,
    /// See [`PairNow::peer`].
    pub host: String,
    /// Its limits; none while its host is silent and the fallback holds.
    pub limits: Option<Limits>,
    /// The rate that is enforced, in bits a second.
    pub bits: BitRate,
    /// Packets of this pair.
    pub counters: LimitCounters,
}

/// A tenant here, as a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverNow {
    /// The tenant.
    pub tenant: String,
    /// The rate that it may receive, in bits a second.
    pub capacity: u64,
    /// The limits of a sender of weight one to it.
    pub limits: Limits,
    /// Senders that are known by name.
    pub senders: usize,
}

impl Dataplane {
    /// The state of other hosts; none without an overlay. `limits` are all limits' counters.
    pub(in super::super) fn fleet_now(&self, limits: &[LimitCounters], now: Nanos) -> Option<FleetNow> {
        let fleet = self.fleet.as_ref()?;
        let steering = fleet.steering.as_deref();
        let hosts = fleet.map.hosts.iter().zip(&fleet.links).enumerate().map(|(index, (host, link))| {
            let heard = steering.and_then(|steering| steering.agent.contact(index).heard_at());
            let state = match steering.map(|steering| steering.agent.presence(index, now)) {
                None => HostState::Uncontrolled,
                Some(Presence::Heard) => HostState::Heard,
                Some(Presence::Silent) => HostState::Silent,
                Some(Presence::Idle) => HostState::Idle,
            };
            let [to, frames] = fleet.seals.as_ref().map_or([None; 2], |seals| seals.keys(index));
            let feedback = steering.and_then(|steering| steering.agent.key_of(index));
            HostNow {
                to,
                from: [frames, feedback],
                name: host.name.clone(),
                address: host.address,
                next_hop: fleet.neighbours.mac(link.hop),
                state,
                heard: heard.map(|at| now.since(at)),
                sent: link.sent,
                received: link.received,
                messages: steering.map(|steering| steering.counts(index)).unwrap_or_default(),
                fallback: host.fallback,
                session: fleet.seals.as_ref().map(|seals| seals.is_live(index)),
            }
        });
        let (mut pairs, mut receivers) = (Vec::new(), Vec::new());
        if let Some(steering) = steering {
            for (tenant, stated) in (0..).map(TenantId).zip(&self.policy.program.tenants) {
                for (vm, peer) in (0..).zip(fleet.map.members.vms()) {
                    let Some([bits, _]) = fleet.map.pair(tenant, vm) else { continue };
                    let counters = limits[bits.0 as usize];
                    if counters.packets == 0 && counters.waiting == 0 {
                        continue;
                    }
                    let host = &fleet.map.hosts[peer.host];
                    let allowed = steering.agent.allowed(tenant.0 as usize, vm);
                    pairs.push(PairNow {
                        tenant: stated.name.clone(),
                        peer: peer.name.clone(),
                        host: host.name.clone(),
                        limits: allowed,
                        bits: allowed.map_or(host.fallback, |limits| limits.bits),
                        counters,
                    });
                }
            }
            let agent = &steering.agent;
            receivers.extend(
                steering.lanes.iter().enumerate().map(|(vm, &lane)| ReceiverNow {
                    tenant: self.tenants.lanes[lane as usize]
                        .as_ref()
                        .map_or(String::new(), |lane| lane.name.clone()),
                    capacity: agent.receivers().capacity(vm),
                    limits: agent.receivers().limits(vm),
                    senders: agent.known_senders(vm),
                }),
            );
        }
        let key = fleet.keys.as_ref().map(|keys| Fingerprint::of(keys.own()));
        Some(FleetNow { key, hosts: hosts.collect(), pairs, receivers })
    }
}
