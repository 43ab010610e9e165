//! From files to a checked policy.
//!
//! Why: a policy that breaks a rule must not reach the engine, and its author should learn all its mistakes at once.
//! From: Loom §3 (what a legal graph is), `docs/policy.md` (all rules).
//! Not here: YAML (`tree`), keys and values (`read`), what is shown of a good policy (`show`).
//! Invariant: `Ok` means that every rule holds; nothing is installed on `Err`.

mod addresses;
mod backed;
mod backpressure;
mod compile;
mod compose;
mod cost;
mod descriptors;
mod envelope;
mod graph;
mod interface;
mod limits;
mod link;
mod machine;
mod metadata;
mod networks;
mod offload;
mod overlay;
mod ports;
pub(crate) mod promises;
mod ranked;
mod rates;
mod rules;
mod shadow;
mod short;
mod threads;
mod unread;

use std::io::{self, Write};
use std::path::Path;

use plimsoll_units::{BitRate, Bytes};

use self::compose::Composer;
pub use self::overlay::{relative_weight, sender_weights};
use crate::config::{Config, EngineConfig, IngressOrder, Port, TenantConfig, Uplink};
use crate::files::{Disk, FileRead, Files, Loaded, MAX_FILE, Parse, here, read_text};
use crate::law::{Errors, Law, Problem, ProblemRecord, Problems};
use crate::program::Program;
use crate::read;
use crate::read::syntax::{HostFile, OverlayEntry, TenantEntry};
use plimsoll_document::{self as document, FileId, Located, Mark, Sources, SyntaxError, Tree};

pub use self::cost::{Cost, cost};

/// A policy that broke no rule.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Ports, engine and API.
    pub config: Config,
    /// The tables that the engine installs.
    pub program: Program,
    /// Doubts that its author may want to look at.
    pub warnings: Vec<Problem>,
    /// The files that it was made of.
    pub sources: Sources,
    /// Where `engine.cpu` is stated.
    cpu_at: Option<Mark>,
    /// The cores that programs have to themselves, and where they are stated.
    cores: Vec<Located<u32>>,
    /// Where the uplink's `standby` stands.
    standby_at: Option<Mark>,
}

impl Checked {
    /// The warnings for a machine.
    #[must_use]
    pub fn warning_records(&self) -> Vec<ProblemRecord> {
        document::records(&self.warnings, &self.sources)
    }

    /// The warnings as a terminal shows them.
    #[must_use]
    pub fn render_warnings(&self, colour: bool) -> String {
        document::render(&self.warnings, &self.sources, colour)
    }
}

