//! The parser: from words to a program in which every name is resolved.
//!
//! Why: what can be wrong with a program is found here, so that nothing can go wrong later.
//! From: recursive descent, with a depth that is bounded.
//! Not here: expressions (`parse::expression`), what names stand for (`parse::names`).
//! Invariant: any text gives a program or an error, within a stack that does not depend on the text.
//!
//! ```text
//! program   = { "state" name [ "[" "class" "]" ] "=" number [ ";" ] | "enqueue" block | "dequeue" block }
//! block     = "{" { statement [ ";" ] } "}"
//! statement = "let" name "=" expression
//!           | name [ "[" "class" "]" ] "=" expression
//!           | "if" expression block [ "else" ( block | "if" ... ) ]
//! ```

mod expression;
mod names;

use crate::error::{Error, Problem};
use crate::lex::{Token, Word, words};
use crate::packet::Field;
use crate::program::{Function, MOST_DEPTH, Program, Statement, Variable};
use names::Names;

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    names: Names<'a>,
    /// Blocks and parentheses around the next word.
    depth: u32,
    /// Whether the rank has a value on each path to the next word.
    ranked: bool,
    /// Whether the function so far uses a class's variables.
    uses_class: bool,
}

/// Reads a program.
pub(crate) fn program(text: &str) -> Result<Program, Error> {
    let tokens = words(text)?;
    let mut parser =
        Parser { text, tokens, next: 0, names: Names::default(), depth: 0, ranked: false, uses_class: false };
    let (mut enqueue, mut dequeue) = (None, None);
    loop {
        let start = parser.take();
        match start.word {
            Word::Name("state") => parser.state()?,
            Word::Name("enqueue") if enqueue.is_none() => enqueue = Some(parser.function(true)?),
            Word::Name("dequeue") if dequeue.is_none() => dequeue = Some(parser.function(false)?),
            Word::Name(name @ ("enqueue" | "dequeue")) => {
                return Err(parser.error(start, Problem::Twice(name.to_owned())));
            }
            Word::End => break,
            _ => return Err(parser.unexpected(start, "`state`, `enqueue` or `dequeue`")),
        }
    }
    let enqueue = enqueue.ok_or_else(|| parser.error(parser.peek(), Problem::NoEnqueue))?;
    let (node, class) = parser.names.into_state();
    Ok(Program { node, class, enqueue, dequeue: dequeue.unwrap_or(Function::NOTHING) })
}

impl<'a> Parser<'a> {
    /// The rest of `state`.
    fn state(&mut self) -> Result<(), Error> {
        let token = self.take();
        let name = self.new_name(token)?;
        let of_class = self.index()?;
        self.expect("=", "`=` and a first value")?;
        let start = self.take();
        let Word::Number(first) = start.word else { return Err(self.unexpected(start, "a number")) };
        self.accept(";");
        self.names.add_state(name, of_class, first).map_err(|problem| self.error(token, problem))
    }

    /// The rest of `enqueue` or `dequeue`.
    fn function(&mut self, enqueue: bool) -> Result<Function, Error> {
        self.names.begin(enqueue);
        (self.ranked, self.uses_class) = (false, false);
        let body = self.block()?;
        if enqueue && !self.ranked {
            return Err(self.error(self.last(), Problem::NoRank));
        }
        Ok(Function { body, locals: self.names.locals(), uses_class: self.uses_class })
    }

