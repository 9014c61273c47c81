//! Removes a name of a file.

use super::access;
use super::names::{self, NameSlot, NameTarget};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal};
use varve_types::{Errno, InodeId, Name, Timestamp};

/// Removes `name` from `parent`. EISDIR if it is a directory.
#[derive(Clone, Debug)]
pub struct Unlink {
    pub parent: InodeId,
    pub name: Name,
}

/// The result of removing a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedName {
    /// The inode, if this was its last name.
    pub last_name_of: Option<InodeId>,
    /// The directory's new mtime and ctime, unless it already has later ones.
    pub at: Timestamp,
}

impl Rule for Unlink {
    type Outcome = RemovedName;
    type Rows<'a> = (NameSlot<'a>, Option<NameTarget<'a>>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let slot = NameSlot::look(self.parent, &self.name, reader)?;
        let target = match slot.entry {
            Some(entry) => Some(NameTarget::look(entry, reader)?),
            None => None,
        };
        Some((slot, target))
    }

    fn rule(&self, (slot, target): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<RemovedName>, Refusal> {
        slot.search(context.caller)?;
        let target = target.ok_or(Errno::ENOENT)?;
        access::check_take(slot.parent()?, target.owner(), context.caller)?;
        let removal = match target {
            NameTarget::File { inode, row, by_inode } => names::remove_file(inode, row, by_inode, context),
            NameTarget::Directory { .. } => return Err(Errno::EISDIR.into()),
            NameTarget::Torn(inode) => return Err(Refusal::Torn(inode)),
        };
        let mut changes = vec![slot.delete(), slot.tally(-1, 0, context.now)];
        changes.extend(removal.changes);
        let outcome = RemovedName { last_name_of: removal.last_name_of, at: context.now };
        Ok(Decision::Commit { changes, effects: removal.effects, outcome })
    }
}
