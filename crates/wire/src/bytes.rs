//! Reads and writes at an offset; `None` past the end.
//!
//! Why: offsets come from tenants; an index expression would let a tenant crash the engine.
//! From: network byte order (RFC 791, appendix B).
//! Not here: the meaning of the bytes.
//! Invariant: nothing panics, for any offset.

/// The `N` bytes at `at`.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The big-endian 16-bit number at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

/// The big-endian 32-bit number at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

/// Writes the `N` bytes of `value` at `at`; writes nothing when they do not fit.
pub(crate) fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value;
    Some(())
}
