//! Reading `partition`: a SmartNIC's cores, its coprocessor and its cache.
//!
//! Why: a tenant without cores would never be served.
//! From: `docs/scenarios.md`, "A SmartNIC's cores".
//! Not here: cores and units at work (`sim`).
//! Invariant: every tenant of the host has cores, and no other name does.

use plimsoll_document::{Mark, Name, Tree};
use plimsoll_units::{Bytes, Span};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::{CACHE, COPROCESSOR, MEMORY_USE, PARTITION};
use crate::model::Scenario;
use crate::network::Host;
use crate::partition::{Access, Coprocessor, MemoryUse, Partition, SharedCache};

const SIZE: &str = "a size such as `16KiB`";
/// Cores of one tenant.
const MOST_CORES: u32 = 1_024;
/// The longest request: what a limiter counts in 32 bits.
const LONGEST_CALL: Bytes = Bytes::new(1 << 30);
/// A program's memory: a line at least, and what translation entries of 16 cores reach at most.
const MEMORY: [Bytes; 2] = [Bytes::new(128), Bytes::kib(64 << 10)];
/// Lines for each packet.
const MOST_LINES: u32 = 65_536;

impl Reader {
    pub(super) fn partition(&mut self, tree: &Tree) -> Partition {
        let fields = self.fields(tree, tree.at, "`partition`", &PARTITION);
        let mut cores = Vec::new();
        for (name, tree) in fields.get("cores").map_or(&[][..], |tree| self.entries(tree, "`cores`")) {
            let want = format!("a number of cores from 1 to {MOST_CORES}");
            let count = self.parse::<u32>(tree, &want).unwrap_or(1);
            if !(1..=MOST_CORES).contains(&count) {
                let problem = Problem::new(tree.at, format!("`{}` has {count} cores", name.value));
                self.problem(problem.label("out of range").help(format!("write {want}")));
            }
            cores.push((name.value.clone(), count));
        }
        Partition {
            cores,
            coprocessor: fields.get("coprocessor").map(|tree| self.coprocessor(tree)),
            cache: fields.get("cache").map(|tree| self.cache(tree)),
        }
    }

    fn cache(&mut self, tree: &Tree) -> SharedCache {
        let fields = self.fields(tree, tree.at, "`cache`", &CACHE);
        let entries = fields.get("programs").map_or(&[][..], |tree| self.entries(tree, "`programs`"));
        let programs =
            entries.iter().map(|(name, tree)| (name.value.clone(), self.memory_use(name, tree))).collect();
        SharedCache { miss: self.value(&fields, "miss", "a time such as `60ns`", Span::ns(60)), programs }
    }

    fn memory_use(&mut self, name: &Name, tree: &Tree) -> MemoryUse {
        let fields = self.fields(tree, name.at, &format!("`{}`", name.value), &MEMORY_USE);
        let memory = self.value(&fields, "memory", SIZE, MEMORY[0]);
        if memory < MEMORY[0] || memory > MEMORY[1] {
            let at = fields.get("memory").map_or(tree.at, |tree| tree.at);
            let problem = Problem::new(at, format!("`{}` uses {memory} of memory", name.value));
            self.problem(problem.label("out of range").help("write a size from 128 B to 64 MiB"));
        }
        let orders = [("random", Access::Random), ("in_turn", Access::InTurn)];
        let access = fields.get("access").and_then(|tree| self.choice(tree, "order of lines", &orders));
        MemoryUse {
            memory,
            lines: self.count(&fields, "lines", 1, MOST_LINES),
            access: access.unwrap_or_default(),
            waits: self.flag(&fields, "waits", true),
        }
    }

