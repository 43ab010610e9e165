//! Tenants' programs, from the files that a policy names to programs that have been started.
//!
//! Why: a module is read, checked, compiled and initialised before the engine's thread hears of it, so that a wrong one changes nothing.
//! From: FairNIC §4 (operators check tenants' programs); `docs/programs.md`.
//! Not here: how packets pass a program (`dataplane::hosted`), the checks themselves (`plimsoll-offload`).
//! Invariant: a reload starts a program anew only where its module, or what it may use, has changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::time::{ClockId, clock_gettime};
use plimsoll_offload::{Limits, Metering, Module, Program, Runtime, verify};
use plimsoll_policy::{Checked, TenantConfig, TenantProgram};
use plimsoll_units::Nanos;

use crate::broker::{Broker, Number};
use crate::dataplane::{Hosted, RESERVED, UnitWeights, Units};
use crate::epochs::Epochs;

/// Why a tenant's program cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tenant {tenant}: program {}: {why}", module.display())]
pub struct ProgramError {
    /// The tenant.
    pub tenant: String,
    /// The file of its module.
    pub module: PathBuf,
    /// The reason.
    pub why: String,
}

/// Why the programs of a policy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramsError {
    /// One of them is wrong.
    #[error(transparent)]
    One(#[from] ProgramError),
    /// The engine's process may not run compiled code.
    #[error(
        "tenant {0} gets a `program`, and the engine was started without any: its sandbox does not let it run compiled code. \
         Restart the daemon with this policy"
    )]
    NotAllowed(String),
}

/// The programs of a daemon.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Whether the process may run compiled code.
    allowed: bool,
    /// The cores that the engine's threads are pinned to.
    engine: Range<u32>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    started: Option<(Runtime, Arc<Epochs>)>,
    /// Whether the engine has coprocessors.
    has_units: bool,
    /// What is in force, by tenant.
    loaded: BTreeMap<String, Loaded>,
}

/// A program that was started.
#[derive(Clone, Debug)]
struct Loaded {
    stated: TenantProgram,
    limits: Limits,
    module: Arc<[u8]>,
}

/// The programs that a reload brings.
#[derive(Debug, Default)]
pub(crate) struct NewPrograms {
    /// By tenant; none for a tenant that no longer has one.
    pub(crate) programs: Vec<(String, Option<Box<Hosted>>)>,
    /// Coprocessors, where these are the first programs that use some: for each engine thread.
    pub(crate) units: Vec<Units>,
    /// The modules that are new while the policy's text is the same, one on each line.
    pub(crate) changes: String,
    pub(crate) prepared: Prepared,
}

/// What is in force once the programs of a reload are.
#[derive(Debug, Default)]
pub(crate) struct Prepared(BTreeMap<String, Loaded>);

/// Modules of one load, each read and compiled once.
#[derive(Default)]
struct Modules {
    files: BTreeMap<PathBuf, Arc<[u8]>>,
    compiled: Vec<(Arc<[u8]>, Limits, Module)>,
}

/// The tenants of a policy that have a program.
pub(crate) fn with_programs(checked: &Checked) -> impl Iterator<Item = (&TenantConfig, &TenantProgram)> {
    checked.config.tenants.iter().filter_map(|tenant| Some((tenant, tenant.program.as_ref()?)))
}

/// Each tenant's weights at the coprocessors; none for one without a program.
#[must_use]
pub fn unit_weights(checked: &Checked) -> Vec<(String, UnitWeights)> {
    let weights = |stated: &TenantProgram| stated.units.named().map(|(_, weight)| weight);
    with_programs(checked).map(|(tenant, stated)| (tenant.name.clone(), weights(stated))).collect()
}

/// Whether a tenant's program has a weight at a coprocessor.
fn uses_units(stated: &TenantProgram) -> bool {
    stated.units != Default::default()
}

/// What a tenant's program may use under a policy.
#[must_use]
pub fn program_limits(checked: &Checked, tenant: &str, stated: &TenantProgram) -> Limits {
    let slo = checked.program.tenants.iter().find(|compiled| compiled.name == tenant);
    let slots = slo.map_or(plimsoll_policy::DEFAULT_SLOTS, |compiled| compiled.slo.slots);
    let longest = u32::from(checked.config.uplink.mtu) + ETHERNET;
    Limits {
        memory: stated.memory.as_u64(),
        buffers: slots + RESERVED,
        buffer: longest.next_multiple_of(BUFFER),
        amplification: stated.amplification,
        ..Limits::default()
    }
}

