//! Why frames were lost or held back: one counter for each reason, under the operator's name for it.
//!
//! Why: "drops: 17" does not help an operator; a reason says what to change.
//! From: the reasons that `wire`, `nic` and `ports` return, and the few that only the daemon knows.
//! Not here: logging. Reasons are counted, never printed per frame.
//! Invariant: each lost frame is counted once, for the tenant that sent it.

use plimsoll_nic::Refusal;
use plimsoll_ports::DropReason;
use plimsoll_wire::{
    BindingError, DecapsulationError, EncapsulationError, FrameError, TooBigError, VnetError,
};

/// Why the engine's loop lost a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The receiving tenant's port had no room.
    ReceiverFull,
    /// The receiving port is down or gone.
    ReceiverGone,
    /// No port is known to have its destination address.
    UnknownDestination,
    /// The receive queue of its tenant was full.
    IngressFull,
    /// Its tenant received more than its ceiling.
    IngressOverMax,
    /// A broadcast that was not copied to the tenants, as too many came at once.
    FloodLimit,
    /// The daemon stopped before it could leave.
    Stopped,
    /// Its headers changed inside the engine: a bug.
    Inconsistent,
    /// Its source address is another tenant's, one behind the uplink, or a group's.
    ForeignSource,
    /// No host of the fleet has a tenant of its destination address.
    NoPeer,
    /// The hardware address of the way to that host is not known.
    NoNextHop,
    /// It came in the overlay from a host that is none of the fleet's.
    UnknownHost,
    /// It came for a network that is not the tenants'.
    UnknownNetwork,
    /// Its source is no tenant of the host that sent it.
    WrongHost,
    /// Its host obeys no limits, and all such hosts together have used up one sender's part.
    StrangerOverLimit,
    /// It was to be sealed for a host with which there is no session yet.
    NoSession,
    /// It came unsealed where frames between hosts are sealed.
    Unsealed,
    /// It came sealed where frames between hosts are not.
    SealedUnasked,
    /// It was sealed for a session that does not exist: forged, or from before a restart.
    WrongSession,
    /// It was sealed, and is a replay.
    Replayed,
    /// It was sealed, and has been changed since.
    Forged,
    /// Unsealed frames in its host's name had used up their part of the queue.
    SourceOverShare,
    /// Its flow is slowed down by backpressure, and it was beyond the flow's rate.
    FlowOverRate,
    /// It had waited for too long in a class with `flows: fq`.
    WaitedTooLong,
    /// It came in by the uplink's port that is not active.
    InactivePort,
    /// It waited with its sender, which stopped its rings, or whose memory disappeared. A virtual machine that goes on sends it again.
    TakenBack,
    /// Its receiver is another thread's tenant, and that thread was too far behind.
    ThreadFull,
    /// The tenant's program has dropped it.
    ProgramDropped,
    /// A call of the tenant's program did what WebAssembly forbids, or answered a wrong number of packets.
    ProgramFault,
    /// A call of the tenant's program took too long.
    ProgramOverTime,
    /// The tenant's program was halted, and fails closed.
    ProgramHalted,
    /// The tenant's program has left it outside its buffer, or with a verdict that there is not.
    ProgramMalformed,
    /// The tenant's program has sent it to a port that the tenant does not have.
    ProgramNoPort,
    /// It is longer than the buffers of the tenant's program.
    ProgramTooLong,
    /// The tenant's program has sent it, and there was no descriptor or buffer for it.
    ProgramNoRoom,
    /// The tenant's program has sent it to a coprocessor that the tenant may not use, or with an argument that is not in its memory.
    ProgramNoUnit,
    /// The tenant's program has sent it to a coprocessor, and as many wait there as may.
    ProgramUnitFull,
    /// The tenant's program has a core of its own, and as many packets wait for it as may.
    ProgramBusy,
}

