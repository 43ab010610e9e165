//! The engine's thread: turns, waits, answers commands between turns.
//!
//! Why: one thread owns the engine; other threads send it commands and wait for answers.
//! From: `docs/architecture.md`, "live": adaptive polling, which spins only when the next event is nearer than a
//! wake-up costs.
//! Not here: what a turn does (`dataplane`), files and signals (`control`).
//! Invariant: a command never waits for more than one turn, and never holds one up for longer than its own work.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use mio::Waker;
use plimsoll_nic::NodeRank;
use plimsoll_policy::{Experiment, NodeId};
use plimsoll_ports::{Port, PortError, STALL};
use plimsoll_slo::{Pulse, Watched};
use plimsoll_units::{BitRate, Nanos, Span};
use tokio::sync::oneshot;

use crate::coalesce::Coalescing;
use crate::dataplane::{
    AskedNow, Change, Core, Dataplane, HeavyNow, Installed, Leasing, Lost, Migration, Move, RateError, Rated,
    Sent, Snapshot, Step, ThisCore, Turn, Whither, Whose,
};
use crate::experiment::ExperimentCore;
use crate::several::distribute;
use crate::urgency::Urgency;
use crate::wait::Waiter;

/// How often ports are asked for frames that cannot be waited for (capture files, memory).
const ASK: Span = Span::micros(50);

/// How often a thread that has work asks which ports have something: a system call.
const LOOK: Span = Span::micros(10);

/// How often a thread that is to stop looks whether the others have nothing left to send to it.
const LAST_LOOK: Span = Span::millis(1);

/// How often ports are asked whether they have begun to lose frames.
const ASK_PROBLEMS: Span = Span::secs(1);

/// A command to the engine's thread.
#[derive(Debug)]
pub enum Command {
    /// Answer, to show that the thread runs.
    Ping(oneshot::Sender<()>),
    /// Copy the counters.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Measure tenants and the thread itself, to judge promises.
    Watch(oneshot::Sender<Watched>),
    /// Answer which flows are heavy hitters (`None` where no flow is counted), and which ones other hosts asked to hold to a
    /// rate.
    Heavy(oneshot::Sender<(Option<HeavyNow>, Vec<AskedNow>)>),
    /// Answer where a packet of this class would stand now.
    Ranks(NodeId, oneshot::Sender<Vec<NodeRank>>),
    /// Give a class another rate.
    Rate(String, BitRate, oneshot::Sender<Result<Rated, RateError>>),
    /// Take leases from here; what was used before is the answer, as it is not to be dropped by the thread.
    Lease(Box<Leasing>, oneshot::Sender<Option<Box<Leasing>>>),
    /// Put another policy in force.
    Install(Box<Change>, oneshot::Sender<Installed>),
    /// Attach a port that was lost. A port that cannot be used is the answer.
    Attach(Whose, Box<Port>, oneshot::Sender<Option<Port>>),
    /// Answer which owners have no port.
    Lacking(oneshot::Sender<Vec<Whose>>),
    /// Answer which tenants this thread serves, and the frames of each so far.
    Loads(oneshot::Sender<Vec<(String, u64)>>),
    /// Read no more of this tenant's frames, and answer whether those that were read have left; `None`: it cannot move now.
    Halt(String, oneshot::Sender<Option<bool>>),
    /// Read this tenant's frames again.
    Resume(String),
    /// Take part in a tenant's move to another thread.
    Migrate(Arc<Migration>, oneshot::Sender<()>),
    /// Obey a message that came over the control channel.
    Heard(Vec<u8>),
    /// Stop reading; send what is held until the deadline, then end.
    Stop(Span),
}

