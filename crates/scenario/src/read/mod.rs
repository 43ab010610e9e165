//! Reads a scenario file.
//!
//! Why: an operator should learn every mistake before anything runs, in one go.
//! From: `docs/scenarios.md`, which this follows key by key.
//! Not here: the policy's own rules; [`Scenario::check_policies`] asks `plimsoll-policy`.
//! Invariant: any text is answered with a scenario or with problems.

mod expectation;
mod fault;
mod fields;
mod link;
mod model;
mod network;
mod one_world;
mod paper;
mod partition;
mod policy;
mod press;
mod program_cost;
mod repeat;
mod short;
mod sweep;
mod system;
mod tenant;
mod timeline;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;

use plimsoll_document::{self as document, FileId, Mark, Sources, SyntaxError, Tree, Value};
use plimsoll_policy::FileRead;
use plimsoll_units::{BitRate, Bytes, Span};

use crate::fault::Faults;
use crate::keys::{MEASURE, MOST_PAIRS, SCENARIO, VIRTUAL};
use crate::model::{Destination, LEAST_INTERVAL, Measure, NETWORK, Scenario, Tenant};
use crate::sweep::Point;
use crate::workload::{Kind, Workload};
use crate::{Errors, Problem};
use fault::Victims;
use fields::{Fields, Reader};
use plimsoll_document::yaml;
use repeat::Written;

/// How much of a scenario to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The file as it is written.
    Full,
    /// With `short:` applied, as the test suite runs it.
    Short,
    /// With `virtual:` applied, as it runs in virtual time.
    Virtual,
    /// With `virtual:` applied, and `short:` after it.
    VirtualShort,
}

impl Form {
    /// The form with `short:`, or without.
    #[must_use]
    pub const fn new(in_virtual_time: bool, short: bool) -> Self {
        match (in_virtual_time, short) {
            (false, false) => Self::Full,
            (false, true) => Self::Short,
            (true, false) => Self::Virtual,
            (true, true) => Self::VirtualShort,
        }
    }

    /// Whether `short:` is applied.
    #[must_use]
    pub const fn is_short(self) -> bool {
        matches!(self, Self::Short | Self::VirtualShort)
    }

    /// Whether `virtual:` is applied.
    #[must_use]
    pub const fn is_virtual(self) -> bool {
        matches!(self, Self::Virtual | Self::VirtualShort)
    }

    /// Swaps the worlds: the virtual form of a live one, and the live form of a virtual one.
    const fn elsewhere(self) -> Self {
        Self::new(!self.is_virtual(), self.is_short())
    }
}

/// Largest scenario file: its parts are compared with each other, and a sweep repeats them.
pub const MAX_FILE: Bytes = Bytes::new(2_000_000);
/// Destinations of a scenario.
const ETHERNET_HEADER: u64 = 14;
/// The most jitter that hosts have unless the file states more: a tick of Linux's scheduler.
const MOST_JITTER: Span = Span::millis(1);
const MOST_DESTINATIONS: usize = 200;
impl Scenario {
    /// Reads a file in one of its forms; of a sweep, its first point. A file that cannot be read is a problem like any
    /// other.
    pub fn load(path: &Path, form: Form) -> Result<Self, Errors> {
        Self::load_points(path, form, &[]).map(|mut points| points.swap_remove(0).scenario)
    }

