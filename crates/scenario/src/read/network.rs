//! Reading hosts, switches and links.
//!
//! Why: a link to nowhere is found before anything runs, with its place.
//! From: `docs/scenarios.md`, "Hosts and links".
//! Not here: whether there is a way for each workload, which needs the world (`sim`).
//! Invariant: both ends of every link exist, and no name is used twice.

use std::path::Path;

use plimsoll_control::Idle;
use plimsoll_document::{Mark, Name, Tree, Value};
use plimsoll_policy::LONGEST_COST;
use plimsoll_units::{BitRate, Bytes, Span};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::{CONTROL, CORES, CPU, HOST, LINK, PCIE, RECEIVE, TRANSMIT};
use crate::model::Scenario;
use crate::network::{
    Control, CoreCost, EngineCost, Host, Link, LoadBalancing, NicKind, Pcie, ReceiveRing,
    TransmitCompletions, TransmitRing,
};

/// The default part of the CPU for fetching, in thousandths: it reproduces PicNIC's figures (§6.1.1).
const DRAIN_SHARE: f64 = 0.64;
const TIME: &str = "a time such as `5us`";
const SIZE: &str = "a size such as `90kB`";
const RATE: &str = "a rate such as `10Gbps`";

/// A link's queue unless the file says: a thousand full packets, as Linux's devices.
const QUEUE: Bytes = Bytes::new(1_514_000);
/// The fastest link: 64 bytes in a nanosecond.
const FASTEST: BitRate = BitRate::gbps(512);
/// The delay of a link unless stated: some metres of cable, and a switch's ports.
const DELAY: Span = Span::micros(5);

impl Reader {
    /// Hosts: a list of names, or a map from names to their keys.
    pub(super) fn hosts(&mut self, file: &Fields<'_>, folder: &Path) -> Vec<Host> {
        let Some(tree) = file.get("hosts") else { return vec![Host::plain("host", Mark::default())] };
        let mut hosts: Vec<Host> = Vec::new();
        if let Value::Map(_) = &tree.value {
            for (key, tree) in self.entries(tree, "`hosts`") {
                hosts.push(self.host(key, tree, folder));
            }
        } else {
            for item in self.list(tree, "`hosts`") {
                let Some(name) = self.text(item) else { continue };
                if hosts.iter().any(|host| host.name == name) {
                    self.taken(item.at, name);
                }
                hosts.push(Host::plain(name, item.at));
            }
        }
        if hosts.is_empty() {
            let problem = Problem::new(tree.at, "no host is named").label("empty");
            self.problem(problem.help("name one, or leave `hosts` away"));
            hosts.push(Host::plain("host", tree.at));
        }
        hosts
    }

    fn host(&mut self, key: &Name, tree: &Tree, folder: &Path) -> Host {
        let what = format!("host `{}`", key.value);
        let fields = self.fields(tree, key.at, &what, &HOST);
        let nics = [("engine", NicKind::Engine), ("fifo", NicKind::Fifo)];
        let own = ["policy", "limits", "engine", "backpressure", "policy_file"];
        let own = own.iter().any(|key| fields.get(key).is_some());
        self.not_off(&fields);
        Host {
            nic: fields.get("nic").and_then(|tree| self.choice(tree, "NIC", &nics)).unwrap_or_default(),
            receive: fields.get("receive").map(|tree| self.receive(tree)),
            partition: fields.get("partition").map(|tree| self.partition(tree)),
            cpu: fields.get("cpu").map(|tree| self.cpu(tree)).unwrap_or_default(),
            cores: fields.get("cores").map(|tree| self.cores(tree)),
            programs: fields.get("programs").map(|tree| self.programs(tree)).unwrap_or_default(),
            transmit: fields.get("transmit").map(|tree| self.transmit(tree)).unwrap_or_default(),
            pcie: fields.get("pcie").map(|tree| self.pcie(tree)),
            packet_rate: self.optional(&fields, "packet_rate", "a packet rate such as `37Mpps`"),
            policy: own.then(|| self.sections(&fields, None, folder)),
            ..Host::plain(&key.value, key.at)
        }
    }

