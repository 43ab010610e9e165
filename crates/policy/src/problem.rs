//! What is wrong with a policy, and how it is shown.
//!
//! Why: an operator should learn every mistake in one go, each with its place, the rule it breaks and a way out.
//! From: Loom §3 (rules of the graph), `docs/policy.md` (all rules).
//! Not here: finding the mistakes (`read`, `check`).
//! Invariant: problems are sorted by place; a policy with an error has no program.

use std::fmt;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};
use serde::Serialize;

use crate::source::{Mark, Sources};

/// The rules of the language, by the name under which `docs/policy.md` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Law {
    /// A file is YAML.
    Syntax,
    /// A file that a policy names can be read.
    File,
    /// Only keys of the language.
    UnknownKey,
    /// No key twice in one place.
    DuplicateKey,
    /// What is needed is there.
    MissingKey,
    /// A value has its key's form.
    BadValue,
    /// Names are letters, digits, `_`, `-` and `.`, start with a letter, and are not reserved.
    BadName,
    /// A name means one thing.
    NameClash,
    /// A name that is used is defined.
    UnknownName,
    /// A sub-policy names nothing outside of itself.
    Outside,
    /// A policy has a root.
    NoRoot,
    /// Without limits the graph is a tree: one scheduling parent (Loom §3, Figure 5a and b).
    SecondParent,
    /// No node is its own ancestor, and no limit encloses itself.
    Cycle,
    /// Every class hangs below the root, and every tenant is carried by a class.
    Orphan,
    /// A limit shapes and never orders; a class orders and never shapes (Loom §3, Figure 5c and d).
    WrongKind,
    /// Packets that pass an inner limit also match the one around it.
    Nesting,
    /// Weights and rates are above zero.
    Zero,
    /// What classes are promised fits the link and their ancestors' `max`.
    MinAboveLink,
    /// A `min` fits below the `max` of the same class and of every ancestor.
    MinAboveMax,
    /// What a sub-policy promises should be covered by what its place is guaranteed.
    MinNotBacked,
    /// A `max` above the link limits nothing.
    MaxAboveLink,
    /// A match can hold for some packet.
    NeverMatches,
    /// Only leaves match.
    MatchOnNode,
    /// A burst holds at least one frame.
    BurstTooSmall,
    /// A limit that nobody uses.
    UnusedLimit,
    /// A key means something where it stands.
    Meaningless,
    /// Two ports are two things.
    PortClash,
    /// The tenants' descriptors fit the host's.
    TooManyDescriptors,
    /// The tree is at most as deep as configured (Loom §4.2.3).
    TooDeep,
    /// A packet can be scheduled in the time that a frame takes on the link (Loom §3, "Policy limitations").
    TooCostly,
    /// A policy fits the engine's tables.
    TooLarge,
}

impl Law {
    /// Every rule, in the order of the reference.
    pub const ALL: [Self; 31] = [
        Self::Syntax,
        Self::File,
        Self::UnknownKey,
        Self::DuplicateKey,
        Self::MissingKey,
        Self::BadValue,
        Self::BadName,
        Self::NameClash,
        Self::UnknownName,
        Self::Outside,
        Self::NoRoot,
        Self::SecondParent,
        Self::Cycle,
        Self::Orphan,
        Self::WrongKind,
        Self::Nesting,
        Self::Zero,
        Self::MinAboveLink,
        Self::MinAboveMax,
        Self::MinNotBacked,
        Self::MaxAboveLink,
        Self::NeverMatches,
        Self::MatchOnNode,
        Self::BurstTooSmall,
        Self::UnusedLimit,
        Self::Meaningless,
        Self::PortClash,
        Self::TooManyDescriptors,
        Self::TooDeep,
        Self::TooCostly,
        Self::TooLarge,
    ];

    /// The rule's name, as printed.
    #[must_use]
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The policy runs, but does something that its author may not expect.
    Warning,
    /// The policy does not run.
    Error,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The rule broken.
    pub rule: Law,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, with the names and numbers in it.
    pub message: String,
    /// Where.
    pub at: Mark,
    /// What to write under the caret.
    pub label: String,
    /// Other places that have a part in it.
    pub also: Vec<(Mark, String)>,
    /// A way out.
    pub help: String,
}

impl Problem {
    pub(crate) fn error(rule: Law, at: Mark, message: impl Into<String>) -> Self {
        let (label, also, help) = ("here".to_owned(), Vec::new(), String::new());
        Self { rule, severity: Severity::Error, message: message.into(), at, label, also, help }
    }

