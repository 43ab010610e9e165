//! The lines that a message shows, the long ones cut around its carets.
//!
//! Why: a file may be one line of 20,000 characters, and its author looks for the place that is wrong.
//! From: `docs/policy.md`, "Errors".
//! Not here: drawing lines and carets (miette).
//! Invariant: what is cut out holds no start of a mark; line and column of a mark are those in the file.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use super::source::{Mark, SourceFile, Sources};

/// A file's text for one message.
#[derive(Debug)]
pub(super) struct Excerpt {
    name: String,
    text: Arc<String>,
    /// What is missing of the file's text, in order; each is a `…` here.
    cuts: Vec<Range<usize>>,
    /// Where marks start, here, and their columns in the file, from 0.
    columns: Vec<(usize, usize)>,
}

impl Excerpt {
    /// The text of the marks' file, cut where a line near one of them is too long to be shown.
    pub fn new(sources: &Sources, marks: &[Mark]) -> Self {
        let Some(first) = marks.first() else { return Self::whole(&SourceFile::default()) };
        let mut excerpt = Self::whole(sources.file(first.file));
        let whole = excerpt.text.clone();
        let cuts = shown_lines(&whole, marks).into_iter().flat_map(|(from, to)| cut(&whole, from..to, marks));
        excerpt.cuts = cuts.collect();
        if !excerpt.cuts.is_empty() {
            excerpt.text = Arc::new(without(&whole, &excerpt.cuts));
        }
        let column = |mark: &Mark| (excerpt.place(mark.offset as usize), sources.position(*mark).1 - 1);
        excerpt.columns = marks.iter().map(column).collect();
        excerpt
    }

    fn whole(file: &SourceFile) -> Self {
        Self { name: file.name.clone(), text: file.text.clone(), cuts: Vec::new(), columns: Vec::new() }
    }

    /// What a mark covers of the excerpt: offset and bytes, one at least where there is one.
    pub fn span(&self, mark: Mark) -> (usize, usize) {
        let Range { start, end } = mark.range();
        let (start, end) = (self.place(start), self.place(end));
        (start, (end - start).max(self.text.len().saturating_sub(start).min(1)))
    }

    /// Where a byte of the file is in the excerpt; what is cut out is at its `…`.
    fn place(&self, offset: usize) -> usize {
        let before = self.cuts.iter().take_while(|cut| cut.end <= offset);
        let gone: usize = before.clone().map(|cut| cut.len() - DOTS.len()).sum();
        let inside = self.cuts.get(before.count()).filter(|cut| cut.start < offset);
        inside.map_or(offset, |cut| cut.start) - gone
    }
}

impl SourceCode for Excerpt {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let found = self.text.read_span(span, before, after)?;
        // Without lines around it, it is asked for the place in the heading.
        let mark = self.columns.iter().find(|(start, _)| before == 0 && *start == span.offset());
        let column = mark.map_or(found.column(), |(_, column)| *column);
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            found.data(),
            *found.span(),
            found.line(),
            column,
            found.line_count(),
        )))
    }
}

/// The lines of the marks and those next to them, without their ends.
fn shown_lines(text: &str, marks: &[Mark]) -> BTreeSet<(usize, usize)> {
    let mut lines = BTreeSet::new();
    for mark in marks {
        let Range { start, end } = mark.range();
        let start_of = |at: usize| text[..at].rfind('\n').map_or(0, |end| end + 1);
        let mut from = start_of(start_of(start).saturating_sub(1));
        let mut left = 1; // lines behind the mark's last
        while from <= text.len() && left > 0 {
            let to = text[from..].find('\n').map_or(text.len(), |len| from + len);
            lines.insert((from, to));
            left -= usize::from(from > end);
            from = to + 1;
        }
    }
    lines
}

/// What to leave out of a line: nothing, or all but a window around each mark.
fn cut(text: &str, line: Range<usize>, marks: &[Mark]) -> Vec<Range<usize>> {
    let chars: Vec<usize> = text[line.clone()].char_indices().map(|(at, _)| line.start + at).collect();
    if chars.len() <= WIDEST {
        return Vec::new();
    }
    let on_line = marks
        .iter()
        .map(|mark| mark.offset as usize)
        .filter(|&start| line.start <= start && start <= line.end);
    let mut starts: Vec<usize> = on_line.map(|start| chars.partition_point(|&at| at < start)).collect();
    starts.sort_unstable();
    starts.dedup();
    if starts.is_empty() {
        starts.push(0);
    }
    let width = (WIDEST / starts.len()).max(NARROWEST);
    let mut cuts = Vec::new();
    let mut shown = 0; // characters before this one are shown or cut
    for start in starts {
        let from = start.saturating_sub(width / 3);
        if from >= shown + DOTS.len() {
            cuts.push(chars[shown]..chars[from]);
        }
        shown = start + width - width / 3;
    }
    if shown + DOTS.len() <= chars.len() {
        cuts.push(chars[shown]..line.end);
    }
    cuts
}

