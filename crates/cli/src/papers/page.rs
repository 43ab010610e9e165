//! Writes the page `docs/fidelity.md` of the documentation.
//!
//! Why: the page's claims about the papers must come from the last run, not from memory.
//! From: the rows of the terminal's table; each experiment's file states its differences from the paper.
//! Not here: running anything.
//! Invariant: equal findings give equal pages; a page is replaced whole or not at all. Live results stay until they are
//! measured again, and the part on real guests stays.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_scenario::Paper;

use super::Finding;
use super::files::{self, SERIES};
use super::shown::{COLUMNS, Shown};
use super::table::rows;
use crate::failure::Failure;

/// Writes the page, except its part for live results.
pub(super) fn write(file: &Path, findings: &[Finding], seeds: u32) -> Result<(), Failure> {
    let Parts { groups, guests, .. } = parts(file);
    replace(file, &(page(findings, seeds) + &live_part(&groups) + &guests))
}

/// Writes live results into the page, in place of earlier results of the same experiments.
pub(super) fn write_live(file: &Path, all: &[Shown<'_>]) -> Result<(), Failure> {
    let Parts { page, mut groups, guests } = parts(file);
    for shown in all {
        let rows = shown.rows();
        let command = &rows[0][2];
        groups.retain(|group| !group.lines().next().is_some_and(|line| line.contains(command.as_str())));
        groups.push(rows.iter().map(|row| line(row.as_slice())).collect());
    }
    groups.sort_by_cached_key(|group| {
        let cells: Vec<&str> = group.split(" | ").collect();
        files::place(cells[0].trim_start_matches("| "), cells.get(2).unwrap_or(&""))
    });
    replace(file, &(page + &live_part(&groups) + &guests))
}

/// The parts of an existing page.
struct Parts {
    /// The part before the live results.
    page: String,
    /// The lines of each experiment in the live results.
    groups: Vec<String>,
    /// The part behind the live results.
    guests: String,
}

fn parts(file: &Path) -> Parts {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let begin = text.find(GUESTS_TITLE).unwrap_or(text.len());
    let (text, guests) = text.split_at(begin);
    let (page, live) = text.split_once(LIVE_TITLE).unwrap_or((text, ""));
    let mut groups: Vec<String> = Vec::new();
    for line in live.lines().filter(|line| line.starts_with("| ")).skip(2) {
        match groups.last_mut() {
            Some(group) if line.starts_with("|  |") => *group += &format!("{line}\n"),
            _ => groups.push(format!("{line}\n")),
        }
    }
    Parts { page: page.to_owned(), groups, guests: guests.to_owned() }
}

fn live_part(groups: &[String]) -> String {
    let head = line(&COLUMNS);
    let ruler = line(&["---"; COLUMNS.len()]);
    format!("{LIVE_TITLE}{LIVE_HEAD}{head}{ruler}{}", groups.concat())
}

fn line(cells: &[impl AsRef<str>]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.as_ref().replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let next = file.with_extension("md.new");
    let written = std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, file));
    written.map_err(|error| Failure::io(file.display(), &error))
}

fn page(findings: &[Finding], seeds: u32) -> String {
    let mut page = HEAD.replace("{seeds}", &seeds.to_string());
    page += "| id | where | what it shows | the paper | ours | |\n| --- | --- | --- | --- | --- | --- |\n";
    for finding in findings {
        for (place, cells) in rows(finding).into_iter().enumerate() {
            let word = if place == 0 { finding.verdict("pass", "**fails**") } else { String::new() };
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(page, "| {} | {word} |", cells.join(" | "));
        }
    }
    for (letters, title) in SERIES {
        let own: Vec<&Finding> =
            findings.iter().filter(|finding| finding.paper.series() == letters).collect();
        let differs = own.iter().filter(|finding| !finding.paper.differs.is_empty());
        let mut lines = String::new();
        for finding in differs {
            let Paper { id, figure, differs, .. } = &finding.paper;
            lines += &wrapped(&format!("- **{id}** ({figure}): {differs}"));
        }
        if !lines.is_empty() {
            let _ = write!(page, "\n## {title}: differences, and what could not be repeated\n\n{lines}");
        }
    }
    let broken: Vec<&String> = findings.iter().flat_map(|finding| &finding.failures).collect();
    if !broken.is_empty() {
        page += "\n## What fails\n\n";
        broken.iter().for_each(|failure| page += &format!("- {failure}\n"));
    }
    page
}

/// Wraps a list item into lines of at most 120 characters.
fn wrapped(item: &str) -> String {
    let mut lines = vec![String::new()];
    for word in item.split_whitespace() {
        let line = lines.last_mut().expect("one at least");
        if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= 120 {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        } else {
            lines.push(format!("  {word}"));
        }
    }
    lines.join("\n") + "\n"
}

const HEAD: &str = "\
<!-- Written by `plimsoll papers --write docs/fidelity.md`. Change the files in examples/papers/, not this page. -->
# Fidelity: the papers' results, and ours

