//! The key of a flow, which chooses a frame's flow queue.
//!
//! Why: frames must stay in order within a flow and nowhere else.
//! From: the 5-tuple, and the other header fields that a policy can match (VLAN, DSCP), so that all frames of a flow
//! queue have one class.
//! Not here: the table of flows (`queues`, `daemon`).
//! Invariant: every `match` of a policy on header fields gives the same result for frames with equal keys.

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::parse::Parsed;

/// Addresses, protocol, ports, VLAN and DSCP of a flow in 40 bytes; EtherType and VLAN for frames that are not IP.
///
/// Tenants choose the contents: hash it with a seed that they do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// IPv4: both addresses in the first word. IPv6: two words each.
    addresses: [u64; 4],
    /// From the top: ports (or EtherType) 32, protocol 8, VLAN 12, DSCP 6, spare 3, has ports 1, family 2.
    rest: u64,
}

impl FlowKey {
    /// The key of a parsed frame. Non-first fragments have no ports and thus a key of their own.
    #[must_use]
    pub fn of(parsed: &Parsed) -> FlowKey {
        let vlan = u64::from(parsed.vlan) << 12;
        let Some(ip) = &parsed.ip else {
            return FlowKey { addresses: [0; 4], rest: (u64::from(parsed.ethertype) << 32) | vlan };
        };
        let (addresses, family) = match (ip.src, ip.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ([(u64::from(src.to_bits()) << 32) | u64::from(dst.to_bits()), 0, 0, 0], FAMILY_V4)
            }
            (src, dst) => {
                let ([a, b], [c, d]) = (halves(src), halves(dst));
                ([a, b, c, d], FAMILY_V6)
            }
        };
        let ports =
            ip.ports.map_or(0, |(src, dst)| (u64::from(src) << 48) | (u64::from(dst) << 32) | HAS_PORTS);
        let protocol = u64::from(ip.protocol) << 24;
        FlowKey { addresses, rest: ports | protocol | vlan | (u64::from(ip.dscp) << 6) | family }
    }

    /// The key with a DSCP of zero, which each end of a connection chooses by itself.
    #[must_use]
    pub const fn without_dscp(self) -> Self {
        match self.rest & (FAMILY_V4 | FAMILY_V6) {
            0 => self,
            _ => Self { rest: self.rest & !(0x3f << 6), ..self },
        }
    }

    /// Bytes in which a key is written down for other hosts.
    pub const LEN: usize = 40;

    /// The key in network order, for another host.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let words = self.addresses.iter().chain([&self.rest]);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// What [`FlowKey::to_bytes`] wrote. Bytes that it did not write make a key that no frame has.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map_or(0, |&word| u64::from_be_bytes(word));
        Self { addresses: core::array::from_fn(word), rest: word(4) }
    }

    /// The flow in the other direction of the same connection, without DSCP.
    #[must_use]
    pub const fn reversed(self) -> Self {
        let [a, b, c, d] = self.addresses;
        let addresses = match self.rest & (FAMILY_V4 | FAMILY_V6) {
            FAMILY_V4 => [a.rotate_left(32), b, c, d],
            FAMILY_V6 => [c, d, a, b],
            _ => self.addresses,
        };
        // The upper half holds the ports, or zero.
        let ports = ((self.rest >> 32) as u32).rotate_left(16) as u64;
        let has_ports = self.rest & HAS_PORTS != 0;
        let rest = if has_ports { ports << 32 | self.rest & 0xffff_ffff } else { self.rest };
        Self { addresses, rest }.without_dscp()
    }

    /// Source and destination address; none for a frame that is not IP.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let [a, b, c, d] = self.addresses;
        match self.rest & (FAMILY_V4 | FAMILY_V6) {
            FAMILY_V4 => {
                let [src, dst] = [(a >> 32) as u32, a as u32].map(|bits| Ipv4Addr::from_bits(bits).into());
                Some((src, dst))
            }
            FAMILY_V6 => {
                let whole =
                    |high: u64, low: u64| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
                Some((whole(a, b).into(), whole(c, d).into()))
            }
            _ => None,
        }
    }

    /// The protocol behind the IP headers; none for a frame that is not IP.
    #[must_use]
    pub fn protocol(&self) -> Option<u8> {
        self.addresses().is_some().then_some((self.rest >> 24) as u8)
    }

    /// Source and destination port.
    #[must_use]
    pub fn ports(&self) -> Option<(u16, u16)> {
        (self.rest & HAS_PORTS != 0).then_some(((self.rest >> 48) as u16, (self.rest >> 32) as u16))
    }

    /// The EtherType of a frame that is not IP.
    #[must_use]
    pub fn ethertype(&self) -> Option<u16> {
        self.addresses().is_none().then_some((self.rest >> 32) as u16)
    }
}