/// A notice that the thread sends unasked.
#[derive(Debug)]
pub enum Notice {
    /// A port has disappeared.
    Lost(Lost),
    /// A port has begun to lose frames.
    Problem {
        /// Whose port.
        whose: Whose,
        /// Why.
        problem: PortError,
    },
    /// A tenant's client classifies its packets wrongly.
    Distrust {
        /// The tenant's name.
        name: String,
        /// The consequence.
        step: Step,
    },
    /// A tenant whose copies stall is served by a thread of its own, or behaves again.
    Moved {
        /// The tenant's name.
        name: String,
        /// Where it is served now.
        to: Whither,
    },
    /// A line for the log.
    Log(String),
    /// A message for another host's control channel.
    Feedback(Sent),
    /// A thread has panicked.
    Died,
    /// The thread has ended.
    Ended {
        /// Frames that could not leave before the deadline.
        abandoned: u64,
    },
}

/// How the thread runs.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    /// The core to pin it to.
    pub cpu: Option<usize>,
    /// Whether it never sleeps.
    pub busy_poll: bool,
    /// The core that an experiment wants for the way in, in place of this machine's.
    pub experiment: Option<Experiment>,
}

/// Other threads' handle to the engine's thread.
#[derive(Clone, Debug)]
pub struct Handle {
    threads: Arc<[Reach]>,
    clock: Clock,
}

/// The way to one thread.
#[derive(Debug)]
struct Reach {
    commands: Sender<Command>,
    waker: Arc<Waker>,
}

/// Nanoseconds since the daemon's start; the same clock for all its threads.
///
/// The kernel's monotonic clock: reading the processor's counter is twice as fast, but its rate has to be measured at
/// the start, and on a machine that is busy just then a wrong rate would make every limit wrong.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

/// The error of a command to a thread that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has stopped")]
pub struct Stopped;

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock {
    /// Now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos::new(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Handle {
    /// Sends a command and rings the bell. Of several threads all get it, and their answers are put together; that needs a runtime.
    ///
    /// # Errors
    /// [`Stopped`] when a thread has ended.
    pub fn send(&self, command: Command) -> Result<(), Stopped> {
        if self.threads.len() > 1 { distribute(self, command) } else { self.send_to(0, command) }
    }

    /// Sends a command to one thread.
    ///
    /// # Errors
    /// [`Stopped`] when the thread has ended.
    pub fn send_to(&self, thread: usize, command: Command) -> Result<(), Stopped> {
        let reach = self.threads.get(thread).ok_or(Stopped)?;
        reach.commands.send(command).map_err(|_| Stopped)?;
        reach.waker.wake().map_err(|_| Stopped)
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Sends the command that `ask` makes to one thread, and waits for its answer.
    ///
    /// # Errors
    /// [`Stopped`] when the thread has ended.
    pub async fn ask_one<T>(
        &self,
        thread: usize,
        ask: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        self.send_to(thread, ask(answer))?;
        answered.await.map_err(|_| Stopped)
    }

    /// Sends the command that `ask` makes, and waits for its answer.
    ///
    /// # Errors
    /// [`Stopped`] when the thread has ended.
    pub async fn ask<T>(&self, ask: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        self.send(ask(answer))?;
        answered.await.map_err(|_| Stopped)
    }

    /// The daemon's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Starts the thread.
///
/// # Errors
/// When it cannot be made, or has no descriptors to wait with.
pub fn spawn(
    engine: Dataplane,
    habits: Habits,
    notices: impl Fn(Notice) + Send + 'static,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (handle, mut threads) = spawn_all(vec![engine], &habits, notices)?;
    let thread = threads.pop().ok_or_else(|| std::io::Error::other("there is one engine"))?;
    Ok((handle, thread))
}

/// Starts a thread for each of several engines under one policy ([`crate::several`]). They tell of their end once, when all have ended.
///
/// # Errors
/// When one cannot be made, or has no descriptors to wait with.
pub fn spawn_all(
    engines: Vec<Dataplane>,
    habits: &Habits,
    notices: impl Fn(Notice) + Send + 'static,
) -> std::io::Result<(Handle, Vec<JoinHandle<()>>)> {
    let (clock, count) = (Clock::default(), engines.len());
    let end = Arc::new(End { running: AtomicUsize::new(count), abandoned: AtomicU64::new(0) });
    let notices = Arc::new(Mutex::new(notices));
    let (mut reach, mut loops) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (number, engine) in engines.into_iter().enumerate() {
        let (commands, received) = channel();
        let (waiter, waker) = Waiter::new()?;
        engine.set_waker(&waker);
        reach.push(Reach { commands, waker });
        let habits = Habits { cpu: habits.cpu.map(|first| first + number), ..habits.clone() };
        loops.push(Loop { engine, habits, waiter, clock, commands: received, stop_at: None });
    }
    let mut threads = Vec::with_capacity(count);
    for (number, looping) in loops.into_iter().enumerate() {
        let (notices, end) = (Arc::clone(&notices), Arc::clone(&end));
        let tell = move |notice| {
            let notice = match notice {
                Notice::Ended { abandoned } => end.of_one(abandoned),
                other => Some(other),
            };
            if let Some(notice) = notice {
                // Held for a moment, and never on the path of a packet.
                notices.lock().unwrap_or_else(PoisonError::into_inner)(notice);
            }
        };
        let name = if count == 1 { "engine".to_owned() } else { format!("engine {number}") };
        let run = move || {
            let watch = Watch(&tell);
            looping.run(watch.0);
        };
        threads.push(std::thread::Builder::new().name(name).spawn(run)?);
    }
    Ok((Handle { threads: reach.into(), clock }, threads))
}

/// Tells when its thread panics.
struct Watch<'a, F: Fn(Notice)>(&'a F);

impl<F: Fn(Notice)> Drop for Watch<'_, F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(Notice::Died);
        }
    }
}

