//! What becomes of a packet's ECN field at the end of a tunnel.
//!
//! Why: a mark on the outer header is the fabric's, one on the inner header somebody's at the sending host; each has its
//! own control loop, and who made a mark must not be forgotten when one is copied onto the other.
//! From: RFC 6040 §4.1 (encapsulation copies, "normal mode") and §4.2, Figure 4 (decapsulation), RFC 9601 (the same for
//! tunnels with a header between the two).
//! Not here: what follows from marks (`control`), and writing them (`ecn`).
//! Invariant: [`Crossing::of`] is Figure 4; [`Crossing::heeded`] is it but for frames that are not ECN-capable.

use crate::ecn::Ecn;

/// Both ECN fields of a packet as they arrived, and the one that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The outer header's: the fabric's word.
    pub outer: Ecn,
    /// The inner header's; not capable for what is not IP.
    pub inner: Ecn,
    /// The inner header's from now on.
    pub delivered: Ecn,
    /// Whether the two should never have come together.
    pub alarm: Option<Alarm>,
}

/// How bad it is that two ECN fields came together which no encapsulator leaves behind. Count it; who logs it must bound
/// how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alarm {
    /// Unused today (`!` in Figure 4): perhaps somebody experiments.
    Unused,
    /// Always potentially dangerous (`!!!`): somebody rewrites outer headers.
    Dangerous,
}

impl Crossing {
    /// Figure 4 of RFC 6040; none where the packet must be dropped (which is always dangerous, too).
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

    /// The same between hosts that heed the fabric's marks themselves: there the outer field is theirs where the inner one
    /// is not capable, so that it says nothing to the tenant, and no mark is lost with it. RFC 6040 §4.2 drops such packets
    /// because nobody else would learn of the congestion.
    #[must_use]
    pub const fn heeded(inner: Ecn, outer: Ecn) -> Crossing {
        match (inner, Self::of(inner, outer)) {
            (Ecn::NotEct, _) | (_, None) => Crossing { outer, inner, delivered: inner, alarm: None },
            (_, Some(crossing)) => crossing,
        }
    }

    /// Whether the fabric marked it. What had a mark when it was encapsulated carries one outside from the start, and
    /// counts as not marked by the fabric: nobody can tell.
    #[must_use]
    pub const fn marked_by_fabric(&self) -> bool {
        matches!(self.outer, Ecn::Ce) && !matches!(self.inner, Ecn::Ce)
    }

    /// Whether it had a mark before it was encapsulated: the sending host's, or its guest's.
    #[must_use]
    pub const fn marked_before(&self) -> bool {
        matches!(self.inner, Ecn::Ce)
    }
}
