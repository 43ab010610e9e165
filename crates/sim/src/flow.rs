//! A flow and its two ends: the tenants, addresses and ports between which packets travel.
//!
//! Why: a packet names its flow alone; all else that its headers say is written here once.
//! From: the 5-tuple by which NICs tell flows apart.
//! Not here: what a flow sends (`traffic`), its connection (`tcp`), and a packet's way through the world (`world`).
//! Invariant: an end keeps its node, tenant, address and port; its engine's flow queue may change when a daemon starts again.

use std::net::Ipv4Addr;

use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Metadata};

use crate::control::Vm;
use crate::packet::Packet;

/// A flow: packets with the same addresses, protocol and ports, and their answers.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) workload: u32,
    /// The client's end, and the server's.
    pub(crate) ends: [End; 2],
    pub(crate) protocol: u8,
    /// The first of its two connections' end points, for TCP.
    pub(crate) socket: u32,
    /// The vNIC of the tenant that forwards its packets, if they pass one: as it forwards those of the client, and those of the
    /// server.
    pub(crate) through: Option<Box<[End; 2]>>,
}

/// One end of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) node: u32,
    /// The tenant that sends from here; `None` beyond the uplink.
    pub(crate) tenant: Option<u32>,
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) dscp: u8,
    /// The engine's flow queue, once there is one.
    pub(crate) queue: Option<QueueId>,
    /// The core that it runs on, if its work there takes time.
    pub(crate) core: Option<u32>,
}

impl End {
    /// The vNIC, if it is a tenant's.
    pub(crate) fn vm(&self) -> Option<Vm> {
        self.tenant.map(|tenant| Vm { tenant, node: self.node })
    }

    /// The vNIC, if it is a tenant's on another host.
    pub(crate) fn elsewhere(&self, node: u32) -> Option<Vm> {
        self.vm().filter(|vm| vm.node != node)
    }
}

impl Flow {
    /// A packet's sending and receiving end.
    #[inline]
    pub(crate) fn way(&self, back: bool) -> (&End, &End) {
        let [client, server] = &self.ends;
        if back { (server, client) } else { (client, server) }
    }

    /// The ends of the part of its way on which a packet is: to the tenant that forwards it, or from there.
    #[inline]
    pub(crate) fn leg(&self, packet: &Packet) -> (&End, &End) {
        let (from, to) = self.way(packet.back);
        match &self.through {
            None => (from, to),
            Some(through) => {
                let through = &through[usize::from(packet.back)];
                if packet.passed { (through, to) } else { (from, through) }
            }
        }
    }

    /// Each leg of its packets' way, in both directions.
    pub(crate) fn legs(&self) -> impl Iterator<Item = (&End, &End)> {
        self.legs_with_direction().map(|(_, leg)| leg)
    }

    /// Each leg of its packets' way, with whether it is one of the server's packets.
    pub(crate) fn legs_with_direction(&self) -> impl Iterator<Item = (bool, (&End, &End))> {
        let both = [false, true].into_iter();
        both.flat_map(|back| {
            let (from, to) = self.way(back);
            let through = self.through.as_ref().map(|through| &through[usize::from(back)]);
            let first = through.unwrap_or(to);
            let legs = core::iter::once((from, first)).chain(through.map(|through| (through, to)));
            legs.map(move |leg| (back, leg))
        })
    }

    /// The end that sends a packet on its present leg.
    pub(crate) fn sender_mut(&mut self, packet: &Packet) -> &mut End {
        match &mut self.through {
            Some(through) if packet.passed => &mut through[usize::from(packet.back)],
            _ => &mut self.ends[usize::from(packet.back)],
        }
    }

    /// All ends, those of a forwarding tenant included.
    pub(crate) fn all_ends(&mut self) -> impl Iterator<Item = &mut End> {
        self.ends.iter_mut().chain(self.through.iter_mut().flat_map(|through| through.iter_mut()))
    }

    /// The fields of such a packet for classification, without the tenant.
    pub(crate) fn fields(&self, back: bool) -> Fields {
        let (from, to) = self.way(back);
        Fields {
            tenant: None,
            addresses: Some((from.address.into(), to.address.into())),
            protocol: Some(self.protocol),
            ports: Some((from.port, to.port)),
            dscp: from.dscp,
            vlan: 0,
            metadata: Metadata::default(),
        }
    }
}
