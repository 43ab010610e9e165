//! Judges expectations by what was measured.
//!
//! Why: one verdict for the terminal, the report, JSON and the exit code.
//! From: comparing interleaved runs by the medians of each side, as good measurements do.
//! Not here: what a measure is (`measure`).
//! Invariant: each side is worked out in each pair on its own; medians over the pairs are compared, except that of
//! seeds each one counts.

use std::ops::Range;

use serde::Serialize;

use super::{Claim, Compare, Expectation, Expr, ExprKind, Function, Operator, Path, Quantity, Unit};
use crate::measure::{jain, median, percentile};

/// Gives the values of a path in one pair: one value, or one for each window; `NaN` where nothing was measured.
pub(crate) trait Measured {
    /// `None` when the system did not run in this pair.
    fn values(&self, path: &Path, pair: u32) -> Option<Vec<f64>>;
    /// Pairs that were run.
    fn pairs(&self) -> u32;
    /// The uplink's rate in bits a second.
    fn line(&self) -> f64;
}

/// Outcome of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It holds.
    Passed,
    /// It does not hold.
    Failed,
    /// A system that it names could not be run here.
    Skipped,
}

/// An expectation with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The expectation as the file has it.
    pub expect: String,
    /// Why it should hold.
    pub because: Option<String>,
    /// The outcome.
    pub status: Status,
    /// Median over the pairs of the left side.
    pub left: Option<f64>,
    /// Median over the pairs of the right side.
    pub right: Option<f64>,
    /// The difference that `~` allows.
    pub tolerance: Option<f64>,
    /// The unit of both sides.
    pub unit: Unit,
    /// The comparison as text: `12.3ms <= 18.2ms`.
    pub detail: String,
    /// The seed that these values come from, where it has to hold with each and does not with this one.
    pub seed: Option<u64>,
}

/// Judges one expectation by the medians over these pairs.
pub(crate) fn judge_with(expectation: &Expectation, measured: &dyn Measured, pairs: Range<u32>) -> Verdict {
    let claim = &expectation.claim;
    let sides: Option<Vec<[f64; 3]>> = pairs.map(|pair| sides(claim, measured, pair)).collect();
    let unit = claim.left.unit();
    let verdict = |status, values: Option<[f64; 3]>, detail| Verdict {
        expect: expectation.text.clone(),
        because: expectation.because.clone(),
        status,
        left: values.map(|v| v[0]).filter(|v| v.is_finite()),
        right: values.map(|v| v[1]).filter(|v| v.is_finite()),
        tolerance: values.map(|v| v[2]).filter(|v| v.is_finite() && claim.tolerance.is_some()),
        unit,
        detail,
        seed: None,
    };
    let Some(sides) = sides.filter(|sides| !sides.is_empty()) else {
        let absent = expectation.systems().join(", ");
        return verdict(Status::Skipped, None, format!("not every system ran ({absent})"));
    };
    let side = |n: usize| median(&sides.iter().map(|side| side[n]).collect::<Vec<_>>());
    let values = [side(0), side(1), side(2)];
    let [left, right, tolerance] = values;
    let missing = left.is_nan() || right.is_nan() || tolerance.is_nan();
    let status =
        if !missing && claim.op.holds(left, right, tolerance) { Status::Passed } else { Status::Failed };
    let mut detail = format!("{} {} {}", show(left, unit), claim.op.sign(), show(right, unit));
    if matches!(claim.op, Compare::Near | Compare::Far) {
        detail += &format!(" +- {}", show(tolerance, unit));
    }
    if missing {
        detail += " (nothing was measured)";
    }
    verdict(status, Some(values), detail)
}

/// Judges every expectation of a scenario.
#[must_use]
pub fn judge(scenario: &crate::Scenario, results: &crate::Results) -> Vec<Verdict> {
    let measured = crate::measure::Measures::new(scenario, results);
    let pairs = measured.pairs();
    scenario.expect.iter().map(|expectation| judge_with(expectation, &measured, 0..pairs)).collect()
}

/// Judges every expectation of a scenario by one pair alone.
#[must_use]
pub fn judge_pair(scenario: &crate::Scenario, results: &crate::Results, pair: u32) -> Vec<Verdict> {
    let measured = crate::measure::Measures::new(scenario, results);
    scenario.expect.iter().map(|expectation| judge_with(expectation, &measured, pair..pair + 1)).collect()
}

