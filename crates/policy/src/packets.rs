//! Sets of packets, exactly: what is left of one match behind others.
//!
//! Why: earlier matches may together take all that a later one asks for, though none of them does alone.
//! From: boxes over a packet's fields, as in header space analysis (Kazemian, Varghese and McKeown, NSDI '12); a box
//! less another is cut off field by field.
//! Not here: whether one packet matches (`program`), the order of rules (`check::rules`).
//! Invariant: an answer is exact for packets as the engine reads them: addresses of one IP version, ports only behind
//! TCP, UDP and SCTP (and not in later fragments), protocol and DSCP only in IP; past a bound there is no answer.

use std::rc::Rc;

use crate::program::{Match, Prefix};

/// Disjoint stretches of a field's values in rising order, ends included.
type Values = Vec<(u128, u128)>;

/// Fields of a packet that a match may ask for.
const FIELDS: usize = 13;

/// Packets whose fields lie in given values, each field for itself.
type Cuboid = [Rc<Values>; FIELDS];

/// Which fields a packet has; within one shape, no field tells another's presence.
#[derive(Clone, Copy, Debug)]
enum Shape {
    NotIp,
    Ip { v4: bool, ports: bool },
}

const SHAPES: [Shape; 5] = [
    Shape::NotIp,
    Shape::Ip { v4: true, ports: false },
    Shape::Ip { v4: true, ports: true },
    Shape::Ip { v4: false, ports: false },
    Shape::Ip { v4: false, ports: true },
];

/// Protocols that have ports.
const PORTED: [u8; 3] = [6, 17, 132];

/// The tenants that packets may come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Senders {
    /// Any tenant, or no tenant.
    Any,
    /// This many tenants, numbered from 0.
    Tenants(usize),
}

/// The packets of a match that earlier matches leave over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Some packet.
    Some,
    /// No packet: these earlier matches, by their indices, take all of them.
    Nothing(Vec<usize>),
    /// Not known: the allowed comparisons did not suffice.
    Unknown,
}

/// The packets of `wanted` that `earlier` leaves over, found in at most `most` comparisons: one of a piece with a match, and
/// one for each match and shape of packets. Subtracts the comparisons made from `most`.
pub(crate) fn rest(wanted: &Match, earlier: &[&Match], senders: Senders, most: &mut u64) -> Rest {
    let mut takers = vec![false; earlier.len()];
    for shape in SHAPES {
        let Some(whole) = cuboid(wanted, shape, senders) else { continue };
        let others: Vec<(usize, Cuboid)> = (0..)
            .zip(earlier)
            .filter_map(|(index, other)| Some((index, cuboid(other, shape, senders)?)))
            .collect();
        let values: u64 = others.iter().map(|(_, other)| size(other)).sum();
        *most = most.saturating_sub(others.len() as u64 + values / LONG);
        // The pieces still to be looked at, and the first of the others that each is to be compared with.
        let mut open = vec![(whole, 0)];
        while let Some((piece, from)) = open.pop() {
            let mut hit = None;
            for (at, (index, other)) in others.iter().enumerate().skip(from) {
                if *most == 0 {
                    return Rest::Unknown;
                }
                // Long lists of values take as long as several comparisons.
                *most = most.saturating_sub(1 + (size(&piece) + size(other)) / LONG);
                if meets(&piece, other) {
                    takers[*index] = true;
                    hit = Some((at, other));
                    break;
                }
            }
            let Some((at, other)) = hit else { return Rest::Some };
            // The first cut is looked at first: it keeps every other field whole, and most likely has packets left.
            open.extend(cut(&piece, other).into_iter().rev().map(|piece| (piece, at + 1)));
        }
    }
    Rest::Nothing((0..).zip(takers).filter(|(_, takes)| *takes).map(|(index, _)| index).collect())
}

/// Stretches of values that a comparison may walk through.
fn size(cuboid: &Cuboid) -> u64 {
    cuboid.iter().map(|values| values.len() as u64).sum()
}

/// Stretches of values that are walked through in the time of one more comparison.
const LONG: u64 = 128;

fn meets(a: &Cuboid, b: &Cuboid) -> bool {
    a.iter().zip(b).all(|(a, b)| overlap(a, b))
}

/// `piece` less `other`, which it meets, as disjoint pieces.
fn cut(piece: &Cuboid, other: &Cuboid) -> Vec<Cuboid> {
    let mut inside = piece.clone();
    let mut cuts = Vec::new();
    for field in 0..FIELDS {
        let outside = minus(&inside[field], &other[field]);
        if outside.is_empty() {
            continue;
        }
        let mut cut = inside.clone();
        cut[field] = Rc::new(outside);
        cuts.push(cut);
        inside[field] = Rc::new(both(&inside[field], &other[field]));
    }
    cuts
}

