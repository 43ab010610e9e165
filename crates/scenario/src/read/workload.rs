//! Reading workloads.
//!
//! Why: each kind has keys of its own, and a key of another kind is a mistake.
//! From: `docs/scenarios.md`, "Workloads".
//! Not here: whether tenants and destinations exist (`scenario`).
//! Invariant: ports are unique; times lie inside the run.

use plimsoll_document::{Name, Tree};
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::flow_sizes::FlowSizes;
use crate::keys::{KINDS, MOST_WINDOW, TCP, WORKLOAD};
use crate::model::Scenario;
use crate::network::Congestion;
use crate::workload::{FlowPace, KeyValueSizes, Kind, Pace, Role, TcpSettings, Turns, Workload};

/// Ports of the servers' sides, unless given: below the ephemeral ones.
const FIRST_PORT: u16 = 5_001;
/// A flow that changes more often sends not even a packet in between, and a run of seconds would not end.
const SHORTEST_PHASE: Span = Span::micros(1);

const SIZE: &str = "a size such as `1400B` or `32KiB`";
const TIME: &str = "a time such as `2s` or `50ms`";
const COUNT: &str = "a number of requests a second, such as `500`";

impl Reader {
    /// Reads the workload with number `index` of a scenario whose other parts have been read.
    pub(super) fn workload(
        &mut self,
        key: &Name,
        tree: &Tree,
        index: usize,
        scenario: &Scenario,
    ) -> Option<Workload> {
        let duration = scenario.duration;
        let what = format!("workload `{}`", key.value);
        let kinds = KINDS.map(|(name, keys)| (name, (name, keys)));
        let Some(kind) = tree.get("kind") else {
            self.fields(tree, key.at, &what, &WORKLOAD);
            return None;
        };
        let (kind, keys) = self.choice(kind, "kind of workload", &kinds)?;
        let fields = self.fields(tree, key.at, &format!("{what} of kind {kind}"), keys);

        let start = self.value(&fields, "start", TIME, Span::ZERO);
        let stop = self.value(&fields, "stop", TIME, duration);
        self.times(&fields, start, stop, duration);
        let port = FIRST_PORT.saturating_add(u16::try_from(index).unwrap_or(u16::MAX));
        let port = self.value(&fields, "port", "a port below 32768", port);
        let dscp: u8 = self.value(&fields, "dscp", "a DSCP from 0 to 63", 0);
        if let Some(tree) = fields.get("dscp").filter(|_| dscp > 63) {
            self.problem(Problem::new(tree.at, format!("`dscp` is {dscp}")).label("above 63"));
        }
        if let Some(tree) = fields.get("port").filter(|_| port == 0 || port >= 32_768) {
            let problem = Problem::new(tree.at, format!("`port` is {port}")).label("out of range");
            self.problem(problem.help("ports from 32768 belong to clients; use a lower one"));
        }
        let tenant = fields.get("tenant").and_then(|tree| self.text(tree)).map(str::to_owned);
        let to = fields.get("to").and_then(|tree| self.text(tree)).unwrap_or_default().to_owned();
        let through = fields.get("through").and_then(|tree| self.text(tree)).map(str::to_owned);
        let congestion = fields.get("congestion");
        let congestion =
            congestion.and_then(|tree| self.choice(tree, "congestion control", &Congestion::NAMES));
        let tcp = fields.get("tcp").map(|tree| self.tcp(tree)).unwrap_or_default();
        let kind = self.kind(kind, &fields, scenario);
        let (name, family, place) = (key.value.clone(), None, key.at);
        let even = keys.key("arrivals").is_some() && self.arrivals(&fields);
        let workload = Workload {
            name,
            tenant: tenant?,
            to,
            through,
            kind: kind?,
            start,
            stop,
            dscp,
            congestion,
            tcp,
            port,
            even,
            family,
            place,
        };
        if !workload.kind.is_tcp() {
            self.no_tcp(&fields);
        }
        Some(workload)
    }

    /// Refuses settings of TCP for a workload that does without it.
    fn no_tcp(&mut self, fields: &Fields<'_>) {
        for key in ["congestion", "tcp"] {
            if let Some(tree) = fields.get(key) {
                let problem = Problem::new(tree.at, format!("{} does not send by TCP", fields.what));
                self.problem(problem.label("has no effect").help(format!("leave `{key}` out")));
            }
        }
    }

    fn tcp(&mut self, tree: &Tree) -> TcpSettings {
        let fields = self.fields(tree, tree.at, "`tcp`", &TCP);
        let mut buffer = |key| fields.get(key).is_some().then(|| self.size(&fields, key, Bytes::new(1)));
        let (send_buffer, receive_buffer) = (buffer("send_buffer"), buffer("receive_buffer"));
        let stated = fields.get("initial_window").is_some();
        TcpSettings {
            pacing: self.flag(&fields, "pacing", false),
            initial_window: stated.then(|| self.count(&fields, "initial_window", 1, MOST_WINDOW)),
            min_rto: self.optional(&fields, "min_rto", TIME),
            send_buffer,
            receive_buffer,
        }
    }