Each row is an experiment (E), a mechanism (M) or a claim (C of a cost or limit, S of security) of one of the papers that
Plimsoll brings together, repeated in virtual time at the paper's rates by a scenario file in
[`examples/papers/`](../examples/papers/). *Ours* is the median over {seeds} seeds, with the range where they differ. A
row passes when every expectation of its file, and every delay bound of `plimsoll check`, holds with every seed. Where a row
says *differs*, the text below the table says in what the experiment differs from the paper's; *seeds alike* says that chance
has no part in it, so that all seeds gave one result, to the bit, and are one test.
`plimsoll papers` runs all of them again, `plimsoll papers --only LO-E4` one of them; one seed gives one result, bit for
bit, on any machine.

The schedulers that are compared, such as HTB, MQ or PTB, are explained with [scenarios](scenarios.md#systems), and other words
in the [glossary](glossary.md). Where the paper gives no figure, its column says what it shows, or is empty.

";

const LIVE_TITLE: &str = "\n## Live\n";

/// Title of the part on real guests, which is written by hand from a test's output.
const GUESTS_TITLE: &str = "\n## In real guests\n";

const LIVE_HEAD: &str = "
Experiments that one machine can carry also run live, at its rates, on network namespaces, TAPs and Linux TCP, beside
the kernel's own queues: the same files, without their `virtual:` part, or a file of its own (`-live.yaml`) where the
live form differs more. `plimsoll papers --live --only SE-E1 --write docs/fidelity.md` runs one and writes its rows; the
command in the row runs it with a report. Live figures depend on the machine, and on what else runs on it.

";

#[cfg(test)]
mod tests {
    use plimsoll_scenario::Form;

    use super::super::files::experiments;
    use super::*;

    /// A page without its measured figures.
    fn without_figures(page: &str) -> Vec<String> {
        let row = |line: &str| {
            let cells: Vec<&str> = line.split(" | ").collect();
            cells[..cells.len().saturating_sub(2)].join(" | ")
        };
        page.lines().map(|line| if line.starts_with("| ") { row(line) } else { line.to_owned() }).collect()
    }

    #[test]
    fn the_page_is_the_one_that_the_files_give() {
        let all = experiments(None, Form::Virtual, &[]).unwrap_or_else(|failure| panic!("{failure:?}"));
        let unmeasured = |one: super::super::files::Experiment| Finding {
            figures: one.paper.numbers.iter().map(|number| (number.clone(), None)).collect(),
            file: one.file,
            failures: Vec::new(),
            alike: false,
            paper: one.paper,
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fidelity.md");
        let shown = std::fs::read_to_string(&file).expect("docs/fidelity.md");
        let findings: Vec<Finding> = all.into_iter().map(unmeasured).collect();
        assert!(findings.len() >= 25, "Loom's and SENIC's at least");
        let written = page(&findings, super::super::SEEDS);
        let again = "write it again: `plimsoll papers --write docs/fidelity.md`";
        // Failures are listed at the end of the page, before the live results.
        let (shown, _) = shown.split_once(LIVE_TITLE).expect("a part for live results");
        let shown = shown.split("\n## What fails").next().unwrap_or_default();
        assert_eq!(without_figures(shown), without_figures(&written), "{again}");
        let measured = |row: &str| row.rsplit(" | ").nth(1) != Some("-");
        assert!(
            shown.lines().filter(|line| line.starts_with("| ")).all(measured),
            "every figure was measured"
        );
    }

    #[test]
    fn what_ran_live_is_what_the_files_expect_there() {
        let all = experiments(None, Form::Full, &[]).unwrap_or_else(|failure| panic!("{failure:?}"));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fidelity.md");
        let Parts { groups, guests, .. } = parts(&file);
        // All columns but the first three are measured.
        let said = |group: &str| {
            let cells = |line: &str| line.split(" | ").take(3).map(str::to_owned).collect::<Vec<_>>();
            group.lines().map(cells).collect::<Vec<_>>()
        };
        let expected = all.iter().filter(|one| one.points[0].scenario.live).map(|experiment| {
            let nothing = plimsoll_scenario::Results::default();
            let judge =
                |point: &plimsoll_scenario::Point| plimsoll_scenario::judge(&point.scenario, &nothing);
            let verdicts = experiment.points.iter().map(judge).collect();
            let shown = Shown { experiment, verdicts, machine: String::new() };
            said(&shown.rows().iter().map(|row| line(row.as_slice())).collect::<String>())
        });
        let expected: Vec<_> = expected.collect();
        for group in &groups {
            let again = "run it again: `plimsoll papers --live --only ID --write docs/fidelity.md`";
            assert!(expected.contains(&said(group)), "{again}:\n{group}");
        }
        for id in ["SE-E1", "SE-E5", "SE-E7"] {
            assert!(groups.iter().any(|group| group.starts_with(&format!("| {id} |"))), "{id} ran live");
        }
        for id in ["PN-E1", "PN-E9"] {
            assert!(guests.contains(&format!("| {id} |")), "{id} ran in a guest");
        }
    }
}