/// An Ethernet header with two tags.
const ETHERNET: u32 = 22;
/// Buffers are a multiple of this long.
const BUFFER: u32 = 2_048;

/// Checks the modules that a policy names, as a daemon does before it loads them: all that is wrong with them.
#[must_use]
pub fn check_programs(checked: &Checked) -> Vec<ProgramError> {
    let wrong = |(tenant, stated): (&TenantConfig, &TenantProgram)| {
        let limits = program_limits(checked, &tenant.name, stated);
        let read = read_module(&stated.module, limits.module).map_err(|error| error.to_string());
        let report = read.and_then(|module| verify(&module, &limits).map_err(|refusal| refusal.to_string()));
        report
            .and_then(|report| keeps_state(stated, report.saves(), report.restores()))
            .err()
            .map(|why| failed(&tenant.name, stated, why))
    };
    with_programs(checked).filter_map(wrong).collect()
}

/// Refuses `state: keep` for a module that cannot keep it.
fn keeps_state(stated: &TenantProgram, saves: bool, restores: bool) -> Result<(), String> {
    if stated.state == plimsoll_policy::StateKept::Drop || saves && restores {
        return Ok(());
    }
    Err("`state: keep`, and it does not export `state_save`, `state_room` and `state_restore`".to_owned())
}

fn failed(tenant: &str, stated: &TenantProgram, why: impl ToString) -> ProgramError {
    ProgramError { tenant: tenant.to_owned(), module: stated.module.clone(), why: why.to_string() }
}

/// Opens a module's file, which must be a regular one: its author may have put a pipe there.
pub(crate) fn open_module(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Reads a module from its open file, one byte more than it may have at most.
pub(crate) fn module_in(file: File, most: usize) -> io::Result<Vec<u8>> {
    let mut module = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut module)?;
    Ok(module)
}

/// Reads a module from its file.
pub(crate) fn read_module(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    module_in(open_module(path)?, most)
}

/// The CPU time that this thread has used.
pub(crate) fn used() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(std::time::Duration::from);
    Nanos::new(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

impl Default for Programs {
    fn default() -> Self {
        Self::new(true, 0..0)
    }
}

impl Programs {
    /// The programs of a process that may run compiled code, or may not, and whose engine threads are pinned to these cores.
    pub(crate) fn new(allowed: bool, engine: Range<u32>) -> Self {
        Self { allowed, engine, state: Mutex::default() }
    }

    /// Starts the programs that a policy brings, beside those that are in force.
    ///
    /// # Errors
    /// See [`ProgramsError`]; nothing has changed then.
    pub(crate) fn prepare(
        &self,
        checked: &Checked,
        broker: &Broker,
        number: Number,
    ) -> Result<NewPrograms, ProgramsError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = NewPrograms::default();
        let mut modules = Modules::default();
        for (tenant, stated) in with_programs(checked) {
            if !self.allowed {
                return Err(ProgramsError::NotAllowed(tenant.name.clone()));
            }
            if let Some(core) = stated.core.filter(|core| self.engine.contains(core)) {
                let why = format!("core {core} is the engine's (`--cpu`): write another one in `cores`");
                return Err(failed(&tenant.name, stated, why).into());
            }
            let limits = program_limits(checked, &tenant.name, stated);
            let module = modules.read(checked, broker, number, (tenant, stated), limits.module)?;
            let loaded = Loaded { stated: stated.clone(), limits, module };
            let before = state.loaded.get(&tenant.name);
            if before.is_none_or(|before| !before.is_same(&loaded)) {
                if before.is_some_and(|before| before.stated == *stated && before.module != loaded.module) {
                    let line = format!(
                        "~ tenant {}: the module {} has changed\n",
                        tenant.name,
                        stated.module.display()
                    );
                    new.changes.push_str(&line);
                }
                let (runtime, epochs) = state.start().map_err(|why| failed(&tenant.name, stated, why))?;
                let started = modules.start(&runtime, &epochs, (&tenant.name, &loaded));
                let hosted = started.map_err(|why| failed(&tenant.name, stated, why))?;
                new.programs.push((tenant.name.clone(), Some(Box::new(hosted))));
            }
            new.prepared.0.insert(tenant.name.clone(), loaded);
        }
        let uses = with_programs(checked).find(|(_, stated)| uses_units(stated));
        if let Some((tenant, stated)) = uses.filter(|_| !state.has_units) {
            let engine = &checked.config.engine;
            let limited = engine.experiment.as_ref().is_none_or(|experiment| experiment.limiter);
            new.units = Units::start(engine.threads.max(1) as usize, limited)
                .map_err(|error| failed(&tenant.name, stated, format!("no thread for it: {error}")))?;
        }
        let gone = state.loaded.keys().filter(|name| !new.prepared.0.contains_key(*name));
        new.programs.extend(gone.map(|name| (name.clone(), None)));
        Ok(new)
    }

    /// Notes that what was prepared is in force.
    pub(crate) fn in_force(&self, prepared: Prepared) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.has_units |= prepared.0.values().any(|loaded| uses_units(&loaded.stated));
        state.loaded = prepared.0;
    }
}

