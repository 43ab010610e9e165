//! The test kit: policies by hand, and an engine driven in virtual time.
//!
//! Why: a test should say what each flow sends, and read what left when.
//! Not here: promises (`golden`, `properties`), and how the engine should be (`reference`).
//! Invariant: the engine is polled exactly when it asks for it, and each transmit is completed at once.

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Refusal, Transmit, Verdict};
use plimsoll_policy::{
    Counts, FlowOrder, Limit, LimitId, Match, Metadata, Node, NodeId, NodeKind, Placement, Program, Scope,
    Slo, Tenant, TenantId,
};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

/// Largest frame of hand-made policies.
pub const FRAME: u64 = 1_500;
pub const ROOT: NodeId = NodeId(0);

/// A rate in Mb/s.
pub fn mbps(n: u64) -> BitRate {
    BitRate::mbps(n)
}

/// Builds a [`Program`] node by node.
pub struct Plan {
    pub program: Program,
}

impl Plan {
    pub fn new(link: BitRate, root: NodeKind) -> Self {
        let root = node("root".into(), None, root, 1);
        let program = Program {
            link,
            overhead: Bytes::ZERO,
            max_frame: Bytes::new(FRAME),
            grain: None,
            nodes: vec![root],
            limits: vec![],
            tenants: vec![],
            rules: vec![],
            default_class: ROOT,
            ranks: Vec::new(),
        };
        Self { program }
    }

    pub fn node(&mut self, parent: NodeId, kind: NodeKind, weight: u32) -> NodeId {
        let id = NodeId(u32::try_from(self.program.nodes.len()).expect("few nodes"));
        let tenant = self.program.node(parent).tenant;
        self.program.nodes.push(node(format!("n{}", id.0), Some(parent), kind, weight));
        self.program.nodes[id.0 as usize].tenant = tenant;
        self.program.nodes[parent.0 as usize].children.push(id);
        id
    }

    /// A class whose flow queues take turns.
    pub fn class(&mut self, parent: NodeId, weight: u32) -> NodeId {
        let id = self.node(parent, NodeKind::Class(FlowOrder::Drr), weight);
        self.program.default_class = id;
        id
    }

    /// A class below a `rate_share` node.
    pub fn paced(&mut self, parent: NodeId, rate: BitRate) -> NodeId {
        let id = self.class(parent, 1);
        self.rate(id, rate);
        id
    }

    pub fn rate(&mut self, id: NodeId, rate: BitRate) {
        self.program.nodes[id.0 as usize].rate = Some(rate);
    }

    pub fn min(&mut self, id: NodeId, rate: BitRate) {
        self.program.nodes[id.0 as usize].min = Some(rate);
    }

    pub fn max(&mut self, id: NodeId, rate: BitRate, burst: u64) -> LimitId {
        let limit = self.add(format!("max({})", id.0), rate, burst, Scope::Subtree(id));
        self.program.nodes[id.0 as usize].max = Some(limit);
        limit
    }

    /// A limit that flow queues name themselves.
    pub fn limit(&mut self, name: &str, rate: BitRate, burst: u64) -> LimitId {
        self.add(name.into(), rate, burst, Scope::Match { matches: Match::default(), via: vec![ROOT] })
    }

    fn add(&mut self, name: String, rate: BitRate, burst: u64, scope: Scope) -> LimitId {
        let id = LimitId(u32::try_from(self.program.limits.len()).expect("few limits"));
        self.program.limits.push(Limit {
            name,
            counts: Counts::Bytes,
            rate,
            burst: Bytes::new(burst),
            scope,
        });
        id
    }

    pub fn tenant(&mut self, id: NodeId, descriptors: u32) -> TenantId {
        let tenant = TenantId(u32::try_from(self.program.tenants.len()).expect("few tenants"));
        self.program.tenants.push(Tenant {
            from_client: true,
            name: format!("t{}", tenant.0),
            node: id,
            descriptors,
            stated: Metadata::default(),
            slo: Slo::default(),
        });
        self.program.nodes[id.0 as usize].tenant = Some(tenant);
        tenant
    }
}

