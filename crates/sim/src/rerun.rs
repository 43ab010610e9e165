//! Runs a recorded engine again and compares its decisions.
//!
//! Why: an incident that was recorded live can be examined later, packet by packet, and a change of the engine can be tried
//! on a recording.
//! From: the engine is told the time, so the same inputs give the same outputs (`docs/engine-trace.md`).
//! Not here: reading the file (`plimsoll_record`), showing the result (`cli`).
//! Invariant: for any trace this ends with the same decisions, with the first that differs, or with an error.

use std::collections::{HashMap, VecDeque};
use std::io::Read;

use plimsoll_nic::{Config, Descriptor, Nic, Outcome, QueueId, Refusal, Transmit};
use plimsoll_policy::{Checked, LimitId, NodeId, Placement, check_with};
use plimsoll_record::{End, Event, File, Left, Reader, TraceError};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::replay::{ClassTally, Replay};

/// The result of running a trace again.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerun {
    /// Each class's packets and delays, and the length of the recording.
    pub replay: Replay,
    /// Packets that came, taken or refused.
    pub packets: u64,
    /// Decisions that were compared: packets that left, packets that were refused, flow queues that were opened and closed.
    pub decisions: u64,
    /// Policies that came into force after the first.
    pub reloads: u64,
    /// Why the recording ended.
    pub end: End,
    /// The first decision that differs; the run ends there.
    pub difference: Option<Difference>,
}

/// A decision that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its number, from 1.
    pub decision: u64,
    /// Number of its event in the trace, from 1.
    pub event: u64,
    /// Its time.
    pub at: Nanos,
    /// The recorded decision.
    pub recorded: String,
    /// The decision in this run.
    pub again: String,
}

/// Why a trace cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RerunError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A policy in the trace is refused.
    #[error("holds a policy that this plimsoll refuses:\n{0}")]
    Policy(String),
    /// The trace has an event that no engine can have seen.
    #[error("makes no sense at event {event}: {what}")]
    Nonsense {
        /// The number of the event.
        event: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The engine of the trace needs more memory than the caller allows.
    #[error("needs an engine of {needs}, and {most} may be used")]
    TooLarge {
        /// Bytes that the engine needs.
        needs: Bytes,
        /// Bytes that it may use.
        most: Bytes,
    },
}

/// Runs a trace again, with an engine that takes at most `memory` for flow queues and descriptors.
///
/// # Errors
/// [`RerunError`].
pub fn rerun<R: Read>(mut trace: Reader<R>, memory: Bytes) -> Result<Rerun, RerunError> {
    let Some(Event::Start { config, files }) = trace.next().transpose()? else {
        return Err(RerunError::Nonsense { event: 1, what: "the engine's start is missing" });
    };
    let needs = memory_of(&config);
    if needs > memory {
        return Err(RerunError::TooLarge { needs, most: memory });
    }
    let mut run = Run::new(check(&files)?, &config);
    for event in trace {
        run.event += 1;
        match run.take(event?, memory) {
            Ok(None) => {}
            Ok(Some(end)) => return Ok(run.finish(end, None)),
            Err(Stop::Differs(difference)) => return Ok(run.finish(End::Stopped, Some(difference))),
            Err(Stop::Wrong(error)) => return Err(error),
        }
    }
    Err(RerunError::Nonsense { event: run.event, what: "the end is missing" })
}

/// Bytes that rings, flow queues and completions take.
fn memory_of(config: &Config) -> Bytes {
    let slots = u64::from(config.ring.max(1)).next_power_of_two() * 32; // beyond 16 bits for the longest
    let queues = u64::from(config.queues).saturating_mul(slots + 64);
    Bytes::new(queues) + Bytes::new(24).times(config.descriptors.into())
}

/// Checks the policy in these files.
fn check(files: &[File]) -> Result<Checked, RerunError> {
    let main = files.first().map_or("", |file| file.name.as_str());
    let mut load = |name: &str| {
        let file = files.iter().find(|file| file.name == name);
        file.map(|file| file.text.clone()).ok_or_else(|| "it is not in the trace".to_owned())
    };
    check_with(main, &mut load).map_err(|errors| RerunError::Policy(errors.render(false)))
}

