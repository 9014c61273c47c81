//! Files, directories and entries as verbs take and return them.

use bytes::Bytes;
use varve_schema::{BackingSize, Content, NodeRow};
use varve_types::{Attributes, FileKind, InodeId, LayoutGeneration, Name};

/// How a verb finds a file's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In the entry `name` of `parent`, if the entry still refers to `inode` and holds its attributes.
    Entry { parent: InodeId, name: Name, inode: InodeId },
    /// In its inode row or, for a directory, in its directory row.
    Inode(InodeId),
}

impl At {
    pub fn inode(&self) -> InodeId {
        match self {
            At::Entry { inode, .. } | At::Inode(inode) => *inode,
        }
    }
}

/// A file or directory as a verb returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub inode: InodeId,
    pub attributes: Attributes,
    pub content: NodeContent,
    pub generation: LayoutGeneration,
    /// The attributes are in an inode or directory row, not in an entry.
    pub by_inode: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeContent {
    /// In the row. Only [`Open`] returns the bytes.
    Inline(Option<Bytes>),
    /// In the backing file.
    Backing(SizeState),
    /// A directory, symlink or special file.
    None,
}

/// Whether the row's size of a backing file is authoritative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeState {
    /// The row's size and mtime are correct.
    Authoritative,
    /// The backing file's size and mtime count, and the file has at least this many bytes.
    Stale { at_least: u64 },
}

impl From<BackingSize> for SizeState {
    fn from(size: BackingSize) -> SizeState {
        match size {
            BackingSize::Stale { at_least } => SizeState::Stale { at_least },
            // A pending truncate overrides the file's size, and the row has the truncate's size.
            BackingSize::Authoritative | BackingSize::Truncating(_) => SizeState::Authoritative,
        }
    }
}

impl Node {
    /// Without the bytes of inline content.
    pub(super) fn of(inode: InodeId, row: &NodeRow, by_inode: bool) -> Node {
        let content = match &row.content {
            Content::Inline(_) => NodeContent::Inline(None),
            Content::Backing(size) => NodeContent::Backing((*size).into()),
            Content::Symlink(_) | Content::None => NodeContent::None,
        };
        Node { inode, attributes: row.attributes, content, generation: row.generation, by_inode }
    }
}

/// The target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file whose attributes are in its entry.
    Node(Node),
    /// A file with an inode row, or a directory.
    Elsewhere { inode: InodeId, kind: FileKind },
}
