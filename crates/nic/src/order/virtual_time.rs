//! Virtual time of the weighted fair orders: wrapping, in 2^-20 bytes at weight 1.

/// A weight, kept with its reciprocal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    weight: u64,
    inverse: Inverse,
}

/// 2^32 / weight, rounded up, so that no child is charged less than it used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inverse(u64);

impl Weight {
    pub(crate) fn new(weight: u64) -> Self {
        let weight = weight.max(1);
        Self { weight, inverse: Inverse((1_u64 << 32).div_ceil(weight)) }
    }

    /// The sum of children's weights: its reciprocal is rounded down, so that V is never ahead of what was served
    /// (behind is safe: V jumps to the first start).
    pub(crate) fn total(weight: u64) -> Self {
        let weight = weight.max(1);
        Self { weight, inverse: Inverse((1_u64 << 32) / weight) }
    }

    pub(crate) fn get(self) -> u64 {
        self.weight
    }

    pub(crate) fn inverse(self) -> Inverse {
        self.inverse
    }

    /// The virtual time that `len` bytes take at this weight.
    #[inline]
    pub(crate) fn span(self, len: u64) -> u64 {
        self.inverse.span(len)
    }
}

impl Inverse {
    /// A reciprocal that [`Inverse::get`] returned.
    #[inline]
    pub(crate) fn of(inverse: u64) -> Self {
        Self(inverse)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// The virtual time that `len` bytes (at most 2^30) take.
    #[inline]
    pub(crate) fn span(self, len: u64) -> u64 {
        (len * self.0) >> 12
    }
}

/// Whether moment `a` lies before moment `b`; they are never half the range apart.
#[inline]
pub(crate) fn earlier(a: u64, b: u64) -> bool {
    a.wrapping_sub(b) > u64::MAX / 2
}

/// Brings a start that lies before `floor` up to it.
#[inline]
pub(crate) fn raise(start: &mut u64, floor: u64) {
    if earlier(*start, floor) {
        *start = floor;
    }
}

/// Whether virtual time has entered another eighth of its range on its way from `before` to `now`: then idle children
/// must be brought along, or its start would look ahead after half the range (four hours of 10 Gb/s at weight 2).
#[inline]
pub(crate) fn passes_eighth(before: u64, now: u64) -> bool {
    (before ^ now) >> 61 != 0
}

/// How far `a` lies ahead of `b`, in whole bytes at weight 1; 0 when it does not.
pub(crate) fn ahead(a: u64, b: u64) -> u64 {
    if earlier(a, b) { 0 } else { a.wrapping_sub(b) >> 20 }
}
