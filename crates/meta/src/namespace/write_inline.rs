//! Replaces the content kept in the row.

use super::locate::LocatedRow;
use super::reader::RowReader;
use super::{At, Context, Decision, Node, Refusal, Rule, commit};
use crate::tables::Content;
use bytes::Bytes;
use varve_types::{Errno, LayoutGeneration, Timestamp};

/// The file's whole content from now on, at most the inline limit (EFBIG). Stale where the content was replaced or has moved
/// since `generation`, which rises: of two callers, each has to put its bytes onto the other's. `mtime`: when the caller
/// wrote; else now.
///
/// The right to write was checked when the file was opened, and outlives a chmod: the driver asks that the session has
/// the file open.
#[derive(Clone, Debug)]
pub struct WriteInline {
    pub at: At,
    pub generation: LayoutGeneration,
    pub data: Bytes,
    pub mtime: Option<Timestamp>,
}

impl Rule for WriteInline {
    type Outcome = Node;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let file = found.file(Errno::EISDIR)?;
        if file.row.generation != self.generation {
            return Err(Refusal::Stale(file.row.generation));
        }
        if !matches!(file.row.content, Content::Inline(_)) {
            return Err(Errno::EINVAL.into());
        }
        if self.data.len() as u64 > u64::from(context.inline_limit) {
            return Err(Errno::EFBIG.into());
        }
        let mut row = file.written(context.caller, context.now);
        row.attributes.size = self.data.len() as u64;
        row.attributes.mtime = self.mtime.unwrap_or(context.now);
        row.content = Content::Inline(self.data.clone());
        row.generation = row.generation.next();
        let node = Node::of(file.inode, &row, file.by_inode());
        Ok(commit(vec![file.put(row)], node))
    }
}
