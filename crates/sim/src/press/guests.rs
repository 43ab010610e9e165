//! The tenants of a host whose ECN it mediates, in virtual time.
//!
//! Why: the host's rules for connections must be those that run live; packets are models.
//! From: `control::backpressure::mediation`; what is read and written of a packet as the daemon does it (`engine/mediate`).
//! Not here: when a packet is handled, and packets that wait for a meter (`world/pressing`).
//! Invariant: of a TCP packet only ECE, CWR and the ECN field are changed, and of other packets nothing.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use plimsoll_control::HostId;
use plimsoll_control::backpressure::mediation::{self, Change, Codepoint, EcnFlags, Segment};
use plimsoll_policy::Mediate;
use plimsoll_units::Nanos;

use super::Key;
use crate::packet::{Body, Packet};
use crate::said::{Header, Said};
use crate::tcp::{self, Flags};

/// The mediated tenants of a host, by their numbers in the scenario.
#[derive(Debug, Default)]
pub(crate) struct Guests(BTreeMap<u32, Guest>);

#[derive(Debug)]
struct Guest {
    tables: mediation::Guest<Key>,
    /// What each end of a connection has said, as this host saw it.
    said: BTreeMap<Key, Said>,
}

impl Guests {
    /// Those of `mediated`, which lists all tenants of the scenario.
    pub(super) fn new(mediated: &[Option<Mediate>], seed: u64) -> Self {
        let stated = (0_u32..).zip(mediated).filter_map(|(tenant, stated)| Some((tenant, (*stated)?)));
        let guest = |(tenant, stated)| {
            let tables = mediation::Guest::new(stated, [seed, !seed]);
            (tenant, Guest { tables, said: BTreeMap::new() })
        };
        Self(stated.map(guest).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Handles a packet that a tenant sends.
    pub(crate) fn outbound(&mut self, tenant: u32, key: Key, packet: &mut Packet, now: Nanos) {
        let Some(guest) = self.0.get_mut(&tenant) else { return };
        let Some((segment, said)) = guest.read(key, packet) else { return };
        let change = guest.tables.outbound(&key, &segment, now);
        rewrite(change, packet, &said);
    }

    /// Handles a packet for a tenant from this address.
    pub(crate) fn inbound(&mut self, tenant: u32, key: Key, packet: &mut Packet, from: Ipv4Addr, now: Nanos) {
        let Some(guest) = self.0.get_mut(&tenant) else { return };
        let Some((segment, said)) = guest.read(key, packet) else { return };
        let sent = Key { back: !key.back, ..key };
        let (change, _) = guest.tables.inbound(&sent, &segment, || HostId(from.to_bits()), now);
        rewrite(change, packet, &said);
    }

    /// Whether a tenant's flow may send these bytes, if its receiver has reported marks.
    pub(super) fn conforms(&mut self, tenant: u32, key: &Key, bytes: u32, now: Nanos) -> bool {
        let metered = self.0.get_mut(&tenant).filter(|guest| guest.tables.has_meters());
        metered.is_none_or(|guest| guest.tables.conforms(key, bytes, now))
    }

    /// When it may.
    pub(super) fn ready_at(&self, tenant: u32, key: &Key, bytes: u32, now: Nanos) -> Nanos {
        self.0.get(&tenant).map_or(now, |guest| guest.tables.ready_at(key, bytes, now))
    }

    /// What was done, by the names of the daemon's events.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.values().flat_map(|guest| {
            let done = guest.tables.counters();
            [
                ("ecn_asked", done.asked),
                ("ecn_granted", done.granted),
                ("ecn_hidden", done.hidden),
                ("ecn_unmarked", done.unmarked),
                ("ecn_echoed", done.echoed),
                ("ecn_answered", done.answered),
                ("ecn_reported", done.reports),
            ]
        })
    }
}

impl Guest {
    /// What mediation reads of a TCP packet that one end sends, and what that end has said so far.
    fn read(&mut self, key: Key, packet: &Packet) -> Option<(Segment, Said)> {
        let Body::Tcp(tcp) = &packet.body else { return None };
        let said = self.said.entry(key).or_default();
        let Header { syn, ack, cwr, ece, sequence, acknowledged, .. } = said.header(tcp);
        let segment = Segment {
            syn,
            ack,
            fin: false,
            rst: false,
            flags: EcnFlags { ae: false, cwr, ece },
            ecn: packet.codepoint(),
            sequence,
            acknowledged,
            payload: tcp.len(),
        };
        Some((segment, *said))
    }
}

