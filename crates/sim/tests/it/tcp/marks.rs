//! The part of packets that DCTCP has marked, and what each of Linux's rules does to it.
//!
//! From: Alizadeh et al. (SIGCOMM 2010, §3.3) derive sqrt(2 / W) for a window that grows continuously, and falls at once and by
//! the part that was marked. The model below is such a sender, packet by packet, with a switch for each rule by which Linux
//! differs: it says which of them costs how many marks, and what is left for our TCP to explain.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use plimsoll_scenario::WorkloadResult;
use plimsoll_sim::tcp::Config;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::pipe::{Dice, Link, Pipe};
use crate::support::first_run;

/// A frame's time at 10 Gb/s, and the path's, in us.
const FRAME: f64 = 1.2112;
const PATH: f64 = 100.0;
/// Packets in the queue above which one is marked.
const THRESHOLD: usize = 65;
const FLOWS: [usize; 4] = [1, 2, 4, 8];

/// The rules of Linux that the derivation leaves out.
#[derive(Clone, Copy, Default)]
struct Rules {
    /// The window does not grow in the round trip in which it falls.
    holds: bool,
    /// It grows by a whole packet once in a round trip.
    steps: bool,
    /// It falls as acknowledgements come (RFC 6937), and not at once.
    gradual: bool,
    /// It falls by whole packets, and alpha has steps of 1/1,024.
    whole: bool,
    /// Every second packet is acknowledged, and each change of marking (RFC 8257 §3.2).
    pairs: bool,
    /// The most by which either host is late to take a packet in, in us.
    jitter: f64,
}

/// A sender, in packets.
struct Flow {
    rules: Rules,
    window: f64,
    threshold: f64,
    progress: f64,
    una: u64,
    nxt: u64,
    alpha: f64,
    acked: u64,
    marked: u64,
    window_end: u64,
    /// While the window falls: the end of the phase, the window at its start, and what has arrived and left in it.
    falls: Option<(u64, f64, u64, u64)>,
    /// At the receiver: packets that are not acknowledged yet, and whether the latest was marked.
    owed: (u64, bool),
    /// When each end has taken in its latest packet.
    taken_in: [f64; 2],
}

impl Flow {
    fn new(rules: Rules) -> Self {
        Self {
            rules,
            window: 10.0,
            threshold: f64::INFINITY,
            progress: 0.0,
            una: 0,
            nxt: 0,
            alpha: 1.0,
            acked: 0,
            marked: 0,
            window_end: 0,
            falls: None,
            owed: (0, false),
            taken_in: [0.0; 2],
        }
    }

    /// A packet has arrived: the acknowledgements that it causes, of so many packets, with the echo.
    fn receive(&mut self, marked: bool) -> [(u64, bool); 2] {
        let (owed, before) = self.owed;
        let changed = marked != before;
        let due = !self.rules.pairs || changed || owed == 1;
        self.owed = (if due { 0 } else { 1 }, marked);
        match (due, changed) {
            (true, true) => [(owed, before), (1, marked)],
            (true, false) => [(owed + 1, marked), (0, marked)],
            (false, _) => [(0, marked); 2],
        }
    }

    fn handle_ack(&mut self, packets: u64, marked: bool) {
        self.una += packets;
        self.estimate(packets, marked);
        if let Some((end, ..)) = self.falls
            && self.una > end
        {
            self.falls = None;
            if self.rules.gradual {
                self.window = self.threshold;
            }
        }
        if marked && self.falls.is_none() {
            self.begin_to_fall();
        }
        match &mut self.falls {
            Some((_, before, arrived, left)) if self.rules.gradual => {
                *arrived += packets;
                let pipe = (self.nxt - self.una) as f64;
                let share = if pipe > self.threshold {
                    (self.threshold * *arrived as f64 / *before).ceil() - *left as f64
                } else {
                    (arrived.saturating_sub(*left).max(packets) as f64 + 1.0).min(self.threshold - pipe)
                };
                self.window = pipe + share.max(if *left == 0 { 1.0 } else { 0.0 });
            }
            Some(_) if self.rules.holds => {}
            _ => self.grow(packets as f64),
        }
    }

    fn estimate(&mut self, packets: u64, marked: bool) {
        self.acked += packets;
        self.marked += if marked { packets } else { 0 };
        if self.una < self.window_end {
            return;
        }
        let part = self.marked as f64 / self.acked as f64;
        if self.rules.whole {
            let alpha = self.alpha * 1_024.0;
            let less = if alpha < 16.0 { alpha } else { (alpha / 16.0).floor() };
            self.alpha = (alpha - less + (part * 64.0).floor()).min(1_024.0) / 1_024.0;
        } else {
            self.alpha += (part - self.alpha) / 16.0;
        }
        (self.acked, self.marked, self.window_end) = (0, 0, self.nxt);
    }

