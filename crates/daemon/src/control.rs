//! Changes to a running daemon: reloads, rates, and ports that come back.
//!
//! Why: a policy changes while packets flow, and takes effect as a whole or not at all.
//! From: `docs/operations.md`, "reload".
//! Not here: what the change does to packets (`dataplane::install`).
//! Invariant: every step that can fail is done before the engine is told of a change.

mod migration;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_control::FleetKeys;
use plimsoll_policy::{Backpressure, Checked, Overlay, Port as PortSpec, Program, TenantConfig};
use plimsoll_ports::Port;
use plimsoll_units::{BitRate, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::audit::{Asker, Audit, Audited};
use crate::broker::{Broker, Number, ReadError};
use crate::dataplane::{
    Change, HeavyFlows, Installed, LeaseRoom, Leasing, RateError, Rated, StandbyChange, Whose,
};
use crate::open::{OpenError, carries, close, keep, known_mac};
use crate::programs::{NewPrograms, Programs, ProgramsError};
use crate::reader::FileReader;
use crate::sampler;
use crate::seats::{NewPorts, Seats};
use crate::startup;
use crate::thread::{Command, Handle, Stopped};
pub(crate) use migration::keep_even;

/// Why a reload changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file is wrong.
    #[error("the policy is wrong, so nothing was changed:\n{0}")]
    Policy(String),
    /// The file could not be read.
    #[error("the policy was not read, and nothing was changed: {0}")]
    Broker(String),
    /// A setting has changed that takes effect only at a start.
    #[error(
        "{what} has changed, which takes a restart; nothing was changed. Put the old value back, or restart the daemon"
    )]
    NeedsRestart {
        /// The setting.
        what: &'static str,
    },
    /// A tenant that stays would be in another network, with the frames that it has sent and those that wait for it.
    #[error(
        "tenant {tenant} is in network {from}, and the new policy puts it into {to}: frames that wait would go over with it; \
         nothing was changed. Take {tenant} out, reload, and then write it in {to}, or restart the daemon"
    )]
    OtherNetwork {
        /// The tenant.
        tenant: String,
        /// Its network, by name or number.
        from: String,
        /// The network that it would be in.
        to: String,
    },
    /// A new tenant's port is in use by a present tenant.
    #[error(
        "tenant {tenant}: tenant {holder} has the port {port} until a reload is through; nothing was changed. Take \
         {holder} out, reload, and then write {tenant}"
    )]
    PortInUse {
        /// The new tenant.
        tenant: String,
        /// The tenant that has it.
        holder: String,
        /// The port, as the file states it.
        port: String,
    },
    /// A TAP goes from one tenant to another, which different threads serve.
    #[error(
        "tenant {to} is to get the TAP of tenant {from}, and another engine thread serves it; nothing was changed. Take \
         {to} out, reload, and then write it with that TAP"
    )]
    OtherThread {
        /// The tenant that has it.
        from: String,
        /// The tenant that is to get it.
        to: String,
    },
    /// A tenant would lose its TAP.
    #[error(
        "these TAPs would be removed, with their addresses, routes and connections, so nothing was changed:\n{taken}The \
         plan:\n{plan}`plimsoll reload --force` does it"
    )]
    TakesTaps {
        /// The TAPs, one on each line.
        taken: String,
        /// What would change, as text.
        plan: String,
    },
    /// A new tenant's port cannot be opened.
    #[error(
        "{0}; nothing was changed. A reload wants every port that it adds to be there; a start goes on without those of \
         tenants, and tries them again"
    )]
    Port(#[from] OpenError),
    /// The fleet's keys cannot be read.
    #[error("{0}; nothing was changed")]
    Keys(String),
    /// A tenant's program cannot be used.
    #[error("{0}; nothing was changed")]
    Programs(#[from] ProgramsError),
    /// The engine has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl From<ReadError> for ReloadError {
    fn from(unread: ReadError) -> Self {
        match unread {
            ReadError::Policy(mistakes) => Self::Policy(mistakes),
            ReadError::Broker(why) => Self::Broker(why),
        }
    }
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reloaded {
    /// How many reloads there have been.
    pub generation: u16,
    /// The changes, as text.
    pub changes: String,
    /// Descriptors that waited, and went on waiting.
    pub kept: u32,
    /// Flows that were classified anew.
    pub flows: usize,
    /// How long packets waited for the change.
    pub took: Span,
    /// Warnings about the new policy, as text.
    pub warnings: String,
}

/// Tenants that a reload moves to other threads, at most, so that TAPs can go from one to another.
const MOST_MOVES: usize = 64;

/// The policy in force and the way to the engine.
#[derive(Debug)]
pub struct Control {
    file: PathBuf,
    handle: Handle,
    broker: Broker,
    /// Held while the policy in force is changed: one change at a time, which may take long.
    turn: tokio::sync::Mutex<()>,
    /// Held for a moment only: a reader waits for no reload.
    state: Mutex<State>,
    programs: Arc<Programs>,
    audit: Audit,
    /// The fleet's keys, once a reload has read them.
    keys: watch::Sender<Option<FleetKeys>>,
}

#[derive(Debug)]
struct State {
    checked: Arc<Checked>,
    /// The broker's number for the policy.
    number: Number,
    generation: u16,
    /// Which thread serves which tenant.
    seats: Seats,
}

impl Control {
    /// The control of a daemon that has put `checked` in force.
    #[must_use]
    pub fn new(file: PathBuf, checked: Checked, handle: Handle) -> Self {
        Self::with(file, checked, handle, (Broker::default(), Programs::default()))
    }

    /// Has `reader` read tenants' files, in other processes.
    #[must_use]
    pub fn with_reader(self, reader: Option<Arc<dyn FileReader>>) -> Self {
        Self { broker: Broker::Here(reader), ..self }
    }

    /// Has `broker` open ports and read the policy file.
    pub(crate) fn with(
        file: PathBuf,
        checked: Checked,
        handle: Handle,
        (broker, programs): (Broker, Programs),
    ) -> Self {
        let seats = Seats::new(&checked);
        let state = State { checked: Arc::new(checked), number: 0, generation: 0, seats };
        Self {
            file,
            handle,
            broker,
            turn: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
            programs: Arc::new(programs),
            audit: Audit::default(),
            keys: watch::Sender::new(None),
        }
    }

    /// The process that opens ports and reads files.
    pub(crate) fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The policy in force.
    pub async fn checked(&self) -> Arc<Checked> {
        Arc::clone(&self.state().checked)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that the policy is read from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The engine's thread.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The changes so far.
    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The fleet's keys, each time that a reload has put them in force.
    pub(crate) fn keys(&self) -> watch::Receiver<Option<FleetKeys>> {
        self.keys.subscribe()
    }

    /// Changes the rate of a class for `asker`, in the engine and in the policy in force: a later reload reports that it restores the
    /// file's rate.
    ///
    /// # Errors
    /// [`Stopped`] when the engine has ended; [`RateError`] inside when the class has no rate.
    pub async fn set_rate(
        &self,
        asker: &Asker,
        class: String,
        rate: BitRate,
    ) -> Result<Result<Rated, RateError>, Stopped> {
        let _turn = self.turn.lock().await;
        let rated = self.handle.ask(|answer| Command::Rate(class, rate, answer)).await?;
        let (what, detail) = match &rated {
            Ok(Rated { class, rate, before }) => {
                (Audited::RateChanged, format!("{class}: {before} -> {rate}"))
            }
            Err(error) => (Audited::RateRefused, error.to_string()),
        };
        self.audit.note(what, &asker.to_string(), &detail);
        if let Ok(rated) = &rated {
            let program = {
                let mut state = self.state();
                let program = &mut Arc::make_mut(&mut state.checked).program;
                if let Some(node) = program.find(&rated.class) {
                    program.nodes[node.0 as usize].rate = Some(rate);
                }
                program.clone()
            };
            self.renew_leases(&program).await?;
        }
        Ok(rated)
    }

    /// Has several threads share the link by a program with another rate.
    async fn renew_leases(&self, program: &Program) -> Result<(), Stopped> {
        let threads = self.handle.threads();
        // The policy was checked for several threads, and its orders are what they were.
        let Some(Ok(room)) = (threads > 1).then(|| LeaseRoom::new(program, threads)) else { return Ok(()) };
        let room = Arc::new(room);
        for thread in 0..threads {
            let leasing = Box::new(Leasing::new(Arc::clone(&room), thread));
            drop(self.handle.ask_one(thread, |answer| Command::Lease(leasing, answer)).await?);
        }
        Ok(())
    }

    /// Reads the file again and puts it in force, for `asker`. A reload that has begun runs to its end, also if the caller
    /// stops waiting. It takes a TAP away from its tenant only with `force`.
    ///
    /// # Errors
    /// [`ReloadError`]; the policy in force is then untouched.
    pub async fn reload(self: &Arc<Self>, asker: &Asker, force: bool) -> Result<Reloaded, ReloadError> {
        let (control, asker) = (Arc::clone(self), asker.to_string());
        let reload = async move {
            let reloaded = control.reload_here(force).await;
            let (what, detail) = match &reloaded {
                Ok(done) => {
                    let Reloaded { generation, changes, warnings, .. } = done;
                    (Audited::Reloaded, format!("reload {generation}\n{changes}{warnings}"))
                }
                Err(error) => (Audited::ReloadRefused, error.to_string()),
            };
            control.audit.note(what, &asker, &detail);
            reloaded
        };
        tokio::spawn(reload).await.map_err(|_| Stopped)?
    }

    async fn reload_here(&self, force: bool) -> Result<Reloaded, ReloadError> {
        let _turn = self.turn.lock().await;
        let file = self.file.display().to_string();
        let before = self.checked().await;
        let old = Arc::clone(&before);
        // Reading files and making interfaces may take a while, and must not hold up the API.
        let broker = self.broker.clone();
        let lacking = self.lacking().await;
        let mut moves = 0;
        let prepared = loop {
            let (file, old, broker, lacking) =
                (file.clone(), Arc::clone(&old), broker.clone(), lacking.clone());
            let (seats, programs) = (self.state().seats.clone(), Arc::clone(&self.programs));
            let prepared = move || prepare(&file, &old, (&broker, &programs), (&lacking, seats), force);
            match tokio::task::spawn_blocking(prepared).await.map_err(|_| Stopped)? {
                // First they are brought together; in a long chain of tenants one after the other.
                Err(ReloadError::OtherThread { from, to })
                    if moves < MOST_MOVES && self.migrate_now(&from, self.thread(&to)).await? =>
                {
                    moves += 1;
                }
                other => break other?,
            }
        };
        let Prepared { checked, number, changes: for_threads, seats, programs, keys } = prepared;
        let NewPrograms { programs: _, units: _, changes: modules, prepared: loaded } = programs;
        let mut changes = plan(&before, &checked);
        if !modules.is_empty() && plimsoll_policy::diff(&before, &checked).is_empty() {
            changes.clear();
        }
        changes.push_str(&modules);
        let warnings = checked.render_warnings(false);
        let installed = self.install(for_threads).await?;
        self.keys.send_replace(keys);
        let generation = {
            let mut state = self.state();
            let generation = state.generation.wrapping_add(1);
            *state = State { checked: Arc::new(checked), number, generation, seats };
            generation
        };
        self.programs.in_force(loaded);
        let broker = self.broker.clone();
        // Before the next reload can ask: the broker remembers two.
        let _ = tokio::task::spawn_blocking(move || broker.in_force(number)).await;
        let Installed { closed, freed, tables, guests, programs, leases: _, kept, flows, took } = installed;
        close(closed, (freed, tables, guests, programs));
        Ok(Reloaded { generation, changes, kept, flows, took, warnings })
    }

    /// Puts a change in force on each thread; all have it before one goes on.
    async fn install(&self, changes: Vec<Change>) -> Result<Installed, Stopped> {
        let mut asked = Vec::with_capacity(changes.len());
        for (thread, change) in changes.into_iter().enumerate() {
            let (answer, answered) = tokio::sync::oneshot::channel();
            self.handle.send_to(thread, Command::Install(Box::new(change), answer))?;
            asked.push(answered);
        }
        let mut all = Installed::default();
        for answered in asked {
            // The leases of the policy before end with this.
            let one = answered.await.map_err(|_| Stopped)?;
            all.closed.extend(one.closed);
            all.freed.extend(one.freed);
            all.guests.extend(one.guests);
            all.programs.extend(one.programs);
            all.tables = all.tables.or(one.tables);
            all.flows += one.flows;
            all.kept += one.kept;
            all.took = all.took.max(one.took);
        }
        Ok(all)
    }

    /// Owners in force that have no port.
    pub async fn lacking(&self) -> Vec<Whose> {
        // An engine that has ended needs none.
        self.handle.ask(Command::Lacking).await.unwrap_or_default()
    }

    /// Tries to open the port of an owner that has none.
    pub async fn reopen(&self, lost: &Whose) -> Reopened {
        let (checked, number) = {
            // No reload may replace the policy meanwhile.
            let _turn = self.turn.lock().await;
            let state = self.state();
            (Arc::clone(&state.checked), state.number)
        };
        let (whose, broker) = (lost.clone(), self.broker.clone());
        let opening = move || {
            let port = match whose {
                Whose::Uplink | Whose::Standby => broker.open_uplink(&checked, number, &whose)?.ok(),
                Whose::Tenant(name) => {
                    checked.config.tenants.iter().find(|tenant| tenant.name == name)?;
                    broker.open_tenant(&checked, number, &name).ok()
                }
            };
            port.inspect(keep)
        };
        let Ok(Some(port)) = tokio::task::spawn_blocking(opening).await else {
            return Reopened::NotYet(None);
        };
        let mut rest = Vec::new();
        // No tenant may move to another thread meanwhile.
        let _turn = self.turn.lock().await;
        let ports = match lost {
            Whose::Tenant(name) => vec![(self.thread(name), port)],
            _ if self.handle.threads() == 1 => vec![(0, port)],
            _ => match self.open_queues(port).await {
                Ok(queues) => queues.into_iter().enumerate().collect(),
                Err(why) => return Reopened::NotYet(Some(why)),
            },
        };
        let wanted = ports.len();
        for (thread, port) in ports {
            // An engine that has ended, or a tenant that is gone meanwhile, needs no port.
            let attach = |answer| Command::Attach(lost.clone(), Box::new(port), answer);
            rest.extend(self.handle.ask_one(thread, attach).await.ok().flatten());
        }
        let reopened = if rest.len() < wanted { Reopened::Opened } else { Reopened::Unneeded };
        if !rest.is_empty() {
            close(rest, ());
        }
        reopened
    }

    /// Opens the uplink's other queues, one for each thread.
    async fn open_queues(&self, first: Port) -> Result<Vec<Port>, String> {
        let (checked, number) = {
            let state = self.state();
            (Arc::clone(&state.checked), state.number)
        };
        let broker = self.broker.clone();
        let opening = move || startup::open_queues(&checked, number, &broker, vec![first]);
        let opened = tokio::task::spawn_blocking(opening).await.map_err(|error| error.to_string())?;
        opened.map_err(|error| error.to_string())
    }
}

/// The result of an attempt to open a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reopened {
    /// It is there.
    Opened,
    /// It cannot be opened yet, and why, where that is more than that it is not there.
    NotYet(Option<String>),
    /// The tenant has another port by now, or has been removed.
    Unneeded,
}

/// A reload that only has to be put in force.
struct Prepared {
    checked: Checked,
    number: Number,
    /// By thread.
    changes: Vec<Change>,
    seats: Seats,
    programs: NewPrograms,
    keys: Option<FleetKeys>,
}

/// Reads and checks the file, and opens the ports that it adds.
fn prepare(
    file: &str,
    old: &Checked,
    (broker, programs): (&Broker, &Programs),
    (lacking, mut seats): (&[Whose], Seats),
    force: bool,
) -> Result<Prepared, ReloadError> {
    let (checked, number) = broker.read(file).map_err(ReloadError::from)?;
    needs_no_restart(old, &checked)?;
    keeps_networks(old, &checked)?;
    let keys = broker.keys(&checked, number).map_err(ReloadError::Keys)?;
    let mut programs = programs.prepare(&checked, broker, number)?;
    let taken = taken(old, &checked);
    if !taken.is_empty() && !force {
        return Err(ReloadError::TakesTaps { taken, plan: plimsoll_policy::diff(old, &checked).to_string() });
    }
    let before = |name: &str| old.config.tenants.iter().find(|before| before.name == name);
    let (mut opened, mut inherited) = (Vec::new(), Vec::new());
    for tenant in &checked.config.tenants {
        let from = hands_over(old, &checked, tenant);
        if let Some(from) = from.filter(|from| !lacking.contains(&Whose::Tenant(from.name.clone()))) {
            inherited.push((from, tenant));
            continue;
        }
        let same = before(&tenant.name).is_some_and(|before| before.port == tenant.port);
        if !same || known_mac(old, &tenant.name) != known_mac(&checked, &tenant.name) {
            let opened_now = broker.open_tenant(&checked, number, &tenant.name);
            let port =
                opened_now.map_err(|error| held_by(old, tenant).unwrap_or(ReloadError::Port(error)))?;
            opened.push((tenant.name.clone(), port));
        }
    }
    let handed: Vec<_> = inherited.iter().map(|(from, to)| (from.name.clone(), to.name.clone())).collect();
    if let Some((from, to)) = seats.apart(&handed) {
        return Err(ReloadError::OtherThread { from: from.clone(), to: to.clone() });
    }
    let standby = new_standby(old, &checked, number, broker)?;
    for tenant in &checked.config.tenants {
        let same = before(&tenant.name).filter(|before| before.port == tenant.port);
        if same.is_some_and(|before| before.interface != tenant.interface) {
            broker.configure(&checked, number, tenant)?;
        }
    }
    inherited.iter().try_for_each(|(_, tenant)| broker.configure(&checked, number, tenant))?;
    // All ports are open: from here on no step can fail.
    opened.iter().for_each(|(_, port)| keep(port));
    let (moved, added): (Vec<_>, Vec<_>) = opened.into_iter().partition(|(name, _)| before(name).is_some());
    let heirs = inherited.iter().map(|(_, to)| to.name.clone()).filter(|name| before(name).is_none());
    let added = added.into_iter().map(|(name, port)| (name, Some(port)));
    let added = added.chain(heirs.map(|name| (name, None))).collect();
    let tables = |stated: &Backpressure| (stated.heavy, stated.press.clone());
    let fits = old.config.backpressure.as_ref().map(tables);
    let stated = checked.config.backpressure.as_ref().filter(|stated| fits != Some(tables(stated)));
    let configured: Vec<_> =
        inherited.iter().map(|(_, to)| (to.name.clone(), to.interface.persist)).collect();
    let changes = seats.changes(old, &checked, NewPorts { added, moved, handed });
    let mut changes = changes.map_err(|why| ReloadError::Policy(why.to_string()))?;
    changes.iter_mut().for_each(|change| change.configured.extend(configured.iter().cloned()));
    for (name, program) in core::mem::take(&mut programs.programs) {
        changes[seats.thread(&name)].programs.push((name, program));
    }
    for (change, units) in changes.iter_mut().zip(core::mem::take(&mut programs.units)) {
        change.units = Some(Box::new(units));
    }
    // What several threads do not have yet belongs to the only one.
    let change = &mut changes[0];
    change.keys.clone_from(&keys);
    if let Some(port) = standby {
        change.standby = StandbyChange::Put(Box::new(port), checked.config.uplink.hold_off);
    }
    if stated.is_some()
        && let Some(counted) = &mut change.counted
    {
        let (sampled, cores) = sampler::start(&checked, number, broker);
        counted.bound(cores);
        change.heavy = Some(Box::new(HeavyFlows::new(&counted.stated)));
        change.sampled = sampled;
    }
    Ok(Prepared { checked, number, changes, seats, programs, keys })
}

/// The uplink's second port, where the new policy states another one than the old.
fn new_standby(
    old: &Checked,
    new: &Checked,
    number: Number,
    broker: &Broker,
) -> Result<Option<Port>, ReloadError> {
    if old.config.uplink.standby == new.config.uplink.standby {
        return Ok(None);
    }
    let Some(opened) = broker.open_uplink(new, number, &Whose::Standby) else { return Ok(None) };
    let port = opened?;
    carries(&Whose::Standby, &port, new.config.uplink.mtu)?;
    Ok(Some(port))
}

/// What a reload changes, as text, with the TAPs that it takes away or hands to another tenant.
fn plan(old: &Checked, new: &Checked) -> String {
    format!("{}{}{}{}", plimsoll_policy::diff(old, new), handed(old, new), taken(old, new), gone(old, new))
}

/// The present tenant whose TAP a tenant of the new policy gets as it is: one that was renamed, or that swaps its TAP.
fn hands_over<'a>(old: &'a Checked, new: &Checked, to: &TenantConfig) -> Option<&'a TenantConfig> {
    let PortSpec::Tap { .. } = &to.port else { return None };
    let from = old.config.tenants.iter().find(|from| from.port == to.port)?;
    let same_address = known_mac(old, &from.name) == known_mac(new, &to.name);
    let same_network = network_of(old, &from.name) == network_of(new, &to.name);
    (from.name != to.name && same_address && same_network).then_some(from)
}

