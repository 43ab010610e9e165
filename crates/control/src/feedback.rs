//! Feedback on the wire: the limits that VMs of one host set for VMs of another, sealed.
//!
//! Why: a tenant that could forge a limit would starve its neighbours, and one that could read limits would learn which
//! tenants talk to each other. Fabrics lose, repeat and reorder.
//! From: PicNIC §5.3.2 (in-datapath feedback and a control channel carry the same); RFC 8439 (ChaCha20-Poly1305) with a
//! fleet's key, and with draft-irtf-cfrg-xchacha's long nonces: clocks go back, so that a number alone could come again
//! under the same key; RFC 4303 §3.4.3's rule against replays, without a window as only the newest counts.
//! Not here: how it travels (a Geneve option, a frame of its own, a control channel), and obeying it (`agent`).
//! Invariant: a message that opens was sealed with the key, for this version and these hosts, and is newer than all that were
//! accepted from that host before; a nonce is used once.
//!
//! # Format
//!
//! | bytes | field | sealed |
//! | --- | --- | --- |
//! | 0 | 1: limits follow; 2: notices follow | bound |
//! | 1 | how many, 0 to 48 limits or 1 to 16 notices | bound |
//! | 2..6 | the host that sends it | bound |
//! | 6..10 | the host that it is for | bound |
//! | 10..18 | sequence number | bound |
//! | 18..26 | the start of the sender that sealed it, at random | bound |
//! | 26.. | limits of 26 bytes each, or notices of 72 | hidden |
//! | last 16 | tag | |
//!
//! A limit: network (3 bytes of a VNI), which senders it binds ([`For`], 1), address of the VM (6), bits a second (8), packets a
//! second (8, zero for none). A notice: network (3), zero (1), address of the VM (6), the flow (40), the address that it is sent from (6), bits a second (8),
//! bytes of the burst (4), milliseconds for which it holds (4). All in network order. The nonce is the sending host, the sequence number and the start, and zeros.

use std::collections::HashMap;

use chacha20poly1305::aead::{AeadInPlace, KeyInit};
use chacha20poly1305::{Key, Tag, XChaCha20Poly1305, XNonce};
use foldhash::fast::FixedState;
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::Limits;
use crate::backpressure::Terms;
use crate::keys::{Fingerprint, FleetKeys};

/// A host of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// A VM as all hosts know it: its virtual network, and its hardware address there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vnic {
    /// The VNI, 24 bits.
    pub network: u32,
    /// The inner address.
    pub mac: [u8; 6],
}

/// Which senders a limit binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum For {
    /// Each sender, in proportion to its weight.
    Each,
    /// All load balancers together; sent to the host that divides the limit.
    Balancers,
    /// The load balancers of the receiving host, together.
    TheseBalancers,
}

/// A limit of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The VM that receives.
    pub receiver: Vnic,
    /// Which senders it binds.
    pub whom: For,
    /// The limits of a sender of weight one.
    pub limits: Limits,
}

/// A request to hold one flow to a rate at its source (MIMIC's BK-NIC, MI-M11).
///
/// A host may ask this of flows to its own VMs only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The VM to which the flow's frames are sent.
    pub receiver: Vnic,
    /// The flow's headers, as both hosts write them down; other hosts may lie about them.
    pub flow: [u8; FLOW],
    /// The hardware address that the flow is sent from: another VM of the same host may copy its headers.
    pub sender: [u8; 6],
    /// What the flow is held to, and how long if the request is not repeated: sent in whole bytes and milliseconds.
    pub terms: Terms,
}

/// Bytes in which a flow is written down.
pub const FLOW: usize = 40;

/// What another host says.
#[derive(Clone, Copy, Debug)]
pub enum Message<'m> {
    /// Limits of its VMs, to be read by [`Message::allowances`].
    Limits(&'m [u8]),
    /// Flows that overload it, to be read by [`Message::notices`].
    Notices(&'m [u8]),
}

impl<'m> Message<'m> {
    /// The limits in it; none in a message of notices.
    pub fn allowances(self) -> impl Iterator<Item = Allowance> + use<'m> {
        let body = if let Self::Limits(body) = self { body } else { &[] };
        body.chunks_exact(LIMIT).filter_map(Allowance::read)
    }

    /// The notices in it; none in a message of limits.
    pub fn notices(self) -> impl Iterator<Item = Notice> + use<'m> {
        let body = if let Self::Notices(body) = self { body } else { &[] };
        body.chunks_exact(NOTICE).filter_map(Notice::read)
    }
}

