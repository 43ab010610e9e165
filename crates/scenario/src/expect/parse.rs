//! Reads an expectation.
//!
//! Why: the grammar is small, and a mistake is shown with a caret at its word.
//! From: precedence climbing by recursive descent.
//! Not here: whether names exist and units fit (`check`).
//! Invariant: nesting is bounded, so that no text overflows the stack.

use std::ops::Range;

use plimsoll_document::nearest;
use plimsoll_units::Span;

use super::lex::{Token, lex};
use super::{Claim, Compare, Expectation, Expr, ExprKind, Function, Gauge, Operator, Path, Quantity, Unit};
use crate::Problem;
use crate::results::COUNTERS;

type Parsed<T> = Result<T, Box<Problem>>;

/// Deepest nesting of parentheses and signs.
const MAX_DEPTH: u32 = 40;

/// Reads one line; positions in problems count from the start of `text`.
pub(crate) fn parse(text: &str) -> Parsed<Expectation> {
    let mut parser = Parser { tokens: lex(text)?, at: 0, end: text.len(), depth: 0 };
    let claim = parser.claim()?;
    if parser.at < parser.tokens.len() {
        let help = "one line compares two sides once; write a second line for a second comparison";
        return Err(parser.wrong("the expectation should end here", help));
    }
    Ok(Expectation { text: text.to_owned(), because: None, claim })
}

/// Reads one side of an expectation, standing alone.
pub(crate) fn parse_quantity(text: &str) -> Parsed<Quantity> {
    let mut parser = Parser { tokens: lex(text)?, at: 0, end: text.len(), depth: 0 };
    let expr = parser.sum()?;
    if parser.at < parser.tokens.len() {
        return Err(parser.wrong("the value should end here", "a value is one side of an expectation"));
    }
    Ok(Quantity { text: text.to_owned(), expr })
}

struct Parser {
    tokens: Vec<(Token, Range<usize>)>,
    at: usize,
    end: usize,
    depth: u32,
}

impl Parser {
    /// `sum (<=|<|>=|>) sum` or `sum (~|!~) sum +- sum`.
    fn claim(&mut self) -> Parsed<Claim> {
        let left = self.sum()?;
        let op = self.compare()?;
        let right = self.sum()?;
        let tolerance = if matches!(op, Compare::Near | Compare::Far) {
            if !self.take("+-") {
                let help =
                    "`a ~ b +- 5%` holds when a is within 5 % of b; a size may stand there too: `+- 0.5Mbps`";
                return Err(self.wrong("`~` needs `+-` and how far the sides may be apart", help));
            }
            Some(self.sum()?)
        } else {
            None
        };
        Ok(Claim { left, op, right, tolerance })
    }

    fn compare(&mut self) -> Parsed<Compare> {
        use Compare::{Far, Ge, Gt, Le, Lt, Near};
        for op in [Le, Lt, Ge, Gt, Near, Far] {
            if self.take(op.sign()) {
                return Ok(op);
            }
        }
        Err(self.wrong("a comparison is missing here", "compare with `<=`, `>=`, `<`, `>` or `a ~ b +- 5%`"))
    }

    fn sum(&mut self) -> Parsed<Expr> {
        let mut left = self.product()?;
        loop {
            let op = if self.take("+") {
                Operator::Add
            } else if self.take("-") {
                Operator::Sub
            } else {
                return Ok(left);
            };
            let right = self.product()?;
            left = binary(op, left, right);
        }
    }

    fn product(&mut self) -> Parsed<Expr> {
        let mut left = self.operand()?;
        loop {
            let op = if self.take("*") {
                Operator::Mul
            } else if self.take("/") {
                Operator::Div
            } else {
                return Ok(left);
            };
            let right = self.operand()?;
            left = binary(op, left, right);
        }
    }

