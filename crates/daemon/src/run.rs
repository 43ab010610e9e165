//! `plimsoll run`: from a policy file to a running daemon, and to its end.
//!
//! Why: engine, ports, API, signals and service manager start in one order, and stop in another.
//! From: `docs/operations.md`.
//! Not here: each of these parts.
//! Invariant: a stop sends or counts all frames that are held, within a time that it logs beforehand.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_control::FleetKeys;
use plimsoll_policy::{Checked, Errors};
use plimsoll_ports::{Port, PortError, manager, realtime};
use plimsoll_units::{Bytes, Nanos, Span};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::api::Api;
use crate::audit::{Asker, Audited};
use crate::broker::{Broker, Client, Start, sources};
use crate::cache::{self, CacheIsolation};
use crate::channel;
use crate::claim::{Claim, Mark, claim};
use crate::connections;
use crate::control::{Control, keep_even};
use crate::dataplane::{
    Counting, Dataplane, HeavyFlows, LaneSpec, Sent, Setup, SeveralError, Snapshot, Units, Whose,
    engine_config, several, thread_of,
};
use crate::departures::DepartureLog;
use crate::fleet::{self, FleetError};
use crate::local::LocalSocket;
use crate::open::{OpenError, carries};
use crate::privileges;
use crate::programs::{Programs, ProgramsError, unit_weights, with_programs};
use crate::reader::{self, Answers, FileReader};
use crate::record::{self, Record};
use crate::reopen::{Away, lose, reopen};
use crate::sampler;
use crate::sandbox::{self, Confinement, User};
use crate::startup::{Opened, Resumed, open_all, open_pinned, open_queues, resume_all};
use crate::thread::{Command, Habits, Notice, Stopped, spawn_all};

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The policy file.
    pub file: PathBuf,
    /// The core to pin the engine's thread to, in place of the file's.
    pub cpu: Option<u32>,
    /// Where to record the engine's inputs and decisions.
    pub record: Option<Record>,
    /// Reads tenants' files in other processes; without it this process reads them, if it is not confined.
    pub reader: Option<Arc<dyn FileReader>>,
    /// How the process that reads tenants' frames is confined; not at all without this.
    pub sandbox: Option<Sandbox>,
}

/// How the process that reads tenants' frames is confined.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The user that it runs as, by name or number.
    pub user: Option<String>,
    /// The argument by which this program is the broker ([`crate::serve_broker`]).
    pub broker: String,
}

/// Why the daemon did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The policy file is wrong.
    #[error("{0}")]
    Policy(Box<Errors>),
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] OpenError),
    /// Files of an earlier run cannot be removed.
    #[error("cannot remove what an earlier run left: {0}")]
    Sweep(PortError),
    /// Another daemon has the socket.
    #[error(
        "another plimsoll is running with the API socket {socket}; stop it, or give this one another `api.socket`"
    )]
    Running {
        /// The socket.
        socket: PathBuf,
    },
    /// A file that is no socket is where the socket belongs.
    #[error("{} exists and is not a socket; move it away, or name another `api.socket`", socket.display())]
    NotASocket {
        /// The place.
        socket: PathBuf,
    },
    /// Another program listens at the metrics' address.
    #[error(
        "`api.metrics` is {address}, but another program listens there already; stop it, or choose another port"
    )]
    MetricsTaken {
        /// The place.
        address: SocketAddr,
    },
    /// A user without the rights to run a software NIC.
    #[error(
        "may not open {}; run as root (or with the capabilities that the systemd unit lists), or name an `api.socket` \
         in a directory that you may write to",
        what.display()
    )]
    NotAllowed {
        /// The file.
        what: PathBuf,
    },
    /// No such core.
    #[error("`engine.cpu` is {cpu}, but this process may use the cores {cores} only; choose one of these")]
    NoCore {
        /// The core that was asked for.
        cpu: u32,
        /// The cores that there are.
        cores: String,
    },
    /// Engines of several threads cannot be made.
    #[error(transparent)]
    Several(#[from] SeveralError),
    /// A recording was asked for of several engine threads.
    #[error(
        "a recording is of one engine thread so far; leave `--record` out, or write `threads: 1` in `engine`"
    )]
    RecordedThreads,
    /// An operation on a file or a socket failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The fleet cannot be joined.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A recording was asked for where other hosts set limits.
    #[error(
        "a recording does not hold what other hosts allow yet, so it could not be replayed; leave `--record` out, or \
         `overlay.feedback` out of the policy"
    )]
    RecordedFleet,
    /// A tenant's program cannot be used.
    #[error(transparent)]
    Programs(#[from] ProgramsError),
    /// The process cannot be confined.
    #[error("{0}; `--no-sandbox` runs without, with all the privileges that the daemon was started with")]
    Sandbox(String),
    /// The user to run as is not valid.
    #[error("{0}")]
    User(String),
    /// The engine's thread panicked.
    #[error("the engine's thread has ended unexpectedly; the message above says where. Please report it")]
    EngineDied,
}

