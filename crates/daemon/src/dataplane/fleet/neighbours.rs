//! Next hops' hardware addresses, which are asked for before they are needed, and regularly again.
//!
//! Why: a frame for another host cannot leave without one, and waiting for it would hold up every frame behind.
//! From: RFC 826 and RFC 4861 §7.2 in the least that two hosts on one link need, by frames of our own: so it works on every
//! kind of port, and whether or not a kernel has this host's address as well (it then answers, too, with the same).
//! Not here: the frames (`wire::neighbour`), routers' discovery, duplicate detection.
//! Invariant: only next hops of the map are remembered, so no host on the link can fill the table; each is asked for at
//! most once in [`AGAIN`]; an answer that is lost leaves the last one in force.

use std::net::IpAddr;

use plimsoll_units::{Nanos, Span};

use super::super::mac_table::Mac;

/// Between two questions that are not answered.
const AGAIN: Span = Span::secs(1);
/// How long an answer counts as fresh.
const FRESH: Span = Span::secs(30);

/// The next hops of a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    hops: Vec<Hop>,
    /// When the next hop is to be asked for.
    next: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    address: IpAddr,
    mac: Option<Mac>,
    /// Whether the operator has stated it.
    stated: bool,
    ask_at: Nanos,
}

impl Neighbours {
    /// A table of these next hops, with the addresses that the operator states; known addresses stay.
    pub(crate) fn new(hops: impl Iterator<Item = (IpAddr, Option<Mac>)>, before: &Self, now: Nanos) -> Self {
        let mut made = Self::default();
        for (address, stated) in hops {
            if made.hops.iter().any(|hop| hop.address == address) {
                continue;
            }
            let mac = stated.or_else(|| before.mac_of(address));
            made.hops.push(Hop { address, mac, stated: stated.is_some(), ask_at: now });
        }
        made.set_next();
        made
    }

    fn mac_of(&self, address: IpAddr) -> Option<Mac> {
        self.hops.iter().find(|hop| hop.address == address)?.mac
    }

    /// A next hop's place in the table.
    pub(crate) fn place(&self, address: IpAddr) -> Option<usize> {
        self.hops.iter().position(|hop| hop.address == address)
    }

    /// The hardware address of the next hop in this place.
    #[inline]
    pub(crate) fn mac(&self, place: usize) -> Option<Mac> {
        self.hops.get(place)?.mac
    }

    /// Notes that a host on the link answers for this address.
    pub(crate) fn hear(&mut self, address: IpAddr, mac: Mac, now: Nanos) {
        if let Some(hop) = self.hops.iter_mut().find(|hop| hop.address == address && !hop.stated) {
            (hop.mac, hop.ask_at) = (Some(mac), now + FRESH);
            self.set_next();
        }
    }

    /// Asks for each next hop that the operator has not stated, now: its host learns this one's address from the question. What is
    /// known stays.
    pub(crate) fn ask_all(&mut self, now: Nanos) {
        self.hops.iter_mut().for_each(|hop| hop.ask_at = now);
        self.set_next();
    }

    /// The next hop to be asked for now; it counts as asked.
    pub(crate) fn ask(&mut self, now: Nanos) -> Option<IpAddr> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        let hop = self.hops.iter_mut().find(|hop| !hop.stated && hop.ask_at <= now)?;
        hop.ask_at = now + AGAIN;
        let address = hop.address;
        self.set_next();
        Some(address)
    }

    /// When [`Neighbours::ask`] has a next hop to ask for.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.next
    }

    fn set_next(&mut self) {
        self.next = self.hops.iter().filter(|hop| !hop.stated).map(|hop| hop.ask_at).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 7];

    #[test]
    fn a_hop_is_asked_for_each_second_until_it_answers_and_then_seldom() {
        let hop: IpAddr = [192, 0, 2, 2].into();
        let stated: IpAddr = [192, 0, 2, 3].into();
        let hops = [(hop, None), (stated, Some(MAC)), (hop, None)];
        let mut table = Neighbours::new(hops.into_iter(), &Neighbours::default(), Nanos::ZERO);
        let at = |secs| Nanos::ZERO + Span::secs(secs);
        assert_eq!(table.ask(at(0)), Some(hop));
        assert_eq!(table.ask(at(0)), None, "once, and no hop that the operator has stated");
        assert_eq!((table.ask(at(1)), table.mac(0)), (Some(hop), None));
        table.hear(hop, MAC, at(1));
        table.hear([192, 0, 2, 9].into(), MAC, at(1));
        assert_eq!((table.mac(0), table.ask(at(30)), table.next()), (Some(MAC), None, Some(at(31))));
        assert_eq!((table.ask(at(31)), table.mac(0)), (Some(hop), Some(MAC)), "the last answer still counts");
        table.hear(stated, [2; 6], at(31));
        assert_eq!(table.mac(1), Some(MAC), "what the operator has stated stays");
        table.hear(hop, MAC, at(31));
        table.ask_all(at(32));
        assert_eq!((table.ask(at(32)), table.ask(at(32)), table.mac(0)), (Some(hop), None, Some(MAC)));
        let again = Neighbours::new(hops.into_iter(), &table, at(40));
        assert_eq!(again.mac(0), Some(MAC), "what is known outlives a reload");
    }
}
