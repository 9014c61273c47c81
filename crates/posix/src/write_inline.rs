//! Replaces the content that is stored in the row.

use super::locate::LocatedRow;
use super::node::{At, Node};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use bytes::Bytes;
use varve_schema::Content;
use varve_types::{Errno, LayoutGeneration, Timestamp};

/// Replaces the whole content of the file; at most the inline limit (EFBIG). Refused as stale if the content was
/// replaced or has moved since `generation`, which is then incremented: of two concurrent callers, the second must
/// merge its bytes with the content of the first. `mtime`: when the caller wrote; `None` means now.
///
/// The right to write was checked when the file was opened, and a later chmod does not revoke it: the driver checks
/// that the session has the file open.
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
        Ok(commit(file.put_without_xattrs(row), node))
    }
}