/// The longest that a stop takes: frames that have not left by then are dropped and counted.
const LONGEST_STOP: Span = Span::secs(4);

/// Runs until a signal says stop.
///
/// # Errors
/// [`RunError`].
pub fn run(options: &Options) -> Result<(), RunError> {
    let file = options.file.display().to_string();
    let read = reader::load_with_answers(&file, options.reader.as_deref());
    let (checked, answers) = read.map_err(|errors| RunError::Policy(Box::new(errors)))?;
    eprint!("{}", checked.render_warnings(false));
    let habits = habits(&checked, options)?;
    let mut claim = claim(&checked.config.api.socket)?;
    privileges::allow_files();
    let swept = plimsoll_ports::netns::sweep().map_err(RunError::Sweep)?;
    for name in swept.namespaces.iter().chain(&swept.links) {
        eprintln!("plimsoll: removed {name}, left by an earlier run");
    }
    let steered = checked.config.overlay.as_ref().is_some_and(|overlay| overlay.feedback.is_some());
    if steered && options.record.is_some() {
        return Err(RunError::RecordedFleet);
    }
    manager::connect();
    let prepared = Prepared::new(&checked, options, &mut claim)?;
    let program_cache = cache::divide(&checked);
    let (broker, confinement) = confine(options, &checked, answers, &claim)?;
    claim.broker = broker.clone();
    eprintln!("plimsoll: the engine runs as {}", confinement.summary());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| RunError::Io { what: "start".to_owned(), source })?;
    let Prepared { resumed, listeners, record, keys, reserved } = prepared;
    let log = Arc::new(DepartureLog::default());
    let logs = logs(&log, checked.config.engine.threads as usize);
    let pinned = habits.cpu.map_or(0..0, |first| {
        let first = first as u32;
        first..first.saturating_add(checked.config.engine.threads.max(1))
    });
    let programs = Programs::new(options.sandbox.is_none() || confinement.programs, pinned);
    let (mut engines, missing) = build(&checked, &logs, (&broker, &programs), resumed, keys.clone())?;
    let writer = options.record.as_ref().zip(record);
    let writer = writer.map(|(record, file)| begin(record, file, &mut engines[0], &checked)).transpose()?;

    let (notices, noticed) = mpsc::unbounded_channel();
    let tell = move |notice| {
        // If the receiver is gone, the process is ending anyway.
        let _ = notices.send(notice);
    };
    let (handle, threads) = spawn_all(engines, &habits, tell)
        .map_err(|source| RunError::Io { what: "start the engine's thread".to_owned(), source })?;
    let control = Control::with(options.file.clone(), checked, handle, (broker, programs));
    let (control, mark) = (Arc::new(control), claim.mark());
    let served = Served { control, logs, listeners, keys, confinement, program_cache, mark };
    let ended = runtime.block_on(serve(&served, noticed, missing));
    if ended.is_err() {
        // The engine has not been told to stop yet; an engine that has ended cannot be.
        let _: Result<(), Stopped> = served.control.handle().send(Command::Stop(Span::ZERO));
        claim.free_socket();
    }
    // The threads have reported their end, or one has panicked, and the others were told to stop.
    // All are waited for, also if the first one has panicked.
    let ends: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    let panicked = ends.iter().any(Result::is_err);
    if let Some(writer) = writer {
        writer.finish();
    }
    drop((claim, reserved));
    if panicked { Err(RunError::EngineDied) } else { ended }
}

/// Resources that are opened while this process is privileged, and used once it no longer is.
struct Prepared {
    resumed: Resumed,
    listeners: Listeners,
    record: Option<File>,
    keys: Option<FleetKeys>,
    reserved: Option<fleet::Reserved>,
}

