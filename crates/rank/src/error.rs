//! Errors in a program's text: where, what, and what to do.
//!
//! Not here: errors at run time; there are none.
//! Invariant: an error's line and column, counted from 1, lie in the text or just behind its end.

use core::fmt;

use crate::program::{MOST_BYTES, MOST_DEPTH, MOST_LOCALS, MOST_STATE};

/// An error in a program's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The line's text.
    pub source_line: String,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text is too long.
    #[error("the text has {0} bytes; a program may have {MOST_BYTES}")]
    TooLong(usize),
    /// A character that no word begins with.
    #[error("`{}` is not part of the language; remove it", .0.escape_default())]
    Character(char),
    /// A number beyond 64 bits.
    #[error("the number is too large; the largest is {}", u64::MAX)]
    Number,
    /// Another word was expected.
    #[error("{found} where {expected} is expected")]
    Expected {
        /// What stands there.
        found: String,
        /// What may stand there.
        expected: &'static str,
    },
    /// A name that was not declared.
    #[error("`{0}` is not known here; declare it with `state {0} = 0` or `let {0} = ...`")]
    Unknown(String),
    /// A field that does not exist.
    #[error("there is no field `{0}`; the fields are {fields}", fields = fields())]
    UnknownField(String),
    /// A word of the language as a name.
    #[error("`{0}` is a word of the language; choose another name")]
    Reserved(String),
    /// A name that was declared before.
    #[error("`{0}` is declared already; choose another name")]
    Twice(String),
    /// A variable of each class without its index.
    #[error("each class has its own `{0}`; write `{0}[class]`")]
    NeedsClass(String),
    /// An index behind a variable that has none.
    #[error("`{0}` has no index; write `{0}`, or declare it with `state {0}[class] = 0`")]
    NoClass(String),
    /// A field was assigned to.
    #[error("`{0}` can only be read; assign to a state variable")]
    ReadOnly(String),
    /// The rank is read before it is assigned.
    #[error("`rank` has no value yet on some path to here; assign it first")]
    RankUnset,
    /// The rank outside `enqueue`.
    #[error("`rank` is assigned in `enqueue` only; read it as `packet.rank` in `dequeue`")]
    RankInDequeue,
    /// The rank is read as a field in `enqueue`.
    #[error("`packet.rank` has a value in `dequeue` only; read `rank` in `enqueue`")]
    RankInEnqueue,
    /// A path through `enqueue` that assigns no rank.
    #[error("`enqueue` can end without a rank; assign `rank` on each path")]
    NoRank,
    /// A text without `enqueue`.
    #[error("the program has no `enqueue`; add `enqueue {{ rank = ... }}`")]
    NoEnqueue,
    /// Blocks and parentheses that nest too deep.
    #[error("blocks and parentheses nest deeper than {MOST_DEPTH}; split the expression with `let`")]
    TooDeep,
    /// Too many state variables.
    #[error("the program has more than {MOST_STATE} state variables; remove some")]
    TooMuchState,
    /// Too many locals.
    #[error("the function has more than {MOST_LOCALS} variables of `let`; remove some")]
    TooManyLocals,
}

impl Error {
    /// The problem at the byte `at` of `text`.
    pub(crate) fn new(text: &str, at: usize, problem: Problem) -> Self {
        let before = &text[..text.floor_char_boundary(at)];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let source_line = text[start..].lines().next().unwrap_or("").to_owned();
        let line = before.matches('\n').count() + 1;
        let column = before[start..].chars().count() + 1;
        Self { line, column, source_line, problem }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, source_line, problem } = self;
        writeln!(f, "{line}:{column}: {problem}")?;
        writeln!(f, "{line:>4} | {source_line}")?;
        // Tabs stay tabs, so that the mark stands below its column.
        let indent = source_line.chars().take(column - 1).map(|c| if c == '\t' { c } else { ' ' });
        write!(f, "     | {}^", indent.collect::<String>())
    }
}

impl core::error::Error for Error {}

fn fields() -> String {
    crate::packet::Field::ALL.map(|field| format!("`{}`", field.name())).join(", ")
}
