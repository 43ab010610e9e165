//! A recorded capture, sent through a policy: the delays and drops if the policy had been in force.
//!
//! Why: a policy is tried on yesterday's traffic before it meets tomorrow's.
//! From: the times and headers of the capture; each frame arrives when it was captured, whatever becomes of it.
//! Not here: how senders would have reacted; they are recorded, not simulated.
//! Invariant: every frame of the capture is sent, dropped for a counted reason, or counted as unread.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Transmit};
use plimsoll_policy::{Checked, Classifier, Fields, Metadata, NodeId, Prefix, TenantId};
use plimsoll_units::{Bytes, Nanos, Span};
use plimsoll_wire::{FlowKey, Parsed, parse};

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replay {
    /// Each class that packets were classified to, in the policy's order.
    pub classes: Vec<Replayed>,
    /// Frames that could not be read, with the reason.
    pub unread: BTreeMap<String, u64>,
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
    /// Frames that did not get in, by reason.
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
            begun: None,
            now: Nanos::ZERO,
        }
    }

    /// Handles a frame at its captured time, after all frames that leave before. A capture's clock may step back, the engine's
    /// may not: such a frame comes at once.
    pub fn arrive(&mut self, frame: &[u8], at: Nanos) {
        let begun = *self.begun.get_or_insert(at);
        let at = (Nanos::ZERO + at.since(begun)).max(self.now);
        self.run_until(Some(at));
        self.now = at;
        let parsed = match parse(frame) {
            Ok(parsed) => parsed,
            Err(why) => return *self.unread.entry(why.name().to_owned()).or_default() += 1,
        };
        let fields = self.fields(&parsed);
        let key = (FlowKey::of(&parsed), fields.tenant);
        let program = &self.checked.program;
        let (nic, classifier) = (&mut self.nic, &self.classifier);
        let opened = self.queues.entry(key);
        let queue = *opened.or_insert_with(|| nic.open_queue(&classifier.classify(program, &fields)).ok());
        let class = classifier.classify(program, &fields).class;
        let class = &mut self.classes[class.0 as usize];
        let Some(queue) = queue else { return class.refuse("no_queue") };
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        match nic.post(queue, Descriptor { len, ..Descriptor::default() }) {
            Ok(()) => {
                self.doorbells.bell(queue);
                let nic = &mut self.nic;
                self.doorbells.flush(|words| nic.ring(words, at));
            }
            Err(why) => class.refuse(why.name()),
        }
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
        Replay { classes: classes.collect(), unread: self.unread, lasted: self.now.since(Nanos::ZERO) }
    }
}

impl ClassTally {
    /// Counts a packet that leaves.
    pub(crate) fn leaves(&mut self, transmit: &Transmit, now: Nanos) {
        self.bytes += u64::from(transmit.len) + u64::from(transmit.frames - 1) * u64::from(transmit.header);
        self.packets += u64::from(transmit.frames);
        self.waits.push(now.since(transmit.arrived).as_u64());
        self.limited += transmit.limited;
    }

    /// Counts a packet that is refused.
    pub(crate) fn refuse(&mut self, why: &'static str) {
        *self.drops.entry(why).or_default() += 1;
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
