//! The memory of control, to the byte of its tables.
//!
//! Why: a NIC's memory is small, and an operator should know the cost of one more VM.
//! From: PicNIC App. A.2, whose hardware keeps about 5 kB for congestion control at ingress.
//! Not here: allocators' rounding, queues on the way in and limits on the way out (`nic`), messages under way.
//! Invariant: no table grows with traffic or with the number of senders.

use core::mem::size_of;

use crate::agent::Allowed;
use crate::senders::Senders;
use crate::strangers::Strangers;
use crate::{Heavy, Measured, receiver};

/// Bytes for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The purpose.
    pub what: &'static str,
    /// The number of bytes.
    pub bytes: u64,
}

/// Bytes for each VM that receives.
///
/// ```
/// let vm: u64 = plimsoll_control::state::of_vm().iter().map(|part| part.bytes).sum();
/// assert!(vm < 5_000, "{vm} B");
/// ```
#[must_use]
pub fn of_vm() -> [Part; 4] {
    let senders = Senders::new(0);
    let part = |what, bytes: usize| Part { what, bytes: bytes as u64 };
    [
        part("its limits and its laws' state", receiver::VM_BYTES + size_of::<Strangers>()),
        part("what the epoch saw", size_of::<Measured>()),
        part("heavy senders, by name", size_of::<Senders>() + Senders::CAPACITY * size_of::<Heavy>()),
        part("all senders, by number", senders.counter_bytes()),
    ]
}

/// Bytes for the limits that a VM elsewhere sets for the senders here.
#[must_use]
pub const fn of_limit() -> u64 {
    size_of::<Allowed>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_takes_less_than_picnics_hardware_has() {
        let vm: Vec<u64> = of_vm().iter().map(|part| part.bytes).collect();
        assert!(vm.iter().all(|bytes| *bytes > 0));
        // 64 names of 24 B, and 256 registers with their table of 257 words.
        assert_eq!((vm[2] - size_of::<Senders>() as u64, vm[3]), (1_536, 1_284));
        assert!(vm.iter().sum::<u64>() < 4_000, "{vm:?}");
        assert!(of_limit() < 64);
    }
}