/// Why a run ends early.
enum Stop {
    Differs(Difference),
    Wrong(RerunError),
}

impl From<RerunError> for Stop {
    fn from(error: RerunError) -> Self {
        Self::Wrong(error)
    }
}

/// A run in progress.
struct Run {
    nic: Nic,
    /// Packets that have left and are not completed yet.
    away: VecDeque<Transmit>,
    out: Vec<Transmit>,
    /// By class of the policy in force: its index in `classes`.
    places: Vec<usize>,
    classes: Vec<(String, ClassTally)>,
    event: u64,
    packets: u64,
    decisions: u64,
    reloads: u64,
    /// The first moment in the trace.
    begun: Option<Nanos>,
    /// The last moment so far.
    now: Nanos,
}

impl Run {
    fn new(checked: Checked, config: &Config) -> Self {
        let mut run = Self {
            nic: Nic::new(&checked.program, config),
            away: VecDeque::new(),
            out: Vec::new(),
            places: Vec::new(),
            classes: Vec::new(),
            event: 1,
            packets: 0,
            decisions: 0,
            reloads: 0,
            begun: None,
            now: Nanos::ZERO,
        };
        run.name_classes(&checked);
        run
    }

    /// Indexes the classes of a policy; a class of a name that is known keeps its counters.
    fn name_classes(&mut self, checked: &Checked) {
        let known = &mut self.classes;
        let mut index: HashMap<String, usize> = known.iter().map(|(name, _)| name.clone()).zip(0..).collect();
        let places = checked.program.nodes.iter().map(|node| {
            *index.entry(node.name.clone()).or_insert_with(|| {
                known.push((node.name.clone(), ClassTally::default()));
                known.len() - 1
            })
        });
        self.places = places.collect();
    }

    /// Repeats one event and compares its outcome. Returns why the recording ends, if it does.
    fn take(&mut self, event: Event, memory: Bytes) -> Result<Option<End>, Stop> {
        match event {
            Event::Start { .. } => return Err(self.nonsense("a second start").into()),
            Event::Open { placement, queue } => {
                let again = self.nic.open_queue(&placement).ok();
                self.compare(&queue, &again, |_, queue| match queue {
                    Some(QueueId(queue)) => format!("flow queue {queue} was opened"),
                    None => "no flow queue was opened".to_owned(),
                })?;
            }
            Event::Close { queue, closed } => {
                let again = self.nic.close_queue(queue);
                let QueueId(number) = queue;
                self.compare(&closed, &again, |_, closed| {
                    format!("flow queue {number} was {}closed", if *closed { "" } else { "not " })
                })?;
            }
            Event::Post { queue, descriptor, refused } => {
                self.packets += 1;
                let again = self.nic.post(queue, descriptor).err();
                let (QueueId(number), len) = (queue, descriptor.len);
                self.compare(&refused, &again, |_, refused| {
                    let fate =
                        refused.map_or_else(|| "taken".to_owned(), |why| format!("refused: {}", why.name()));
                    format!("a packet of {len} B for flow queue {number} was {fate}")
                })?;
                self.count_refusal(queue, &descriptor, again);
            }
            Event::Ring { now, words } => {
                self.tell(now);
                self.nic.ring(&words, now);
            }
            Event::Poll { now, room, left } => self.poll(now, room, &left)?,
            Event::Complete { count } => self.complete(count)?,
            Event::Install { now, files, places } => self.install(now, &files, places)?,
            Event::Descriptors(count) => {
                let needs = memory_of(&Config { descriptors: count, ..self.nic.config().clone() });
                if needs > memory {
                    return Err(RerunError::TooLarge { needs, most: memory }.into());
                }
                self.nic.set_descriptors(count);
            }
            Event::Pull(pull) => self.nic.set_pull(pull),
            Event::End(end) => return Ok(Some(end)),
        }
        Ok(None)
    }

    fn tell(&mut self, now: Nanos) {
        self.begun.get_or_insert(now);
        self.now = now;
    }

