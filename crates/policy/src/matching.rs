//! Sets of packets: whether one match lies inside another, and which packets two have in common.
//!
//! Why: a rule behind a broader one never fires, and a sub-policy's match holds only within its place.
//! From: set algebra on conjunctions of lists.
//! Not here: whether a packet matches (`program`), what several matches take together (`packets`).
//! Invariant: `covers` and `and` are exact; `plainly_covers` answers yes only when it is certain.

use crate::packets::{Rest, Senders, rest};
use crate::program::{Match, Prefix};

impl Match {
    /// Whether every packet that `other` takes is also taken by this match.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let at_a_glance = self.pairs_with(other) <= MOST_PAIRS && self.plainly_covers(other);
        let mut most = u64::MAX;
        at_a_glance || matches!(rest(other, &[self], Senders::Any, &mut most), Rest::Nothing(_))
    }

    /// The lengths of its lists.
    fn lengths(&self) -> [usize; 12] {
        [
            self.src.len(),
            self.dst.len(),
            self.protocol.len(),
            self.src_port.len(),
            self.dst_port.len(),
            self.dscp.len(),
            self.vlan.len(),
            self.priority.len(),
            self.cgroup.len(),
            self.user.len(),
            self.app.len(),
            self.core.len(),
        ]
    }

    /// The values that it lists, in all.
    pub(crate) fn size(&self) -> usize {
        // A rule's own tenant is no part of what its author lists.
        self.lengths().iter().sum::<usize>() + self.tenant.len().saturating_sub(1)
    }

    /// Pairs of values that it takes to compare two matches, one at least.
    pub(crate) fn pairs_with(&self, other: &Self) -> u64 {
        let pairs = self.lengths().into_iter().zip(other.lengths()).map(|(a, b)| a as u64 * b as u64);
        let tenants = self.tenant.len().max(1) as u64 * other.tenant.len().max(1) as u64;
        pairs.sum::<u64>() + tenants
    }

    /// Quick, sufficient test of coverage: each entry of `other` lies in one of this match.
    pub(crate) fn plainly_covers(&self, other: &Self) -> bool {
        let ports = |a: &[(u16, u16)], b: &[(u16, u16)]| {
            all_within(a, b, |(from, to), (low, high)| low >= from && high <= to)
        };
        let equal = |a: &[u32], b: &[u32]| all_within(a, b, |a, b| a == b);
        all_within(&self.tenant, &other.tenant, |a, b| a == b)
            && all_within(&self.src, &other.src, |a, b| a.holds_prefix(&b))
            && all_within(&self.dst, &other.dst, |a, b| a.holds_prefix(&b))
            && all_within(&self.protocol, &other.protocol, |a, b| a == b)
            && ports(&self.src_port, &other.src_port)
            && ports(&self.dst_port, &other.dst_port)
            && all_within(&self.dscp, &other.dscp, |a, b| a == b)
            && all_within(&self.vlan, &other.vlan, |a, b| a == b)
            && equal(&self.priority, &other.priority)
            && all_within(&self.cgroup, &other.cgroup, |a, b| a == b)
            && equal(&self.user, &other.user)
            && equal(&self.app, &other.app)
            && all_within(&self.core, &other.core, |a, b| a == b)
    }

    /// Whether some packet may be taken by both; yes where only a closer look could tell.
    pub(crate) fn may_meet(&self, other: &Self) -> bool {
        any_common(&self.tenant, &other.tenant, same)
            && any_common(&self.dst_port, &other.dst_port, range_and)
            && any_common(&self.src_port, &other.src_port, range_and)
            && any_common(&self.protocol, &other.protocol, same)
            && any_common(&self.dst, &other.dst, prefix_and)
            && any_common(&self.src, &other.src, prefix_and)
            && any_common(&self.dscp, &other.dscp, same)
            && any_common(&self.vlan, &other.vlan, same)
            && any_common(&self.priority, &other.priority, same)
            && any_common(&self.cgroup, &other.cgroup, same)
            && any_common(&self.user, &other.user, same)
            && any_common(&self.app, &other.app, same)
            && any_common(&self.core, &other.core, same)
    }

    /// The packets that both take, or `None` if there can be none.
    #[must_use]
    pub fn and(&self, other: &Self) -> Option<Self> {
        let both = Self {
            tenant: common(&self.tenant, &other.tenant, same)?,
            src: common(&self.src, &other.src, prefix_and)?,
            dst: common(&self.dst, &other.dst, prefix_and)?,
            protocol: common(&self.protocol, &other.protocol, same)?,
            src_port: common(&self.src_port, &other.src_port, range_and)?,
            dst_port: common(&self.dst_port, &other.dst_port, range_and)?,
            dscp: common(&self.dscp, &other.dscp, same)?,
            vlan: common(&self.vlan, &other.vlan, same)?,
            priority: common(&self.priority, &other.priority, same)?,
            cgroup: common(&self.cgroup, &other.cgroup, same)?,
            user: common(&self.user, &other.user, same)?,
            app: common(&self.app, &other.app, same)?,
            core: common(&self.core, &other.core, same)?,
        };
        both.impossible().is_none().then_some(both)
    }

    /// The reason that no packet at all can match, if there is one.
    #[must_use]
    pub fn impossible(&self) -> Option<&'static str> {
        let family = |prefixes: &[Prefix], v4: bool| {
            prefixes.is_empty() || prefixes.iter().any(|prefix| prefix.addr.is_ipv4() == v4)
        };
        let both = |v4| family(&self.src, v4) && family(&self.dst, v4);
        if !both(true) && !both(false) {
            return Some("its `src` and `dst` are of different IP versions");
        }
        let ported = |protocol: &u8| matches!(protocol, 6 | 17 | 132);
        let wants_ports = !self.src_port.is_empty() || !self.dst_port.is_empty();
        if wants_ports && !self.protocol.is_empty() && !self.protocol.iter().any(ported) {
            return Some("only TCP, UDP and SCTP have ports");
        }
        self.has_empty_range().then_some("its range of ports is empty")
    }

    /// Whether a range of ports ends before it begins.
    pub(crate) fn has_empty_range(&self) -> bool {
        let empty = |ranges: &[(u16, u16)]| !ranges.is_empty() && ranges.iter().all(|(from, to)| from > to);
        empty(&self.src_port) || empty(&self.dst_port)
    }

    /// Whether it asks for nothing but the tenant.
    #[must_use]
    pub fn only_tenant(&self) -> bool {
        Self { tenant: Vec::new(), ..self.clone() } == Self::default()
    }
}

