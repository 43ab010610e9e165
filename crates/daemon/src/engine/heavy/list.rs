//! The heavy hitters of the last second, with what each has sent.
//!
//! Why: a report names a flow once in a while; an operator, and the choice of flows, ask which ones are heavy now.
//! From: MIMIC §IV-D: a flow is reported again once it is counted again.
//! Not here: counting (`queues`), and what is done about a flow (`press`).
//! Invariant: in the order of flows, each once; at most [`MOST`], of which each was reported within [`QUIET`].

use plimsoll_control::backpressure::FlowSource;
use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{Nanos, Span};

use super::Counted;

/// Most flows listed, and most reports read at once.
pub(in super::super) const MOST: usize = 256;

/// A flow that has not been reported for this long is heavy no more: it is reported each time that it is counted.
const QUIET: Span = Span::secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) of: Counted,
    pub(super) sent: Tally,
    pub(super) since: Nanos,
    last: Nanos,
}

#[derive(Debug)]
pub(super) struct List(Vec<Listed>);

impl List {
    /// Bytes that [`List::new`] allocates.
    pub(super) const BYTES: usize = MOST * size_of::<Listed>();

    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(MOST))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Listed> {
        self.0.iter()
    }

    /// Takes a report. Answers whether the flow was not listed before; one for which there is no room is reported again later.
    pub(super) fn take(&mut self, &Heavy { key, sent }: &Heavy<Counted>, now: Nanos) -> bool {
        match self.place(&key) {
            Ok(at) => (self.0[at].sent, self.0[at].last) = (sent, now),
            Err(_) if self.0.len() >= MOST => {}
            Err(at) => {
                self.0.insert(at, Listed { of: key, sent, since: now, last: now });
                return true;
            }
        }
        false
    }

    /// Forgets flows that are heavy no more, and those for which `stays` is false; calls `gone` for each.
    pub(super) fn forget(
        &mut self,
        now: Nanos,
        stays: impl Fn(&Counted) -> bool,
        mut gone: impl FnMut(&Counted),
    ) {
        self.0.retain(|listed| {
            let stays = now.since(listed.last) < QUIET && stays(&listed.of);
            if !stays {
                gone(&listed.of);
            }
            stays
        });
    }

    pub(super) fn get(&self, flow: &Counted) -> Option<&Listed> {
        self.place(flow).ok().map(|at| &self.0[at])
    }

    /// Whether a tenant forwards this flow, which it sends: at least three quarters of it come for the tenant from one place. A few
    /// packets that copy its headers, which anyone can send, do not count as that.
    pub(super) fn is_forwarded(&self, flow: &Counted) -> bool {
        if flow.inward {
            return false;
        }
        let Some(sent) = self.get(flow).map(|listed| listed.sent.packets) else { return false };
        let unsaid = |of: Counted| Counted { from: FlowSource::Here, untouched: false, sibling: 0, ..of };
        let least = Counted { inward: true, ..unsaid(*flow) };
        let first = self.place(&least).unwrap_or_else(|at| at);
        let same = self.0[first..].iter().take_while(|listed| unsaid(listed.of) == least);
        same.map(|listed| listed.sent.packets).max().is_some_and(|came| came >= sent - sent / 4)
    }

    fn place(&self, flow: &Counted) -> Result<usize, usize> {
        self.0.binary_search_by(|listed| listed.of.cmp(flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_control::HostId;
    use plimsoll_control::backpressure::SenderMac;

    const ELSEWHERE: FlowSource = FlowSource::Elsewhere(SenderMac([0; 6]));

    fn heavy(tenant: u32, inward: bool, from: FlowSource, packets: u64) -> Heavy<Counted> {
        let key = Counted { tenant, inward, from, ..Counted::default() };
        Heavy { key, sent: Tally { packets, bytes: 100 * packets } }
    }

    #[test]
    fn what_comes_and_goes_under_one_name_is_forwarded() {
        let mut list = List::new();
        let out = heavy(3, false, FlowSource::Here, 1_000);
        let now = Nanos::ZERO;
        let others = [heavy(2, true, FlowSource::Here, 1_000), heavy(4, true, ELSEWHERE, 1_000)];
        for listed in [out].iter().chain(&others) {
            assert!(list.take(listed, now) && !list.take(listed, now));
        }
        assert!(!list.is_forwarded(&out.key), "other tenants'");
        let come = |packets| heavy(3, true, FlowSource::Host(HostId(7), SenderMac::default()), packets);
        list.take(&come(749), now);
        list.take(&heavy(3, true, ELSEWHERE, 700), now);
        assert!(!list.is_forwarded(&out.key), "packets that copy its headers do not hide it");
        list.take(&come(750), now);
        assert!(list.is_forwarded(&out.key) && !list.is_forwarded(&come(0).key));
        assert_eq!(list.get(&come(0).key).map(|listed| listed.of), Some(come(0).key));
    }

    #[test]
    fn a_quiet_flow_is_forgotten() {
        let mut list = List::new();
        list.take(&heavy(1, true, FlowSource::Here, 1), Nanos::ZERO);
        list.take(&heavy(2, true, FlowSource::Here, 1), Nanos::new(1));
        let mut gone = Vec::new();
        list.forget(Nanos::ZERO + QUIET, |_| true, |flow| gone.push(flow.tenant));
        assert_eq!((gone, list.len()), (vec![1], 1));
    }
}