    /// The turns of UDP, which sends without a pause unless one is stated.
    fn turns(&mut self, fields: &Fields<'_>) -> Option<Turns> {
        let stated = ["on", "off"].iter().any(|key| fields.get(key).is_some());
        let mut time = |key| self.value(fields, key, TIME, Span::millis(500));
        stated.then(|| Turns { on: time("on"), off: time("off") })
    }

    fn times(&mut self, fields: &Fields<'_>, start: Span, stop: Span, duration: Span) {
        let at = |key| fields.get(key).map_or(fields.at, |tree: &Tree| tree.at);
        if stop > duration {
            let problem =
                Problem::new(at("stop"), format!("{} stops at {stop}, the run at {duration}", fields.what));
            self.problem(problem.label("too late").help("stop earlier, or raise `duration`"));
        } else if start >= stop {
            let problem =
                Problem::new(at("start"), format!("{} starts at {start} and stops at {stop}", fields.what));
            self.problem(
                problem.label("never runs").help("start before the stop and before the end of the run"),
            );
        }
    }

    fn kind(&mut self, kind: &str, fields: &Fields<'_>, scenario: &Scenario) -> Option<Kind> {
        let flows = |reader: &mut Self| reader.count(fields, "flows", 1, 4_096);
        let size = |reader: &mut Self, key, default| reader.size(fields, key, default);
        Some(match kind {
            "bulk" => Kind::Bulk { flows: flows(self), reverse: self.flag(fields, "reverse", false) },
            "udp" => Kind::Udp {
                size: size(self, "size", Bytes::new(1_400)),
                pace: self.pace(fields, scenario.rate)?,
                burst: self.value(fields, "burst", SIZE, Bytes::ZERO),
                flows: flows(self),
                turns: self.turns(fields),
                buffer: self.value(fields, "buffer", SIZE, Bytes::ZERO),
                claims: self.value(fields, "claims", "a number of senders, such as `10000`", 0),
                ect: self.flag(fields, "ect", false),
            },
            "request_response" => Kind::RequestResponse {
                role: self.role(fields, Role::Client),
                request: size(self, "request", Bytes::new(128)),
                response: size(self, "response", Bytes::new(128)),
                connections: self.count(fields, "connections", 1, 4_096),
                rate: self.rate(fields),
            },
            "probe" => Kind::Probe {
                size: size(self, "size", Bytes::new(64)),
                rate: self.rate(fields).unwrap_or(100),
            },
            "on_off" => Kind::OnOff {
                flows: flows(self),
                on: self.phase(fields, "on"),
                off: self.phase(fields, "off"),
            },
            "shuffle" => Kind::Shuffle {
                flows: flows(self),
                block: size(self, "block", Bytes::new(250_000)),
                pause: self.value(fields, "pause", TIME, Span::ZERO),
            },
            "flows" => self.arriving_flows(fields, scenario)?,
            "incast" => Kind::Incast {
                senders: self.count(fields, "senders", 8, 4_096),
                request: size(self, "request", Bytes::new(128)),
                size: self.size(fields, "size", Bytes::new(64_000)),
                rate: self.rate(fields),
                pause: self.pause_of_incast(fields),
            },
            "iperf3" => {
                let udp: Option<BitRate> = self.optional(fields, "udp", "a rate such as `5Mbps`");
                Kind::Iperf3 { flows: flows(self), udp }
            }
            "memcached" => Kind::Memcached {
                role: self.role(fields, Role::Server),
                key: size(self, "key", Bytes::new(32)),
                value: size(self, "value", Bytes::new(1_000)),
                sizes: self.sizes(fields),
                connections: self.count(fields, "connections", 1, 4_096),
                rate: self.rate(fields),
                udp: fields.get("protocol").is_some() && !self.protocol(fields),
            },
            _ => Kind::Sockperf {
                size: size(self, "size", Bytes::new(64)),
                rate: self.rate(fields).unwrap_or(500),
                tcp: self.protocol(fields),
            },
        })
    }

