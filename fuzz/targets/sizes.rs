//! The vNIC's sizes in the target `vnic` and in its seeds: small, so that rings wrap soon.

use plimsoll_vnic::Sizes;

/// Four flow queues of four descriptors.
pub const SIZES: Sizes = Sizes {
    flow_queues: 4,
    ring: 4,
    doorbell_queues: 2,
    doorbell_words: 32,
    completions: 8,
    receive: 4,
    buffers: 4,
};
