//! A program that has been parsed: its state, and its two functions.
//!
//! Why: the interpreter and the compiler start from one form, in which every name is resolved.
//! Not here: the text (`parse`).
//! Invariant: an expression leaves exactly one value on the stack, and `enqueue` assigns the rank on each path.

use crate::arithmetic::Operator;
use crate::compile::{self, Module};
use crate::error::Error;
use crate::packet::Field;
use crate::parse;

/// A rank program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// First values of the variables that the node has once.
    pub(crate) node: Vec<u64>,
    /// First values of the variables that each class has.
    pub(crate) class: Vec<u64>,
    pub(crate) enqueue: Function,
    pub(crate) dequeue: Function,
}

/// `enqueue` or `dequeue`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) body: Vec<Statement>,
    /// Locals. The first is the rank, in `dequeue` too, so that both are called alike.
    pub(crate) locals: u32,
    /// Whether it reads or assigns a class's variables.
    pub(crate) uses_class: bool,
}

impl Function {
    /// The `dequeue` of a program without one.
    pub(crate) const NOTHING: Self = Self { body: Vec::new(), locals: 1, uses_class: false };

    /// Most values that wait while an expression is evaluated: no more than it has steps.
    pub(crate) fn deepest(&self) -> usize {
        longest(&self.body)
    }
}

/// Whether a block reads a field.
fn reads(block: &[Statement], field: Field) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Assign(_, value) => value.contains(&Step::Field(field)),
        Statement::If { condition, then, otherwise } => {
            condition.contains(&Step::Field(field)) || reads(then, field) || reads(otherwise, field)
        }
    })
}

/// Steps of the longest expression of a block.
fn longest(block: &[Statement]) -> usize {
    let of = |statement: &Statement| match statement {
        Statement::Assign(_, value) => value.len(),
        Statement::If { condition, then, otherwise } => {
            condition.len().max(longest(then)).max(longest(otherwise))
        }
    };
    block.iter().map(of).max().unwrap_or(0)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    Assign(Variable, Expression),
    If { condition: Expression, then: Vec<Statement>, otherwise: Vec<Statement> },
}

/// Steps on a stack of values. A tree would nest as deep as a sum is long.
pub(crate) type Expression = Vec<Step>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Number(u64),
    Field(Field),
    Read(Variable),
    Not,
    Apply(Operator),
}

/// A variable, by its place among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    Node(u32),
    Class(u32),
    Local(u32),
}

impl Variable {
    /// The rank in `enqueue`.
    pub(crate) const RANK: Self = Self::Local(0);
}

/// Most bytes of a program's text.
pub const MOST_BYTES: usize = 16 * 1024;
/// Most blocks and parentheses within each other.
pub const MOST_DEPTH: u32 = 32;
/// Most state variables.
pub const MOST_STATE: usize = 16;
/// Most variables that `let` makes in one function.
pub const MOST_LOCALS: u32 = 32;
/// Most classes that have state of their own. Classes of this number and beyond share the state of the last one.
pub const MOST_CLASSES: u64 = 1_024;

impl Program {
    /// Reads a program's text.
    ///
    /// # Errors
    ///
    /// The first [`Error`] in the text.
    pub fn parse(text: &str) -> Result<Self, Error> {
        parse::program(text)
    }

    /// Whether it reads this field.
    #[must_use]
    pub fn reads(&self, field: Field) -> bool {
        [&self.enqueue, &self.dequeue].iter().any(|function| reads(&function.body, field))
    }

    /// Compiles to WebAssembly.
    #[must_use]
    pub fn compile(&self) -> Module {
        compile::module(self)
    }
}