/// The end of several threads.
struct End {
    running: AtomicUsize,
    abandoned: AtomicU64,
}

impl End {
    /// One of them has ended. Answers the notice of the last one, for all.
    fn of_one(&self, abandoned: u64) -> Option<Notice> {
        let abandoned = self.abandoned.fetch_add(abandoned, Ordering::AcqRel) + abandoned;
        let last = self.running.fetch_sub(1, Ordering::AcqRel) == 1;
        last.then_some(Notice::Ended { abandoned })
    }
}

struct Loop {
    engine: Dataplane,
    habits: Habits,
    waiter: Waiter,
    clock: Clock,
    commands: Receiver<Command>,
    stop_at: Option<Nanos>,
}

impl Loop {
    fn run(self, notices: &impl Fn(Notice)) {
        match self.habits.experiment.as_ref().map(ExperimentCore::new) {
            None => self.run_on(ThisCore, notices),
            Some(core) => self.run_on(core, notices),
        }
    }

    fn run_on(mut self, mut way_in: impl Core, notices: &impl Fn(Notice)) {
        if let Some(core) = self.habits.cpu {
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
        }
        // The kernel may make other threads' timers late by 50 µs to save power; not this one's.
        let _ = nix::sys::prctl::set_timerslack(1);
        let mut urgency = Urgency::of_this_thread(!self.habits.busy_poll, self.clock.now());
        self.watch_all();
        let mut asked = self.clock.now();
        let (mut looked, mut rested, mut worked) = (asked, asked, asked);
        let mut coalescing = Coalescing::default();
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.obey(command);
                self.engine.rested();
            }
            let clock = &self.clock;
            let turn = self.engine.turn_on(&mut way_in, &|_| clock.now());
            if self.engine.has_lost() {
                self.report_lost(notices);
            }
            if self.engine.has_moves() {
                self.follow_moves(notices);
            }
            if self.engine.has_feedback() {
                self.engine.take_feedback().into_iter().for_each(|sent| notices(Notice::Feedback(sent)));
            }
            if let Some(abandoned) = self.ending() {
                return notices(Notice::Ended { abandoned });
            }
            let now = self.clock.now();
            let fine = self.engine.spins();
            urgency.look(fine, now);
            if turn.moved > 0 {
                worked = now;
            }
            if now.since(asked) >= ASK_PROBLEMS {
                asked = now;
                let problems = self.engine.take_problems();
                problems.into_iter().for_each(|(whose, problem)| notices(Notice::Problem { whose, problem }));
                let steps = self.engine.take_steps();
                steps.into_iter().for_each(|(name, step)| notices(Notice::Distrust { name, step }));
                self.engine.take_told().into_iter().for_each(|line| notices(Notice::Log(line)));
            }
            // From here on other threads wake this one for what they send; if they have sent something, it does not sleep.
            let awake = turn.busy || self.habits.busy_poll || !self.engine.may_sleep();
            let nap = coalescing.nap(&turn, self.engine.grain(), now).filter(|_| !awake);
            let napped = nap.map_or(Ok(()), |nap| self.waiter.nap(nap));
            // What comes next may not wait for a wake-up either: the thread spins for as long as two take, then it sleeps.
            let lingers = fine && now.since(worked) < self.waiter.wakeup().times(2);
            let most = match nap {
                Some(_) => Some(Span::ZERO),
                None if lingers || awake => Some(Span::ZERO),
                None => self.rest(&turn, now, urgency.spins()),
            };
            if nap.is_none() && most == Some(Span::ZERO) && now.since(looked) < LOOK {
                self.engine.is_awake();
                continue;
            }
            looked = now;
            let engine = &mut self.engine;
            let waited = napped.and_then(|()| self.waiter.wait(most, |token| engine.ready(token)));
            self.engine.is_awake();
            if let Err(error) = waited {
                eprintln!("plimsoll: the engine cannot wait for its ports: {error}; it polls instead");
                self.habits.busy_poll = true;
            }
            // In a thread that never sleeps, page faults and short waits would otherwise add up to a stall, and a tenant
            // would be blamed for it.
            if nap.is_some() || most != Some(Span::ZERO) || now.since(rested) >= STALL {
                rested = now;
                self.engine.rested();
            }
        }
    }

    /// How long to wait: not at all while there is work, or when the next event is nearer than a wake-up costs.
    fn rest(&self, turn: &Turn, now: Nanos, spins: bool) -> Option<Span> {
        if turn.busy || self.habits.busy_poll {
            return Some(Span::ZERO);
        }
        let wakeup = if spins { self.waiter.wakeup() } else { Span::ZERO };
        let due = turn
            .next
            .map(|next| next.since(now))
            .map(|span| if span <= wakeup { Span::ZERO } else { span - wakeup });
        let lazily = turn.lazily.map(|at| at.since(now));
        let asked = self.engine.must_be_asked().then_some(ASK);
        let stop = self.stop_at.map(|at| if self.engine.is_alone() { at.since(now) } else { LAST_LOOK });
        [due, lazily, turn.retry, asked, stop].into_iter().flatten().min()
    }

    fn obey(&mut self, command: Command) {
        // If the asker has gone, its answer is dropped.
        match command {
            Command::Ping(answer) => {
                let _ = answer.send(());
            }
            Command::Snapshot(answer) => {
                let snapshot = {
                    let clock = &self.clock;
                    self.engine.snapshot_by(&|_| clock.now())
                };
                let _ = answer.send(snapshot);
            }
            Command::Watch(answer) => {
                let pulse = self.pulse();
                let _ = answer.send(self.engine.watch(self.clock.now(), pulse));
            }
            Command::Heavy(answer) => {
                let now = self.clock.now();
                let _ = answer.send((self.engine.heavy(now), self.engine.asked(now)));
            }
            Command::Ranks(class, answer) => {
                let _ = answer.send(self.engine.nic().ranks(class));
            }
            Command::Rate(class, rate, answer) => {
                let _ = answer.send(self.engine.set_rate(&class, rate, self.clock.now()));
            }
            Command::Lease(leasing, answer) => {
                let _ = answer.send(self.engine.renew_leases(leasing, self.clock.now()));
            }
            Command::Install(change, answer) => {
                self.forget_all();
                let begun = self.clock.now();
                let meeting = change.meeting.clone();
                let mut installed = self.engine.install(*change, begun);
                if let Some(meeting) = meeting {
                    meeting.meet();
                }
                installed.took = self.clock.now().since(begun);
                self.watch_all();
                let _ = answer.send(installed);
            }
            Command::Attach(whose, port, answer) => {
                let rest = self.engine.attach_of(&whose, *port, self.clock.now());
                if let Some(fd) = rest.as_ref().and_then(|port| port.fds().receive) {
                    self.waiter.forget(fd);
                }
                self.forget_all();
                self.watch_all();
                let _ = answer.send(rest);
            }
            Command::Lacking(answer) => {
                let _ = answer.send(self.engine.lacking());
            }
            Command::Loads(answer) => {
                let _ = answer.send(self.engine.loads());
            }
            Command::Halt(name, answer) => {
                let _ = answer.send(self.engine.halt(&name));
            }
            Command::Resume(name) => self.engine.resume(&name),
            Command::Migrate(migration, answer) => {
                self.forget_all();
                migration.take_part(&mut self.engine, self.clock.now());
                self.watch_all();
                let _ = answer.send(());
            }
            Command::Heard(message) => self.engine.hear_channel(&message, self.clock.now()),
            Command::Stop(within) => {
                self.engine.stop_reading();
                self.stop_at = Some(self.clock.now() + within);
            }
        }
    }

    /// The thread's CPU time and its waits for a core, by the kernel, and its own lateness.
    fn pulse(&mut self) -> Pulse {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let mut figures = text.split_whitespace().map_while(|figure| figure.parse().ok().map(Span::ns));
        let (cpu, no_core) = (figures.next(), figures.next());
        Pulse { cpu: cpu.unwrap_or(Span::ZERO), no_core, late: self.waiter.take_latest() }
    }

    /// Whether it is time to end: how many frames had to be given up.
    fn ending(&mut self) -> Option<u64> {
        let at = self.stop_at?;
        let now = self.clock.now();
        let drained = self.engine.held() == 0 && !self.engine.pending();
        let awaits = self.engine.awaits_others(drained);
        if drained && !awaits {
            Some(0)
        } else if now >= at {
            Some(self.engine.abandon(now))
        } else {
            None
        }
    }

    /// Waits for lanes that have moved to another thread or back by their new descriptors.
    fn follow_moves(&mut self, notices: &impl Fn(Notice)) {
        for (name, Move { forget, to }) in self.engine.take_moves() {
            if let Some(fd) = forget {
                self.waiter.forget(fd);
            }
            notices(Notice::Moved { name, to });
        }
        self.forget_all();
        self.watch_all();
        // No tenant is charged for the time that this took.
        self.engine.rested();
    }

    fn report_lost(&mut self, notices: &impl Fn(Notice)) {
        for lost in self.engine.take_lost() {
            if let Some(fd) = lost.port.fds().receive {
                self.waiter.forget(fd);
            }
            notices(Notice::Lost(lost));
        }
    }

    fn watch_all(&mut self) {
        for (token, port) in self.engine.ports() {
            if let Some(fd) = port.fds().receive
                && let Err(error) = self.waiter.watch(token, fd)
            {
                eprintln!(
                    "plimsoll: {} cannot be waited for: {error}; the engine polls instead",
                    port.name()
                );
                self.habits.busy_poll = true;
            }
        }
        self.engine.all_ready();
    }

    fn forget_all(&mut self) {
        for (_, port) in self.engine.ports() {
            if let Some(fd) = port.fds().receive {
                self.waiter.forget(fd);
            }
        }
    }
}
