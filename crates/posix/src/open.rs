//! Opens a file or directory.

use super::access::{EXECUTE, Guard, READ, WRITE};
use super::get_attributes::{directory_node, look_with_home};
use super::locate::{Located, LocatedRow};
use super::node::{At, Node, NodeContent};
use super::reader::RowReader;
use super::rule::Rule;
use super::size::own_if_changed;
use super::verb::{Context, Decision, Effect, PendingTruncate, Refusal};
use bytes::Bytes;
use varve_schema::{BackingSize, Content, NodeRow, PartitionRow};
use varve_types::{Errno, FileKind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    Read,
    Write,
    ReadWrite,
    /// For execve(2), which reads the file without permission to read it.
    Execute,
}

impl OpenMode {
    fn permissions(self) -> u16 {
        match self {
            OpenMode::Read => READ,
            OpenMode::Write => WRITE,
            OpenMode::ReadWrite => READ | WRITE,
            OpenMode::Execute => EXECUTE,
        }
    }
}

/// Access to the file that the caller was granted before and that is not checked again. The permissions may have
/// changed since. The creator of a file may also have more access than the file's mode allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    Nothing,
    /// A previous server granted it. That claim is accepted only from the file's owner, who could set the permissions
    /// anyway.
    ToOwner,
    All,
}

/// Checks that the caller may open the file in this mode, truncates it if requested (which requires write permission
/// whatever the mode), and returns its attributes and inline bytes. The driver registers the file as open.
#[derive(Clone, Debug)]
pub struct Open {
    pub at: At,
    pub mode: OpenMode,
    pub truncate: bool,
    pub granted: Granted,
}

impl Rule for Open {
    type Outcome = Node;
    type Rows<'a> = (LocatedRow<'a>, Option<&'a PartitionRow>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        look_with_home(&self.at, reader)
    }

    fn rule(&self, (found, home): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let wanted = self.mode.permissions() | if self.truncate { WRITE } else { 0 };
        match found {
            LocatedRow::Nothing => Err(Refusal::NotHere),
            LocatedRow::Directory(..) if wanted & WRITE != 0 => Err(Errno::EISDIR.into()),
            LocatedRow::Directory(inode, row) => {
                Guard::from(row).check(context.caller, wanted)?;
                Ok(Decision::Answer(directory_node(inode, row, home)))
            }
            LocatedRow::File(file) if file.row.attributes.kind == FileKind::Symlink => Err(Errno::ELOOP.into()),
            LocatedRow::File(file) => {
                let granted = match self.granted {
                    Granted::Nothing => false,
                    Granted::ToOwner => file.guard().owned_by(context.caller),
                    Granted::All => true,
                };
                if !granted {
                    file.guard().check(context.caller, wanted)?;
                }
                // open(2): O_TRUNC has no effect on a file that is not regular.
                let truncate = self.truncate && file.row.attributes.kind == FileKind::Regular;
                Ok(if truncate { self.cut(&file, context) } else { self.answer(&file) })
            }
        }
    }
}

impl Open {
    fn answer(&self, file: &Located<'_>) -> Decision<Node> {
        let node = with_bytes(file.node(), file.row);
        match file.row.content {
            // A truncate that a crash interrupted is finished before anybody reads or writes the file.
            Content::Backing(BackingSize::Truncating(_)) => Decision::Commit {
                changes: Vec::new(),
                effects: vec![Effect::Truncate { at: self.at.clone(), decided: None }],
                outcome: node,
            },
            _ => Decision::Answer(node),
        }
    }

    fn cut(&self, file: &Located<'_>, context: &Context<'_>) -> Decision<Node> {
        let mut row = file.written(context.caller, context.now);
        row.attributes.size = 0;
        let in_row = matches!(row.content, Content::Inline(_));
        if in_row {
            row.content = Content::Inline(Bytes::new());
            row.generation = row.generation.next();
        } else {
            row.content = Content::Backing(BackingSize::Truncating(0));
        }
        let outcome = with_bytes(Node::of(file.inode, &row, file.by_inode()), &row);
        let mut effects: Vec<Effect> = own_if_changed(file, &row).into_iter().collect();
        if !in_row {
            effects.push(Effect::Truncate { at: self.at.clone(), decided: PendingTruncate::of(&row) });
        }
        Decision::Commit { changes: file.put_without_xattrs(row), effects, outcome }
    }
}

fn with_bytes(mut node: Node, row: &NodeRow) -> Node {
    if let Content::Inline(bytes) = &row.content {
        node.content = NodeContent::Inline(Some(bytes.clone()));
    }
    node
}
