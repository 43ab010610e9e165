//! The packet path allocates nothing: a counting allocator watches 100,000 packets.
//!
//! Alone in its binary, because it counts for the whole process.

use std::alloc::System;

use plimsoll_control::leases::{Coordinator, Exchange, MemberId, Report, Settings, Taken};
use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId};
use plimsoll_policy::{
    Codel, Counts, FlowOrder, Form, Limit, LimitId, Match, Node, NodeId, NodeKind, Placement, Program,
    RankId, RankProgram, Scope, TenantId,
};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use plimsoll_wire::Ecn;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A tree with every algorithm, the flow orders as its leaves, and limits shared by pairs of them.
fn program() -> Program {
    let mut nodes = vec![node(None, NodeKind::Wfq, 1)];
    let kinds =
        [NodeKind::Priority, NodeKind::Wfq, NodeKind::Drr, NodeKind::Fifo, NodeKind::Lstf, NodeKind::Edf];
    let wait = Span::micros(50);
    let short = FlowOrder::Fq(Codel { target: Span::micros(5), interval: Span::micros(100) });
    let orders = [FlowOrder::Fifo, FlowOrder::Drr, FlowOrder::Lstf(wait), FlowOrder::Edf(wait), short];
    for (kind, weight) in kinds.into_iter().zip(1..) {
        let parent = add(&mut nodes, NodeId(0), kind, weight);
        for (order, weight) in orders.into_iter().zip(1..) {
            let class = add(&mut nodes, parent, NodeKind::Class(order), weight);
            nodes[class.0 as usize].min = BitRate::new(20_000_000);
        }
    }
    // One node with enough children for the grouped order.
    let wide = add(&mut nodes, NodeId(0), NodeKind::Wfq, 3);
    for weight in 1..=40 {
        add(&mut nodes, wide, NodeKind::Class(FlowOrder::Drr), weight);
    }
    // Strict rates in two levels, in both forms; together less than the link, so that nodes fall asleep.
    for form in [Form::Exact, Form::Grouped] {
        let paced = add(&mut nodes, NodeId(0), NodeKind::RateShare(form), 2);
        for n in 1..=20 {
            let class = add(&mut nodes, paced, NodeKind::Class(FlowOrder::Drr), 1);
            nodes[class.0 as usize].rate = BitRate::new(n * 4_000_000);
        }
        let inner = add(&mut nodes, paced, NodeKind::RateShare(form), 1);
        nodes[inner.0 as usize].rate = BitRate::new(200_000_000);
        for _ in 0..3 {
            let class = add(&mut nodes, inner, NodeKind::Class(FlowOrder::Fifo), 1);
            nodes[class.0 as usize].rate = BitRate::new(100_000_000);
        }
    }
    let limit = |name: &str, mbps, burst| Limit {
        name: name.into(),
        counts: Counts::Bytes,
        rate: BitRate::mbps(mbps),
        burst: Bytes::new(burst),
        scope: Scope::Match { matches: Match::default(), via: vec![NodeId(0)] },
    };
    Program {
        link: BitRate::gbps(10),
        overhead: Bytes::new(24),
        max_frame: Bytes::new(1_514),
        grain: None,
        nodes,
        limits: vec![limit("a", 700, 3_000), limit("b", 2_000, 30_000), limit("c", 4_000, 3_000)],
        tenants: vec![],
        rules: vec![],
        default_class: NodeId(2),
        ranks: Vec::new(),
    }
}