impl Prefix {
    /// Whether all of `other` lies inside.
    #[must_use]
    pub fn holds_prefix(&self, other: &Self) -> bool {
        self.len <= other.len && self.contains(other.addr)
    }
}

/// Pairs of values up to which two matches are compared value by value.
const MOST_PAIRS: u64 = 1 << 16;

/// Whether each of `inner` lies in one of `outer`; an empty list is everything.
fn all_within<T: Copy>(outer: &[T], inner: &[T], within: impl Fn(T, T) -> bool) -> bool {
    outer.is_empty() || (!inner.is_empty() && inner.iter().all(|&b| outer.iter().any(|&a| within(a, b))))
}

/// The intersection of two lists, where an empty one is everything; `None` if they are disjoint.
fn common<T: Copy + PartialEq>(a: &[T], b: &[T], and: impl Fn(T, T) -> Option<T>) -> Option<Vec<T>> {
    if a.is_empty() || b.is_empty() {
        return Some(if a.is_empty() { b } else { a }.to_vec());
    }
    let mut both = Vec::new();
    for item in a.iter().flat_map(|&a| b.iter().map(move |&b| (a, b))).filter_map(|(a, b)| and(a, b)) {
        if !both.contains(&item) {
            both.push(item);
        }
    }
    (!both.is_empty()).then_some(both)
}

/// Whether two lists have anything in common, where an empty one is everything.
fn any_common<T: Copy>(a: &[T], b: &[T], and: impl Fn(T, T) -> Option<T>) -> bool {
    a.is_empty() || b.is_empty() || a.iter().any(|&a| b.iter().any(|&b| and(a, b).is_some()))
}

fn same<T: PartialEq>(a: T, b: T) -> Option<T> {
    (a == b).then_some(a)
}

fn range_and(a: (u16, u16), b: (u16, u16)) -> Option<(u16, u16)> {
    let (from, to) = (a.0.max(b.0), a.1.min(b.1));
    (from <= to).then_some((from, to))
}

fn prefix_and(a: Prefix, b: Prefix) -> Option<Prefix> {
    if a.holds_prefix(&b) {
        return Some(b);
    }
    b.holds_prefix(&a).then_some(a)
}
