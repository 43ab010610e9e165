//! A page of the documentation as a list of blocks that can be run.
//!
//! Why: an example that no longer works costs a newcomer more than no example.
//! From: the fenced blocks of `README.md` and `docs/*.md`; `CONTRIBUTING.md` says how to write one.
//! Not here: which pages there are (`tests/it/pages.rs`), and rustdoc's examples, which cargo runs.
//! Invariant: a block that this crate does not understand is an error, never skipped.
//!
//! ```
//! let page = "Try it:\n\n```console\n$ echo 1 fish\n1 ...\n```\n";
//! let blocks = plimsoll_docs::blocks(page).unwrap();
//! let plimsoll_docs::Kind::Console(commands) = &blocks[0].kind else { panic!("a console block") };
//! assert_eq!(commands[0].line, "echo 1 fish");
//! assert!(plimsoll_docs::shows("1 fish\n", &commands[0].expected).is_ok());
//! ```
#![forbid(unsafe_code)]

mod lines;
mod run;

pub use lines::{Lines, right_lines};
pub use run::{Bench, load_scenario, run_page};

use anyhow::{Result, bail};

/// A fenced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Line of its opening fence, counted from one.
    pub at: usize,
    /// What to do with it.
    pub kind: Kind,
    /// What lies between its fences.
    pub text: String,
}

/// What a block is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `yaml policy`, `yaml policy refused`, `yaml policy file=NAME`: a policy file for `plimsoll check`.
    Policy {
        /// The exit status to expect: 0, or 2 for `refused`.
        status: i32,
        /// Where it stays for the page's later commands.
        file: Option<String>,
    },
    /// `yaml scenario`, `yaml scenario file=NAME`: a scenario, which must load.
    Scenario {
        /// Where it stays for the page's later commands.
        file: Option<String>,
    },
    /// `yaml file=NAME`: a file for the page's later commands, a tenant's own policy for instance.
    File(String),
    /// `console`, `console root`: commands and what they show.
    Console(Vec<Command>),
    /// Commands as in [`Kind::Console`] that only root can run.
    RootConsole(Vec<Command>),
    /// `sh`: commands that change the reader's machine; only the names of `make` targets are checked.
    Shell,
    /// `text`, and code in other languages: nothing to run here (`make test-python` runs that of docs/python.md).
    Prose,
}

/// A command after a `$`, and what it must show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// For the shell.
    pub line: String,
    /// The exit status to expect: 0 unless the line ends in `# exit N`.
    pub status: i32,
    /// Lines that must appear in this order; `...` stands for anything.
    pub expected: Vec<String>,
}

/// Reads every fenced block of a page.
///
/// # Errors
/// For a fence that is not closed, or whose words are not known.
pub fn blocks(page: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((at, line)) = lines.next() {
        let Some(words) = line.strip_prefix("```") else { continue };
        let mut text = String::new();
        loop {
            match lines.next() {
                None => bail!("line {at}: this block is never closed"),
                Some((_, "```")) => break,
                Some((_, inside)) => text.extend([inside, "\n"]),
            }
        }
        blocks.push(Block { at, kind: kind(at, words, &text)?, text });
    }
    Ok(blocks)
}

fn kind(at: usize, words: &str, text: &str) -> Result<Kind> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let file = words.iter().find_map(|word| word.strip_prefix("file=")).map(str::to_owned);
    let plain: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with("file=")).collect();
    Ok(match (plain.as_slice(), file) {
        (["yaml", "policy"], file) => Kind::Policy { status: 0, file },
        (["yaml", "policy", "refused"], file) => Kind::Policy { status: 2, file },
        (["yaml", "scenario"], file) => Kind::Scenario { file },
        (["yaml" | "c" | "text"], Some(file)) => Kind::File(file),
        (["console"], None) => Kind::Console(commands(at, text)?),
        (["console", "root"], None) => Kind::RootConsole(commands(at, text)?),
        (["sh"], None) => Kind::Shell,
        (["text" | "python" | "rust" | "toml" | "json" | "promql" | "ini"] | ["yaml", "excerpt"], None) => {
            Kind::Prose
        }
        _ => bail!("line {at}: no such kind of block: `{}` (see CONTRIBUTING.md)", words.join(" ")),
    })
}

fn commands(at: usize, text: &str) -> Result<Vec<Command>> {
    let mut commands: Vec<Command> = Vec::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("$ ") {
            let (line, status) = match line.split_once("# exit ") {
                Some((line, status)) => (line.trim_end(), status.trim().parse()?),
                None => (line, 0),
            };
            commands.push(Command { line: line.to_owned(), status, expected: Vec::new() });
        } else if let Some(command) = commands.last_mut() {
            command.expected.push(line.to_owned());
        } else {
            bail!("line {at}: a console block begins with `$ ` and a command");
        }
    }
    Ok(commands)
}

/// Whether `output` holds the expected lines, in their order; other lines may stand between them.
///
/// # Errors
/// With the first line that is missing.
pub fn shows(output: &str, expected: &[String]) -> Result<()> {
    let mut lines = output.lines();
    for wanted in expected.iter().filter(|wanted| !matches!(wanted.trim(), "" | "...")) {
        if !lines.any(|line| matches(line, wanted)) {
            bail!("this line is missing, or comes too early:\n  {wanted}\nin:\n{output}");
        }
    }
    Ok(())
}

/// Whether a line is as wanted: `...` stands for anything, any run of blanks for any other.
fn matches(line: &str, wanted: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (line, wanted) = (squeeze(line), squeeze(wanted));
    let parts: Vec<&str> = wanted.split("...").map(str::trim).collect();
    let [first, .., last] = parts.as_slice() else { return line == wanted };
    let mut rest = match line.strip_prefix(first) {
        Some(rest) => rest,
        None => return false,
    };
    for part in &parts[1..parts.len() - 1] {
        match rest.find(part) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_stand_for_anything_and_blanks_for_blanks() {
        assert!(matches("shop   guaranteed  2 Gbps, delay 31 us", "shop guaranteed 2 Gbps, ..."));
        assert!(matches("written: report/index.html", "written: ...html"));
        assert!(matches("a b c d", "a ... c ..."));
        assert!(!matches("a b d", "a ... c ..."));
        assert!(!matches("shopping", "shop"));
    }

    #[test]
    fn expected_lines_keep_their_order() {
        let wanted = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        assert!(shows("a\nx\nb\n", &wanted(&["a", "b"])).is_ok());
        assert!(shows("b\na\n", &wanted(&["a", "b"])).is_err());
    }

    #[test]
    fn a_block_of_no_known_kind_is_an_error() {
        assert!(blocks("```bash\nls\n```\n").is_err());
        assert!(blocks("```console\nno command\n```\n").is_err());
        assert!(blocks("```text\nnever closed\n").is_err());
    }

    #[test]
    fn a_command_may_expect_to_fail() {
        let blocks = blocks("```console\n$ false # exit 1\n$ echo hi\nhi\n```\n").unwrap();
        let Kind::Console(commands) = &blocks[0].kind else { panic!("a console block") };
        assert_eq!((commands[0].line.as_str(), commands[0].status), ("false", 1));
        assert_eq!(commands[1].expected, ["hi"]);
    }
}