fn node(name: String, parent: Option<NodeId>, kind: NodeKind, weight: u32) -> Node {
    Node {
        name,
        parent,
        kind,
        weight,
        rate: None,
        min: None,
        max: None,
        descriptors: None,
        children: vec![],
        tenant: None,
        sender: None,
    }
}

/// The placement of a flow of `class` that also sends through `limits`.
pub fn placement(program: &Program, class: NodeId, limits: &[LimitId]) -> Placement {
    let maxima = program.path(class).filter_map(|id| program.node(id).max);
    Placement { class, limits: maxima.chain(limits.iter().copied()).collect() }
}

/// A pull that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    pub at: u64,
    pub pull: Transmit,
    /// Bytes charged: overhead and the headers of all frames included.
    pub charge: u64,
}

/// An engine and its host, in virtual time.
pub struct World {
    pub nic: Nic,
    pub now: u64,
    pub sent: Vec<Departure>,
    /// Pulls that CoDel dropped.
    pub dropped: Vec<Departure>,
    /// Descriptors completed, in their order.
    pub completed: Vec<(QueueId, u64)>,
    /// Posted descriptors get these addresses, counted up.
    pub posted: u64,
    doorbells: DoorbellQueue,
    overhead: u64,
    greedy: Vec<Option<Descriptor>>,
    batch: Vec<Transmit>,
}

/// Descriptors that a greedy flow keeps in its queue.
const DEPTH: u64 = 3;

impl World {
    pub fn new(program: &Program, config: &Config) -> Self {
        Self {
            nic: Nic::new(program, config),
            now: 0,
            sent: Vec::new(),
            dropped: Vec::new(),
            completed: Vec::new(),
            posted: 0,
            doorbells: DoorbellQueue::default(),
            overhead: program.overhead.as_u64(),
            greedy: Vec::new(),
            batch: Vec::with_capacity(8),
        }
    }

    pub fn with(program: &Program) -> Self {
        Self::new(program, &Config::default())
    }

    pub fn open(&mut self, class: NodeId, limits: &[LimitId]) -> QueueId {
        let placement = placement(self.nic.program(), class, limits);
        self.nic.open_queue(&placement).expect("a flow queue is left")
    }

    /// A flow that always has something to send, in frames of `len` bytes, from now on.
    pub fn greedy(&mut self, class: NodeId, limits: &[LimitId], len: u32) -> QueueId {
        self.greedy_with(class, limits, Descriptor { len, ..Descriptor::default() })
    }

    pub fn greedy_with(&mut self, class: NodeId, limits: &[LimitId], descriptor: Descriptor) -> QueueId {
        let queue = self.open(class, limits);
        self.refill(queue, descriptor, DEPTH);
        queue
    }

    /// From now on `depth` descriptors wait in the flow queue, or as many as it holds.
    pub fn refill(&mut self, queue: QueueId, descriptor: Descriptor, depth: u64) {
        self.greedy.resize(self.greedy.len().max(queue.0 as usize + 1), None);
        self.greedy[queue.0 as usize] = Some(descriptor);
        for _ in 0..depth {
            if self.post(queue, descriptor).is_err() {
                break;
            }
        }
        self.bell(queue);
    }

    /// A greedy flow sends no more.
    pub fn stop(&mut self, queue: QueueId) {
        if let Some(descriptor) = self.greedy.get_mut(queue.0 as usize) {
            *descriptor = None;
        }
    }

    /// Posts a descriptor, with the next address, without a doorbell.
    pub fn post(&mut self, queue: QueueId, descriptor: Descriptor) -> Result<u64, Refusal> {
        let addr = self.posted;
        self.nic.post(queue, Descriptor { addr, ..descriptor })?;
        self.posted += 1;
        Ok(addr)
    }

    pub fn bell(&mut self, queue: QueueId) {
        self.notes(|doorbells| doorbells.bell(queue));
    }