    fn operand(&mut self) -> Parsed<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong("nested too deeply", "split the expectation into several lines"));
        }
        let operand = self.operand_at_depth();
        self.depth -= 1;
        operand
    }

    fn operand_at_depth(&mut self) -> Parsed<Expr> {
        let start = self.place().start;
        if self.take("-") {
            let inner = self.operand()?;
            return Ok(Expr { at: start..inner.at.end, kind: ExprKind::Negate(Box::new(inner)) });
        }
        if self.take("(") {
            let inner = self.sum()?;
            self.need(")")?;
            return Ok(inner);
        }
        let place = self.place();
        match self.next() {
            Some(Token::Number(value, unit)) => Ok(Expr { at: place, kind: ExprKind::Number(value, unit) }),
            Some(Token::Word(word)) if word == "line" => Ok(Expr { at: place, kind: ExprKind::Line }),
            Some(Token::Word(word)) if self.take("(") => self.call(&word, place),
            Some(Token::Word(word)) => self.path(&word, place),
            _ => {
                self.at -= 1; // `next` always goes one on; the caret belongs to what it took
                let help = "a measure (`plimsoll.shop.p99`), a number with its unit, `line`, or a function";
                Err(self.wrong("a value is missing here", help))
            }
        }
    }

    /// `name(a, b)`, its name and parenthesis read already.
    fn call(&mut self, name: &str, at: Range<usize>) -> Parsed<Expr> {
        if matches!(name, "fraction" | "settled") {
            let claim = Box::new(self.claim()?);
            let end = self.need(")")?.end;
            let kind = if name == "settled" { ExprKind::Settled(claim) } else { ExprKind::Fraction(claim) };
            return Ok(Expr { at: at.start..end, kind });
        }
        if name == "each" {
            return self.each(at);
        }
        let Some(function) = Function::named(name) else {
            let known = Function::NAMES.into_iter().chain(["fraction", "settled", "each"]);
            let near = nearest(name, known.clone()).map(|near| format!("did you mean `{near}`? "));
            let all = known.collect::<Vec<_>>().join("`, `");
            let problem =
                Problem::new(at, format!("there is no function `{name}`")).label("unknown function");
            return Err(Box::new(problem.help(format!("{}there are `{all}`", near.unwrap_or_default()))));
        };
        let mut arguments = vec![self.sum()?];
        while self.take(",") {
            arguments.push(self.sum()?);
        }
        let end = self.need(")")?.end;
        Ok(Expr { at: at.start..end, kind: ExprKind::Call(function, arguments) })
    }

    /// `each(system.family.measure)`, read up to its parenthesis.
    fn each(&mut self, at: Range<usize>) -> Parsed<Expr> {
        let argument = self.sum()?;
        let end = self.need(")")?.end;
        match argument.kind {
            ExprKind::Path(path) if path.per.is_none() => {
                Ok(Expr { at: argument.at, kind: ExprKind::Path(Path { each: true, ..path }) })
            }
            _ => {
                let problem = Problem::new(at.start..end, "`each` takes one measure, without `per`");
                let help =
                    "`max(each(plimsoll.c.gap_stddev))` is the worst of all that `repeat` makes of `c`";
                Err(Box::new(problem.label("not one measure").help(help)))
            }
        }
    }

    /// `system.subject.measure[a..b] per c`, its words read already.
    fn path(&mut self, words: &str, at: Range<usize>) -> Parsed<Expr> {
        let (system, subject, name) = split_path(words, &at)?;
        let Some(measure) = Gauge::named(name) else {
            return Err(unknown_measure(words, name, at));
        };
        let mut end = at.end;
        let window = if self.take("[") { Some(self.window(&mut end)?) } else { None };
        let per = if self.take_word("per") {
            end = self.place().end;
            Some(self.time("how long each window is")?)
        } else {
            None
        };
        let (system, subject) = (system.to_owned(), subject.map(str::to_owned));
        Ok(Expr {
            at: at.start..end,
            kind: ExprKind::Path(Path { system, subject, measure, window, per, each: false }),
        })
    }

    fn window(&mut self, end: &mut usize) -> Parsed<(Span, Span)> {
        let start = self.place();
        let from = self.time("where the window begins")?;
        self.need("..")?;
        let to = self.time("where the window ends")?;
        *end = self.need("]")?.end;
        if to <= from {
            let problem = Problem::new(start.start..*end - 1, format!("the window [{from}..{to}] is empty"));
            return Err(Box::new(
                problem.label("ends before it begins").help("write the earlier moment first"),
            ));
        }
        Ok((from, to))
    }

    fn time(&mut self, what: &str) -> Parsed<Span> {
        let place = self.place();
        match self.next() {
            Some(Token::Number(seconds, Unit::Time)) => Ok(Span::ns((seconds * 1e9).round() as u64)),
            _ => {
                let problem = Problem::new(place, format!("a time is missing here: {what}"));
                Err(Box::new(
                    problem.label("a time such as `2s` or `50ms`").help("write `[2s..4s]` or `per 50ms`"),
                ))
            }
        }
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).map(|(token, _)| token.clone());
        self.at += 1;
        token
    }

    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((Token::Sign(found), _)) if *found == sign);
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some((Token::Word(found), _)) if found == word);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, sign: &str) -> Parsed<Range<usize>> {
        let place = self.place();
        if self.take(sign) {
            return Ok(place);
        }
        Err(self.wrong(&format!("`{sign}` is missing here"), "each bracket that opens must close"))
    }

    /// Where the next token stands, or the end of the line.
    fn place(&self) -> Range<usize> {
        self.tokens.get(self.at).map_or(self.end..self.end, |(_, at)| at.clone())
    }

    fn wrong(&self, message: &str, help: &str) -> Box<Problem> {
        Box::new(Problem::new(self.place(), message).label("here").help(help))
    }
}

