//! A recorded capture, sent through a policy: the delays and drops if the policy had been in force.
//!
//! Why: a policy is tried on yesterday's traffic before it meets tomorrow's.
//! From: the times and headers of the capture; each frame arrives when it was captured, whatever becomes of it.
//! Not here: how senders would have reacted; they are recorded, not simulated.
//! Invariant: every frame of the capture is sent, dropped for a counted reason, or counted as unread.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use plimsoll_nic::{
    Config, Descriptor, DoorbellQueue, MAX_DESCRIPTOR, Nic, Outcome, QueueId, Transmit, Verdict,
    WAITED_TOO_LONG,
};
use plimsoll_policy::{Checked, Classifier, Fields, Metadata, NodeId, Prefix, TenantId};
use plimsoll_units::{Bytes, Nanos, Span};
use plimsoll_wire::{FlowKey, Ip, Parsed, network_header, parse};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Each class that packets were classified to, in the policy's order.
    pub classes: Vec<Replayed>,
    /// Frames that could not be read, with the reason.
    pub unread: BTreeMap<String, u64>,
    /// Frames longer than the uplink carries, which were sent or dropped in segments.
    pub segmented: u64,
    /// From the first frame to the last departure.
    pub lasted: Span,
}

/// The result of one class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// The class.
    pub class: String,
    /// Frames that left.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that did not get in, or had waited for too long, by reason; each segment counts.
    pub drops: BTreeMap<&'static str, u64>,
    /// Mean time from arrival to departure, of the frames that left.
    pub mean: Span,
    /// Median of these times.
    pub p50: Span,
    /// Their 99th percentile.
    pub p99: Span,
    /// The longest of them.
    pub most: Span,
    /// The sum of the times that limits held frames.
    pub limited: Span,
}

/// The tenant of a frame: that of the first prefix that contains its source address.
pub type Owners = Vec<(Prefix, String)>;

/// An engine with a policy, to which the frames of a capture are sent.
///
/// ```
/// use plimsoll_sim::Replayer;
/// use plimsoll_units::Nanos;
///
/// let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
/// let checked = plimsoll_policy::check_str("demo.yaml", text).expect("a policy");
/// let mut replayer = Replayer::new(&checked, &Vec::new());
/// replayer.arrive(&[0; 125], Nanos::new(5_000));
/// replayer.arrive(&[0; 125], Nanos::new(5_000));
/// // The second waits for the first: 125 B at 1 Gb/s are 1 us.
/// assert_eq!(replayer.finish().classes[0].most.as_u64(), 1_000);
/// ```
#[derive(Debug)]
pub struct Replayer<'a> {
    checked: &'a Checked,
    owners: Vec<(Prefix, Option<TenantId>)>,
    nic: Nic,
    classifier: Classifier,
    queues: HashMap<(FlowKey, Option<TenantId>), Option<QueueId>, FixedState>,
    doorbells: DoorbellQueue,
    out: Vec<Transmit>,
    classes: Vec<ClassTally>,
    unread: BTreeMap<String, u64>,
    segmented: u64,
    /// When the first frame came.
    begun: Option<Nanos>,
    now: Nanos,
}

/// Counters of one class so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassTally {
    packets: u64,
    bytes: u64,
    waits: Vec<u64>,
    drops: BTreeMap<&'static str, u64>,
    limited: Span,
}

impl<'a> Replayer<'a> {
    /// An engine with the policy, and nothing in it.
    #[must_use]
    pub fn new(checked: &'a Checked, owners: &Owners) -> Self {
        let (program, engine) = (&checked.program, &checked.config.engine);
        let config = Config {
            queues: engine.queues,
            ring: engine.ring,
            descriptors: engine.descriptors,
            pull: Bytes::ZERO,
            catch_up: Span::ZERO,
        };
        let id = |name: &String| {
            (0..).map(TenantId).zip(&program.tenants).find(|(_, t)| t.name == *name).map(|(id, _)| id)
        };
        Self {
            checked,
            owners: owners.iter().map(|(prefix, name)| (*prefix, id(name))).collect(),
            nic: Nic::new(program, &config),
            classifier: Classifier::new(program),
            queues: HashMap::default(),
            doorbells: DoorbellQueue::with_capacity(4),
            out: Vec::with_capacity(64),
            classes: vec![ClassTally::default(); program.nodes.len()],
            unread: BTreeMap::new(),
            segmented: 0,
            begun: None,
            now: Nanos::ZERO,
        }
    }