/// Why a message was not accepted. The caller counts each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The message has the wrong length or another version.
    #[error("feedback that is cut short, too long or of another version")]
    Malformed,
    /// The message is for another host.
    #[error("feedback for another host")]
    Misdirected,
    /// The message was not sealed with the fleet's key, or has been changed since.
    #[error("feedback that was not sealed with the fleet's key")]
    Forged,
    /// The message is no newer than the last one that was accepted from that host.
    #[error("feedback that comes again, or too late")]
    Stale,
}

/// Seals the limits that this host sets.
pub struct Sealer {
    cipher: XChaCha20Poly1305,
    host: HostId,
    sequence: u64,
    start: u64,
}

/// Opens the limits that other hosts set, only the newest of each.
pub struct Opener {
    /// The fleet's keys that are accepted.
    ciphers: Vec<(Fingerprint, XChaCha20Poly1305)>,
    host: HostId,
    /// The number of each host's newest message, and the key that it was sealed with.
    newest: HashMap<HostId, (u64, Fingerprint), FixedState>,
    most: usize,
}

/// Most limits in one message: it then fits any frame.
pub const MOST: usize = 48;

/// Most notices in one message, so that an underlay with an MTU of 1,280 bytes carries it in a frame of its own.
pub const MOST_NOTICES: usize = 16;

const LIMITS: u8 = 1;
const NOTICES: u8 = 2;
const HEADER: usize = 26;
const LIMIT: usize = 26;
const NOTICE: usize = 72;
const TAG: usize = 16;

/// Length in bytes of a message with this number of limits.
#[must_use]
pub const fn sealed_len(limits: usize) -> usize {
    HEADER + limits * LIMIT + TAG
}

impl Sealer {
    /// `first` must be greater than any sequence number that this host has used with this key, or its messages are stale to the
    /// other hosts; the time in nanoseconds at the start is, unless the clock went back. `start` must be drawn at random at each
    /// start, so that no nonce is used twice even then.
    #[must_use]
    pub fn new(key: &[u8; 32], host: HostId, first: u64, start: u64) -> Self {
        Self { cipher: XChaCha20Poly1305::new(Key::from_slice(key)), host, sequence: first, start }
    }

    /// Seals with another key from now on. Numbers go on, so that no nonce is used twice with a key that returns.
    pub fn set_key(&mut self, key: &[u8; 32]) {
        self.cipher = XChaCha20Poly1305::new(Key::from_slice(key));
    }

    /// Writes a message for `to` into `out`, and returns its length. At most [`MOST`] of the limits go in. A message without limits
    /// says that this host is there and hears other hosts.
    pub fn seal(&mut self, to: HostId, allowances: &[Allowance], out: &mut Vec<u8>) -> usize {
        let allowances = &allowances[..allowances.len().min(MOST)];
        self.begin(LIMITS, allowances.len(), to, out);
        allowances.iter().for_each(|allowance| allowance.write(out));
        self.end(out)
    }

    /// Like [`Sealer::seal`], for notices. At most [`MOST_NOTICES`] of them go in.
    pub fn seal_notices(&mut self, to: HostId, notices: &[Notice], out: &mut Vec<u8>) -> usize {
        let notices = &notices[..notices.len().min(MOST_NOTICES)];
        self.begin(NOTICES, notices.len(), to, out);
        notices.iter().for_each(|notice| notice.write(out));
        self.end(out)
    }

    fn begin(&self, kind: u8, count: usize, to: HostId, out: &mut Vec<u8>) {
        out.clear();
        out.push(kind);
        out.push(count as u8);
        out.extend(self.host.0.to_be_bytes());
        out.extend(to.0.to_be_bytes());
        out.extend(self.sequence.to_be_bytes());
        out.extend(self.start.to_be_bytes());
    }

    fn end(&mut self, out: &mut Vec<u8>) -> usize {
        let (header, body) = out.split_at_mut(HEADER);
        let tag = self
            .cipher
            .encrypt_in_place_detached(&nonce(header), header, body)
            .expect("a message is far shorter than the cipher's bound");
        self.sequence += 1;
        out.extend(tag);
        out.len()
    }
}

