//! The sizes of a region's parts, and which sizes are valid.
//!
//! Why: the operator's memory and a client's threads decide the sizes; offsets must fit their words for all of them.
//! From: `docs/vnic.md`, the bounds in the table of "The region".
//! Not here: where the parts lie (`layout`).
//! Invariant: sizes that [`Sizes::check`] takes make a region of less than 4 GiB, so that each part's offset is a u32.

use super::VERSION;

/// The sizes of a region's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Flow queues, number 0 included; at most 4,096.
    pub flow_queues: u32,
    /// Descriptors of one flow ring, a power of two up to 4,096.
    pub ring: u32,
    /// Doorbell queues, one for each thread that sends; at most 64.
    pub doorbell_queues: u32,
    /// Words of one doorbell queue, a power of two from 32 to 4,096.
    pub doorbell_words: u32,
    /// Entries of the completion ring, a power of two up to 65,536: a client has no more frames on their way.
    pub completions: u32,
    /// Entries of each receive ring, a power of two up to 16,384.
    pub receive: u32,
    /// Buffers of 2 KiB, up to 65,536, for both directions.
    pub buffers: u32,
}

impl Default for Sizes {
    /// 11 MiB: 256 flow queues, 4,096 frames on their way, 512 to be received.
    fn default() -> Self {
        Self {
            flow_queues: 256,
            ring: 256,
            doorbell_queues: 4,
            doorbell_words: 1_024,
            completions: 4_096,
            receive: 512,
            buffers: 4_608,
        }
    }
}

impl Sizes {
    /// Whether all of them are inside their bounds.
    pub(super) fn check(&self) -> Result<(), LayoutError> {
        let powers = [
            ("ring", self.ring, 1, 4_096, "it is a power of two up to 4096"),
            ("doorbell_words", self.doorbell_words, 32, 4_096, "it is a power of two from 32 to 4096"),
            ("completions", self.completions, 1, 65_536, "it is a power of two up to 65536"),
            ("receive", self.receive, 1, 16_384, "it is a power of two up to 16384"),
        ];
        for (name, value, least, most, bounds) in powers {
            if !value.is_power_of_two() || value < least || value > most {
                return Err(LayoutError::Size { name, value, bounds });
            }
        }
        let counts = [
            ("flow_queues", self.flow_queues, 4_096, "it is 1 to 4096"),
            ("doorbell_queues", self.doorbell_queues, 64, "it is 1 to 64"),
            ("buffers", self.buffers, 65_536, "it is 1 to 65536"),
        ];
        for (name, value, most, bounds) in counts {
            if value == 0 || value > most {
                return Err(LayoutError::Size { name, value, bounds });
            }
        }
        Ok(())
    }
}

/// Why memory is no valid region, or sizes make none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The region does not begin with the magic bytes.
    #[error("this is no vNIC's region: it begins with {0:#x}")]
    NotARegion(u64),
    /// The daemon speaks another version of the format.
    #[error(
        "the daemon speaks version {0} of the vNIC's format, and this client {VERSION}; use the client of that release"
    )]
    Version(u32),
    /// A size out of its bounds.
    #[error("`{name}` is {value}; {bounds}")]
    Size {
        /// Which size.
        name: &'static str,
        /// Its value.
        value: u32,
        /// What it may be.
        bounds: &'static str,
    },
    /// The header's offsets are not those of its sizes.
    #[error("the region's header contradicts itself; the daemon is broken")]
    Inconsistent,
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sizes {
        /// Few of each, so that a test can count them.
        pub(crate) fn small() -> Self {
            Self {
                flow_queues: 3,
                ring: 4,
                doorbell_queues: 2,
                doorbell_words: 32,
                completions: 8,
                receive: 4,
                buffers: 5,
            }
        }
    }

    #[test]
    fn sizes_out_of_bounds_are_named() {
        let error = Sizes { ring: 3, ..Sizes::small() }.check().unwrap_err();
        assert_eq!(error.to_string(), "`ring` is 3; it is a power of two up to 4096");
        assert!(Sizes { buffers: 0, ..Sizes::small() }.check().is_err());
        assert!(Sizes::default().check().is_ok());
    }
}
