//! Combines the inner and outer ECN fields of a packet at the end of a tunnel.
//!
//! Why: the fabric marks the outer header, the sending host or its guest the inner one. Each mark has its own control
//! loop, so its origin must stay known when one field is copied onto the other.
//! From: RFC 6040 §4.1 (encapsulation copies, "normal mode") and §4.2, Figure 4 (decapsulation), RFC 9601 (tunnels with a
//! header between the two IP headers).
//! Not here: the reaction to marks (`control`), and writing them (`ecn`).
//! Invariant: [`Crossing::of`] is Figure 4; [`Crossing::heeded`] differs only for frames that are not ECN-capable.

use crate::ecn::Ecn;

/// Both ECN fields of a packet as they arrived, and the field of the delivered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The outer header's field, which the fabric may have marked.
    pub outer: Ecn,
    /// The inner header's field as it arrived; not ECN-capable for a frame that is not IP.
    pub inner: Ecn,
    /// The inner header's field as it is delivered.
    pub delivered: Ecn,
    /// Set when no encapsulator should produce this pair of fields.
    pub alarm: Option<Alarm>,
}

/// Severity of a pair of ECN fields that no encapsulator should produce. Count it, and log it at a bounded rate only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alarm {
    /// Currently unused (`!` in Figure 4): perhaps an experiment.
    Unused,
    /// Potentially dangerous (`!!!` in Figure 4): outer headers are being rewritten.
    Dangerous,
}

impl Crossing {
    /// Combines the fields by Figure 4 of RFC 6040; none where the packet must be dropped, which is always dangerous.
    #[must_use]
    pub const fn of(inner: Ecn, outer: Ecn) -> Option<Crossing> {
        use Ecn::{Ce, Ect0, Ect1, NotEct};
        let (delivered, alarm) = match (inner, outer) {
            (NotEct, NotEct) => (NotEct, None),
            (NotEct, Ect0 | Ect1) => (NotEct, Some(Alarm::Dangerous)),
            (NotEct, Ce) => return None,
            (Ect0, NotEct | Ect0) => (Ect0, None),
            (Ect0, Ect1) | (Ect1, NotEct | Ect1) => (Ect1, None),
            (Ect1, Ect0) => (Ect1, Some(Alarm::Unused)),
            (Ce, Ect1) => (Ce, Some(Alarm::Dangerous)),
            (Ce, _) | (Ect0 | Ect1, Ce) => (Ce, None),
        };
        Some(Crossing { outer, inner, delivered, alarm })
    }

    /// Combines the fields between hosts that react to the fabric's marks themselves. There the outer field of a frame
    /// that is not ECN-capable is meant for the hosts, and the frame is delivered unchanged. RFC 6040 §4.2 drops a marked
    /// packet of this kind because the congestion would stay unknown; here the host knows it.
    #[must_use]
    pub const fn heeded(inner: Ecn, outer: Ecn) -> Crossing {
        match (inner, Self::of(inner, outer)) {
            (Ecn::NotEct, _) | (_, None) => Crossing { outer, inner, delivered: inner, alarm: None },
            (_, Some(crossing)) => crossing,
        }
    }

    /// Whether the fabric marked the packet. A packet that was marked before its encapsulation carries an outer mark from
    /// the start and counts as not marked by the fabric, since a mark of the fabric would not show.
    #[must_use]
    pub const fn marked_by_fabric(&self) -> bool {
        matches!(self.outer, Ecn::Ce) && !matches!(self.inner, Ecn::Ce)
    }

    /// Whether the sending host or its guest marked the packet before its encapsulation.
    #[must_use]
    pub const fn marked_before(&self) -> bool {
        matches!(self.inner, Ecn::Ce)
    }
}
