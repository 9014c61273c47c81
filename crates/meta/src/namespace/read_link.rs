//! Where a symlink points.

use super::locate::Found;
use super::reader::Reader;
use super::{At, Context, Decision, Refusal, Rule};
use crate::tables::Content;
use bytes::Bytes;
use varve_types::Errno;

/// The target of a symlink; EINVAL for anything else.
#[derive(Clone, Debug)]
pub struct ReadLink {
    pub at: At,
}

impl Rule for ReadLink {
    type Outcome = Bytes;
    type Rows<'a> = Found<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Found<'a>> {
        Found::look(&self.at, reader)
    }

    fn rule(&self, found: Found<'_>, _: &Context<'_>) -> Result<Decision<Bytes>, Refusal> {
        match &found.file(Errno::EINVAL)?.row.content {
            Content::Symlink(target) => Ok(Decision::Answer(target.clone())),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}
