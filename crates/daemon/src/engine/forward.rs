//! Which port has a MAC address.
//!
//! Why: frames from the uplink, and from tenant to tenant, go to the port whose address they bear.
//! From: IEEE 802.1D learning, made safe for ports that do not trust each other.
//! Not here: ingress isolation (a later crate), and the frames themselves.
//! Invariant: an address has one owner until it has been silent for [`IDLE`]; a port owns at most [`PER_PORT`].

use std::collections::HashMap;

use foldhash::fast::RandomState;
use plimsoll_units::{Nanos, Span};

/// A hardware address.
pub type Mac = [u8; 6];

/// An owner that has not used an address for so long may lose it.
pub const IDLE: Span = Span::secs(300);

/// Addresses that one port may own.
pub const PER_PORT: u32 = 1_024;

/// Who owns an address: a lane, or the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The tenant in this lane.
    Lane(u32),
    /// Somebody behind the uplink.
    Uplink,
}

/// What learning an address came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// It is the sender's, and was so before or is now.
    Own,
    /// Somebody else has it, and keeps it.
    Foreign,
    /// The sender has too many addresses.
    TooMany,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Owner,
    seen: Nanos,
}

/// The learning table.
#[derive(Debug)]
pub struct MacTable {
    entries: HashMap<Mac, Entry, RandomState>,
    owned: HashMap<Owner, u32, RandomState>,
}

impl MacTable {
    /// A table for so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        let entries = HashMap::with_capacity_and_hasher(ports.min(64) * 64, RandomState::default());
        Self { entries, owned: HashMap::default() }
    }

    /// Notes that `owner` sent from `mac`.
    pub fn learn(&mut self, mac: Mac, owner: Owner, now: Nanos) -> Learned {
        if is_group(mac) {
            return Learned::Foreign;
        }
        if let Some(entry) = self.entries.get_mut(&mac) {
            if entry.owner == owner {
                entry.seen = now;
                return Learned::Own;
            }
            if now - entry.seen <= IDLE {
                return Learned::Foreign;
            }
            let before = entry.owner;
            self.entries.remove(&mac);
            self.disown(before);
        }
        let owned = self.owned.entry(owner).or_default();
        if *owned >= PER_PORT {
            return Learned::TooMany;
        }
        *owned += 1;
        self.entries.insert(mac, Entry { owner, seen: now });
        Learned::Own
    }

    /// Who has this address, if that is known. An owner that fell silent still has it until somebody claims it.
    #[must_use]
    pub fn owner(&self, mac: Mac) -> Option<Owner> {
        self.entries.get(&mac).map(|entry| entry.owner)
    }

    /// Forgets every address of a port that is gone.
    pub fn forget(&mut self, owner: Owner) {
        self.entries.retain(|_, entry| entry.owner != owner);
        self.owned.remove(&owner);
    }

    fn disown(&mut self, owner: Owner) {
        if let Some(owned) = self.owned.get_mut(&owner) {
            *owned -= 1;
        }
    }
}

/// Whether a destination means more than one receiver.
#[must_use]
pub fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_spoofed_source_steals_nothing() {
        let mut table = MacTable::new(2);
        assert_eq!(table.learn(GATEWAY, Owner::Uplink, Nanos::ZERO), Learned::Own);
        assert_eq!(table.learn(GATEWAY, Owner::Lane(0), Nanos::ZERO + IDLE), Learned::Foreign);
        assert_eq!(table.owner(GATEWAY), Some(Owner::Uplink));
    }

    #[test]
    fn an_address_may_move_once_its_owner_is_silent() {
        let mut table = MacTable::new(2);
        table.learn(GATEWAY, Owner::Lane(0), Nanos::ZERO);
        let later = Nanos::ZERO + IDLE + Span::ns(1);
        assert_eq!(table.learn(GATEWAY, Owner::Lane(1), later), Learned::Own);
        assert_eq!(table.owner(GATEWAY), Some(Owner::Lane(1)));
    }

    #[test]
    fn one_port_cannot_fill_the_table() {
        let mut table = MacTable::new(2);
        for n in 0..PER_PORT + 10 {
            let [_, _, a, b] = n.to_be_bytes();
            let answer = table.learn([2, 1, 0, 0, a, b], Owner::Lane(0), Nanos::ZERO);
            assert_eq!(answer == Learned::Own, n < PER_PORT);
        }
        assert_eq!(table.learn(GATEWAY, Owner::Lane(1), Nanos::ZERO), Learned::Own);
    }

    #[test]
    fn a_port_that_is_gone_owns_nothing() {
        let mut table = MacTable::new(2);
        table.learn(GATEWAY, Owner::Lane(0), Nanos::ZERO);
        table.forget(Owner::Lane(0));
        assert_eq!(table.learn(GATEWAY, Owner::Lane(1), Nanos::ZERO), Learned::Own);
    }
}