    /// [`Scenario::load`] of a file whose text has been read as YAML.
    pub fn load_read(file: &FileRead, form: Form) -> Result<Self, Errors> {
        let (path, sources) = (Path::new(file.path()), file.sources().clone());
        if sources.file(FileId(0)).text.len() as u64 > MAX_FILE.as_u64() {
            return Self::load(path, form); // which says so
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::points_of(file.tree(), sources, folder, form, &[])
            .map(|mut points| points.swap_remove(0).scenario)
    }

    /// Reads a file and gives every point of its sweep, or the only point without a sweep. `settings` replace values of
    /// the file by their path (`tenants.shop.min`), and fix what the sweep would vary.
    pub fn load_points(path: &Path, form: Form, settings: &[(String, String)]) -> Result<Vec<Point>, Errors> {
        let name = path.to_string_lossy();
        let text = plimsoll_policy::read_text(path, MAX_FILE).map_err(|error| {
            let problem = Problem::new(0..0, format!("{name}: {error}")).label("no text");
            Errors::new(vec![problem.help("give the path of a scenario file")], Sources::one(&name, ""))
        })?;
        Self::points(&text, &name, path.parent().unwrap_or(Path::new("")), form, settings)
    }

    /// Reads a file's text; `name` is for messages, and paths inside start from `folder`.
    ///
    /// ```
    /// use plimsoll_scenario::{Form, Scenario};
    /// let text = "
    /// name: two
    /// rate: 100Mbps
    /// duration: 5s
    /// systems: [plimsoll]
    /// tenants: {a: {}, b: {}}
    /// workloads:
    ///   few:  {tenant: a, kind: bulk, flows: 1}
    ///   many: {tenant: b, kind: bulk, flows: 16}
    /// expect:
    ///   - plimsoll.a.throughput[2s..5s] ~ plimsoll.b.throughput[2s..5s] +- 8%
    /// ";
    /// let scenario = Scenario::parse(text, "two.yaml", "".as_ref(), Form::Full).unwrap();
    /// assert_eq!(scenario.workloads[1].to, "world");
    /// ```
    pub fn parse(text: &str, name: &str, folder: &Path, form: Form) -> Result<Self, Errors> {
        Self::points(text, name, folder, form, &[]).map(|mut points| points.swap_remove(0).scenario)
    }

    /// [`Scenario::load_points`] of a text.
    pub fn points(
        text: &str,
        name: &str,
        folder: &Path,
        form: Form,
        settings: &[(String, String)],
    ) -> Result<Vec<Point>, Errors> {
        let sources = Sources::one(name, text);
        let tree = document::parse(&sources, FileId(0));
        Self::points_of(tree.as_ref(), sources, folder, form, settings)
    }

    fn points_of(
        tree: Result<&Tree, &SyntaxError>,
        sources: Sources,
        folder: &Path,
        form: Form,
        settings: &[(String, String)],
    ) -> Result<Vec<Point>, Errors> {
        let tree = match tree {
            Ok(tree) => tree,
            Err(error) => return Err(Errors::new(vec![no_yaml(error.clone())], sources)),
        };
        let mut reader = Reader::of(sources);
        let mut points = Vec::new();
        let fixed = settings;
        for (settings, tree) in reader.settings(&in_world(tree, form), fixed) {
            reader.point = fixed.iter().chain(&settings).cloned().collect();
            let scenario = reader.scenario(&tree, folder, form);
            points.extend(scenario.map(|scenario| Point { settings, scenario }));
        }
        reader.other_world(tree, folder, form);
        for Point { scenario, .. } in &mut points {
            scenario.sources.clone_from(&reader.sources);
        }
        if reader.problems.is_empty() && !points.is_empty() {
            Ok(points)
        } else {
            Err(Errors::new(std::mem::take(&mut reader.problems), reader.sources))
        }
    }
}

/// The file as one world has it.
fn in_world(file: &Tree, form: Form) -> Tree {
    let mut tree = file.clone();
    if let Some(over) = file.get("virtual").filter(|_| form.is_virtual()) {
        yaml::overlay(&mut tree, over);
    }
    tree
}

impl Reader {
    /// Reads the file as the other world does, so that its mistakes show here, too.
    fn other_world(&mut self, file: &Tree, folder: &Path, form: Form) {
        let Some(over) = file.get("virtual") else { return };
        self.some_fields(over, over.at, "`virtual`", &VIRTUAL);
        let mut points = self.settings(&in_world(file, form.elsewhere()), &[]);
        let (settings, tree) = points.swap_remove(0);
        self.point = settings;
        self.scenario(&tree, folder, form.elsewhere());
    }

