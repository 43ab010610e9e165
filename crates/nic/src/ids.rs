//! Indices of the engine's tables: a type for each table, and one type whose values say which table they are for.
//!
//! Why: a bundle's number must not reach the table of limits; the compiler sees to that at no cost.
//! Not here: the policy's own indices (`plimsoll_policy`), which index tables here as well.
//! Invariant: an index is below 2^29, or `NONE`.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, Index, IndexMut};

use plimsoll_policy::{LimitId, NodeId, TenantId};
use prefetch_index::prefetch_index;

/// Names a flow queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// An index of a table.
pub(crate) trait Id: Copy {
    /// The number of the row.
    fn number(self) -> u32;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident,)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) u32);

        impl $name {
            /// Stands for "none", where an `Option` would take twice the memory.
            #[allow(dead_code, reason = "not every kind of index can be missing")]
            pub(crate) const NONE: Self = Self(u32::MAX);
        }

        impl Id for $name {
            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }

        impl From<u32> for $name {
            #[inline]
            fn from(number: u32) -> Self {
                Self(number)
            }
        }
    )+};
}

ids! {
    /// The record of a flow queue that may hold descriptors.
    RecordId,
    /// A bundle of flow queues.
    BundleId,
    /// A node of the main tree, or of a limit's tree.
    TreeId,
    /// A gate: a tree node that a limit opens and closes.
    GateId,
    /// A node whose rates hold in real time, so that it may have to be woken.
    TimerId,
    /// A child of a tree node: its slot in the node's own tables.
    SlotId,
    /// The account that a flow queue is charged to. Tenants' come first, then those of classes with a cap.
    OwnerId,
}

impl OwnerId {
    /// The tenant that this owner is, unless it is a class with a cap.
    #[inline]
    pub(crate) fn tenant(self) -> TenantId {
        TenantId(self.0)
    }
}

macro_rules! also_ids {
    ($($name:ident),+) => {$(
        impl Id for $name {
            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }
    )+};
}

also_ids!(QueueId, NodeId, LimitId, TenantId);

/// Rows that only an index of their own kind reaches.
#[derive(Clone, Debug)]
pub(crate) struct Table<I, T> {
    rows: Vec<T>,
    index: PhantomData<I>,
}

impl<I: Id, T> Table<I, T> {
    #[inline]
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.rows.get(id.number() as usize)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.rows.get_mut(id.number() as usize)
    }

    pub(crate) fn has(&self, id: I) -> bool {
        (id.number() as usize) < self.rows.len()
    }

    /// The index that the next row will have.
    ///
    /// # Panics
    /// When there are 2^29 rows.
    pub(crate) fn next_id(&self) -> I
    where
        I: From<u32>,
    {
        let next = u32::try_from(self.rows.len()).ok().filter(|&next| next <= Tagged::MOST);
        next.expect("fewer than 2^29 rows").into()
    }

    /// The indices of all rows, from the first to the last.
    pub(crate) fn ids(&self) -> impl ExactSizeIterator<Item = I> + use<I, T>
    where
        I: From<u32>,
    {
        (0..self.rows.len() as u32).map(I::from)
    }

    /// Brings a row into the cache, if there is such a row.
    #[inline]
    pub(crate) fn prefetch(&self, id: I) {
        prefetch_index(&self.rows, id.number() as usize);
    }
}

impl<I, T> From<Vec<T>> for Table<I, T> {
    fn from(rows: Vec<T>) -> Self {
        Self { rows, index: PhantomData }
    }
}

impl<I, T> FromIterator<T> for Table<I, T> {
    fn from_iter<R: IntoIterator<Item = T>>(rows: R) -> Self {
        Vec::from_iter(rows).into()
    }
}

impl<I, T> Default for Table<I, T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: I) -> &T {
        &self.rows[id.number() as usize]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.rows[id.number() as usize]
    }
}

impl<I, T> Deref for Table<I, T> {
    type Target = Vec<T>;

    #[inline]
    fn deref(&self) -> &Vec<T> {
        &self.rows
    }
}

impl<I, T> DerefMut for Table<I, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.rows
    }
}

/// An index of one of several tables, and which one; or nothing. In 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tagged(u32);

impl Tagged {
    pub(crate) const NOTHING: Self = Self(u32::MAX);
    const SHIFT: u32 = 29;
    /// The greatest number.
    const MOST: u32 = (1 << Self::SHIFT) - 1;
    const NODE: u32 = 0;
    const BUNDLE: u32 = 1;
    const RECORD: u32 = 2;
    const QUEUE: u32 = 3;
    const CLASS: u32 = 4;

    #[inline]
    fn new(tag: u32, number: u32) -> Self {
        debug_assert!(number <= Self::MOST, "an index is below 2^29");
        Self(tag << Self::SHIFT | number)
    }

    #[inline]
    fn tagged(self, tag: u32) -> Option<u32> {
        (self.0 >> Self::SHIFT == tag).then_some(self.0 & Self::MOST)
    }

    pub(crate) fn node(id: TreeId) -> Self {
        Self::new(Self::NODE, id.0)
    }

    pub(crate) fn bundle(id: BundleId) -> Self {
        Self::new(Self::BUNDLE, id.0)
    }

    pub(crate) fn record(id: RecordId) -> Self {
        Self::new(Self::RECORD, id.0)
    }

    pub(crate) fn queue(id: QueueId) -> Self {
        Self::new(Self::QUEUE, id.0)
    }

    pub(crate) fn class(id: NodeId) -> Self {
        Self::new(Self::CLASS, id.0)
    }

    #[inline]
    pub(crate) fn as_node(self) -> Option<TreeId> {
        self.tagged(Self::NODE).map(TreeId)
    }

    #[inline]
    pub(crate) fn as_bundle(self) -> Option<BundleId> {
        self.tagged(Self::BUNDLE).map(BundleId)
    }

    #[inline]
    pub(crate) fn as_record(self) -> Option<RecordId> {
        self.tagged(Self::RECORD).map(RecordId)
    }

    #[inline]
    pub(crate) fn as_queue(self) -> Option<QueueId> {
        self.tagged(Self::QUEUE).map(QueueId)
    }

    #[inline]
    pub(crate) fn as_class(self) -> Option<NodeId> {
        self.tagged(Self::CLASS).map(NodeId)
    }

    #[inline]
    pub(crate) fn is_nothing(self) -> bool {
        self == Self::NOTHING
    }
}

impl Default for Tagged {
    fn default() -> Self {
        Self::NOTHING
    }
}
