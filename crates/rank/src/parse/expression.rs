//! Expressions, by precedence.
//!
//! ```text
//! expression = and { "||" and }
//! and        = comparison { "&&" comparison }
//! comparison = sum [ ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) sum ]
//! sum        = product { ( "+" | "-" ) product }
//! product    = operand { ( "*" | "/" | "%" ) operand }
//! operand    = number | field | "rank" | name [ "[" "class" "]" ] | "!" operand | "(" expression ")"
//!            | ( "min" | "max" ) "(" expression { "," expression } ")"
//! ```
//!
//! Not here: what an operator does (`arithmetic`).
//! Invariant: each function appends steps that leave one value more on the stack.

use super::Parser;
use crate::arithmetic::Operator;
use crate::error::{Error, Problem};
use crate::lex::{Token, Word};
use crate::packet::Field;
use crate::program::{Expression, Step, Variable};

/// Operators of one precedence.
struct Level {
    operators: &'static [(&'static str, Operator)],
    /// Whether several may follow each other. Comparisons may not: `a < b < c` would not mean what it seems to.
    repeats: bool,
}

/// The operators, those that bind least first.
const LEVELS: [Level; 5] = [
    Level { operators: &[("||", Operator::Or)], repeats: true },
    Level { operators: &[("&&", Operator::And)], repeats: true },
    Level {
        operators: &[
            ("<", Operator::Less),
            ("<=", Operator::LessEqual),
            (">", Operator::Greater),
            (">=", Operator::GreaterEqual),
            ("==", Operator::Equal),
            ("!=", Operator::NotEqual),
        ],
        repeats: false,
    },
    Level { operators: &[("+", Operator::Add), ("-", Operator::Subtract)], repeats: true },
    Level {
        operators: &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)],
        repeats: true,
    },
];

impl<'a> Parser<'a> {
    pub(super) fn expression(&mut self) -> Result<Expression, Error> {
        let mut steps = Vec::new();
        self.level(&LEVELS, &mut steps)?;
        Ok(steps)
    }

    /// Operands of the first level's operators, with those operators.
    fn level(&mut self, levels: &[Level], steps: &mut Expression) -> Result<(), Error> {
        let Some((level, tighter)) = levels.split_first() else { return self.operand(steps) };
        self.level(tighter, steps)?;
        while let Some(operator) = self.operator(level) {
            self.level(tighter, steps)?;
            steps.push(Step::Apply(operator));
            if !level.repeats {
                break;
            }
        }
        Ok(())
    }

    fn operator(&mut self, level: &Level) -> Option<Operator> {
        level.operators.iter().find(|(sign, _)| self.accept(sign)).map(|&(_, operator)| operator)
    }

    fn operand(&mut self, steps: &mut Expression) -> Result<(), Error> {
        self.descend()?;
        let start = self.take();
        match start.word {
            Word::Number(number) => steps.push(Step::Number(number)),
            Word::Sign("!") => {
                self.operand(steps)?;
                steps.push(Step::Not);
            }
            Word::Sign("(") => {
                self.level(&LEVELS, steps)?;
                self.expect(")", "an operator or `)`")?;
            }
            Word::Name("min") => self.least_or_most(Operator::Min, steps)?,
            Word::Name("max") => self.least_or_most(Operator::Max, steps)?,
            Word::Name(name) => steps.push(self.read(start, name)?),
            Word::Sign(_) | Word::End => return Err(self.unexpected(start, "a value")),
        }
        self.depth -= 1;
        Ok(())
    }

    /// The rest of `min` or `max`.
    fn least_or_most(&mut self, operator: Operator, steps: &mut Expression) -> Result<(), Error> {
        self.expect("(", "`(`")?;
        self.level(&LEVELS, steps)?;
        while self.accept(",") {
            self.level(&LEVELS, steps)?;
            steps.push(Step::Apply(operator));
        }
        self.expect(")", "`,`, an operator or `)`")
    }

    /// A field or a variable.
    fn read(&mut self, start: Token<'a>, name: &'a str) -> Result<Step, Error> {
        if let Some(field) = Field::ALL.into_iter().find(|field| field.name() == name) {
            return match field {
                Field::Rank if self.names.in_enqueue() => Err(self.error(start, Problem::RankInEnqueue)),
                _ => Ok(Step::Field(field)),
            };
        }
        let variable = self.variable(start, name)?;
        match variable {
            Variable::RANK if !self.ranked => Err(self.error(start, Problem::RankUnset)),
            _ => Ok(Step::Read(variable)),
        }
    }
}
