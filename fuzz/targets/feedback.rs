//! Any bytes as feedback between hosts, and any limits that one with the fleet's key seals: refused, or opened as they were.
//!
//! Input: a byte that says how many limits are sealed, and one where a sealed message is changed; the rest is the message as it
//! came, and what the limits are made of.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_control::{Allowance, For, HostId, Limits, Opener, Sealer, Vnic};
use plimsoll_units::{BitRate, PacketRate};

const KEY: [u8; 32] = [7; 32];
const HERE: HostId = HostId(1);
const THERE: HostId = HostId(2);

fuzz_target!(|data: &[u8]| {
    let Some((&[count, at], bytes)) = data.split_first_chunk::<2>() else { return };
    let mut opener = Opener::new(&KEY, THERE, 4);
    assert!(opener.open(&mut bytes.to_vec()).is_err(), "no host sealed it");

    let allowances: Vec<Allowance> =
        bytes.chunks_exact(26).take(count.into()).filter_map(allowance).collect();
    let mut message = Vec::new();
    Sealer::new(&KEY, HERE, 1, 1).seal(THERE, &allowances, &mut message);
    let mut changed = message.clone();
    let place = usize::from(at) % changed.len();
    changed[place] ^= 1;
    assert!(opener.open(&mut changed).is_err(), "it was changed at {place}");
    let (from, opened) = opener.open(&mut message).expect("it is as it was sealed");
    let most = allowances.len().min(plimsoll_control::feedback::MOST);
    assert_eq!((from, opened.notices().count()), (HERE, 0));
    assert_eq!(opened.allowances().collect::<Vec<_>>(), allowances[..most].to_vec());
});

/// Limits of 26 bytes; none that allow nothing.
fn allowance(bytes: &[u8]) -> Option<Allowance> {
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let network = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]);
    let whom = [For::Each, For::Balancers, For::TheseBalancers][usize::from(bytes[3]) % 3];
    let mac = bytes[4..10].try_into().expect("six bytes");
    let limits = Limits { bits: BitRate::new(word(10))?, packets: PacketRate::new(word(18)) };
    Some(Allowance { receiver: Vnic { network, mac }, whom, limits })
}