/// The TAPs that go from one tenant to another, one on each line.
fn handed(old: &Checked, new: &Checked) -> String {
    let lines = new.config.tenants.iter().filter_map(|to| {
        let (from, name, tap) = (&hands_over(old, new, to)?.name, &to.name, &to.port);
        Some(format!("~ tenant {name}: gets the TAP {tap} of tenant {from} with all that is set on it\n"))
    });
    lines.collect()
}

/// The tenant of the new policy that gets this tenant's TAP.
fn heir<'a>(old: &Checked, new: &'a Checked, from: &TenantConfig) -> Option<&'a TenantConfig> {
    let same = |to: &&TenantConfig| to.port == from.port && hands_over(old, new, to).is_some();
    new.config.tenants.iter().find(same)
}

/// The TAPs of tenants that a policy no longer has, one on each line.
fn gone(old: &Checked, new: &Checked) -> String {
    let stays = |name: &str| new.config.tenants.iter().any(|after| after.name == name);
    let lines = old.config.tenants.iter().filter_map(|before| {
        let (name, tap) = (&before.name, &before.port);
        if !matches!(tap, PortSpec::Tap { .. }) || stays(name) || heir(old, new, before).is_some() {
            return None;
        }
        Some(match before.interface.persist {
            true => format!("! tenant {name}: its TAP {tap} stays, and no tenant has it\n"),
            false => format!("! tenant {name}: its TAP {tap} is removed\n"),
        })
    });
    lines.collect()
}

