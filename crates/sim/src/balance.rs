//! Which of several equal ways a packet takes: ECMP by flow, or packet spraying.
//!
//! Why: a fat tree has as much capacity as its hosts only if traffic is spread over all ways.
//! From: ECMP by a hash of the 5-tuple (RFC 2992's hash-threshold), with a seed for each switch, as switches have so that two
//! stages do not choose alike; random packet spraying (Dixit et al., INFOCOM 2013).
//! Not here: which ways are equal (`topology`).
//! Invariant: under ECMP all packets of a flow that go in one direction take one way, so that none overtakes another. The
//! two directions of a flow are hashed apart, and may take different ways.

use plimsoll_scenario::LoadBalancing;

use crate::chance::Chance;
use crate::flow::Flow;
use crate::packet::{Body, Packet};

/// The choice among equal ways, at each node.
#[derive(Debug)]
pub(crate) enum Balance {
    /// By a hash of the flow; by node: the seed of the hash.
    Ecmp(Vec<u64>),
    /// At random for each packet.
    Spray(Box<Chance>),
}

impl Balance {
    /// The choice in a world with these nodes.
    pub(crate) fn new<'a>(how: LoadBalancing, nodes: impl Iterator<Item = &'a String>, seed: u64) -> Self {
        match how {
            LoadBalancing::Ecmp => {
                let salt = |name: &String| {
                    let mut chance = Chance::of(seed, &format!("ecmp {name}"));
                    u64::from(chance.below(u32::MAX)) << 32 | u64::from(chance.below(u32::MAX))
                };
                Self::Ecmp(nodes.map(salt).collect())
            }
            LoadBalancing::Spray => Self::Spray(Box::new(Chance::of(seed, "spray"))),
        }
    }

    /// The way of a packet among `ways`, of which there is at least one. `claims` is the number of senders that the packet's
    /// workload claims to be, if any.
    pub(crate) fn choose(
        &mut self,
        node: u32,
        flow: &Flow,
        packet: &Packet,
        claims: u32,
        ways: &[u32],
    ) -> u32 {
        let count = ways.len() as u32;
        let place = match self {
            Self::Ecmp(salts) => scale(hash(flow, packet, claims, salts[node as usize]), count),
            Self::Spray(chance) => chance.below(count),
        };
        ways[place as usize]
    }
}

/// A hash of the packet's 5-tuple.
fn hash(flow: &Flow, packet: &Packet, claims: u32, salt: u64) -> u64 {
    let (from, to) = flow.way(packet.back);
    let claimed = match packet.body {
        Body::Datagram { number, .. } if claims > 0 && !packet.back => number % u64::from(claims),
        _ => 0,
    };
    let addresses = u64::from(from.address.to_bits()) << 32 | u64::from(to.address.to_bits());
    let ports = u64::from(from.port) << 32 | u64::from(to.port) << 16 | u64::from(flow.protocol);
    mix(mix(mix(addresses ^ salt) ^ ports) ^ claimed)
}

/// One step of splitmix64: each bit of the result depends on all bits.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A hash as a number below `count`, by the region that it falls into.
fn scale(hash: u64, count: u32) -> u32 {
    (((hash >> 32) * u64::from(count)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::flow::End;

    fn flow(port: u16) -> Flow {
        let end = |host: u8, port| End {
            node: 0,
            tenant: None,
            address: Ipv4Addr::new(10, 200, 1, host),
            port,
            dscp: 0,
            queue: None,
            core: None,
        };
        Flow { workload: 0, ends: [end(1, port), end(2, 5_001)], protocol: 6, socket: 0, through: None }
    }

    fn packet(number: u64, back: bool) -> Packet {
        Packet::new((0, back), true, 1_514, Body::Datagram { number, offset: 0, size: 1_472, last: true })
    }

    fn balance(how: LoadBalancing) -> Balance {
        let nodes = ["leaf".to_owned(), "spine".to_owned()];
        Balance::new(how, nodes.iter(), 7)
    }

    #[test]
    fn ecmp_keeps_a_flow_on_its_way_and_spreads_flows_evenly() {
        let mut ecmp = balance(LoadBalancing::Ecmp);
        let ways = [10, 11, 12, 13];
        let mut counts = [0; 4];
        for port in 30_000..34_000 {
            let flow = flow(port);
            let way = ecmp.choose(0, &flow, &packet(0, false), 0, &ways);
            assert!((1..50).all(|n| ecmp.choose(0, &flow, &packet(n, false), 0, &ways) == way));
            counts[way as usize - 10] += 1;
        }
        // Four standard deviations of a binomial are 110.
        assert!(counts.iter().all(|count| (890..1_110).contains(count)), "{counts:?}");
    }

    /// A quarter of the flows takes each of the pairs of ways: neither the next switch nor the way back repeats a choice.
    #[test]
    fn switches_and_directions_choose_independently() {
        let mut ecmp = balance(LoadBalancing::Ecmp);
        let (mut hops, mut directions) = (0, 0);
        for port in 30_000..34_000 {
            let flow = flow(port);
            let way = ecmp.choose(0, &flow, &packet(0, false), 0, &[0, 1]);
            hops += u32::from(ecmp.choose(1, &flow, &packet(0, false), 0, &[0, 1]) == way);
            directions += u32::from(ecmp.choose(0, &flow, &packet(0, true), 0, &[0, 1]) == way);
        }
        assert!(
            (1_870..2_130).contains(&hops) && (1_870..2_130).contains(&directions),
            "{hops} {directions}"
        );
    }

    #[test]
    fn spraying_and_claimed_addresses_spread_one_flow() {
        let (flow, ways) = (flow(30_000), [0, 1]);
        let spread = |how, claims| {
            let mut balance = balance(how);
            (0..1_000).map(|n| balance.choose(0, &flow, &packet(n, false), claims, &ways)).sum::<u32>()
        };
        assert!((430..570).contains(&spread(LoadBalancing::Spray, 0)));
        assert!((430..570).contains(&spread(LoadBalancing::Ecmp, 10_000)));
        assert!([0, 1_000].contains(&spread(LoadBalancing::Ecmp, 0)));
    }
}