    /// Flows that arrive at a load or at a rate.
    fn arriving_flows(&mut self, fields: &Fields<'_>, scenario: &Scenario) -> Option<Kind> {
        let sizes = fields.get("sizes").and_then(|tree| {
            let text = self.text(tree)?;
            let found = FlowSizes::read(text, &scenario.folder);
            found
                .map_err(|(message, help)| {
                    self.problem(Problem::new(tree.at, message).label("these sizes").help(help));
                })
                .ok()
        });
        let rate = self.rate(fields);
        let load: Option<f64> = self.optional(fields, "load", "a part of the link's rate, such as `0.6`");
        if let Some(tree) =
            fields.get("load").filter(|_| load.is_some_and(|load| !(0.001..=2.0).contains(&load)))
        {
            let problem = Problem::new(tree.at, "`load` is a part of a link's rate").label("out of range");
            self.problem(problem.help("write a number from 0.001 to 2"));
        }
        if let (Some(tree), None) = (fields.get("link"), fields.get("load")) {
            let problem = Problem::new(tree.at, "`link` without a `load`").label("a part of it?");
            self.problem(
                problem.help("add `load: 0.6`: flows arrive so often that they fill that part of it"),
            );
        }
        let link = self.value(fields, "link", "a rate such as `10Gbps`", scenario.rate);
        let handshake = self.flag(fields, "handshake", true);
        let pace = match (load, rate) {
            (Some(load), None) => FlowPace::Load(load, link),
            (None, Some(rate)) => FlowPace::Rate(rate),
            (Some(_), Some(_)) => {
                let at = fields.get("rate").map_or(fields.at, |tree| tree.at);
                let problem = Problem::new(at, format!("{} has a `load` and a `rate`", fields.what));
                self.problem(problem.label("one of them").help("leave one of them out"));
                return None;
            }
            (None, None) => {
                if fields.get("load").is_none() && fields.get("rate").is_none() {
                    let problem = Problem::new(fields.at, format!("{} does not say how often", fields.what));
                    self.problem(
                        problem.label("no load").help("add `load: 0.6`, or `rate: 500` flows a second"),
                    );
                }
                return None;
            }
        };
        Some(Kind::Flows { sizes: sizes?, pace, handshake })
    }

    /// How long an `on_off` sends or pauses: each change is an event.
    fn phase(&mut self, fields: &Fields<'_>, key: &str) -> Span {
        let span = self.value(fields, key, TIME, Span::millis(500));
        if let Some(tree) = fields.get(key).filter(|_| span < SHORTEST_PHASE) {
            let problem = Problem::new(tree.at, format!("`{key}` is {span}")).label("too short");
            self.problem(
                problem.help(format!("write a time of {SHORTEST_PHASE} or more; half a second is usual")),
            );
        }
        span
    }

    fn pause_of_incast(&mut self, fields: &Fields<'_>) -> Span {
        if let (Some(tree), Some(_)) = (fields.get("pause"), fields.get("rate")) {
            let problem = Problem::new(tree.at, "a `pause` between requests that have a `rate`");
            self.problem(problem.label("one of them").help("leave one of them out"));
        }
        self.value(fields, "pause", TIME, Span::ZERO)
    }

    fn size(&mut self, fields: &Fields<'_>, key: &str, default: Bytes) -> Bytes {
        let size = self.value(fields, key, SIZE, default);
        let datagram = key == "size" && !fields.what.ends_with("incast");
        let most = if datagram { Bytes::new(65_000) } else { Bytes::new(1 << 30) };
        if let Some(tree) = fields.get(key).filter(|_| size == Bytes::ZERO || size > most) {
            let problem = Problem::new(tree.at, format!("`{key}` is {size}")).label("out of range");
            self.problem(problem.help(format!("write a size from 1B to {most}")));
        }
        size
    }

    fn pace(&mut self, fields: &Fields<'_>, line: BitRate) -> Option<Pace> {
        let tree = fields.get("rate")?;
        let text = self.text(tree)?;
        if text == "flood" {
            return Some(Pace::Flood);
        }
        if text == "line" {
            return Some(Pace::Bits(line));
        }
        if let Ok(rate) = text.parse::<PacketRate>() {
            return Some(Pace::Packets(rate));
        }
        self.parse::<BitRate>(
            tree,
            "`line`, `flood`, a rate such as `5Mbps` or a packet rate such as `2kpps`",
        )
        .map(Pace::Bits)
    }

    fn rate(&mut self, fields: &Fields<'_>) -> Option<u32> {
        fields.get("rate")?;
        let rate = self.optional::<u32>(fields, "rate", COUNT)?;
        if rate == 0 {
            let at = fields.get("rate").map_or(fields.at, |tree| tree.at);
            self.problem(Problem::new(at, "`rate` is 0").label("never asks").help(format!("write {COUNT}")));
        }
        Some(rate)
    }

    fn arrivals(&mut self, fields: &Fields<'_>) -> bool {
        let Some(tree) = fields.get("arrivals") else { return false };
        if fields.get("rate").is_none() {
            let problem = Problem::new(tree.at, "`arrivals` of requests that have no `rate`");
            self.problem(problem.label("the next follows the last answer").help("add `rate: 500`"));
        }
        self.choice(tree, "way to arrive", &[("random", false), ("even", true)]).unwrap_or(false)
    }

    fn role(&mut self, fields: &Fields<'_>, default: Role) -> Role {
        let roles = [("client", Role::Client), ("server", Role::Server)];
        fields.get("role").and_then(|tree| self.choice(tree, "role", &roles)).unwrap_or(default)
    }

    fn sizes(&mut self, fields: &Fields<'_>) -> KeyValueSizes {
        let mixes = [("fixed", KeyValueSizes::Fixed), ("etc", KeyValueSizes::Etc)];
        fields.get("sizes").and_then(|tree| self.choice(tree, "mix of sizes", &mixes)).unwrap_or_default()
    }

    fn protocol(&mut self, fields: &Fields<'_>) -> bool {
        let protocols = [("udp", false), ("tcp", true)];
        fields.get("protocol").and_then(|tree| self.choice(tree, "protocol", &protocols)).unwrap_or(false)
    }
}