    /// Handles a frame at its captured time, after all frames that leave before. A capture's clock may step back, the engine's
    /// may not: such a frame comes at once.
    pub fn arrive(&mut self, frame: &[u8], at: Nanos) {
        self.arrive_cut(frame, frame.len(), at);
    }

    /// Like [`Replayer::arrive`], for a frame of which the capture has the first `captured` bytes only.
    pub fn arrive_cut(&mut self, frame: &[u8], captured: usize, at: Nanos) {
        let begun = *self.begun.get_or_insert(at);
        let at = (Nanos::ZERO + at.since(begun)).max(self.now);
        self.run_until(Some(at));
        self.now = at;
        let parsed = match parse(frame).or_else(|why| parse_longest(frame).ok_or(why)) {
            Ok(parsed) => parsed,
            Err(_) if captured < frame.len().min(HEADERS) => return self.unread(CUT.to_owned(), 1),
            Err(why) => return self.unread(why.name().to_owned(), 1),
        };
        if captured < needed(&parsed).min(frame.len()) {
            return self.unread(CUT.to_owned(), 1);
        }
        let descriptor = self.descriptor(frame, &parsed);
        let fields = self.fields(&parsed);
        let key = (FlowKey::of(&parsed), fields.tenant);
        let program = &self.checked.program;
        let (nic, classifier) = (&mut self.nic, &self.classifier);
        let opened = self.queues.entry(key);
        let queue = *opened.or_insert_with(|| nic.open_queue(&classifier.classify(program, &fields)).ok());
        let class = classifier.classify(program, &fields).class;
        let class = &mut self.classes[class.0 as usize];
        self.segmented += u64::from(descriptor.segment > 0);
        for descriptor in pieces(descriptor) {
            let Some(queue) = queue else {
                class.refuse("no_queue", &descriptor);
                continue;
            };
            match nic.post(queue, descriptor) {
                Ok(()) => self.doorbells.bell(queue),
                Err(why) => class.refuse(why.name(), &descriptor),
            }
        }
        self.doorbells.flush(|words| self.nic.ring(words, at));
    }

    /// The frame for the engine: in segments, as its host's NIC cut it, if it is longer than the uplink carries and of TCP or
    /// UDP.
    fn descriptor(&self, frame: &[u8], parsed: &Parsed) -> Descriptor {
        let whole =
            Descriptor { len: u32::try_from(frame.len()).unwrap_or(u32::MAX), ..Descriptor::default() };
        let fits = Bytes::new(frame.len() as u64) <= self.checked.program.max_frame;
        let segmented =
            |ip: &&Ip| ip.ports.is_some() && matches!(ip.protocol, TCP | UDP) && ip.payload > ip.l4;
        let Some(ip) = parsed.ip.as_ref().filter(segmented).filter(|_| !fits) else { return whole };
        let headers = ip.payload.saturating_sub(parsed.l3);
        let segment = self.checked.config.tenant_mtu().saturating_sub(headers);
        // Without room for payload the engine refuses the frame as too long.
        Descriptor { segment, header: ip.payload, ..whole }
    }

    /// Sends all frames that leave before a moment, or all frames.
    fn run_until(&mut self, end: Option<Nanos>) {
        while let Some(next) = self.nic.poll_timeout() {
            let next = next.max(self.now);
            if end.is_some_and(|end| next >= end) {
                return;
            }
            self.now = next;
            self.nic.poll_transmit(next, &mut self.out);
            for transmit in self.out.drain(..) {
                self.classes[transmit.class.0 as usize].leaves(&transmit, next);
                self.nic.complete(&transmit, Outcome::Sent);
            }
            while self.nic.poll_completion().is_some() {}
        }
    }

    fn fields(&self, parsed: &Parsed) -> Fields {
        let source = parsed.addresses().map(|(source, _)| source);
        let owner = self.owners.iter().find(|(prefix, _)| source.is_some_and(|addr| prefix.contains(addr)));
        Fields {
            tenant: owner.and_then(|(_, tenant)| *tenant),
            addresses: parsed.addresses(),
            protocol: parsed.protocol(),
            ports: parsed.ports(),
            dscp: parsed.dscp(),
            vlan: parsed.vlan,
            metadata: Metadata::default(),
        }
    }

    /// Counts frames that could not be read from the capture.
    pub fn unread(&mut self, why: String, count: u64) {
        *self.unread.entry(why).or_default() += count;
    }