impl Prepared {
    fn new(checked: &Checked, options: &Options, claim: &mut Claim) -> Result<Self, RunError> {
        let overlay = checked.config.overlay.as_ref();
        let reserved = overlay.map(fleet::reserve).transpose()?;
        let keys = fleet::read_keys(overlay)?;
        let listeners = Listeners::open(checked, claim)?;
        let record = options.record.as_ref().map(|record| {
            let created = record::create(record);
            created.map_err(|source| RunError::Io { what: record::what(&record.file), source })
        });
        let mut resumed = resume_all(checked)?;
        if !privileges::allow_locked_memory() {
            open_pinned(checked, &mut resumed);
        }
        Ok(Self { resumed, listeners, record: record.transpose()?, keys, reserved })
    }
}

/// The sockets at which the daemon answers requests.
#[derive(Debug)]
struct Listeners {
    api: LocalSocket,
    metrics: Option<TcpListener>,
    channel: Option<UdpSocket>,
}

impl Listeners {
    fn open(checked: &Checked, claim: &mut Claim) -> Result<Self, RunError> {
        let api = listen(&checked.config.api.socket)?;
        claim.socket = Some(checked.config.api.socket.clone());
        let metrics = checked.config.api.metrics.map(listen_metrics).transpose()?;
        let overlay = checked.config.overlay.as_ref().filter(|overlay| overlay.feedback.is_some());
        let address = overlay.and_then(|overlay| overlay.own().channel);
        Ok(Self { api, metrics, channel: address.map(channel::bind).transpose()? })
    }
}

/// Starts the broker and gives up all privileges, where the options do not say otherwise.
fn confine(
    options: &Options,
    checked: &Checked,
    answers: Answers,
    claim: &Claim,
) -> Result<(Broker, Confinement), RunError> {
    let limited = realtime::permit().is_err();
    let urgent = say_urgency();
    let Some(sandbox) = &options.sandbox else {
        // Where the limit cannot be raised (root without CAP_SYS_RESOURCE, for instance), the capability itself has to stay.
        privileges::drop_unneeded(limited);
        eprintln!(
            "plimsoll: WARNING: no sandbox (`--no-sandbox`): the process that reads tenants' frames keeps its privileges"
        );
        return Ok((Broker::Here(options.reader.clone()), Confinement::none()));
    };
    let user = User::choose(sandbox.user.as_deref()).map_err(RunError::User)?;
    let start = Start {
        file: options.file.display().to_string(),
        sources: sources(checked, answers),
        socket: checked.config.api.socket.clone(),
        lock: claim.path.clone(),
    };
    let failed = |source| RunError::Io { what: "start the broker".to_owned(), source };
    // Where the limit cannot be raised, the broker schedules the engine's thread before other processes.
    let (asks, helps) = if limited && urgent {
        UnixDatagram::pair().map(|(asks, helps)| (Some(asks), Some(helps))).map_err(failed)?
    } else {
        (None, None)
    };
    let (client, child) = Client::start(&sandbox.broker, &start, helps.as_ref()).map_err(failed)?;
    if let Some(asks) = asks {
        asks.set_nonblocking(true).map_err(failed)?;
        realtime::let_help(asks);
    }
    let confinement = sandbox::confine(&user, client.id(), with_programs(checked).next().is_some())
        .map_err(RunError::Sandbox)?;
    client.watch(child).map_err(|source| RunError::Io { what: "watch the broker".to_owned(), source })?;
    Ok((Broker::Process(client), confinement))
}

/// Whether the engine's thread may be scheduled before other processes; if not, that is logged.
fn say_urgency() -> bool {
    let tried = realtime::take().and_then(|()| realtime::give_back());
    if let Err(error) = &tried {
        eprintln!(
            "plimsoll: the engine may not go before other processes ({error}): where cores are busy, limits with a \
             short burst lose some of their rate. Run as root, or with `LimitRTPRIO=2` in the unit"
        );
    }
    tried.is_ok()
}

/// The tenants that have no port yet, and why.
type Missing = Vec<(Whose, OpenError)>;

/// A log for each thread.
fn logs(first: &Arc<DepartureLog>, threads: usize) -> Vec<Arc<DepartureLog>> {
    let further = (1..threads).map(|_| Arc::default());
    core::iter::once(Arc::clone(first)).chain(further).collect()
}