impl Opener {
    /// An opener for at most `most` other hosts: messages of further hosts count as stale.
    #[must_use]
    pub fn new(key: &[u8; 32], host: HostId, most: usize) -> Self {
        let newest = HashMap::with_capacity_and_hasher(most, FixedState::default());
        let mut opener = Self { ciphers: Vec::new(), host, newest, most };
        opener.set_keys(&(*key).into());
        opener
    }

    /// Accepts messages that were sealed with these keys from now on. What is known of hosts stays.
    pub fn set_keys(&mut self, keys: &FleetKeys) {
        let cipher = |key: &[u8; 32]| (Fingerprint::of(key), XChaCha20Poly1305::new(Key::from_slice(key)));
        self.ciphers = keys.all().map(cipher).collect();
    }

    /// The key that a host's newest message was sealed with.
    #[must_use]
    pub fn key_of(&self, host: HostId) -> Option<Fingerprint> {
        self.newest.get(&host).map(|&(_, key)| key)
    }

    /// Opens a message in place, and returns the host that sent it and what it says.
    ///
    /// # Errors
    /// [`Rejected`] says why the message is ignored; its bytes may then be garbled.
    pub fn open<'m>(&mut self, message: &'m mut [u8]) -> Result<(HostId, Message<'m>), Rejected> {
        let count = usize::from(*message.get(1).ok_or(Rejected::Malformed)?);
        let kind = message[0];
        let body = match kind {
            LIMITS if count <= MOST => count * LIMIT,
            NOTICES if (1..=MOST_NOTICES).contains(&count) => count * NOTICE,
            _ => return Err(Rejected::Malformed),
        };
        if message.len() != HEADER + body + TAG {
            return Err(Rejected::Malformed);
        }
        let (header, rest) = message.split_at_mut(HEADER);
        let (body, tag) = rest.split_at_mut(body);
        let (from, to) = (HostId(word(header, 2)), HostId(word(header, 6)));
        let sequence = u64::from_be_bytes(header[10..18].try_into().expect("eight bytes"));
        if to != self.host {
            return Err(Rejected::Misdirected);
        }
        // A message that does not open stays as it is.
        let mut opened = self.ciphers.iter().filter(|(_, cipher)| {
            cipher.decrypt_in_place_detached(&nonce(header), header, body, Tag::from_slice(tag)).is_ok()
        });
        let &(key, _) = opened.next().ok_or(Rejected::Forged)?;
        let full = self.newest.len() >= self.most && !self.newest.contains_key(&from);
        if full || self.newest.get(&from).is_some_and(|&(newest, _)| sequence <= newest) {
            return Err(Rejected::Stale);
        }
        self.newest.insert(from, (sequence, key));
        Ok((from, if kind == LIMITS { Message::Limits(body) } else { Message::Notices(body) }))
    }
}

impl Notice {
    fn write(&self, out: &mut Vec<u8>) {
        let Self { receiver, flow, sender, terms: Terms { rate, burst, lifetime } } = self;
        out.extend((receiver.network << 8).to_be_bytes());
        out.extend(receiver.mac);
        out.extend(flow);
        out.extend(sender);
        out.extend(rate.get().to_be_bytes());
        out.extend(u32::try_from(burst.as_u64()).unwrap_or(u32::MAX).to_be_bytes());
        let millis = lifetime.as_u64() / Span::millis(1).as_u64();
        out.extend(u32::try_from(millis).unwrap_or(u32::MAX).to_be_bytes());
    }

    /// Reads a notice; `None` if its rate is zero, which no host with the key writes.
    fn read(bytes: &[u8]) -> Option<Self> {
        let receiver =
            Vnic { network: word(bytes, 0) >> 8, mac: bytes[4..10].try_into().expect("six bytes") };
        let rate = u64::from_be_bytes(bytes[56..64].try_into().expect("eight bytes"));
        Some(Self {
            receiver,
            flow: bytes[10..50].try_into().expect("forty bytes"),
            sender: bytes[50..56].try_into().expect("six bytes"),
            terms: Terms {
                rate: BitRate::new(rate)?,
                burst: Bytes::new(word(bytes, 64).into()),
                lifetime: Span::millis(word(bytes, 68).into()),
            },
        })
    }
}

impl Allowance {
    fn write(&self, out: &mut Vec<u8>) {
        let Self { receiver, whom, limits } = self;
        let whom = match whom {
            For::Each => 0,
            For::Balancers => 1,
            For::TheseBalancers => 2,
        };
        out.extend((receiver.network << 8 | whom).to_be_bytes());
        out.extend(receiver.mac);
        out.extend(limits.bits.get().to_be_bytes());
        out.extend(limits.packets.map_or(0, PacketRate::get).to_be_bytes());
    }

