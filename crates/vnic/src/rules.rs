//! Flows, and rules from the daemon: which packets go to which flow queue.
//!
//! Why: a client that asks once for each flow need not ask for each packet, and the daemon need not look each packet up.
//! From: SENIC §5.1: the host's table classifies, the guest's driver remembers; `docs/vnic.md`, "Rules".
//! Not here: the answers (the daemon), and how they travel (`message`).
//! Invariant: no rule outlives the policy that it was made under; the cache holds at most [`MOST`] rules.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::fast::RandomState;

use plimsoll_wire::Parsed;

/// Headers of the packets of one flow, as the policy's matches see them; the tenant is the port's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowSpec {
    /// Source and destination, both of one family, for IP.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source and destination port, for TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// DSCP, for IP.
    pub dscp: u8,
    /// VLAN identifier; 0 without a tag.
    pub vlan: u16,
}

impl FlowSpec {
    /// The flow of a frame; `None` for a frame that cannot be parsed.
    #[must_use]
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let parsed = &plimsoll_wire::parse(frame).ok()?;
        let Parsed { vlan, .. } = *parsed;
        let (addresses, protocol, ports) = (parsed.addresses(), parsed.protocol(), parsed.ports());
        Some(Self { addresses, protocol, ports, dscp: parsed.dscp(), vlan })
    }
}

/// The parts of a packet's headers that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Leading bits of the source address, of IPv4 and of IPv6.
    pub src: [u8; 2],
    /// Leading bits of the destination address, likewise.
    pub dst: [u8; 2],
    /// The IP protocol.
    pub protocol: bool,
    /// The source port.
    pub src_port: bool,
    /// The destination port.
    pub dst_port: bool,
    /// DSCP.
    pub dscp: bool,
    /// The VLAN identifier.
    pub vlan: bool,
}

/// One rule: packets that are like `flow` in all that `scope` looks at go to `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The values that the headers must have, reduced by [`Scope::of`].
    pub flow: FlowSpec,
    /// The headers that it looks at.
    pub scope: Scope,
    /// The flow queue.
    pub queue: u32,
    /// The policy that it was made under.
    pub generation: u32,
    /// Whether it answers a question.
    pub asked: bool,
}

/// Counters of a client's cache of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Packets whose queue was known.
    pub hits: u64,
    /// Packets whose queue the daemon was asked for.
    pub misses: u64,
    /// Rules that came without a question.
    pub pushed: u64,
    /// Rules that a new policy has ended.
    pub ended: u64,
}

impl Scope {
    /// Every header that a flow is told by.
    pub const EXACT: Self = Self {
        src: [32, 128],
        dst: [32, 128],
        protocol: true,
        src_port: true,
        dst_port: true,
        dscp: true,
        vlan: true,
    };

    /// Nothing but the address family.
    pub const NOTHING: Self = Self {
        src: [0; 2],
        dst: [0; 2],
        protocol: false,
        src_port: false,
        dst_port: false,
        dscp: false,
        vlan: false,
    };

    /// Reduces a flow to the headers that the scope looks at; the rest is blank.
    #[inline]
    #[must_use]
    pub fn of(&self, flow: &FlowSpec) -> FlowSpec {
        let port = |looked_at: bool, port: u16| if looked_at { port } else { 0 };
        FlowSpec {
            addresses: flow.addresses.map(|(src, dst)| (leading(src, self.src), leading(dst, self.dst))),
            protocol: flow.protocol.filter(|_| self.protocol),
            ports: (flow.ports.filter(|_| self.src_port || self.dst_port))
                .map(|(src, dst)| (port(self.src_port, src), port(self.dst_port, dst))),
            dscp: if self.dscp { flow.dscp } else { 0 },
            vlan: if self.vlan { flow.vlan } else { 0 },
        }
    }

    /// Whether it looks at every header that `other` looks at.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let bits = |own: [u8; 2], other: [u8; 2]| own[0] >= other[0] && own[1] >= other[1];
        let flags = [
            (self.protocol, other.protocol),
            (self.src_port, other.src_port),
            (self.dst_port, other.dst_port),
            (self.dscp, other.dscp),
            (self.vlan, other.vlan),
        ];
        bits(self.src, other.src)
            && bits(self.dst, other.dst)
            && flags.into_iter().all(|(own, other)| own || !other)
    }

    pub(crate) fn to_bytes(self) -> [u8; 5] {
        let flags = [self.protocol, self.src_port, self.dst_port, self.dscp, self.vlan];
        let flags = flags.into_iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(flag));
        [self.src[0], self.src[1], self.dst[0], self.dst[1], flags]
    }

    pub(crate) fn from_bytes([src4, src6, dst4, dst6, flags]: [u8; 5]) -> Self {
        let flag = |bit: u8| flags >> bit & 1 != 0;
        Self {
            src: [src4.min(32), src6.min(128)],
            dst: [dst4.min(32), dst6.min(128)],
            protocol: flag(0),
            src_port: flag(1),
            dst_port: flag(2),
            dscp: flag(3),
            vlan: flag(4),
        }
    }
}

