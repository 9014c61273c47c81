//! Creates a regular file without a name: open(2) with O_TMPFILE.

use super::access;
use super::create::{NewNode, new_row};
use super::locate::put_inode;
use super::node::Node;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use varve_schema::{Change, Key, OrphanRow, PartitionRow, Row};
use varve_types::{InodeId, Mode, NameHash, Timestamp};

/// Creates a file with the context's new inode id and no name. `parent` determines only who may do this and the group
/// of the file. The file is an orphan: it ends with its last descriptor unless [`super::Link`] gives it a name before,
/// which `linkable` permits (open(2) without O_EXCL).
#[derive(Clone, Debug)]
pub struct CreateUnnamed {
    pub parent: InodeId,
    /// A hash in the partition that the request was sent to.
    pub at: NameHash,
    /// With the caller's umask applied.
    pub mode: Mode,
    pub linkable: bool,
}

impl Rule for CreateUnnamed {
    type Outcome = Node;
    type Rows<'a> = Option<&'a PartitionRow>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        reader.partition_of_hash(self.parent, self.at)
    }

    fn rule(&self, partition: Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let parent = access::parent(partition)?;
        access::check_make(parent, context.caller)?;
        let mut row = new_row(parent, &NewNode::Regular, self.mode, context);
        row.attributes.nlink = 0;
        let node = Node::of(context.fresh, &row, true);
        let since = if self.linkable { Timestamp::NEVER } else { context.now };
        let orphan = Change::put(Key::Orphan(context.fresh), Row::Orphan(OrphanRow { since }));
        Ok(commit(vec![put_inode(context.fresh, row), orphan], node))
    }
}
