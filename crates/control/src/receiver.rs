//! A host's receiving side: once each epoch, what each of its VMs allows a sender.
//!
//! Why: bandwidth and packet rate are one decision for the sender that must obey it, and both start from the same measurements.
//! From: PicNIC §5.3 (PCC) and §5.5: per epoch, from what is measured anyway.
//! Not here: the laws themselves (`bandwidth`, `packet_rate`), which senders there are (`senders`), messages (`feedback`).
//! Invariant: integers only; an epoch allocates nothing; a VM that receives nothing allows its capacity, or what it began
//! with where none is kept for it, and no packet limit of its own.

use plimsoll_units::{BitRate, NS_PER_SEC, PacketRate, Span};

use crate::share::{Idle, Receiver, Shares};
use crate::{BandwidthLaw, BandwidthLimit, FabricLaw, FabricLimit, Marks, PacketRateLaw, PacketRateLimit};
use crate::{PerMille, Seen, WHOLE};

/// The rates that a VM may receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The rate it gets whatever the other VMs do.
    pub min: Option<BitRate>,
    /// The rate it never exceeds.
    pub max: BitRate,
}

/// Measurements of a VM over an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Bytes that came, dropped ones included.
    pub bytes: u64,
    /// Packets that were served.
    pub served: u64,
    /// Those of them whose flows backpressure has just begun to slow down: they are left out of the packet rate's samples.
    pub left_out: u64,
    /// Packets a second that were served while more waited, where some did.
    pub service: Option<PacketRate>,
    /// Their mean wait since the NIC had them.
    pub delay: Option<Span>,
    /// How full its queue was at most.
    pub occupancy: PerMille,
    /// Packets that found its queue full.
    pub drops: u64,
    /// Weights of the senders together, an ordinary one counting as a thousand.
    pub weights: u64,
    /// The least weight of a sender; zero stands for a thousand.
    pub least: u32,
    /// All packets that came, and those with the fabric's mark.
    pub marks: Marks,
}

/// Limits of a sender of weight one to a VM; those of other senders are in proportion to their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bits a second.
    pub bits: BitRate,
    /// Packets a second, while the receiving CPU is the bottleneck.
    pub packets: Option<PacketRate>,
}

impl Limits {
    /// The limits of a sender of this weight: at least a bit and a packet a second.
    #[must_use]
    pub fn of_weight(self, weight: u32) -> Self {
        self.part(weight, WHOLE)
    }

    /// The part `weight / all` of these limits: at least a bit and a packet a second.
    #[must_use]
    pub fn part(self, weight: u32, all: u64) -> Self {
        let part = |rate: u64| {
            let part = u128::from(rate) * u128::from(weight) / u128::from(all.max(1));
            u64::try_from(part).unwrap_or(u64::MAX).max(1)
        };
        Self {
            bits: BitRate::new(part(self.bits.get())).expect("at least one"),
            packets: self.packets.and_then(|packets| PacketRate::new(part(packets.get()))),
        }
    }
}

/// How a host's limits move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Laws {
    /// For bandwidth.
    pub bandwidth: BandwidthLaw,
    /// For packet rates; none: bandwidth only, as EyeQ.
    pub packets: Option<PacketRateLaw>,
    /// The use of an idle VM's minimum.
    pub idle: Idle,
    /// For what the fabric marks; none: marks mean nothing.
    pub fabric: Option<FabricLaw>,
}

/// The VMs of one host that receive.
///
/// ```
/// use plimsoll_control::{Envelope, Idle, Laws, Measured, Receivers};
/// use plimsoll_units::{BitRate, Span};
///
/// let envelope = Envelope { min: Some(BitRate::gbps(4)), max: BitRate::gbps(12) };
/// let laws = Laws { bandwidth: Default::default(), packets: None, idle: Idle::Reserved, fabric: None };
/// let mut host = Receivers::new(BitRate::gbps(20), laws, &[envelope; 2]);
/// // 18 Gb/s come for the first for half a millisecond, in which it may have 12.
/// let flood = Measured { bytes: 1_125_000, ..Measured::default() };
/// host.epoch(Span::micros(500), &[flood, Measured::default()]);
/// assert_eq!(host.limits(0).bits, BitRate::gbps(9));
/// assert_eq!(host.capacity(1), 4_000_000_000);
/// ```
#[derive(Clone, Debug)]
pub struct Receivers {
    line: BitRate,
    laws: Laws,
    vms: Vec<Vm>,
    shares: Shares,
    asked: Vec<Receiver>,
}

