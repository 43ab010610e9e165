//! The keys of scenario files, mapping by mapping.
//!
//! Why: one table says which keys the reader takes, and what an author's editor offers and checks.
//! From: `docs/scenarios.md`.
//! Not here: reading the values (`read`), the policy's sections (`plimsoll-policy`), the shape of the tables (`document`).
//! Invariant: a key is read if and only if it stands here; `tests/it/language.rs` tries each.

mod partition;
mod program_cost;
mod workload;

use plimsoll_document::{Shape, mapping};
use plimsoll_units::{BitRate, Bytes, Frequency, PacketRate, Span};

pub(crate) use self::partition::{CACHE, COPROCESSOR, MEMORY_USE, PARTITION};
pub(crate) use self::program_cost::{MOST_CYCLES, MOST_ENGINES, PROGRAMS, UNIT, UNITS};
use self::workload::WORKLOAD_OF_A_KIND;
pub(crate) use self::workload::{KINDS, MOST_WINDOW, TCP, WORKLOAD};
use Shape::{Any, Either, Elsewhere, Flag, Map, Named, Optional, Part, Scalar, Whole, Words};

use crate::network::TransmitCompletions;
use crate::system::SystemKind;

/// The JSON Schema of scenario files.
#[must_use]
pub fn schema() -> serde_json::Value {
    SCENARIO.schema("Plimsoll scenario")
}

/// Times that the list of systems may be run.
pub(crate) const MOST_PAIRS: u32 = 1_000;

const RATE: Shape = Shape::Unit(Shape::unit::<BitRate>);
const PACKET_RATE: Shape = Shape::Unit(Shape::unit::<PacketRate>);
const FREQUENCY: Shape = Shape::Unit(Shape::unit::<Frequency>);
const SIZE: Shape = Shape::Unit(Shape::unit::<Bytes>);
const TIME: Shape = Shape::Unit(Shape::unit::<Span>);
const NUMBER: Shape = Whole(0, u32::MAX as u64);
const NAMES: Shape = Shape::List(&Scalar, 0, usize::MAX);
const EXPECTATIONS: Shape = Shape::List(&Either(&[Scalar, Map(&EXPECTATION)]), 0, usize::MAX);
const COMPLETIONS: Shape = Shape::Listed(|| TransmitCompletions::NAMES.map(|(name, _)| name).to_vec());
const LOAD_BALANCING: Shape = Words(&[
    ("ecmp", "By a hash of the flow: each flow takes one way."),
    ("spray", "At random, for each packet."),
]);
const KINDS_OF_SYSTEMS: Shape = Shape::Listed(|| SystemKind::ALL.map(SystemKind::name).to_vec());

