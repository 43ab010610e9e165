//! Feedback crosses the overlay: sealed by one host, carried both ways that there are, opened by the other.

use plimsoll_control::feedback::{MOST, sealed_len};
use plimsoll_control::{
    Allowance, Directory, For, HostId, InnerAddr, Limits, Opener, Peer, Rejected, Sealer, StaticDirectory,
    Vnic,
};
use plimsoll_units::BitRate;
use plimsoll_wire::overlay::{Addresses, Checks, Format, Inner, MOST_IN_OPTION, Path, Ports, Tunnelled, Vni};
use plimsoll_wire::{Mac, parse};

const KEY: [u8; 32] = [7; 32];
const HERE: Peer =
    Peer { host: HostId(1), underlay: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)) };
const THERE: Peer =
    Peer { host: HostId(2), underlay: std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)) };
const NETWORK: u32 = 0x00ab_cdef;

fn allowances(count: usize) -> Vec<Allowance> {
    let vm = |n: usize| Vnic { network: NETWORK, mac: [2, 0, 0, 0, 1, n as u8] };
    let limits = |n: usize| Limits { bits: BitRate::gbps(n as u64 + 1), packets: None };
    (0..count).map(|n| Allowance { receiver: vm(n), whom: For::Each, limits: limits(n) }).collect()
}

/// The path from here to the host of this address.
fn path(directory: &impl Directory, to: InnerAddr) -> Path {
    let peer = directory.peer(NETWORK, to).expect("a host has it");
    Path {
        format: Format::Geneve,
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        addresses: Addresses::new(HERE.underlay, peer.underlay).expect("both are IPv4"),
        dscp: 0,
        mtu: 1_500,
        v6_checksum: true,
        capable: false,
        ports: Ports::default(),
    }
}

/// The limits that the other host reads from a packet.
fn opened(packet: &mut [u8]) -> Result<Vec<Allowance>, Rejected> {
    let tunnelled = Tunnelled::read(packet, &parse(packet).unwrap()).unwrap().expect("for the overlay");
    tunnelled.deliver(packet, Checks::default()).expect("its sums are right");
    let place = tunnelled.feedback().expect("it carries feedback");
    Opener::new(&KEY, THERE.host, 4).open(&mut packet[place]).map(|(from, allowances)| {
        assert_eq!(from, HERE.host);
        allowances.allowances().collect()
    })
}

#[test]
fn three_limits_ride_on_a_frame_and_all_others_have_one_of_their_own() {
    assert!(sealed_len(3) <= MOST_IN_OPTION && MOST_IN_OPTION < sealed_len(4));
    let mut directory = StaticDirectory::default();
    let guest = InnerAddr::Mac([2, 0, 0, 0, 0, 0xb]);
    directory.insert(NETWORK, guest, THERE).unwrap();
    let path = path(&directory, guest);
    let (mut sealer, mut message, mut out) = (Sealer::new(&KEY, HERE.host, 100, 7), Vec::new(), [0; 1_600]);
    for count in [1, 2, 3, 4, MOST] {
        sealer.seal(THERE.host, &allowances(count), &mut message);
        let inner = Inner { vni: Vni::new(NETWORK).unwrap(), flow_hash: 5, feedback: Some(&message) };
        let riding = path.encapsulate_into(&[0xab; 60], &mut out, &inner);
        assert_eq!(riding.is_ok(), count <= 3, "{count} limits");
        if let Ok(len) = riding {
            assert_eq!(opened(&mut out[..len]), Ok(allowances(count)));
        }
        let len = path.feedback_frame(&message, 5, &mut out).expect("it fits any frame");
        assert_eq!(opened(&mut out[..len]), Ok(allowances(count)));
    }
}

#[test]
fn who_reaches_the_underlay_can_send_feedback_but_not_seal_it() {
    let mut directory = StaticDirectory::default();
    let guest = InnerAddr::Mac([2, 0, 0, 0, 0, 0xb]);
    directory.insert(NETWORK, guest, THERE).unwrap();
    let (mut message, mut out) = (Vec::new(), [0; 1_600]);
    Sealer::new(&[8; 32], HERE.host, 100, 7).seal(THERE.host, &allowances(2), &mut message);
    let len = path(&directory, guest).feedback_frame(&message, 5, &mut out).unwrap();
    assert_eq!(opened(&mut out[..len]), Err(Rejected::Forged));
}