    /// Sends all frames that wait, and returns the result.
    #[must_use]
    pub fn finish(mut self) -> Replay {
        self.run_until(None);
        let program = &self.checked.program;
        let classes = (0..).map(NodeId).zip(self.classes);
        let classes = classes.filter(|(_, class)| !class.is_empty());
        let classes = classes.map(|(id, class)| class.report(program.node(id).name.clone()));
        Replay {
            classes: classes.collect(),
            unread: self.unread,
            segmented: self.segmented,
            lasted: self.now.since(Nanos::ZERO),
        }
    }
}

/// Why a frame could not be read of which the capture has too little.
const CUT: &str = "headers cut off by the capture's snap length";

/// Bytes in which a frame has all its headers.
const HEADERS: usize = 128;

/// The headers of a frame of BIG TCP: its IP packet is longer than 65,535 bytes and states no length. They are those of the longest
/// packet that states one.
fn parse_longest(frame: &[u8]) -> Option<Parsed> {
    const LONGEST: u16 = 65_535;
    let (l3, v4) = network_header(frame)?;
    let (at, stated) = if v4 { (l3 + 2, LONGEST) } else { (l3 + 4, LONGEST - 40) };
    let longest = frame.get(..l3 + usize::from(LONGEST)).filter(|longest| longest[at..at + 2] == [0, 0])?;
    let mut longest = longest.to_vec();
    longest[at..at + 2].copy_from_slice(&stated.to_be_bytes());
    parse(&longest).ok()
}

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A frame of BIG TCP in descriptors of whole segments, each as long as one may be; another frame in one.
fn pieces(whole: Descriptor) -> impl Iterator<Item = Descriptor> {
    let header = u32::from(whole.header);
    let most = u32::try_from(MAX_DESCRIPTOR.as_u64()).unwrap_or(u32::MAX);
    let segments = most.saturating_sub(header).checked_div(whole.segment.into()).unwrap_or(0);
    let payload = if whole.len > most { segments * u32::from(whole.segment) } else { 0 };
    let mut left = Some(whole);
    core::iter::from_fn(move || {
        let piece = left.take()?;
        if payload == 0 || piece.len - header <= payload {
            return Some(piece);
        }
        left = Some(Descriptor { len: piece.len - payload, ..piece });
        Some(Descriptor { len: header + payload, ..piece })
    })
}

/// The frames that a descriptor leaves as.
fn frames(&Descriptor { len, segment, header, .. }: &Descriptor) -> u64 {
    let payload = len.saturating_sub(header.into());
    if segment == 0 { 1 } else { payload.div_ceil(segment.into()).max(1).into() }
}

/// Bytes of a frame that decide about its class: its headers up to the ports.
fn needed(parsed: &Parsed) -> usize {
    match &parsed.ip {
        Some(ip) => usize::from(ip.l4) + if ip.ports.is_some() { 4 } else { 0 },
        None => parsed.l3.into(),
    }
}

impl ClassTally {
    /// Counts a packet that leaves, or that had waited for too long.
    pub(crate) fn leaves(&mut self, transmit: &Transmit, now: Nanos) {
        if transmit.verdict == Verdict::Drop {
            *self.drops.entry(WAITED_TOO_LONG).or_default() += u64::from(transmit.frames);
            return;
        }
        self.bytes += u64::from(transmit.len) + u64::from(transmit.frames - 1) * u64::from(transmit.header);
        self.packets += u64::from(transmit.frames);
        self.waits.push(now.since(transmit.arrived).as_u64());
        self.limited += transmit.limited;
    }

    /// Counts a packet that is refused, as the frames that it would have left as.
    pub(crate) fn refuse(&mut self, why: &'static str, descriptor: &Descriptor) {
        *self.drops.entry(why).or_default() += frames(descriptor);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.drops.is_empty()
    }