    pub(crate) fn warning(rule: Law, at: Mark, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(rule, at, message) }
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub(crate) fn also(mut self, at: Mark, label: impl Into<String>) -> Self {
        self.also.push((at, label.into()));
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

/// Everything that is wrong with a policy: at least one error, and the warnings.
#[derive(Clone, Debug)]
pub struct Errors {
    problems: Vec<Problem>,
    shown: Vec<Shown>,
    sources: Sources,
}

/// A problem as a machine reads it.
#[derive(Clone, Debug, Serialize)]
pub struct ProblemRecord {
    /// The rule's name.
    pub rule: Law,
    /// How bad it is.
    pub severity: Severity,
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// A way out.
    pub help: String,
}

/// One problem with its source text, as miette wants it.
#[derive(Clone, Debug)]
struct Shown {
    problem: Problem,
    source: NamedSource<std::sync::Arc<String>>,
    elsewhere: String,
}

impl Errors {
    pub(crate) fn new(mut problems: Vec<Problem>, sources: Sources) -> Self {
        sort(&mut problems);
        let shown = show(&problems, &sources);
        Self { problems, shown, sources }
    }

    /// Every problem, sorted by place.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The files that the problems point into.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The problems for a machine.
    #[must_use]
    pub fn records(&self) -> Vec<ProblemRecord> {
        records(&self.problems, &self.sources)
    }

    /// The problems as a terminal shows them, in colour or not.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let mut text = render(&self.shown, colour);
        text.push_str(&format!("{self}\n"));
        text
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        let name = self.sources.files().first().map_or("policy", |file| file.name.as_str());
        write!(f, "{name}: {errors} {}", if errors == 1 { "error" } else { "errors" })?;
        match self.problems.len() - errors {
            0 => Ok(()),
            1 => write!(f, ", 1 warning"),
            warnings => write!(f, ", {warnings} warnings"),
        }
    }
}

impl std::error::Error for Errors {}

impl Diagnostic for Errors {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.shown.iter().map(|shown| shown as &dyn Diagnostic)))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Shown {}

impl Diagnostic for Shown {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let kind = match self.problem.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        Some(Box::new(format!("{kind}: rule `{}`", self.problem.rule.name())))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.problem.severity {
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(format!("{}{}", self.problem.help, self.elsewhere)))
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let problem = &self.problem;
        let span = |mark: Mark, label: &str| {
            let len = self.source.inner().get(mark.offset as usize..).map_or(0, |rest| rest.len().min(1));
            LabeledSpan::new(Some(label.to_owned()), mark.offset as usize, (mark.len as usize).max(len))
        };
        let here = problem.also.iter().filter(move |(mark, _)| mark.file == problem.at.file);
        let first = std::iter::once(LabeledSpan::new_primary_with_span(
            Some(problem.label.clone()),
            *span(problem.at, "").inner(),
        ));
        Some(Box::new(first.chain(here.map(move |(mark, label)| span(*mark, label)))))
    }
}

pub(crate) fn sort(problems: &mut Vec<Problem>) {
    problems.sort_by(|a, b| (a.at, a.rule, &a.message).cmp(&(b.at, b.rule, &b.message)));
    problems.dedup();
}

pub(crate) fn records(problems: &[Problem], sources: &Sources) -> Vec<ProblemRecord> {
    let record = |problem: &Problem| {
        let (line, column) = sources.position(problem.at);
        ProblemRecord {
            rule: problem.rule,
            severity: problem.severity,
            file: sources.file(problem.at.file).name.clone(),
            line,
            column,
            message: problem.message.clone(),
            help: problem.help.clone(),
        }
    };
    problems.iter().map(record).collect()
}

/// Problems as a terminal shows them.
pub(crate) fn render_problems(problems: &[Problem], sources: &Sources, colour: bool) -> String {
    render(&show(problems, sources), colour)
}

fn show(problems: &[Problem], sources: &Sources) -> Vec<Shown> {
    let shown = |problem: &Problem| {
        let file = sources.file(problem.at.file);
        let elsewhere = problem.also.iter().filter(|(mark, _)| mark.file != problem.at.file);
        let elsewhere = elsewhere.map(|(mark, label)| format!("\nsee {}: {label}", sources.place(*mark)));
        Shown {
            problem: problem.clone(),
            source: NamedSource::new(&file.name, file.text.clone()),
            elsewhere: elsewhere.collect(),
        }
    };
    problems.iter().map(shown).collect()
}

fn render(shown: &[Shown], colour: bool) -> String {
    let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(110).with_context_lines(1);
    let mut text = String::new();
    for problem in shown {
        // Writing to a string cannot fail; a failing renderer must not hide the message.
        if handler.render_report(&mut text, problem).is_err() {
            text.push_str(&problem.problem.message);
        }
        text.push('\n');
    }
    text
}