    /// Reads an allowance; `None` if it allows no bits a second or binds unknown senders, which no host with the key writes.
    fn read(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let mac = bytes[4..10].try_into().expect("six bytes");
        let receiver = Vnic { network: word(bytes, 0) >> 8, mac };
        let limits = Limits { bits: BitRate::new(number(10))?, packets: PacketRate::new(number(18)) };
        let whom = match bytes[3] {
            0 => For::Each,
            1 => For::Balancers,
            2 => For::TheseBalancers,
            _ => return None,
        };
        Some(Self { receiver, whom, limits })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn nonce(header: &[u8]) -> XNonce {
    let mut nonce = XNonce::default();
    nonce[..4].copy_from_slice(&header[2..6]);
    nonce[4..20].copy_from_slice(&header[10..HEADER]);
    nonce
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer")
            .field("host", &self.host)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener")
            .field("host", &self.host)
            .field("newest", &self.newest)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: [u8; 32] = [7; 32];
    const HERE: HostId = HostId(1);
    const THERE: HostId = HostId(2);

    fn allowance(n: u64, packets: u64) -> Allowance {
        let receiver = Vnic { network: 0x00ab_cdef, mac: [2, 0, 0, 0, 0, n as u8] };
        Allowance {
            receiver,
            whom: [For::Each, For::Balancers, For::TheseBalancers][n as usize % 3],
            limits: Limits { bits: BitRate::gbps(n + 1), packets: PacketRate::new(packets) },
        }
    }

    fn opened(opener: &mut Opener, message: &[u8]) -> Result<Vec<Allowance>, Rejected> {
        opener.open(&mut message.to_vec()).map(|(from, said)| {
            assert_eq!((from, said.notices().count()), (HERE, 0));
            said.allowances().collect()
        })
    }

    #[test]
    fn what_was_sealed_opens_once_and_in_order() {
        let (mut sealer, mut opener) = (Sealer::new(&KEY, HERE, 100, 7), Opener::new(&KEY, THERE, 4));
        let allowances = [allowance(0, 0), allowance(1, 500_000)];
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert_eq!(sealer.seal(THERE, &allowances, &mut first), sealed_len(2));
        sealer.seal(THERE, &allowances[1..], &mut second);
        assert_eq!(opened(&mut opener, &first).as_deref(), Ok(&allowances[..]));
        assert_eq!(opened(&mut opener, &second).as_deref(), Ok(&allowances[1..]));
        assert_eq!(opened(&mut opener, &second), Err(Rejected::Stale), "it comes again");
        assert_eq!(opened(&mut opener, &first), Err(Rejected::Stale), "it was overtaken");
    }

    fn notice(n: u8) -> Notice {
        Notice {
            receiver: Vnic { network: 0x00ab_cdef, mac: [2, 0, 0, 0, 0, n] },
            flow: core::array::from_fn(|at| n.wrapping_add(at as u8)),
            sender: [2, 0, 0, 0, 1, n],
            terms: Terms::new(BitRate::mbps(850)),
        }
    }

    #[test]
    fn notices_are_messages_of_the_same_sequence() {
        let (mut sealer, mut opener) = (Sealer::new(&KEY, HERE, 100, 7), Opener::new(&KEY, THERE, 4));
        let notices: Vec<Notice> = (0..30).map(notice).collect();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert_eq!(sealer.seal_notices(THERE, &notices, &mut first), 1_194);
        sealer.seal(THERE, &[allowance(0, 0)], &mut second);
        let mut message = first.clone();
        let (from, said) = opener.open(&mut message).expect("fresh and sealed");
        assert_eq!((from, said.allowances().count()), (HERE, 0));
        assert!(said.notices().eq(notices.iter().take(MOST_NOTICES).copied()));
        assert_eq!(opener.open(&mut first).err(), Some(Rejected::Stale));
        // Another kind is another message: it was sealed with the first bytes.
        second[0] = NOTICES;
        assert_eq!(opener.open(&mut second).err(), Some(Rejected::Malformed));
    }

    /// From two messages with one nonce an attacker can take the difference, and forge a third.
    #[test]
    fn a_number_that_comes_again_after_a_restart_is_no_nonce_that_comes_again() {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        Sealer::new(&KEY, HERE, 100, 7).seal(THERE, &[allowance(3, 9)], &mut before);
        Sealer::new(&KEY, HERE, 100, 8).seal(THERE, &[allowance(3, 9)], &mut after);
        assert_eq!(before[..18], after[..18]);
        assert!(before[HEADER..].iter().zip(&after[HEADER..]).filter(|(a, b)| a == b).count() < 8);
    }

    #[test]
    fn nothing_of_a_message_can_be_read_on_the_way() {
        let mut sealer = Sealer::new(&KEY, HERE, 100, 7);
        let mut message = Vec::new();
        sealer.seal(THERE, &[allowance(3, 9)], &mut message);
        let mut plain = Vec::new();
        allowance(3, 9).write(&mut plain);
        assert!(message[HEADER..].windows(4).all(|part| !plain.windows(4).any(|window| window == part)));
    }

    #[test]
    fn another_key_and_another_host_are_turned_away() {
        let mut sealer = Sealer::new(&KEY, HERE, 100, 7);
        let mut message = Vec::new();
        sealer.seal(THERE, &[allowance(3, 9)], &mut message);
        assert_eq!(opened(&mut Opener::new(&[8; 32], THERE, 4), &message), Err(Rejected::Forged));
        assert_eq!(opened(&mut Opener::new(&KEY, HostId(3), 4), &message), Err(Rejected::Misdirected));
        assert_eq!(opened(&mut Opener::new(&KEY, THERE, 0), &message), Err(Rejected::Stale), "no room");
    }

    #[test]
    fn messages_of_each_accepted_key_open_and_numbers_go_on() {
        let new = [9; 32];
        let (mut sealer, mut opener) = (Sealer::new(&KEY, HERE, 100, 7), Opener::new(&KEY, THERE, 4));
        let say = |sealer: &mut Sealer, opener: &mut Opener| {
            let mut message = Vec::new();
            sealer.seal(THERE, &[], &mut message);
            let said = opener.open(&mut message.clone()).map(|(from, _)| from);
            (said, opener.open(&mut message).map(|(from, _)| from))
        };
        assert_eq!(say(&mut sealer, &mut opener), (Ok(HERE), Err(Rejected::Stale)));
        sealer.set_key(&new);
        assert_eq!(say(&mut sealer, &mut opener).0, Err(Rejected::Forged));
        opener.set_keys(&FleetKeys::new(KEY, &[new]));
        assert_eq!(say(&mut sealer, &mut opener), (Ok(HERE), Err(Rejected::Stale)));
        assert_eq!(opener.key_of(HERE), Some(Fingerprint::of(&new)));
        opener.set_keys(&new.into());
        sealer.set_key(&KEY);
        assert_eq!(say(&mut sealer, &mut opener).0, Err(Rejected::Forged));
    }

    proptest! {
        /// Whatever is done to a message on the way, it is the one that was sealed or counts for nothing.
        #[test]
        fn a_changed_message_counts_for_nothing(
            count in 0_usize..6,
            at in any::<proptest::sample::Index>(),
            change in 1_u8..,
            cut in any::<proptest::sample::Index>(),
        ) {
            let allowances: Vec<Allowance> = (0..count as u64).map(|n| allowance(n, n * 7)).collect();
            let mut message = Vec::new();
            Sealer::new(&KEY, HERE, 100, 7).seal(THERE, &allowances, &mut message);
            let mut opener = Opener::new(&KEY, THERE, 4);
            let mut changed = message.clone();
            changed[at.index(message.len())] ^= change;
            prop_assert!(opened(&mut opener, &changed).is_err());
            prop_assert!(opened(&mut opener, &message[..cut.index(message.len())]).is_err());
            prop_assert_eq!(opened(&mut opener, &message), Ok(allowances));
            let notices: Vec<Notice> = (0..=count as u8).map(notice).collect();
            Sealer::new(&KEY, HERE, 200, 7).seal_notices(THERE, &notices, &mut message);
            let mut changed = message.clone();
            changed[at.index(message.len())] ^= change;
            prop_assert!(opener.open(&mut changed).is_err());
            prop_assert!(opener.open(&mut message).is_ok_and(|(_, said)| said.notices().eq(notices)));
        }

        #[test]
        fn any_bytes_are_turned_away(bytes in proptest::collection::vec(any::<u8>(), 0..1_500)) {
            prop_assert!(opened(&mut Opener::new(&KEY, THERE, 4), &bytes).is_err());
        }
    }
}