/// Engines of several threads; [`RunError`] as for one.
fn build_several(
    checked: &Checked,
    logs: &[Arc<DepartureLog>],
    broker: &Broker,
    queues: Vec<Port>,
    lanes: Vec<LaneSpec>,
) -> Result<Vec<Dataplane>, RunError> {
    let uplinks = open_queues(checked, 0, broker, queues)?;
    let (mut ports, mut programs) = (Vec::with_capacity(lanes.len()), Vec::new());
    for (number, lane) in lanes.into_iter().enumerate() {
        ports.push(lane.port);
        programs.extend(lane.program.map(|program| (number, lane.name, program)));
    }
    let mut engines = several(checked, uplinks, ports, logs)?;
    for (number, name, program) in programs {
        let thread = thread_of(number, engines.len());
        engines[thread].start_program(&name, program);
    }
    engines.iter_mut().for_each(|engine| engine.set_verify(checked.config.engine.verify));
    eprintln!("plimsoll: {} engine threads share the uplink", engines.len());
    Ok(engines)
}

/// The engines, and the tenants that have no port yet.
fn build(
    checked: &Checked,
    logs: &[Arc<DepartureLog>],
    (broker, programs): (&Broker, &Programs),
    resumed: Resumed,
    keys: Option<FleetKeys>,
) -> Result<(Vec<Dataplane>, Missing), RunError> {
    let config = &checked.config;
    let started = programs.prepare(checked, broker, 0)?;
    let Opened { uplink, further, active, idle, mut lanes, missing } = open_all(checked, broker, resumed)?;
    for (name, mut program) in started.programs {
        let lane = lanes.iter_mut().find(|lane| lane.name == name);
        lane.into_iter().for_each(|lane| lane.program = program.take());
    }
    programs.in_force(started.prepared);
    let units = started.units;
    carries(&active.whose(), &uplink, config.uplink.mtu)?;
    idle.iter().try_for_each(|idle| carries(&Whose::Standby, idle, config.uplink.mtu))?;
    let tenants = if lanes.len() == 1 { "tenant" } else { "tenants" };
    eprintln!("plimsoll: uplink {} at {}, {} {tenants}", uplink.name(), config.uplink.rate, lanes.len());
    if let Some(idle) = &idle {
        eprintln!("plimsoll: {} stands by for the uplink", idle.name());
    }
    if config.engine.threads > 1 {
        let queues = core::iter::once(uplink).chain(further).collect();
        let mut engines = build_several(checked, logs, broker, queues, lanes)?;
        put_units(&mut engines, units, checked);
        return Ok((engines, missing));
    }
    let mut program = checked.program.clone();
    let fleet = fleet::setup(checked, &uplink, &mut program, keys)?;
    let mut engine = Dataplane::new(Setup {
        program: Arc::new(program),
        fleet,
        config: engine_config(checked, &uplink),
        uplink,
        lanes,
        log: logs.first().map(Arc::clone).unwrap_or_default(),
    });
    put_units(core::slice::from_mut(&mut engine), units, checked);
    if config.uplink.standby.is_some() {
        engine.set_standby(active, idle, config.uplink.hold_off, Nanos::ZERO);
    }
    engine.set_verify(checked.config.engine.verify);
    if let Some(mut counting) = Counting::of(config) {
        let (sampled, cores) = sampler::start(checked, 0, broker);
        counting.bound(cores);
        engine.count_flows(&counting, Box::new(HeavyFlows::new(&counting.stated)), Nanos::ZERO);
        engine.watch_load(sampled);
    }
    if let Some(experiment) = &config.engine.experiment {
        eprintln!(
            "plimsoll: `engine.experiment` is set: the engine is slower, or isolates tenants less, than without it"
        );
        engine.set_drain_share(experiment.drain_share);
    }
    Ok((vec![engine], missing))
}

/// Gives engines their coprocessors, if there are some.
fn put_units(engines: &mut [Dataplane], units: Vec<Units>, checked: &Checked) {
    let weights = unit_weights(checked);
    engines.iter_mut().zip(units).for_each(|(engine, units)| engine.set_units(Box::new(units), &weights));
}

/// Begins to record.
fn begin(
    record: &Record,
    file: File,
    engine: &mut Dataplane,
    checked: &Checked,
) -> Result<record::Writer, RunError> {
    let started = record::start_in(record, file);
    let (recorder, writer) =
        started.map_err(|source| RunError::Io { what: record::what(&record.file), source })?;
    engine.record(recorder, &checked.sources);
    eprintln!("plimsoll: recording into {}, {} at most", record.file.display(), record.limit);
    Ok(writer)
}