    fn begin_to_fall(&mut self) {
        let less = self.window * self.alpha / 2.0;
        self.threshold = (self.window - if self.rules.whole { less.floor() } else { less }).max(2.0);
        self.falls = Some((self.nxt, self.window, 0, 0));
        self.progress = 0.0;
        if !self.rules.gradual {
            self.window = self.threshold;
        }
    }

    fn grow(&mut self, packets: f64) {
        if self.window < self.threshold {
            self.window += packets;
        } else if self.rules.steps {
            self.progress += packets;
            if self.progress >= self.window {
                self.progress -= self.window;
                self.window += 1.0;
            }
        } else {
            self.window += packets / self.window;
        }
    }

    fn send(&mut self) -> bool {
        let may = (self.nxt - self.una + 1) as f64 <= self.window + 1e-9;
        self.nxt += u64::from(may);
        if let Some((_, _, _, left)) = &mut self.falls {
            *left += u64::from(may);
        }
        may
    }

    /// When one of its ends takes a packet in that arrives at `at`.
    fn take_in(&mut self, end: usize, at: f64, dice: &mut Dice) -> f64 {
        let part = (dice.next() >> 11) as f64 / (1_u64 << 53) as f64;
        self.taken_in[end] = self.taken_in[end].max(at + part * self.rules.jitter);
        self.taken_in[end]
    }
}

/// When a sender hears of a packet (in picoseconds), in which order, the flow, and whether the packet was marked; `None` is a start.
type Event = (u64, u64, usize, Option<bool>);

/// The marked part of the packets of these many flows of the model, from 150 ms to 500 ms; with jitter the median of three runs.
///
/// Linux's alpha, in 1/1,024, can stay where it is below 16 of them: it then falls to zero in each window, and a window of fewer
/// than 1 / alpha packets does not fall. The first of three runs with one flow ends so.
fn of_model(flows: usize, rules: Rules) -> f64 {
    if rules.jitter == 0.0 {
        return of_run(flows, rules, 1);
    }
    let mut parts: Vec<f64> = (1..=3).map(|seed| of_run(flows, rules, seed)).collect();
    parts.sort_by(f64::total_cmp);
    parts[1]
}

fn of_run(flows: usize, rules: Rules, seed: u64) -> f64 {
    let mut flows: Vec<Flow> = (0..flows).map(|_| Flow::new(rules)).collect();
    let mut events: BinaryHeap<Reverse<Event>> = BinaryHeap::new();
    let mut order = 0;
    let mut queue: VecDeque<f64> = VecDeque::new();
    let mut dice = Dice::new(seed);
    let (mut packets, mut marks) = (0_u32, 0_u32);
    for flow in 0..flows.len() {
        events.push(Reverse((flow as u64 * 7_000_000, 0, flow, None)));
    }
    while let Some(Reverse((at, _, number, packet))) = events.pop() {
        let (now, flow) = (at as f64 / 1e6, &mut flows[number]);
        if now > 500e3 {
            break;
        }
        if let Some(marked) = packet {
            let acks = flow.receive(marked);
            acks.into_iter()
                .filter(|ack| ack.0 > 0)
                .for_each(|(packets, echo)| flow.handle_ack(packets, echo));
        }
        while flow.send() {
            while queue.front().is_some_and(|&leaves| leaves <= now) {
                queue.pop_front();
            }
            let marked = queue.len() > THRESHOLD;
            let leaves = queue.back().map_or(now, |&last| last.max(now)) + FRAME;
            queue.push_back(leaves);
            let there = flow.take_in(0, leaves + PATH / 2.0, &mut dice);
            let back = flow.take_in(1, there + PATH / 2.0, &mut dice);
            order += 1;
            events.push(Reverse(((back * 1e6) as u64, order, number, Some(marked))));
            if now > 150e3 {
                packets += 1;
                marks += u32::from(marked);
            }
        }
    }
    f64::from(marks) / f64::from(packets)
}

