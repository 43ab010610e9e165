//! The fleet's keys: the one that this host seals with, and others that it accepts while the fleet changes its key.
//!
//! Why: hosts read a new key one after the other. A host that knows only the new one would drop what the others still seal with the
//! old one.
//! From: what RFC 4107 asks of every system with keys by hand: a key can be replaced while traffic flows.
//! Not here: how keys are read (`daemon`), what is sealed with them (`sealing`, `feedback`).
//! Invariant: no key is printed: operators see a fingerprint, from which it does not follow.

use std::fmt;

use aws_lc_rs::hmac;

/// Bytes of a key.
pub const KEY: usize = 32;

/// The key that this host seals with, and all that it accepts.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetKeys {
    /// The first one seals.
    keys: Vec<[u8; KEY]>,
}

/// What operators see of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 4]);

impl FleetKeys {
    /// Seals with `own`, and accepts the `others` too.
    #[must_use]
    pub fn new(own: [u8; KEY], others: &[[u8; KEY]]) -> Self {
        let mut keys = vec![own];
        for other in others {
            if !keys.contains(other) {
                keys.push(*other);
            }
        }
        Self { keys }
    }

    /// The key that seals.
    #[must_use]
    pub fn own(&self) -> &[u8; KEY] {
        &self.keys[0]
    }

    /// All keys that are accepted, each once; the first one is that which seals.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &[u8; KEY]> {
        self.keys.iter()
    }
}

impl From<[u8; KEY]> for FleetKeys {
    fn from(own: [u8; KEY]) -> Self {
        Self { keys: vec![own] }
    }
}

impl Fingerprint {
    /// The fingerprint of a key.
    #[must_use]
    pub fn of(key: &[u8; KEY]) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), b"plimsoll fingerprint 1");
        Self(*tag.as_ref().first_chunk().expect("32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for FleetKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(Fingerprint::of)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_seals_and_each_is_kept_once_and_none_is_printed() {
        let keys = FleetKeys::new([1; 32], &[[2; 32], [1; 32], [2; 32]]);
        assert_eq!((keys.own(), keys.all().len()), (&[1; 32], 2));
        let [one, two] = [[1; 32], [2; 32]].map(|key| Fingerprint::of(&key).to_string());
        assert_eq!(format!("{keys:?}"), format!("[{one}, {two}]"));
        assert!(one != two && one.len() == 8, "{one} {two}");
    }
}
