//! The flows of a tenant whose frames came last, and what their headers decide.
//!
//! Why: a tenant's frames are mostly of a few flows. Each flow is parsed, looked up and hashed once, and its next frame is compared with
//! a copy of the headers.
//! From: Open vSwitch's exact-match cache (Pfaff et al., NSDI 2015), by tenant so that no tenant's flows take another's places.
//! Not here: which frames have the same headers (`wire`), and what headers decide (`depart`).
//! Invariant: what is known holds until the policy, or what is counted, changes; memory is fixed.

use plimsoll_control::backpressure::FlowSource;
use plimsoll_ports::Received;
use plimsoll_wire::{HeaderCopy, VnetHeader, flow_tag};

use super::COMMON;
use super::bound::Bound;

/// A tenant's last few flows.
#[derive(Debug)]
pub(in super::super) struct KnownFlows {
    /// What tells most flows apart, in one cache line for all of them.
    tags: [u32; FLOWS],
    flows: [KnownFlow; FLOWS],
    /// The lane that the frames of each flow go to without more work ([`Bound::plain`]).
    plain: [Option<u32>; FLOWS],
    /// By bit: the flows with frames that are not counted yet.
    uncounted: u8,
    /// Where the next flow goes: in place of the one that came first.
    next: usize,
}

#[derive(Debug)]
struct KnownFlow {
    headers: HeaderCopy,
    vnet: Option<VnetHeader>,
    bound: Option<Bound>,
}

/// Flows that are known of a tenant. Of more flows than these some are looked up again.
const FLOWS: usize = 4;

impl KnownFlows {
    /// Room for a station's flows; the common station has none.
    pub(super) fn for_station(station: usize, knows: bool) -> Option<Box<Self>> {
        const NONE: KnownFlow = KnownFlow { headers: HeaderCopy::EMPTY, vnet: None, bound: None };
        let none = || {
            Box::new(Self {
                tags: [0; FLOWS],
                flows: [NONE; FLOWS],
                plain: [None; FLOWS],
                uncounted: 0,
                next: 0,
            })
        };
        (knows && station != COMMON as usize).then(none)
    }

    /// Forgets all flows.
    pub(super) fn forget(&mut self) {
        self.flows.iter_mut().for_each(|flow| flow.bound = None);
    }

    /// The place of the flow of a frame, if it is known.
    #[inline]
    pub(super) fn find(&self, frame: &[u8], received: &Received, from: FlowSource) -> Option<usize> {
        let tag = flow_tag(frame);
        (0..FLOWS).find(|&at| {
            self.tags[at] == tag && {
                let KnownFlow { headers, vnet, bound } = &self.flows[at];
                let comes_from = |bound: &Bound| bound.comes_from(from);
                bound.as_ref().is_some_and(comes_from) && *vnet == received.vnet && headers.is_alike(frame)
            }
        })
    }

    /// A place for the flow of a frame. What is there belongs to another flow, which is to be counted first.
    #[inline]
    pub(super) fn next(&mut self) -> usize {
        let at = self.next;
        self.next = (at + 1) % FLOWS;
        at
    }

    /// Copies the headers of a frame whose flow is at this place, and has been looked at.
    #[inline]
    pub(super) fn copy(&mut self, at: usize, frame: &[u8], received: &Received) {
        let flow = &mut self.flows[at];
        (flow.headers, flow.vnet) = (HeaderCopy::of(frame), received.vnet);
        self.tags[at] = flow_tag(frame);
        self.plain[at] = flow.bound.as_ref().and_then(Bound::plain);
    }

    /// The lane that frames of the flow at this place go to, where that is all that is to be done.
    #[inline]
    pub(super) fn plain(&self, at: usize) -> Option<u32> {
        self.plain[at]
    }

    /// What the headers of the flow at this place decide.
    #[inline]
    pub(super) fn bound(&mut self, at: usize) -> &mut Option<Bound> {
        &mut self.flows[at].bound
    }

    /// Notes that the flow at this place has frames that are not counted yet.
    #[inline]
    pub(super) fn note_uncounted(&mut self, at: usize) {
        self.uncounted |= 1 << at;
    }

    /// Whether some flow has frames that are not counted yet.
    #[inline]
    pub(super) fn is_uncounted(&self) -> bool {
        self.uncounted != 0
    }

    /// The flows with frames that are not counted yet, which the caller counts.
    #[inline]
    pub(super) fn take_uncounted(&mut self) -> impl Iterator<Item = &mut Option<Bound>> {
        let uncounted = core::mem::take(&mut self.uncounted);
        let flows = self.flows.iter_mut().enumerate();
        flows.filter(move |(at, _)| uncounted & 1 << at != 0).map(|(_, flow)| &mut flow.bound)
    }
}