    fn scenario(&mut self, tree: &Tree, folder: &Path, form: Form) -> Option<Scenario> {
        let Written { tree, families } = &self.written_out(tree);
        let text = &self.sources.file(FileId(0)).text;
        let first_line = Mark::from(0..text.find('\n').unwrap_or(text.len()));
        let file = self.fields(tree, first_line, "the scenario", &SCENARIO);
        let duration = self.required_span(&file, "duration");
        let policy = self.sections(&file, file.get("tenants"), folder);
        self.not_off(&file);
        let live = self.flag(&file, "live", true);
        let mut scenario = Scenario {
            name: self.title(&file),
            about: file.get("about").and_then(|tree| self.text(tree)).unwrap_or_default().trim().to_owned(),
            rate: self.rate_of_uplink(&file),
            mtu: self.count(&file, "mtu", 1_500, 9_000),
            duration,
            pairs: self.count(&file, "pairs", 1, MOST_PAIRS),
            one_world: self.flag(&file, "one_world", false),
            seed: self.value(&file, "seed", "a whole number", 1),
            jitter: Span::ZERO,
            wake: self.lateness(&file),
            hosts: self.hosts(&file, folder),
            switches: self.switches(&file),
            links: Vec::new(),
            load_balancing: self.load_balancing(&file).unwrap_or_default(),
            overlay: self.overlay(&file),
            control: file.get("control").map(|tree| self.control(tree)),
            tenants: Vec::new(),
            destinations: self.destinations(&file),
            offload: self.flag(&file, "offload", false),
            systems: self.systems(&file, folder),
            workloads: Vec::new(),
            sweep: sweep::axes(tree),
            timeline: self.timeline(&file, duration),
            faults: Faults::default(),
            press_model: self.press_model(&file).unwrap_or_default(),
            measure: self.measure(&file, form, duration),
            expect: Vec::new(),
            paper: None,
            live,
            virtual_time: form.is_virtual() || !live,
            policy,
            short: form.is_short(),
            time: 1.0,
            folder: folder.to_owned(),
            modules: BTreeMap::new(),
            sources: Sources::default(),
        };
        let hosts = scenario.hosts.iter().map(|host| host.name.as_str());
        let places = scenario.destinations.iter().map(|place| place.name.as_str());
        let nodes: Vec<&str> =
            hosts.chain(scenario.switches.iter().map(String::as_str)).chain(places).collect();
        scenario.links = self.links(&file, &nodes);
        scenario.jitter = self.jitter(&file, &scenario);
        scenario.tenants = self.tenants(&file, &scenario);
        scenario.workloads = self.workloads(&file, &scenario);
        if let Some(tree) = file.get("faults") {
            let hosts = scenario.hosts.iter().map(|host| host.name.as_str()).collect();
            let tenants = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            scenario.faults = self.faults(tree, &Victims { hosts, tenants, duration });
        }
        let steered = scenario.systems.iter().filter_map(|system| system.steering.as_ref());
        let balancers = scenario.control.iter().chain(steered).flat_map(|control| &control.balancers);
        let stranger = |name: &&String| scenario.tenants.iter().all(|tenant| tenant.name != **name);
        if let Some(name) = balancers.map(|(name, _)| name).find(stranger) {
            let at = file.get("control").map_or(file.at, |tree| tree.at);
            let known = scenario.tenants.iter().map(|tenant| tenant.name.as_str());
            self.unknown(at, "there is no tenant", &name.clone(), known);
        }
        self.timeline_systems(&scenario);
        self.join_families(&file, &mut scenario, families);
        scenario.expect = self.expectations(file.get("expect"), &scenario);
        // The figures are those of virtual time: where that is another world, they may not fit this one.
        let here = form.is_virtual() || file.get("virtual").is_none();
        scenario.paper = file.get("paper").map(|tree| self.paper(tree, &scenario, here));
        if let Some(tree) = file.get("short") {
            self.shorten(tree, &file, &mut scenario, form);
        } else {
            if form.is_short() {
                scenario.pairs = 1;
            }
            self.check_turns(&file, (&scenario, None), form);
        }
        self.check_links(&file, &scenario);
        self.check_overlay(&file, &scenario);
        self.check_partitions(&file, &scenario);
        Some(scenario)
    }

    fn title(&mut self, file: &Fields<'_>) -> String {
        let Some(tree) = file.get("name") else { return String::new() };
        let name = self.text(tree).unwrap_or("unnamed");
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            let problem = Problem::new(tree.at, format!("`{name}` cannot name a scenario"));
            self.problem(problem.label("not a name").help("use letters, digits, `-` and `_`"));
        }
        name.to_owned()
    }

    fn rate_of_uplink(&mut self, file: &Fields<'_>) -> BitRate {
        self.value(file, "rate", "a rate such as `100Mbps`", BitRate::mbps(100))
    }

    fn required_span(&mut self, file: &Fields<'_>, key: &str) -> Span {
        let span = self.value(file, key, "a time such as `20s`", Span::secs(20));
        if let Some(tree) = file.get(key).filter(|_| span < Span::millis(100) || span > Span::secs(86_400)) {
            let problem = Problem::new(tree.at, format!("`{key}` is {span}"));
            self.problem(problem.label("out of range").help("write a time from 100ms to 24h"));
        }
        span
    }

