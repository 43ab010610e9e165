//! Reads a scenario file.
//!
//! Why: an operator should learn every mistake before anything runs, in one go.
//! From: `docs/scenarios.md`, which this follows key by key.
//! Not here: the policy's own rules; [`Scenario::check_policies`] asks `plimsoll-policy`.
//! Invariant: any text is answered with a scenario or with problems.

mod fault;
mod fields;
mod model;
mod network;
mod one_world;
mod paper;
mod policy;
mod repeat;
mod sweep;
mod timeline;
mod workload;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use plimsoll_policy::document::{self, FileId, Mark, Sources, SyntaxError, Tree, Value};
use plimsoll_units::{BitRate, Span};

use crate::expect::{self, Expectation, Names};
use crate::fault::Faults;
use crate::model::{
    Destination, Home, Measure, Model, NETWORK, PolicySections, Scenario, System, SystemKind, Tenant,
    Workload,
};
use crate::network::{Completions, Control, ControlLevel, Ingress};
use crate::sweep::Point;
use crate::{Errors, Problem, yaml};
use fault::Victims;
pub(crate) use fault::{CLOCK_KEYS, FAULT_KEYS, FEEDBACK_KEYS, RESTART_KEYS, STALL_KEYS};
use fields::{Fields, Reader};
pub(crate) use model::FETCH_KEYS;
pub(crate) use network::{CONTROL_KEYS, HOST_KEYS, LINK_KEYS};
pub(crate) use paper::{NUMBER_KEYS, PAPER_KEYS};
use repeat::Written;
pub(crate) use timeline::TIMELINE_KEYS;
pub(crate) use workload::KINDS;

/// How much of a scenario to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As written.
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

    /// The same in the other world.
    const fn elsewhere(self) -> Self {
        Self::new(!self.is_virtual(), self.is_short())
    }
}

/// Times that the list of systems may be run.
pub(crate) const MOST_PAIRS: u32 = 1_000;
/// Keys that `virtual:` may replace: all but itself.
pub(crate) const KEYS: [&str; 30] = [
    "name",
    "about",
    "rate",
    "mtu",
    "duration",
    "pairs",
    "one_world",
    "seed",
    "offload",
    "hosts",
    "switches",
    "links",
    "control",
    "tenants",
    "destinations",
    "systems",
    "workloads",
    "timeline",
    "faults",
    "measure",
    "sweep",
    "expect",
    "policy",
    "limits",
    "engine",
    "policy_file",
    "paper",
    "live",
    "short",
    "repeat",
];
pub(crate) const SYSTEM_KEYS: [&str; 18] = [
    "kind",
    "ingress",
    "control",
    "completions",
    "accounting",
    "faults",
    "queues",
    "queue_rate",
    "policy",
    "limits",
    "engine",
    "policy_file",
    "tenants",
    "lock",
    "wake",
    "cost",
    "limiters",
    "fetch",
];
pub(crate) const MEASURE_KEYS: [&str; 8] =
    ["window", "from", "to", "cpu", "gaps", "held", "ingress", "egress"];
pub(crate) const SHORT_KEYS: [&str; 4] = ["time", "pairs", "systems", "expect"];
/// Keys of a tenant: ours, and those that go into the policy file as they are.
pub(crate) const TENANT_KEYS: [&str; 14] = [
    "host",
    "core",
    "min",
    "max",
    "ingress",
    "delay",
    "weight",
    "policy",
    "burst",
    "via",
    "flows",
    "slack",
    "deadline",
    "descriptors",
];

impl Scenario {
    /// Reads a file in one of its forms; of a sweep, its first point. A file that cannot be read is a problem like any
    /// other.
    pub fn load(path: &Path, form: Form) -> Result<Self, Errors> {
        Self::load_points(path, form, &[]).map(|mut points| points.swap_remove(0).scenario)
    }

