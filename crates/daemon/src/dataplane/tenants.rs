//! The tenants' lanes, and whose turn it is.
//!
//! Why: stages find a tenant by its lane's number, which stays the same over reloads.
//! Not here: what a lane holds (`lane`), whose address is whose (`mac_table`).
//! Invariant: a lane that is taken out for sending is put back before the next frame.

use super::binding::Bindings;
use super::lane::{Lane, LaneSpec};

/// Every tenant's lane.
#[derive(Debug)]
pub(crate) struct Tenants {
    /// A lane's place is its number; one whose tenant is gone leaves its place empty. In a box: while a tenant's frame is sent, its lane is
    /// taken out, so that other lanes' ports can be written.
    pub(crate) lanes: Vec<Option<Box<Lane>>>,
    /// Which addresses they may send from.
    pub(crate) bindings: Bindings,
    /// The lane that is read first in this turn.
    first: usize,
    /// Whether any of them has a program.
    pub(crate) has_programs: bool,
    /// Whether they are read at all.
    pub(crate) reading: bool,
}

impl Tenants {
    /// A lane for each.
    pub(crate) fn new(specs: Vec<LaneSpec>) -> Self {
        Self {
            has_programs: specs.iter().any(|spec| spec.program.is_some()),
            lanes: specs.into_iter().map(|spec| Some(Box::new(Lane::new(spec)))).collect(),
            bindings: Bindings::default(),
            first: 0,
            reading: true,
        }
    }

    /// The lane with this number.
    #[inline]
    pub(crate) fn lane(&mut self, number: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(number as usize)?.as_deref_mut()
    }

    /// Takes a lane out, so that it can be read while others are written; [`Tenants::put_back`] is to follow.
    #[inline]
    pub(crate) fn take(&mut self, number: u32) -> Option<Box<Lane>> {
        self.lanes.get_mut(number as usize)?.take()
    }

    /// Puts a lane back that was taken out.
    #[inline]
    pub(crate) fn put_back(&mut self, number: u32, lane: Box<Lane>) {
        self.lanes[number as usize] = Some(lane);
    }

    /// The number of the lane that is read first in this turn.
    pub(crate) fn first_number(&self) -> usize {
        self.first
    }

    /// The lane that is read first in this turn.
    pub(crate) fn first(&mut self) -> Option<&mut Lane> {
        self.lanes.get_mut(self.first)?.as_deref_mut()
    }

    /// The lanes that there are.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut().flatten().map(|lane| &mut **lane)
    }

    /// All lanes' numbers, beginning with another one each time.
    pub(crate) fn in_turn(&mut self) -> impl Iterator<Item = usize> + use<> {
        let count = self.lanes.len();
        self.first = if count == 0 { 0 } else { (self.first + 1) % count };
        let first = self.first;
        (0..count).map(move |step| (first + step) % count)
    }
}
