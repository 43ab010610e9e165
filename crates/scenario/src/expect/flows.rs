//! Measures of flows that arrive: `fct_p99`, `slowdown_mean_upto_100kB`, `unfinished`.
//!
//! Why: papers judge schedulers by the completion times of short flows and of long ones, each by themselves.
//! From: pFabric and Homa: flow completion times and slowdowns by size.
//! Not here: working them out (`measure`).
//! Invariant: a name means one statistic of the flows of one range of sizes.

use plimsoll_units::Bytes;

use super::{Gauge, Unit};

/// A statistic of the flows of a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlowGauge {
    pub(crate) what: FlowFigure,
    pub(crate) sizes: SizeRange,
}

/// What is worked out from flows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FlowFigure {
    /// Completion time, from a flow's arrival to its last byte's.
    Time(Statistic),
    /// Completion time over that on an empty network.
    Slowdown(Statistic),
    /// Flows that arrived.
    Arrived,
    /// Flows that arrived and were not complete when the run ended.
    Unfinished,
    /// Bits a second of the flows that arrived.
    Offered,
}

/// A value for many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Statistic {
    Mean,
    Percentile(f64),
}

/// Flows above one size, up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeRange {
    pub(crate) above: u64,
    pub(crate) upto: u64,
}

impl SizeRange {
    pub(crate) const ALL: Self = Self { above: 0, upto: u64::MAX };

    /// The classes of tables and reports, the least first.
    pub(crate) const CLASSES: [Self; 5] = {
        const fn between(above: u64, upto: u64) -> SizeRange {
            SizeRange { above, upto }
        }
        [
            between(0, 10_000),
            between(10_000, 100_000),
            between(100_000, 1_000_000),
            between(1_000_000, 10_000_000),
            between(10_000_000, u64::MAX),
        ]
    };

    pub(crate) fn holds(self, size: u64) -> bool {
        size > self.above && size <= self.upto
    }

    /// Its name in tables, where each class begins above the one before: `≤ 10 kB`, `≤ 100 kB`, `> 10 MB`.
    pub(crate) fn name(self) -> String {
        let size = |bytes: u64| match bytes {
            1_000_000.. => format!("{} MB", bytes / 1_000_000),
            _ => format!("{} kB", bytes / 1_000),
        };
        match self {
            Self::ALL => "all".to_owned(),
            Self { above, upto: u64::MAX } => format!("> {}", size(above)),
            Self { upto, .. } => format!("≤ {}", size(upto)),
        }
    }

    /// The end of the name of a measure of these flows: `_above_10kB_upto_100kB`.
    pub(crate) fn suffix(self) -> String {
        let above = if self.above > 0 { format!("_above_{}kB", self.above / 1_000) } else { String::new() };
        let upto =
            if self.upto < u64::MAX { format!("_upto_{}kB", self.upto / 1_000) } else { String::new() };
        above + &upto
    }
}

impl FlowGauge {
    /// The measure that a name stands for.
    pub(super) fn named(name: &str) -> Option<Self> {
        let size = |text: &str| text.parse::<Bytes>().ok().map(Bytes::as_u64);
        let (name, upto) = match name.split_once("_upto_") {
            Some((name, text)) => (name, size(text)?),
            None => (name, u64::MAX),
        };
        let (name, above) = match name.split_once("_above_") {
            Some((name, text)) => (name, size(text)?),
            None => (name, 0),
        };
        let statistic = |name: &str| match name {
            "mean" => Some(Statistic::Mean),
            _ => match Gauge::named(name)? {
                Gauge::Percentile(percent) => Some(Statistic::Percentile(percent)),
                _ => None,
            },
        };
        let what = match name.split_once('_') {
            Some(("fct", name)) => FlowFigure::Time(statistic(name)?),
            Some(("slowdown", name)) => FlowFigure::Slowdown(statistic(name)?),
            _ => match name {
                "flows" => FlowFigure::Arrived,
                "unfinished" => FlowFigure::Unfinished,
                "offered" => FlowFigure::Offered,
                _ => return None,
            },
        };
        (above < upto).then_some(Self { what, sizes: SizeRange { above, upto } })
    }

    pub(super) const fn unit(self) -> Unit {
        match self.what {
            FlowFigure::Time(_) => Unit::Time,
            FlowFigure::Offered => Unit::Rate,
            FlowFigure::Slowdown(_) | FlowFigure::Arrived | FlowFigure::Unfinished => Unit::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_statistic_and_a_range() {
        let range = |above, upto| SizeRange { above, upto };
        let named = |name: &str| FlowGauge::named(name).map(|gauge| (gauge.what, gauge.sizes));
        let (mean, p99) = (Statistic::Mean, Statistic::Percentile(99.0));
        assert_eq!(named("fct_p99"), Some((FlowFigure::Time(p99), SizeRange::ALL)));
        assert_eq!(named("slowdown_mean_upto_10kB"), Some((FlowFigure::Slowdown(mean), range(0, 10_000))));
        let middle = Some((FlowFigure::Time(p99), range(10_000, 100_000)));
        assert_eq!(named("fct_p99_above_10kB_upto_100kB"), middle);
        assert_eq!(
            named("unfinished_above_10MB"),
            Some((FlowFigure::Unfinished, range(10_000_000, u64::MAX)))
        );
        assert_eq!(named("offered"), Some((FlowFigure::Offered, SizeRange::ALL)));
        for wrong in
            ["fct", "fct_max", "fct_p999", "fct_p99_upto_much", "fct_mean_above_9kB_upto_8kB", "flows_"]
        {
            assert_eq!(named(wrong), None, "{wrong}");
        }
        for class in SizeRange::CLASSES {
            let name = format!("fct_p99{}", class.suffix());
            assert_eq!(named(&name).map(|(_, sizes)| sizes), Some(class), "{name}");
        }
    }
}
