//! The parser of assertions.

use crate::run_file::RunFile;
use crate::{Error, Result};
use std::str::FromStr;

/// A longer assertion is better divided.
const CHARS_MAX: usize = 2_000;
/// Parentheses and signs within each other.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq)]
pub struct Assertion {
    pub(super) comparisons: Vec<Comparison>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    pub text: String,
    pub left: Expression,
    pub relation: Relation,
    pub right: Expression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Above,
    AtLeast,
    Below,
    AtMost,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    Number(f64),
    Name(FigureName),
    Negative(Box<Expression>),
    Pair(Operator, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// `native.create[clients=8].ops`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FigureName {
    /// As it was written.
    pub text: String,
    /// Words before the quantity: the metric, perhaps with the target before it.
    pub words: String,
    pub conditions: Vec<(String, String)>,
    pub quantity: String,
}

impl Operator {
    pub(super) fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
        }
    }
}

impl Expression {
    pub(super) fn names<'a>(&'a self, each: &mut impl FnMut(&'a FigureName)) {
        match self {
            Expression::Number(_) => {}
            Expression::Name(name) => each(name),
            Expression::Negative(of) => of.names(each),
            Expression::Pair(_, left, right) => {
                left.names(each);
                right.names(each);
            }
        }
    }
}

impl FigureName {
    /// The target, if the name begins with the label of one. Labels may contain dots.
    pub(super) fn target(&self, run: &RunFile) -> Option<String> {
        let is_before = |label: &&str| self.words.strip_prefix(*label).is_some_and(|rest| rest.starts_with('.'));
        let labels = run.targets.iter().map(|target| target.label.as_str());
        labels.filter(is_before).max_by_key(|label| label.len()).map(str::to_owned)
    }
}

impl FromStr for Assertion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Assertion> {
        if text.chars().count() > CHARS_MAX {
            return Err(Error::Usage(format!("an assertion has at most {CHARS_MAX} characters")));
        }
        let mut parser = Parser { text, at: 0, depth: 0 };
        let mut comparisons = vec![parser.comparison()?];
        while parser.skip_word("and") {
            comparisons.push(parser.comparison()?);
        }
        parser.skip_spaces();
        if parser.at < text.len() {
            return Err(parser.error("`and`, an operator or the end"));
        }
        Ok(Assertion { comparisons })
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn comparison(&mut self) -> Result<Comparison> {
        self.skip_spaces();
        let begin = self.at;
        let left = self.sum()?;
        let relations =
            [(">=", Relation::AtLeast), ("<=", Relation::AtMost), (">", Relation::Above), ("<", Relation::Below)];
        let Some((_, relation)) = relations.into_iter().find(|(sign, _)| self.skip(sign)) else {
            return Err(self.error("a comparison (>, >=, <, <=)"));
        };
        let right = self.sum()?;
        Ok(Comparison { text: self.text[begin..self.at].trim().to_owned(), left, relation, right })
    }

    fn sum(&mut self) -> Result<Expression> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Subtract)], Parser::product)
    }

    fn product(&mut self) -> Result<Expression> {
        self.chain(&[("*", Operator::Multiply), ("/", Operator::Divide)], Parser::factor)
    }

    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        part: fn(&mut Parser<'a>) -> Result<Expression>,
    ) -> Result<Expression> {
        let mut left = part(self)?;
        while let Some((_, operator)) = operators.iter().find(|(sign, _)| self.skip(sign)) {
            left = Expression::Pair(*operator, Box::new(left), Box::new(part(self)?));
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Expression> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error("less nesting"));
        }
        let factor = self.flat_factor();
        self.depth -= 1;
        factor
    }

    fn flat_factor(&mut self) -> Result<Expression> {
        if self.skip("(") {
            let inner = self.sum()?;
            return if self.skip(")") { Ok(inner) } else { Err(self.error("`)`")) };
        }
        if self.skip("-") {
            return Ok(Expression::Negative(Box::new(self.factor()?)));
        }
        self.skip_spaces();
        match self.rest().chars().next() {
            Some(first) if first.is_ascii_digit() => self.number(),
            Some(first) if is_word(first) => self.name(),
            _ => Err(self.error("a number or a figure such as create.ops")),
        }
    }

    fn number(&mut self) -> Result<Expression> {
        let length = self.rest().find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(self.rest().len());
        let text = &self.rest()[..length];
        let Ok(value) = text.parse() else { return Err(self.error("a number such as 3.5")) };
        self.at += length;
        Ok(Expression::Number(value))
    }

    fn name(&mut self) -> Result<Expression> {
        let begin = self.at;
        let mut words = self.words();
        let mut conditions = Vec::new();
        if self.skip("[") {
            loop {
                let parameter = self.words();
                if parameter.is_empty() || !self.skip("=") {
                    return Err(self.error("a condition such as clients=8"));
                }
                let value = self.words();
                conditions.push((parameter, value));
                if !self.skip(",") {
                    break;
                }
            }
            if !self.skip("]") {
                return Err(self.error("`]`"));
            }
            words += &self.words();
        }
        let text = self.text[begin..self.at].trim_end().to_owned();
        match words.rsplit_once('.') {
            Some((words, quantity)) if !words.is_empty() && !quantity.is_empty() => Ok(Expression::Name(FigureName {
                text,
                words: words.to_owned(),
                conditions,
                quantity: quantity.to_owned(),
            })),
            _ => {
                self.at = begin;
                Err(self.error("a figure with its quantity, such as create.ops"))
            }
        }
    }

    fn words(&mut self) -> String {
        self.skip_spaces();
        // A dash belongs to a name if no space is before it: `ls-l.s - 1`.
        let length = self.rest().find(|c: char| !is_word(c) && c != '-').unwrap_or(self.rest().len());
        let words = self.rest()[..length].to_owned();
        self.at += length;
        words
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn skip(&mut self, sign: &str) -> bool {
        self.skip_spaces();
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    fn skip_word(&mut self, word: &str) -> bool {
        self.skip_spaces();
        let follows = self.rest().strip_prefix(word).and_then(|rest| rest.chars().next());
        follows.is_some_and(|next| !is_word(next)) && self.skip(word)
    }

    fn error(&self, wanted: &str) -> Error {
        let rest: String = self.rest().trim_start().chars().take(20).collect();
        let found = if rest.is_empty() { "the end".to_owned() } else { format!("`{rest}`") };
        let place = self.text[..self.at].chars().count() + 1;
        Error::Usage(format!("cannot understand the assertion at character {place}: found {found} instead of {wanted}"))
    }
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || "_.:".contains(character)
}
