//! Problems of a document, and how they are shown.
//!
//! Why: an operator should learn every mistake in one go, each with its place and a way out.
//! From: compilers that draw a caret under the mistake, through `miette`.
//! Not here: finding the mistakes.
//! Invariant: problems are sorted by place, and none is shown twice.

use std::fmt;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan};
use schemars::JsonSchema;
use serde::Serialize;

use super::excerpt::Excerpt;
use super::long::fitted;
use super::source::{Mark, Sources};

/// The severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The document works, but does something that its author may not expect.
    Warning,
    /// The document does not work.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// The rule that a problem breaks; `()` where rules have no names.
pub trait Rule: Clone + Ord + fmt::Debug {
    /// The line above the message.
    fn heading(&self, severity: Severity) -> String;

    /// The rule that forbids a mistake which any document may have.
    fn of(mistake: Mistake) -> Self;
}

/// Mistakes that are found while a document is read by its key tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A key that the table does not have.
    UnknownKey,
    /// A key that stands twice in one mapping.
    DuplicateKey,
    /// A key that the table needs, and that is not there.
    MissingKey,
    /// A value that is not of its key's form.
    BadValue,
    /// A zero where only more than that makes sense.
    Zero,
}

impl Rule for () {
    fn heading(&self, severity: Severity) -> String {
        severity.to_string()
    }

    fn of(_: Mistake) -> Self {}
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem<R> {
    /// The rule broken.
    pub rule: R,
    /// Its severity.
    pub severity: Severity,
    /// The message, with the names and numbers in it.
    pub message: String,
    /// Its place.
    pub at: Mark,
    /// The words under the caret.
    pub label: String,
    /// Other places that have a part in it.
    pub also: Vec<(Mark, String)>,
    /// A way out.
    pub help: String,
}

impl Problem<()> {
    /// An error that breaks no rule with a name.
    pub fn new(at: impl Into<Mark>, message: impl Into<String>) -> Self {
        Self::error((), at, message)
    }
}

impl<R> Problem<R> {
    /// An error.
    pub fn error(rule: R, at: impl Into<Mark>, message: impl Into<String>) -> Self {
        let (label, also, help) = ("here".to_owned(), Vec::new(), String::new());
        let message = fitted(message.into());
        Self { rule, severity: Severity::Error, message, at: at.into(), label, also, help }
    }

    /// A warning.
    pub fn warning(rule: R, at: impl Into<Mark>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(rule, at, message) }
    }

    /// Sets the words under the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = fitted(label.into());
        self
    }

    /// Adds another place.
    #[must_use]
    pub fn also(mut self, at: Mark, label: impl Into<String>) -> Self {
        self.also.push((at, fitted(label.into())));
        self
    }

    /// Sets the way out.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = fitted(help.into());
        self
    }
}

/// Problems as they are found: the first [`Problems::MOST`] are kept, the others counted.
#[derive(Clone, Debug)]
pub struct Problems<R> {
    kept: Vec<Problem<R>>,
    more: usize,
    has_errors: bool,
}

impl<R> Problems<R> {
    /// More problems than a person reads; a text of a few megabytes may have a million.
    pub const MOST: usize = 10_000;

    /// Notes a problem.
    pub fn push(&mut self, problem: Problem<R>) {
        self.has_errors |= problem.severity == Severity::Error;
        if self.is_full() {
            self.more += 1;
        } else {
            self.kept.push(problem);
        }
    }

    /// Adds problems that were collected apart.
    pub fn append(&mut self, others: Self) {
        self.extend(others.kept);
        self.more += others.more;
        self.has_errors |= others.has_errors;
    }

    /// The number of problems, kept or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.len() + self.more
    }

    /// Whether there are no problems.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Whether a further problem is only counted, so that it needs no words.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.kept.len() >= Self::MOST
    }

    /// Counts a problem that is not kept, without wording it: [`Problems::is_full`].
    pub fn count_error(&mut self) {
        (self.more, self.has_errors) = (self.more + 1, true);
    }

    /// Whether one of them is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.has_errors
    }
}

impl<R: Rule> Problems<R> {
    /// The problems that are kept, sorted by place.
    #[must_use]
    pub fn sorted(self) -> Vec<Problem<R>> {
        let mut kept = self.kept;
        sort(&mut kept);
        kept
    }
}

impl<R> Default for Problems<R> {
    fn default() -> Self {
        Self { kept: Vec::new(), more: 0, has_errors: false }
    }
}

impl<R> Extend<Problem<R>> for Problems<R> {
    fn extend<I: IntoIterator<Item = Problem<R>>>(&mut self, problems: I) {
        problems.into_iter().for_each(|problem| self.push(problem));
    }
}

impl<R> From<Vec<Problem<R>>> for Problems<R> {
    fn from(problems: Vec<Problem<R>>) -> Self {
        let mut all = Self::default();
        all.extend(problems);
        all
    }
}

/// Everything that is wrong with a document: at least one error, and the warnings.
#[derive(Clone, Debug)]
pub struct Errors<R> {
    problems: Vec<Problem<R>>,
    /// Further ones that were only counted.
    more: usize,
    sources: Sources,
}