/// The leading `four` bits of an IPv4 address, or `six` bits of an IPv6 address; the rest is zero.
#[inline]
fn leading(address: IpAddr, [four, six]: [u8; 2]) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(four)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(six)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

/// A client's cache of rules.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    generation: u32,
    /// One table for each scope in use, the widest last: there are few, as a policy looks at one set of fields.
    tables: Vec<(Scope, HashMap<FlowSpec, u32, RandomState>)>,
    pub(crate) counts: RuleCounts,
}

impl Rules {
    /// The flow queue of a flow's packets, if a rule tells.
    #[inline]
    pub(crate) fn find(&mut self, flow: &FlowSpec) -> Option<u32> {
        let found = self.tables.iter().find_map(|(scope, rules)| rules.get(&scope.of(flow)));
        match found {
            Some(_) => self.counts.hits += 1,
            None => self.counts.misses += 1,
        }
        found.copied()
    }

    /// Adds a rule, and answers whether it is one of the policy in force; any other is not added.
    pub(crate) fn learn(&mut self, rule: &Rule, in_force: u32) -> bool {
        self.heed(in_force);
        if rule.generation != in_force {
            return false;
        }
        self.counts.pushed += u64::from(!rule.asked);
        if self.len() >= MOST {
            self.tables.clear();
        }
        let at = match self.tables.iter().position(|(scope, _)| *scope == rule.scope) {
            Some(at) => at,
            None => {
                let finer = |(scope, _): &(Scope, _)| !rule.scope.covers(scope);
                let at = self.tables.iter().position(|table| !finer(table)).unwrap_or(self.tables.len());
                self.tables.insert(at, (rule.scope, HashMap::default()));
                at
            }
        };
        self.tables[at].1.insert(rule.flow, rule.queue);
        true
    }

    /// Removes all rules if they are an earlier policy's.
    #[inline]
    pub(crate) fn heed(&mut self, in_force: u32) {
        if in_force != self.generation {
            self.counts.ended += self.len() as u64;
            self.tables.clear();
            self.generation = in_force;
        }
    }

    fn len(&self) -> usize {
        self.tables.iter().map(|(_, rules)| rules.len()).sum()
    }
}

/// Most rules that a client remembers; the next one empties the cache.
const MOST: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(host: u8, port: u16) -> FlowSpec {
        FlowSpec {
            addresses: Some(([10, 0, 0, 1].into(), [10, 0, host, 2].into())),
            protocol: Some(17),
            ports: Some((port, 53)),
            ..FlowSpec::default()
        }
    }

    fn by_net() -> Scope {
        Scope { dst: [24, 0], ..Scope::NOTHING }
    }

    #[test]
    fn a_wide_rule_takes_all_that_look_the_same_and_a_narrow_one_goes_first() {
        let mut rules = Rules::default();
        let rule = |scope: Scope, flow: &FlowSpec, queue| Rule {
            flow: scope.of(flow),
            scope,
            queue,
            generation: 0,
            asked: true,
        };
        assert!(rules.learn(&rule(by_net(), &flow(7, 1), 5), 0));
        assert!(rules.learn(&rule(Scope::EXACT, &flow(7, 1), 6), 0));
        assert_eq!([1, 2].map(|port| rules.find(&flow(7, port))), [Some(6), Some(5)]);
        assert_eq!(rules.find(&flow(8, 2)), None);
        assert_eq!((rules.counts.hits, rules.counts.misses), (2, 1));
    }

    #[test]
    fn a_new_policy_ends_every_rule_and_an_old_rule_comes_too_late() {
        let mut rules = Rules::default();
        let rule = Rule { flow: flow(7, 1), scope: Scope::EXACT, queue: 6, generation: 0, asked: false };
        assert!(rules.learn(&rule, 0));
        rules.heed(1);
        assert_eq!(rules.find(&flow(7, 1)), None);
        assert!(!rules.learn(&rule, 1));
        assert_eq!((rules.counts.pushed, rules.counts.ended), (1, 1));
    }

    #[test]
    fn a_scope_travels_as_it_is_and_covers_what_it_looks_at() {
        for scope in [Scope::EXACT, Scope::NOTHING, by_net()] {
            assert_eq!(Scope::from_bytes(scope.to_bytes()), scope);
            assert!(Scope::EXACT.covers(&scope) && scope.covers(&Scope::NOTHING));
        }
        assert!(!by_net().covers(&Scope::EXACT));
        assert_eq!(Scope::EXACT.of(&flow(7, 1)), flow(7, 1));
    }
}