/// The TAPs that a policy takes away from tenants that it keeps, one on each line: the kernel removes a TAP with its
/// addresses, its routes and its tenant's connections.
fn taken(old: &Checked, new: &Checked) -> String {
    let lines = old.config.tenants.iter().filter_map(|before| {
        let PortSpec::Tap { .. } = &before.port else { return None };
        if heir(old, new, before).is_some() {
            return None;
        }
        let after = new.config.tenants.iter().find(|after| after.name == before.name)?;
        let (name, tap, port) = (&before.name, &before.port, &after.port);
        (port != tap)
            .then(|| format!("! tenant {name}: its TAP {tap} is removed, and {port} takes its place\n"))
    });
    lines.collect()
}

/// Why a port could not be opened, where another tenant has it until the reload is through.
fn held_by(old: &Checked, tenant: &TenantConfig) -> Option<ReloadError> {
    let same = |other: &&TenantConfig| other.name != tenant.name && other.port == tenant.port;
    let holder = old.config.tenants.iter().find(same)?.name.clone();
    Some(ReloadError::PortInUse { tenant: tenant.name.clone(), holder, port: tenant.port.to_string() })
}

/// The settings of an overlay that are fixed at the start, with whether each is unchanged.
fn overlay_settings(old: Option<&Overlay>, new: Option<&Overlay>) -> Vec<(&'static str, bool)> {
    let (Some(old), Some(new)) = (old, new) else { return vec![("`overlay`", old == new)] };
    let way = |overlay: &Overlay| overlay.feedback.as_ref().map(|feedback| feedback.via);
    let (before, own) = (old.own(), new.own());
    vec![
        ("`overlay.kind`", old.kind == new.kind),
        ("`overlay.port`", old.port == new.port),
        ("`overlay.host`", before.name == own.name),
        ("this host's `address` in `overlay.hosts`", before.address == own.address),
        ("this host's `channel` in `overlay.hosts`", before.channel == own.channel),
        ("`overlay.feedback`", way(old).is_some() == way(new).is_some()),
        ("`overlay.feedback.via`", way(old) == way(new)),
        ("whether `overlay` has a key", old.key.is_some() == new.key.is_some()),
        ("`overlay.sealed`", old.sealed == new.sealed),
    ]
}