#[derive(Clone, Debug)]
struct Vm {
    envelope: Envelope,
    capacity: u64,
    bandwidth: BandwidthLimit,
    packets: PacketRateLimit,
    fabric: FabricLimit,
    /// The delay that it keeps to, where that is its own.
    threshold: Option<Span>,
}

/// Bytes of a VM's state, with its place in the division.
pub(crate) const VM_BYTES: usize =
    size_of::<Vm>() + size_of::<Receiver>() + size_of::<u64>() + size_of::<u32>();

impl Receivers {
    /// The VMs with these envelopes, behind a line of this rate. Other methods name them by their index.
    #[must_use]
    pub fn new(line: BitRate, laws: Laws, envelopes: &[Envelope]) -> Self {
        let vm = |&envelope: &Envelope| Vm {
            envelope,
            capacity: envelope.max.get().min(line.get()),
            bandwidth: BandwidthLimit::new(envelope.max.min(line)),
            packets: PacketRateLimit::default(),
            fabric: FabricLimit::default(),
            threshold: None,
        };
        let vms: Vec<Vm> = envelopes.iter().map(vm).collect();
        Self { line, laws, asked: Vec::with_capacity(vms.len()), vms, shares: Shares::default() }
    }

    /// Sets the delay threshold of a VM, in place of the law's.
    pub fn set_threshold(&mut self, vm: usize, threshold: Span) {
        self.vms[vm].threshold = Some(threshold);
    }

    /// Handles the end of an epoch of this length, with the measurements of each VM. Returns whether limits are at rest: none has
    /// changed, and no law follows delay or marks.
    pub fn epoch(&mut self, length: Span, measured: &[Measured]) -> bool {
        self.divide(measured);
        let mut at_rest = true;
        for (vm, seen) in self.vms.iter_mut().zip(measured) {
            let before = vm.bandwidth.get();
            let received = per_second(seen.bytes.saturating_mul(8), length);
            let capacity = vm.steered_to(received, self.line);
            vm.bandwidth.epoch(&self.laws.bandwidth, received, capacity, vm.most(seen.least));
            if let Some(law) = &self.laws.packets {
                let law = PacketRateLaw { threshold: vm.threshold.unwrap_or(law.threshold), ..*law };
                vm.packets.epoch(&law, &seen.by_packets(length));
            }
            if let Some(law) = &self.laws.fabric {
                let most = vm.envelope.max.min(self.line);
                vm.fabric.epoch(law, seen.marks, vm.bandwidth.get(), most);
            }
            let watched = vm.packets.get().is_some() || vm.fabric.get().is_some();
            at_rest &= !watched && vm.bandwidth.get() == before;
        }
        at_rest
    }

    /// The limits of a sender of weight one to the VM.
    #[must_use]
    pub fn limits(&self, vm: usize) -> Limits {
        let Vm { bandwidth, packets, fabric, .. } = &self.vms[vm];
        let bits = fabric.get().map_or(bandwidth.get(), |fabric| fabric.min(bandwidth.get()));
        Limits { bits, packets: packets.get() }
    }

    /// Bits a second that the VM may receive: its fair part of the line.
    #[must_use]
    pub fn capacity(&self, vm: usize) -> u64 {
        self.vms[vm].capacity
    }

    fn divide(&mut self, measured: &[Measured]) {
        let receivers = self.vms.iter().zip(measured).map(|(vm, seen)| Receiver {
            min: vm.envelope.min,
            max: vm.envelope.max,
            active: seen.bytes > 0,
        });
        self.asked.clear();
        self.asked.extend(receivers);
        let shares = self.shares.divide(self.line, &self.asked, self.laws.idle);
        for (vm, &share) in self.vms.iter_mut().zip(shares) {
            vm.capacity = share;
        }
    }
}

impl Vm {
    /// The limit with which its lightest sender alone can send the VM's maximum.
    fn most(&self, least: u32) -> BitRate {
        let weight = if least == 0 { 1_000 } else { least.min(1_000) };
        let most = u128::from(self.envelope.max.get()) * 1_000 / u128::from(weight);
        BitRate::new(u64::try_from(most).unwrap_or(u64::MAX)).unwrap_or(self.envelope.max)
    }

