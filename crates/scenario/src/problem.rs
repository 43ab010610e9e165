//! What is wrong with a scenario, and how it is shown.
//!
//! Why: an operator should learn every mistake in one go, each with its place and a way out.
//! From: the same form as the policy's errors (`docs/policy.md`).
//! Not here: finding the mistakes (`read`, `expect`).
//! Invariant: problems are sorted by place; there is at least one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Bytes of the text that are wrong.
    pub at: Range<usize>,
    /// What is wrong, with the names and numbers in it.
    pub message: String,
    /// What to write under the caret.
    pub label: String,
    /// A way out.
    pub help: String,
}

impl Problem {
    pub(crate) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), label: "here".to_owned(), help: String::new() }
    }

    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }
}

/// Everything that is wrong with a scenario file.
#[derive(Clone, Debug)]
pub struct Errors {
    file: String,
    shown: Vec<Shown>,
}

#[derive(Clone, Debug)]
struct Shown {
    problem: Problem,
    source: NamedSource<Arc<String>>,
}

impl Errors {
    pub(crate) fn new(mut problems: Vec<Problem>, file: &str, text: &str) -> Self {
        problems.sort_by(|a, b| (a.at.start, a.at.end, &a.message).cmp(&(b.at.start, b.at.end, &b.message)));
        problems.dedup();
        let source = NamedSource::new(file, Arc::new(text.to_owned()));
        let shown = problems.into_iter().map(|problem| Shown { problem, source: source.clone() }).collect();
        Self { file: file.to_owned(), shown }
    }

    /// Every problem, sorted by place.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.shown.iter().map(|shown| &shown.problem)
    }

    /// The problems as a terminal shows them, in colour or not.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
        let handler = GraphicalReportHandler::new_themed(theme).with_width(110).with_context_lines(1);
        let mut text = String::new();
        for shown in &self.shown {
            // Writing to a string cannot fail; a failing renderer must not hide the message.
            if handler.render_report(&mut text, shown).is_err() {
                text.push_str(&shown.problem.message);
            }
            text.push('\n');
        }
        text.push_str(&format!("{self}\n"));
        text
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.shown.len();
        write!(f, "{}: {errors} {}", self.file, if errors == 1 { "error" } else { "errors" })
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
        Some(Box::new("error"))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.problem.help.is_empty()).then(|| Box::new(&self.problem.help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let at = &self.problem.at;
        let rest = self.source.inner().len().saturating_sub(at.start);
        let span = LabeledSpan::new(Some(self.problem.label.clone()), at.start, at.len().max(rest.min(1)));
        Some(Box::new(std::iter::once(span)))
    }
}

/// `; did you mean ...?` for the known name that is nearest, if one is near.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |name: &&str| distance(word, name) <= word.chars().count().div_ceil(3);
    known.into_iter().filter(near).min_by_key(|name| distance(word, name))
}

/// Edits between two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_lowercase().chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