impl State {
    /// The runtime, and the thread that ends its calls.
    fn start(&mut self) -> Result<(Runtime, Arc<Epochs>), String> {
        if let Some((runtime, epochs)) = &self.started {
            return Ok((runtime.clone(), Arc::clone(epochs)));
        }
        let runtime = Runtime::timed(used).map_err(|error| error.to_string())?;
        debug_assert_eq!(runtime.metering(), Metering::Epochs);
        let epochs =
            Arc::new(Epochs::of(runtime.clone()).map_err(|error| format!("no thread for it: {error}"))?);
        self.started = Some((runtime.clone(), Arc::clone(&epochs)));
        Ok((runtime, epochs))
    }
}

impl Loaded {
    /// Whether a program that was started as the one serves as the other, too.
    fn is_same(&self, other: &Self) -> bool {
        // Shares of the core and of coprocessors are changed while the program runs.
        let apart_from_shares =
            |stated: &TenantProgram| TenantProgram { cpu: None, units: Default::default(), ..stated.clone() };
        apart_from_shares(&self.stated) == apart_from_shares(&other.stated)
            && self.limits == other.limits
            && self.module == other.module
    }
}

impl Modules {
    fn read(
        &mut self,
        checked: &Checked,
        broker: &Broker,
        number: Number,
        (tenant, stated): (&TenantConfig, &TenantProgram),
        most: usize,
    ) -> Result<Arc<[u8]>, ProgramError> {
        if let Some(module) = self.files.get(&stated.module) {
            return Ok(Arc::clone(module));
        }
        let read = broker.open_module(checked, number, &tenant.name).and_then(|file| module_in(file, most));
        let module: Arc<[u8]> = read.map_err(|error| failed(&tenant.name, stated, error))?.into();
        self.files.insert(stated.module.clone(), Arc::clone(&module));
        Ok(module)
    }

    /// Compiles a module, unless it was compiled with the same limits, and starts a program.
    fn start(
        &mut self,
        runtime: &Runtime,
        epochs: &Arc<Epochs>,
        (tenant, loaded): (&str, &Loaded),
    ) -> Result<Hosted, String> {
        let Loaded { stated, limits, module } = loaded;
        let same = |(bytes, of, _): &&(Arc<[u8]>, Limits, Module)| Arc::ptr_eq(bytes, module) && of == limits;
        let compiled = match self.compiled.iter().find(same) {
            Some((_, _, compiled)) => compiled.clone(),
            None => {
                let compiled = runtime.load(module, limits).map_err(|error| error.to_string())?;
                self.compiled.push((Arc::clone(module), *limits, compiled.clone()));
                compiled
            }
        };
        keeps_state(stated, compiled.report().saves(), compiled.report().restores())?;
        let running = epochs.run();
        let program = Program::new(&compiled).map_err(|error| error.to_string());
        drop(running);
        let (program, epochs) = (program?, Some(Arc::clone(epochs)));
        match stated.core {
            Some(core) => {
                let started = Hosted::on_core(core, program, (tenant, stated), epochs);
                started.map_err(|error| format!("no thread for it: {error}"))
            }
            None => Ok(Hosted::new(program, (tenant, stated), epochs)),
        }
    }
}