    fn receive(&mut self, tree: &Tree) -> ReceiveRing {
        let fields = self.fields(tree, tree.at, "`receive`", &RECEIVE);
        let share = fields.get("drain_share").map_or(DRAIN_SHARE, |_| self.part(&fields, "drain_share"));
        ReceiveRing {
            ring: self.count(&fields, "ring", 1_024, 1 << 20),
            drain: self.cost(&fields, "drain", Span::ZERO),
            cost: self.cost(&fields, "cost", Span::ns(500)),
            slots: self.count(&fields, "slots", 256, 1 << 16),
            ecn: fields.get("ecn").map(|_| self.count(&fields, "ecn", 1, 1 << 20)),
            drain_share: (share * 1_000.0).round() as u32,
            round: self.value(&fields, "round", TIME, Span::ZERO),
            vary: self.flag(&fields, "vary", false),
        }
    }

    /// CPU time for each packet, no longer than a real engine can be slowed down to.
    fn cost(&mut self, fields: &Fields<'_>, key: &str, default: Span) -> Span {
        let span = self.value(fields, key, TIME, default);
        if let Some(tree) = fields.get(key).filter(|_| span > LONGEST_COST) {
            let problem = Problem::new(tree.at, format!("`{key}` is {span} a packet")).label("out of range");
            self.problem(problem.help(format!("write a time of {LONGEST_COST} at most, such as `5us`")));
        }
        span
    }

    /// How receivers control their senders.
    pub(super) fn control(&mut self, tree: &Tree) -> Control {
        let fields = self.fields(tree, tree.at, "`control`", &CONTROL);
        let idle = [("reserved", Idle::Reserved), ("lent", Idle::Lent)];
        let epoch = self.value(&fields, "epoch", TIME, Span::micros(500)).max(Span::micros(1));
        Control {
            epoch,
            feedback: self.value(&fields, "feedback", TIME, Span::micros(100)),
            lapse: self.value(&fields, "lapse", TIME, epoch.times(50)),
            fallback: self.optional(&fields, "fallback", RATE),
            threshold: self.value(&fields, "threshold", TIME, Span::micros(10)),
            gain: self.thousandths(&fields, "gain", 500),
            cut: self.thousandths(&fields, "cut", 200),
            patience: self.patience(&fields),
            newest: self.thousandths(&fields, "newest", 1_000).max(1),
            ecn: self.flag(&fields, "ecn", false),
            balancers: self.balancers(&fields),
            idle: fields.get("idle").and_then(|tree| self.choice(tree, "way", &idle)).unwrap_or_default(),
        }
    }

    /// Epochs from 0 to 1,000.
    fn patience(&mut self, fields: &Fields<'_>) -> u32 {
        let want = "a number of epochs from 0 to 1000";
        let patience = self.value(fields, "patience", want, 32);
        if let Some(tree) = fields.get("patience").filter(|_| patience > 1_000) {
            let problem = Problem::new(tree.at, format!("`patience` is {patience}")).label("out of range");
            self.problem(problem.help(format!("write {want}")));
        }
        patience
    }

    fn thousandths(&mut self, fields: &Fields<'_>, key: &str, default: u32) -> u32 {
        fields.get(key).map_or(default, |_| (self.part(fields, key) * 1_000.0).round() as u32)
    }

    /// A map from names to weights; a name without one has 1.
    fn balancers(&mut self, fields: &Fields<'_>) -> Vec<(String, u32)> {
        let Some(tree) = fields.get("balancers") else { return Vec::new() };
        let mut balancers = Vec::new();
        for (name, tree) in self.entries(tree, "`balancers`") {
            let stated = !matches!(tree.value, Value::Null);
            let weight = stated.then(|| self.parse::<u32>(tree, "a whole number")).flatten();
            balancers.push((name.value.clone(), weight.unwrap_or(1).clamp(1, 1_000_000)));
        }
        balancers
    }

    fn cpu(&mut self, tree: &Tree) -> EngineCost {
        let fields = self.fields(tree, tree.at, "`cpu`", &CPU);
        let mut cost = |key| self.value(&fields, key, TIME, Span::ZERO);
        EngineCost { process: cost("process"), pull: cost("pull") }
    }

    fn cores(&mut self, tree: &Tree) -> CoreCost {
        let fields = self.fields(tree, tree.at, "`cores`", &CORES);
        let mut cost = |key| self.value(&fields, key, TIME, Span::ZERO);
        CoreCost { answer: cost("answer"), send: cost("send") }
    }