fn habits(checked: &Checked, options: &Options) -> Result<Habits, RunError> {
    let engine = &checked.config.engine;
    if engine.threads > 1 && options.record.is_some() {
        return Err(RunError::RecordedThreads);
    }
    let cpu = options.cpu.or(engine.cpu);
    if let Some(first) = cpu {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let mut wanted = first..first + engine.threads.max(1);
        if let Some(cpu) = wanted.find(|&cpu| !cores.iter().any(|core| core.id == cpu as usize)) {
            let cores: Vec<String> = cores.iter().map(|core| core.id.to_string()).collect();
            return Err(RunError::NoCore { cpu, cores: cores.join(", ") });
        }
    }
    let experiment = engine.experiment.clone();
    Ok(Habits { cpu: cpu.map(|cpu| cpu as usize), busy_poll: engine.busy_poll, experiment })
}

/// The parts that serve requests and notices.
struct Served {
    control: Arc<Control>,
    logs: Vec<Arc<DepartureLog>>,
    listeners: Listeners,
    keys: Option<FleetKeys>,
    confinement: Confinement,
    program_cache: CacheIsolation,
    mark: Option<Mark>,
}

/// Answers requests, signals and the engine's notices until the engine has ended.
async fn serve(
    served: &Served,
    mut noticed: mpsc::UnboundedReceiver<Notice>,
    missing: Vec<(Whose, OpenError)>,
) -> Result<(), RunError> {
    let Served { control, logs, listeners, keys, confinement, program_cache, mark } = served;
    let checked = control.checked().await;
    let api = Api::of_several(Arc::clone(control), logs.clone()).confined(confinement.clone());
    let api = Arc::new(api.with_program_cache(program_cache.clone()));
    tokio::spawn(Arc::clone(&api).keep_watch());
    let socket = checked.config.api.socket.clone();
    listeners.serve(&api)?;
    tokio::spawn(feed_watchdog(Arc::clone(control)));
    tokio::spawn(keep_even(Arc::clone(control)));
    let outbox = listeners.open_channel(control, &checked, keys.as_ref())?;

    let signals =
        |kind| signal(kind).map_err(|source| RunError::Io { what: "listen for signals".to_owned(), source });
    let (mut term, mut int, mut hup) = (
        signals(SignalKind::terminate())?,
        signals(SignalKind::interrupt())?,
        signals(SignalKind::hangup())?,
    );
    let (away, told) = mpsc::unbounded_channel();
    tokio::spawn(reopen(Arc::clone(control), told));
    for (whose, error) in missing {
        eprintln!("plimsoll: {error}; others go on, and it is tried again");
        // The task ends when the last sender is dropped.
        let _ = away.send(Away { whose, there: "the port is there", why: None });
    }
    notify(&[NotifyState::Ready, NotifyState::Status("running")]);
    eprintln!("plimsoll: running; API at {}", socket.display());
    let ended = loop {
        tokio::select! {
            _ = term.recv() => stop(control, mark.as_ref()).await,
            _ = int.recv() => stop(control, mark.as_ref()).await,
            _ = hup.recv() => reload(control).await,
            notice = noticed.recv() => match notice {
                Some(Notice::Lost(lost)) => {
                    let _ = away.send(lose(lost)); // as above
                }
                Some(Notice::Problem { whose, problem }) => eprintln!("plimsoll: {whose}: {problem}"),
                Some(Notice::Distrust { name, step }) => {
                    control.audit().note(Audited::ClientDistrusted, &format!("the client of tenant {name}"), &step.to_string());
                }
                Some(Notice::Log(line)) => eprintln!("plimsoll: {line}"),
                Some(Notice::Moved { name, to }) => eprintln!("plimsoll: tenant {name}: {to}"),
                Some(Notice::Feedback(sent)) => {
                    // If the channel is behind, the message is sent again when it changes or is refreshed.
                    let _ = outbox.as_ref().map(|outbox| outbox.try_send(sent));
                }
                Some(Notice::Ended { abandoned }) => {
                    if abandoned > 0 {
                        eprintln!("plimsoll: {abandoned} frames could not leave in time and were given up");
                    }
                    break Ok(());
                }
                Some(Notice::Died) | None => break Err(RunError::EngineDied),
            },
        }
    };
    eprintln!("plimsoll: stopped");
    ended
}