mapping! {
    /// A scenario: the traffic to run, the systems to run it on, and the results to expect.
    pub static SCENARIO = "Scenario" + SECTIONS + POLICY {
        /// Keys that differ in virtual time; maps are merged, and `~` takes a key away.
        virtual: Shape::KeysOf(&VIRTUAL),
    }

    /// The keys of a scenario, except `virtual` and its policy.
    pub(crate) static SECTIONS = "Sections" {
        /// Its name in tables and reports.
        name = "noisy-neighbour": Shape::Pattern("^[A-Za-z0-9_-]+$"),
        /// A description for its readers.
        about: Scalar,
        /// Rate of the uplink.
        rate = "100Mbps": RATE,
        /// Largest IP packet.
        mtu: Whole(1, 9_000),
        /// Length of each run.
        duration = "20s": TIME,
        /// Times that the list of systems is run; medians are compared.
        pairs: Whole(1, MOST_PAIRS as u64),
        /// Whether, live, systems take turns in one world.
        one_world: Flag,
        /// Seed of everything random.
        seed: Whole(0, u64::MAX),
        /// The most by which a host is late to take in a packet of TCP, in virtual time.
        jitter: TIME,
        /// How late sleeps end, in virtual time: those of HTB's timer, and of the engine's thread.
        wake: Either(&[TIME, Map(&WAKE)]),
        /// Whether tenants use segmentation offload.
        offload: Flag,
        /// Machines, as a list of names or a map from names to their keys.
        hosts: Either(&[NAMES, Named(&Map(&HOST))]),
        /// Nodes that only forward.
        switches: NAMES,
        /// Links between hosts, switches and destinations.
        links: Named(&Map(&LINK)),
        /// How packets are spread over equal ways, in virtual time.
        load_balancing: LOAD_BALANCING,
        /// The overlay that tenants' packets travel in between hosts, in virtual time; live it is Geneve.
        overlay: Words(&[("none", ""), ("geneve", "RFC 8926."), ("vxlan", "RFC 7348.")]),
        /// Control of senders by receivers.
        control: Map(&CONTROL),
        /// The tenants.
        tenants = "{shop: {min: 20Mbps}, batch: {}}": Named(&Map(&TENANT)),
        /// Places beyond the uplink, as a list of names or a map to addresses.
        destinations: Either(&[NAMES, Named(&Optional(&Scalar))]),
        /// The systems to compare.
        systems = "[fifo, htb, plimsoll]":
            Shape::List(&Either(&[KINDS_OF_SYSTEMS, Shape::NamedOnce(&Map(&SYSTEM))]), 1, usize::MAX),
        /// The tenants' traffic.
        workloads = "{few: {tenant: shop, kind: bulk, flows: 4}}": Named(&WORKLOAD_OF_A_KIND),
        /// Changes during the run.
        timeline: Shape::List(&Map(&MOMENT), 0, usize::MAX),
        /// Faults to inject.
        faults: Map(&FAULTS),
        /// How backpressure differs in experiments, in virtual time.
        backpressure_model: Map(&BACKPRESSURE_MODEL),
        /// The measurements to take.
        measure: Map(&MEASURE),
        /// Values of this file to vary, by their path.
        sweep: Named(&Shape::List(&Any, 1, usize::MAX)),
        /// Expectations that the results must meet.
        expect: EXPECTATIONS,
        /// The experiment of a paper that this scenario repeats.
        paper: Map(&PAPER),
        /// `false` for virtual time alone.
        live: Flag,
        /// The short form, for test suites.
        short: Map(&SHORT),
        /// How many there are of each name written in `<>`.
        repeat: Named(&Whole(1, 10_000)),
    }

    /// Quantiles of how late sleeps end, as `plimsoll bench wakeups` prints them.
    pub(crate) static WAKE = "Wake" {
        /// The least.
        min = "5us": TIME,
        /// The median.
        p50 = "20us": TIME,
        /// Nine tenths of all sleeps end no later.
        p90 = "40us": TIME,
        /// 99 of 100 end no later.
        p99 = "80us": TIME,
        /// 999 of 1,000 end no later.
        p99_9 = "500us": TIME,
        /// 9,999 of 10,000 end no later.
        p99_99 = "1ms": TIME,
        /// The latest.
        max = "2ms": TIME,
    }

    /// The keys that `virtual` may replace.
    pub(crate) static VIRTUAL = "Virtual" + SECTIONS + POLICY {}

    /// The policy of a scenario, or of one of its hosts or systems.
    pub(crate) static POLICY = "PolicySections" {
        /// Classes, as in a policy file.
        policy: Elsewhere(&plimsoll_policy::CLASSES),
        /// Limits, as in a policy file.
        limits: Elsewhere(&plimsoll_policy::LIMITS),
        /// The engine, as in a policy file.
        engine: Elsewhere(&plimsoll_policy::ENGINE_KEYS),
        /// Backpressure on heavy hitters, as in a policy file; a system may switch it `off`.
        backpressure: Elsewhere(&BACKPRESSURE),
        /// A policy file to take these sections from.
        policy_file: Scalar,
    }

    pub(crate) static HOST = "Host" + POLICY {
        /// The device in front of its link.
        nic: Words(&[("engine", ""), ("fifo", "")]),
        /// Its receive ring.
        receive: Map(&RECEIVE),
        /// A SmartNIC's cores, in virtual time.
        partition: Map(&PARTITION),
        /// The engine's CPU time.
        cpu: Map(&CPU),
        /// CPU time of its tenants' cores.
        cores: Map(&CORES),
        /// The core's time that its tenants' programs take, in virtual time.
        programs: Map(&PROGRAMS),
        /// Its tenants' transmit rings.
        transmit: Map(&TRANSMIT),
        /// Its PCIe bus.
        pcie: Map(&PCIE),
        /// Most packets a second that its NIC sends, and that it receives.
        packet_rate: PACKET_RATE,
    }

    pub(crate) static RECEIVE = "Receive" {
        /// Packets that wait for the CPU.
        ring: Whole(1, 1 << 20),
        /// CPU time to fetch a packet and find its tenant.
        drain: TIME,
        /// CPU time to deliver a packet that was fetched.
        cost: TIME,
        /// Packets of each tenant that wait once fetched.
        slots: Whole(1, 1 << 16),
        /// Packets that wait from which on ECN-capable packets are marked, in virtual time.
        ecn: Whole(1, 1 << 20),
        /// Part of the CPU for fetching.
        drain_share: Part,
        /// CPU time of everything else in each of the engine's rounds.
        round: TIME,
        /// Whether these times are means.
        vary: Flag,
    }

    pub(crate) static CPU = "Cpu" {
        /// The engine's CPU time to accept a packet.
        process: TIME,
        /// The engine's CPU time to send a packet.
        pull: TIME,
    }

    pub(crate) static CORES = "Cores" {
        /// CPU time of a tenant's core to answer a request.
        answer: TIME,
        /// CPU time of a tenant's core to send a packet.
        send: TIME,
    }

    pub(crate) static TRANSMIT = "Transmit" {
        /// Descriptors that a tenant may have outstanding.
        ring: Whole(1, 1 << 16),
        /// When descriptors complete.
        completions: COMPLETIONS,
    }

    pub(crate) static PCIE = "Pcie" {
        /// Rate of all lanes together.
        rate: RATE,
        /// Time from a read request to its data.
        latency: TIME,
        /// Payload of a packet on the bus.
        tlp: SIZE,
        /// Bytes that each packet on the bus costs beyond its payload.
        overhead: SIZE,
        /// Bytes that the NIC reads for each packet beside the packet itself.
        descriptor: SIZE,
        /// Read requests outstanding at a time.
        outstanding: Whole(1, 1 << 16),
    }

    pub(crate) static LINK = "Link" {
        /// Both ends, for a link in both directions.
        between: Shape::List(&Scalar, 2, 2),
        /// The host, switch or destination at which a link in one direction begins.
        from: Scalar,
        /// The host, switch or destination at which it ends.
        to: Scalar,
        /// Rate of the link.
        rate = "10Gbps": RATE,
        /// Time from the last bit sent to the last bit received.
        delay: TIME,
        /// Bytes that may wait.
        queue: SIZE,
        /// Bytes of queue from which packets are marked.
        ecn: SIZE,
        /// Part of the packets that is lost.
        loss: Part,
        /// Active queue management of its queue, in virtual time.
        aqm: Either(&[Words(&[("codel", "RFC 8289."), ("pie", "RFC 8033.")]), Shape::OneOf(&AQM)]),
        /// Most that a packet is late beyond `delay`, in virtual time.
        jitter: TIME,
        /// Packets that others overtake, in virtual time.
        reorder: Map(&REORDER),
        /// Bursts of loss, in virtual time.
        burst_loss: Map(&BURST_LOSS),
    }

    pub(crate) static AQM = "Aqm" {
        /// Random early detection.
        red: Map(&RED),
        /// Controlled delay.
        codel: Map(&CODEL),
        /// Proportional integral controller enhanced.
        pie: Map(&PIE),
    }

    pub(crate) static RED = "Red" {
        /// Average length of the queue from which packets are dropped or marked.
        min = "30kB": SIZE,
        /// Average length from which all are dropped.
        max: SIZE,
        /// The part that is dropped or marked just below `max`.
        probability: Part,
        /// Weight of the present length in the average.
        weight: Part,
    }

    pub(crate) static CODEL = "Codel" {
        /// How long packets may wait at all times.
        target: TIME,
        /// How long they may wait for longer before one is dropped or marked.
        interval: TIME,
    }

    pub(crate) static PIE = "Pie" {
        /// How long packets are to wait.
        target: TIME,
        /// How often its probability changes.
        update: TIME,
    }

    pub(crate) static REORDER = "Reorder" {
        /// The part of the packets that others overtake.
        part = "1%": Part,
        /// Most that they are late.
        late: TIME,
    }

    pub(crate) static BURST_LOSS = "BurstLoss" {
        /// The chance that a burst begins at a packet.
        enter = "0.1%": Part,
        /// The chance that a burst ends at a packet.
        leave = "10%": Part,
        /// The part of the packets that is lost in a burst.
        loss: Part,
    }

    pub(crate) static CONTROL = "Control" {
        /// Time from one decision to the next.
        epoch: TIME,
        /// Time from a receiver's decision until its senders obey.
        feedback: TIME,
        /// How long a sender obeys a limit that is not repeated.
        lapse: TIME,
        /// Rate of a sender towards a receiver that is silent.
        fallback: RATE,
        /// Delay at the receiver to which packet rates are held.
        threshold: TIME,
        /// Part of an error that is corrected in an epoch, upward.
        gain: Part,
        /// Part of an error that is corrected in an epoch, downward.
        cut: Part,
        /// Epochs that a further cut waits while the queue becomes shorter by itself.
        patience: Whole(0, 1_000),
        /// Weight of the newest epoch in the average of delays.
        newest: Part,
        /// Whether ECN marks of the fabric slow senders down.
        ecn: Flag,
        /// Tenants that are load balancers, each with its weight.
        balancers: Named(&Optional(&NUMBER)),
        /// Use of an idle tenant's `min`.
        idle: Words(&[("reserved", ""), ("lent", "")]),
    }

    pub(crate) static SYSTEM_CONTROL = "SystemControl" + CONTROL {
        /// How much of `control` the system has.
        level: LEVELS,
    }

    pub(crate) static TENANT = "Tenant" {
        /// One of `hosts`, or a list of them.
        host: Shape::OneOrMore(&Scalar),
        /// The core that it runs on, in virtual time.
        core: Scalar,
        /// Guaranteed rate.
        min: RATE,
        /// Rate that it never exceeds.
        max: RATE,
        /// Its envelope for receiving, where it differs from that for sending.
        ingress: Elsewhere(&plimsoll_policy::INGRESS_KEYS),
        /// The longest delay for a percentage of the packets, such as `{p50: 20us, p99: 100us}`.
        delay: Elsewhere(&plimsoll_policy::DELAY),
        /// Share of the rest.
        weight: Whole(1, plimsoll_policy::MAX_WEIGHT as u64),
        /// File with the policy below it.
        policy: Elsewhere(&Shape::Text),
        /// Bytes that may leave at once under `max`.
        burst: Elsewhere(&SIZE),
        /// Limits that it sends through.
        via: Elsewhere(&plimsoll_policy::NAMES),
        /// How its flows are ordered, where nothing below it orders them.
        flows: Elsewhere(&plimsoll_policy::FLOWS),
        /// Slack of packets that bring none.
        slack: Elsewhere(&TIME),
        /// Deadline of packets that bring none.
        deadline: Elsewhere(&TIME),
        /// Descriptors that it may have in the engine.
        descriptors: Elsewhere(&plimsoll_policy::DESCRIPTORS),
        /// Whether backpressure may change its packets' ECN bits.
        ecn: Elsewhere(&plimsoll_policy::ECN_KEYS),
        /// The program that its packets pass; its `module` is a path beside this file.
        program: Elsewhere(&plimsoll_policy::PROGRAM_KEYS),
        /// Whether it forwards packets that are not its own, as a gateway.
        forwards: Flag,
        /// ECN of its TCP: 0 never, 1 asked for and accepted, 2 accepted.
        tcp_ecn: Whole(0, 2),
    }

    pub(crate) static SYSTEM = "System" + POLICY {
        /// Its kind, where its name is none.
        kind: KINDS_OF_SYSTEMS,
        /// How received packets are served.
        ingress: Words(&[("fair", ""), ("shared", "")]),
        /// How much of `control` it has; or a map with `level` and the keys of `control` that differ for it.
        control: Either(&[LEVELS, Map(&SYSTEM_CONTROL)]),
        /// When descriptors complete.
        completions: COMPLETIONS,
        /// Whether each tenant has descriptors of its own.
        accounting: Flag,
        /// Whether coprocessors divide their time among tenants, in virtual time.
        limiter: Flag,
        /// Whether each tenant has colours of its own in the caches of SmartNICs, in virtual time.
        stripes: Flag,
        /// Whether `faults` are injected here.
        faults: Flag,
        /// Transmit queues of `mq`.
        queues: Whole(1, 256),
        /// Rate to which each queue of `mq` is held.
        queue_rate: RATE,
        /// How its packets are spread over equal ways, in virtual time.
        load_balancing: LOAD_BALANCING,
        /// Its tenants, as in a policy file.
        tenants: Elsewhere(&Named(&Any)),
        /// Time that an operation under HTB's lock takes, in virtual time.
        lock: TIME,
        /// CPU time of a packet on the sending core of `ptb`.
        cost: TIME,
        /// Limiters of `hwrl`.
        limiters: Whole(1, 4_096),
        /// How often `hwrl` gives the busiest tenants a limiter each.
        reassign: TIME,
        /// Timing of `class_fetch`.
        fetch: Map(&FETCH),
        /// How its backpressure differs in experiments, in virtual time.
        backpressure_model: Map(&BACKPRESSURE_MODEL),
    }

    pub(crate) static BACKPRESSURE_MODEL = "BackpressureModel" {
        /// One of this many packets of a flow is marked, whatever rate it is to have.
        interval: Whole(1, u32::MAX as u64),
        /// What a meter at the source does with packets beyond the rate.
        excess: Words(&[("wait", "They wait, as live."), ("drop", "They are dropped, as in MIMIC.")]),
        /// Hash buckets in which flows are counted: a power of two.
        buckets: Whole(2, 1 << 24),
        /// Flows that a bucket holds: 2, 4 or 8.
        slots: Whole(2, 8),
        /// Packets after which a flow's count moves from its bucket to the flow table.
        counter_cap: Whole(1, u32::MAX as u64),
    }

    pub(crate) static FETCH = "Fetch" {
        /// Modules that fetch at the same time.
        modules: Whole(1, 256),
        /// Time from a read over PCIe to its data.
        latency: TIME,
        /// Standard deviation of `latency`.
        sigma: TIME,
        /// Cycle of the scheduler's clock.
        cycle: TIME,
        /// Cycles of one iteration of the scheduler.
        cycles: Whole(1, 1_000),
        /// Bytes that a module fetches of a class at a time.
        burst: SIZE,
    }

    pub(crate) static MOMENT = "Moment" {
        /// Time from the start of the run.
        at = "2s": TIME,
        /// New rates of limits, by name.
        limits: Named(&RATE),
        /// New weights of classes and nodes, by name.
        weights: Named(&Whole(1, u32::MAX as u64)),
        /// New rates of children of `rate_share` nodes, by name.
        rates: Named(&RATE),
        /// The system whose policy is in force from then on.
        policy: Scalar,
    }

    pub(crate) static FAULTS = "Faults" {
        /// Faults of feedback messages.
        feedback: Map(&FEEDBACK),
        /// Hosts that send no feedback.
        silent: NAMES,
        /// Engines that stop and start again.
        restart: Shape::List(&Map(&RESTART), 0, usize::MAX),
        /// Clocks that are set.
        clock: Shape::List(&Map(&CLOCK), 0, usize::MAX),
        /// Tenants that stop reading.
        stalled: Shape::List(&Map(&STALL), 0, usize::MAX),
    }

    pub(crate) static FEEDBACK = "Feedback" {
        /// Part of the messages that never arrives.
        loss: Part,
        /// Part of the messages that arrives twice.
        duplicate: Part,
        /// Part of the messages that others overtake.
        reorder: Part,
        /// Longest delay of a message that others overtake.
        late: TIME,
    }

    pub(crate) static RESTART = "Restart" {
        /// The host.
        host = "host": Scalar,
        /// Time from the start of the run.
        at = "50ms": TIME,
        /// How long the host has no engine.
        gap: TIME,
    }

    pub(crate) static CLOCK = "Clock" {
        /// The host.
        host = "host": Scalar,
        /// Time from the start of the run.
        at = "50ms": TIME,
        /// Time by which the clock is set ahead.
        ahead: TIME,
        /// Time by which the clock is set back.
        back: TIME,
    }

    pub(crate) static STALL = "Stall" {
        /// The tenant.
        tenant = "shop": Scalar,
        /// Time from the start of the run.
        from = "50ms": TIME,
        /// Time from the start of the run.
        to: TIME,
    }

    pub(crate) static MEASURE = "Measure" {
        /// Length of the windows in which throughput is counted.
        window: TIME,
        /// Start of the window that an expectation means where it names none.
        from: TIME,
        /// End of that window.
        to: TIME,
        /// Time between two samples of `plimsoll sim --series`.
        interval: TIME,
        /// Whether CPU time is measured.
        cpu: Flag,
        /// Whether the moment of each packet is kept.
        gaps: Flag,
        /// Whether the packets that engines hold are counted.
        held: Flag,
        /// Whether the wait of each received packet is kept.
        ingress: Flag,
        /// Whether the wait of each sent packet is kept.
        egress: Flag,
    }

    pub(crate) static EXPECTATION = "Expectation" {
        /// The expectation, such as `plimsoll.shop.p99 <= 1.5 * fifo.shop.p99`.
        that = "plimsoll.shop.p99 <= 5ms": Scalar,
        /// The reason for it.
        because: Scalar,
        /// Points of the sweep at which it must hold.
        at: Named(&Any),
    }

    pub(crate) static PAPER = "Paper" {
        /// The id of the experiment (E), mechanism (M), claim of a cost or limit (C) or of security (S).
        id = "LO-E4": Shape::Pattern("^[A-Z]+-[EMCS][0-9]+$"),
        /// Where the paper shows it.
        figure = "Figure 9": Scalar,
        /// The result that it shows, in one line.
        shows = "equal shares, whatever the numbers of flows": Scalar,
        /// The paper's numbers, and ours.
        numbers = "[{paper: 2.5 Gb/s each, ours: plimsoll.shop.throughput}]": Shape::List(&Map(&PAPER_NUMBER), 1, usize::MAX),
        /// Differences from the paper, and why.
        differs: Scalar,
    }

    pub(crate) static PAPER_NUMBER = "Number" {
        /// The quantity that is counted.
        of: Scalar,
        /// The paper's number.
        paper = "2.5 Gb/s each": Scalar,
        /// One side of an expectation, such as `plimsoll.t1.throughput`.
        ours = "plimsoll.shop.throughput": Scalar,
        /// Points of the sweep that ours is taken from.
        at: Named(&Any),
    }

    pub(crate) static SHORT = "Short" {
        /// Factor of every moment.
        time: Shape::Number(0.01, 1.0),
        /// Times that the list of systems is run.
        pairs: Whole(1, MOST_PAIRS as u64),
        /// The systems to run.
        systems: NAMES,
        /// Expectations in place of the full form's.
        expect: EXPECTATIONS,
    }
}

const BACKPRESSURE: Shape = Either(&[Words(&[("off", "")]), plimsoll_policy::BACKPRESSURE_KEYS]);
const LEVELS: Shape = Words(&[("off", ""), ("bandwidth", ""), ("full", "")]);