    fn transmit(&mut self, tree: &Tree) -> TransmitRing {
        let fields = self.fields(tree, tree.at, "`transmit`", &TRANSMIT);
        let ring = self.count(&fields, "ring", TransmitRing::default().ring, 1 << 16);
        let mode = fields.get("completions");
        let mode = mode.and_then(|tree| self.choice(tree, "way to complete", &TransmitCompletions::NAMES));
        TransmitRing { ring, completions: mode.unwrap_or_default() }
    }

    fn pcie(&mut self, tree: &Tree) -> Pcie {
        let fields = self.fields(tree, tree.at, "`pcie`", &PCIE);
        let tlp = self.value(&fields, "tlp", SIZE, Bytes::new(256));
        if let Some(tree) = fields.get("tlp").filter(|_| tlp == Bytes::ZERO) {
            let problem = Problem::new(tree.at, "a packet on the bus has a payload");
            self.problem(
                problem
                    .label("no payload")
                    .help("write the largest payload of a TLP: 256B is usual, 128B and 512B occur"),
            );
        }
        Pcie {
            rate: self.value(&fields, "rate", RATE, BitRate::gbps(63)),
            latency: self.value(&fields, "latency", TIME, Span::ns(900)),
            tlp,
            overhead: self.value(&fields, "overhead", SIZE, Bytes::new(26)),
            descriptor: self.value(&fields, "descriptor", SIZE, Bytes::ZERO),
            outstanding: self.count(&fields, "outstanding", 64, 1 << 16),
        }
    }

    /// Names of nodes that only forward.
    pub(super) fn switches(&mut self, file: &Fields<'_>) -> Vec<String> {
        let Some(tree) = file.get("switches") else { return Vec::new() };
        self.list(tree, "`switches`").iter().filter_map(|item| self.text(item).map(str::to_owned)).collect()
    }

    /// Which of several equal ways a packet takes, in a file or in a system of it.
    pub(super) fn load_balancing(&mut self, fields: &Fields<'_>) -> Option<LoadBalancing> {
        let tree = fields.get("load_balancing")?;
        self.choice(tree, "way to balance load", &LoadBalancing::NAMES)
    }

    /// Every link, with both of its ends among `nodes`.
    pub(super) fn links(&mut self, file: &Fields<'_>, nodes: &[&str]) -> Vec<Link> {
        let Some(tree) = file.get("links") else { return Vec::new() };
        for (n, name) in nodes.iter().enumerate() {
            if nodes[..n].contains(name) {
                self.taken(tree.at, name);
            }
        }
        let entries = self.entries(tree, "`links`");
        entries.iter().filter_map(|(key, tree)| self.link(key, tree, nodes)).collect()
    }

    fn link(&mut self, key: &Name, tree: &Tree, nodes: &[&str]) -> Option<Link> {
        let fields = self.fields(tree, key.at, &format!("link `{}`", key.value), &LINK);
        let both = fields.get("between").is_some();
        let ends = self.ends(key, tree, &fields, nodes);
        let link = Link {
            name: key.value.clone(),
            from: String::new(),
            to: String::new(),
            both,
            rate: self.value(&fields, "rate", RATE, BitRate::gbps(10)),
            place: fields.get("rate").map_or(key.at, |tree| tree.at),
            delay: self.value(&fields, "delay", TIME, DELAY),
            queue: self.value(&fields, "queue", SIZE, QUEUE),
            ecn: self.optional(&fields, "ecn", SIZE),
            loss: self.part(&fields, "loss"),
            aqm: None,
            jitter: self.value(&fields, "jitter", TIME, Span::ZERO),
            reorder: None,
            burst_loss: None,
        };
        let link = self.unusual(link, &fields);
        ends.map(|[from, to]| Link { from: from.to_owned(), to: to.to_owned(), ..link })
    }

