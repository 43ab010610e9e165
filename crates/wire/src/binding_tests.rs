//! Claims that a tenant may make, and all kinds of false claims.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::neighbour::{Heard, LONGEST, ask, hear, tell};
use crate::{ones_complement_sum, parse};

const OWN: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const OWN4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Addresses of no tenant.
const FREE4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
const OWN6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const OTHER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const UNSPECIFIED6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;
const ALL6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A tenant with one address of each kind, beside another.
#[derive(Clone, Copy, Default)]
struct Shop {
    forwards: bool,
}

impl Addresses for Shop {
    fn has_mac(&self, mac: Mac) -> bool {
        mac == OWN
    }

    fn owns(&self, ip: IpAddr) -> bool {
        ip == OWN4 || ip == OWN6 || link_local_owner(ip) == Some(OWN)
    }

    fn is_anothers(&self, ip: IpAddr) -> bool {
        ip == OTHER4 || ip == OTHER6 || link_local_owner(ip) == Some(OTHER)
    }

    fn forwards(&self) -> bool {
        self.forwards
    }
}

fn verdict(frame: &[u8]) -> Result<(), BindingError> {
    verify(frame, &parse(frame).expect("sound headers"), &Shop::default())
}

fn routers_verdict(frame: &[u8]) -> Result<(), BindingError> {
    verify(frame, &parse(frame).expect("sound headers"), &Shop { forwards: true })
}

/// From a hardware address, behind tags.
fn ethernet(from: Mac, tags: &[u16], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = [[0xff; 6], from.0].concat();
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0, 7]);
    }
    frame.extend(ethertype.to_be_bytes());
    frame.extend(payload);
    frame
}

fn arp(operation: u16, sender: (Mac, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mut arp = vec![0, 1, 8, 0, 6, 4];
    arp.extend(operation.to_be_bytes());
    arp.extend(sender.0.0);
    arp.extend(sender.1.octets());
    arp.extend([0; 6]);
    arp.extend(target.octets());
    arp
}

fn v4(src: Ipv4Addr, number: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, number, 0, 0];
    packet.extend(src.octets());
    packet.extend([255; 4]);
    packet.extend(payload);
    let len = u16::try_from(packet.len()).expect("short").to_be_bytes();
    packet[2..4].copy_from_slice(&len);
    packet
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), 8_u16.to_be_bytes(), [0; 2]].concat()
}

/// An IPv6 packet, behind extension headers: the number of each, and its bytes after the next header's.
fn v6(src: Ipv6Addr, extensions: &[(u8, [u8; 7])], last: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len() + 8 * extensions.len()).expect("short");
    let next = |at: usize| extensions.get(at).map_or(last, |&(number, _)| number);
    let mut packet = [&[0x60, 0, 0, 0][..], &len.to_be_bytes(), &[next(0), 255]].concat();
    packet.extend(src.octets());
    packet.extend(ALL6.octets());
    for (at, (_, bytes)) in extensions.iter().enumerate() {
        packet.push(next(at + 1));
        packet.extend(bytes);
    }
    packet.extend(payload);
    packet
}

/// A discovery message with these link-layer options, sound but for what it claims.
fn discovery(kind: u8, src: Ipv6Addr, target: Ipv6Addr, options: &[(u8, Mac)]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    match kind {
        ROUTER_SOLICITATION => {}
        ROUTER_ADVERTISEMENT => message.extend([0; 8]),
        REDIRECT => message.extend([target.octets(), target.octets()].concat()),
        _ => message.extend(target.octets()),
    }
    for (kind, mac) in options {
        message.extend([*kind, 1]);
        message.extend(mac.0);
    }
    let mut sum = [src.octets(), ALL6.octets()].concat();
    sum.extend([0, 0, 0, 58]);
    sum.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
    sum.extend(&message);
    message[2..4].copy_from_slice(&(!ones_complement_sum(&sum)).to_be_bytes());
    message
}

