//! Removes an empty directory.

use super::access;
use super::names::{self, NameSlot, NameTarget};
use super::reader::RowReader;
use super::rule::Rule;
use super::unlink::RemovedName;
use super::verb::{Context, Decision, Refusal, commit};
use varve_types::{Errno, InodeId, Name};

/// Removes the directory `name` from `parent`. ENOTDIR if it is not a directory, ENOTEMPTY if it is not empty.
///
/// The verb reads and deletes all partition rows of the directory. A create in the directory counts its name in one of
/// them, so a create and the removal cannot both be decided on the same rows.
#[derive(Clone, Debug)]
pub struct RemoveDirectory {
    pub parent: InodeId,
    pub name: Name,
}

impl Rule for RemoveDirectory {
    type Outcome = RemovedName;
    type Rows<'a> = (NameSlot<'a>, Option<NameTarget<'a>>);

    const REMOVES_DIRECTORY: bool = true;

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
        let removal = match &target {
            NameTarget::Directory { inode, row, partitions } => names::remove_directory(*inode, row, partitions)?,
            NameTarget::File { .. } => return Err(Errno::ENOTDIR.into()),
            NameTarget::Torn(inode) => return Err(Refusal::Torn(*inode)),
        };
        let mut changes = removal.changes;
        changes.extend([slot.delete(), slot.tally(-1, -1, context.now)]);
        Ok(commit(changes, RemovedName { last_name_of: removal.last_name_of, at: context.now }))
    }
}
