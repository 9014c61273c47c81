//! Implementation of verbs by rules.

use super::reader::RowReader;
use super::verb::{Context, Decision, MissingKeys, Refusal, View};

/// How this crate implements a verb: first the rows that it reads, then the rule that decides on them.
pub(super) trait Rule {
    type Outcome;
    type Rows<'a>;

    const REMOVES_DIRECTORY: bool = false;

    /// The rows to decide on; `None` while a requested row is unknown. Rows that do not depend on each other are all
    /// requested before the first one is examined, so that one round fetches them all.
    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>>;

    fn rule(&self, rows: Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Self::Outcome>, Refusal>;
}

pub(super) fn decide<R: Rule>(
    verb: &R,
    seen: &dyn View,
    context: &Context<'_>,
) -> Result<Decision<R::Outcome>, MissingKeys> {
    let reader = RowReader::new(seen);
    match verb.look(&reader) {
        Some(rows) => Ok(verb.rule(rows, context).unwrap_or_else(Decision::Refuse)),
        None => Err(reader.into_missing()),
    }
}