/// Events that are counted although no frame was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The flow table had no room: the frame went to a queue shared by the overflow of its class.
    FlowTableFull,
    /// The port was not read because the tenant is at its cap of descriptors.
    TenantAtCap,
    /// The port was not read because the tenant's buffers are all in use.
    BuffersInUse,
    /// An address that the tenant had used was used behind the uplink, and belongs to the uplink now.
    AddressTaken,
    /// A port learned more addresses than it may.
    TooManyAddresses,
    /// The uplink had no room, and frames waited for it.
    UplinkFull,
    /// The port was lost.
    PortLost,
    /// The port was opened again.
    PortBack,
    /// A packet that a client had classified was classified again, as a sample.
    Verified,
    /// Such a packet belonged to another class than its flow queue.
    Misclassified,
    /// The operator was told of a wrong packet.
    TrustAlert,
    /// The client was not served for a while, for its wrong packets.
    TrustHalt,
    /// The client's packets are classified one by one since then, for its wrong packets.
    TrustForced,
    /// A frame beyond its flow's cap waited with its sender, which was not told of its completion yet.
    HeldBySender,
    /// The uplink brought a frame that was neither the overlay's nor an answer of a next hop; other programs may use it.
    NotOverlay,
    /// The uplink brought a frame for this host itself, which its kernel takes from the same device.
    ForTheHost,
    /// A tenant was told that its packet was too big for the overlay.
    TooBigTold,
    /// The fabric had marked a packet's outer header.
    FabricMarked,
    /// A packet's inner header was marked before it entered the fabric: by its sender, or by backpressure there.
    InnerMarked,
    /// Outer and inner ECN fields that should never have come together (RFC 6040).
    StrangeMark,
    /// Feedback that is cut short, too long, or of another version.
    FeedbackMalformed,
    /// Feedback for another host.
    FeedbackMisdirected,
    /// Feedback that was not sealed with the fleet's key.
    FeedbackForged,
    /// Feedback that came again, or too late.
    FeedbackStale,
    /// Feedback on behalf of another host's tenant, or of none.
    FeedbackForeign,
    /// Feedback for a host that obeys none.
    FeedbackUnasked,
    /// A session with another host began: its frames are opened from now on.
    SessionBegun,
    /// A hello that was not made with the fleet's key, or not between these hosts.
    HelloForged,
    /// A hello of an earlier session.
    HelloStale,
    /// Too many hellos in a host's name to look at.
    HelloOverLimit,
    /// A hello to a host that does not seal.
    HelloUnasked,
    /// Copying into or out of the tenant's memory kept a thread waiting.
    CopyStalled,
    /// The tenant's port was moved to a thread of its own for that.
    ServedApart,
    /// The tenant's port came back from its own thread.
    ServedBack,
    /// A packet was marked (CE) to slow its flow down, and its rate did not drop it. It may still find a full queue.
    FlowMarked,
    /// A packet waits for the rate to which its flow is slowed down.
    FlowWaited,
    /// The receive window in an acknowledgement was made smaller to slow its flow down.
    FlowWindowed,
    /// Another host asked to hold a flow to a rate, and it is.
    NoticeHeeded,
    /// Another host asked that for more flows than it may.
    NoticeRefused,
    /// A SYN asked for ECN in the tenant's place.
    EcnAsked,
    /// A SYN-ACK granted ECN in the tenant's place.
    EcnGranted,
    /// A grant of ECN for which the tenant had not asked was taken from a SYN-ACK.
    EcnHidden,
    /// A mark (CE) was taken from a packet, and is echoed in the tenant's place.
    EcnUnmarked,
    /// A segment echoed a mark in the tenant's place.
    EcnEchoed,
    /// A segment said in the tenant's place that an echo was heard.
    EcnAnswered,
    /// A receiver reported a mark on the tenant's flow, which is metered for it.
    EcnReported,
    /// A receiver did so, and there was no meter left.
    EcnUnmetered,
    /// A connection is not mediated, as there was no place for it.
    EcnLeftAlone,
    /// The uplink's other port became the active one.
    UplinkSwitched,
    /// An address behind this host was announced to the switches after that.
    AddressAnnounced,
    /// The headers of a frame were read from its sender's memory, where its payload stayed (SE-C5 counts these reads).
    HeadersRead,
    /// A payload, or a segment of one, was read from its sender's memory as it left (likewise).
    PayloadRead,
}