/// Refuses changes of settings that are fixed at the start: the uplink's port, the number of flow queues, the API's sockets.
fn needs_no_restart(old: &Checked, new: &Checked) -> Result<(), ReloadError> {
    let (old, new) = (&old.config, &new.config);
    let (engine, next) = (&old.engine, &new.engine);
    let mut settings = vec![
        ("`uplink.port`", old.uplink.port == new.uplink.port),
        ("`uplink.mtu`", old.uplink.mtu == new.uplink.mtu),
        ("`engine.cpu`", engine.cpu == next.cpu),
        ("`engine.threads`", engine.threads == next.threads),
        ("`engine.busy_poll`", engine.busy_poll == next.busy_poll),
        ("`engine.queues`", engine.queues == next.queues),
        ("`engine.ring`", engine.ring == next.ring),
        ("`engine.experiment`", engine.experiment == next.experiment),
        ("`api`", old.api == new.api),
    ];
    settings.extend(overlay_settings(old.overlay.as_ref(), new.overlay.as_ref()));
    match settings.into_iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(ReloadError::NeedsRestart { what }),
        None => Ok(()),
    }
}

/// The VNI of a tenant here.
fn network_of(checked: &Checked, tenant: &str) -> Option<u32> {
    checked.config.overlay.as_ref()?.network_of(tenant)
}

