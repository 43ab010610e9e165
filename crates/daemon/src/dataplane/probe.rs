//! Devices that have disappeared, though no frame has failed.
//!
//! Why: a container's veth may be deleted and made anew while the tenant is silent; frames for it would find no port until one
//! of them has failed.
//! From: packet(7). A packet socket reports a deleted device once, as it goes down, and not again when it is gone.
//! Not here: opening a port again (`reopen`), the uplink's idle port (`standby`).
//! Invariant: a turn in which nothing is due costs one comparison; a device that carries frames is not asked, except the
//! uplink's.

use plimsoll_ports::Trouble;
use plimsoll_units::{Nanos, Span};

use super::Dataplane;

/// How often devices are asked whether they are still there.
const EVERY: Span = Span::secs(1);

impl Dataplane {
    /// Looks once a second for ports whose device has disappeared, and answers when to look again.
    pub(super) fn probe_ports(&mut self, now: Nanos) -> Nanos {
        if now.since(self.due.probed) >= EVERY {
            self.due.probed = now;
            if self.uplink.port.as_mut().is_some_and(|port| port.probe() == Err(Trouble::Gone)) {
                self.lose_uplink();
            }
            (0..self.tenants.lanes.len()).for_each(|index| self.probe_lane(index));
        }
        self.due.probed + EVERY
    }

    /// Takes a tenant's port out if its device has disappeared, which goes down first, or if its namespace lives only by this
    /// port, as a TAP that stays holds it open.
    fn probe_lane(&mut self, index: usize) {
        let Some(lane) = self.tenants.lanes.get_mut(index).and_then(Option::as_mut) else { return };
        let Some(port) = lane.port.as_mut() else { return };
        if port.is_left_behind() || port.is_down() && port.probe() == Err(Trouble::Gone) {
            let gone = lane.trouble(Trouble::Gone);
            self.note_lost_lane(index, gone);
        }
    }
}
