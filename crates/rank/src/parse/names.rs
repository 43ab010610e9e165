//! Names: which variable each stands for at a point of the text.
//!
//! Why: state is known from its declaration on, and a local until its block ends.
//! Not here: fields, which are always known (`packet`).
//! Invariant: a name stands for one thing at a time; there is no shadowing.

use crate::error::Problem;
use crate::program::{MOST_LOCALS, MOST_STATE, Variable};

#[derive(Debug, Default)]
pub(super) struct Names<'a> {
    known: Vec<(&'a str, Variable)>,
    /// First values of the state of the node, and of each class.
    node: Vec<u64>,
    class: Vec<u64>,
    in_enqueue: bool,
    /// Locals of the function so far, the rank among them.
    locals: u32,
}

const RESERVED: [&str; 13] = [
    "state", "enqueue", "dequeue", "let", "if", "else", "min", "max", "rank", "now", "packet", "class",
    "node",
];

impl<'a> Names<'a> {
    /// Begins a function, in which only the rank is a local so far.
    pub(super) fn begin(&mut self, enqueue: bool) {
        self.in_enqueue = enqueue;
        self.locals = 1;
    }

    pub(super) fn in_enqueue(&self) -> bool {
        self.in_enqueue
    }

    pub(super) fn locals(&self) -> u32 {
        self.locals
    }

    pub(super) fn add_state(&mut self, name: &'a str, of_class: bool, first: u64) -> Result<(), Problem> {
        self.check_new(name)?;
        if self.node.len() + self.class.len() == MOST_STATE {
            return Err(Problem::TooMuchState);
        }
        let values = if of_class { &mut self.class } else { &mut self.node };
        let at = values.len() as u32;
        values.push(first);
        self.known.push((name, if of_class { Variable::Class(at) } else { Variable::Node(at) }));
        Ok(())
    }

    pub(super) fn add_local(&mut self, name: &'a str) -> Result<Variable, Problem> {
        self.check_new(name)?;
        if self.locals > MOST_LOCALS {
            return Err(Problem::TooManyLocals);
        }
        let variable = Variable::Local(self.locals);
        self.locals += 1;
        self.known.push((name, variable));
        Ok(variable)
    }

    pub(super) fn find(&self, name: &str) -> Result<Variable, Problem> {
        let found = self.known.iter().find(|(known, _)| *known == name);
        match (name, found) {
            (_, Some(&(_, variable))) => Ok(variable),
            ("rank", None) if self.in_enqueue => Ok(Variable::RANK),
            ("rank", None) => Err(Problem::RankInDequeue),
            (_, None) if name.contains('.') => Err(Problem::UnknownField(name.to_owned())),
            (_, None) if RESERVED.contains(&name) => Err(Problem::Reserved(name.to_owned())),
            (_, None) => Err(Problem::Unknown(name.to_owned())),
        }
    }

    /// What is known now, for [`Names::forget`].
    pub(super) fn mark(&self) -> usize {
        self.known.len()
    }

    /// Forgets what has become known since the mark.
    pub(super) fn forget(&mut self, mark: usize) {
        self.known.truncate(mark);
    }

    /// First values of the state: of the node, and of each class.
    pub(super) fn into_state(self) -> (Vec<u64>, Vec<u64>) {
        (self.node, self.class)
    }

    fn check_new(&self, name: &str) -> Result<(), Problem> {
        if RESERVED.contains(&name) {
            return Err(Problem::Reserved(name.to_owned()));
        }
        if self.known.iter().any(|(known, _)| *known == name) {
            return Err(Problem::Twice(name.to_owned()));
        }
        Ok(())
    }
}