    fn poll(&mut self, now: Nanos, room: u32, left: &[Left]) -> Result<(), Stop> {
        self.tell(now);
        if self.out.capacity() != room as usize {
            self.out = Vec::with_capacity(room as usize);
        }
        self.nic.poll_transmit(now, &mut self.out);
        let again: Vec<Left> = self.out.iter().map(|transmit| Left::of(transmit, now)).collect();
        for index in 0..left.len().max(again.len()) {
            let (recorded, again) = (left.get(index), again.get(index));
            self.compare(&recorded, &again, |run, left| run.describe(*left))?;
        }
        for transmit in self.out.drain(..) {
            self.classes[self.places[transmit.class.0 as usize]].1.leaves(&transmit, now);
            self.away.push_back(transmit);
        }
        Ok(())
    }

    fn describe(&self, left: Option<&Left>) -> String {
        let Some(left) = left else { return "nothing more left".to_owned() };
        let Left { queue: QueueId(queue), len, offset, waited, limited, .. } = *left;
        let part = if offset > 0 { format!(" from byte {offset}") } else { String::new() };
        let held = limited.map_or_else(String::new, |(LimitId(limit), held)| {
            let limits = &self.nic.program().limits;
            let name = limits.get(limit as usize).map_or("?", |limit| limit.name.as_str());
            format!(", held by limits for {held}, longest by `{name}`")
        });
        format!("{len} B{part} of flow queue {queue} left, after {waited}{held}")
    }

    fn complete(&mut self, count: u64) -> Result<(), Stop> {
        for _ in 0..count {
            let transmit = self.away.pop_front();
            let transmit = transmit.ok_or_else(|| self.nonsense("more is through than has left"))?;
            // The outcome of a packet changes no decision.
            self.nic.complete(&transmit, Outcome::Sent);
        }
        while self.nic.poll_completion().is_some() {}
        Ok(())
    }

    fn install(&mut self, now: Nanos, files: &[File], places: Vec<(QueueId, Placement)>) -> Result<(), Stop> {
        self.tell(now);
        self.reloads += 1;
        let checked = check(files)?;
        let mut places: HashMap<QueueId, Placement> = places.into_iter().collect();
        let elsewhere = Placement { class: checked.program.default_class, limits: Vec::new() };
        let mut unknown = None;
        let mut place = |queue| {
            places.remove(&queue).unwrap_or_else(|| {
                unknown = unknown.or(Some(queue));
                elsewhere.clone()
            })
        };
        self.nic.install(&checked.program, &mut place, now);
        self.name_classes(&checked);
        let open = |_: &Self, queue: &Option<QueueId>| match queue {
            Some(QueueId(queue)) => format!("flow queue {queue} was open at a reload"),
            None => "every open flow queue got a place at a reload".to_owned(),
        };
        self.compare(&None, &unknown, open)
    }

    fn count_refusal(&mut self, queue: QueueId, descriptor: &Descriptor, refused: Option<Refusal>) {
        if let (Some(why), Some(NodeId(class))) = (refused, self.nic.class_of(queue)) {
            self.classes[self.places[class as usize]].1.refuse(why.name(), descriptor);
        }
    }

    /// Compares one decision with the recorded one.
    fn compare<T: PartialEq>(
        &mut self,
        recorded: &T,
        again: &T,
        describe: impl Fn(&Self, &T) -> String,
    ) -> Result<(), Stop> {
        self.decisions += 1;
        if recorded == again {
            return Ok(());
        }
        let (decision, event, at) = (self.decisions, self.event, self.now);
        let [recorded, again] = [recorded, again].map(|decided| describe(self, decided));
        Err(Stop::Differs(Difference { decision, event, at, recorded, again }))
    }

    fn nonsense(&self, what: &'static str) -> RerunError {
        RerunError::Nonsense { event: self.event, what }
    }

    fn finish(self, end: End, difference: Option<Difference>) -> Rerun {
        let lasted = self.begun.map_or(Span::ZERO, |begun| self.now.since(begun));
        let classes = self.classes.into_iter().filter(|(_, class)| !class.is_empty());
        let classes = classes.map(|(name, class)| class.report(name)).collect();
        let replay = Replay { classes, lasted, ..Replay::default() };
        let Self { packets, decisions, reloads, .. } = self;
        Rerun { replay, packets, decisions, reloads, end, difference }
    }
}
