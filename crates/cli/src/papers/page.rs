//! The page of the documentation: `docs/fidelity.md`.
//!
//! Why: what is claimed of the papers is what the last run showed, and nothing that somebody remembered.
//! From: the same rows as the terminal's table; what differs from a paper stands in each experiment's file.
//! Not here: running anything.
//! Invariant: same findings, same page; a page is replaced whole or not at all.

use std::fmt::Write as _;
use std::path::Path;

use plimsoll_scenario::Paper;

use super::Finding;
use super::files::SERIES;
use super::table::rows;
use crate::failure::Failure;

/// Writes the page.
pub(super) fn write(file: &Path, findings: &[Finding], seeds: u32) -> Result<(), Failure> {
    let next = file.with_extension("md.new");
    let written = std::fs::write(&next, page(findings, seeds)).and_then(|()| std::fs::rename(&next, file));
    written.map_err(|error| Failure::io(file.display(), &error))
}

fn page(findings: &[Finding], seeds: u32) -> String {
    let mut page = HEAD.replace("{seeds}", &seeds.to_string());
    page += "| id | where | what it shows | the paper | ours | |\n| --- | --- | --- | --- | --- | --- |\n";
    for finding in findings {
        for (place, cells) in rows(finding).into_iter().enumerate() {
            let word = match (place, finding.passed()) {
                (0, true) => "pass",
                (0, false) => "**fails**",
                _ => "",
            };
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
            let _ =
                write!(page, "\n## {title}: what is otherwise, and what could not be repeated\n\n{lines}");
        }
    }
    let broken: Vec<&String> = findings.iter().flat_map(|finding| &finding.failures).collect();
    if !broken.is_empty() {
        page += "\n## What fails\n\n";
        broken.iter().for_each(|failure| page += &format!("- {failure}\n"));
    }
    page
}

/// A list's item in lines of at most 120 characters.
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

Each row is an experiment of one of the papers that Plimsoll brings together, repeated in virtual time at the paper's
rates by a scenario file in [`examples/papers/`](../examples/papers/). *Ours* is the median over {seeds} seeds, with the
range where they differ. An experiment passes when every expectation of its file, and every delay bound of
`plimsoll check`, holds with every seed. `plimsoll papers` runs them all again, `plimsoll papers --only LO-E4` one of
them; one seed gives one result, bit for bit, on any machine.

";

#[cfg(test)]
mod tests {
    use plimsoll_scenario::Form;

    use super::super::files::experiments;
    use super::*;

    /// Everything that a page says but what was measured.
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
            paper: one.paper,
        };
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fidelity.md");
        let shown = std::fs::read_to_string(&file).expect("docs/fidelity.md");
        let findings: Vec<Finding> = all.into_iter().map(unmeasured).collect();
        assert!(findings.len() >= 25, "Loom's and SENIC's at least");
        let written = page(&findings, super::super::SEEDS);
        let again = "write it again: `plimsoll papers --write docs/fidelity.md`";
        // What fails stands at the end of the page, and nothing after it.
        let shown = shown.split("\n## What fails").next().unwrap_or_default();
        assert_eq!(without_figures(shown), without_figures(&written), "{again}");
        let measured = |row: &str| row.rsplit(" | ").nth(1) != Some("-");
        assert!(
            shown.lines().filter(|line| line.starts_with("| ")).all(measured),
            "every figure was measured"
        );
    }
}
