//! Reading the timing of systems that are models.
//!
//! Why: a key that the system's kind does not use is a mistake, and so is an impossible time.
//! From: `docs/scenarios.md`, "Models".
//! Not here: the models (`sim`).
//! Invariant: an operation that must take time never takes none.

use plimsoll_document::{Tree, Value};
use plimsoll_units::{Bytes, Span};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::{FETCH, WAKE};
use crate::lateness::Lateness;
use crate::system::{Fetch, Model, SystemKind};

const TIME: &str = "a time such as `50ns`";
/// Longer than any operation of a NIC or a kernel.
const LONGEST: Span = Span::millis(10);
/// Later than any sleep ends on a machine of which a model makes sense.
const LATEST: Span = Span::millis(100);

/// Keys that belong to some kinds of systems alone.
const KEYS: [(&str, &[SystemKind]); 5] = [
    ("lock", &[SystemKind::Htb, SystemKind::Sq]),
    ("cost", &[SystemKind::Ptb]),
    ("limiters", &[SystemKind::Hwrl]),
    ("reassign", &[SystemKind::Hwrl]),
    ("fetch", &[SystemKind::ClassFetch]),
];

impl Reader {
    /// A system's timing.
    pub(super) fn model(&mut self, fields: &Fields<'_>, kind: SystemKind) -> Model {
        for (key, kinds) in KEYS {
            let Some(tree) = fields.get(key).filter(|_| !kinds.contains(&kind)) else { continue };
            let known = kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join("` or `");
            let problem = Problem::new(tree.at, format!("a system of kind `{}` has no `{key}`", kind.name()));
            self.problem(
                problem.label("of another kind").help(format!("`{key}` belongs to `kind: {known}`")),
            );
        }
        let usual = Model::default();
        Model {
            lock: self.short(fields, "lock", usual.lock),
            cost: self.short(fields, "cost", usual.cost),
            limiters: self.count(fields, "limiters", usual.limiters, 4_096),
            reassign: self.optional::<Span>(fields, "reassign", TIME).map(|span| span.max(Span::micros(1))),
            fetch: fields.get("fetch").map_or(usual.fetch, |tree| self.fetch(tree)),
        }
    }

    fn fetch(&mut self, tree: &Tree) -> Fetch {
        let fields = self.fields(tree, tree.at, "`fetch`", &FETCH);
        let usual = Fetch::default();
        let fetch = Fetch {
            modules: self.count(&fields, "modules", usual.modules, 256),
            latency: self.short(&fields, "latency", usual.latency),
            sigma: self.short(&fields, "sigma", usual.sigma),
            cycle: self.short(&fields, "cycle", usual.cycle),
            cycles: self.count(&fields, "cycles", usual.cycles, 1_000),
            burst: self.value(&fields, "burst", "a size such as `3000B`", usual.burst),
        };
        for (key, span) in [("latency", fetch.latency), ("cycle", fetch.cycle)] {
            if let Some(tree) = fields.get(key).filter(|_| span == Span::ZERO) {
                let problem = Problem::new(tree.at, format!("`{key}` takes no time")).label("too fast");
                self.problem(problem.help(format!("write {TIME}")));
            }
        }
        if let Some(tree) = fields.get("sigma").filter(|_| fetch.sigma > fetch.latency) {
            let message = format!("`sigma` is {}, and the latency {}", fetch.sigma, fetch.latency);
            let problem = Problem::new(tree.at, message).label("more than the latency itself");
            self.problem(problem.help("write a standard deviation below `latency`"));
        }
        if let Some(tree) = fields.get("burst").filter(|_| fetch.burst > MOST_BURST) {
            let problem = Problem::new(tree.at, format!("`burst` is {}", fetch.burst)).label("out of range");
            self.problem(
                problem.help(format!("a class's tokens are 16 bits (SENIC, table 2): at most {MOST_BURST}")),
            );
        }
        fetch
    }

    /// How late sleeps end: one time for all, or quantiles.
    pub(super) fn lateness(&mut self, file: &Fields<'_>) -> Lateness {
        let Some(tree) = file.get("wake") else { return Lateness::default() };
        if !matches!(tree.value, Value::Map(_)) {
            return Lateness::constant(self.time_up_to(file, "wake", Span::ZERO, LATEST));
        }
        let fields = self.fields(tree, tree.at, "`wake`", &WAKE);
        let quantiles = Lateness::NAMES.map(|(name, _)| self.time_up_to(&fields, name, Span::ZERO, LATEST));
        Lateness::new(quantiles).unwrap_or_else(|| {
            let problem = Problem::new(tree.at, "a quantile of `wake` is less than the one before it");
            self.problem(problem.label("out of order").help("`plimsoll bench wakeups` prints them in order"));
            Lateness::default()
        })
    }

    /// A time that one operation takes.
    fn short(&mut self, fields: &Fields<'_>, key: &str, default: Span) -> Span {
        self.time_up_to(fields, key, default, LONGEST)
    }

    fn time_up_to(&mut self, fields: &Fields<'_>, key: &str, default: Span, most: Span) -> Span {
        let span = self.value(fields, key, TIME, default);
        if let Some(tree) = fields.get(key).filter(|_| span > most) {
            let problem = Problem::new(tree.at, format!("`{key}` is {span}")).label("out of range");
            self.problem(problem.help(format!("write a time of {most} at most, such as `50ns`")));
        }
        span
    }
}

/// The largest number of 16 bits.
const MOST_BURST: Bytes = Bytes::new(65_535);