    fn coprocessor(&mut self, tree: &Tree) -> Coprocessor {
        let fields = self.fields(tree, tree.at, "`coprocessor`", &COPROCESSOR);
        let entries = fields.get("calls").map_or(&[][..], |tree| self.entries(tree, "`calls`"));
        let calls = entries.iter().map(|(name, tree)| (name.value.clone(), self.call(name, tree))).collect();
        let rate = self.optional(&fields, "rate", "a rate such as `10Gbps`");
        // Where length takes no time, a quantum counts requests.
        let quantum = if rate.is_some() { Bytes::kib(32) } else { Bytes::new(2) };
        let unit = Coprocessor {
            time: self.value(&fields, "time", "a time such as `5us`", Span::ZERO),
            rate,
            calls,
            quantum: self.value(&fields, "quantum", SIZE, quantum),
            longest: self.count(&fields, "longest", 4, 1_024),
        };
        if unit.time == Span::ZERO && unit.rate.is_none() {
            let problem = Problem::new(tree.at, "requests to the coprocessor take no time").label("no time");
            self.problem(
                problem.help("write `time: 5us` for each request, `rate: 10Gbps` for its bytes, or both"),
            );
        }
        let quantum = fields.get("quantum").map_or(tree.at, |tree| tree.at);
        if unit.quantum == Bytes::ZERO || unit.quantum > LONGEST_CALL {
            let problem = Problem::new(quantum, format!("`quantum` is {}", unit.quantum));
            self.problem(problem.label("out of range").help("write a size from 1 B to 1 GiB"));
        }
        unit
    }

    fn call(&mut self, name: &Name, tree: &Tree) -> Bytes {
        let call = self.parse::<Bytes>(tree, SIZE).unwrap_or(Bytes::new(1));
        if call == Bytes::ZERO || call > LONGEST_CALL {
            let problem = Problem::new(tree.at, format!("`{}` calls with {call}", name.value));
            self.problem(
                problem.label("out of range").help("write a size from 1 B to 1 GiB, or leave it away"),
            );
        }
        call
    }

    /// Whether partitions fit their hosts and tenants.
    pub(super) fn check_partitions(&mut self, file: &Fields<'_>, scenario: &Scenario) {
        for host in &scenario.hosts {
            let Some(partition) = &host.partition else { continue };
            let written = file.get("hosts").and_then(|hosts| hosts.get(&host.name));
            let at = written.and_then(|host| host.get("partition")).map_or(host.place, |tree| tree.at);
            self.check_receive(host, at, scenario);
            let calls = partition.coprocessor.iter().flat_map(|unit| &unit.calls).map(|(name, _)| name);
            let memory = partition.cache.iter().flat_map(|cache| &cache.programs).map(|(name, _)| name);
            let named = partition.cores.iter().map(|(name, _)| name);
            let here = scenario
                .tenants
                .iter()
                .filter(|tenant| tenant.homes.iter().any(|home| home.host == host.name));
            let here: Vec<&str> = here.map(|tenant| tenant.name.as_str()).collect();
            for name in named.chain(calls).chain(memory) {
                if !here.contains(&name.as_str()) {
                    let message = format!("on host `{}` there is no tenant", host.name);
                    self.unknown(at, &message, name, here.iter().copied());
                }
            }
            for tenant in here {
                if partition.cores.iter().all(|(name, _)| name != tenant) {
                    let message = format!("tenant `{tenant}` has no cores on host `{}`", host.name);
                    let help = format!(
                        "add `{tenant}: 1` to `cores`: only a tenant's own cores process its packets"
                    );
                    self.problem(Problem::new(at, message).label("a tenant without cores").help(help));
                }
            }
        }
    }

    /// Whether a host with a partition has what it needs, and nothing that it replaces.
    fn check_receive(&mut self, host: &Host, at: Mark, scenario: &Scenario) {
        let (message, help) = match host.receive {
            None => (
                "has a partition, and takes packets in at once",
                "add `receive: {cost: 500ns}`: the time that a core needs for a packet",
            ),
            Some(ring) if ring.drain > Span::ZERO || ring.round > Span::ZERO || ring.ecn.is_some() => (
                "has a partition, and a CPU that fetches packets",
                "leave `drain`, `round` and `ecn` away: a SmartNIC's hardware tells tenants apart",
            ),
            Some(_) if scenario.control.is_some() => (
                "has a partition, and the scenario has `control`",
                "leave one of them away: receivers control senders by what one CPU can take",
            ),
            Some(_) => return,
        };
        let problem = Problem::new(at, format!("host `{}` {message}", host.name)).label("does not fit");
        self.problem(problem.help(help));
    }
}
