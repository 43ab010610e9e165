//! From files to a checked policy.
//!
//! Why: a policy that breaks a rule must not reach the engine, and its author should learn all its mistakes at once.
//! From: Loom §3 (what a legal graph is), `docs/policy.md` (all rules).
//! Not here: YAML (`tree`), keys and values (`read`), what is shown of a good policy (`show`).
//! Invariant: `Ok` means that every rule holds; nothing is installed on `Err`.

mod compile;
mod compose;
mod cost;
mod descriptors;
mod envelope;
mod graph;
mod leftovers;
mod limits;
mod machine;
mod names;
mod overlay;
mod ports;
pub(crate) mod promises;
mod rates;
mod rules;
mod shadow;

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use plimsoll_units::{BitRate, Bytes};

use self::compile::Link;
use self::compose::Composer;
pub use self::overlay::weight_of;
use crate::config::{Config, Engine, IngressOrder, Port, TenantConfig, Uplink};
use crate::document::{self, FileId, Located, Mark, Severity, Sources, SyntaxError};
use crate::law::{Errors, Law, Problem, ProblemRecord};
use crate::program::Program;
use crate::read;
use crate::read::syntax::{HostFile, OverlayEntry, TenantEntry, UplinkEntry};

pub use self::cost::{Cost, cost};

/// A policy that broke no rule.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Ports, engine and API.
    pub config: Config,
    /// What the engine installs.
    pub program: Program,
    /// What its author may want to look at again.
    pub warnings: Vec<Problem>,
    /// The files that it was made of.
    pub sources: Sources,
    /// Where `engine.cpu` is stated.
    cpu_at: Option<Mark>,
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
/// `load` gets a path as seen from the working directory of whoever passed `name`, and returns the file's text or why
/// it cannot; it is called once for each file.
pub fn check_with(
    name: &str,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Checked, Errors> {
    let text = match load(name) {
        Ok(text) => text,
        Err(why) => return Err(unreadable(name, &why)),
    };
    check_sources(Sources::one(name, &text), load)
}

fn unreadable(name: &str, why: &str) -> Errors {
    let problem = Problem::error(Law::File, Mark::default(), format!("cannot read `{name}`: {why}"));
    let problem = problem.label("nothing here").help("name a file that can be read");
    Errors::new(vec![problem], Sources::one(name, ""))
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
    check_sources(Sources::one(name, text), &mut |_| {
        Err("this policy is a text without further files".to_owned())
    })
}

/// Checks the policy in the file `path`, and warns of what this machine has not.
pub fn load(path: &str) -> Result<Checked, Errors> {
    let mut checked = check_with(path, &mut loader(path))?;
    if let (Some(cpu), Some(at)) = (checked.config.engine.cpu, checked.cpu_at) {
        checked.warnings.extend(machine::no_such_core(Located::new(cpu, at), &machine::cores()));
        document::sort(&mut checked.warnings);
    }
    Ok(checked)
}

/// Reads the file `path` and those that it names.
fn loader(path: &str) -> impl FnMut(&str) -> Result<String, String> + use<'_> {
    let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
    let home = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
    move |name| {
        if name != path {
            refuse_detour(Path::new(name), home.as_deref().ok())?;
            if !Path::new(name).is_file() {
                return Err("it is no regular file".to_owned()); // a pipe could make us wait forever
            }
        }
        read_bounded(name)
    }
}

/// A sub-policy may be reached by a symbolic link only inside the policy's own directory: a tenant's link must not
/// show the tenant, in an error's excerpt, what only the operator may read.
fn refuse_detour(name: &Path, home: Option<&Path>) -> Result<(), String> {
    let real = std::fs::canonicalize(name).map_err(|error| error.to_string())?;
    let inside = home.is_some_and(|home| real.starts_with(home));
    let straight = std::path::absolute(name).is_ok_and(|stated| without_dots(&stated) == real);
    if inside || straight {
        Ok(())
    } else {
        Err("a symbolic link leads out of the policy's directory".to_owned())
    }
}

fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut real, part| {
        if part == Component::ParentDir {
            real.pop();
        } else {
            real.push(part);
        }
        real
    })
}

fn read_bounded(name: &str) -> Result<String, String> {
    let file = std::fs::File::open(name).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let most = MAX_FILE.as_u64();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it holds more than {MAX_FILE}"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
        format!("it is no text in UTF-8: see byte {} of it, in line {line}", good.len() + 1)
    })
}

/// Largest file that [`load`] reads.
const MAX_FILE: Bytes = Bytes::new(16_000_000);

/// The keys at the top of the file `path`, by which its kind is told; none if it cannot be read or is no map.
#[must_use]
pub fn top_keys(path: &str) -> Vec<String> {
    // What can be read only once is left to whoever checks it.
    let text = Path::new(path).is_file().then(|| read_bounded(path));
    let Some(Ok(text)) = text else { return Vec::new() };
    let tree = document::parse(&Sources::one(path, &text), FileId(0));
    tree.map_or_else(|_| Vec::new(), |tree| tree.entries().iter().map(|(key, _)| key.value.clone()).collect())
}

/// Checks the file of a tenant or an application by itself, and those that it names: all that holds in any place.
///
/// Its place's rate is not known, so the program has a link without bound, and bounds derived from it mean nothing.
pub fn load_sub_policy(path: &str) -> Result<Checked, Errors> {
    let mut load = loader(path);
    let text = match load(path) {
        Ok(text) => text,
        Err(why) => return Err(unreadable(path, &why)),
    };
    let mut sources = Sources::one(path, &text);
    let tree = match document::parse(&sources, FileId(0)) {
        Ok(tree) => tree,
        Err(error) => return Err(Errors::new(vec![no_yaml(error)], sources)),
    };
    let host = read::any_host(&tree, path, sources.add("whoever names this file", String::new()));
    let mut composer = Composer::new(&mut sources, &mut load);
    composer.is_loaded(path);
    judge(composer, host, true)
}

