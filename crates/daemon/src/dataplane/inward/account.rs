//! Accounting: the end of a visit. Buffers are freed, and what is noted of delivered frames is noted for all of them at once.
//!
//! Why: counters and histograms are in other memory than frames and ports; each is touched once in a visit, or in an epoch.
//! From: PicNIC §5.2: a tenant is charged for the time that its frames took.
//! Not here: that time (`share`), and counters of losses, which are counted where frames are lost.
//! Invariant: each frame of a batch is accounted for once.

use plimsoll_units::Nanos;

use super::super::Dataplane;
use super::super::pool::Pool;
use super::take::Visit;
use super::{Inward, Waits};

impl Inward {
    /// Notes when a batch's frames were fetched, and how long they had been in the kernel, and frees their buffers.
    pub(super) fn account(&mut self, station: u32, visit: &mut Visit, pool: &mut Pool<Waits>) {
        for at in 0..visit.count {
            if !visit.is_in_pool(at) {
                let arrival = visit.taken[at].0;
                let waited = self.let_go(station, pool, &arrival);
                visit.note((arrival.at, waited));
            }
        }
        let before = &mut self.before[station as usize];
        visit.delivered().iter().for_each(|&(_, waited)| before.note(waited));
    }
}

impl Dataplane {
    /// Notes the delays of the frames of a station's last visit: they end when the last of them was delivered. Frames that were fetched
    /// together are noted together.
    pub(super) fn note_delays(&mut self, station: u32, now: Nanos) {
        let lane = station.checked_sub(1).and_then(|lane| self.tenants.lane(lane));
        let (Some(lane), Some(visit)) = (lane, &self.inward.visit) else { return };
        for together in visit.delivered().chunk_by(|one, next| one == next) {
            let &[(at, waited), ..] = together else { continue };
            lane.recent.delivered(waited, now.since(at), together.len() as u32, &lane.halves);
        }
    }

    /// Counts the frames of flows that are known which are not counted yet: once for all frames of a flow, as each count costs a
    /// look-up.
    pub(in super::super) fn count_known(&mut self) {
        let mut stations = core::mem::take(&mut self.inward.uncounted);
        for station in stations.drain(..) {
            let Some(mut known) = self.inward.known[station as usize].take() else { continue };
            known.take_uncounted().flatten().for_each(|bound| self.count_delivered(bound));
            self.inward.known[station as usize] = Some(known);
        }
        self.inward.uncounted = stations;
    }
}
