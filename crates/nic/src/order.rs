//! Scheduling algorithms of tree nodes: which child of a node goes next.
//!
//! Why: one enum, so that the packet path has no dynamic dispatch.
//! From: Loom §4.1; each algorithm's own source stands in its file.
//! Not here: the tree that ties nodes together (`tree`), and time other than in guarantees and strict rates.
//! Invariant: an order holds exactly the active children of its node.

pub(crate) mod bundles;
mod child;
pub(crate) mod drr;
pub(crate) mod exact;
pub(crate) mod grouped;
pub(crate) mod guarantee;
mod heaps;
mod jump_pointers;
pub(crate) mod ranked;
pub(crate) mod rate_share;
mod rows;
mod virtual_time;

use plimsoll_policy::{Form, NodeKind};
use plimsoll_queues::Bits;
use plimsoll_units::{BitRate, Nanos};

use crate::ids::{BundleId, SlotId};
use bundles::Bundles;
use drr::Rounds;
use exact::Exact;
use grouped::Grouped;
use jump_pointers::JumpPointers;
use ranked::{Head, Ranked};
use rate_share::RateShare;
use rows::Rows;

/// A node's algorithm with its state.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Grouped(Box<Grouped>),
    Exact(Box<Exact>),
    /// Strict priority of up to 64 children: a bit for each active one.
    Priority(u64),
    /// Strict priority of more.
    Priorities(Box<Bits>),
    /// A class with one bundle, or none yet: nothing to decide.
    One,
    Bundles(Box<Bundles>),
    Drr(Box<Rounds>),
    Ranked(Box<Ranked>),
    RateShare(Box<RateShare>),
}

/// A bundle that enters or is served: the part of it that orders look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entrant {
    pub(crate) bundle: BundleId,
    /// Flow queues of the bundle that hold packets.
    pub(crate) flows: u32,
    pub(crate) head: Head,
}

/// The part of a bundle that orders look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    Nothing,
    /// How many flow queues hold packets.
    Flows,
    /// Its head packet as well.
    Head,
}

/// How a child comes into an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coming {
    /// Whether it comes from a limit, or from waiting for its own rates: then it keeps its earlier rank.
    pub(crate) returning: bool,
    /// The moment since which it could have come.
    pub(crate) since: Nanos,
    pub(crate) now: Nanos,
}

impl Entrant {
    /// A class's only flow queue, or a node: no order that looks at packets is above.
    pub(crate) const UNSEEN: Self =
        Self { bundle: BundleId::NONE, flows: 0, head: Head { arrival: 0, deadline: 0 } };
}

impl Order {
    /// A fair order for children of these weights.
    pub(crate) fn fair(weights: &[u32], largest: u64) -> Self {
        if weights.len() <= exact::MOST_CHILDREN {
            Self::Exact(Box::new(Exact::new(weights, largest)))
        } else {
            Self::Grouped(Box::new(Grouped::new(weights, largest)))
        }
    }

    /// Strict priority of so many children.
    pub(crate) fn priority(children: usize) -> Self {
        match children {
            0..=64 => Self::Priority(0),
            _ => Self::Priorities(Box::new(Bits::new(children))),
        }
    }

    /// Whether nothing changes in it when a child that stays active is served.
    pub(crate) fn heeds_only_who_leaves(&self) -> bool {
        matches!(self, Self::Priority(_) | Self::Priorities(_))
    }

    /// Deficit round robin for children of these weights.
    pub(crate) fn rounds(weights: &[u32], largest: u64) -> Self {
        Self::Drr(Box::new(Rounds::new(weights, largest)))
    }

    #[inline(always)]
    pub(crate) fn insert(&mut self, slot: SlotId, entrant: &Entrant, coming: &Coming) {
        match self {
            Self::Bundles(order) => order.insert(slot, entrant.head, coming.returning),
            Self::Priority(children) => *children |= 1 << slot.0,
            Self::Exact(order) => order.insert(slot, coming.returning),
            _ => self.insert_into_others(slot, entrant, coming),
        }
    }

    /// Orders that are not inlined into the walk up a tree.
    #[inline(never)]
    fn insert_into_others(&mut self, slot: SlotId, entrant: &Entrant, coming: &Coming) {
        match self {
            Self::One | Self::Bundles(_) | Self::Priority(_) | Self::Exact(_) => {}
            Self::Priorities(children) => children.insert(slot.0 as usize),
            Self::Grouped(order) => order.insert(slot, coming.returning),
            Self::Drr(order) => order.insert(slot),
            Self::Ranked(order) => order.set(entrant.bundle, entrant.head),
            Self::RateShare(order) => order.insert(slot, coming),
        }
    }

