//! Looking up: the frames of a batch are compared with the headers of their tenant's last flows.
//!
//! Why: what the headers of a known flow decide is not computed again. Comparing all frames of a batch before the first one is delivered
//! keeps the copies of headers at hand, and touches no port.
//! From: Open vSwitch's exact-match cache (Pfaff et al., NSDI 2015).
//! Not here: what is kept of a flow (`known`), what headers decide (`bound`), and frames of other hosts: each is unwrapped, looked up and
//! delivered before the next one, as it may be joined with that (`fleet`).
//! Invariant: senders are learned in the order of frames. The look ends at a frame that is not known, as noting its flow may take the place
//! of another one.

use plimsoll_control::backpressure::{FlowSource, SenderMac};
use plimsoll_ports::Received;
use plimsoll_units::Nanos;

use super::super::Dataplane;
use super::super::crossing::Via;
use super::super::pool::Pool;
use super::known::KnownFlows;
use super::take::Visit;
use super::{Waits, source_of};

/// Where frames come from that no other host of a fleet has sent.
pub(super) const FROM_OUTSIDE: FlowSource = FlowSource::Elsewhere(SenderMac([0; 6]));

impl Dataplane {
    /// Finds the flows of a batch's frames, beginning with the one at `from`; answers the place of the first one that is not known, or
    /// came another way.
    pub(super) fn look_up(
        &mut self,
        station: u32,
        visit: &mut Visit,
        (pool, known): (&Pool<Waits>, &KnownFlows),
        from: usize,
        now: Nanos,
    ) -> usize {
        let via = if visit.is_in_pool(from) { Via::Uplink } else { visit.waits(pool, from).via };
        self.inward.via = via;
        for at in from..visit.count {
            if visit.is_in_pool(at) || self.inward.lane_of(station, &visit.taken[at].0).is_none() {
                return at;
            }
            let (frame, waits) = (visit.frame(pool, at), visit.waits(pool, at));
            if waits.via != via {
                return at;
            }
            let received = Received { len: frame.len(), vnet: waits.vnet, at: None, waited: None };
            let Some(flow) = known.find(frame, &received, FROM_OUTSIDE) else { return at };
            visit.flows[at] = flow as u8;
            self.learn_outside(source_of(frame), now);
        }
        visit.count
    }
}
