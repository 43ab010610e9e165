//! Whether a port sent a frame, its counters, and the reasons for which it loses frames.
//!
//! Why: a lost frame is normal on a network; operators see how many were lost, and why.
//! From: the counters of Linux's network devices, with a drop reason for each loss.
//! Not here: which frames are lost (each port).
//! Invariant: the index of a reason's counter is its place in [`DropReason::ALL`].

/// Why a port lost a frame. One counter for each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The frame is shorter than an Ethernet header.
    TooShort,
    /// The frame is longer than the device or the buffer accepts.
    Oversize,
    /// The device or the kernel refuses the offloads that the frame asks for.
    BadOffload,
    /// The interface disappeared before an accepted frame could leave.
    Gone,
    /// The capture file could not be written, for instance because the disk is full.
    FileFull,
    /// The capture file holds a record that is no frame.
    BadRecord,
    /// The kernel dropped the frame for lack of room before it was read.
    KernelFull,
    /// The kernel refused the frame for another reason.
    Kernel,
    /// A vNIC's client rang the doorbell for a flow queue that it does not have.
    UnmappedQueue,
    /// A vNIC's client wrote a malformed doorbell note, or one that it may not write.
    BadDoorbell,
    /// A vNIC's client or a virtual machine wrote an invalid descriptor or ring index.
    BadDescriptor,
    /// A virtual machine's front end sent an invalid message, and its connection was closed.
    BadMessage,
    /// A tenant that is served apart had no buffer for the frame.
    NoBuffer,
}

impl DropReason {
    /// Number of reasons.
    pub const COUNT: usize = 13;

    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::TooShort,
        Self::Oversize,
        Self::BadOffload,
        Self::Gone,
        Self::FileFull,
        Self::BadRecord,
        Self::KernelFull,
        Self::Kernel,
        Self::UnmappedQueue,
        Self::BadDoorbell,
        Self::BadDescriptor,
        Self::BadMessage,
        Self::NoBuffer,
    ];

    /// The reason's name for operators.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::Oversize => "oversize",
            Self::BadOffload => "bad_offload",
            Self::Gone => "gone",
            Self::FileFull => "file_full",
            Self::BadRecord => "bad_record",
            Self::KernelFull => "kernel_full",
            Self::Kernel => "kernel",
            Self::UnmappedQueue => "unmapped_queue",
            Self::BadDoorbell => "bad_doorbell",
            Self::BadDescriptor => "bad_descriptor",
            Self::BadMessage => "bad_message",
            Self::NoBuffer => "no_buffer",
        }
    }
}

/// The result of [`crate::Port::send`] for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The port has accepted the frame; [`crate::Port::flush`] makes sure that it leaves.
    Sent,
    /// There is no room now; keep the frame and try again when [`crate::Port::fds`] reports writable.
    Full,
    /// This frame can never be sent; it has been counted under the reason.
    Refused(DropReason),
}

/// A port's traffic since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received, link headers included.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent, link headers included.
    pub tx_bytes: u64,
    /// Frames lost on receiving, by [`DropReason`].
    pub rx_drops: [u64; DropReason::COUNT],
    /// Frames lost on sending, by [`DropReason`].
    pub tx_drops: [u64; DropReason::COUNT],
}

/// Traffic and fill of one pair of a virtual machine's rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairCounters {
    /// Frames from the guest that were taken.
    pub rx_packets: u64,
    /// Frames for the guest that were put into the ring.
    pub tx_packets: u64,
    /// Frames that the guest has posted and that have not been taken.
    pub posted: u32,
    /// Frames that were taken and have not left.
    pub in_flight: u32,
    /// Frames that have left and whose descriptors wait for earlier ones; 0 where completions come in any order.
    pub out_of_turn: u32,
    /// Free buffers that the guest has posted for frames to come.
    pub free: u32,
}

impl Counters {
    /// Frames lost on receiving for `reason`.
    #[must_use]
    pub const fn rx_dropped(&self, reason: DropReason) -> u64 {
        self.rx_drops[reason as usize]
    }

    /// Frames lost on sending for `reason`.
    #[must_use]
    pub const fn tx_dropped(&self, reason: DropReason) -> u64 {
        self.tx_drops[reason as usize]
    }

    pub(crate) fn received(&mut self, len: usize) {
        self.rx_packets += 1;
        self.rx_bytes += len as u64;
    }

    pub(crate) fn sent(&mut self, len: usize) -> Sending {
        self.tx_packets += 1;
        self.tx_bytes += len as u64;
        Sending::Sent
    }

    pub(crate) fn refuse(&mut self, reason: DropReason) -> Sending {
        self.tx_drops[reason as usize] += 1;
        Sending::Refused(reason)
    }

    pub(crate) fn lose(&mut self, reason: DropReason) {
        self.rx_drops[reason as usize] += 1;
    }

    /// Counts frames that a port had accepted and that disappeared with it.
    pub(crate) fn gone(&mut self, frames: usize) {
        self.tx_drops[DropReason::Gone as usize] += frames as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_index_their_counters() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.name());
        }
    }
}
