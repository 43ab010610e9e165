//! The lines that a message shows, the long ones cut around its carets.
//!
//! Why: a file may be one line of 20,000 characters, and its author looks for the place that is wrong.
//! From: `docs/policy.md`, "Errors".
//! Not here: drawing lines and carets (miette).
//! Invariant: what is cut out holds no start of a mark; line and column of a mark are those in the file.

use std::collections::BTreeSet;
use std::ops::Range;

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};

use super::long::plain;
use super::source::{Mark, SourceFile, Sources};

/// The lines of a file that one message shows.
#[derive(Debug)]
pub(super) struct Excerpt {
    name: String,
    /// In the order of the file.
    pieces: Vec<Piece>,
    /// Where marks start, here, and their columns in the file, from 0.
    columns: Vec<(usize, usize)>,
}

/// Lines of a file that stand one below the other.
#[derive(Debug)]
struct Piece {
    /// Where it stands in the file.
    lines: Range<usize>,
    /// Line ends before it.
    first: usize,
    /// Its text, without what is cut out.
    text: String,
    /// The stretches that are cut out, in order, as bytes of the file; each is a `…` here.
    cuts: Vec<Range<usize>>,
    /// Bytes of the pieces before it.
    base: usize,
}

impl Excerpt {
    /// The lines around the marks, which are of one file, cut where they are too long to be shown.
    pub fn new(sources: &Sources, marks: &[Mark]) -> Self {
        let Some(first) = marks.first() else {
            return Self { name: String::new(), pieces: Vec::new(), columns: Vec::new() };
        };
        let file = sources.file(first.file);
        let mut pieces: Vec<Piece> = Vec::new();
        for lines in together(file, &shown_lines(file, marks)) {
            let base = pieces.last().map_or(0, |piece| piece.base + piece.text.len());
            pieces.push(Piece::new(file, lines, marks, base));
        }
        let mut excerpt = Self { name: plain(file.name.clone()), pieces, columns: Vec::new() };
        let column = |mark: &Mark| (excerpt.place(mark.offset as usize), sources.position(*mark).1 - 1);
        excerpt.columns = marks.iter().map(column).collect();
        excerpt
    }

    /// The part of the excerpt that a mark covers: offset and bytes, one at least where there is one.
    pub fn span(&self, mark: Mark) -> (usize, usize) {
        let Range { start, end } = mark.range();
        let (start, end) = (self.place(start), self.place(end));
        let left = self.pieces.last().map_or(0, |piece| piece.base + piece.text.len()).saturating_sub(start);
        (start, end.saturating_sub(start).max(left.min(1)))
    }

    /// Where a byte of the file is in the excerpt; what is cut out is at its `…`.
    fn place(&self, offset: usize) -> usize {
        let piece = self.pieces.iter().rev().find(|piece| piece.lines.start <= offset);
        piece.map_or(0, |piece| piece.base + piece.place(offset.min(piece.lines.end)))
    }
}

impl Piece {
    fn new(file: &SourceFile, lines: Range<usize>, marks: &[Mark], base: usize) -> Self {
        let mut cuts = Vec::new();
        let mut at = lines.start;
        while at < lines.end {
            let line = file.line_around(at);
            at = line.end + 1;
            cuts.extend(cut(&file.text, line, marks));
        }
        let text = without(&file.text, lines.clone(), &cuts);
        Self { first: file.position(lines.start).0, lines, text, cuts, base }
    }

    fn place(&self, offset: usize) -> usize {
        let before = self.cuts.iter().take_while(|cut| cut.end <= offset);
        let gone: usize = before.clone().map(|cut| cut.len() - DOTS.len()).sum();
        let inside = self.cuts.get(before.count()).filter(|cut| cut.start < offset);
        inside.map_or(offset, |cut| cut.start) - gone - self.lines.start
    }
}

impl SourceCode for Excerpt {
    /// Several pieces cannot be read as one stretch: each is shown alone.
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let piece = self.pieces.iter().rev().find(|piece| piece.base <= span.offset());
        let piece = piece.ok_or(MietteError::OutOfBounds)?;
        let here = SourceSpan::new((span.offset() - piece.base).into(), span.len());
        let found = piece.text.read_span(&here, before, after)?;
        // A request without context lines is for the place in the heading.
        let mark = self.columns.iter().find(|(start, _)| before == 0 && *start == span.offset());
        let column = mark.map_or(found.column(), |(_, column)| *column);
        let at = SourceSpan::new((found.span().offset() + piece.base).into(), found.span().len());
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            found.data(),
            at,
            found.line() + piece.first,
            column,
            found.line_count() + piece.first,
        )))
    }
}

