//! Cost of receivers' control of senders for each packet, by how often receivers decide.
//!
//! Why: PicNIC's Figure 12: at 10 us its feedback cost 22 % of the engines' time, and at 1 ms next to nothing.
//! From: one flow with acknowledgements between two hosts, a limit that never binds, virtual time; PN-E13, and PN-C2 part by
//! part of an engine's turn.
//! Not here: what control does for the tenants (`plimsoll papers --only PN`).
//! Invariant: both hosts' engines are charged, and nothing else; the sides carry the same frames at the same moments.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use plimsoll_daemon::{Part, Sent};
use plimsoll_units::{Nanos, Span};

use crate::hold::processor_time;
use crate::host::{Host, datagram, mac};
use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// The time between decisions, and the highest ratio of a packet's cost to that with [`SELDOM`] between them.
const EPOCHS: [(&str, Option<f64>); 5] =
    [("10us", None), ("50us", None), ("100us", None), ("500us", Some(1.05)), ("1ms", Some(1.02))];

/// As in the paper the limit is in force throughout; its own cost for a packet has a row of its own.
const SELDOM: &str = "100ms";

/// Frames in a step, and its length: 1,400 B at 9.3 Gb/s. Every second one is acknowledged.
const FRAMES: usize = 10;
const STEP: Span = Span::micros(12);

/// Turns, and between two of them, in which hosts that seal greet one another.
const GREETINGS: u32 = 40;
const GREETING: Span = Span::millis(5);