    /// The two nodes that a link is between.
    fn ends<'a>(
        &mut self,
        key: &Name,
        tree: &Tree,
        fields: &Fields<'a>,
        nodes: &[&str],
    ) -> Option<[&'a str; 2]> {
        let stated = ["between", "from", "to"].map(|key| fields.get(key));
        let between = stated[0].map(|tree| self.list(tree, "`between`")).unwrap_or_default();
        let ends: Vec<&Tree> = between.iter().chain(stated[1..].iter().copied().flatten()).collect();
        let names: Vec<&str> = ends.iter().filter_map(|end| self.link_end(end, nodes)).collect();
        if !matches!(stated, [Some(_), None, None] | [None, Some(_), Some(_)]) {
            let problem = Problem::new(key.at, format!("link `{}` has no two ends", key.value));
            let help = "write `between: [a, b]` for both ways, or `from: a` and `to: b` for one";
            self.problem(problem.label("from where to where?").help(help));
            return None;
        }
        if ends.len() != 2 {
            let problem = Problem::new(tree.at, format!("link `{}` has {} ends", key.value, ends.len()));
            self.problem(problem.label("not two").help("a link has two ends: `between: [a, b]`"));
        }
        let &[from, to] = names.as_slice() else { return None };
        if from == to {
            let problem =
                Problem::new(tree.at, format!("link `{}` leads from `{from}` to itself", key.value));
            self.problem(problem.label("a loop").help("name two different ends"));
        }
        Some([from, to])
    }

    /// Whether every link carries packets within the run: each takes at least a nanosecond, which is virtual time's
    /// clock, finds room where it waits, and arrives.
    pub(super) fn check_links(&mut self, file: &Fields<'_>, scenario: &Scenario) {
        // With links of its own the file's rate is what its expectations call `line`.
        let at = file.get("rate").map_or(file.at, |tree| tree.at);
        self.check_speed("the uplink", scenario.rate, at, scenario);
        let (frame, duration) = (scenario.mtu + 14, scenario.duration);
        for Link { name, rate, queue, delay, place, .. } in &scenario.links {
            self.check_speed(&format!("link `{name}`"), *rate, *place, scenario);
            let written = file.get("links").and_then(|links| links.get(name));
            let at = |key: &str| written.and_then(|link| link.get(key)).map_or(*place, |tree| tree.at);
            if queue.as_u64() < frame.into() {
                let message =
                    format!("the queue of link `{name}` holds {queue}, and a frame is up to {frame} B");
                let problem = Problem::new(at("queue"), message).label("nothing could wait");
                self.problem(problem.help("write a `queue` of some frames at least, such as `90kB`"));
            }
            if *delay >= duration {
                let message = format!("link `{name}` delays by {delay}, and the run ends after {duration}");
                let problem = Problem::new(at("delay"), message).label("nothing would arrive");
                self.problem(problem.help("write a shorter `delay`, or raise `duration`"));
            }
        }
    }

    fn check_speed(&mut self, what: &str, rate: BitRate, at: Mark, scenario: &Scenario) {
        let (frame, duration) = (scenario.mtu + 14, scenario.duration);
        let takes = rate.wire_time(Bytes::new(frame.into()));
        if rate > FASTEST {
            let message = format!("on {what} a frame of 64 B would take less than a nanosecond");
            let problem = Problem::new(at, message).label("too fast");
            self.problem(
                problem.help(format!("lower the rate to {FASTEST} or less: time is counted in nanoseconds")),
            );
        }
        if takes >= duration {
            let message =
                format!("on {what} a frame of {frame} B takes {takes}, and the run ends after {duration}");
            let problem = Problem::new(at, message).label("too slow");
            self.problem(problem.help("raise the rate, or `duration`"));
        }
    }

    fn link_end<'a>(&mut self, tree: &'a Tree, nodes: &[&str]) -> Option<&'a str> {
        let name = self.text(tree)?;
        if !nodes.contains(&name) {
            self.unknown(
                tree.at,
                "a link leads nowhere: there is no host, switch or destination",
                name,
                nodes.iter().copied(),
            );
            return None;
        }
        Some(name)
    }

    /// A part: `0.1%`, or a number.
    pub(super) fn part(&mut self, fields: &Fields<'_>, key: &str) -> f64 {
        let Some(tree) = fields.get(key) else { return 0.0 };
        let Some(text) = self.text(tree) else { return 0.0 };
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        match parsed {
            Ok(part) if (0.0..1.0).contains(&part) => part,
            _ => {
                let problem = Problem::new(tree.at, format!("`{text}` is no part of the packets"));
                self.problem(problem.label("not understood").help("write a part below 100%, such as `0.1%`"));
                0.0
            }
        }
    }

    fn taken(&mut self, at: Mark, name: &str) {
        let problem = Problem::new(at, format!("two hosts, switches or destinations are called `{name}`"));
        self.problem(problem.label("name taken").help("give each a name of its own"));
    }
}
