//! Which port has a MAC address.
//!
//! Why: frames from the uplink, and from tenant to tenant, go to the port whose address they bear.
//! From: IEEE 802.1D learning, made safe for ports that do not trust each other.
//! Not here: ingress isolation (a later crate), and the frames themselves.
//! Invariant: an address has one owner until it has been silent for [`IDLE`]; the address of a tenant's own interface
//! is that tenant's while the tenant is there; a port owns at most [`PER_PORT`], and that one.

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
    /// Not learned, but known: silence does not free it.
    pinned: bool,
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
            if entry.pinned || now - entry.seen <= IDLE {
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
        self.entries.insert(mac, Entry { owner, seen: now, pinned: false });
        Learned::Own
    }

    /// Gives `owner` the address of its own interface: nobody else gets it, however long the owner is silent or its port
    /// away. An earlier such address of the owner is free again; one that another has already stays where it is.
    pub fn pin(&mut self, mac: Mac, owner: Owner) {
        let before = self.entries.get(&mac).copied();
        let known = before.is_some_and(|entry| entry.pinned && entry.owner == owner);
        if known || is_group(mac) || mac == Mac::default() {
            return;
        }
        self.entries.retain(|_, entry| !(entry.pinned && entry.owner == owner));
        match before {
            Some(Entry { pinned: true, .. }) => return,
            Some(learned) => self.disown(learned.owner),
            None => {}
        }
        self.entries.insert(mac, Entry { owner, seen: Nanos::ZERO, pinned: true });
    }

    /// Who has this address, if that is known. An owner that fell silent still has it until somebody claims it.
    #[must_use]
    pub fn owner(&self, mac: Mac) -> Option<Owner> {
        self.entries.get(&mac).map(|entry| entry.owner)
    }

    /// Forgets what was learned of a port that is gone; the address of its own interface waits for its return.
    pub fn forget(&mut self, owner: Owner) {
        self.entries.retain(|_, entry| entry.owner != owner || entry.pinned);
        self.owned.remove(&owner);
    }

    /// Forgets every address of a tenant that is gone.
    pub fn release(&mut self, owner: Owner) {
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
    fn a_tenants_own_address_is_never_anybody_elses() {
        let mut table = MacTable::new(2);
        let (own, other) = (Owner::Lane(0), Owner::Lane(1));
        let late = Nanos::ZERO + IDLE + IDLE;
        assert_eq!(table.learn(GATEWAY, other, Nanos::ZERO), Learned::Own);
        table.pin(GATEWAY, own);
        assert_eq!(table.owner(GATEWAY), Some(own), "what somebody else had learned is taken back");
        assert_eq!(table.learn(GATEWAY, other, late), Learned::Foreign, "silent");
        assert_eq!(table.learn(GATEWAY, Owner::Uplink, late), Learned::Foreign);
        table.forget(own);
        assert_eq!(table.learn(GATEWAY, other, late), Learned::Foreign, "its port is away");
        table.pin(GATEWAY, other);
        assert_eq!(table.owner(GATEWAY), Some(own), "the first keeps it");
        assert_eq!(table.learn(GATEWAY, own, late), Learned::Own);
        table.release(own);
        assert_eq!(table.learn(GATEWAY, other, late), Learned::Own, "the tenant is gone");
    }

    #[test]
    fn a_tenant_has_one_address_of_its_own() {
        let mut table = MacTable::new(2);
        table.pin(GATEWAY, Owner::Lane(0));
        table.pin([2, 0, 0, 0, 0, 2], Owner::Lane(0));
        assert_eq!(table.owner(GATEWAY), None);
        table.pin([0xff; 6], Owner::Lane(0));
        table.pin([0; 6], Owner::Lane(0));
        assert_eq!(table.owner([2, 0, 0, 0, 0, 2]), Some(Owner::Lane(0)));
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