impl Loss {
    /// Every reason, in the order of the counters.
    pub const ALL: [Self; 38] = [
        Self::ReceiverFull,
        Self::ReceiverGone,
        Self::UnknownDestination,
        Self::IngressFull,
        Self::IngressOverMax,
        Self::FloodLimit,
        Self::Stopped,
        Self::Inconsistent,
        Self::ForeignSource,
        Self::NoPeer,
        Self::NoNextHop,
        Self::UnknownHost,
        Self::UnknownNetwork,
        Self::WrongHost,
        Self::StrangerOverLimit,
        Self::NoSession,
        Self::Unsealed,
        Self::SealedUnasked,
        Self::WrongSession,
        Self::Replayed,
        Self::Forged,
        Self::SourceOverShare,
        Self::FlowOverRate,
        Self::WaitedTooLong,
        Self::InactivePort,
        Self::TakenBack,
        Self::ThreadFull,
        Self::ProgramDropped,
        Self::ProgramFault,
        Self::ProgramOverTime,
        Self::ProgramHalted,
        Self::ProgramMalformed,
        Self::ProgramNoPort,
        Self::ProgramTooLong,
        Self::ProgramNoRoom,
        Self::ProgramNoUnit,
        Self::ProgramUnitFull,
        Self::ProgramBusy,
    ];

    /// The reason as operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReceiverFull => "receiver_full",
            Self::ReceiverGone => "receiver_gone",
            Self::UnknownDestination => "unknown_destination",
            Self::IngressFull => "ingress_full",
            Self::IngressOverMax => "ingress_over_max",
            Self::FloodLimit => "flood_limit",
            Self::Stopped => "stopped",
            Self::Inconsistent => "inconsistent",
            Self::ForeignSource => "foreign_source",
            Self::NoPeer => "overlay_no_peer",
            Self::NoNextHop => "overlay_no_next_hop",
            Self::UnknownHost => "overlay_unknown_host",
            Self::StrangerOverLimit => "stranger_over_limit",
            Self::UnknownNetwork => "overlay_unknown_network",
            Self::WrongHost => "overlay_wrong_host",
            Self::NoSession => "overlay_no_session",
            Self::Unsealed => "overlay_unsealed",
            Self::SealedUnasked => "overlay_sealed",
            Self::WrongSession => "overlay_wrong_session",
            Self::Replayed => "overlay_replayed",
            Self::Forged => "overlay_forged",
            Self::SourceOverShare => "overlay_source_over_share",
            Self::FlowOverRate => "flow_over_rate",
            Self::WaitedTooLong => plimsoll_nic::WAITED_TOO_LONG,
            Self::InactivePort => "inactive_port",
            Self::TakenBack => "taken_back",
            Self::ThreadFull => "thread_full",
            Self::ProgramDropped => "program_dropped",
            Self::ProgramFault => "program_fault",
            Self::ProgramOverTime => "program_over_time",
            Self::ProgramHalted => "program_halted",
            Self::ProgramMalformed => "program_malformed",
            Self::ProgramNoPort => "program_no_port",
            Self::ProgramTooLong => "program_too_long",
            Self::ProgramNoRoom => "program_no_room",
            Self::ProgramNoUnit => "program_no_unit",
            Self::ProgramUnitFull => "program_unit_full",
            Self::ProgramBusy => "program_busy",
        }
    }
}

impl Event {
    /// Every event, in the order of the counters.
    pub const ALL: [Self; 52] = [
        Self::FlowTableFull,
        Self::TenantAtCap,
        Self::BuffersInUse,
        Self::AddressTaken,
        Self::TooManyAddresses,
        Self::UplinkFull,
        Self::PortLost,
        Self::PortBack,
        Self::Verified,
        Self::Misclassified,
        Self::TrustAlert,
        Self::TrustHalt,
        Self::TrustForced,
        Self::HeldBySender,
        Self::NotOverlay,
        Self::ForTheHost,
        Self::TooBigTold,
        Self::FabricMarked,
        Self::InnerMarked,
        Self::StrangeMark,
        Self::FeedbackMalformed,
        Self::FeedbackMisdirected,
        Self::FeedbackForged,
        Self::FeedbackStale,
        Self::FeedbackForeign,
        Self::FeedbackUnasked,
        Self::SessionBegun,
        Self::HelloForged,
        Self::HelloStale,
        Self::HelloOverLimit,
        Self::HelloUnasked,
        Self::CopyStalled,
        Self::ServedApart,
        Self::ServedBack,
        Self::FlowMarked,
        Self::FlowWaited,
        Self::FlowWindowed,
        Self::NoticeHeeded,
        Self::NoticeRefused,
        Self::EcnAsked,
        Self::EcnGranted,
        Self::EcnHidden,
        Self::EcnUnmarked,
        Self::EcnEchoed,
        Self::EcnAnswered,
        Self::EcnReported,
        Self::EcnUnmetered,
        Self::EcnLeftAlone,
        Self::UplinkSwitched,
        Self::AddressAnnounced,
        Self::HeadersRead,
        Self::PayloadRead,
    ];