/// Judges every expectation of a scenario whose pairs are seeds, counted up from `first`: each must meet it.
///
/// An expectation that every seed meets has the medians; one that a seed fails has the values of the first that does.
#[must_use]
pub fn judge_seeds(scenario: &crate::Scenario, results: &crate::Results, first: u64) -> Vec<Verdict> {
    let measured = crate::measure::Measures::new(scenario, results);
    let pairs = measured.pairs();
    let judged = |expectation| {
        let all = judge_with(expectation, &measured, 0..pairs);
        if pairs < 2 {
            return all;
        }
        let alone = |pair: u32| judge_with(expectation, &measured, pair..pair + 1);
        let mut seeds = (0..pairs).map(|pair| (first.wrapping_add(pair.into()), alone(pair)));
        match seeds.find(|(_, verdict)| verdict.status == Status::Failed) {
            Some((seed, verdict)) => {
                let rest = seeds.filter(|(_, verdict)| verdict.status == Status::Failed).count();
                let detail = format!("{} with seed {seed}; {} of {pairs} fail", verdict.detail, rest + 1);
                Verdict { detail, seed: Some(seed), ..verdict }
            }
            // Both sides hold in each run, and their medians, of different runs, need not.
            None if all.status == Status::Failed => alone(0),
            None => all,
        }
    };
    scenario.expect.iter().map(judged).collect()
}

/// A value in one pair; `None` where a system did not run, or nothing was measured.
pub(crate) fn value_in(quantity: &Quantity, measured: &dyn Measured, pair: u32) -> Option<f64> {
    let values = Eval { measured, pair }.expr(&quantity.expr)?;
    values.first().copied().filter(|value| value.is_finite())
}

/// Left, right and tolerance in one pair.
fn sides(claim: &Claim, measured: &dyn Measured, pair: u32) -> Option<[f64; 3]> {
    let eval = Eval { measured, pair };
    let one = |values: Vec<f64>| values.first().copied().unwrap_or(f64::NAN);
    let left = one(eval.expr(&claim.left)?);
    let right = one(eval.expr(&claim.right)?);
    let tolerance = match &claim.tolerance {
        None => 0.0,
        Some(tolerance) => eval.tolerance(tolerance, claim, right)?,
    };
    Some([left, right, tolerance])
}

struct Eval<'a> {
    measured: &'a dyn Measured,
    pair: u32,
}

impl Eval<'_> {
    /// A plain tolerance is a part of the right side, unless both sides are plain and it was written without `%`:
    /// those read the same after all, so that a plain one is always a part.
    fn tolerance(&self, tolerance: &Expr, claim: &Claim, right: f64) -> Option<f64> {
        let value = self.expr(tolerance)?.first().copied().unwrap_or(f64::NAN);
        let part = tolerance.unit() == Unit::Plain && (claim.right.unit() != Unit::Plain || value < 1.0);
        Some(if part { value * right.abs() } else { value })
    }

    fn expr(&self, expr: &Expr) -> Option<Vec<f64>> {
        Some(match &expr.kind {
            ExprKind::Number(value, _) => vec![*value],
            ExprKind::Line => vec![self.measured.line()],
            ExprKind::Path(path) => self.measured.values(path, self.pair)?,
            ExprKind::Negate(inner) => self.expr(inner)?.into_iter().map(|value| -value).collect(),
            ExprKind::Binary(op, a, b) => each(self.expr(a)?, self.expr(b)?, |a, b| match op {
                Operator::Add => a + b,
                Operator::Sub => a - b,
                Operator::Mul => a * b,
                // An expression without a value meets no expectation: infinity would be above everything.
                Operator::Div if b == 0.0 => f64::NAN,
                Operator::Div => a / b,
            }),
            ExprKind::Call(function, arguments) => {
                let arguments: Option<Vec<Vec<f64>>> = arguments.iter().map(|a| self.expr(a)).collect();
                call(*function, arguments?)
            }
            ExprKind::Fraction(claim) => vec![self.fraction(claim)?],
            ExprKind::Settled(claim) => vec![self.settled(claim)?],
        })
    }

    /// Windows without a measurement on one side count for neither.
    fn fraction(&self, claim: &Claim) -> Option<f64> {
        let windows = self.windows(claim)?;
        let known: Vec<f64> = windows.into_iter().filter(|value| !value.is_nan()).collect();
        Some(known.iter().sum::<f64>() / known.len() as f64)
    }

    /// Until the end of the last window in which it does not hold, or in which nothing was measured.
    fn settled(&self, claim: &Claim) -> Option<f64> {
        let holds = |value: &f64| *value == 1.0;
        let unsettled = self.windows(claim)?.iter().rposition(|window| !holds(window));
        Some(unsettled.map_or(0.0, |last| (last + 1) as f64 * claim.per().unwrap_or_default().as_secs_f64()))
    }

    /// 1 for each window in which a comparison holds, 0 where it does not, `NaN` where nothing was measured.
    fn windows(&self, claim: &Claim) -> Option<Vec<f64>> {
        let (left, right) = (self.expr(&claim.left)?, self.expr(&claim.right)?);
        Some(each(left, right, |a, b| {
            let tolerance = claim.tolerance.as_ref().map_or(Some(0.0), |t| self.tolerance(t, claim, b));
            match tolerance {
                Some(tolerance) if !a.is_nan() && !b.is_nan() => {
                    f64::from(u8::from(claim.op.holds(a, b, tolerance)))
                }
                _ => f64::NAN,
            }
        }))
    }
}