fn check_sources(
    mut sources: Sources,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Checked, Errors> {
    let tree = match document::parse(&sources, FileId(0)) {
        Ok(tree) => tree,
        Err(error) => return Err(Errors::new(vec![no_yaml(error)], sources)),
    };
    let (host, problems) = read::read_all(|reader| read::host_file(reader, &tree));
    let mut composer = Composer::new(&mut sources, load);
    composer.problems = problems;
    judge(composer, host, false)
}

/// `alone` is a sub-policy without the operator's file, whose link has any rate.
fn judge(mut composer: Composer<'_>, mut host: HostFile, alone: bool) -> Result<Checked, Errors> {
    let (uplink, mut engine, api) = (host.uplink.take(), host.engine.clone(), host.api.clone());
    let (engine_at, cpu_at, host_descriptors) = (host.engine_at, host.cpu_at, host.descriptors);
    let overlay_stated = host.overlay.take();

    composer.compose(host);
    limits::resolve(&mut composer);
    let tenants = std::mem::take(&mut composer.tenants);
    let weights = std::mem::take(&mut composer.weights);
    let sources = std::mem::take(composer.sources);
    let (mut graph, mut problems) = (composer.graph, composer.problems);
    rules::add_defaults(&mut graph, &mut problems);
    ports::judge(uplink.as_ref(), &tenants, &mut problems);
    let rules = rules::rules(&graph, &mut problems);
    cost::too_deep(&graph, &engine, engine_at, &mut problems);
    let minima = envelope::minima(&graph);
    let rate = uplink.as_ref().and_then(|uplink| uplink.rate).map(value);
    // Without a rate, all that does not depend on it is judged as on a link without bound.
    let mut link = link(uplink.as_ref(), rate.or(BitRate::new(u64::MAX)).unwrap_or(BitRate::gbps(1)));
    let overlay = overlay_stated.as_ref().and_then(|stated| {
        let mtu = uplink.as_ref().map_or(read::DEFAULT_MTU, |uplink| uplink.mtu);
        overlay::judge(stated, &tenants, link.rate, mtu, &mut problems)
    });
    if let Some(overlay) = &overlay {
        // What the overlay adds is the link's to carry, and no tenant's to send.
        let header = Bytes::new(overlay.header().into());
        link.max_frame = Bytes::new(link.max_frame.as_u64().saturating_sub(header.as_u64()));
        link.overhead += header;
    }
    envelope::judge(&graph, &minima, link, &mut problems);
    promises::judge(&tenants, link, &mut problems);
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
    let broken = problems.iter().any(|problem| problem.severity == Severity::Error)
        || overlay.is_none() != overlay_stated.is_none();
    let (true, Some(uplink), false) = (rate.is_some() || alone, uplink, broken) else {
        return Err(Errors::new(problems, sources));
    };
    if !alone {
        crate::bounds::not_backed(&graph_minima(&graph), &program, &mut problems);
        promises::not_held(&tenants, &program, &mut problems);
    }
    let tenants = tenants
        .iter()
        .zip(&descriptors)
        .zip(&weights)
        .filter_map(|((entry, cap), weight)| tenant_config(entry, *cap, *weight));
    let port = uplink.port.map_or(Port::Memory, |port| port.value);
    let uplink = Uplink { port, rate: link.rate, overhead: uplink.overhead, mtu: uplink.mtu };
    let config = Config { uplink, engine, api, tenants: tenants.collect(), overlay };
    document::sort(&mut problems);
    Ok(Checked { config, program, warnings: problems, sources, cpu_at })
}

/// Receivers steer by what waits for each tenant, and in one queue for all nothing does.
fn one_order(engine: &Engine, at: Mark, overlay: Option<&OverlayEntry>, problems: &mut Vec<Problem>) {
    let shared = engine.experiment.as_ref().is_some_and(|one| one.ingress == IngressOrder::Shared);
    let Some(feedback) = overlay.and_then(|overlay| overlay.feedback.as_ref()).filter(|_| shared) else {
        return;
    };
    let message =
        "`ingress: shared` keeps no tenant's frames apart, and `feedback` tells senders what waits for each";
    let problem = Problem::error(Law::BadValue, at, message).label("shared here");
    problems.push(problem.also(feedback.via_at, "told here").help("leave one of the two out"));
}

fn no_yaml(error: SyntaxError) -> Problem {
    Problem::error(Law::Syntax, error.at, error.message).label("reading stops here").help(
        "a policy file is YAML: keys and values with `:`, the same indentation for siblings, spaces and no tabs",
    )
}

/// Bytes of an Ethernet header with one VLAN tag: what a frame has beyond the MTU.
const HEADER: u64 = 18;

fn link(uplink: Option<&UplinkEntry>, rate: BitRate) -> Link {
    let (mtu, overhead) =
        uplink.map_or((read::DEFAULT_MTU, Bytes::ZERO), |uplink| (uplink.mtu, uplink.overhead));
    Link { rate, overhead, max_frame: Bytes::new(u64::from(mtu) + HEADER) }
}

/// Where each sub-policy's place and minima are stated, for warnings about promises that nobody backs.
fn graph_minima(graph: &graph::Graph) -> Vec<(usize, Mark)> {
    let places = graph.scopes.iter().skip(1).map(|scope| scope.root);
    let first_min = |place: usize| {
        let stated = graph.nodes[place].children.iter().filter_map(|&child| graph.nodes[child].min);
        stated.map(|min| min.at).next().map(|at| (place, at))
    };
    places.filter_map(first_min).collect()
}

fn tenant_config(entry: &TenantEntry, descriptors: u32, weight: u32) -> Option<TenantConfig> {
    Some(TenantConfig {
        name: entry.name.value.clone(),
        port: entry.port.as_ref()?.value.clone(),
        min: entry.class.min.map(value),
        max: entry.class.max.map(value),
        weight,
        descriptors,
        policy: entry.class.policy.as_ref().map(|policy| policy.value.clone()),
    })
}

fn value<T>(found: Located<T>) -> T {
    found.value
}
