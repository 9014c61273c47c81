//! Takes a name of a file away.

use super::names::{self, Slot, Target};
use super::reader::Reader;
use super::{Context, Decision, Refusal, Rule, access};
use varve_types::{Errno, InodeId, Name, Timestamp};

/// Removes `name`, which means anything but a directory (EISDIR), from `parent`.
#[derive(Clone, Debug)]
pub struct Unlink {
    pub parent: InodeId,
    pub name: Name,
}

/// What went with a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The inode whose last name it was.
    pub last_name_of: Option<InodeId>,
    /// The directory's new mtime and ctime, unless they are later already.
    pub at: Timestamp,
}

impl Rule for Unlink {
    type Outcome = Removed;
    type Rows<'a> = (Slot<'a>, Option<Target<'a>>);

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Self::Rows<'a>> {
        let slot = Slot::look(self.parent, &self.name, reader)?;
        let target = match slot.entry {
            Some(entry) => Some(Target::look(entry, reader)?),
            None => None,
        };
        Some((slot, target))
    }

    fn rule(&self, (slot, target): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Removed>, Refusal> {
        slot.search(context.caller)?;
        let target = target.ok_or(Errno::ENOENT)?;
        access::check_take(slot.parent()?, target.owner_uid(), context.caller)?;
        let removal = match target {
            Target::File { inode, row, by_inode } => names::remove_file(inode, row, by_inode, context),
            Target::Directory { .. } => return Err(Errno::EISDIR.into()),
            Target::Torn(inode) => return Err(Refusal::Torn(inode)),
        };
        let mut changes = vec![slot.delete(), slot.tally(-1, 0, context.now)];
        changes.extend(removal.changes);
        let outcome = Removed { last_name_of: removal.last_name_of, at: context.now };
        Ok(Decision::Commit { changes, effects: removal.effects, outcome })
    }
}