/// Applies a change. A segment whose acknowledgement is no news has none in the model; it gets one for an echo to travel in.
fn rewrite(change: Change, packet: &mut Packet, said: &Said) {
    let Body::Tcp(tcp::Packet { segment, ack }) = &mut packet.body else { return };
    let opens = segment.is_some_and(|segment| segment.flags.contains(Flags::SYN));
    match (segment, change) {
        (Some(segment), Change { ece: Some(true), cwr: Some(true), .. }) if opens => {
            segment.flags |= Flags::ECN_SETUP;
        }
        (segment, Change { ece, cwr, .. }) => {
            if let (Some(segment), Some(true)) = (segment, cwr) {
                segment.flags |= Flags::CWR;
            }
            if ece == Some(true) && ack.is_none() {
                *ack = said.last_ack();
            }
            if let (Some(ack), Some(ece)) = (ack, ece) {
                *ack = ack.with_ece(ece);
            }
        }
    }
    if let Some(ecn) = change.ecn {
        packet.ce = ecn == Codepoint::Ce;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{Ack, Ecn, Segment as Data};

    const NOW: Nanos = Nanos::ZERO;
    const HERE: Key = Key { flow: 0, back: false, claim: 0 };
    const THERE: Key = Key { back: true, ..HERE };

    fn packet(back: bool, segment: Option<Data>, ack: Option<Ack>) -> Packet {
        let ect = segment.is_some_and(|segment| segment.ecn != Ecn::NotEct);
        Packet::new((0, back), ect, 1_000, Body::Tcp(tcp::Packet { segment, ack }))
    }

    fn data(seq: u64, flags: Flags, ecn: Ecn) -> Option<Data> {
        Some(Data { seq, sent: NOW, len: u32::from(flags == Flags::default()) * 900, mss: 1_448, flags, ecn })
    }

    fn ece(packet: &Packet) -> bool {
        matches!(packet.body, Body::Tcp(tcp::Packet { ack: Some(ack), .. }) if ack.ece())
    }

    /// A client without ECN, whose host asks for it: what the server grants is hidden, and its marks are echoed, on data too.
    #[test]
    fn a_host_asks_and_echoes_for_its_client() {
        let mut guests = Guests::new(&[None, Some(Mediate::default())], 7);
        let send = |guests: &mut Guests, segment, ack| {
            let mut sent = packet(false, segment, ack);
            guests.outbound(1, HERE, &mut sent, NOW);
            sent
        };
        let hear = |guests: &mut Guests, mut packet: Packet| {
            guests.inbound(1, THERE, &mut packet, Ipv4Addr::LOCALHOST, NOW);
            packet
        };
        let ack = Ack::new(0, 1 << 16, NOW);
        let syn = send(&mut guests, data(0, Flags::SYN, Ecn::NotEct), Some(ack));
        assert!(matches!(syn.body, Body::Tcp(tcp::Packet { segment: Some(segment), .. })
            if segment.flags.contains(Flags::ECN_SETUP)));
        let grant = hear(&mut guests, packet(true, None, Some(ack.with_syn(true).with_ece(true))));
        assert!(!ece(&grant) && grant.is_changed());
        let first = send(&mut guests, data(0, Flags::default(), Ecn::NotEct), Some(ack));
        assert!(!first.is_changed());
        let marked = Packet { ce: true, ..packet(true, data(0, Flags::default(), Ecn::Ect0), None) };
        assert!(!hear(&mut guests, marked).ce, "the client does not see the mark");
        // Its next data acknowledges nothing new, and echoes the mark with the number that it said last.
        let echo = send(&mut guests, data(900, Flags::default(), Ecn::NotEct), None);
        assert!(ece(&echo) && echo.is_changed());
        let heard =
            packet(true, data(900, Flags::CWR, Ecn::Ect0).map(|data| Data { len: 900, ..data }), None);
        assert!(!hear(&mut guests, heard).is_changed());
        assert!(!send(&mut guests, None, Some(Ack::new(1_800, 1 << 16, NOW))).is_changed());
        let counts: BTreeMap<_, _> = guests.counters().collect();
        assert_eq!(
            ["ecn_asked", "ecn_hidden", "ecn_unmarked", "ecn_echoed"].map(|name| counts[name]),
            [1; 4]
        );
        // Another tenant's packets, and datagrams, are not read at all.
        let mut other = packet(false, data(0, Flags::SYN, Ecn::NotEct), Some(ack));
        guests.outbound(0, HERE, &mut other, NOW);
        assert!(!other.is_changed() && !guests.is_empty());
    }
}