fn without(text: &str, cuts: &[Range<usize>]) -> String {
    let mut left = String::new();
    let mut from = 0;
    for cut in cuts {
        left.extend([&text[from..cut.start], DOTS]);
        from = cut.end;
    }
    left.push_str(&text[from..]);
    left
}

/// Characters of a line that are shown whole.
const WIDEST: usize = 160;
/// Characters that are shown around a mark, however many there are.
const NARROWEST: usize = 40;
const DOTS: &str = "…";

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use crate::document::{Errors, Mark, Problem, Sources};

    /// The message about these stretches of a text.
    fn message(text: &str, first: Range<usize>, rest: &[Range<usize>]) -> String {
        let problem = Problem::new(first, "wrong").label("first");
        let problem =
            rest.iter().fold(problem, |problem, mark| problem.also(Mark::from(mark.clone()), "also"));
        Errors::new(vec![problem], Sources::one("long.yaml", text)).render(false)
    }

    /// The line with this number, behind its gutter, and what is underlined of it.
    fn shown(message: &str, number: usize) -> (String, Vec<String>) {
        let mut lines = message.lines().skip_while(|line| !line.starts_with(&format!(" {number} │ ")));
        let behind = |line: &str| line.chars().skip(" 1 │ ".chars().count()).collect::<Vec<char>>();
        let (text, carets) = (behind(lines.next().expect("the line")), behind(lines.next().expect("carets")));
        let mut stretches = vec![String::new()];
        for (letter, caret) in text.iter().zip(carets.into_iter().chain([' '])) {
            match stretches.last_mut() {
                Some(stretch) if "─┬▲".contains(caret) => stretch.push(*letter),
                _ => stretches.push(String::new()),
            }
        }
        stretches.retain(|stretch| !stretch.is_empty());
        (text.into_iter().collect(), stretches)
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret_and_keeps_its_column() {
        let (before, after) = ("ä".repeat(10_000), "b".repeat(10_000));
        let text = format!("one\n{before}WRONG{after}\nthree\n");
        let start = 4 + before.len();
        let told = message(&text, start..start + 5, &[]);
        assert!(told.contains("long.yaml:2:10001"), "{told}");
        let (line, underlined) = shown(&told, 2);
        assert_eq!(underlined, ["WRONG"], "{told}");
        assert!(line.starts_with("…ä") && line.ends_with("b…") && line.chars().count() == 162, "{told}");
        assert!(told.lines().all(|line| line.chars().count() < 180), "{told}");
    }

    #[test]
    fn every_mark_of_a_long_line_is_shown() {
        let text = format!("{0}A{0}B{0}C\n{0}", "x".repeat(9_999));
        let told = message(&text, 19_999..20_000, &[9_999..10_000, 29_999..30_000]);
        let (line, underlined) = shown(&told, 1);
        assert_eq!(underlined, ["A", "B", "C"], "{told}");
        assert!(line.chars().count() < 180 && line.matches('…').count() == 3, "{told}");
        assert!(told.contains("long.yaml:1:20000") && told.contains(" 2 │ xxx"), "{told}");
        assert!(
            told.lines().all(|line| line.chars().count() < 180),
            "the line after it is cut, too:\n{told}"
        );
    }

    #[test]
    fn a_long_mark_and_one_at_the_end_are_cut_as_well() {
        let text = format!("key: {}\n", "v".repeat(20_000));
        for mark in [5..20_005, 0..20_006, 20_005..20_005, 20_006..20_006] {
            let told = message(&text, mark, &[]);
            assert!(told.contains('…') && told.lines().all(|line| line.chars().count() < 180), "{told}");
        }
    }

    #[test]
    fn lines_that_fit_stay_whole() {
        let text = format!("{}\n{}\n", "x".repeat(160), "y".repeat(100));
        assert!(!message(&text, 170..171, &[]).contains('…'));
    }
}