    /// The rate to which its limit is steered. An idle VM without a minimum, or with one that is lent, has no share of the line: it
    /// starts again as it did at first (PN-M8 restarts an idle VM from its capacity, and its capacity once it receives is not
    /// known before). A VM that receives where minima leave nothing has one bit a second, so that its limit falls each epoch.
    fn steered_to(&self, received: u64, line: BitRate) -> BitRate {
        let nothing = if received > 0 { BitRate::new(1) } else { None };
        BitRate::new(self.capacity).or(nothing).unwrap_or(self.envelope.max.min(line))
    }
}

impl Measured {
    /// The sample for the packet rate, without the packets that are left out.
    ///
    /// A flow that was just pressed still fills the queue for some milliseconds, although its remedy is on its way; a cut for
    /// that would hit every other sender. So the queue counts as shorter by the part of the packets that are left out: its
    /// occupancy and the delay behind it, which are proportional to its length, and the drops, which hit all flows alike. How
    /// fast the core serves packets does not depend on whose they are.
    fn by_packets(&self, length: Span) -> Seen {
        let kept = self.served.saturating_sub(self.left_out);
        let part = |of: u64| {
            let part = u128::from(of) * u128::from(kept);
            part.checked_div(self.served.into()).map_or(of, |part| u64::try_from(part).unwrap_or(of))
        };
        Seen {
            delay: self.delay.map(|delay| Span::ns(part(delay.as_u64()))),
            occupancy: PerMille::try_from(part(self.occupancy.into())).unwrap_or(self.occupancy),
            drops: part(self.drops),
            goodput: per_second(kept, length),
            service: self.service,
            weights: self.weights,
        }
    }
}

