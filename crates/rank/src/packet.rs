//! What a program can read: the fields of a packet, its class and its node.
//!
//! Why: one list names each field in the text, in the interpreter and in the record that a module reads.
//! From: the metadata of Loom §4.1.
//! Not here: who fills in a record.
//! Invariant: a field stands in the record at 8 bytes times its place in [`Field::ALL`].

/// A field that a program can read, and cannot change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The present moment, in nanoseconds.
    Now,
    /// Bytes of the packet.
    Len,
    /// How long the packet may wait, in nanoseconds.
    Slack,
    /// When the packet should have left, in nanoseconds.
    Deadline,
    /// Bytes that the packet's flow has in the engine as it arrives, without those before it that came with it.
    Remaining,
    /// The rank that `enqueue` gave the packet; only `dequeue` can read it.
    Rank,
    /// Number of the packet's class among those of the node.
    Number,
    /// Weight of the class.
    Weight,
    /// Rate of the class, in bits per second.
    Rate,
    /// Burst of the class, in bytes.
    Burst,
    /// Sum of the weights of all classes of the node.
    Total,
}

impl Field {
    /// Every field, in the order of the record.
    pub const ALL: [Self; 11] = [
        Self::Now,
        Self::Len,
        Self::Slack,
        Self::Deadline,
        Self::Remaining,
        Self::Rank,
        Self::Number,
        Self::Weight,
        Self::Rate,
        Self::Burst,
        Self::Total,
    ];

    /// The name in a program's text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Len => "packet.len",
            Self::Slack => "packet.slack",
            Self::Deadline => "packet.deadline",
            Self::Remaining => "packet.remaining",
            Self::Rank => "packet.rank",
            Self::Number => "class.number",
            Self::Weight => "class.weight",
            Self::Rate => "class.rate",
            Self::Burst => "class.burst",
            Self::Total => "node.weight",
        }
    }

    /// Where the field stands in a packet's record, in bytes.
    #[must_use]
    pub fn offset(self) -> usize {
        self as usize * size_of::<u64>()
    }
}

/// The values of all fields for one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet([u64; Field::ALL.len()]);

impl Packet {
    /// Bytes of a packet's record.
    pub const BYTES: usize = size_of::<Self>();

    /// The packet with another value of `field`.
    #[must_use]
    pub fn with(mut self, field: Field, value: u64) -> Self {
        self.0[field as usize] = value;
        self
    }

    /// The value of `field`.
    #[must_use]
    pub fn get(&self, field: Field) -> u64 {
        self.0[field as usize]
    }

    /// The record that a module reads: each field as eight bytes, the least significant first.
    #[must_use]
    pub fn record(&self) -> [u8; Self::BYTES] {
        let mut record = [0; Self::BYTES];
        for (bytes, value) in record.chunks_exact_mut(size_of::<u64>()).zip(self.0) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Packet};

    #[test]
    fn each_field_stands_in_the_record_at_its_offset() {
        for field in Field::ALL {
            let record = Packet::default().with(field, 0x0102).record();
            let at = field.offset();
            assert_eq!((record[at], record[at + 1]), (2, 1), "{}", field.name());
            assert_eq!(Field::ALL[at / 8], field);
        }
    }
}