    fn block(&mut self) -> Result<Vec<Statement>, Error> {
        self.expect("{", "`{`")?;
        self.descend()?;
        let outside = self.names.mark();
        let mut body = Vec::new();
        while !self.accept("}") {
            body.push(self.statement()?);
            self.accept(";");
        }
        self.names.forget(outside);
        self.depth -= 1;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Statement, Error> {
        let start = self.take();
        match start.word {
            Word::Name("if") => self.branch(),
            Word::Name("let") => self.local(),
            Word::Name(name) => self.assignment(start, name),
            _ => Err(self.unexpected(start, "a statement or `}`")),
        }
    }

    /// The rest of `let`. The name is known only behind its own value.
    fn local(&mut self) -> Result<Statement, Error> {
        let token = self.take();
        let name = self.new_name(token)?;
        self.expect("=", "`=` and a value")?;
        let value = self.expression()?;
        let variable = self.names.add_local(name).map_err(|problem| self.error(token, problem))?;
        Ok(Statement::Assign(variable, value))
    }

    fn assignment(&mut self, start: Token<'a>, name: &'a str) -> Result<Statement, Error> {
        if Field::ALL.iter().any(|field| field.name() == name) {
            return Err(self.error(start, Problem::ReadOnly(name.to_owned())));
        }
        let variable = self.variable(start, name)?;
        self.expect("=", "`=` and a value")?;
        let value = self.expression()?;
        self.ranked |= variable == Variable::RANK;
        Ok(Statement::Assign(variable, value))
    }

    /// The rest of `if`.
    fn branch(&mut self) -> Result<Statement, Error> {
        self.descend()?;
        let condition = self.expression()?;
        let before = self.ranked;
        let then = self.block()?;
        let after_then = core::mem::replace(&mut self.ranked, before);
        let otherwise = self.otherwise()?;
        self.ranked &= after_then;
        self.depth -= 1;
        Ok(Statement::If { condition, then, otherwise })
    }

    fn otherwise(&mut self) -> Result<Vec<Statement>, Error> {
        if self.peek().word != Word::Name("else") {
            return Ok(Vec::new());
        }
        self.take();
        if self.peek().word != Word::Name("if") {
            return self.block();
        }
        self.take();
        Ok(vec![self.branch()?])
    }

    /// The variable of this name, and its index.
    fn variable(&mut self, start: Token<'a>, name: &'a str) -> Result<Variable, Error> {
        let variable = self.names.find(name).map_err(|problem| self.error(start, problem))?;
        self.uses_class |= matches!(variable, Variable::Class(_));
        match (variable, self.index()?) {
            (Variable::Class(_), false) => Err(self.error(start, Problem::NeedsClass(name.to_owned()))),
            (Variable::Node(_) | Variable::Local(_), true) => {
                Err(self.error(start, Problem::NoClass(name.to_owned())))
            }
            _ => Ok(variable),
        }
    }

    /// Whether `[class]` follows.
    fn index(&mut self) -> Result<bool, Error> {
        if !self.accept("[") {
            return Ok(false);
        }
        let start = self.take();
        if start.word != Word::Name("class") {
            return Err(self.unexpected(start, "`class`, the only index,"));
        }
        self.expect("]", "`]`")?;
        Ok(true)
    }

    fn new_name(&self, token: Token<'a>) -> Result<&'a str, Error> {
        match token.word {
            Word::Name(name) if !name.contains('.') => Ok(name),
            _ => Err(self.unexpected(token, "a name")),
        }
    }

    /// One block or parenthesis deeper.
    fn descend(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MOST_DEPTH { Err(self.error(self.last(), Problem::TooDeep)) } else { Ok(()) }
    }

    fn expect(&mut self, sign: &str, expected: &'static str) -> Result<(), Error> {
        if self.accept(sign) { Ok(()) } else { Err(self.unexpected(self.peek(), expected)) }
    }

    fn accept(&mut self, sign: &str) -> bool {
        let is_next = self.peek().word == Word::Sign(sign);
        if is_next {
            self.take();
        }
        is_next
    }

    fn peek(&self) -> Token<'a> {
        self.tokens[self.next]
    }

    /// The word before the next one.
    fn last(&self) -> Token<'a> {
        self.tokens[self.next.saturating_sub(1)]
    }

    /// The next word; at the end of the text, the end again.
    fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn unexpected(&self, token: Token<'a>, expected: &'static str) -> Error {
        self.error(token, Problem::Expected { found: token.word.shown(), expected })
    }

    fn error(&self, token: Token<'a>, problem: Problem) -> Error {
        Error::new(self.text, token.at, problem)
    }
}
