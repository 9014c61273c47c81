//! Gives a file another name.

use super::locate::LocatedRow;
use super::names::NameSlot;
use super::node::{At, Entry};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use varve_schema::{Change, EntryBody, Key, OrphanRow};
use varve_types::{Errno, InodeId, Name, Timestamp};

/// Maximum names of a file, so that the link count fits every `nlink_t`.
pub const LINKS_MAX: u32 = i32::MAX as u32;

/// Makes `name` in `parent` refer to the file at `source`, which gets an inode row if it has none. EEXIST if the name
/// exists, EPERM for directories, EMLINK beyond [`LINKS_MAX`], ENOENT for a file that lost its last name or was created
/// without the right to get one.
#[derive(Clone, Debug)]
pub struct Link {
    pub source: At,
    pub parent: InodeId,
    pub name: Name,
}

impl Rule for Link {
    type Outcome = Entry;
    type Rows<'a> = (NameSlot<'a>, LocatedRow<'a>, Option<OrphanRow>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let (slot, found) = (NameSlot::look(self.parent, &self.name, reader), LocatedRow::look(&self.source, reader));
        let (slot, found) = (slot?, found?);
        let orphan = match found {
            LocatedRow::File(file) if file.row.attributes.nlink == 0 => reader.orphan(file.inode)?,
            _ => None,
        };
        Some((slot, found, orphan))
    }

    fn rule(&self, (slot, found, orphan): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Entry>, Refusal> {
        if let LocatedRow::Nothing = found {
            return Err(Refusal::NotHere);
        }
        slot.vacant(context.caller)?;
        let file = found.file(Errno::EPERM)?;
        let mut row = file.row.clone();
        let unnamed = row.attributes.nlink == 0;
        match row.attributes.nlink {
            0 if orphan.is_none_or(|orphan| orphan.since != Timestamp::NEVER) => return Err(Errno::ENOENT.into()),
            LINKS_MAX.. => return Err(Errno::EMLINK.into()),
            _ => {}
        }
        row.attributes.nlink += 1;
        row.attributes.ctime = context.now;
        let kind = row.attributes.kind;
        let mut changes = file.put_externalised(row);
        changes.push(slot.put(file.inode, EntryBody::Reference(kind)));
        changes.push(slot.tally(1, 0, context.now));
        if unnamed {
            changes.push(Change::Delete(Key::Orphan(file.inode)));
        }
        Ok(commit(changes, Entry::Elsewhere { inode: file.inode, kind }))
    }
}
