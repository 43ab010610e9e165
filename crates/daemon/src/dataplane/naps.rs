//! What a turn says of naps: what waits for a time, and whether only tenants move frames that are held to their `max`.
//!
//! Why: a nap behind a `max` may be longer, as long as it makes no other tenant's frames wait.
//! Not here: how long a nap is (`coalesce`), and what a turn does (`dataplane`).
//! Invariant: a frame of a tenant that was not held to its `max` in the last second is seen in the turn in which it moves.

use plimsoll_policy::Grain;
use plimsoll_units::{Nanos, Span};

use super::Dataplane;

/// For how long a tenant whose packets were held to its `max` counts as held, and how long no other tenant must have moved a frame until
/// naps may be longer: such a tenant's next frame waits for the end of one.
pub(crate) const ALONE: Span = Span::secs(1);

impl Dataplane {
    /// When the next packet is due, and whether packets wait for tenants' `max` alone.
    pub(super) fn next_due(&self) -> (Option<Nanos>, bool) {
        let nic = &self.scheduler.nic;
        let own = if self.uplink.blocked { None } else { nic.poll_timeout() };
        let others = [self.due.wake_at, self.inward.due()].into_iter().flatten().min();
        let limited =
            own.is_some() && others.is_none() && self.threads.crossing.is_none() && !nic.waits_for_link();
        (own.into_iter().chain(others).min(), limited)
    }

    /// Whether frames have moved in this turn of a tenant that is not held to its `max`. `limited`: what waits now waits for that. Frames
    /// for all tenants, as when a host asks for an address, are of none.
    pub(super) fn have_moved_unlimited(&mut self, limited: bool, now: Nanos) -> bool {
        let Self { buffers, tenants, scheduler, .. } = self;
        let mut unlimited = false;
        for at in buffers.moved.drain(..) {
            let Some(lane) = tenants.lanes.get_mut(at).and_then(|lane| lane.as_mut()) else { continue };
            let held = lane.tenant.is_some_and(|tenant| scheduler.nic.tenant_counters(tenant).held > 0);
            if limited && held {
                lane.held_at = Some(now);
            }
            unlimited |= lane.held_at.is_none_or(|at| now.since(at) >= ALONE);
        }
        unlimited
    }

    /// Notes that frames of the tenant in this lane have moved, if the length of naps depends on it.
    #[inline]
    pub(super) fn note_moved(&mut self, lane: usize) {
        let Grain { span, behind_max, .. } = self.policy.grain;
        if behind_max > span && self.buffers.moved.last() != Some(&lane) {
            self.buffers.moved.push(lane);
        }
    }
}
