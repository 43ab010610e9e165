//! Why the engine did not take a descriptor, or did not open a flow queue.
//!
//! Why: one list of reasons, so that counters, reports and the host's interface use the same names.
//! Not here: counting (`account` by tenant, `egress` by class).

/// Why a descriptor was not taken, or a flow queue not opened. One counter for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No such flow queue, or no room for one more.
    NoQueue,
    /// The flow queue's ring is full.
    FlowFull,
    /// The tenant holds as many descriptors as it may.
    TenantFull,
    /// The host holds as many descriptors as it may.
    HostFull,
    /// Length, header and segment size do not fit together.
    Malformed,
    /// A frame, or a segment with its header, that the uplink cannot carry.
    Oversize,
    /// The class holds as many descriptors as it may.
    ClassFull,
}

impl Refusal {
    /// How many reasons there are.
    pub const COUNT: usize = 7;

    /// Every reason, in the order of the counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NoQueue,
        Self::FlowFull,
        Self::TenantFull,
        Self::HostFull,
        Self::Malformed,
        Self::Oversize,
        Self::ClassFull,
    ];

    /// The reason as counters and operators call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoQueue => "no_queue",
            Self::FlowFull => "flow_full",
            Self::TenantFull => "tenant_full",
            Self::HostFull => "host_full",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::ClassFull => "class_full",
        }
    }
}

impl std::error::Error for Refusal {}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
