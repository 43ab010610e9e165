//! Reading a host's `programs`: what tenants' programs cost in virtual time.
//!
//! Why: a coprocessor that takes no time would never be shared.
//! From: `docs/programs.md`, "In `sim`".
//! Not here: programs and coprocessors at work (`sim`).
//! Invariant: a coprocessor that is stated takes time, and has an engine.

use plimsoll_document::Tree;
use plimsoll_units::Span;

use super::fields::Reader;
use crate::Problem;
use crate::keys::{MOST_CYCLES, MOST_ENGINES, PROGRAMS, UNIT, UNITS};
use crate::program_cost::{ProgramCost, UnitCost};

/// The coprocessors, in the order of `UnitWeights::named`.
const NAMES: [&str; 3] = ["deflate", "aes", "regex"];

impl Reader {
    pub(super) fn programs(&mut self, tree: &Tree) -> ProgramCost {
        let fields = self.fields(tree, tree.at, "`programs`", &PROGRAMS);
        let ProgramCost { frequency, cycles, mut units } = ProgramCost::default();
        if let Some(tree) = fields.get("units") {
            let stated = self.fields(tree, tree.at, "`units`", &UNITS);
            for (name, unit) in NAMES.iter().zip(&mut units) {
                *unit = stated.get(name).map_or(*unit, |tree| self.unit(name, tree));
            }
        }
        ProgramCost {
            frequency: self.value(&fields, "frequency", "a frequency such as `3GHz`", frequency),
            cycles: self.count(&fields, "cycles_per_instruction", cycles, MOST_CYCLES),
            units,
        }
    }

    fn unit(&mut self, name: &str, tree: &Tree) -> UnitCost {
        let fields = self.fields(tree, tree.at, &format!("coprocessor `{name}`"), &UNIT);
        let unit = UnitCost {
            engines: self.count(&fields, "engines", 1, MOST_ENGINES),
            time: self.value(&fields, "time", "a time such as `1us`", Span::ZERO),
            rate: self.optional(&fields, "rate", "a rate such as `10Gbps`"),
        };
        if unit.time == Span::ZERO && fields.get("rate").is_none() {
            let message = format!("requests to coprocessor `{name}` take no time");
            let help = "write `time: 1us` for each request, `rate: 10Gbps` for its bytes, or both";
            self.problem(Problem::new(tree.at, message).label("no time").help(help));
        }
        unit
    }
}