fn binary(op: Operator, left: Expr, right: Expr) -> Expr {
    Expr { at: left.at.start..right.at.end, kind: ExprKind::Binary(op, Box::new(left), Box::new(right)) }
}

/// System, subject and measure of `a.b.c` or `a.c`; the measure may have a dot of its own (`p99.9`).
fn split_path<'a>(words: &'a str, at: &Range<usize>) -> Parsed<(&'a str, Option<&'a str>, &'a str)> {
    let mut parts = words.splitn(3, '.');
    let (system, second, third) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    match (second, third) {
        (Some(subject), Some(measure)) if !joined_percentile(subject, measure) => {
            Ok((system, Some(subject), measure))
        }
        (Some(_), _) => Ok((system, None, &words[system.len() + 1..])),
        (None, _) => {
            let problem = Problem::new(at.clone(), format!("`{words}` is no measure")).label("a name alone");
            Err(Box::new(problem.help(
                "write `SYSTEM.TENANT.MEASURE`, `SYSTEM.WORKLOAD.MEASURE` or `SYSTEM.MEASURE`, such as `plimsoll.shop.p99`",
            )))
        }
    }
}

fn joined_percentile(a: &str, b: &str) -> bool {
    a.starts_with('p') && b.chars().all(|c| c.is_ascii_digit()) && Gauge::named(&format!("{a}.{b}")).is_some()
}

fn unknown_measure(words: &str, name: &str, at: Range<usize>) -> Box<Problem> {
    let start = at.end - name.len();
    let known = Gauge::NAMES.into_iter().chain(COUNTERS);
    let near = nearest(name, known.clone()).map(|near| format!("did you mean `{near}`? "));
    let all = known.collect::<Vec<_>>().join("`, `");
    let problem = Problem::new(start..at.end, format!("`{words}` names no measure: there is no `{name}`"));
    Box::new(problem.label("unknown measure").help(format!("{}there are `{all}`", near.unwrap_or_default())))
}