/// The marked part of the packets of our TCP, at a bottleneck that is nothing but a queue.
fn of_ours(flows: usize, delayed_ack: Span) -> f64 {
    let mut pipe = Pipe::new(Link {
        limit: Bytes::kib(4_096),
        mark_above: Some(Bytes::new(THRESHOLD as u64 * 1_514)),
        ..Link::new(BitRate::gbps(10), Span::micros(100))
    });
    for flow in 0..flows as u64 {
        pipe.add(&Config { delayed_ack, ..Config::dctcp() }, None, Nanos::new(flow * 7_000));
    }
    let count = |pipe: &Pipe| {
        let stats = pipe.flows.iter().map(|flow| flow.receiver.stats());
        stats.fold((0, 0), |(marked, all), stats| (marked + stats.marked, all + stats.segments))
    };
    pipe.run_until(Nanos::new(150_000_000));
    let before = count(&pipe);
    pipe.run_until(Nanos::new(500_000_000));
    let after = count(&pipe);
    (after.0 - before.0) as f64 / (after.1 - before.1) as f64
}

/// The marked part of the packets of whole hosts with the usual jitter: two frames, 2.4 us.
fn of_hosts(flows: usize) -> f64 {
    let run = first_run(&format!(
        "
name: marks
rate: 40Gbps
duration: 500ms
systems: [fifo]
repeat: {{h: {flows}}}
hosts: [h<h>, sink]
switches: [core]
links:
  h<h>: {{between: [h<h>, core], rate: 40Gbps, delay: 25us}}
  sink: {{between: [core, sink], rate: 10Gbps, delay: 25us, queue: 4MB, ecn: 98.41kB}}
tenants: {{one<h>: {{host: h<h>}}, files: {{host: sink}}}}
workloads: {{up<h>: {{tenant: one<h>, kind: bulk, to: files, congestion: dctcp}}}}
"
    ));
    let sum = |part: fn(&WorkloadResult) -> u64| run.workloads.values().map(part).sum::<u64>() as f64;
    sum(|flow| flow.echoed.map_or(0, |[client, _]| client)) / sum(|flow| flow.packets)
}

/// sqrt(2 / W), where W is a flow's window when the queue has reached the threshold.
fn theory(flows: usize) -> f64 {
    (2.0 * flows as f64 / (PATH / FRAME + THRESHOLD as f64)).sqrt()
}

/// With few flows the model has a little more marked: its window falls by what alpha is after a cycle without marks, and the
/// derivation's by alpha's mean.
#[test]
fn by_the_papers_assumptions_the_model_gives_the_papers_part() {
    for flows in FLOWS {
        let ratio = of_model(flows, Rules::default()) / theory(flows);
        assert!((0.97..1.15).contains(&ratio), "{flows} flows: {ratio:.2} of the theory");
    }
}

/// What DCTCP has marked less than the theory says is all due to these rules: an independent model that keeps them has the same
/// part marked as our TCP, and as the simulator's hosts.
#[test]
fn by_linux_rules_the_model_gives_our_part() {
    let [holds, steps, gradual, whole, pairs] = [true; 5];
    let linux = Rules { holds, steps, gradual, whole, ..Rules::default() };
    let late = Rules { pairs, jitter: 2.423, ..linux };
    let rows = [
        ("the paper's assumptions", Rules::default()),
        ("+ holds", Rules { holds, ..Rules::default() }),
        ("+ grows by packets", Rules { holds, steps, ..Rules::default() }),
        ("+ falls gradually", Rules { holds, steps, gradual, ..Rules::default() }),
        ("+ falls by packets", linux),
        ("+ pairs", Rules { pairs, ..linux }),
        ("+ jitter", late),
    ];
    let print = |name: &str, parts: &dyn Fn(usize) -> f64| {
        println!("{name:25}{}", FLOWS.map(|flows| format!(" {:.3}", parts(flows))).concat());
    };
    print("theory", &theory);
    rows.into_iter().for_each(|(name, rules)| print(name, &|flows| of_model(flows, rules)));
    print("ours, each acknowledged", &|flows| of_ours(flows, Span::ZERO));
    print("ours, every second", &|flows| of_ours(flows, Span::micros(500)));
    print("hosts", &of_hosts);
    for flows in FLOWS {
        let (model, ours) = (of_model(flows, linux), of_ours(flows, Span::ZERO));
        assert!((0.97..1.03).contains(&(ours / model)), "{flows} flows: {ours:.4}, the model {model:.4}");
        let (model, hosts) = (of_model(flows, late), of_hosts(flows));
        assert!((0.9..1.1).contains(&(hosts / model)), "{flows} hosts: {hosts:.4}, the model {model:.4}");
    }
}
