//! Reads a symlink.

use super::locate::LocatedRow;
use super::node::At;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal};
use bytes::Bytes;
use varve_schema::Content;
use varve_types::Errno;

/// Returns the target of a symlink; EINVAL for any other file.
#[derive(Clone, Debug)]
pub struct ReadLink {
    pub at: At,
}

impl Rule for ReadLink {
    type Outcome = Bytes;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, _: &Context<'_>) -> Result<Decision<Bytes>, Refusal> {
        match &found.file(Errno::EINVAL)?.row.content {
            Content::Symlink(target) => Ok(Decision::Answer(target.clone())),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}