fn says(kind: u8, src: Ipv6Addr, target: Ipv6Addr, options: &[(u8, Mac)]) -> Vec<u8> {
    ethernet(OWN, &[], IPV6, &v6(src, &[], ICMP6, &discovery(kind, src, target, options)))
}

const ADVERTISEMENT: u8 = 136;

fn link_local(mac: Mac) -> Ipv6Addr {
    let Mac([a, b, c, d, e, f]) = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

#[test]
fn a_source_that_is_not_the_tenants_is_refused() {
    let from = |mac, src| ethernet(mac, &[], IPV4, &v4(src, 17, &udp(1, 2)));
    assert_eq!(verdict(&from(OWN, OWN4)), Ok(()));
    assert_eq!(verdict(&from(OTHER, OWN4)), Err(BindingError::SourceMac));
    for src in [OTHER4, FREE4] {
        assert_eq!(verdict(&from(OWN, src)), Err(BindingError::SourceAddress));
        assert_eq!(routers_verdict(&from(OWN, src)), Ok(()), "a router sends what is others'");
    }
    let six = |src| ethernet(OWN, &[], IPV6, &v6(src, &[], 17, &udp(1, 2)));
    assert_eq!(verdict(&six(OWN6)), Ok(()));
    assert_eq!(verdict(&six(link_local(OWN))), Ok(()));
    assert_eq!(verdict(&six(OTHER6)), Err(BindingError::SourceAddress));
    assert_eq!(verdict(&six(link_local(OTHER))), Err(BindingError::SourceAddress));
    assert_eq!(verdict(&ethernet(OWN, &[], 0x88cc, &[0; 40])), Ok(()), "neither IP nor ARP");
}

#[test]
fn a_host_without_an_address_may_ask_for_one() {
    let zero = Ipv4Addr::UNSPECIFIED;
    let from_zero = |number, payload: &[u8]| verdict(&ethernet(OWN, &[], IPV4, &v4(zero, number, payload)));
    assert_eq!(from_zero(17, &udp(68, 67)), Ok(()));
    assert_eq!(from_zero(2, &[0x22; 8]), Ok(()), "IGMP");
    assert_eq!(from_zero(17, &udp(67, 68)), Err(BindingError::SourceAddress), "a server has one");
    assert_eq!(from_zero(1, &[8; 8]), Err(BindingError::SourceAddress));
    let from_none = |kind: u8| verdict(&ethernet(OWN, &[], IPV6, &v6(UNSPECIFIED6, &[], ICMP6, &[kind; 8])));
    assert_eq!(from_none(MLD2_REPORT), Ok(()));
    assert_eq!(from_none(128), Err(BindingError::SourceAddress), "an echo");
}

#[test]
fn arp_names_its_sender_whatever_the_operation() {
    for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
        let from =
            |operation, sender, target| verdict(&ethernet(OWN, tags, ARP, &arp(operation, sender, target)));
        for operation in 0..12 {
            assert_eq!(from(operation, (OWN, OWN4), OTHER4), Ok(()));
            for (sender, what) in [((OWN, OTHER4), "another's"), ((OWN, FREE4), "no tenant's")] {
                assert_eq!(from(operation, sender, sender.1), Err(BindingError::Arp), "{what}, gratuitous");
                assert_eq!(from(operation, sender, OWN4), Err(BindingError::Arp), "{what}");
            }
            assert_eq!(
                from(operation, (OTHER, OWN4), OTHER4),
                Err(BindingError::Arp),
                "a strange hardware address"
            );
        }
        let unspecified = (OWN, Ipv4Addr::UNSPECIFIED);
        for operation in 0..12 {
            let probes = matches!(operation, 1 | 3);
            assert_eq!(from(operation, unspecified, OWN4).is_ok(), probes);
            assert_eq!(from(operation, unspecified, FREE4).is_ok(), probes);
            assert_eq!(
                from(operation, unspecified, OTHER4),
                Err(BindingError::Arp),
                "it would seem to be taken"
            );
        }
    }
}

