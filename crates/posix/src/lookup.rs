//! Looks up a name.

use super::names::NameSlot;
use super::node::{Entry, Node};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal};
use varve_schema::{EntryBody, EntryRow};
use varve_types::{Errno, FileKind, InodeId, Name};

/// Looks up `name` in `parent`, for which the caller needs search permission. ENOENT if there is no such name.
#[derive(Clone, Debug)]
pub struct Lookup {
    pub parent: InodeId,
    pub name: Name,
}

impl Rule for Lookup {
    type Outcome = Entry;
    type Rows<'a> = NameSlot<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<NameSlot<'a>> {
        NameSlot::look(self.parent, &self.name, reader)
    }

    fn rule(&self, slot: NameSlot<'_>, context: &Context<'_>) -> Result<Decision<Entry>, Refusal> {
        let entry = slot.search(context.caller)?.ok_or(Errno::ENOENT)?;
        Ok(Decision::Answer(Entry::of(entry)))
    }
}

impl Entry {
    /// Inline content is left out.
    pub fn of(row: &EntryRow) -> Entry {
        match &row.body {
            EntryBody::Node(node) => Entry::Node(Node::of(row.inode, node, false)),
            EntryBody::Directory(_) => Entry::Elsewhere { inode: row.inode, kind: FileKind::Directory },
            EntryBody::Reference(kind) => Entry::Elsewhere { inode: row.inode, kind: *kind },
        }
    }
}