    /// What the file states, or the time of two of the largest frames on the slowest link. Floyd and Jacobson ("On Traffic
    /// Phase Effects in Packet-Switched Gateways", 1992) found that one frame's time lets no phase last; with two the shares of
    /// flows no longer depend on it (`docs/tcp.md`).
    fn jitter(&mut self, file: &Fields<'_>, scenario: &Scenario) -> Span {
        let stated = self.optional(file, "jitter", "a time such as `10us`, or `0s`");
        let slowest = scenario.links.iter().map(|link| link.rate).min().unwrap_or(scenario.rate);
        let frame = Bytes::new(u64::from(scenario.mtu) + ETHERNET_HEADER);
        if let Some(tree) =
            file.get("jitter").filter(|_| stated.is_some_and(|jitter| jitter > Span::millis(10)))
        {
            let problem = Problem::new(tree.at, "hosts are late by more than 10 ms").label("too much");
            self.problem(
                problem.help("write a time of 10ms at most; a link's `delay` and `jitter` may be longer"),
            );
        }
        stated.unwrap_or_else(|| slowest.wire_time(frame.times(2)).min(MOST_JITTER))
    }

    /// A list of names, or a map from names to addresses.
    fn destinations(&mut self, file: &Fields<'_>) -> Vec<Destination> {
        let implied = |n: usize| Ipv4Addr::new(10, 200, 0, u8::try_from(n + 1).unwrap_or(u8::MAX));
        let Some(tree) = file.get("destinations") else {
            return vec![Destination { name: "world".to_owned(), address: implied(0) }];
        };
        let mut found: Vec<Destination> = Vec::new();
        if let Value::Map(_) = &tree.value {
            for (n, (key, value)) in self.entries(tree, "`destinations`").iter().enumerate() {
                let given = !matches!(value.value, Value::Null);
                let address = given.then(|| self.parse(value, "an address such as `10.200.0.1`")).flatten();
                found.push(Destination { name: key.value.clone(), address: address.unwrap_or(implied(n)) });
            }
        } else {
            for (n, item) in self.list(tree, "`destinations`").iter().enumerate() {
                let name = self.text(item).unwrap_or_default().to_owned();
                found.push(Destination { name, address: implied(n) });
            }
        }
        for (n, destination) in found.iter().enumerate() {
            let octets = destination.address.octets();
            let inside = octets[..2] == NETWORK.0.octets()[..2] && octets[2] != 1 && octets[2] < 128;
            let again = found[..n]
                .iter()
                .any(|other| other.address == destination.address || other.name == destination.name);
            if !inside || again || found.len() > MOST_DESTINATIONS {
                let message =
                    format!("destination `{}` cannot be at {}", destination.name, destination.address);
                let help = "names and addresses are unique, inside 10.200.0.0/17 and outside of the tenants' 10.200.1.0/24";
                self.problem(Problem::new(tree.at, message).label("these destinations").help(help));
            }
            if found.len() > MOST_DESTINATIONS {
                break;
            }
        }
        found
    }

    fn measure(&mut self, file: &Fields<'_>, form: Form, duration: Span) -> Measure {
        let (window, from) = (Span::millis(50), Span::ZERO);
        let default = Measure { window, from, to: duration, ..Measure::default() };
        let Some(tree) = file.get("measure") else { return default };
        let fields = self.fields(tree, tree.at, "`measure`", &MEASURE);
        let mut span = |key, default| self.value(&fields, key, "a time such as `50ms`", default);
        let (window, from, to) =
            (span("window", default.window), span("from", default.from), span("to", default.to));
        // Live, a shorter window would depend on how its threads were scheduled.
        let apart = form.is_virtual() && file.get("virtual").is_some();
        let live = self.flag(file, "live", true) && !apart;
        let least = if live { Span::millis(1) } else { Span::micros(10) };
        if let Some(tree) = fields.get("window").filter(|_| window < least) {
            let problem = Problem::new(tree.at, format!("`window` is {window}"));
            self.problem(problem.label("too short").help(format!("a window holds at least {least}")));
        }
        if from >= to || to > duration {
            let message = format!("what is measured lies between {from} and {to} of a run of {duration}");
            let problem = Problem::new(tree.at, message).label("not in the run");
            self.problem(
                problem.help("let `from` be before `to`, and `to` no later than the end of the run"),
            );
        }
        let interval = self.optional::<Span>(&fields, "interval", "a time such as `1ms`");
        if let (Some(tree), Some(time)) = (fields.get("interval"), interval)
            && !(LEAST_INTERVAL..=duration).contains(&time)
        {
            let problem = Problem::new(tree.at, format!("`interval` is {time}")).label("out of range");
            self.problem(problem.help(format!("write a time from {LEAST_INTERVAL} to {duration}")));
        }
        let mut flag = |key| self.flag(&fields, key, false);
        let (cpu, gaps, held) = (flag("cpu"), flag("gaps"), flag("held"));
        let (ingress, egress) = (flag("ingress"), flag("egress"));
        Measure { window, from, to, interval, cpu, gaps, held, ingress, egress }
    }