    pub(crate) fn report(mut self, name: String) -> Replayed {
        self.waits.sort_unstable();
        let count = self.waits.len();
        let part = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1) - 1;
            Span::ns(self.waits.get(rank).copied().unwrap_or(0))
        };
        let sum: u128 = self.waits.iter().map(|&wait| u128::from(wait)).sum();
        let mean = u64::try_from(sum / count.max(1) as u128).unwrap_or(u64::MAX);
        Replayed {
            class: name,
            packets: self.packets,
            bytes: self.bytes,
            mean: Span::ns(mean),
            p50: part(50),
            p99: part(99),
            most: part(100),
            limited: self.limited,
            drops: self.drops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}, batch: {port: memory}}, \
                           policy: {root: {wfq: [web, shop, batch]}, web: {match: {tenant: shop, dst_port: 443}}}}";

    /// An IPv4 frame of this length, with TCP to port 443 or UDP.
    fn frame(len: usize, protocol: u8) -> Vec<u8> {
        let mut frame = vec![0; len];
        frame[12] = 8;
        frame[14] = 0x45;
        let total = u16::try_from(len - 14).expect("it fits").to_be_bytes();
        frame[16..18].copy_from_slice(&total);
        (frame[22], frame[23]) = (64, protocol);
        frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
        frame[30..34].copy_from_slice(&[10, 0, 0, 2]);
        frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
        if protocol == TCP {
            frame[46] = 5 << 4
        } else {
            frame[38..40].copy_from_slice(&u16::to_be_bytes(u16::try_from(len - 34).expect("it fits")))
        }
        frame
    }

    /// Sends one frame as a capture has it that keeps `captured` bytes.
    fn replay(mut frame: Vec<u8>, captured: usize) -> Replay {
        let checked = plimsoll_policy::check_str("replay.yaml", POLICY).expect("a policy");
        let owners = vec![("10.0.0.1/32".parse().expect("a prefix"), "shop".to_owned())];
        let mut replayer = Replayer::new(&checked, &owners);
        let captured = captured.min(frame.len());
        frame[captured..].fill(0);
        replayer.arrive_cut(&frame, captured, Nanos::ZERO);
        replayer.finish()
    }

    #[test]
    fn a_superframe_leaves_in_segments_of_the_mtu() {
        // 10 segments of 1,460 B, and their headers of 54 B.
        let found = replay(frame(54 + 14_600, TCP), usize::MAX);
        let web = &found.classes[0];
        assert_eq!((web.class.as_str(), web.packets, web.bytes), ("web", 10, 14_600 + 540));
        assert_eq!((found.segmented, found.unread.len(), web.drops.len()), (1, 0, 0));
        let found = replay(frame(42 + 2_944, UDP), usize::MAX);
        assert_eq!((found.classes[0].packets, found.classes[0].bytes), (2, 2_944 + 84));
        // Another protocol has no segments.
        let found = replay(frame(9_000, 50), usize::MAX);
        assert_eq!(
            (found.classes[0].packets, found.classes[0].drops["oversize"], found.segmented),
            (0, 1, 0)
        );
    }

    /// Offered frames are the sum of those sent and those dropped, whatever they came in.
    #[test]
    fn a_superframe_that_is_dropped_counts_as_its_segments() {
        // A ring of 64 and a slow line: all but the first superframes find the ring full.
        let slow = POLICY
            .replace("rate: 1Gbps", "rate: 1Mbps")
            .replace("tenants: {shop", "engine: {queues: 64, ring: 64, flows: fifo}, tenants: {shop");
        for engine in [slow.clone(), slow.replace("flows: fifo", "flows: fq")] {
            let checked = plimsoll_policy::check_str("replay.yaml", &engine).expect("a policy");
            let owners = vec![("10.0.0.1/32".parse().expect("a prefix"), "shop".to_owned())];
            let mut replayer = Replayer::new(&checked, &owners);
            for number in 0..200 {
                replayer.arrive(&frame(54 + 14_600, TCP), Nanos::new(number * 1_000_000));
            }
            let found = replayer.finish();
            let web = &found.classes[0];
            let dropped: u64 = web.drops.values().sum();
            assert!(web.drops["flow_full"] > 1_000, "{:?}", web.drops);
            assert_eq!((web.packets + dropped, found.segmented), (2_000, 200), "{:?}", web.drops);
        }
    }

    #[test]
    fn a_frame_that_is_cut_counts_with_its_length_if_its_class_can_be_told() {
        let found = replay(frame(1_514, TCP), 47);
        assert_eq!((found.classes[0].class.as_str(), found.classes[0].bytes), ("web", 1_514));
        for (len, captured) in [(1_514, 46), (1_514, 37), (1_514, 20), (1_514, 10), (14_654, 46)] {
            let found = replay(frame(len, TCP), captured);
            assert_eq!(found.unread, BTreeMap::from([(CUT.to_owned(), 1)]), "{captured} of {len}");
            assert!(found.classes.is_empty());
        }
        assert_eq!(replay(frame(14_654, TCP), 47).classes[0].packets, 10);
        assert_eq!(replay(frame(1_514, UDP), 42).classes[0].bytes, 1_514);
    }
}
