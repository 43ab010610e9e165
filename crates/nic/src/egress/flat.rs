//! A tree that is one row of bundles: packets leave in a loop of their own.
//!
//! Why: where nothing but the root decides, the walk down and up, limits and wake-ups are nothing but checks.
//! From: trees that are specialised by their shape.
//! Not here: how the root chooses (`order::grouped`), and any other tree (`egress`).
//! Invariant: what leaves is what `Nic::poll_transmit` would hand out without it.

use plimsoll_units::Nanos;

use super::Nic;
use crate::bundle::Place;
use crate::host::NextCharge;
use crate::ids::{BundleId, Tagged};
use crate::order::Seen;
use crate::stats::Transmit;
use crate::tree::{Row, Seat};

impl Nic {
    /// Appends what leaves at `now`, in a policy without limits, as long as the tree is one row of bundles. What is left is for the
    /// caller.
    #[inline]
    pub(super) fn poll_flat(&mut self, wide: bool, now: Nanos, out: &mut Vec<Transmit>) {
        while let Some(id) = self.serve_row(wide, now, out) {
            self.drop_head(id, now, out);
        }
    }

    /// Serves bundles until nothing may leave any more; returns one whose head CoDel drops.
    #[inline(never)]
    fn serve_row(&mut self, wide: bool, now: Nanos, out: &mut Vec<Transmit>) -> Option<BundleId> {
        let node = self.layout.root;
        let Self { forest, bundles, host, link, ahead, stats, layout, arrivals, .. } = self;
        let (order, children, active) = forest.flat(node)?;
        let (quantum, room) = (layout.quantum, out.capacity());
        let from = out.len();
        let mut dropped = None;
        while out.len() < room && link.pace.is_earned(now) {
            let Some(slot) = order.pick() else { break };
            let Some(id) = children.get(slot).and_then(Tagged::as_bundle) else { break };
            if wide {
                ahead.look_along(Seat { node, slot }, Row::new(order, children), bundles, host);
            }
            let bundle = &mut bundles[id];
            if bundle.seen != Seen::Nothing {
                break;
            }
            let pull = bundle.serve(host, (NextCharge::Never, quantum, *arrivals), now, out);
            if pull.is_dropped() {
                dropped = Some(id);
                break;
            }
            bundle.entries = 1;
            let idle = pull.is_last();
            if idle {
                bundle.place = Place::Idle;
            }
            if let (true, Some(left)) = (pull.overflows(), out.last()) {
                bundle.done.add(host.take_counted_of(left.queue));
            }
            link.charge(pull.charge, now);
            order.settle(slot, pull.charge.into(), !idle);
            *active -= u32::from(idle);
            if *active == 0 {
                link.emptied = now;
            }
        }
        stats.pulls += (out.len() - from) as u64;
        dropped
    }
}
