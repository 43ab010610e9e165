//! The uplink's port that is not active: what it brings is dropped.
//!
//! Why: tenants would get each broadcast twice, and the port's device may disappear without a frame that fails.
//! From: Linux's active-backup bonding.
//! Not here: which port is idle (`standby`), and its log lines (`carriers`).
//! Invariant: each frame is counted once: as a loss, or under the event that the active port would count it as.

use plimsoll_ports::{Port, Trouble};
use plimsoll_units::Nanos;

use super::super::drops::{Event, Loss};
use super::super::fleet::Fleet;
use super::super::inward::is_for_the_host;
use super::super::lane::sum;
use super::super::{BATCH, Dataplane};
use super::LOOK;

impl Dataplane {
    /// Drops frames that wait at the idle port, at most a batch; answers whether there may be more.
    pub(super) fn drop_idle(&mut self) -> bool {
        let uplink = &mut self.uplink;
        let Some(standby) = &mut uplink.standby else { return false };
        let Some(port) = &mut standby.idle else { return false };
        if !standby.ready && !port.must_be_asked() {
            return false;
        }
        for _ in 0..BATCH {
            match port.receive(&mut self.buffers.landing) {
                Ok(Some(received)) => {
                    let frame = &self.buffers.landing[..received.len];
                    match passed_by(port, self.fleet.as_deref(), frame) {
                        Some(event) => uplink.tally.event(event),
                        None => uplink.tally.lost(Loss::InactivePort),
                    }
                }
                Ok(None) | Err(Trouble::Down) => {
                    standby.ready = false;
                    return false;
                }
                Err(Trouble::Gone) => {
                    self.lose_idle();
                    return false;
                }
            }
        }
        true
    }

    /// Looks whether the idle port's device is still there; [`Dataplane::probe_ports`] does for all others.
    pub(super) fn probe_idle(&mut self, now: Nanos) {
        let Some(standby) = &mut self.uplink.standby else { return };
        if now.since(standby.probed) < LOOK {
            return;
        }
        standby.probed = now;
        if standby.idle.as_mut().is_some_and(|port| port.probe() == Err(Trouble::Gone)) {
            self.lose_idle();
        }
    }

    /// Handles the loss of the idle port.
    fn lose_idle(&mut self) {
        let Some(standby) = &mut self.uplink.standby else { return };
        let Some(mut port) = standby.idle.take() else { return };
        // Frames of its ring that can no longer leave are counted by this; their senders are not known any more.
        let _ = port.flush();
        self.uplink.past = sum(&self.uplink.past, &port.counters());
        self.uplink.tally.event(Event::PortLost);
        let whose = standby.active.other().whose();
        self.note_lost(whose, None, port);
    }
}

/// What a frame is counted as that is no loss, as this host's kernel takes it from the same device; the active port would
/// count it alike.
fn passed_by(port: &Port, fleet: Option<&Fleet>, frame: &[u8]) -> Option<Event> {
    match fleet {
        Some(fleet) => fleet.is_foreign(frame).then_some(Event::NotOverlay),
        None => is_for_the_host(port, frame).then_some(Event::ForTheHost),
    }
}