    /// Writes one batch of doorbell entries.
    pub fn notes(&mut self, write: impl FnOnce(&mut DoorbellQueue)) {
        let (nic, now) = (&mut self.nic, Nanos::new(self.now));
        write(&mut self.doorbells);
        self.doorbells.flush(|words| nic.ring(words, now));
    }

    /// Posts one frame of `len` bytes and rings.
    pub fn send(&mut self, queue: QueueId, len: u32) -> u64 {
        let addr = self.post(queue, Descriptor { len, ..Descriptor::default() }).expect("the queue has room");
        self.bell(queue);
        addr
    }

    /// Lets the engine transmit what it can at the present moment; says how many pulls that were.
    pub fn poll(&mut self) -> usize {
        let mut batch = core::mem::take(&mut self.batch);
        let mut pulls = 0;
        loop {
            self.nic.poll_transmit(Nanos::new(self.now), &mut batch);
            if batch.is_empty() {
                break;
            }
            pulls += batch.len();
            for pull in batch.drain(..) {
                self.depart(pull);
            }
        }
        self.batch = batch;
        pulls
    }

    fn depart(&mut self, pull: Transmit) {
        let wire = u64::from(pull.len) + u64::from(pull.frames - 1) * u64::from(pull.header);
        let charge = wire + u64::from(pull.frames) * self.overhead;
        let (list, outcome) = match pull.verdict {
            Verdict::Drop => (&mut self.dropped, Outcome::Dropped),
            Verdict::Pass | Verdict::Mark => (&mut self.sent, Outcome::Sent),
        };
        list.push(Departure { at: self.now, pull, charge });
        self.nic.complete(&pull, outcome);
        while let Some(done) = self.nic.poll_completion() {
            self.completed.push((done.queue, done.addr));
        }
        if let (true, Some(Some(next))) = (pull.last, self.greedy.get(pull.queue.0 as usize).copied()) {
            self.post(pull.queue, next).expect("one was completed just now");
            self.bell(pull.queue);
        }
    }

    /// Runs until `until`, or until nothing can happen any more.
    pub fn run(&mut self, until: u64) {
        self.poll();
        while let Some(due) = self.nic.poll_timeout().map(Nanos::as_u64) {
            if due > until {
                break;
            }
            assert!(due > self.now, "asks to be polled at {due}, when it was polled at {}", self.now);
            self.now = due;
            self.poll();
        }
        self.now = self.now.max(until);
    }

    /// Runs until nothing is left to do.
    pub fn drain(&mut self) {
        self.run(u64::MAX >> 1);
    }

    /// Charged bytes of a class that left in `[from, until)`.
    pub fn bytes(&self, class: NodeId, from: u64, until: u64) -> u64 {
        self.bytes_of(from, until, |pull| pull.class == class)
    }

    pub fn bytes_of(&self, from: u64, until: u64, wanted: impl Fn(&Transmit) -> bool) -> u64 {
        let during = self.sent.iter().filter(|sent| (from..until).contains(&sent.at) && wanted(&sent.pull));
        during.map(|sent| sent.charge).sum()
    }

    /// Rate of a class over `[from, until)`, in Mb/s.
    pub fn rate(&self, class: NodeId, from: u64, until: u64) -> f64 {
        self.bytes(class, from, until) as f64 * 8_000.0 / (until - from) as f64
    }
}

/// Asserts that a rate lies within `percent` of the expected one.
#[track_caller]
pub fn assert_near(what: &str, found: f64, expected: f64, percent: f64) {
    let off = (found - expected).abs() / expected * 100.0;
    assert!(off <= percent, "{what}: {found:.2} is {off:.2} % off {expected:.2}");
}

pub const MS: u64 = 1_000_000;

/// A burst of `n` milliseconds at `rate`.
pub fn burst_of(rate: BitRate, millis: u64) -> u64 {
    rate.bytes_in(Span::millis(millis)).as_u64().max(2 * FRAME)
}
