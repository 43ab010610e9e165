//! Checks that an expectation's names exist and its units fit.
//!
//! Why: a mistake in the last line must not show after a run of minutes.
//! From: dimensional analysis with four units, and one level of series.
//! Not here: the grammar (`parse`) and numbers (`eval`).
//! Invariant: what passes here can be evaluated; missing measurements are its only failure left.

use plimsoll_document::nearest;
use plimsoll_units::Span;

use super::{Claim, Compare, Expectation, Expr, ExprKind, Function, Gauge, Operator, Path, Quantity, Unit};
use crate::model::{Measure, Scenario};
use crate::{Kind, Problem, names};

/// The names that an expectation may use.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    systems: Vec<String>,
    /// Tenants and workloads, and what they have.
    subjects: Vec<(String, Has)>,
    /// Hosts whose CPU for received packets takes time.
    hosts: Vec<String>,
    /// The families that `repeat` makes, and the number of members.
    families: Vec<(String, u64)>,
    duration: Span,
    measure: Measure,
}

/// What the workloads of a name give.
#[derive(Clone, Copy, Debug, Default)]
struct Has {
    /// Latency samples.
    latency: bool,
    /// Flows that arrive.
    flows: bool,
}

impl Has {
    fn or(self, other: Self) -> Self {
        Self { latency: self.latency || other.latency, flows: self.flows || other.flows }
    }
}

impl Names {
    /// The names of a scenario, which need not be complete yet.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        let index = names::Names::new(scenario);
        let has = |name: &str| {
            let kinds = index.workloads(Some(name)).into_iter().map(|workload| &workload.kind);
            kinds.fold(Has::default(), |all, kind| {
                all.or(Has { latency: kind.has_latency(), flows: matches!(kind, Kind::Flows { .. }) })
            })
        };
        let tenants = scenario.tenants.iter().map(|tenant| &tenant.name);
        let subjects = tenants.chain(scenario.workloads.iter().map(|workload| &workload.name));
        let subjects = subjects.map(|name| (name.clone(), has(name)));
        let families = scenario.families();
        let joined: Vec<(String, Has)> = families.iter().map(|(name, _)| (name.clone(), has(name))).collect();
        let receiving = scenario.hosts.iter().filter(|host| host.receive.is_some());
        Self {
            systems: scenario.systems.iter().map(|system| system.name.clone()).collect(),
            subjects: subjects.chain(joined).collect(),
            hosts: receiving.map(|host| host.name.clone()).collect(),
            families,
            duration: scenario.duration,
            measure: scenario.measure,
        }
    }
}

/// The kind of a part of an expectation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Type {
    unit: Unit,
    /// Number of windows, for a series.
    series: Option<u64>,
}

impl Type {
    const PLAIN: Self = Self { unit: Unit::Plain, series: None };
}

/// Checks a parsed expectation; positions count from the start of its text.
pub(crate) fn check(expectation: &Expectation, names: &Names) -> Vec<Problem> {
    let mut checker = Checker { names, problems: Vec::new() };
    if let Some(Some(_)) = checker.claim(&expectation.claim) {
        let at = expectation.claim.left.at.start..expectation.claim.right.at.end;
        let problem = Problem::new(at, "a series is compared, which has many values and not one");
        checker.problems.push(problem.label("one value for each window").help(
            "reduce it: `max(...)`, `median(...)`, `p90(...)`, or `fraction(a >= b) >= 25%` for a part of the windows",
        ));
    }
    checker.problems
}

/// Checks a value that stands alone.
pub(crate) fn check_quantity(quantity: &Quantity, names: &Names) -> Vec<Problem> {
    let mut checker = Checker { names, problems: Vec::new() };
    if let Some(Type { series: Some(_), .. }) = checker.expr(&quantity.expr) {
        let problem =
            Problem::new(quantity.expr.at.clone(), "this is a series, which has many values and not one");
        let help = "reduce it: `max(...)`, `median(...)` or `p90(...)`";
        checker.problems.push(problem.label("one value for each window").help(help));
    }
    checker.problems
}

