//! The table from a MAC address to its port.
//!
//! Why: frames from the uplink, and from tenant to tenant, go to the port whose address they bear.
//! From: IEEE 802.1D learning, made safe for ports that do not trust each other, as a NIC's spoof check and OVN's port
//! security do: an address that a tenant uses counts less than one that is used behind the uplink.
//! Not here: ingress isolation (a later crate), and the frames themselves.
//! Invariant: an address is looked up in its network, and means nothing in another one. The address of a tenant's own interface is that tenant's while the tenant is there. Any other address is the
//! uplink's once a host behind it has used it, and otherwise the first tenant's that used it, until that tenant has been
//! silent for [`IDLE`]. A tenant owns at most [`PER_PORT`] and its interface's, the uplink [`BEHIND_UPLINK`].

mod told;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::overlay::Vni;

pub(crate) use told::News;
use told::Outbox;

/// A hardware address.
pub type Mac = [u8; 6];

/// The network of frames outside an overlay.
pub(crate) const NO_NETWORK: Vni = Vni::ZERO;

/// An owner that has not used an address for this long may lose it to a tenant.
pub const IDLE: Span = Span::secs(300);

/// How long the host that sent last behind the uplink need not be noted again: far below [`IDLE`].
const AGAIN: Span = Span::secs(1);

/// Addresses that one tenant may own beside its interface's, for machines behind a bridge of its own.
pub const PER_PORT: u32 = 1_024;

/// Addresses behind the uplink that are kept: as many as Open vSwitch keeps of a bridge. Beyond, the one learned first
/// is forgotten, so that the table is bounded and no sender can keep the uplink from learning.
pub const BEHIND_UPLINK: usize = 8_192;

/// The owner of an address: a lane, or the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The tenant in this lane.
    Lane(u32),
    /// A host behind the uplink.
    Uplink,
}

/// The result of learning an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// The address is the sender's, and had no other owner.
    Own,
    /// The address is the sender's now, and was this owner's.
    Taken(Owner),
    /// Another owner has the address, and keeps it.
    Foreign,
    /// The sender has too many addresses.
    TooMany,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    owner: Owner,
    seen: Nanos,
    /// Since when the owner has had it; zero where its interface says so.
    since: Nanos,
    /// When other threads were told that the owner uses it.
    told: Option<Nanos>,
    /// Whether it is an interface's own address, which silence does not free.
    pinned: bool,
}

impl Entry {
    /// Whether `owner`, which has just sent from the address, gets it. Hosts behind the uplink are the operator's: they
    /// get an address back at once that a tenant has claimed, so that no tenant becomes the gateway by sending first.
    fn yields_to(&self, owner: Owner, now: Nanos) -> bool {
        !self.pinned && (owner == Owner::Uplink || now.since(self.seen) > IDLE)
    }
}

