//! The mode `window` in virtual time: smaller receive windows in the acknowledgements of flows that are slowed down.
//!
//! Why: which windows, and how small they are, must be as live; packets are models.
//! From: `control::backpressure::SmallWindows`; what is read and written of a packet as the daemon does it (`press/window`).
//! Not here: which flows (`press`), and when a packet passes (`world/pressing`).
//! Invariant: of a packet only its acknowledgement's window is changed, and it never grows.

use plimsoll_control::backpressure::{ControlSegment, Place, Slowed, SmallWindows, WindowSegment};
use plimsoll_units::Nanos;

use super::{Counted, Key};
use crate::packet::{Body, Packet};
use crate::said::{Header, Said, WINDOW_SCALE};
use crate::tcp;

/// A flow as `control` names it.
pub(super) fn slowed(counted: &Counted) -> Slowed<Key> {
    let Counted { key, tenant, inward, from, .. } = *counted;
    Slowed { flow: key, tenant, inward, from }
}

/// The flow on which a flow's acknowledgements travel.
pub(super) fn back(key: Key) -> Key {
    Key { back: !key.back, ..key }
}

/// Handles a packet on its way from one place to another. A segment whose acknowledgement is no news has none in the model, and so
/// no window.
pub(super) fn pass(
    windows: &mut SmallWindows<Key>,
    places: [Place; 2],
    key: Key,
    packet: &mut Packet,
    now: Nanos,
) {
    let Body::Tcp(tcp) = &mut packet.body else { return };
    let smaller = windows.pass(places, [key, back(key)], &read(tcp), now);
    if let (Some(window), Some(ack)) = (smaller, &mut tcp.ack) {
        *ack = ack.with_smaller_window(u32::from(window) << WINDOW_SCALE);
    }
}

fn read(tcp: &tcp::Packet) -> WindowSegment {
    let Header { syn, ack, sequence, acknowledged, window, .. } = Said::default().header(tcp);
    let control = match (syn, ack) {
        (false, _) => None,
        (true, false) => Some(ControlSegment::Syn(sequence, Some(WINDOW_SCALE))),
        (true, true) => Some(ControlSegment::SynAck(acknowledged, Some(WINDOW_SCALE))),
    };
    WindowSegment { control, acknowledges: !syn && tcp.ack.is_some(), window }
}