/// The connection between the hosts.
#[derive(Clone, Copy)]
enum Between {
    /// A wire, and one queue on the way in for all tenants, without packet accounting: nothing of PicNIC.
    Nothing,
    /// A wire.
    Wire,
    /// The overlay.
    Overlay,
    /// The overlay, whose frames are sealed.
    Sealed,
    /// The overlay, and receivers that decide after each such span.
    Control(&'static str),
    /// As the variant above, but feedback goes over the control channel, whose thread is not charged.
    Channel(&'static str),
}

/// The epoch at which each host's part is told.
const TOLD: usize = EPOCHS.len() - 1;

/// The parts of a turn, and what they are called.
const PARTS: [(Part, &str); 6] = [
    (Part::Fleet, "decide, tell and hear"),
    (Part::Read, "take from tenants and classify"),
    (Part::Depart, "schedule, limit, wrap and send"),
    (Part::Fetch, "fetch, unwrap and classify"),
    (Part::Deliver, "deliver by tenants' shares"),
    (Part::Complete, "complete"),
];

/// `rounds` times, the sides taking turns.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let (mut none, mut wire, mut off) = (Costs::default(), Costs::default(), Costs::default());
    let (mut seldom, mut on) = (Costs::default(), EPOCHS.map(|_| Costs::default()));
    let (mut channel, mut sealed) = (Costs::default(), Costs::default());
    let mut parts = PARTS.map(|_| [Vec::new(), Vec::new()]);
    for _ in 0..effort.rounds {
        none.add(cost(effort.packets, Between::Nothing)?);
        for (side, between) in [Between::Nothing, Between::Control(EPOCHS[TOLD].0)].into_iter().enumerate() {
            let costs = by_part(effort.packets, between)?;
            parts.iter_mut().zip(costs).for_each(|(part, cost)| part[side].push(cost));
        }
        wire.add(cost(effort.packets, Between::Wire)?);
        off.add(cost(effort.packets, Between::Overlay)?);
        sealed.add(cost(effort.packets, Between::Sealed)?);
        seldom.add(cost(effort.packets, Between::Control(SELDOM))?);
        channel.add(cost(effort.packets, Between::Channel(EPOCHS[TOLD].0))?);
        for ((epoch, _), on) in EPOCHS.iter().zip(&mut on) {
            on.add(cost(effort.packets, Between::Control(epoch))?);
        }
    }
    let name = |epoch: &str| format!("a flow between two hosts, receivers decide each {epoch}");
    let limits = Row::new(name(SELDOM), "ours, no feedback", "ns/packet").figures(&off.both, &seldom.both);
    let row = |((epoch, most), on): ((&str, Option<f64>), &Costs)| {
        let beside = format!("ours, each {SELDOM}");
        let row = Row::new(name(epoch), beside, "ns/packet").figures(&seldom.both, &on.both);
        most.into_iter().fold(row, |row, most| row.goal(Goal::RatioAtMost(most)))
    };
    let stage = |name: String, beside, before: &Vec<f64>, with: &Vec<f64>| {
        Row::new(name, beside, "ns/packet").figures(before, with)
    };
    let (told, (epoch, _)) = (&on[TOLD], EPOCHS[TOLD]);
    let by_channel = format!("a flow between two hosts, told each {epoch} over the control channel");
    let by_channel = stage(by_channel, "ours, told with frames", &told.both, &channel.both);
    let whole = format!("all of it, receivers decide each {epoch}");
    let part = |((_, what), [before, with]): (&(Part, &str), &[Vec<f64>; 2])| {
        stage(format!("of that, by the wall's clock: {what}"), "ours, nothing of PicNIC", before, with)
    };
    let whole = [stage(whole, "ours, nothing of PicNIC", &none.both, &told.both)];
    let whole = whole.into_iter().chain(PARTS.iter().zip(&parts).map(part));
    let stages = [
        stage("its sender's host: wrapped".into(), "ours, no overlay", &wire.out, &off.out),
        stage("its receiver's host: unwrapped".into(), "ours, no overlay", &wire.inward, &off.inward),
        stage("its sender's host: sealed".into(), "ours, not sealed", &off.out, &sealed.out),
        stage("its receiver's host: opened".into(), "ours, not sealed", &off.inward, &sealed.inward),
        stage(
            format!("its sender's host: limits, told each {epoch}"),
            "ours, no feedback",
            &off.out,
            &told.out,
        ),
        stage(
            format!("its receiver's host: decisions each {epoch}"),
            "ours, no feedback",
            &off.inward,
            &told.inward,
        ),
    ];
    let epochs = EPOCHS.into_iter().zip(&on).map(row).chain([by_channel]);
    let alone = crate::sealed::measure(effort)?;
    Ok([limits].into_iter().chain(epochs).chain(stages).chain(alone).chain(whole).collect())
}

/// Nanoseconds for each frame that came, round by round.
#[derive(Default)]
struct Costs {
    /// Of the host that sends it.
    out: Vec<f64>,
    /// Of the host that it comes to.
    inward: Vec<f64>,
    both: Vec<f64>,
}

impl Costs {
    fn add(&mut self, [out, inward]: [f64; 2]) {
        self.out.push(out);
        self.inward.push(inward);
        self.both.push(out + inward);
    }
}

/// Nanoseconds of either engine for each frame that came.
fn cost(packets: u64, between: Between) -> Result<[f64; 2]> {
    let mut spent = [Duration::ZERO; 2];
    let came = carry(packets, between, |index, host, told, now| {
        let begun = processor_time();
        told.iter().for_each(|told| host.engine.hear_channel(&told.message, now));
        while host.engine.turn(now).busy {}
        spent[index] += processor_time() - begun;
    })?;
    Ok(spent.map(|spent| each(spent, came)))
}

/// Nanoseconds of both engines for each frame that came, part by part, by the wall clock, which costs less to read than
/// the thread's; reading it is part of each figure.
fn by_part(packets: u64, between: Between) -> Result<[f64; 6]> {
    let spent = RefCell::new(PARTS.map(|_| Duration::ZERO));
    let add = |part: Part, time: Duration| {
        let place = PARTS.iter().position(|(one, _)| *one == part);
        place.into_iter().for_each(|place| spent.borrow_mut()[place] += time);
    };
    let came = carry(packets, between, |_, host, _, now| {
        loop {
            let last = Cell::new(Instant::now());
            let turn = host.engine.turn_by(&|part| {
                let at = Instant::now();
                add(part, at - last.replace(at));
                now
            });
            add(Part::Complete, last.get().elapsed());
            if !turn.busy {
                break;
            }
        }
    })?;
    Ok(spent.into_inner().map(|spent| each(spent, came)))
}

fn each(spent: Duration, frames: usize) -> f64 {
    spent.as_secs_f64() * 1e9 / frames as f64
}

/// The flow between two hosts, each of which has its `turns` in each step, with what it is told over its channel.
/// Returns how many frames came.
fn carry(
    packets: u64,
    between: Between,
    mut turns: impl FnMut(usize, &mut Host, &[Sent], Nanos),
) -> Result<usize> {
    let (mut a, mut b) =
        (Host::new(&policy("a", between), 64, 64)?, Host::new(&policy("b", between), 64, 64)?);
    let (data, ack) = (datagram(mac(0), mac(1), 1_400), datagram(mac(1), mac(0), 60));
    let (mut now, mut came) = (Nanos::ZERO, 0);
    if let Between::Sealed = between {
        // Messages before there is a session are lost.
        for _ in 0..GREETINGS {
            a.engine.turn(now);
            b.engine.turn(now);
            a.hand_over(&mut b);
            b.hand_over(&mut a);
            now += GREETING;
        }
    }
    let steps = packets.div_ceil(FRAMES as u64);
    for _ in 0..steps {
        for n in 0..FRAMES {
            let _ = a.tenants[0].send(&data, None);
            if n % 2 == 1 {
                let _ = b.tenants[0].send(&ack, None);
            }
        }
        let told = [b.engine.take_feedback(), a.engine.take_feedback()];
        for ((index, host), told) in [&mut a, &mut b].into_iter().enumerate().zip(&told) {
            turns(index, host, told, now);
        }
        a.hand_over(&mut b);
        b.hand_over(&mut a);
        came += b.drain(0);
        a.drain(0);
        now += STEP;
    }
    // The first wait for the next hop's address.
    ensure!(came as u64 > packets * 9 / 10, "{came} of {packets} frames came");
    Ok(came)
}

fn policy(host: &str, between: Between) -> String {
    let hosts = format!("uplink: {{port: memory, rate: 40Gbps}}\ntenants: {{t{host}: {{port: memory}}}}\n");
    let (channels, via) = match between {
        Between::Channel(_) => ([1, 2].map(|n| format!(", channel: \"192.0.2.{n}:7077\"")), ", via: channel"),
        _ => (Default::default(), ""),
    };
    let [there, back] = channels;
    let feedback = match between {
        Between::Nothing => {
            return format!("{hosts}engine: {{experiment: {{ingress: shared, accounting: false}}}}\n");
        }
        Between::Wire => return hosts,
        Between::Overlay => String::new(),
        Between::Sealed => "  sealed: true\n  key: /not/read\n".into(),
        Between::Control(epoch) | Between::Channel(epoch) => {
            format!("  feedback: {{key: /not/read, epoch: {epoch}, lapse: 1s, fallback: 40Gbps{via}}}\n")
        }
    };
    format!(
        "{hosts}\
         overlay:\n\
         \x20 kind: geneve\n\
         \x20 vni: 7\n\
         \x20 host: {host}\n\
         \x20 hosts:\n\
         \x20   a: {{address: 192.0.2.1, mac: 06:00:00:00:00:01{there}, tenants: {{ta: 02:00:00:00:01:00}}}}\n\
         \x20   b: {{address: 192.0.2.2, mac: 06:00:00:00:00:02{back}, tenants: {{tb: 02:00:00:00:01:01}}}}\n{feedback}"
    )
}