impl Listeners {
    /// Serves the API's sockets.
    fn serve(&self, api: &Arc<Api>) -> Result<(), RunError> {
        let io = |source| RunError::Io { what: "listen for requests".to_owned(), source };
        let listener = self.api.listener().map_err(io)?;
        tokio::spawn(connections::serve(listener, Arc::clone(api).router(), connections::SOCKET));
        if let Some(metrics) = &self.metrics {
            let listener = metrics.try_clone().and_then(tokio::net::TcpListener::from_std).map_err(io)?;
            let router = Arc::clone(api).metrics_router();
            tokio::spawn(connections::serve(listener, router, connections::METRICS));
        }
        Ok(())
    }

    /// Starts the control channel, if this host has one; answers the queue of messages to be sent over it.
    fn open_channel(
        &self,
        control: &Arc<Control>,
        checked: &Checked,
        keys: Option<&FleetKeys>,
    ) -> Result<Option<mpsc::Sender<Sent>>, RunError> {
        let Some((socket, keys)) = self.channel.as_ref().zip(keys) else { return Ok(None) };
        let io = |source| RunError::Io { what: "open the control channel".to_owned(), source };
        let host = checked.config.overlay.as_ref().map_or(0, |overlay| overlay.own().number);
        let (outbox, sent) = mpsc::channel(channel::WAITING);
        let socket = socket.try_clone().map_err(io)?;
        let keys = (keys, control.keys());
        channel::open(socket, keys, host, control.handle().clone(), sent).map_err(io)?;
        Ok(Some(outbox))
    }
}

fn listen(socket: &Path) -> Result<LocalSocket, RunError> {
    let io = |source| RunError::Io { what: format!("listen on {}", socket.display()), source };
    let listener = LocalSocket::bind(socket).map_err(io)?;
    // A program that may reload a policy controls the host's network: owner and group only.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o660)).map_err(io)?;
    Ok(listener)
}

fn listen_metrics(address: SocketAddr) -> Result<TcpListener, RunError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => RunError::MetricsTaken { address },
        _ => RunError::Io { what: format!("listen on {address} (`api.metrics`)"), source },
    })
}

async fn reload(control: &Arc<Control>) {
    let since_boot = NotifyState::monotonic_usec_now().ok();
    notify(&[NotifyState::Reloading]);
    if let Some(moment) = since_boot {
        notify(&[moment]);
    }
    // The control logs the answer.
    let _ = control.reload(&Asker::Signal, false).await;
    notify(&[NotifyState::Ready]);
}

/// Logs how long stopping may take, and tells the engine to stop.
async fn stop(control: &Control, mark: Option<&Mark>) {
    mark.map(Mark::say_stopping);
    notify(&[NotifyState::Stopping]);
    let held = control.handle().ask(Command::Snapshot).await;
    let within = held.as_ref().map_or(LONGEST_STOP, longest_drain);
    if let Ok(snapshot) = &held {
        let waiting: u64 = snapshot.nodes.iter().map(|node| node.counters.backlog_bytes).sum();
        eprintln!("plimsoll: stopping; {} wait, at most {within}", Bytes::new(waiting));
    }
    // An engine that has ended is not told.
    let _: Result<(), Stopped> = control.handle().send(Command::Stop(within));
}

/// How long the waiting frames can take to leave: the bytes that each class holds, at the rate of the slowest limit that
/// may hold it, one after the other; doubled, and never more than four seconds.
fn longest_drain(snapshot: &Snapshot) -> Span {
    let program = &snapshot.program;
    let slowest =
        program.limits.iter().map(|limit| limit.rate).chain([program.link]).min().unwrap_or(program.link);
    let waiting: u64 = snapshot.nodes.iter().map(|node| node.counters.backlog_bytes).sum();
    let frames = u64::from(snapshot.engine.held);
    let bytes = Bytes::new(waiting) + program.overhead.times(frames) + program.max_frame.times(frames.min(1));
    (slowest.wire_time(bytes).times(2) + Span::millis(100)).min(LONGEST_STOP)
}

/// Tells the service manager's watchdog that the engine answers. If it does not, no message is sent, and the manager acts.
async fn feed_watchdog(control: Arc<Control>) {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    loop {
        tokio::time::sleep(period / 3).await;
        let answers = tokio::time::timeout(period / 3, control.handle().ask(Command::Ping)).await;
        if matches!(answers, Ok(Ok(()))) {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

/// Notifies the service manager, if there is one.
fn notify(state: &[NotifyState<'_>]) {
    let _ = manager::notify(state, &[]);
}