/// Checks the policy in the file `name` and in those that it names, which `load` reads.
///
/// `load` gets a path as seen from the working directory of the caller that passed `name`, and returns the file's text or why
/// it cannot; it is called once for each file.
pub fn check_with(
    name: &str,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Checked, Errors> {
    check_files(name, &mut Loaded(load))
}

/// [`check_with`] for callers that also parse the YAML themselves.
pub fn check_files(name: &str, files: &mut dyn Files) -> Result<Checked, Errors> {
    let text = match files.text(name) {
        Ok(text) => text,
        Err(why) => return Err(unread::unreadable(name, &why)),
    };
    // The operator's own file is read here.
    check_sources(Sources::one(name, &text), files)
}

/// Checks a policy that is one text; it can name no further file.
///
/// ```
/// let checked = plimsoll_policy::check_str("p.yaml", "
/// uplink: {port: memory, rate: 10Gbps}
/// tenants:
///   shop:  {port: memory, min: 2Gbps, weight: 2}
///   batch: {port: memory, max: 5Gbps}
/// ").expect("a legal policy");
/// assert_eq!(checked.program.tenants[0].name, "shop");
/// ```
pub fn check_str(name: &str, text: &str) -> Result<Checked, Errors> {
    let mut none = |_: &str| Err("this policy is a text without further files".to_owned());
    check_sources(Sources::one(name, text), &mut Loaded(&mut none))
}

/// Checks the policy in the file `path`, and warns of what this machine lacks.
pub fn load(path: &str) -> Result<Checked, Errors> {
    load_with(path, &mut here)
}

/// [`load`], with other files than the operator's read by `parse`: in another process, say.
pub fn load_with(path: &str, parse: &mut Parse<'_>) -> Result<Checked, Errors> {
    load_files(path, &mut Disk::new(path, parse))
}

/// [`load`], with all files from somewhere else: from another process, which has read them, say.
pub fn load_files(path: &str, files: &mut dyn Files) -> Result<Checked, Errors> {
    check_files(path, files).map(on_this_machine)
}

/// [`load_with`] for an operator's file that has been read.
pub fn load_read(file: FileRead, parse: &mut Parse<'_>) -> Result<Checked, Errors> {
    let FileRead { path, sources, tree } = file;
    check_tree(sources, tree, &mut Disk::new(&path, parse)).map(on_this_machine)
}

/// Adds warnings of what this machine lacks.
fn on_this_machine(mut checked: Checked) -> Checked {
    if let (Some(cpu), Some(at)) = (checked.config.engine.cpu, checked.cpu_at) {
        checked.warnings.extend(machine::no_such_core(Located::new(cpu, at), &machine::cores()));
    }
    for &core in &checked.cores {
        checked.warnings.extend(machine::no_such_core_for_program(core, &machine::cores()));
    }
    if let Some(at) = checked.standby_at {
        checked.warnings.extend(machine::slow_standby(&checked.config.uplink, at, machine::speed));
    }
    document::sort(&mut checked.warnings);
    checked
}

/// Checks the file of a tenant or an application by itself, and those that it names: all that holds in any place.
///
/// Its place's rate is not known, so the program has a link without bound, and bounds derived from it mean nothing.
pub fn load_sub_policy(path: &str) -> Result<Checked, Errors> {
    let text = read_text(Path::new(path), MAX_FILE).map_err(|why| unread::unreadable(path, &why))?;
    let sources = Sources::one(path, &text);
    let tree = document::parse(&sources, FileId(0));
    load_sub_policy_read(FileRead { path: path.to_owned(), sources, tree }, &mut here)
}

/// [`load_sub_policy`] for a file that has been read; `parse` reads those that it names.
pub fn load_sub_policy_read(file: FileRead, parse: &mut Parse<'_>) -> Result<Checked, Errors> {
    let FileRead { path, sources, tree } = file;
    match tree {
        Ok(tree) => sub_policy(&path, sources, tree, &mut Disk::new(&path, parse)),
        Err(error) => Err(Errors::new(vec![unread::no_yaml(error)], sources)),
    }
}

/// Judges the tree of a tenant's file alone.
fn sub_policy(path: &str, mut sources: Sources, tree: Tree, rest: &mut dyn Files) -> Result<Checked, Errors> {
    let (file, problems) = read::read_all(|reader| read::policy_file(reader, &tree));
    // It may take a hundred megabytes, and the rest works on what was read.
    drop(tree);
    let host = read::any_host(&file, path, sources.add("the file that names this one", String::new()));
    let mut composer = Composer::new(&mut sources, rest);
    composer.is_read(path, file, problems);
    judge(composer, host, true)
}

/// Reads a tenant's file for another process, and judges it alone, so that only this process ends if either takes too much;
/// then writes what it read ([`plimsoll_document::answer`]).
///
/// # Errors
/// The error of writing to `to`.
pub fn read_file(text: &str, to: &mut impl Write) -> io::Result<()> {
    let sources = Sources::one(ALONE, text);
    let read = document::parse(&sources, FileId(0));
    let mut answer = Vec::new();
    document::answer(&read, &mut answer)?;
    if let Ok(tree) = read {
        let mut none = |_: &str| Err("it is not known here".to_owned());
        // The process that asked reports the problems: it knows the places and the other files.
        let _ = sub_policy(ALONE, sources, tree, &mut Loaded(&mut none));
    }
    to.write_all(&answer)
}

/// The name of a file where none is known.
const ALONE: &str = "file";

fn check_sources(sources: Sources, files: &mut dyn Files) -> Result<Checked, Errors> {
    let tree = document::parse(&sources, FileId(0));
    check_tree(sources, tree, files)
}

/// Checks the tree of the operator's file.
fn check_tree(
    mut sources: Sources,
    tree: Result<Tree, SyntaxError>,
    files: &mut dyn Files,
) -> Result<Checked, Errors> {
    let tree = match tree {
        Ok(tree) => tree,
        Err(error) => return Err(Errors::new(vec![unread::no_yaml(error)], sources)),
    };
    let (mut host, problems) = read::read_all(|reader| read::host_file(reader, &tree));
    let mut composer = Composer::new(&mut sources, files);
    composer.problems = problems;
    composer.include(&mut host);
    judge(composer, host, false)
}

/// `alone` is a sub-policy without the operator's file, whose link has any rate.
fn judge(mut composer: Composer<'_>, mut host: HostFile, alone: bool) -> Result<Checked, Errors> {
    let (uplink, mut engine, api) = (host.uplink.take(), host.engine.clone(), host.api.clone());
    let (engine_at, cpu_at, host_descriptors) = (host.engine_at, host.cpu_at, host.descriptors);
    let threads_at = host.threads_at;
    let (overlay_stated, counted) = (host.overlay.take(), host.backpressure.take());

    composer.compose(host);
    limits::resolve(&mut composer);
    let tenants = std::mem::take(&mut composer.tenants);
    let weights = std::mem::take(&mut composer.weights);
    let sources = std::mem::take(composer.sources);
    let (graph, mut problems) = (composer.graph, composer.problems);
    ports::judge(uplink.as_ref(), &tenants, &mut problems);
    let networks = overlay_stated.as_ref().map(OverlayEntry::own_networks).unwrap_or_default();
    addresses::judge(&tenants, &networks, &mut problems);
    offload::judge(&tenants, (&engine, cpu_at), &mut problems);
    let rules = rules::rules(&graph, &mut problems);
    cost::too_deep(&graph, &engine, &mut problems);
    let minima = envelope::minima(&graph);
    let rate = uplink.as_ref().and_then(|uplink| uplink.rate).map(value);
    // Without a rate, all that does not depend on it is judged as on a link without bound.
    let mut link = link::link(uplink.as_ref(), rate.or(BitRate::new(u64::MAX)).unwrap_or(BitRate::gbps(1)));
    let overlay = overlay_stated.as_ref().and_then(|stated| {
        let mtu = uplink.as_ref().map_or(read::DEFAULT_MTU, |uplink| uplink.mtu);
        overlay::judge(stated, &tenants, link.rate, mtu, &mut problems)
    });
    let mtu = uplink.as_ref().map_or(read::DEFAULT_MTU, |uplink| uplink.mtu);
    let wrapped = overlay.as_ref().map_or(0, crate::config::Overlay::header);
    interface::judge(&tenants, mtu.saturating_sub(wrapped), &mut problems);
    if let Some(overlay) = &overlay {
        // The overlay's headers are on the link, but are no part of a tenant's frame.
        let header = Bytes::new(overlay.header().into());
        link.max_frame = Bytes::new(link.max_frame.as_u64().saturating_sub(header.as_u64()));
        link.overhead += header;
    }
    let fleet = overlay_stated.as_ref().is_some_and(|overlay| overlay.feedback.is_some());
    let backpressure = counted.map(|stated| {
        backpressure::judge(&stated, &tenants, link.rate, fleet, engine.busy_poll, &mut problems)
    });
    envelope::judge(&graph, &minima, link, &mut problems);
    promises::judge(&tenants, link, &mut problems);
    ranked::judge(&graph, &mut problems);
    rates::judge(&graph, link, &mut problems);
    limits::judge(&graph, &rules.rules, link, &mut problems);
    let descriptors =
        descriptors::share(&mut engine, host_descriptors, &tenants, graph.tenants.len(), &mut problems);
    one_order(&engine, engine_at, overlay_stated.as_ref(), &mut problems);
    let mut slos = promises::slos(&graph, &tenants, &weights);
    if let Some(slots) = engine.experiment.as_ref().and_then(|experiment| experiment.slots) {
        slos.iter_mut().for_each(|slo| slo.slots = slots);
    }
    let program = compile::compile(&graph, rules, link, &minima, &descriptors, slos);
    // A packet for another host's tenant is behind what that one allows, in bits and in packets.
    let of_pairs = if overlay.as_ref().is_some_and(|overlay| overlay.feedback.is_some()) { 2 } else { 0 };
    cost::too_many_limits(&graph, &program, of_pairs, &mut problems);
    if rate.is_some() {
        cost::too_costly(&graph, &program, &engine, engine_at, &mut problems);
    }
    if let Some(at) = threads_at.filter(|_| engine.threads > 1) {
        let stated = threads::Stated {
            engine: &engine,
            uplink: uplink.as_ref(),
            tenants: &tenants,
            overlay: overlay_stated.is_some(),
            backpressure: backpressure.is_some(),
        };
        threads::judge(&program, at, &stated, &mut problems);
    }
    let broken = problems.has_errors() || overlay.is_none() != overlay_stated.is_none();
    let (true, Some(uplink), false) = (rate.is_some() || alone, uplink, broken) else {
        return Err(Errors::new(problems, sources));
    };
    if !alone {
        backed::not_backed(&graph_minima(&graph), &program, &mut problems);
        promises::not_held(&tenants, &program, &mut problems);
    }
    let cores = offload::cores(&tenants).map(|(_, core)| core).collect();
    let tenants = tenants
        .iter()
        .zip(&descriptors)
        .zip(&weights)
        .filter_map(|((entry, cap), weight)| tenant_config(entry, *cap, *weight, &sources));
    let port = uplink.port.map_or(Port::Memory, |port| port.value);
    let standby_at = uplink.standby.as_ref().map(|port| port.at);
    let uplink = Uplink {
        port,
        standby: uplink.standby.map(|port| port.value),
        hold_off: uplink.hold_off,
        rate: link.rate,
        overhead: uplink.overhead,
        mtu: uplink.mtu,
        grain: uplink.grain,
    };
    let config = Config { uplink, engine, api, tenants: tenants.collect(), overlay, backpressure };
    Ok(Checked { config, program, warnings: problems.sorted(), sources, cpu_at, cores, standby_at })
}

/// Refuses feedback with `ingress: shared`: receivers steer by the frames that wait for each tenant, and one queue for all
/// does not tell them apart.
fn one_order(engine: &EngineConfig, at: Mark, overlay: Option<&OverlayEntry>, problems: &mut Problems) {
    let shared = engine.experiment.as_ref().is_some_and(|one| one.ingress == IngressOrder::Shared);
    let Some(feedback) = overlay.and_then(|overlay| overlay.feedback.as_ref()).filter(|_| shared) else {
        return;
    };
    let message =
        "`ingress: shared` keeps no tenant's frames apart, and `feedback` tells senders what waits for each";
    let problem = Problem::error(Law::BadValue, at, message).label("shared here");
    problems.push(problem.also(feedback.via_at, "told here").help("leave one of the two out"));
}

/// Where each sub-policy's place and minima are stated, for warnings about promises that are not backed.
fn graph_minima(graph: &graph::Graph) -> Vec<(usize, Mark)> {
    let places = graph.scopes.iter().skip(1).map(|scope| scope.root);
    let first_min = |place: usize| {
        let stated = graph.nodes[place].children.iter().filter_map(|&child| graph.nodes[child].min);
        stated.map(|min| min.at).next().map(|at| (place, at))
    };
    places.filter_map(first_min).collect()
}

fn tenant_config(
    entry: &TenantEntry,
    descriptors: u32,
    weight: u32,
    sources: &Sources,
) -> Option<TenantConfig> {
    Some(TenantConfig {
        name: entry.name.value.clone(),
        port: entry.port.as_ref()?.value.clone(),
        min: entry.class.min.map(value),
        max: entry.class.max.map(value),
        weight,
        descriptors,
        addresses: addresses::stated(entry),
        interface: interface::stated(entry),
        ecn: entry.ecn,
        program: offload::stated(entry, sources),
        policy: entry.class.policy.as_ref().map(|policy| policy.value.clone()),
    })
}

fn value<T>(found: Located<T>) -> T {
    found.value
}