/// Element by element; one value stands beside each of a series.
fn each(a: Vec<f64>, b: Vec<f64>, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    match (a.len(), b.len()) {
        (1, _) => b.into_iter().map(|b| f(a[0], b)).collect(),
        (_, 1) => a.into_iter().map(|a| f(a, b[0])).collect(),
        _ => a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect(),
    }
}

fn call(function: Function, mut arguments: Vec<Vec<f64>>) -> Vec<f64> {
    if matches!(function, Function::Abs) {
        return arguments.pop().unwrap_or_default().into_iter().map(f64::abs).collect();
    }
    if matches!(function, Function::Fm) {
        let (b, a) = (arguments.pop().unwrap_or_default(), arguments.pop().unwrap_or_default());
        return each(a, b, |a, b| (a - b).abs());
    }
    let mut values: Vec<f64> = arguments.into_iter().flatten().filter(|value| !value.is_nan()).collect();
    values.sort_by(f64::total_cmp);
    let empty = values.is_empty();
    let value = match function {
        _ if empty => f64::NAN,
        Function::Max => values[values.len() - 1],
        Function::Min => values[0],
        Function::Mean => values.iter().sum::<f64>() / values.len() as f64,
        Function::Median => median(&values),
        Function::Percentile(percent) => percentile(&values, percent),
        Function::Sum => values.iter().sum(),
        Function::Jain => jain(&values),
        Function::Abs | Function::Fm => f64::NAN, // answered above
    };
    vec![value]
}

impl Expr {
    /// Its unit; meaningful for checked expressions.
    pub(crate) fn unit(&self) -> Unit {
        match &self.kind {
            ExprKind::Number(_, unit) => *unit,
            ExprKind::Line => Unit::Rate,
            ExprKind::Path(path) => path.measure.unit(),
            ExprKind::Negate(inner) => inner.unit(),
            ExprKind::Binary(Operator::Div, a, b) if a.unit() == b.unit() => Unit::Plain,
            ExprKind::Binary(_, a, b) if a.unit() == Unit::Plain => b.unit(),
            ExprKind::Binary(_, a, _) => a.unit(),
            ExprKind::Call(Function::Jain, _) | ExprKind::Fraction(_) => Unit::Plain,
            ExprKind::Settled(_) => Unit::Time,
            ExprKind::Call(_, arguments) => arguments.first().map_or(Unit::Plain, Self::unit),
        }
    }
}

/// A value with its unit, in three or four digits.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    if value.is_nan() {
        return "nothing".to_owned();
    }
    if value == f64::INFINITY && unit == Unit::Time {
        return "never".to_owned();
    }
    let steps: &[(f64, &str)] = match unit {
        Unit::Plain => return plain(value),
        Unit::Rate => &[(1e9, "Gbps"), (1e6, "Mbps"), (1e3, "kbps"), (1.0, "bps")],
        Unit::Time => &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")],
        Unit::Size => &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")],
    };
    let last = steps[steps.len() - 1];
    let (scale, name) = steps.iter().copied().find(|(scale, _)| value.abs() >= *scale).unwrap_or(last);
    format!("{}{name}", plain(value / scale))
}

fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