    /// The event as operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowTableFull => "flow_table_full",
            Self::TenantAtCap => "tenant_at_cap",
            Self::BuffersInUse => "buffers_in_use",
            Self::AddressTaken => "address_taken",
            Self::TooManyAddresses => "too_many_addresses",
            Self::UplinkFull => "uplink_full",
            Self::PortLost => "port_lost",
            Self::PortBack => "port_back",
            Self::Verified => "verified",
            Self::Misclassified => "misclassified",
            Self::TrustAlert => "trust_alert",
            Self::TrustHalt => "trust_halt",
            Self::TrustForced => "trust_forced",
            Self::HeldBySender => "held_by_sender",
            Self::NotOverlay => "not_overlay",
            Self::ForTheHost => "for_the_host",
            Self::TooBigTold => "too_big_told",
            Self::FabricMarked => "fabric_marked",
            Self::InnerMarked => "inner_marked",
            Self::StrangeMark => "overlay_strange_mark",
            Self::FeedbackMalformed => "feedback_malformed",
            Self::FeedbackMisdirected => "feedback_misdirected",
            Self::FeedbackForged => "feedback_forged",
            Self::FeedbackStale => "feedback_stale",
            Self::FeedbackForeign => "feedback_foreign",
            Self::FeedbackUnasked => "feedback_unasked",
            Self::SessionBegun => "overlay_session_begun",
            Self::HelloForged => "overlay_hello_forged",
            Self::HelloStale => "overlay_hello_stale",
            Self::HelloOverLimit => "overlay_hello_over_limit",
            Self::HelloUnasked => "overlay_hello_unasked",
            Self::CopyStalled => "copy_stalled",
            Self::ServedApart => "served_apart",
            Self::ServedBack => "served_back",
            Self::FlowMarked => "flow_marked",
            Self::FlowWaited => "flow_waited",
            Self::FlowWindowed => "flow_windowed",
            Self::NoticeHeeded => "notice_heeded",
            Self::NoticeRefused => "notice_refused",
            Self::EcnAsked => "ecn_asked",
            Self::EcnGranted => "ecn_granted",
            Self::EcnHidden => "ecn_hidden",
            Self::EcnUnmarked => "ecn_unmarked",
            Self::EcnEchoed => "ecn_echoed",
            Self::EcnAnswered => "ecn_answered",
            Self::EcnReported => "ecn_reported",
            Self::EcnUnmetered => "ecn_unmetered",
            Self::EcnLeftAlone => "ecn_left_alone",
            Self::UplinkSwitched => "uplink_switched",
            Self::AddressAnnounced => "address_announced",
            Self::HeadersRead => "headers_read",
            Self::PayloadRead => "payload_read",
        }
    }
}

/// One port's losses and events.
#[derive(Clone, Debug)]
pub struct Tally {
    frame: [u64; FrameError::COUNT],
    vnet: [u64; VnetError::COUNT],
    wrap: [u64; EncapsulationError::COUNT],
    unwrap: [u64; DecapsulationError::COUNT],
    untold: [u64; TooBigError::COUNT],
    spoofed: [u64; BindingError::COUNT],
    refused: [u64; Refusal::COUNT],
    lost: [u64; Loss::ALL.len()],
    port: [u64; DropReason::COUNT],
    events: [u64; Event::ALL.len()],
}

/// No losses yet; written out, as the library's `Default` is for arrays of up to 32.
impl Default for Tally {
    fn default() -> Self {
        Self {
            frame: Default::default(),
            vnet: Default::default(),
            wrap: Default::default(),
            unwrap: Default::default(),
            untold: Default::default(),
            spoofed: Default::default(),
            refused: Default::default(),
            lost: [0; Loss::ALL.len()],
            port: Default::default(),
            events: [0; Event::ALL.len()],
        }
    }
}