/// Refuses to move a tenant that stays from one network to another.
fn keeps_networks(old: &Checked, new: &Checked) -> Result<(), ReloadError> {
    let (Some(before), Some(after)) = (&old.config.overlay, &new.config.overlay) else { return Ok(()) };
    for tenant in &before.own().tenants {
        let (name, from) = (&tenant.name, tenant.network);
        if let Some(to) = after.network_of(name).filter(|to| *to != from) {
            let (old, new) = (before.network_name(from), after.network_name(to));
            // A network that gets another number may keep its name.
            let (from, to) = if old == new { (from.to_string(), to.to_string()) } else { (old, new) };
            return Err(ReloadError::OtherNetwork { tenant: name.clone(), from, to });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy of an overlay with these networks and tenants of the map.
    fn fleet(networks: &str, tenants: &str, elsewhere: &str) -> Checked {
        let text = format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{a: {{port: memory}}, b: {{port: memory}}}}, overlay: {{kind: geneve, \
             {networks}, host: h, hosts: {{h: {{address: 192.0.2.1, tenants: {{{tenants}}}}}, i: {{address: 192.0.2.2, tenants: \
             {{{elsewhere}}}}}}}}}}}"
        );
        plimsoll_policy::check_str("test.yaml", &text)
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    }

    #[test]
    fn networks_change_by_reload_but_not_that_of_a_tenant_here() {
        let (mine, other) = (
            "a: 02:00:00:00:00:01, b: {mac: 02:00:00:00:00:02, network: red}",
            "c: {mac: 02:00:00:00:00:03, network: red}",
        );
        let old = fleet("vni: 7, networks: {red: 8}", mine, other);
        let may = |networks, tenants, elsewhere| {
            let new = fleet(networks, tenants, elsewhere);
            needs_no_restart(&old, &new)
                .and_then(|()| keeps_networks(&old, &new))
                .map_err(|why| why.to_string())
        };
        let named = "a: {mac: 02:00:00:00:00:01, network: blue}, b: {mac: 02:00:00:00:00:02, network: rot}";
        let elsewhere = "c: {mac: 02:00:00:00:00:03, network: green}";
        assert_eq!(
            may("networks: {blue: 7, rot: 8, green: 9}", named, elsewhere),
            Ok(()),
            "new names, and a new network"
        );
        let moved = may("vni: 7, networks: {red: 8}", "a: 02:00:00:00:00:01, b: 02:00:00:00:00:02", other)
            .unwrap_err();
        assert!(
            moved.starts_with("tenant b is in network red, and the new policy puts it into 7:"),
            "{moved}"
        );
        let renumbered = may("vni: 7, networks: {red: 9}", mine, other).unwrap_err();
        assert!(
            renumbered.starts_with("tenant b is in network 8, and the new policy puts it into 9:"),
            "{renumbered}"
        );
        assert!(
            may("vni: 9, networks: {red: 8}", mine, other).is_err(),
            "the default network is a tenant's as any other"
        );
    }

    /// A policy with these tenants.
    fn checked(tenants: &str) -> Checked {
        let text = format!("{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{{tenants}}}}}");
        plimsoll_policy::check_str("test.yaml", &text).expect("a policy")
    }

    #[test]
    fn what_takes_a_restart_is_named_and_the_rest_does_not() {
        let checked = |engine: &str| {
            let text = format!(
                "{{uplink: {{port: memory, rate: 1Gbps}}, engine: {{{engine}}}, tenants: {{a: {{port: memory}}}}}}"
            );
            plimsoll_policy::check_str("test.yaml", &text).expect("a policy")
        };
        let (old, refused) =
            (checked(""), |engine| needs_no_restart(&checked(""), &checked(engine)).unwrap_err().to_string());
        assert!(needs_no_restart(&old, &checked("descriptors: 100000, max_depth: 5")).is_ok());
        assert!(refused("queues: 1024").starts_with("`engine.queues` has changed, which takes a restart"));
        assert!(refused("ring: 64").starts_with("`engine.ring`"));
    }

    #[test]
    fn a_reload_that_takes_a_tap_away_says_which() {
        let old = checked(
            "a: {port: {tap: {netns: x, name: eth0}}}, b: {port: {tap: {netns: y, name: eth0}}}, c: {port: memory}",
        );
        let lost = |tenants| taken(&old, &checked(tenants)).lines().map(str::to_owned).collect::<Vec<_>>();
        let renamed = lost(
            "a: {port: {tap: {netns: x, name: eth1}}}, b: {port: {tap: {netns: y, name: eth0}}, max: 1Mbps}",
        );
        assert_eq!(
            renamed,
            [
                "! tenant a: its TAP {tap: {netns: x, name: eth0}} is removed, and {tap: {netns: x, name: eth1}} takes its place"
            ]
        );
        assert_eq!(
            lost("a: {port: {tap: {netns: z, name: eth0}}}, b: {port: memory}").len(),
            2,
            "moved, and no TAP"
        );
        let left = "c: {port: {tap: {netns: x, name: eth9}}}";
        assert!(lost(left).is_empty(), "a tenant that is taken out, and one that gets a TAP");
        let removed = gone(&old, &checked(left));
        assert_eq!(
            removed,
            "! tenant a: its TAP {tap: {netns: x, name: eth0}} is removed\n\
             ! tenant b: its TAP {tap: {netns: y, name: eth0}} is removed\n"
        );
        assert!(plan(&old, &checked(left)).ends_with(&removed));
    }

    #[test]
    fn a_tap_that_another_tenant_gets_is_handed_over_and_not_removed() {
        let old = checked(
            "a: {port: {tap: {netns: x, name: eth0}}}, b: {port: {tap: {netns: y, name: eth0}}}, c: {port: memory}",
        );
        let told = |tenants| {
            let new = checked(tenants);
            (handed(&old, &new), taken(&old, &new) + &gone(&old, &new))
        };
        let to = |name, tap, from| {
            format!(
                "~ tenant {name}: gets the TAP {{tap: {{netns: {tap}, name: eth0}}}} of tenant {from} with all that is set on it\n"
            )
        };
        let renamed = "z: {port: {tap: {netns: x, name: eth0}}}, b: {port: {tap: {netns: y, name: eth0}}}";
        assert_eq!(told(renamed), (to("z", "x", "a"), String::new()));
        let swapped = "a: {port: {tap: {netns: y, name: eth0}}}, b: {port: {tap: {netns: x, name: eth0}}}";
        assert_eq!(told(swapped), (to("a", "y", "b") + &to("b", "x", "a"), String::new()));
        let by_path = "a: {port: {tap: {netns: /run/netns/x, name: eth0}}}, b: {port: {tap: {netns: /var/run/netns/y, name: eth0}}}, c: {port: memory}";
        assert!(plimsoll_policy::diff(&old, &checked(by_path)).is_empty(), "the same namespaces");
        let on = "b: {port: {tap: {netns: x, name: eth0}}}";
        assert_eq!(told(on).0, to("b", "x", "a"));
        assert!(told(on).1.starts_with("! tenant b: its TAP {tap: {netns: y, name: eth0}} is removed, and"));
    }

    #[test]
    fn who_has_a_port_that_cannot_be_opened_is_named() {
        let old = checked("a: {port: {tap: {netns: x, name: eth0}}}");
        let holder = |tenants| held_by(&old, &checked(tenants).config.tenants[0]);
        let error = holder("b: {port: {tap: {netns: x, name: eth0}}}").expect("a").to_string();
        assert!(error.contains("tenant a has the port {tap: {netns: x, name: eth0}}"), "{error}");
        assert!(holder("b: {port: {tap: {netns: y, name: eth0}}}").is_none(), "another port");
        assert!(holder("a: {port: {tap: {netns: x, name: eth0}}}").is_none(), "its own");
    }
}