#[test]
fn other_arp_is_refused_as_receivers_read_it_differently() {
    let good = ethernet(OWN, &[], ARP, &arp(2, (OWN, OWN4), OTHER4));
    assert_eq!(verdict(&good), Ok(()));
    assert_eq!(verdict(&good[..good.len() - 1]), Err(BindingError::Arp), "cut off");
    for (at, byte) in [(15, 7), (16, 9), (18, 8), (19, 6)] {
        let mut other = good.clone();
        other[at] = byte;
        assert_eq!(verdict(&other), Err(BindingError::Arp), "byte {at}");
    }
    let mut announces =
        ethernet(OWN, &[], REVERSE_ARP, &arp(3, (OWN, Ipv4Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED));
    assert_eq!(verdict(&announces), Ok(()), "as QEMU does after a migration");
    announces[22..28].copy_from_slice(&OTHER.0);
    assert_eq!(verdict(&announces), Err(BindingError::Arp));
}

#[test]
fn discovery_claims_only_what_is_the_tenants() {
    let own = [(SOURCE_LINK_ADDRESS, OWN), (TARGET_LINK_ADDRESS, OWN)];
    for kind in [ROUTER_SOLICITATION, SOLICITATION, ADVERTISEMENT] {
        for src in [OWN6, link_local(OWN)] {
            assert_eq!(verdict(&says(kind, src, OWN6, &own)), Ok(()), "type {kind}");
        }
        assert_eq!(verdict(&says(kind, OTHER6, OWN6, &own)), Err(BindingError::Neighbour), "source, {kind}");
        for option in [SOURCE_LINK_ADDRESS, TARGET_LINK_ADDRESS] {
            let options = [own[0], (option, OTHER)];
            assert_eq!(
                verdict(&says(kind, OWN6, OWN6, &options)),
                Err(BindingError::Neighbour),
                "option, {kind}"
            );
        }
    }
    assert_eq!(verdict(&says(SOLICITATION, OWN6, OTHER6, &own)), Ok(()), "asking for a neighbour");
    assert_eq!(verdict(&says(ADVERTISEMENT, OWN6, OTHER6, &own)), Err(BindingError::Neighbour));
    assert_eq!(verdict(&says(ADVERTISEMENT, OWN6, link_local(OTHER), &[])), Err(BindingError::Neighbour));
}

#[test]
fn an_address_is_asked_for_before_it_is_used() {
    let detects = |target| verdict(&says(SOLICITATION, UNSPECIFIED6, target, &[]));
    assert_eq!(detects(OWN6), Ok(()));
    assert_eq!(detects("fe80::77".parse().expect("an address")), Ok(()), "no tenant's");
    assert_eq!(detects(OTHER6), Err(BindingError::Neighbour), "it would seem to be taken");
    assert_eq!(detects(link_local(OTHER)), Err(BindingError::Neighbour));
    assert_eq!(verdict(&says(ROUTER_SOLICITATION, UNSPECIFIED6, OWN6, &[])), Ok(()));
    assert_eq!(verdict(&says(ADVERTISEMENT, UNSPECIFIED6, OWN6, &[])), Err(BindingError::Neighbour));
}

#[test]
fn only_a_router_advertises_itself_and_no_tenant_redirects() {
    let advertises = |src, options: &[(u8, Mac)]| says(ROUTER_ADVERTISEMENT, src, OWN6, options);
    let own = [(SOURCE_LINK_ADDRESS, OWN)];
    assert_eq!(verdict(&advertises(link_local(OWN), &own)), Err(BindingError::Router));
    assert_eq!(routers_verdict(&advertises(link_local(OWN), &own)), Ok(()));
    assert_eq!(routers_verdict(&advertises(link_local(OTHER), &own)), Err(BindingError::Neighbour));
    let strange = [(SOURCE_LINK_ADDRESS, OTHER)];
    assert_eq!(routers_verdict(&advertises(link_local(OWN), &strange)), Err(BindingError::Neighbour));
    assert_eq!(routers_verdict(&says(REDIRECT, link_local(OWN), OTHER6, &[])), Err(BindingError::Router));
    assert_eq!(routers_verdict(&says(ADVERTISEMENT, OWN6, OTHER6, &[])), Err(BindingError::Neighbour));
}

#[test]
fn options_that_end_wrongly_are_refused() {
    let claim = |tail: &[u8]| {
        let message = [discovery(ADVERTISEMENT, OWN6, OWN6, &[]), tail.to_vec()].concat();
        verdict(&ethernet(OWN, &[], IPV6, &v6(OWN6, &[], ICMP6, &message)))
    };
    let nonce = [14, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(claim(&nonce), Ok(()));
    assert_eq!(claim(&nonce.repeat(MOST_OPTIONS)), Ok(()));
    let behind = [nonce.repeat(MOST_OPTIONS + 1), vec![TARGET_LINK_ADDRESS, 1, 2, 0, 0, 0, 0, 2]].concat();
    for wrong in [&[14, 0, 0, 0, 0, 0, 0, 0][..], &nonce[..7], &[14], &[14, 2, 0, 0, 0, 0, 0, 0], &behind] {
        assert_eq!(claim(wrong), Err(BindingError::Neighbour), "{wrong:?}");
    }
    // Receivers differ in how they read an address of another length.
    let long = [&[TARGET_LINK_ADDRESS, 2][..], &OWN.0, &[0; 8]].concat();
    assert_eq!(claim(&long), Err(BindingError::Neighbour));
}

/// A hop-by-hop or destination header of padding.
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

#[test]
fn discovery_does_not_hide_behind_extension_headers_or_in_fragments() {
    let message = discovery(ADVERTISEMENT, OWN6, OTHER6, &[]);
    let behind = |extensions: &[(u8, [u8; 7])], payload: &[u8]| {
        verdict(&ethernet(OWN, &[0x8100], IPV6, &v6(OWN6, extensions, ICMP6, payload)))
    };
    for extensions in [&[(0, PADDING)][..], &[(60, PADDING)], &[(0, PADDING), (60, PADDING), (60, PADDING)]] {
        assert_eq!(behind(extensions, &message), Err(BindingError::Neighbour));
    }
    let fragment = |offset: u8, more: u8| (44, [0, 0, offset << 3 | more, 0, 0, 0, 9]);
    let own = discovery(ADVERTISEMENT, OWN6, OWN6, &[]);
    for message in [&message[..], &own, &own[..1], &[]] {
        for more in [0, 1] {
            for extensions in [&[fragment(0, more)][..], &[fragment(0, more), (60, PADDING)]] {
                assert_eq!(
                    behind(extensions, message),
                    Err(BindingError::NeighbourFragment),
                    "{extensions:?}"
                );
            }
        }
    }
    assert_eq!(behind(&[fragment(1, 0)], &message), Ok(()), "nothing without its first");
    assert_eq!(behind(&[fragment(0, 1)], &[128; 64]), Ok(()), "a long echo");
}

#[test]
fn nothing_hides_behind_snap() {
    let snap = |oui: [u8; 3], ethertype: u16| {
        let header = [&[0xaa, 0xaa, 3][..], &oui, &ethertype.to_be_bytes()].concat();
        verdict(&ethernet(OWN, &[], 36, &[header, arp(2, (OWN, OTHER4), OWN4)].concat()))
    };
    for ethertype in [ARP, IPV4, IPV6, 0x8100] {
        assert_eq!(snap([0; 3], ethertype), Err(BindingError::Snap));
        assert_eq!(snap([0, 0, 0xf8], ethertype), Err(BindingError::Snap));
    }
    assert_eq!(snap([0, 0, 0x0c], 0x2000), Ok(()), "CDP");
    assert_eq!(verdict(&ethernet(OWN, &[], 3, &[0x42, 0x42, 3])), Ok(()), "spanning tree");
}

fn macs() -> impl Strategy<Value = Mac> {
    prop_oneof![3 => Just(OWN), 1 => Just(OTHER)]
}

fn addresses6() -> impl Strategy<Value = Ipv6Addr> {
    prop_oneof![
        4 => Just(OWN6),
        4 => Just(link_local(OWN)),
        1 => Just(OTHER6),
        1 => Just(link_local(OTHER)),
        1 => Just(UNSPECIFIED6),
    ]
}

/// A frame that passes makes no false claim to [`hear`], an independent reader.
fn honest(frame: &[u8]) -> Result<(), TestCaseError> {
    let Ok(parsed) = parse(frame) else { return Ok(()) };
    if verify(frame, &parsed, &Shop::default()).is_err() {
        return Ok(());
    }
    prop_assert_eq!(parsed.src_mac, OWN);
    match hear(frame, &parsed) {
        Some(Heard::Asks { by: (ip, mac), .. } | Heard::Tells { of: ip, mac }) => {
            prop_assert!(mac == OWN && Shop::default().owns(ip), "{ip} at {mac}");
        }
        None => {}
    }
    if let Some(ip) = parsed.ip.filter(only_source_counts) {
        prop_assert!(Shop::default().owns(ip.src));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_bytes_end(
        head in prop::sample::select(vec![ARP, REVERSE_ARP, IPV4, IPV6, 40, 0x8100]),
        bytes in vec(any::<u8>(), 0..300),
        from in macs(),
    ) {
        honest(&ethernet(from, &[], head, &bytes))?;
        honest(&bytes)?;
    }

    /// Sound ARP and discovery, then a few bytes changed.
    #[test]
    fn what_passes_is_true(
        (from, kind, src, target) in (macs(), ROUTER_SOLICITATION..=REDIRECT, addresses6(), addresses6()),
        options in vec((1..=2_u8, macs()), 0..4),
        (tags, extensions) in (0..3_usize, 0..3_usize),
        (operation, sender) in (0..10_u16, macs()),
        (spa, tpa) in (prop::sample::select(vec![OWN4, OTHER4, FREE4, Ipv4Addr::UNSPECIFIED]), prop::sample::select(vec![OWN4, OTHER4])),
        changes in vec((0..160_usize, any::<u8>()), 0..3),
    ) {
        let tags = &[0x88a8, 0x8100][..tags];
        let message = discovery(kind, src, target, &options);
        let packet = v6(src, &[(0, PADDING), (60, PADDING)][..extensions], ICMP6, &message);
        for mut frame in [
            ethernet(from, tags, IPV6, &packet),
            ethernet(from, tags, ARP, &arp(operation, (sender, spa), tpa)),
        ] {
            honest(&frame)?;
            for &(at, byte) in &changes {
                let at = at % frame.len();
                frame[at] = byte;
            }
            honest(&frame)?;
        }
    }

    /// The result for one packet holds for others with its source addresses, as the daemon assumes.
    #[test]
    fn where_only_the_source_counts_the_rest_does_not(
        src in prop::sample::select(vec![OWN4, OTHER4, FREE4]),
        number in prop::sample::select(vec![1_u8, 2, 17, 47, 58]),
        (payload, other) in (vec(any::<u8>(), 8..60), vec(any::<u8>(), 8..60)),
    ) {
        let [a, b] = [payload, other].map(|payload| ethernet(OWN, &[], IPV4, &v4(src, number, &payload)));
        let (Ok(first), Ok(second)) = (parse(&a), parse(&b)) else { return Ok(()) };
        if first.ip.as_ref().is_some_and(only_source_counts) {
            prop_assert_eq!(verify(&a, &first, &Shop::default()), verify(&b, &second, &Shop::default()));
        }
    }
}

#[test]
fn what_this_crate_asks_and_tells_passes_for_its_own() {
    let mut out = [0; LONGEST];
    for (own, other) in [(IpAddr::from(OWN4), IpAddr::from(OTHER4)), (OWN6.into(), OTHER6.into())] {
        let len = ask((own, OWN), other, &mut out).expect("one family");
        assert_eq!(verdict(&out[..len]), Ok(()));
        let len = tell((own, OWN), (other, OTHER), &mut out).expect("one family");
        assert_eq!(verdict(&out[..len]), Ok(()));
        let len = tell((other, OWN), (own, OTHER), &mut out).expect("one family");
        assert!(verdict(&out[..len]).is_err());
    }
}