/// A problem as a machine reads it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ProblemRecord<R> {
    /// The rule's name.
    pub rule: R,
    /// Its severity.
    pub severity: Severity,
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The message.
    pub message: String,
    /// A way out.
    pub help: String,
}

impl<R: Rule> Errors<R> {
    /// Sorts the problems, which point into these files.
    pub fn new(problems: impl Into<Problems<R>>, sources: Sources) -> Self {
        let problems = problems.into();
        let more = problems.more;
        Self { problems: problems.sorted(), more, sources }
    }

    /// Every problem, sorted by place; the first [`Problems::MOST`] that were found.
    #[must_use]
    pub fn problems(&self) -> &[Problem<R>] {
        &self.problems
    }

    /// The files that the problems point into.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The problems for a machine.
    #[must_use]
    pub fn records(&self) -> Vec<ProblemRecord<R>> {
        records(&self.problems, &self.sources)
    }

    /// The problems as a terminal shows them, in colour or not; of very many, the first.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        format!("{}{self}\n", render(&self.problems, &self.sources, colour))
    }
}

impl<R> fmt::Display for Errors<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
        let name = self.sources.files().first().map_or("the file", |file| file.name.as_str());
        write!(f, "{name}: {errors} {}", if errors == 1 { "error" } else { "errors" })?;
        match self.problems.len() - errors {
            0 => {}
            1 => write!(f, ", 1 warning")?,
            warnings => write!(f, ", {warnings} warnings")?,
        }
        if self.more > 0 {
            write!(f, ", and {} that were only counted", self.more)?;
        }
        Ok(())
    }
}

impl<R: fmt::Debug> std::error::Error for Errors<R> {}

/// By place, each once.
pub fn sort<R: Rule>(problems: &mut Vec<Problem<R>>) {
    problems.sort_by(|a, b| (a.at, &a.rule, &a.message).cmp(&(b.at, &b.rule, &b.message)));
    problems.dedup();
}

/// The problems as a machine reads them.
#[must_use]
pub fn records<R: Rule>(problems: &[Problem<R>], sources: &Sources) -> Vec<ProblemRecord<R>> {
    let record = |problem: &Problem<R>| {
        let (line, column) = sources.position(problem.at);
        ProblemRecord {
            rule: problem.rule.clone(),
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
#[must_use]
pub fn render<R: Rule>(problems: &[Problem<R>], sources: &Sources, colour: bool) -> String {
    let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let handler = GraphicalReportHandler::new_themed(theme).with_width(110).with_context_lines(1);
    let mut text = String::new();
    for problem in problems.iter().take(MOST_SHOWN) {
        // Writing to a string cannot fail; a failing renderer must not hide the message.
        if handler.render_report(&mut text, &Shown::new(problem, sources)).is_err() {
            text.push_str(&problem.message);
        }
        text.push('\n');
    }
    if let Some(rest) = problems.len().checked_sub(MOST_SHOWN).filter(|rest| *rest > 0) {
        text.push_str(&format!("{rest} more are not shown: mend these first\n"));
    }
    text
}

/// Problems that are shown at once: more than a person mends in one go.
const MOST_SHOWN: usize = 100;

/// One problem with its source text, as miette wants it.
#[derive(Debug)]
struct Shown<'a, R> {
    problem: &'a Problem<R>,
    source: Excerpt,
    help: String,
}

impl<'a, R> Shown<'a, R> {
    fn new(problem: &'a Problem<R>, sources: &Sources) -> Self {
        let elsewhere = problem.also.iter().filter(|(mark, _)| mark.file != problem.at.file);
        let elsewhere = elsewhere.map(|(mark, label)| format!("\nsee {}: {label}", sources.place(*mark)));
        let help = format!("{}{}", problem.help, elsewhere.collect::<String>());
        let here = problem.also.iter().map(|(mark, _)| *mark).filter(|mark| mark.file == problem.at.file);
        let marks: Vec<Mark> = std::iter::once(problem.at).chain(here).collect();
        Self { problem, source: Excerpt::new(sources, &marks), help }
    }
}

impl<R> fmt::Display for Shown<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl<R: fmt::Debug> std::error::Error for Shown<'_, R> {}

impl<R: Rule> Diagnostic for Shown<'_, R> {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.problem.rule.heading(self.problem.severity)))
    }

    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.problem.severity {
            Severity::Warning => miette::Severity::Warning,
            Severity::Error => miette::Severity::Error,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.help.is_empty()).then(|| Box::new(&self.help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let problem = self.problem;
        let first =
            LabeledSpan::new_primary_with_span(Some(problem.label.clone()), self.source.span(problem.at));
        let here = problem.also.iter().filter(|(mark, _)| mark.file == problem.at.file);
        let here = here.map(|(mark, label)| {
            let (offset, len) = self.source.span(*mark);
            LabeledSpan::new(Some(label.clone()), offset, len)
        });
        Some(Box::new(std::iter::once(first).chain(here)))
    }
}