impl Tally {
    /// Frames that do not parse.
    pub fn bad_frame(&mut self, why: FrameError, count: u64) {
        self.frame[why.index()] += count;
    }

    /// Frames whose offload fields make no sense.
    pub fn bad_offload(&mut self, why: VnetError, count: u64) {
        self.vnet[why.index()] += count;
    }

    /// Frames that the overlay does not carry.
    pub fn not_wrapped(&mut self, why: EncapsulationError, count: u64) {
        self.wrap[why.index()] += count;
    }

    /// A packet of the overlay's that is not sound.
    pub fn not_unwrapped(&mut self, why: DecapsulationError) {
        self.unwrap[why.index()] += 1;
    }

    /// A packet that was too big, whose sender is not told.
    pub fn untold(&mut self, why: TooBigError) {
        self.untold[why.index()] += 1;
    }

    /// Frames that bear or claim addresses of others.
    pub fn spoofed(&mut self, why: BindingError, count: u64) {
        self.spoofed[why.index()] += count;
    }

    /// Frames that the engine did not take.
    pub fn refused_many(&mut self, why: Refusal, count: u64) {
        self.refused[why as usize] += count;
    }

    /// A frame lost for a reason of the loop's own.
    pub fn lost(&mut self, why: Loss) {
        self.lost[why as usize] += 1;
    }

    /// Several frames lost for a reason of the loop's own.
    pub fn lost_many(&mut self, why: Loss, count: u64) {
        self.lost[why as usize] += count;
    }

    /// A frame that the port it was for could not take or send.
    pub fn undelivered(&mut self, why: DropReason) {
        self.port[why as usize] += 1;
    }

    /// An event.
    pub fn event(&mut self, what: Event) {
        self.events[what as usize] += 1;
    }

    /// An event that occurred `count` times.
    pub fn event_many(&mut self, what: Event, count: u64) {
        self.events[what as usize] += count;
    }

    /// Adds the counters of the same port on another thread.
    pub(crate) fn add(&mut self, other: &Self) {
        let add =
            |to: &mut [u64], other: &[u64]| to.iter_mut().zip(other).for_each(|(to, other)| *to += other);
        add(&mut self.frame, &other.frame);
        add(&mut self.vnet, &other.vnet);
        add(&mut self.wrap, &other.wrap);
        add(&mut self.unwrap, &other.unwrap);
        add(&mut self.untold, &other.untold);
        add(&mut self.spoofed, &other.spoofed);
        add(&mut self.refused, &other.refused);
        add(&mut self.lost, &other.lost);
        add(&mut self.port, &other.port);
        add(&mut self.events, &other.events);
    }

    /// How often it happened.
    #[must_use]
    pub fn count(&self, what: Event) -> u64 {
        self.events[what as usize]
    }

    /// Losses that occurred, by name; two kinds may have the same.
    pub fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let frame = FrameError::ALL.iter().map(|why| why.name()).zip(self.frame);
        let vnet = VnetError::ALL.iter().map(|why| why.name()).zip(self.vnet);
        let refused = Refusal::ALL.map(Refusal::name).into_iter().zip(self.refused);
        let lost = Loss::ALL.map(Loss::name).into_iter().zip(self.lost);
        let port = DropReason::ALL.map(DropReason::name).into_iter().zip(self.port);
        let wrap = EncapsulationError::ALL.iter().map(|why| why.name()).zip(self.wrap);
        let unwrap = DecapsulationError::ALL.iter().map(|why| why.name()).zip(self.unwrap);
        let overlay = wrap.chain(unwrap);
        frame
            .chain(vnet)
            .chain(self.spoofs())
            .chain(overlay)
            .chain(refused)
            .chain(lost)
            .chain(port)
            .filter(|&(_, count)| count > 0)
    }

    /// Losses for bearing or claiming addresses of others, by name.
    pub fn spoofs(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let spoofed = BindingError::ALL.iter().map(|why| why.name()).zip(self.spoofed);
        spoofed.filter(|&(_, count)| count > 0)
    }

    /// Events that occurred, by name.
    pub fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let untold = TooBigError::ALL.iter().map(|why| why.name()).zip(self.untold);
        let events = Event::ALL.map(Event::name).into_iter().zip(self.events);
        events.chain(untold).filter(|&(_, count)| count > 0)
    }
}
