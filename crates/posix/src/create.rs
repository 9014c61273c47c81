//! Creates a file of any kind except a directory.

use super::access;
use super::names::NameSlot;
use super::node::Node;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use bytes::Bytes;
use varve_schema::{Content, EntryBody, NodeRow, PartitionRow};
use varve_types::{Attributes, Capability, Errno, FileKind, InodeId, LayoutGeneration, Mode, Name};

/// Bytes of a symlink's target: Linux's PATH_MAX without the final NUL.
pub const TARGET_BYTES_MAX: usize = 4095;

/// Mode of every symlink, whose permission bits mean nothing.
const SYMLINK_MODE: Mode = Mode(0o777);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewNode {
    Regular,
    Symlink { target: Bytes },
    Fifo,
    Socket,
    CharDevice { rdev: u32 },
    BlockDevice { rdev: u32 },
}

impl NewNode {
    pub fn kind(&self) -> FileKind {
        match self {
            NewNode::Regular => FileKind::Regular,
            NewNode::Symlink { .. } => FileKind::Symlink,
            NewNode::Fifo => FileKind::Fifo,
            NewNode::Socket => FileKind::Socket,
            NewNode::CharDevice { .. } => FileKind::CharDevice,
            NewNode::BlockDevice { .. } => FileKind::BlockDevice,
        }
    }
}

/// Device number of a whiteout, the character device by which an overlay marks a removed name (Linux's `WHITEOUT_DEV`).
const WHITEOUT_RDEV: u32 = 0;

/// Creates the file `name` in `parent` with the context's new inode id. `mode` has the caller's umask applied. EEXIST
/// if the name exists, EPERM if a user without CAP_MKNOD creates a device that is not a whiteout (as Linux since 5.8).
#[derive(Clone, Debug)]
pub struct Create {
    pub parent: InodeId,
    pub name: Name,
    pub node: NewNode,
    pub mode: Mode,
}

impl Rule for Create {
    type Outcome = Node;
    type Rows<'a> = NameSlot<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<NameSlot<'a>> {
        NameSlot::look(self.parent, &self.name, reader)
    }

    fn rule(&self, slot: NameSlot<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        self.check_target()?;
        let parent = slot.vacant(context.caller)?;
        let privileged = match self.node {
            NewNode::CharDevice { rdev } => rdev != WHITEOUT_RDEV,
            NewNode::BlockDevice { .. } => true,
            NewNode::Regular | NewNode::Symlink { .. } | NewNode::Fifo | NewNode::Socket => false,
        };
        if privileged && !context.caller.capable(Capability::Mknod) {
            return Err(Errno::EPERM.into());
        }
        let row = new_row(parent, &self.node, self.mode, context);
        let node = Node::of(context.fresh, &row, false);
        let changes = vec![slot.put(context.fresh, EntryBody::Node(row)), slot.tally(1, 0, context.now)];
        Ok(commit(changes, node))
    }
}

impl Create {
    /// symlink(2): an empty target is ENOENT, one beyond PATH_MAX is ENAMETOOLONG.
    fn check_target(&self) -> Result<(), Errno> {
        match &self.node {
            NewNode::Symlink { target } if target.is_empty() => Err(Errno::ENOENT),
            NewNode::Symlink { target } if target.len() > TARGET_BYTES_MAX => Err(Errno::ENAMETOOLONG),
            _ => Ok(()),
        }
    }
}

/// The row of a new file in `parent` that has one name and the caller as its owner.
pub(super) fn new_row(parent: &PartitionRow, node: &NewNode, mode: Mode, context: &Context<'_>) -> NodeRow {
    let kind = node.kind();
    let mode = if kind == FileKind::Symlink { SYMLINK_MODE } else { mode };
    let (gid, mode) = access::inherit(parent, kind, mode, context.caller);
    let (content, size, rdev) = match node {
        NewNode::Regular => (Content::Inline(Bytes::new()), 0, 0),
        NewNode::Symlink { target } => (Content::Symlink(target.clone()), target.len() as u64, 0),
        NewNode::Fifo | NewNode::Socket => (Content::None, 0, 0),
        NewNode::CharDevice { rdev } | NewNode::BlockDevice { rdev } => (Content::None, 0, *rdev),
    };
    let now = context.now;
    let attributes = Attributes {
        kind,
        mode,
        uid: context.caller.uid,
        gid,
        nlink: 1,
        size,
        rdev,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    };
    NodeRow { attributes, content, generation: LayoutGeneration::default(), xattrs: Vec::new() }
}

/// The row of the whiteout that a rename leaves at the old name.
pub(super) fn whiteout(parent: &PartitionRow, context: &Context<'_>) -> NodeRow {
    new_row(parent, &NewNode::CharDevice { rdev: WHITEOUT_RDEV }, Mode(0), context)
}