    /// The child that goes next. Three orders are told apart by comparing; with more the compiler jumps through a table, to where
    /// no processor can predict.
    #[inline(always)]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<SlotId> {
        match self {
            Self::Grouped(order) => order.pick(),
            Self::Exact(order) => order.pick(),
            Self::Bundles(order) => order.pick(),
            _ => self.pick_of_others(now),
        }
    }

    /// Orders that are not inlined into the walk down a tree: it would have too few registers left.
    #[inline(never)]
    fn pick_of_others(&mut self, now: Nanos) -> Option<SlotId> {
        match self {
            Self::Grouped(_) | Self::Exact(_) | Self::Bundles(_) => None,
            Self::Priority(children) => first_of(*children),
            Self::Priorities(children) => children.first().map(|slot| SlotId(slot as u32)),
            Self::One => Some(SlotId(0)),
            Self::Drr(order) => order.front(),
            Self::Ranked(order) => order.pick(),
            Self::RateShare(order) => order.pick(now),
        }
    }

    /// The first child under strict priority; `None` under another order.
    #[inline(always)]
    pub(crate) fn foremost(&self) -> Option<SlotId> {
        if let Self::Priority(children) = self { first_of(*children) } else { None }
    }

    /// The child `slot` was picked, and below it the bundle `entrant`. It sent `len` bytes that this order accounts for (0 when it
    /// was parked, or served under its guarantee). `stays` says whether the child is still active, and `fate` what became of the
    /// bundle that was served.
    #[inline(always)]
    pub(crate) fn settle(&mut self, slot: SlotId, entrant: &Entrant, len: u64, fate: Fate, stays: bool) {
        match self {
            Self::Grouped(order) => order.settle(slot, len, stays),
            Self::Bundles(order) => {
                let next = (fate == Fate::Remains).then_some(entrant.head);
                order.settle(slot, len, entrant.flows, next);
            }
            Self::Exact(order) => {
                if len > 0 {
                    order.charge(slot, len);
                }
                if !stays {
                    order.remove(slot);
                }
            }
            _ => self.settle_others(slot, entrant, len, fate, stays),
        }
    }

    /// Orders that are not inlined into the walk up a tree.
    #[inline(never)]
    fn settle_others(&mut self, slot: SlotId, entrant: &Entrant, len: u64, fate: Fate, stays: bool) {
        match self {
            Self::One | Self::Grouped(_) | Self::Exact(_) | Self::Bundles(_) => {}
            Self::Priority(children) => *children &= !(u64::from(!stays) << slot.0),
            Self::Priorities(children) => {
                if !stays {
                    children.remove(slot.0 as usize);
                }
            }
            Self::Drr(order) => order.settle(slot, len, fate == Fate::Idle, stays),
            Self::Ranked(order) => {
                if fate == Fate::Remains {
                    order.set(entrant.bundle, entrant.head);
                } else {
                    order.remove(entrant.bundle);
                }
            }
            Self::RateShare(order) => order.settle(slot, len, stays),
        }
    }

    pub(crate) fn set_weight(&mut self, slot: SlotId, weight: u32) {
        match self {
            Self::Exact(order) => order.set_weight(slot, weight),
            Self::Grouped(order) => order.set_weight(slot, weight),
            Self::Drr(order) => order.set_weight(slot, weight),
            Self::One
            | Self::Bundles(_)
            | Self::Priority(_)
            | Self::Priorities(_)
            | Self::Ranked(_)
            | Self::RateShare(_) => {}
        }
    }

    pub(crate) fn set_rate(&mut self, slot: SlotId, rate: BitRate, now: Nanos) {
        if let Self::RateShare(order) = self {
            order.set_rate(slot, rate, now);
        }
    }

    /// The rank that a packet of the child `slot` would get now.
    pub(crate) fn rank(&self, slot: SlotId) -> u64 {
        match self {
            Self::One | Self::Bundles(_) => 0,
            Self::Priority(_) | Self::Priorities(_) => slot.0.into(),
            Self::Exact(order) => order.rank(slot),
            Self::Grouped(order) => order.rank(slot),
            Self::Drr(order) => u64::try_from(order.deficit(slot)).unwrap_or(0),
            Self::Ranked(order) => order.first_rank(),
            Self::RateShare(order) => order.rank(slot),
        }
    }
}

/// The first child whose bit is set.
#[inline(always)]
fn first_of(children: u64) -> Option<SlotId> {
    (children != 0).then(|| SlotId(children.trailing_zeros()))
}

/// Bytes that an order keeps for each child.
pub(crate) fn place_bytes(kind: NodeKind, children: usize) -> usize {
    const RANKED: usize = size_of::<(u64, u32)>() + size_of::<u32>(); // an entry of a heap, and where it is
    match kind {
        NodeKind::Wfq if children > exact::MOST_CHILDREN => Rows::CHILD_BYTES + size_of::<u32>(),
        NodeKind::RateShare(_) => Rows::CHILD_BYTES + size_of::<u64>(),
        NodeKind::Drr => Rounds::ENTRY_BYTES,
        NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf | NodeKind::Program(_) => {
            RANKED + size_of::<SlotId>()
        }
        NodeKind::Wfq | NodeKind::Priority | NodeKind::Class(_) => 0, // none, or in the fixed bytes
    }
}

/// Bytes that an order keeps besides; a grouped one with all children in one group.
pub(crate) fn fixed_bytes(kind: NodeKind, children: usize) -> usize {
    match kind {
        NodeKind::Wfq if children > exact::MOST_CHILDREN => size_of::<Grouped>() + Rows::GROUP_BYTES,
        NodeKind::Wfq => size_of::<Exact>(),
        NodeKind::RateShare(Form::Grouped) => {
            size_of::<RateShare>() + Rows::GROUP_BYTES + JumpPointers::bytes(children)
        }
        NodeKind::RateShare(Form::Exact) => size_of::<RateShare>(),
        NodeKind::Drr => size_of::<Rounds>(),
        NodeKind::Fifo | NodeKind::Lstf | NodeKind::Edf | NodeKind::Program(_) => size_of::<Ranked>(),
        NodeKind::Priority if children <= 64 => 0,
        NodeKind::Priority => size_of::<Bits>() + children.div_ceil(64) * size_of::<u64>(),
        NodeKind::Class(_) => 0,
    }
}

/// What became of a bundle that [`Forest::pick`](crate::tree::Forest::pick) found, or of a node on the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays in its tree.
    Remains,
    /// It leaves with its rank, to wait for a limit or for its own rates.
    Waits,
    /// It leaves because it holds no packets.
    Idle,
}

impl Fate {
    #[inline]
    pub(crate) fn of(remains: bool, idle: bool) -> Self {
        if remains {
            Self::Remains
        } else if idle {
            Self::Idle
        } else {
            Self::Waits
        }
    }
}