/// The packets of a shape that a match takes; `None` if there are none.
fn cuboid(matches: &Match, shape: Shape, senders: Senders) -> Option<Cuboid> {
    let tenants = match senders {
        // Tenant `t` is `t + 1`, and no tenant is 0.
        Senders::Any => (0, 1 << 32),
        Senders::Tenants(count) => (1, count.max(1) as u128),
    };
    let tenant = matches.tenant.iter().map(|tenant| single(u128::from(tenant.0) + 1));
    let numbers = |list: &[u32]| list.iter().map(|&n| single(u128::from(n) + 1)).collect::<Values>();
    let fields = [
        asked(tenant.collect(), matches.tenant.is_empty(), Some(tenants)),
        addresses(&matches.src, shape),
        addresses(&matches.dst, shape),
        protocols(&matches.protocol, shape),
        ports(&matches.src_port, shape),
        ports(&matches.dst_port, shape),
        asked(bytes(&matches.dscp), matches.dscp.is_empty(), in_ip(shape, 63)),
        asked(
            matches.vlan.iter().map(|&vlan| single(vlan.into())).collect(),
            matches.vlan.is_empty(),
            Some((0, 4_095)),
        ),
        // Metadata that did not come is 0.
        asked(numbers(&matches.priority), matches.priority.is_empty(), Some((0, 1 << 32))),
        asked(
            matches.cgroup.iter().map(|&n| single(u128::from(n) + 1)).collect(),
            matches.cgroup.is_empty(),
            Some((0, 1 << 64)),
        ),
        asked(numbers(&matches.user), matches.user.is_empty(), Some((0, 1 << 32))),
        asked(numbers(&matches.app), matches.app.is_empty(), Some((0, 1 << 32))),
        asked(
            matches.core.iter().map(|&n| single(u128::from(n) + 1)).collect(),
            matches.core.is_empty(),
            Some((0, 1 << 16)),
        ),
    ];
    let mut known: [Rc<Values>; FIELDS] = Default::default();
    for (known, values) in known.iter_mut().zip(fields) {
        *known = Rc::new(values.filter(|values| !values.is_empty())?);
    }
    Some(known)
}

/// A field's values: those listed, or the whole domain where nothing is asked. A field that packets of the shape do not
/// have (no domain) has one value for those that do not ask, and none for those that do.
fn asked(listed: Values, any: bool, domain: Option<(u128, u128)>) -> Option<Values> {
    match domain {
        Some(domain) if any => Some(vec![domain]),
        Some(domain) => Some(both(&tidy(listed), &vec![domain])),
        None => any.then(|| vec![(0, 0)]),
    }
}

fn in_ip(shape: Shape, most: u128) -> Option<(u128, u128)> {
    matches!(shape, Shape::Ip { .. }).then_some((0, most))
}

fn addresses(prefixes: &[Prefix], shape: Shape) -> Option<Values> {
    let Shape::Ip { v4, .. } = shape else { return asked(Vec::new(), prefixes.is_empty(), None) };
    let whole = if v4 { 32 } else { 128 };
    let stretch = |prefix: &Prefix| {
        let first = match prefix.addr {
            core::net::IpAddr::V4(addr) => u128::from(u32::from(addr)),
            core::net::IpAddr::V6(addr) => addr.into(),
        };
        (first, first | below(whole - prefix.len.min(whole)))
    };
    let own = prefixes.iter().filter(|prefix| prefix.addr.is_ipv4() == v4);
    asked(own.map(stretch).collect(), prefixes.is_empty(), Some((0, below(whole))))
}

/// The largest number of `bits` bits.
fn below(bits: u8) -> u128 {
    u128::MAX.checked_shr(128 - u32::from(bits)).unwrap_or(0)
}

fn protocols(listed: &[u8], shape: Shape) -> Option<Values> {
    let values = asked(bytes(listed), listed.is_empty(), in_ip(shape, 255))?;
    match shape {
        Shape::Ip { ports: true, .. } => Some(both(&values, &bytes(&PORTED))),
        _ => Some(values),
    }
}

fn ports(ranges: &[(u16, u16)], shape: Shape) -> Option<Values> {
    let domain = matches!(shape, Shape::Ip { ports: true, .. }).then_some((0, u128::from(u16::MAX)));
    let full = ranges.iter().filter(|(from, to)| from <= to);
    asked(full.map(|&(from, to)| (from.into(), to.into())).collect(), ranges.is_empty(), domain)
}

fn bytes(list: &[u8]) -> Values {
    list.iter().map(|&n| single(n.into())).collect()
}

fn single(value: u128) -> (u128, u128) {
    (value, value)
}