    fn workloads(&mut self, file: &Fields<'_>, scenario: &Scenario) -> Vec<Workload> {
        let Some(tree) = file.get("workloads") else { return Vec::new() };
        let tenants: Vec<&str> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let places = scenario.destinations.iter().map(|place| place.name.as_str());
        let places: Vec<&str> = places.chain(tenants.iter().copied()).collect();
        let tenant_set: BTreeSet<&str> = tenants.iter().copied().collect();
        let place_set: BTreeSet<&str> = places.iter().copied().collect();
        let on_one_host: BTreeSet<&str> = scenario
            .tenants
            .iter()
            .filter(|tenant| tenant.homes.len() == 1)
            .map(|t| t.name.as_str())
            .collect();
        let mut ports: BTreeMap<u16, String> = BTreeMap::new();
        let mut workloads: Vec<Workload> = Vec::new();
        for (n, (key, tree)) in self.entries(tree, "`workloads`").iter().enumerate() {
            self.name(key, "workload");
            if tenant_set.contains(key.value.as_str()) {
                let problem = Problem::new(key.at, format!("`{}` is a tenant and a workload", key.value));
                self.problem(
                    problem.label("name taken").help("name the workload otherwise; expectations use both"),
                );
            }
            self.known_in(tree, "tenant", &tenant_set, &tenants);
            self.known_in(tree, "to", &place_set, &places);
            let Some(mut workload) = self.workload(key, tree, n, scenario) else {
                continue;
            };
            let to_itself = workload.to == workload.tenant && on_one_host.contains(workload.to.as_str());
            if let Some(tree) = tree.get("to").filter(|_| to_itself) {
                let message = format!("`{}` sends to itself, and lives on one host", workload.tenant);
                let problem = Problem::new(tree.at, message).label("its own tenant");
                self.problem(problem.help("name another tenant or a destination, or give it several hosts"));
            }
            if tree.get("to").is_none() {
                workload.to = places.first().copied().unwrap_or_default().to_owned();
            }
            self.check_through(tree, &workload, &scenario.tenants);
            let at = |key: &str| tree.get(key).map_or(tree.at, |tree| tree.at);
            if let Some(other) = ports.get(&workload.port) {
                let message = format!("`{other}` and `{}` both use port {}", workload.name, workload.port);
                let problem = Problem::new(at("port"), message).label("port taken");
                self.problem(problem.help("give one of them another `port`; ports tell workloads apart"));
            }
            ports.entry(workload.port).or_insert_with(|| workload.name.clone());
            workloads.push(workload);
        }
        workloads
    }

    /// Whether the tenant that a workload's packets pass forwards them.
    fn check_through(&mut self, tree: &Tree, workload: &Workload, tenants: &[Tenant]) {
        let (Some(through), Some(tree)) = (&workload.through, tree.get("through")) else { return };
        let Some(tenant) = tenants.iter().find(|tenant| tenant.name == *through) else {
            return self.unknown(
                tree.at,
                "there is no tenant",
                through,
                tenants.iter().map(|tenant| &*tenant.name),
            );
        };
        let (what, help) = if *through == workload.tenant || *through == workload.to {
            ("is one of its ends", "name a third tenant, which forwards between the two".to_owned())
        } else if !tenant.forwards {
            ("forwards nothing", format!("write `{through}: {{forwards: true}}` under `tenants`"))
        } else if matches!(workload.kind, Kind::Flows { .. }) {
            ("forwards no flows of kind `flows`", "leave `through` out".to_owned())
        } else if tenant.homes.len() > 1 {
            ("lives on several hosts", "give it one `host`: packets take one way".to_owned())
        } else {
            return;
        };
        let message = format!("workload `{}` goes through `{through}`, which {what}", workload.name);
        self.problem(Problem::new(tree.at, message).label("no way through").help(help));
    }

    /// Whether the value of a workload's key is one of the names that there are.
    fn known_in(&mut self, workload: &Tree, key: &str, known: &BTreeSet<&str>, in_order: &[&str]) {
        let Some((tree, Value::Text(name))) = workload.get(key).map(|tree| (tree, &tree.value)) else {
            return;
        };
        if !known.contains(name.as_str()) {
            let what = if key == "to" { "destination or tenant" } else { key };
            self.unknown(tree.at, &format!("there is no {what}"), name, in_order.iter().copied());
        }
    }
}

pub(super) fn no_yaml(error: SyntaxError) -> Problem {
    Problem::new(error.at, error.message).label("reading stops here").help(
        "a scenario is YAML: keys and values with `:`, the same indentation for siblings, spaces and no tabs",
    )
}