struct Checker<'a> {
    names: &'a Names,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    /// The number of windows when a side is a series; `None` when something is wrong.
    fn claim(&mut self, claim: &Claim) -> Option<Option<u64>> {
        let left = self.expr(&claim.left);
        let right = self.expr(&claim.right);
        let tolerance = claim.tolerance.as_ref().map(|tolerance| (tolerance, self.expr(tolerance)));
        let (left, right) = (left?, right?);
        self.same_unit(claim, left, right);
        if let Some((expr, tolerance)) = tolerance {
            let tolerance = tolerance?;
            if tolerance.series.is_some() || (tolerance.unit != Unit::Plain && tolerance.unit != right.unit) {
                let message = format!(
                    "the tolerance is {}, the sides are {}",
                    tolerance.unit.name(),
                    right.unit.name()
                );
                let problem = Problem::new(expr.at.clone(), message).label("how far they may be apart");
                self.problems.push(
                    problem.help("write a part of the right side (`+- 8%`) or the same unit as the sides"),
                );
            }
        }
        let at = claim.left.at.start..claim.right.at.end;
        self.same_windows(at, left.series, right.series)
    }

    fn same_unit(&mut self, claim: &Claim, left: Type, right: Type) {
        if left.unit != right.unit {
            let (a, b) = (left.unit.name(), right.unit.name());
            let message = format!("the left side is {a} and the right side is {b}");
            let problem = Problem::new(claim.right.at.clone(), message).label(b.to_owned());
            self.problems
                .push(problem.help("compare like with like: rates such as `5Mbps`, times such as `20ms`"));
        }
    }

    fn same_windows(
        &mut self,
        at: std::ops::Range<usize>,
        a: Option<u64>,
        b: Option<u64>,
    ) -> Option<Option<u64>> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => {
                let problem = Problem::new(at, format!("one series has {a} windows and the other {b}"));
                let help = "give both the same `[from..to]` and the same `per`";
                self.problems.push(problem.label("not the same windows").help(help));
                None
            }
            _ => Some(a.or(b)),
        }
    }

    fn expr(&mut self, expr: &Expr) -> Option<Type> {
        match &expr.kind {
            ExprKind::Number(_, unit) => Some(Type { unit: *unit, series: None }),
            ExprKind::Line => Some(Type { unit: Unit::Rate, series: None }),
            ExprKind::Path(path) => self.path(expr, path),
            ExprKind::Negate(inner) => self.expr(inner),
            ExprKind::Binary(op, a, b) => {
                let (left, right) = (self.expr(a), self.expr(b));
                self.binary(expr, *op, left?, right?)
            }
            ExprKind::Call(function, arguments) => self.call(expr, *function, arguments),
            ExprKind::Fraction(claim) => {
                let help = "add windows: `fraction(mq.a.p90 per 1s >= 2.5 * plimsoll.a.p90 per 1s) >= 25%`";
                self.over_windows(expr, claim, "fraction", help)?;
                Some(Type::PLAIN)
            }
            ExprKind::Settled(claim) => {
                let help = "add windows: `settled(plimsoll.a.goodput[2s..4s] per 50ms ~ 5Gbps +- 5%) <= 1s`";
                self.over_windows(expr, claim, "settled", help)?;
                Some(Type { unit: Unit::Time, series: None })
            }
        }
    }

    /// A comparison inside of a function that looks at each window.
    fn over_windows(&mut self, expr: &Expr, claim: &Claim, name: &str, help: &str) -> Option<()> {
        if self.claim(claim)?.is_none() || claim.per().is_none() {
            let message = format!("`{name}` needs a series, and both sides are one value");
            let problem = Problem::new(expr.at.clone(), message);
            self.problems.push(problem.label("nothing to count").help(help));
        }
        Some(())
    }

    fn binary(&mut self, expr: &Expr, op: Operator, a: Type, b: Type) -> Option<Type> {
        let series = self.same_windows(expr.at.clone(), a.series, b.series)?;
        if let ExprKind::Binary(Operator::Div, _, by) = &expr.kind
            && matches!(by.kind, ExprKind::Number(0.0, _))
        {
            let problem = Problem::new(by.at.clone(), "this divides by nothing").label("zero");
            self.problems.push(problem.help("divide by something that is not zero"));
        }
        let unit = match op {
            Operator::Add | Operator::Sub if a.unit == b.unit => a.unit,
            Operator::Mul if a.unit == Unit::Plain => b.unit,
            Operator::Mul | Operator::Div if b.unit == Unit::Plain => a.unit,
            Operator::Div if a.unit == b.unit => Unit::Plain,
            _ => {
                let (what, help) = match op {
                    Operator::Add => ("added to", "only like adds to like"),
                    Operator::Sub => ("taken from", "only like is taken from like"),
                    Operator::Mul => ("multiplied with", "multiply with plain numbers or percentages"),
                    Operator::Div => ("divided by", "divide like by like, or by a plain number"),
                };
                let (left, right) = if op == Operator::Sub { (b, a) } else { (a, b) };
                let message = format!("{} cannot be {what} {}", left.unit.name(), right.unit.name());
                self.problems.push(Problem::new(expr.at.clone(), message).label("units differ").help(help));
                return None;
            }
        };
        Some(Type { unit, series })
    }

    fn call(&mut self, expr: &Expr, function: Function, arguments: &[Expr]) -> Option<Type> {
        let types: Vec<Option<Type>> = arguments.iter().map(|argument| self.expr(argument)).collect();
        let types: Vec<Type> = types.into_iter().collect::<Option<_>>()?;
        let first = *types.first()?;
        let wanted = match function {
            Function::Abs => 1..=1,
            Function::Fm => 2..=2,
            _ => 1..=usize::MAX,
        };
        if !wanted.contains(&types.len()) {
            let message = format!("this function takes {} and not {}", wanted.start(), types.len());
            self.problems.push(Problem::new(expr.at.clone(), message).label("wrong number of values"));
            return None;
        }
        if let Some((argument, odd)) = arguments.iter().zip(&types).find(|(_, t)| t.unit != first.unit) {
            let message = format!("{} stands beside {}", odd.unit.name(), first.unit.name());
            let problem =
                Problem::new(argument.at.clone(), message).label("another unit than the first value");
            self.problems.push(problem.help("give a function values of one unit"));
            return None;
        }
        match function {
            Function::Abs => Some(first),
            Function::Fm => {
                let series = self.same_windows(expr.at.clone(), first.series, types[1].series)?;
                Some(Type { unit: first.unit, series })
            }
            Function::Jain => Some(Type::PLAIN),
            _ => Some(Type { unit: first.unit, series: None }),
        }
    }

    fn path(&mut self, expr: &Expr, path: &Path) -> Option<Type> {
        let before = self.problems.len();
        let start = expr.at.start;
        let system = start..start + path.system.len();
        if !self.names.systems.contains(&path.system) {
            self.unknown(
                system.clone(),
                "system",
                &path.system,
                self.names.systems.iter().map(String::as_str),
            );
        }
        if path.measure == Gauge::Load {
            self.host(expr, path);
        } else if let Some(subject) = &path.subject {
            let at = system.end + 1..system.end + 1 + subject.len();
            self.subject(at, subject, path.measure);
        } else if path.measure.of_answers() && path.measure.unit() == Unit::Time {
            let problem = Problem::new(expr.at.clone(), "latency belongs to a tenant or a workload");
            self.problems
                .push(problem.label("whose?").help("write `SYSTEM.TENANT.p99` or `SYSTEM.WORKLOAD.p99`"));
        }
        let series = self.windows(expr, path);
        let series = if path.each { self.members(expr, path) } else { series };
        (self.problems.len() == before).then_some(Type { unit: path.measure.unit(), series })
    }

    /// The host whose load is meant.
    fn host(&mut self, expr: &Expr, path: &Path) {
        let Some(host) = &path.subject else {
            let problem = Problem::new(expr.at.clone(), "a load belongs to a host").label("whose?");
            return self.problems.push(problem.help("write `SYSTEM.HOST.load`, of a host with `receive`"));
        };
        if !self.names.hosts.contains(host) {
            let start = expr.at.start + path.system.len() + 1;
            let known = self.names.hosts.iter().map(String::as_str);
            self.unknown(start..start + host.len(), "host with `receive`", host, known);
        }
    }

    fn subject(&mut self, at: std::ops::Range<usize>, subject: &str, measure: Gauge) {
        let Some((_, has)) = self.names.subjects.iter().find(|(name, _)| name == subject) else {
            return self.unknown(
                at,
                "tenant or workload",
                subject,
                self.names.subjects.iter().map(|(name, _)| &**name),
            );
        };
        if measure.of_flows() && !has.flows {
            let problem = Problem::new(at, format!("no flows arrive from `{subject}`"));
            self.problems
                .push(problem.label("has no such flows").help("workloads of kind `flows` have them"));
        } else if measure.of_answers() && !has.latency {
            let problem = Problem::new(at, format!("`{subject}` asks nothing, so that nothing is answered"));
            let help = "latency and requests come from request_response, probe, shuffle, incast, memcached and sockperf";
            self.problems.push(problem.label("has no latency").help(help));
        } else if measure.of_system() {
            let problem = Problem::new(at, "this is measured for a system and not for its tenants");
            self.problems
                .push(problem.label("too much here").help("leave this name away, as in `SYSTEM.cpu`"));
        }
    }

    /// The number of members of the family that `each` names.
    fn members(&mut self, expr: &Expr, path: &Path) -> Option<u64> {
        let families = || self.names.families.iter().map(|(name, _)| name.as_str());
        let subject = path.subject.as_deref().unwrap_or_default();
        let found = self.names.families.iter().find(|(name, _)| name == subject);
        if found.is_none() {
            let all = families().collect::<Vec<_>>().join("`, `");
            let all = if all.is_empty() { "nothing is".to_owned() } else { format!("`{all}` is") };
            let problem = Problem::new(expr.at.clone(), format!("`{subject}` is not one of many"));
            self.problems.push(
                problem.label("no family").help(format!("`each` takes what `repeat` makes many of; {all}")),
            );
        }
        found.map(|(_, count)| *count)
    }

    /// Checks the window and gives the number of its parts, for a series.
    fn windows(&mut self, expr: &Expr, path: &Path) -> Option<u64> {
        let (from, to) = path.window.unwrap_or((self.names.measure.from, self.names.measure.to));
        let at = expr.at.clone();
        if matches!(path.measure, Gauge::Cpu | Gauge::EndsCpu) && !self.names.measure.cpu {
            let problem = Problem::new(at, "CPU time is not measured").label("not measured");
            self.problems.push(problem.help("add `cpu: true` under `measure:`"));
        } else if path.measure.of_departures() && !self.names.measure.gaps {
            let problem = Problem::new(at, "the moments of packets are not kept").label("not measured");
            self.problems.push(problem.help("add `gaps: true` under `measure:`"));
        } else if path.measure == Gauge::Held && !self.names.measure.held {
            let problem = Problem::new(at, "what engines hold is not counted").label("not measured");
            self.problems.push(problem.help("add `held: true` under `measure:`"));
        } else if path.measure.of_ingress() && !self.names.measure.ingress {
            let problem = Problem::new(at, "waits on the way in are not kept").label("not measured");
            self.problems.push(problem.help("add `ingress: true` under `measure:`"));
        } else if path.measure.of_egress() && !self.names.measure.egress {
            let problem = Problem::new(at, "waits on the way out are not kept").label("not measured");
            self.problems.push(problem.help("add `egress: true` under `measure:`"));
        } else if (path.window.is_some() || path.per.is_some()) && !path.measure.has_windows() {
            let problem = Problem::new(at, "this is known for whole runs only").label("no windows here");
            self.problems.push(problem.help("leave `[..]` and `per` away"));
        } else if to > self.names.duration {
            let message = format!("the window ends at {to} and the run at {}", self.names.duration);
            let problem = Problem::new(at, message)
                .label("too late")
                .help("end the window earlier, or raise `duration`");
            self.problems.push(problem);
        } else if let Some(per) = path.per {
            return self.parts(expr, path, per, to - from);
        }
        None
    }

    fn parts(&mut self, expr: &Expr, path: &Path, per: Span, whole: Span) -> Option<u64> {
        let window = self.names.measure.window;
        let odd = matches!(path.measure, Gauge::Throughput | Gauge::Goodput | Gauge::Held | Gauge::Load)
            && !per.as_u64().is_multiple_of(window.as_u64());
        if per > whole || per == Span::ZERO || odd {
            let (message, help) = if odd {
                (
                    format!("`per {per}` is no multiple of the window of {window} that is measured"),
                    "`measure: {window: ..}` sets it",
                )
            } else {
                (format!("`per {per}` does not fit into {whole}"), "use shorter windows")
            };
            self.problems.push(Problem::new(expr.at.clone(), message).label("these windows").help(help));
            return None;
        }
        Some(whole.as_u64() / per.as_u64())
    }

    fn unknown<'a>(
        &mut self,
        at: std::ops::Range<usize>,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        let near = nearest(name, known.clone()).map(|near| format!("did you mean `{near}`? "));
        let all = known.collect::<Vec<_>>().join("`, `");
        let problem =
            Problem::new(at, format!("there is no {what} `{name}`")).label(format!("unknown {what}"));
        self.problems.push(problem.help(format!("{}there are `{all}`", near.unwrap_or_default())));
    }
}

impl Compare {
    /// Whether `left` and `right` satisfy it; with a tolerance in the sides' unit where it needs one.
    pub(super) fn holds(self, left: f64, right: f64, tolerance: f64) -> bool {
        match self {
            Self::Le => left <= right,
            Self::Lt => left < right,
            Self::Ge => left >= right,
            Self::Gt => left > right,
            Self::Near => (left - right).abs() <= tolerance,
            Self::Far => (left - right).abs() > tolerance,
        }
    }
}
