//! Assertions about a run: `create.ops > 3.5 * native.create.ops`, for CI and for the acceptance of a purchase.
//!
//! ```text
//! assertion  = comparison { "and" comparison }
//! comparison = sum ( ">" | ">=" | "<" | "<=" ) sum
//! sum        = product { ( "+" | "-" ) product }
//! product    = factor { ( "*" | "/" ) factor }
//! factor     = number | name | "(" sum ")" | "-" factor
//! name       = [ target "." ] [ workload ":" ] metric [ "[" parameter "=" value { "," parameter "=" value } "]" ] "." quantity
//! ```
//!
//! A name without a target belongs to the one target that the assertion does not name. Of several entries the one with
//! the most clients is meant; if that leaves several, the conditions in brackets must choose.

mod lookup;
mod syntax;
#[cfg(test)]
mod tests;

pub use syntax::Assertion;

use crate::Result;
use crate::run_file::RunFile;
use lookup::Lookup;
use serde::Serialize;
use syntax::{Comparison, Expression, Relation};

/// One comparison of an assertion with the figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckedComparison {
    /// `create.ops > 3.5 * native.create.ops`, as it was written.
    pub text: String,
    /// Of medians.
    pub left: f64,
    pub right: f64,
    pub holds: bool,
    /// Whether it holds, or fails, for all values in the intervals of the medians. `None`: there are too few turns.
    pub certain: Option<bool>,
}

impl Assertion {
    /// Evaluates all comparisons. `of`: the target of names that give none.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] if a name has no figure in the run, or several.
    pub fn check(&self, run: &RunFile, of: Option<&str>) -> Result<Vec<CheckedComparison>> {
        let lookup = Lookup::of(run, of, &self.targets(run))?;
        self.comparisons.iter().map(|comparison| evaluate(comparison, &lookup)).collect()
    }

    /// The targets that it names.
    fn targets(&self, run: &RunFile) -> Vec<String> {
        let mut named = Vec::new();
        for comparison in &self.comparisons {
            for side in [&comparison.left, &comparison.right] {
                side.names(&mut |name| {
                    let target = name.target(run);
                    named.extend(target.filter(|target| !named.contains(target)));
                });
            }
        }
        named
    }
}

/// A value with the bounds of its interval, if it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounded {
    value: f64,
    bounds: Option<(f64, f64)>,
}

fn evaluate(comparison: &Comparison, lookup: &Lookup) -> Result<CheckedComparison> {
    let (left, right) = (value(&comparison.left, lookup)?, value(&comparison.right, lookup)?);
    let holds = comparison.relation.holds(left.value, right.value);
    let certain = left.bounds.zip(right.bounds).map(|(left, right)| {
        let corners = [(left.0, right.0), (left.0, right.1), (left.1, right.0), (left.1, right.1)];
        corners.into_iter().all(|(left, right)| comparison.relation.holds(left, right) == holds)
    });
    Ok(CheckedComparison { text: comparison.text.clone(), left: left.value, right: right.value, holds, certain })
}

fn value(expression: &Expression, lookup: &Lookup) -> Result<Bounded> {
    match expression {
        Expression::Number(value) => Ok(Bounded { value: *value, bounds: Some((*value, *value)) }),
        Expression::Name(name) => lookup.find(name),
        Expression::Negative(of) => {
            let of = value(of, lookup)?;
            Ok(Bounded { value: -of.value, bounds: of.bounds.map(|(low, high)| (-high, -low)) })
        }
        Expression::Pair(operator, left, right) => {
            let (left, right) = (value(left, lookup)?, value(right, lookup)?);
            let apply = |a: f64, b: f64| operator.apply(a, b);
            let bounds = left.bounds.zip(right.bounds).map(|(left, right)| {
                let corners =
                    [apply(left.0, right.0), apply(left.0, right.1), apply(left.1, right.0), apply(left.1, right.1)];
                corners
                    .into_iter()
                    .fold((f64::MAX, f64::MIN), |(low, high), corner| (low.min(corner), high.max(corner)))
            });
            Ok(Bounded { value: apply(left.value, right.value), bounds })
        }
    }
}

impl Relation {
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Relation::Above => left > right,
            Relation::AtLeast => left >= right,
            Relation::Below => left < right,
            Relation::AtMost => left <= right,
        }
    }
}