fn per_second(count: u64, length: Span) -> u64 {
    let rate = u128::from(count) * u128::from(NS_PER_SEC) / u128::from(length.as_u64().max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Span = Span::micros(500);

    fn laws(packets: Option<PacketRateLaw>, idle: Idle) -> Laws {
        Laws { bandwidth: BandwidthLaw::default(), packets, idle, fabric: None }
    }

    fn host(packets: Option<PacketRateLaw>) -> Receivers {
        let envelope = Envelope { min: Some(BitRate::gbps(4)), max: BitRate::gbps(12) };
        let laws = laws(packets, Idle::Reserved);
        Receivers::new(BitRate::gbps(20), laws, &[envelope; 2])
    }

    fn gbps(rate: u64) -> Measured {
        Measured { bytes: rate * 1_000_000_000 / 8 / 2_000, weights: 1_000, ..Measured::default() }
    }

    /// A million packets a second are served, of two senders that send more.
    fn flooded() -> Measured {
        let (delay, service) = (Some(Span::micros(200)), PacketRate::new(1_000_000));
        Measured { served: 500, service, drops: 20, delay, weights: 2_000, ..gbps(1) }
    }

    /// PN-E5's plateaus: one VM active may have 12, two 10 each, and a sender gets what makes the sum right.
    #[test]
    fn capacity_follows_who_is_active() {
        let mut host = host(None);
        host.epoch(EPOCH, &[gbps(12), gbps(0)]);
        assert_eq!((host.capacity(0), host.capacity(1)), (12_000_000_000, 4_000_000_000));
        host.epoch(EPOCH, &[gbps(12), gbps(1)]);
        assert_eq!((host.capacity(0), host.capacity(1)), (10_000_000_000, 10_000_000_000));
        assert_eq!(host.limits(0).bits.get(), 10_800_000_000, "a fifth too much, of which half is corrected");
    }

    #[test]
    fn an_idle_vm_starts_again_from_its_capacity() {
        let mut host = host(None);
        for _ in 0..20 {
            host.epoch(EPOCH, &[gbps(18), gbps(0)]);
        }
        assert!(host.limits(0).bits < BitRate::mbps(100));
        host.epoch(EPOCH, &[gbps(0), gbps(0)]);
        assert_eq!(host.limits(0).bits.get(), host.capacity(0));
    }

    /// Without a minimum nothing is kept for an idle VM: it must not stay at what it was told last, long ago.
    #[test]
    fn an_idle_vm_without_a_minimum_starts_again_as_it_began() {
        for (min, idle) in [(None, Idle::Reserved), (Some(BitRate::gbps(4)), Idle::Lent)] {
            let envelope = Envelope { min, max: BitRate::gbps(12) };
            let mut host = Receivers::new(BitRate::gbps(20), laws(None, idle), &[envelope; 2]);
            let first = host.limits(0).bits;
            for _ in 0..20 {
                host.epoch(EPOCH, &[gbps(18), gbps(1)]);
            }
            assert!(host.limits(0).bits < BitRate::mbps(100));
            host.epoch(EPOCH, &[gbps(0), gbps(1)]);
            assert_eq!((host.capacity(0), host.limits(0).bits), (0, first));
        }
    }

    /// PN-M8: the limit is for weight one; half of that alone must be able to bring all that the VM may receive.
    #[test]
    fn a_light_sender_alone_may_bring_the_whole() {
        let mut host = host(None);
        for _ in 0..20 {
            // It brings half of what it was told last.
            let bits = host.limits(0).bits.get() / 2;
            let seen = Measured { bytes: bits / 8 / 2_000, weights: 500, least: 500, ..Measured::default() };
            host.epoch(EPOCH, &[seen, gbps(0)]);
        }
        assert!(
            (23_900_000_000..=24_000_000_000).contains(&host.limits(0).bits.get()),
            "{:?}",
            host.limits(0)
        );
    }

    #[test]
    fn who_receives_where_minima_leave_nothing_is_told_less_each_epoch() {
        let all = Envelope { min: Some(BitRate::gbps(20)), max: BitRate::gbps(20) };
        let none = Envelope { min: None, max: BitRate::gbps(12) };
        let mut host = Receivers::new(BitRate::gbps(20), laws(None, Idle::Reserved), &[all, none]);
        for gbit in [BitRate::mbps(1_200), BitRate::mbps(120), BitRate::mbps(12)] {
            host.epoch(EPOCH, &[gbps(20), gbps(1)]);
            assert_eq!((host.capacity(1), host.limits(1).bits), (0, gbit));
        }
    }

    #[test]
    fn the_fabrics_marks_hold_senders_below_their_share() {
        let envelope = Envelope { min: None, max: BitRate::gbps(12) };
        let laws = Laws { fabric: Some(FabricLaw::default()), ..laws(None, Idle::Reserved) };
        let mut host = Receivers::new(BitRate::gbps(20), laws, &[envelope; 2]);
        let marked = Measured { marks: Marks { packets: 100, marked: 100 }, ..gbps(6) };
        host.epoch(EPOCH, &[marked, gbps(6)]);
        assert_eq!(host.limits(0).bits, BitRate::gbps(6), "half of its 12");
        assert_eq!(host.limits(1).bits, BitRate::gbps(12), "whose packets come unmarked");
    }

    #[test]
    fn packets_are_limited_for_the_vm_whose_queue_builds_up() {
        let mut host = host(Some(PacketRateLaw::new(Span::micros(10))));
        host.epoch(EPOCH, &[flooded(), gbps(1)]);
        assert_eq!(host.limits(0).packets, PacketRate::new(500_000), "a million served, for two senders");
        assert_eq!(host.limits(1).packets, None);
    }

    /// Two VMs wait alike; the one that keeps to less delay is cut, the other is not.
    #[test]
    fn a_threshold_of_its_own_holds_for_its_vm_only() {
        let mut host = host(Some(PacketRateLaw::new(Span::micros(10))));
        host.set_threshold(1, Span::micros(400));
        host.epoch(EPOCH, &[flooded(); 2]);
        host.epoch(EPOCH, &[flooded(); 2]);
        let [strict, patient] = [0, 1].map(|vm| host.limits(vm).packets.expect("on"));
        assert!(strict < patient, "{strict:?} {patient:?}");
    }

    /// Of 500 packets 400 are of a flow that was just pressed: a fifth of the queue is left, and of the drops.
    #[test]
    fn packets_of_a_flow_that_was_just_pressed_are_left_out() {
        let seen = Measured { left_out: 400, occupancy: 700, ..flooded() }.by_packets(EPOCH);
        assert_eq!((seen.delay, seen.occupancy, seen.drops), (Some(Span::micros(40)), 140, 4));
        assert_eq!((seen.goodput, seen.service), (200_000, PacketRate::new(1_000_000)));
        let all = Measured { left_out: 900, ..flooded() }.by_packets(EPOCH);
        assert_eq!((all.delay, all.drops, all.goodput), (Some(Span::ZERO), 0, 0), "more than were served");
        let none = Measured { served: 0, left_out: 3, drops: 7, ..Measured::default() }.by_packets(EPOCH);
        assert_eq!(none.drops, 7);
    }

    #[test]
    fn the_lightest_sender_has_something() {
        let least = Limits { bits: BitRate::gbps(1), packets: PacketRate::new(1) }.of_weight(0);
        assert_eq!((least.bits.get(), least.packets.map(PacketRate::get)), (1, Some(1)));
    }
}