impl Hash for FlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.rest);
        // The words that IPv4 leaves at zero need no hashing; `rest` already tells the families apart.
        let words = if self.rest & FAMILY_V6 == FAMILY_V6 { 4 } else { 1 };
        for &word in self.addresses.iter().take(words) {
            state.write_u64(word);
        }
    }
}

fn halves(addr: IpAddr) -> [u64; 2] {
    let bits = match addr {
        IpAddr::V4(addr) => u128::from(addr.to_bits()),
        IpAddr::V6(addr) => addr.to_bits(),
    };
    // The casts keep the lower 64 bits of each half.
    [(bits >> 64) as u64, bits as u64]
}

const FAMILY_V4: u64 = 1;
const FAMILY_V6: u64 = 2;
const HAS_PORTS: u64 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Fragment, Ip, Mac};

    fn tcp(src: &str, dst: &str, ports: Option<(u16, u16)>) -> Parsed {
        Parsed {
            dst_mac: Mac([0; 6]),
            src_mac: Mac([0; 6]),
            vlan: 0,
            ethertype: 0x0800,
            l3: 14,
            ip: Some(Ip {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                protocol: 6,
                dscp: 0,
                ecn: 0,
                fragment: Fragment::Whole,
                ports,
                l4: 34,
                payload: 54,
                end: 54,
                final_dst: Some(30),
            }),
        }
    }

    #[test]
    fn every_part_of_the_tuple_makes_another_flow() {
        let base = tcp("10.0.0.1", "10.0.0.2", Some((1, 2)));
        let mut others = vec![
            tcp("10.0.0.2", "10.0.0.1", Some((1, 2))),
            tcp("10.0.0.1", "10.0.0.2", Some((2, 1))),
            tcp("10.0.0.1", "10.0.0.2", Some((0, 0))),
            tcp("10.0.0.1", "10.0.0.2", None),
            tcp("::10.0.0.1", "::10.0.0.2", Some((1, 2))),
            tcp("::ffff:10.0.0.1", "::ffff:10.0.0.2", Some((1, 2))),
            Parsed { vlan: 1, ..base },
            Parsed { ip: None, ..base },
            Parsed { ip: None, ethertype: 0x0806, ..base },
        ];
        others.push(Parsed { ip: base.ip.map(|ip| Ip { protocol: 17, ..ip }), ..base });
        others.push(Parsed { ip: base.ip.map(|ip| Ip { dscp: 46, ..ip }), ..base });
        let mut keys: Vec<FlowKey> = others.iter().map(FlowKey::of).collect();
        keys.push(FlowKey::of(&base));
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn a_key_names_its_flow() {
        for (src, dst, ports) in [
            ("10.0.0.1", "10.0.0.2", Some((1, 65_535))),
            ("2001:db8::1", "::2", Some((0, 0))),
            ("1.2.3.4", "0.0.0.0", None),
        ] {
            let parsed = tcp(src, dst, ports);
            let key = FlowKey::of(&parsed);
            assert_eq!(key.addresses(), Some((src.parse().unwrap(), dst.parse().unwrap())));
            assert_eq!((key.protocol(), key.ports(), key.ethertype()), (Some(6), ports, None));
        }
        let arp = FlowKey::of(&Parsed { ip: None, ethertype: 0x0806, vlan: 5, ..tcp("::", "::", None) });
        assert_eq!(
            (arp.addresses(), arp.protocol(), arp.ports(), arp.ethertype()),
            (None, None, None, Some(0x0806))
        );
    }

    #[test]
    fn the_other_direction_has_ends_exchanged() {
        for (src, dst, ports) in [
            ("10.0.0.1", "10.0.0.2", Some((1, 65_535))),
            ("2001:db8::1", "::2", Some((9, 80))),
            ("1.2.3.4", "0.0.0.0", None),
        ] {
            let there = tcp(src, dst, ports);
            let marked = Parsed { vlan: 7, ip: there.ip.map(|ip| Ip { dscp: 46, ..ip }), ..there };
            let back = Parsed { vlan: 7, ..tcp(dst, src, ports.map(|(a, b)| (b, a))) };
            assert_eq!(FlowKey::of(&marked).reversed(), FlowKey::of(&back));
            assert_eq!(FlowKey::of(&back).reversed(), FlowKey::of(&marked).without_dscp());
        }
    }

    #[test]
    fn ecn_marks_and_places_are_not_part_of_a_flow() {
        let base = tcp("10.0.0.1", "10.0.0.2", Some((1, 2)));
        let marked = Parsed { ip: base.ip.map(|ip| Ip { ecn: 3, end: 1_500, payload: 66, ..ip }), ..base };
        assert_eq!(FlowKey::of(&base), FlowKey::of(&marked));
        assert_eq!(size_of::<FlowKey>(), 40);
    }
}
