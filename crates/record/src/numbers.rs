//! Encoding of numbers in a trace: seven bits to a byte, the lowest first.
//!
//! Why: most numbers are small, and a trace has about ten of them for each packet.
//! From: LEB128, as in DWARF and protocol buffers.
//! Not here: the meaning of the numbers (`event`).
//! Invariant: a number that was written is read back; reading any number takes at most ten bytes.

/// Appends a number.
#[inline]
pub(crate) fn put(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads numbers and texts from the front of a byte slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    pub(crate) rest: &'a [u8],
}

/// The error for bytes that end too early, or that hold no number of the wanted size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

impl<'a> Cursor<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Unreadable> {
        let (&first, rest) = self.rest.split_first().ok_or(Unreadable)?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Unreadable);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Unreadable)
    }

    /// Reads a number that fits in `T`.
    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Unreadable> {
        T::try_from(self.number()?).map_err(|_| Unreadable)
    }

    /// Reads a count of items, each at least a byte long; refuses more items than there are bytes.
    pub(crate) fn count(&mut self) -> Result<usize, Unreadable> {
        let count: usize = self.small()?;
        if count > self.rest.len() { Err(Unreadable) } else { Ok(count) }
    }

    pub(crate) fn text(&mut self) -> Result<String, Unreadable> {
        let len = self.count()?;
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        String::from_utf8(text.to_vec()).map_err(|_| Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(numbers in proptest::collection::vec(any::<u64>(), 0..50), shift in 0..64) {
            let numbers: Vec<u64> = numbers.into_iter().map(|number| number >> shift).collect();
            let mut written = Vec::new();
            numbers.iter().for_each(|&number| put(&mut written, number));
            let mut bytes = Cursor { rest: &written };
            for number in numbers {
                prop_assert_eq!(bytes.number(), Ok(number));
            }
            prop_assert_eq!(bytes.number(), Err(Unreadable));
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut left = Cursor { rest: &bytes };
            while left.number().is_ok() {}
            prop_assert!(left.rest.len() <= bytes.len());
            let _ = Cursor { rest: &bytes }.text();
        }
    }
}