fn node(parent: Option<NodeId>, kind: NodeKind, weight: u32) -> Node {
    Node {
        name: String::new(),
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

fn add(nodes: &mut Vec<Node>, parent: NodeId, kind: NodeKind, weight: u32) -> NodeId {
    let id = NodeId(u32::try_from(nodes.len()).expect("few"));
    nodes.push(node(Some(parent), kind, weight));
    nodes[parent.0 as usize].children.push(id);
    id
}

struct Host {
    nic: Nic,
    queues: Vec<QueueId>,
    paced: Vec<NodeId>,
    doorbells: DoorbellQueue,
    out: Vec<plimsoll_nic::Transmit>,
    now: Nanos,
    step: u64,
    packets: u64,
}

impl Host {
    /// A batch of descriptors, then as many pulls as the link takes until the next moment.
    fn step(&mut self) {
        for _ in 0..40 {
            self.step =
                self.step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = self.step >> 33;
            let queue = self.queues[random as usize % self.queues.len()];
            let large = random.is_multiple_of(7);
            let descriptor = Descriptor {
                addr: random,
                len: if large { 20_000 } else { 60 + (random % 1_400) as u32 },
                segment: if large { 1_400 } else { 0 },
                header: if large { 54 } else { 0 },
                tag: (random % 90) as u32,
                ecn: Ecn::from_bits(random as u8),
            };
            if self.nic.post(queue, descriptor).is_ok() {
                self.doorbells.bell(queue);
            }
        }
        if self.step.is_multiple_of(5) {
            self.doorbells.set_rate(LimitId(0), BitRate::mbps(600 + self.step % 300));
            let (node, rate) = (self.paced[self.step as usize % self.paced.len()], 4 + self.step % 80);
            self.doorbells.set_class_rate(node, BitRate::mbps(rate));
        }
        let (nic, now) = (&mut self.nic, self.now);
        self.doorbells.flush(|words| nic.ring(words, now));
        for _ in 0..60 {
            self.nic.poll_transmit(self.now, &mut self.out);
            for transmit in self.out.drain(..) {
                self.packets += u64::from(transmit.frames);
                self.nic.complete(&transmit, Outcome::Sent);
            }
            while self.nic.poll_completion().is_some() {}
            let Some(due) = self.nic.poll_timeout() else { break };
            self.now = self.now.max(due);
        }
    }
}

fn main() {
    // With a record for each flow queue, and with fewer.
    [Config::default().descriptors, 256].into_iter().for_each(a_hundred_thousand_packets_allocate_nothing);
    println!("a hundred thousand packets allocate nothing: ok");
    leases_allocate_nothing();
    println!("leases allocate nothing: ok");
    an_idle_class_takes_what_is_said();
    println!("an idle class takes what is said: ok");
}

/// Reports, an epoch's computation, and taking a lease, for 200 classes on 4 threads, half of them behind a limit.
fn leases_allocate_nothing() {
    const THREADS: usize = 4;
    let mut nodes = vec![node(None, NodeKind::Wfq, 1)];
    for _ in 0..10 {
        let group = add(&mut nodes, NodeId(0), NodeKind::Wfq, 3);
        (0..20).for_each(|n| _ = add(&mut nodes, group, NodeKind::Class(FlowOrder::Drr), 1 + n % 5));
    }
    let program = Program { nodes, default_class: NodeId(2), ..program() };
    let limits: Vec<Limit> =
        program.limits.iter().filter(|limit| limit.counts == Counts::Bytes).cloned().collect();
    let program = Program { limits, ..program };
    let settings = Settings { threads: THREADS, members: 256, epoch: Span::micros(100) };
    let mut coordinator = Coordinator::new(&program, settings).expect("a policy for threads");
    let classes = (0..).map(NodeId).zip(&program.nodes).filter(|(_, node)| node.children.is_empty());
    let placed = classes.map(|(class, node)| {
        let limits = if class.0 % 2 == 0 { vec![LimitId(0)] } else { vec![] };
        assert!(matches!(node.kind, NodeKind::Class(_)));
        Placement { class, limits }
    });
    let joined = placed.enumerate().map(|(n, placement)| coordinator.join(&placement, n % THREADS));
    let members: Vec<MemberId> = joined.collect::<Result<_, _>>().expect("there is room");
    let exchange = Exchange::new(&coordinator);
    let mut taken: Vec<Taken> = (0..THREADS).map(|_| exchange.taken()).collect();
    let (mut left, mut leased) = (vec![0_u64; members.len()], 0);
    let region = Region::new(ALLOCATOR);
    for epoch in 1..200_u64 {
        for (n, (&member, left)) in members.iter().zip(&mut left).enumerate() {
            *left += (n as u64 * 7_919 + epoch * 104_729) % 2_000;
            let waiting = (n as u64 * 31 + epoch * 17) % 50 * 1_000;
            exchange.report(n % THREADS, member, Report { left: *left, waiting });
        }
        exchange.collect(&mut coordinator);
        coordinator.handle_epoch(Nanos::new(epoch * 100_000));
        exchange.publish(&coordinator);
        for (thread, taken) in taken.iter_mut().enumerate() {
            let lease = exchange.take(thread, taken).expect("one was published");
            leased += lease.nodes.len() + lease.limits.len();
        }
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "in 199 epochs");
    assert!(leased > 10_000, "only {leased} parts were leased: nothing was proven about them");
}

/// Bytes that an engine with `classes` idle classes of a flow queue each holds, and what it says.
fn held(kind: NodeKind, classes: u32) -> (usize, plimsoll_nic::Footprint) {
    let mut nodes = vec![node(None, kind, 1)];
    for n in 0..classes {
        let class = add(&mut nodes, NodeId(0), NodeKind::Class(FlowOrder::Fifo), 1);
        nodes[class.0 as usize].rate = BitRate::new(1_000_000 + 1_000 * u64::from(n % 7));
    }
    let program = Program { nodes, limits: vec![], default_class: NodeId(1), ..program() };
    // Fewer descriptors than flow queues: those without any have no record.
    let config = Config { queues: classes, ring: 8, descriptors: 4_096, ..Config::default() };
    let said = plimsoll_nic::footprint(&program, &config);
    let region = Region::new(ALLOCATOR);
    let mut nic = Nic::new(&program, &config);
    for class in (1..).map(NodeId).take(classes as usize) {
        nic.open_queue(&Placement { class, limits: vec![] }).expect("queues are left");
    }
    let change = region.change();
    let copied = Region::new(ALLOCATOR);
    let policy = program.clone();
    let policy_bytes = copied.change().bytes_allocated;
    drop((nic, policy));
    (change.bytes_allocated - change.bytes_deallocated - policy_bytes, said)
}

/// `footprint` agrees with the allocator's count for an idle class and its counters, and the scheduler's part is as small as
/// promised.
fn an_idle_class_takes_what_is_said() {
    for kind in
        [NodeKind::RateShare(Form::Grouped), NodeKind::RateShare(Form::Exact), NodeKind::Wfq, NodeKind::Drr]
    {
        // Powers of two, at which what doubles has just done so, or is about to.
        let ((few, _), (many, said)) = (held(kind, 16_384), held(kind, 32_768));
        let counted = (many - few) as u64 / 16_384;
        let counters = said.beside.iter().find(|part| part.what == "counters").map_or(0, |part| part.bytes);
        let stated = said.class_bytes + counters;
        println!(
            "{kind:?}: {} B of scheduler and {counters} B of counters said, {counted} B counted",
            said.class_bytes
        );
        assert!(counted.abs_diff(stated) <= 4, "{kind:?}: {counted} B counted, {stated} B said");
        assert!(said.class_bytes <= 64, "{kind:?}: {} B for an idle class", said.class_bytes);
    }
}

/// The policy with a rank program above three more classes.
fn with_ranks(mut program: Program) -> Program {
    let code = plimsoll_rank::Program::parse(
        "state sent[class] = 0\nenqueue { rank = sent[class] / class.weight; if now > 9 { sent[class] = sent[class] + packet.len } }\n\
         dequeue { sent[class] = max(sent[class], packet.rank) }",
    );
    let code = code.expect("a program").into();
    program.ranks.push(RankProgram { module: "wfq.rank".into(), code, instructions: 50 });
    let ranked = add(&mut program.nodes, NodeId(0), NodeKind::Program(RankId(0)), 2);
    (0..3).for_each(|n| {
        _ = add(&mut program.nodes, ranked, NodeKind::Class(FlowOrder::Ranked(Span::millis(1))), 1 + n)
    });
    program
}

fn a_hundred_thousand_packets_allocate_nothing(descriptors: u32) {
    let program = with_ranks(program());
    let mut nic = Nic::new(&program, &Config { queues: 512, ring: 16, descriptors, ..Config::default() });
    let with_rate = (0..).map(NodeId).zip(&program.nodes).filter(|(_, node)| node.rate.is_some());
    let nodes_with_rates: Vec<NodeId> = with_rate.map(|(id, _)| id).collect();
    let classes = (0..).map(NodeId).zip(&program.nodes).filter(|(_, node)| node.children.is_empty());
    let choices: [&[u32]; 5] = [&[], &[0], &[1], &[0, 2], &[1, 2]];
    let (mut queues, mut places) = (Vec::new(), Vec::new());
    for (n, (class, _)) in classes.enumerate() {
        for k in 0..4 {
            let limits = choices[(n + k) % 5].iter().map(|&limit| LimitId(limit)).collect();
            places.push(Placement { class, limits });
            queues.push(nic.open_queue(&places[places.len() - 1]).expect("queues are left"));
        }
    }
    let mut host = Host {
        nic,
        queues,
        paced: nodes_with_rates,
        doorbells: DoorbellQueue::with_capacity(256),
        out: Vec::with_capacity(32),
        now: Nanos::ZERO,
        step: 1,
        packets: 0,
    };
    (0..50).for_each(|_| host.step());
    // A reload allocates, and packets after it do not.
    host.nic.install(&program, &mut |queue| places[queue.0 as usize].clone(), host.now);
    (0..50).for_each(|_| host.step());
    let (region, before) = (Region::new(ALLOCATOR), host.packets);
    while host.packets < before + 100_000 {
        host.step();
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "in {} packets", host.packets - before);
    let waits: u64 = (0..3).map(|limit| host.nic.limit_counters(LimitId(limit)).parked).sum();
    assert!(waits > 1_000, "limits held only {waits} times: nothing was proven about them");
    assert!(host.nic.tenant_counters(TenantId(0)).refused.iter().sum::<u64>() > 0, "no ring was ever full");
}