    /// Reads a file and gives every point of its sweep, or the one that there is without. `settings` replace values of
    /// the file by their path (`tenants.shop.min`), and fix what the sweep would vary.
    pub fn load_points(path: &Path, form: Form, settings: &[(String, String)]) -> Result<Vec<Point>, Errors> {
        let name = path.to_string_lossy();
        let text = std::fs::read_to_string(path).map_err(|error| {
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
        let tree = match document::parse(&sources, FileId(0)) {
            Ok(tree) => tree,
            Err(error) => return Err(Errors::new(vec![no_yaml(error)], sources)),
        };
        let mut reader = Reader { problems: Vec::new(), point: Vec::new(), sources };
        let mut points = Vec::new();
        let fixed = settings;
        for (settings, tree) in reader.settings(&in_world(&tree, form), fixed) {
            reader.point = fixed.iter().chain(&settings).cloned().collect();
            let scenario = reader.scenario(&tree, folder, form);
            points.extend(scenario.map(|scenario| Point { settings, scenario }));
        }
        reader.other_world(&tree, folder, form);
        for Point { scenario, .. } in &mut points {
            scenario.sources.clone_from(&reader.sources);
        }
        if reader.problems.is_empty() && !points.is_empty() {
            Ok(points)
        } else {
            Err(Errors::new(reader.problems, reader.sources))
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
    /// Reads the file as the other world has it, so that its mistakes show here, too.
    fn other_world(&mut self, file: &Tree, folder: &Path, form: Form) {
        let Some(over) = file.get("virtual") else { return };
        let known: Vec<&str> = KEYS.into_iter().chain(["virtual"]).collect();
        let fields = self.fields(over, over.at, "`virtual`", &known);
        if let Some(tree) = fields.get("virtual") {
            let problem = Problem::new(tree.at, "`virtual` stands in `virtual`").label("once too often");
            self.problem(problem.help("write its keys one level up"));
        }
        let mut points = self.settings(&in_world(file, form.elsewhere()), &[]);
        let (settings, tree) = points.swap_remove(0);
        self.point = settings;
        self.scenario(&tree, folder, form.elsewhere());
    }

    fn scenario(&mut self, tree: &Tree, folder: &Path, form: Form) -> Option<Scenario> {
        let known: Vec<&str> = KEYS.into_iter().chain(["virtual"]).collect();
        let Written { tree, families } = &self.written_out(tree);
        let text = &self.sources.file(FileId(0)).text;
        let first_line = Mark::from(0..text.find('\n').unwrap_or(text.len()));
        let file = self.fields(tree, first_line, "the scenario", &known);
        let duration = self.required_span(&file, "duration", "20s");
        let policy = self.sections(&file, folder);
        let mut scenario = Scenario {
            name: self.title(&file),
            about: file.get("about").and_then(|tree| self.text(tree)).unwrap_or_default().trim().to_owned(),
            rate: self.rate_of_uplink(&file),
            mtu: self.count(&file, "mtu", 1_500, 9_000),
            duration,
            pairs: self.count(&file, "pairs", 1, MOST_PAIRS),
            one_world: self.flag(&file, "one_world", false),
            seed: self.value(&file, "seed", "a whole number", 1),
            hosts: self.hosts(&file, folder),
            switches: self.switches(&file),
            links: Vec::new(),
            control: file.get("control").map(|tree| self.control(tree)),
            tenants: Vec::new(),
            destinations: self.destinations(&file),
            offload: self.flag(&file, "offload", false),
            systems: self.systems(&file, folder),
            workloads: Vec::new(),
            sweep: sweep::axes(tree),
            timeline: self.timeline(&file, duration),
            faults: Faults::default(),
            measure: self.measure(&file, form, duration),
            expect: Vec::new(),
            paper: None,
            live: self.flag(&file, "live", true),
            policy,
            short: form.is_short(),
            time: 1.0,
            folder: folder.to_owned(),
            sources: Sources::default(),
        };
        let hosts = scenario.hosts.iter().map(|host| host.name.as_str());
        let places = scenario.destinations.iter().map(|place| place.name.as_str());
        let nodes: Vec<&str> =
            hosts.chain(scenario.switches.iter().map(String::as_str)).chain(places).collect();
        scenario.links = self.links(&file, &nodes);
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
        Some(scenario)
    }

    fn title(&mut self, file: &Fields<'_>) -> String {
        let Some(tree) = file.get("name") else {
            self.missing(file, "name", "noisy-neighbour");
            return String::new();
        };
        let name = self.text(tree).unwrap_or("unnamed");
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            let problem = Problem::new(tree.at, format!("`{name}` cannot name a scenario"));
            self.problem(problem.label("not a name").help("use letters, digits, `-` and `_`"));
        }
        name.to_owned()
    }

    fn rate_of_uplink(&mut self, file: &Fields<'_>) -> BitRate {
        if file.get("rate").is_none() {
            self.missing(file, "rate", "100Mbps");
        }
        self.value(file, "rate", "a rate such as `100Mbps`", BitRate::mbps(100))
    }

    fn required_span(&mut self, file: &Fields<'_>, key: &str, example: &str) -> Span {
        if file.get(key).is_none() {
            self.missing(file, key, example);
        }
        let span = self.value(file, key, "a time such as `20s`", Span::secs(20));
        if let Some(tree) = file.get(key).filter(|_| span < Span::millis(100) || span > Span::secs(86_400)) {
            let problem = Problem::new(tree.at, format!("`{key}` is {span}"));
            self.problem(problem.label("out of range").help("write a time from 100ms to 24h"));
        }
        span
    }

    /// A list of names, or a map from names to addresses.
    fn destinations(&mut self, file: &Fields<'_>) -> Vec<Destination> {
        let implied = |n: usize| Ipv4Addr::new(10, 200, 0, u8::try_from(n + 1).unwrap_or(u8::MAX));
        let Some(tree) = file.get("destinations") else {
            return vec![Destination { name: "world".to_owned(), address: implied(0) }];
        };
        let mut found: Vec<Destination> = Vec::new();
        if let Value::Map(entries) = &tree.value {
            for (n, (key, value)) in entries.iter().enumerate() {
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
            if !inside || again || found.len() > 200 {
                let message =
                    format!("destination `{}` cannot be at {}", destination.name, destination.address);
                let help = "names and addresses are unique, inside 10.200.0.0/17 and outside of the tenants' 10.200.1.0/24";
                self.problem(Problem::new(tree.at, message).label("these destinations").help(help));
            }
        }
        found
    }

    fn measure(&mut self, file: &Fields<'_>, form: Form, duration: Span) -> Measure {
        let (window, from) = (Span::millis(50), Span::ZERO);
        let default = Measure { window, from, to: duration, ..Measure::default() };
        let Some(tree) = file.get("measure") else { return default };
        let fields = self.fields(tree, tree.at, "`measure`", &MEASURE_KEYS);
        let mut span = |key, default| self.value(&fields, key, "a time such as `50ms`", default);
        let (window, from, to) =
            (span("window", default.window), span("from", default.from), span("to", default.to));
        // Live a shorter one would hold what its threads happened to do in it.
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
        let mut flag = |key| self.flag(&fields, key, false);
        let (cpu, gaps, held) = (flag("cpu"), flag("gaps"), flag("held"));
        let (ingress, egress) = (flag("ingress"), flag("egress"));
        Measure { window, from, to, cpu, gaps, held, ingress, egress }
    }

    fn systems(&mut self, file: &Fields<'_>, folder: &Path) -> Vec<System> {
        let Some(tree) = file.get("systems") else {
            self.missing(file, "systems", "[fifo, htb, plimsoll]");
            return Vec::new();
        };
        let mut systems: Vec<System> = Vec::new();
        for item in self.list(tree, "`systems`") {
            let Some(system) = self.system(item, folder, file.get("control")) else { continue };
            if systems.iter().any(|other| other.name == system.name) {
                let problem = Problem::new(item.at, format!("there are two systems `{}`", system.name));
                self.problem(
                    problem.label("again").help("name it otherwise: `{other_name: {kind: plimsoll}}`"),
                );
            }
            systems.push(system);
        }
        if systems.is_empty() {
            let problem = Problem::new(tree.at, "no system is to be run").label("nothing to run");
            self.problem(problem.help("add `systems: [fifo, htb, plimsoll]`"));
        }
        systems
    }

    /// `fifo`, or `{name: {kind: fifo, ...}}`.
    fn system(&mut self, item: &Tree, folder: &Path, control: Option<&Tree>) -> Option<System> {
        let kinds = SystemKind::ALL.map(|kind| (kind.name(), kind));
        let Value::Map(entries) = &item.value else {
            let kind = self.choice(item, "system", &kinds)?;
            return Some(System {
                name: kind.name().to_owned(),
                kind,
                queues: 4,
                queue_rate: None,
                model: Model::default(),
                ingress: Ingress::default(),
                control: ControlLevel::default(),
                steering: None,
                completions: None,
                accounting: true,
                faults: true,
                policy: None,
            });
        };
        let [(key, tree)] = entries.as_slice() else {
            let problem = Problem::new(item.at, "a system in the list has one name");
            self.problem(problem.label("several").help("write `- name: {kind: plimsoll, policy: ..}`"));
            return None;
        };
        self.name(key, "system");
        let fields = self.fields(tree, key.at, &format!("system `{}`", key.value), &SYSTEM_KEYS);
        let named = kinds.iter().find(|(name, _)| *name == key.value).map(|(_, kind)| *kind);
        let kind = match fields.get("kind") {
            Some(tree) => self.choice(tree, "system", &kinds)?,
            None => named.or_else(|| {
                self.missing(&fields, "kind", "plimsoll");
                None
            })?,
        };
        let own = ["policy", "limits", "engine", "policy_file", "tenants"];
        let policy = own.iter().any(|key| fields.get(key).is_some()).then(|| self.sections(&fields, folder));
        let queues = self.count(&fields, "queues", 4, 256);
        let queue_rate = self.optional(&fields, "queue_rate", "a rate such as `5Mbps`");
        let model = self.model(&fields, kind);
        let ways = [("fair", Ingress::Fair), ("shared", Ingress::Shared)];
        let ingress =
            fields.get("ingress").and_then(|tree| self.choice(tree, "way in", &ways)).unwrap_or_default();
        let (control, steering) = match fields.get("control") {
            Some(own) => self.control_of(own, control),
            None => (ControlLevel::default(), None),
        };
        let completions = fields.get("completions");
        let completions =
            completions.and_then(|tree| self.choice(tree, "way to complete", &Completions::NAMES));
        let accounting = self.flag(&fields, "accounting", true);
        let faults = self.flag(&fields, "faults", true);
        let name = key.value.clone();
        Some(System {
            name,
            kind,
            queues,
            queue_rate,
            model,
            ingress,
            control,
            steering,
            completions,
            accounting,
            faults,
            policy,
        })
    }

    /// How much of `whole` a system has, as a word; or `{level: full, epoch: 1ms}`, with what is otherwise for it.
    fn control_of(&mut self, own: &Tree, whole: Option<&Tree>) -> (ControlLevel, Option<Control>) {
        let levels = [
            ("off", ControlLevel::Off),
            ("bandwidth", ControlLevel::Bandwidth),
            ("full", ControlLevel::Full),
        ];
        let Value::Map(entries) = &own.value else {
            return (self.choice(own, "control", &levels).unwrap_or_default(), None);
        };
        let level = own.get("level").and_then(|tree| self.choice(tree, "control", &levels));
        let others = entries.iter().filter(|(key, _)| key.value != "level").cloned().collect();
        let mut tree = whole.cloned().unwrap_or_else(|| Tree { at: own.at, value: Value::Map(Vec::new()) });
        yaml::overlay(&mut tree, &Tree { at: own.at, value: Value::Map(others) });
        (level.unwrap_or_default(), Some(self.control(&tree)))
    }

    fn tenants(&mut self, file: &Fields<'_>, scenario: &Scenario) -> Vec<Tenant> {
        let Some(tree) = file.get("tenants") else {
            self.missing(file, "tenants", "{shop: {min: 20Mbps}, batch: {}}");
            return Vec::new();
        };
        let mut tenants = Vec::new();
        let mut next = FIRST_ADDRESSES;
        let mut further = || {
            next += 1;
            next - 1
        };
        for (n, (key, tree)) in self.entries(tree, "`tenants`").iter().enumerate() {
            self.name(key, "tenant");
            let fields = self.fields(tree, key.at, &format!("tenant `{}`", key.value), &TENANT_KEYS);
            let hosts = self.homes(&fields, scenario);
            let first = if n < FIRST_ADDRESSES { n } else { further() };
            let rest = (1..hosts.len()).map(|_| further());
            let addresses: Vec<Ipv4Addr> = std::iter::once(first).chain(rest).map(address).collect();
            let homes = hosts.into_iter().zip(addresses).map(|(host, address)| Home { host, address });
            let core = fields.get("core").and_then(|tree| self.text(tree)).map(str::to_owned);
            tenants.push(Tenant { core, ..self.tenant(&key.value, homes.collect(), &scenario.policy) });
        }
        if tenants.is_empty() || further() > MOST_ADDRESSES {
            let problem = Problem::new(tree.at, format!("there are {} tenants", tenants.len()));
            self.problem(problem.label("out of range").help("name from 1 to 10000 tenants and vNICs"));
        }
        tenants
    }

    /// One host, or a list of them; the first of all without.
    fn homes(&mut self, fields: &Fields<'_>, scenario: &Scenario) -> Vec<String> {
        let known = || scenario.hosts.iter().map(|host| host.name.as_str());
        let Some(tree) = fields.get("host") else { return vec![scenario.hosts[0].name.clone()] };
        let items = if let Value::List(items) = &tree.value { items } else { std::slice::from_ref(tree) };
        let mut homes: Vec<String> = Vec::new();
        for item in items {
            let Some(name) = self.text(item) else { continue };
            if known().all(|host| host != name) {
                self.unknown(item.at, "there is no host", name, known());
            } else if homes.iter().any(|home| home == name) {
                let problem = Problem::new(item.at, format!("host `{name}` is named twice"));
                self.problem(problem.label("again").help("a tenant has one vNIC on a host"));
            }
            homes.push(name.to_owned());
        }
        if homes.is_empty() {
            homes.push(scenario.hosts[0].name.clone());
        }
        homes
    }

    /// The envelope comes from the policy's sections, which may lie in another file.
    fn tenant(&mut self, name: &str, homes: Vec<Home>, policy: &PolicySections) -> Tenant {
        let entries = policy.tenants.iter().find(|(tenant, _)| tenant == name).map(|(_, entries)| entries);
        let value =
            |key: &str| entries.and_then(|entries| entries.iter().find(|(k, _)| k == key)).map(|(_, v)| v);
        let mut rate = |key| value(key).and_then(|tree| self.parse(tree, "a rate such as `20Mbps`"));
        let (min, max) = (rate("min"), rate("max"));
        let weight = value("weight").and_then(|tree| self.parse(tree, "a whole number")).unwrap_or(1);
        let address = homes[0].address;
        Tenant { name: name.to_owned(), address, homes, min, max, weight, family: None, core: None }
    }

    /// Says of tenants and workloads which `repeat` made of one what they are one of.
    fn join_families(
        &mut self,
        file: &Fields<'_>,
        scenario: &mut Scenario,
        families: &BTreeMap<String, String>,
    ) {
        let family = |name: &String| families.get(name).cloned();
        scenario.tenants.iter_mut().for_each(|tenant| tenant.family = family(&tenant.name));
        scenario.workloads.iter_mut().for_each(|workload| workload.family = family(&workload.name));
        let tenants = scenario.tenants.iter().map(|tenant| (&tenant.name, &tenant.family, "tenants"));
        let workloads = scenario.workloads.iter().map(|w| (&w.name, &w.family, "workloads"));
        let all: Vec<_> = tenants.chain(workloads).collect();
        let taken = all.iter().find_map(|(_, family, key)| {
            let family = family.as_ref()?;
            let other = |(name, of, at): &(&String, &Option<String>, &str)| {
                *name == family || (of.as_ref() == Some(family) && at != key)
            };
            all.iter().any(other).then_some((family, key))
        });
        if let Some((family, key)) = taken {
            let at = file.get(key).map_or(file.at, |tree| tree.at);
            let problem = Problem::new(at, format!("`{family}` would be the name of all of them together"));
            let help =
                "name them otherwise: `worker<c>` makes the family `worker`, and another thing is called so";
            self.problem(problem.label("name taken").help(help));
        }
    }

    fn workloads(&mut self, file: &Fields<'_>, scenario: &Scenario) -> Vec<Workload> {
        let Some(tree) = file.get("workloads") else {
            self.missing(file, "workloads", "{few: {tenant: a, kind: bulk, flows: 4}}");
            return Vec::new();
        };
        let tenants: Vec<&str> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let places = scenario.destinations.iter().map(|place| place.name.as_str());
        let places: Vec<&str> = places.chain(tenants.iter().copied()).collect();
        let mut workloads: Vec<Workload> = Vec::new();
        for (n, (key, tree)) in self.entries(tree, "`workloads`").iter().enumerate() {
            self.name(key, "workload");
            if tenants.contains(&key.value.as_str()) {
                let problem = Problem::new(key.at, format!("`{}` is a tenant and a workload", key.value));
                self.problem(
                    problem.label("name taken").help("name the workload otherwise; expectations use both"),
                );
            }
            self.known_in(tree, "tenant", &tenants);
            self.known_in(tree, "to", &places);
            let Some(mut workload) = self.workload(key, tree, n, scenario.duration, scenario.rate) else {
                continue;
            };
            let alone = |tenant: &Tenant| tenant.name == workload.to && tenant.homes.len() == 1;
            let to_itself = workload.to == workload.tenant && scenario.tenants.iter().any(alone);
            if let Some(tree) = tree.get("to").filter(|_| to_itself) {
                let message = format!("`{}` sends to itself, and lives on one host", workload.tenant);
                let problem = Problem::new(tree.at, message).label("its own tenant");
                self.problem(problem.help("name another tenant or a destination, or give it several hosts"));
            }
            if tree.get("to").is_none() {
                workload.to = places.first().copied().unwrap_or_default().to_owned();
            }
            let at = |key: &str| tree.get(key).map_or(tree.at, |tree| tree.at);
            if let Some(other) = workloads.iter().find(|other| other.port == workload.port) {
                let message =
                    format!("`{}` and `{}` both use port {}", other.name, workload.name, workload.port);
                let problem = Problem::new(at("port"), message).label("port taken");
                self.problem(problem.help("give one of them another `port`; ports tell workloads apart"));
            }
            workloads.push(workload);
        }
        workloads
    }

    /// Whether the value of a workload's key is one of the names that there are.
    fn known_in(&mut self, workload: &Tree, key: &str, known: &[&str]) {
        let Some((tree, Value::Text(name))) = workload.get(key).map(|tree| (tree, &tree.value)) else {
            return;
        };
        if !known.contains(&name.as_str()) {
            let what = if key == "to" { "destination or tenant" } else { key };
            self.unknown(tree.at, &format!("there is no {what}"), name, known.iter().copied());
        }
    }

    /// Lines, or maps of `that` and `because`.
    fn expectations(&mut self, tree: Option<&Tree>, scenario: &Scenario) -> Vec<Expectation> {
        let Some(tree) = tree else { return Vec::new() };
        let names = Names::of(scenario);
        let mut found = Vec::new();
        for item in self.list(tree, "`expect`") {
            let (that, because, at) = match &item.value {
                Value::Map(_) => {
                    let fields = self.fields(item, item.at, "an expectation", &["that", "because", "at"]);
                    let because = fields.get("because").and_then(|tree| self.text(tree));
                    (fields.get("that"), because, self.points_meant(&fields, scenario))
                }
                _ => (Some(item), None, Vec::new()),
            };
            let Some(that) = that else {
                let problem = Problem::new(item.at, "an expectation has no `that`").label("expects nothing");
                self.problem(problem.help("write `- that: a.b.p99 <= 5ms`, or the line alone"));
                continue;
            };
            if !at.iter().all(|wanted| self.point.contains(wanted)) {
                continue; // it may speak of what is not there at this point
            }
            let expectation = self.expectation(that, because, &names);
            found.extend(expectation);
        }
        found
    }

    fn expectation(&mut self, tree: &Tree, because: Option<&str>, names: &Names) -> Option<Expectation> {
        let line = self.text(tree)?;
        let parsed = expect::parse(line);
        let problems = match &parsed {
            Ok(expectation) => expect::check(expectation, names),
            Err(problem) => vec![(**problem).clone()],
        };
        for mut problem in problems {
            problem.at = self.within(tree, line, problem.at);
            self.problem(problem);
        }
        let mut expectation = parsed.ok()?;
        expectation.because = because.map(|because| because.trim().to_owned());
        Some(expectation)
    }

    /// Where a part of a scalar's text stands; the whole scalar where it was quoted or folded.
    fn within(&self, tree: &Tree, line: &str, part: Mark) -> Mark {
        let rest = &self.sources.file(tree.at.file).text[tree.at.range().start..];
        let quote = u32::from(rest.starts_with('"') || rest.starts_with('\''));
        if rest[quote as usize..].starts_with(line) {
            Mark { offset: tree.at.offset + quote + part.offset, len: part.len, ..tree.at }
        } else {
            tree.at
        }
    }

    /// Applies `short:`; reads it also for the full form, so that its mistakes show.
    fn shorten(&mut self, tree: &Tree, file: &Fields<'_>, scenario: &mut Scenario, form: Form) {
        let fields = self.fields(tree, tree.at, "`short`", &SHORT_KEYS);
        let time: f64 = self.value(&fields, "time", "a number such as `0.25`", 1.0);
        if let Some(tree) = fields.get("time").filter(|_| !(0.01..=1.0).contains(&time)) {
            let problem = Problem::new(tree.at, format!("`time` is {time}")).label("out of range");
            self.problem(problem.help("write a number from 0.01 to 1: every moment comes that much earlier"));
        }
        let pairs = self.count(&fields, "pairs", 1, MOST_PAIRS);
        let names: Vec<&str> = match fields.get("systems") {
            None => scenario.systems.iter().map(|system| system.name.as_str()).collect(),
            Some(tree) => self.list(tree, "`systems`").iter().filter_map(|item| self.text(item)).collect(),
        };
        for name in &names {
            if !scenario.systems.iter().any(|system| system.name == *name) {
                let known = scenario.systems.iter().map(|system| system.name.as_str());
                let at = fields.get("systems").map_or(tree.at, |tree| tree.at);
                self.unknown(at, "there is no system", name, known);
            }
        }
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut short = scenario.clone();
        short.scale(time.clamp(0.01, 1.0));
        short.pairs = pairs;
        short.systems.retain(|system| names.contains(&system.name));
        short
            .expect
            .retain(|expectation| expectation.systems().iter().all(|name| names.iter().any(|n| n == name)));
        if let Some(paper) = &mut short.paper {
            paper.numbers.retain(|number| number.ours.speaks_of(&names));
        }
        if let Some(tree) = fields.get("expect") {
            short.expect = self.expectations(Some(tree), &short);
        }
        self.check_turns(file, (scenario, Some(&short)), form);
        if form.is_short() {
            *scenario = short;
        }
    }
}

impl Scenario {
    fn scale(&mut self, time: f64) {
        let scale = |span: &mut Span| *span = expect::scaled(*span, time);
        self.time = time;
        scale(&mut self.duration);
        scale(&mut self.measure.from);
        scale(&mut self.measure.to);
        self.timeline.iter_mut().for_each(|change| scale(&mut change.at));
        self.faults.scale(scale);
        for workload in &mut self.workloads {
            scale(&mut workload.start);
            scale(&mut workload.stop);
        }
        for expectation in &mut self.expect {
            expectation.scale(time);
        }
        for number in self.paper.iter_mut().flat_map(|paper| &mut paper.numbers) {
            number.ours.scale(time);
        }
    }
}

/// Addresses of 10.200.1.0/24 that tenants get first, by their number; further ones lie in 10.200.128.0/17.
const FIRST_ADDRESSES: usize = 250;
const MOST_ADDRESSES: usize = FIRST_ADDRESSES + 10_000;

/// The address of a tenant's vNIC.
fn address(n: usize) -> Ipv4Addr {
    let octet = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let n = n.min(MOST_ADDRESSES);
    match n.checked_sub(FIRST_ADDRESSES) {
        None => Ipv4Addr::new(10, 200, 1, octet(n + 1)),
        Some(n) => Ipv4Addr::new(10, 200, octet(128 + n / FIRST_ADDRESSES), octet(n % FIRST_ADDRESSES + 1)),
    }
}

pub(super) fn no_yaml(error: SyntaxError) -> Problem {
    Problem::new(error.at, error.message).label("reading stops here").help(
        "a scenario is YAML: keys and values with `:`, the same indentation for siblings, spaces and no tabs",
    )
}