/// An address as a number, which is hashed in a third of the instructions that six bytes take.
#[inline]
pub(crate) const fn number([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// An address of a network.
///
/// Outside an overlay all addresses are in one network, [`Vni::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    mac: u64,
    network: Vni,
}

impl Key {
    #[inline]
    pub(crate) const fn new(network: Vni, mac: Mac) -> Self {
        Self { mac: number(mac), network }
    }

    const fn mac(self) -> Mac {
        let [_, _, mac @ ..] = self.mac.to_be_bytes();
        mac
    }

    /// Its place in a table of `places`: tenants of different networks may have the same address.
    #[inline]
    const fn place(self, places: usize) -> usize {
        (self.mac ^ self.network.get() as u64) as usize % places
    }
}

/// The learning table.
#[derive(Debug)]
pub struct MacTable {
    entries: HashMap<Key, Entry, RandomState>,
    /// How many each tenant has learned.
    owned: HashMap<Owner, u32, RandomState>,
    /// Addresses that the uplink has learned, oldest first; some may have got another owner since.
    heard: VecDeque<Key>,
    /// The address that was last used behind the uplink, and when that was noted: mostly the next frame has it, too.
    latest: Option<(Key, Nanos)>,
    /// The owners of addresses that were asked for last, each in the place that its last byte and its network choose.
    recent: Box<[Cell<Recent>; RECENT]>,
    /// Grows when an address gets another owner: what is in `recent` from before does not hold any more.
    version: u64,
    /// Grows when a tenant gets or loses an address.
    of_tenants: u64,
    /// What other threads are to be told; none where there is one thread.
    news: Option<Outbox>,
    /// Whether an address could not be pinned, as another interface has it.
    refused: bool,
}

/// The owner of an address, as it was looked up at this version of the table.
#[derive(Clone, Copy, Debug)]
struct Recent {
    key: Key,
    version: u64,
    owner: Option<Owner>,
}

/// Addresses whose owners are found without a hash. As many as fit into a part of the first-level cache.
const RECENT: usize = 256;

impl MacTable {
    /// A table for this many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        let entries = HashMap::with_capacity_and_hasher(ports.min(64) * 64, RandomState::default());
        let recent = Box::new(
            [const { Cell::new(Recent { key: Key { mac: 0, network: NO_NETWORK }, version: 0, owner: None }) };
                RECENT],
        );
        Self {
            entries,
            owned: HashMap::default(),
            heard: VecDeque::new(),
            latest: None,
            recent,
            version: 1,
            of_tenants: 0,
            news: None,
            refused: false,
        }
    }

    /// Notes that `owner` sent from `mac` in this network.
    #[inline]
    pub fn learn(&mut self, network: Vni, mac: Mac, owner: Owner, now: Nanos) -> Learned {
        let key = Key::new(network, mac);
        let spoke_last = |(latest, at)| latest == key && now.since(at) < AGAIN;
        if owner == Owner::Uplink && self.latest.is_some_and(spoke_last) {
            return Learned::Own;
        }
        self.learn_again(key, owner, now)
    }

    fn learn_again(&mut self, key: Key, owner: Owner, now: Nanos) -> Learned {
        if is_group(key.mac()) {
            return Learned::Foreign;
        }
        let learned = self.write_down(key, owner, now);
        // Learning any other address may have changed the owner of the remembered one.
        let own = owner == Owner::Uplink && matches!(learned, Learned::Own | Learned::Taken(_));
        self.latest = own.then_some((key, now));
        learned
    }

    fn write_down(&mut self, key: Key, owner: Owner, now: Nanos) -> Learned {
        let mut learned = Learned::Own;
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.owner == owner {
                entry.seen = now;
                told::tell(&mut self.news, key, entry, now);
                return Learned::Own;
            }
            if !entry.yields_to(owner, now) {
                return Learned::Foreign;
            }
            let before = entry.owner;
            self.note_change(before);
            self.entries.remove(&key);
            self.disown(before);
            learned = Learned::Taken(before);
        }
        if !self.make_room(key, owner) {
            return Learned::TooMany;
        }
        self.note_change(owner);
        let mut entry = Entry { owner, seen: now, since: now, told: None, pinned: false };
        told::tell(&mut self.news, key, &mut entry, now);
        self.entries.insert(key, entry);
        learned
    }

    /// Counts one more address for `owner`; false when it has as many as it may.
    fn make_room(&mut self, key: Key, owner: Owner) -> bool {
        if owner == Owner::Uplink {
            if self.heard.len() >= BEHIND_UPLINK
                && let Some(oldest) = self.heard.pop_front()
                && self.entries.get(&oldest).is_some_and(|entry| entry.owner == owner)
            {
                self.note_change(owner);
                self.entries.remove(&oldest);
            }
            self.heard.push_back(key);
            return true;
        }
        let owned = self.owned.entry(owner).or_default();
        let room = *owned < PER_PORT;
        *owned += u32::from(room);
        room
    }

    /// Gives `owner` the address of its own interface: no other owner gets it, however long this one is silent or its port
    /// away. An earlier such address of the owner is free again; an address that another owner has as its interface's stays
    /// with it.
    pub fn pin(&mut self, network: Vni, mac: Mac, owner: Owner) {
        self.pin_all(network, &[mac], owner);
    }

    /// Gives `owner` these addresses, as [`MacTable::pin`] does one; an address that no interface can have is ignored.
    pub fn pin_all(&mut self, network: Vni, macs: &[Mac], owner: Owner) {
        self.pin_since(network, macs, owner, Nanos::ZERO);
    }

    /// Gives `owner`, whose interface does not tell its address, the first one that it sends from, as [`MacTable::pin`] does. A tenant
    /// of another thread that began to use it earlier gets it back.
    pub(crate) fn pin_first(&mut self, network: Vni, mac: Mac, owner: Owner, now: Nanos) {
        self.pin_since(network, &[mac], owner, now);
    }

    fn pin_since(&mut self, network: Vni, macs: &[Mac], owner: Owner, since: Nanos) {
        self.latest = None;
        self.note_change(owner);
        let good = |mac: &Mac| !is_group(*mac) && *mac != Mac::default();
        let keys: Vec<Key> = macs.iter().copied().filter(good).map(|mac| Key::new(network, mac)).collect();
        if keys.is_empty() {
            return;
        }
        self.entries.retain(|key, entry| !(entry.pinned && entry.owner == owner) || keys.contains(key));
        for &key in &keys {
            match self.entries.get(&key).copied() {
                Some(Entry { pinned: true, owner: has, .. }) => {
                    self.refused |= has != owner;
                    continue;
                }
                Some(learned) => self.disown(learned.owner),
                None => {}
            }
            let entry = Entry { owner, seen: since, since, told: None, pinned: true };
            self.entries.insert(key, entry);
        }
        self.tell_pinned(keys, owner);
    }

    /// Whether an address could not be pinned since the last call, as another interface has it.
    pub(crate) fn take_refused(&mut self) -> bool {
        core::mem::take(&mut self.refused)
    }

    /// Whether this address is the interface's own address of an owner other than `owner`.
    #[must_use]
    pub fn is_pinned_for_another(&self, network: Vni, mac: Mac, owner: Owner) -> bool {
        let entry = self.entries.get(&Key::new(network, mac));
        entry.is_some_and(|entry| entry.pinned && entry.owner != owner)
    }

    /// The owner of this address of a network, if it is known. An owner that fell silent keeps it until another one claims it.
    #[inline]
    #[must_use]
    pub fn owner(&self, network: Vni, mac: Mac) -> Option<Owner> {
        let (key, version) = (Key::new(network, mac), self.version);
        let place = &self.recent[key.place(RECENT)];
        let recent = place.get();
        if (recent.key, recent.version) == (key, version) {
            return recent.owner;
        }
        let owner = self.entries.get(&key).map(|entry| entry.owner);
        place.set(Recent { key, version, owner });
        owner
    }

    /// Which addresses are tenants', and whose, holds until this changes. Addresses that come and go behind the uplink, as anyone there
    /// can have them do, do not change it.
    pub(crate) fn version_of_tenants(&self) -> u64 {
        self.of_tenants
    }

    /// Notes that an address is about to become or to be no longer this owner's.
    fn note_change(&mut self, of: Owner) {
        self.version += 1;
        self.of_tenants += u64::from(of != Owner::Uplink);
    }

    /// The addresses of all tenants.
    #[must_use]
    pub fn of_lanes(&self) -> Vec<Mac> {
        let own = self.entries.iter().filter(|(_, entry)| matches!(entry.owner, Owner::Lane(_)));
        own.map(|(key, _)| key.mac()).collect()
    }

    /// Forgets the learned addresses of a port that is gone; its interface's own address waits for its return.
    pub fn forget(&mut self, owner: Owner) {
        self.news.iter_mut().for_each(|news| news.tell_forgot(owner));
        self.latest = None;
        self.note_change(owner);
        self.entries.retain(|_, entry| entry.owner != owner || entry.pinned);
        self.owned.remove(&owner);
    }

    /// Forgets every address of a tenant that is gone. Other threads are told no news of it: its lane may soon be another one's.
    pub fn release(&mut self, owner: Owner) {
        self.news.iter_mut().for_each(|news| news.release(owner));
        self.latest = None;
        self.note_change(owner);
        self.entries.retain(|_, entry| entry.owner != owner);
        self.owned.remove(&owner);
    }

    /// Counts one address less for a tenant; the uplink's are counted by their queue.
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
    use proptest::prelude::*;

    use super::*;

    const GATEWAY: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn tenants_addresses_can_be_listed() {
        let mut table = MacTable::new(2);
        table.learn(NO_NETWORK, GATEWAY, Owner::Uplink, Nanos::ZERO);
        table.learn(NO_NETWORK, [2, 0, 0, 0, 0, 7], Owner::Lane(1), Nanos::ZERO);
        table.pin(NO_NETWORK, [2, 0, 0, 0, 0, 9], Owner::Lane(0));
        let mut listed = table.of_lanes();
        listed.sort_unstable();
        assert_eq!(listed, [[2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 9]]);
    }

    #[test]
    fn a_spoofed_source_steals_nothing() {
        let mut table = MacTable::new(2);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Uplink, Nanos::ZERO), Learned::Own);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Lane(0), Nanos::ZERO + IDLE), Learned::Foreign);
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), Some(Owner::Uplink));
    }

    #[test]
    fn who_speaks_before_the_gateway_does_not_stay_the_gateway() {
        let mut table = MacTable::new(2);
        let tenant = Owner::Lane(0);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, tenant, Nanos::ZERO), Learned::Own);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Uplink, Nanos::ZERO), Learned::Taken(tenant));
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, tenant, Nanos::ZERO + IDLE), Learned::Foreign);
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), Some(Owner::Uplink));
        let others = (0..PER_PORT).filter(|n| {
            let [_, _, a, b] = n.to_be_bytes();
            table.learn(NO_NETWORK, [2, 1, 0, 0, a, b], tenant, Nanos::ZERO) == Learned::Own
        });
        assert_eq!(others.count(), PER_PORT as usize, "what was taken does not count any more");
    }

    #[test]
    fn the_uplink_can_always_learn_and_never_fills_the_memory() {
        let mut table = MacTable::new(2);
        let address = |n: usize| {
            let [.., a, b, c] = n.to_be_bytes();
            [2, 1, 0, a, b, c]
        };
        for n in 0..3 * BEHIND_UPLINK {
            assert_eq!(table.learn(NO_NETWORK, address(n), Owner::Uplink, Nanos::ZERO), Learned::Own);
        }
        assert_eq!((table.entries.len(), table.heard.len()), (BEHIND_UPLINK, BEHIND_UPLINK));
        assert_eq!(table.owner(NO_NETWORK, address(3 * BEHIND_UPLINK - 1)), Some(Owner::Uplink));
        assert_eq!(table.owner(NO_NETWORK, address(0)), None, "the first was forgotten");
        // What a tenant claims and the uplink takes back does not add up either.
        for n in 0..2 * BEHIND_UPLINK {
            table.learn(NO_NETWORK, address(n), Owner::Lane(0), Nanos::ZERO);
            table.learn(NO_NETWORK, address(n), Owner::Uplink, Nanos::ZERO);
        }
        assert!(table.entries.len() <= BEHIND_UPLINK && table.heard.len() == BEHIND_UPLINK);
    }

    #[test]
    fn an_address_may_move_once_its_owner_is_silent() {
        let mut table = MacTable::new(2);
        table.learn(NO_NETWORK, GATEWAY, Owner::Lane(0), Nanos::ZERO);
        let later = Nanos::ZERO + IDLE + Span::ns(1);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Lane(1), later), Learned::Taken(Owner::Lane(0)));
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), Some(Owner::Lane(1)));
    }

    #[test]
    fn a_tenants_own_address_is_never_another_tenants() {
        let mut table = MacTable::new(2);
        let (own, other) = (Owner::Lane(0), Owner::Lane(1));
        let late = Nanos::ZERO + IDLE + IDLE;
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, other, Nanos::ZERO), Learned::Own);
        table.pin(NO_NETWORK, GATEWAY, own);
        assert_eq!(
            table.owner(NO_NETWORK, GATEWAY),
            Some(own),
            "an address that another had learned is taken back"
        );
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, other, late), Learned::Foreign, "silent");
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Uplink, late), Learned::Foreign);
        table.forget(own);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, other, late), Learned::Foreign, "its port is away");
        table.pin(NO_NETWORK, GATEWAY, other);
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), Some(own), "the first keeps it");
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, own, late), Learned::Own);
        table.release(own);
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, other, late), Learned::Own, "the tenant is gone");
    }

    #[test]
    fn a_tenant_has_one_address_of_its_own() {
        let mut table = MacTable::new(2);
        table.pin(NO_NETWORK, GATEWAY, Owner::Lane(0));
        table.pin(NO_NETWORK, [2, 0, 0, 0, 0, 2], Owner::Lane(0));
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), None);
        table.pin(NO_NETWORK, [0xff; 6], Owner::Lane(0));
        table.pin(NO_NETWORK, [0; 6], Owner::Lane(0));
        assert_eq!(table.owner(NO_NETWORK, [2, 0, 0, 0, 0, 2]), Some(Owner::Lane(0)));
    }

    #[test]
    fn all_addresses_that_are_stated_for_a_tenant_stay_its_own() {
        let mut table = MacTable::new(2);
        let (own, other) = (Owner::Lane(0), Owner::Lane(1));
        let stated = [[2, 0, 0, 0, 0, 2], GATEWAY, [2, 0, 0, 0, 0, 3]];
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, other, Nanos::ZERO), Learned::Own);
        table.pin_all(NO_NETWORK, &stated, own);
        table.pin_all(NO_NETWORK, &[GATEWAY], other);
        let late = Nanos::ZERO + IDLE + IDLE;
        for mac in stated {
            for owner in [other, Owner::Uplink] {
                assert_eq!(table.learn(NO_NETWORK, mac, owner, late), Learned::Foreign);
                assert!(table.is_pinned_for_another(NO_NETWORK, mac, owner));
            }
            assert!(
                table.owner(NO_NETWORK, mac) == Some(own)
                    && !table.is_pinned_for_another(NO_NETWORK, mac, own)
            );
        }
        table.pin_all(NO_NETWORK, &stated[..2], own);
        assert_eq!(table.owner(NO_NETWORK, stated[2]), None, "what is stated no more is free");
        assert_eq!(table.owner(NO_NETWORK, GATEWAY), Some(own));
    }

    #[test]
    fn one_port_cannot_fill_the_table() {
        let mut table = MacTable::new(2);
        for n in 0..PER_PORT + 10 {
            let [_, _, a, b] = n.to_be_bytes();
            let answer = table.learn(NO_NETWORK, [2, 1, 0, 0, a, b], Owner::Lane(0), Nanos::ZERO);
            assert_eq!(answer == Learned::Own, n < PER_PORT);
        }
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Lane(1), Nanos::ZERO), Learned::Own);
    }

    #[test]
    fn a_port_that_is_gone_owns_nothing() {
        let mut table = MacTable::new(2);
        table.learn(NO_NETWORK, GATEWAY, Owner::Lane(0), Nanos::ZERO);
        table.forget(Owner::Lane(0));
        assert_eq!(table.learn(NO_NETWORK, GATEWAY, Owner::Lane(1), Nanos::ZERO), Learned::Own);
    }

    proptest! {
        /// Addresses that share places, and each way in which an owner changes.
        #[test]
        fn what_was_asked_before_never_hides_a_change(
            steps in prop::collection::vec((0_u8..6, 0_u8..2, 0_u8..3, 0_u32..3), 1..200),
        ) {
            let mut table = MacTable::new(2);
            let mut now = Nanos::ZERO;
            for (step, high, low, owner) in steps {
                let mac = [2, 0, 0, 0, high, low];
                let owner = if owner == 2 { Owner::Uplink } else { Owner::Lane(owner) };
                match step {
                    0 | 1 => _ = table.learn(NO_NETWORK, mac, owner, now),
                    2 => table.pin(NO_NETWORK, mac, owner),
                    3 => table.forget(owner),
                    4 => table.release(owner),
                    _ => now += IDLE + Span::ns(1),
                }
                for mac in (0..6).map(|n| [2, 0, 0, 0, n / 3, n % 3]) {
                    let known = table.entries.get(&Key::new(NO_NETWORK, mac)).map(|entry| entry.owner);
                    prop_assert_eq!([table.owner(NO_NETWORK, mac), table.owner(NO_NETWORK, mac)], [known; 2]);
                }
            }
        }
    }
}