/// The lines of the marks and those next to them that may be shown, without their ends.
fn shown_lines(file: &SourceFile, marks: &[Mark]) -> BTreeSet<(usize, usize)> {
    let mut lines = BTreeSet::new();
    for mark in marks {
        let Range { start, end } = mark.range();
        let mut at = file.line_around(file.line_around(start).start.saturating_sub(1)).start;
        // The line after the mark; one more after a mark at the end of a line.
        let mut left = 2;
        while at <= file.text.len() && left > 0 {
            let line = file.line_around(at);
            lines.insert((line.start, line.end));
            left -= usize::from(line.start > end);
            at = line.end + 1;
        }
    }
    lines
}

/// Stretches of whole lines that hold these; what is between two of them is shown where it is short.
fn together(file: &SourceFile, lines: &BTreeSet<(usize, usize)>) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    for &(start, end) in lines {
        let near =
            |piece: &&mut Range<usize>| file.position(start).0 - file.position(piece.end).0 <= MOST_BETWEEN;
        match pieces.last_mut().filter(near) {
            Some(piece) => piece.end = end,
            None => pieces.push(start..end),
        }
    }
    // The end of a piece's last line belongs to it.
    pieces.iter_mut().for_each(|piece| piece.end = (piece.end + 1).min(file.text.len()));
    pieces
}

/// The parts of a line to leave out: none, or all but a window around each mark.
fn cut(text: &str, line: Range<usize>, marks: &[Mark]) -> Vec<Range<usize>> {
    if !has_more(text, &line, WIDEST) {
        return Vec::new();
    }
    let on_line = marks
        .iter()
        .map(|mark| mark.offset as usize)
        .filter(|&start| line.start <= start && start <= line.end);
    let mut starts: Vec<usize> = on_line.collect();
    starts.sort_unstable();
    starts.dedup();
    if starts.is_empty() {
        starts.push(line.start);
    }
    let width = (WIDEST / starts.len()).max(NARROWEST);
    let mut cuts = Vec::new();
    let mut shown = line.start; // what is before it is shown or cut
    for start in starts {
        let from = back(text, line.start, start, width / 3);
        if from > shown && has_more(text, &(shown..from), DOTS.len() - 1) {
            cuts.push(shown..from);
        }
        shown = on(text, start, line.end, width - width / 3);
    }
    if has_more(text, &(shown..line.end), DOTS.len() - 1) {
        cuts.push(shown..line.end);
    }
    cuts
}

/// Whether a stretch has more than `most` characters.
fn has_more(text: &str, stretch: &Range<usize>, most: usize) -> bool {
    stretch.len() > most && text[stretch.clone()].chars().nth(most).is_some()
}

/// The place `count` characters before `at`, but not before `least`.
fn back(text: &str, least: usize, at: usize, count: usize) -> usize {
    text[least..at].char_indices().rev().take(count).last().map_or(at, |(offset, _)| least + offset)
}

/// The place `count` characters behind `at`, but not behind `most`.
fn on(text: &str, at: usize, most: usize, count: usize) -> usize {
    text[at..most].char_indices().nth(count).map_or(most, |(offset, _)| at + offset)
}

fn without(text: &str, piece: Range<usize>, cuts: &[Range<usize>]) -> String {
    let mut left = String::new();
    let mut from = piece.start;
    for cut in cuts {
        left.extend([&text[from..cut.start], DOTS]);
        from = cut.end;
    }
    left.push_str(&text[from..piece.end]);
    plain(left)
}

/// Characters of a line that are shown whole.
const WIDEST: usize = 160;
/// Characters that are shown around a mark, however many there are.
const NARROWEST: usize = 40;
/// Lines from one that is shown to the next that are shown as well.
const MOST_BETWEEN: usize = 24;
const DOTS: &str = "…";

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use crate::{Errors, Mark, Problem, Sources};

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
    fn far_places_of_one_file_are_shown_without_what_is_between() {
        let text = format!("A first\n{}B second\nlast\n", "between\n".repeat(1_000));
        let second = text.find('B').expect("there");
        let told = message(&text, second..second + 1, &[Range { start: 0, end: 1 }]);
        assert!(told.contains("long.yaml:1002:1") && told.contains(" 1 │ A first"), "{told}");
        assert!(told.contains(" 1002 │ B second") && told.contains(" 1003 │ last"), "{told}");
        assert!(told.lines().count() < 20, "{told}");
    }

    #[test]
    fn lines_that_fit_stay_whole() {
        let text = format!("{}\n{}\n", "x".repeat(160), "y".repeat(100));
        assert!(!message(&text, 170..171, &[]).contains('…'));
    }
}