/// In rising order, without overlaps.
fn tidy(mut values: Values) -> Values {
    values.sort_unstable();
    let mut tidied: Values = Vec::with_capacity(values.len());
    for (from, to) in values {
        match tidied.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => tidied.push((from, to)),
        }
    }
    tidied
}

fn overlap(a: &Values, b: &Values) -> bool {
    let (mut a, mut b) = (a.iter().peekable(), b.iter().peekable());
    while let (Some(&&(a_from, a_to)), Some(&&(b_from, b_to))) = (a.peek(), b.peek()) {
        if a_from.max(b_from) <= a_to.min(b_to) {
            return true;
        }
        if a_to < b_to {
            a.next();
        } else {
            b.next();
        }
    }
    false
}

fn both(a: &Values, b: &Values) -> Values {
    let (mut at_a, mut at_b) = (0, 0);
    let mut both = Values::new();
    while let (Some(&(a_from, a_to)), Some(&(b_from, b_to))) = (a.get(at_a), b.get(at_b)) {
        let (from, to) = (a_from.max(b_from), a_to.min(b_to));
        if from <= to {
            both.push((from, to));
        }
        if a_to < b_to {
            at_a += 1;
        } else {
            at_b += 1;
        }
    }
    both
}

fn minus(a: &Values, b: &Values) -> Values {
    let mut left = Values::new();
    let mut b = b.iter().copied().peekable();
    for &(mut from, to) in a {
        let mut used_up = false;
        while let Some(&(b_from, b_to)) = b.peek() {
            if b_from > to {
                break;
            }
            if b_to >= from {
                if b_from > from {
                    left.push((from, b_from - 1));
                }
                if b_to >= to {
                    used_up = true;
                    break;
                }
                from = b_to + 1;
            }
            b.next();
        }
        if !used_up {
            left.push((from, to));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ported(dst_port: &[(u16, u16)]) -> Match {
        Match { dst_port: dst_port.to_vec(), ..Match::default() }
    }

    fn found(wanted: &Match, earlier: &[&Match]) -> Rest {
        rest(wanted, earlier, Senders::Any, &mut 1_000)
    }

    #[test]
    fn halves_make_a_whole() {
        let (low, high) = (ported(&[(0, 79)]), ported(&[(80, u16::MAX)]));
        assert_eq!(found(&ported(&[(1, 100)]), &[&low, &high]), Rest::Nothing(vec![0, 1]));
        assert_eq!(found(&ported(&[(1, 100)]), &[&low]), Rest::Some);
        assert_eq!(found(&Match::default(), &[&low, &high]), Rest::Some, "what has no ports is left");
    }

    #[test]
    fn only_three_protocols_have_ports() {
        let protocol = |n| Match { protocol: vec![n], ..Match::default() };
        let (tcp, udp, sctp) = (protocol(6), protocol(17), protocol(132));
        assert_eq!(found(&ported(&[(80, 80)]), &[&tcp, &udp, &sctp]), Rest::Nothing(vec![0, 1, 2]));
        assert_eq!(found(&ported(&[(80, 80)]), &[&tcp, &udp]), Rest::Some);
    }

    #[test]
    fn the_last_address_counts() {
        let to = |text: &str| Match { dst: vec![text.parse().expect("a prefix")], ..Match::default() };
        let all = to("::/0");
        let halves = [to("::/1"), to("8000::/1")];
        assert_eq!(found(&all, &[&halves[0], &halves[1]]), Rest::Nothing(vec![0, 1]));
        assert_eq!(found(&all, &[&halves[0], &to("8000::/2")]), Rest::Some);
        assert_eq!(
            found(&to("255.255.255.255"), &[&to("0.0.0.0/1"), &to("128.0.0.0/1")]),
            Rest::Nothing(vec![1])
        );
    }

    #[test]
    fn tenants_are_those_that_there_are() {
        let of = |id| Match { tenant: vec![crate::program::TenantId(id)], ..Match::default() };
        let (a, b) = (of(0), of(1));
        let left = |senders| rest(&ported(&[(1, 1)]), &[&a, &b], senders, &mut 1_000);
        assert_eq!(left(Senders::Tenants(2)), Rest::Nothing(vec![0, 1]));
        assert_eq!(left(Senders::Tenants(3)), Rest::Some);
        assert_eq!(left(Senders::Any), Rest::Some);
    }

    #[test]
    fn past_the_bound_there_is_no_answer() {
        let (low, high) = (ported(&[(0, 79)]), ported(&[(80, u16::MAX)]));
        assert_eq!(rest(&ported(&[(1, 100)]), &[&low, &high], Senders::Any, &mut 6), Rest::Unknown);
    }
}
