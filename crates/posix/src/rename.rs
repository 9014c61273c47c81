//! Moves a name, replaces one by another, or exchanges two: rename(2) and renameat2(2), in Linux's order of errors.
//!
//! A file whose row is in its entry gets a new ctime. A file with an inode row, and a directory that stays in its
//! parent, keep their ctime (POSIX leaves that open), so that such a rename changes only the two names.

use super::access::{self, Guard};
use super::create;
use super::locate::put_inode;
use super::names::{self, NameSlot, NameTarget, Removal};
use super::reader::RowReader;
use super::rule::Rule;
use super::unlink::RemovedName;
use super::verb::{Context, Decision, Refusal, commit};
use varve_schema::{Change, DirectoryRow, EntryBody, EntryRow, Key, NodeRow, Row};
use varve_types::{Errno, InodeId, Name};

/// Levels of directories that the check for cycles climbs before it assumes that the volume is damaged (ELOOP). A path
/// that a caller can pass in one call has at most 2,048.
const DEPTH_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFlags {
    Replace,
    NoReplace,
    Exchange,
    /// As `Replace`, and leaves a whiteout at the old name (RENAME_WHITEOUT).
    Whiteout,
    /// As `NoReplace`, and leaves a whiteout at the old name.
    WhiteoutNoReplace,
}

impl RenameFlags {
    fn replaces(self) -> bool {
        !matches!(self, RenameFlags::NoReplace | RenameFlags::WhiteoutNoReplace)
    }

    pub fn leaves_whiteout(self) -> bool {
        matches!(self, RenameFlags::Whiteout | RenameFlags::WhiteoutNoReplace)
    }
}

/// `context.fresh` is the inode of the whiteout, if the flags ask for one.

#[derive(Clone, Debug)]
pub struct Rename {
    pub parent: InodeId,
    pub name: Name,
    pub new_parent: InodeId,
    pub new_name: Name,
    pub flags: RenameFlags,
}

/// The entry that is moved, and its further rows if a rule needs them.
#[derive(Clone, Debug)]
pub(super) struct MovedEntry<'a> {
    entry: &'a EntryRow,
    node: Option<&'a NodeRow>,
    directory: Option<&'a DirectoryRow>,
}

/// The target at the new name.
#[derive(Clone, Debug)]
enum Replaced<'a> {
    Nothing,
    /// The new name refers to the same file, or the call is refused because the name exists: nothing is removed.
    Kept,
    Removed(NameTarget<'a>),
    Exchanged(MovedEntry<'a>),
}

pub(super) struct Rows<'a> {
    old: NameSlot<'a>,
    new: NameSlot<'a>,
    source: Option<MovedEntry<'a>>,
    replaced: Replaced<'a>,
    /// The source is the new parent or one of its ancestors.
    into_itself: Result<bool, Errno>,
    /// The target is the old parent or one of its ancestors.
    onto_ancestor: Result<bool, Errno>,
}

impl<'a> MovedEntry<'a> {
    /// `across`: the entry moves to another parent, which a directory's row records.
    fn look(slot: &NameSlot<'a>, entry: &'a EntryRow, across: bool, reader: &RowReader<'a>) -> Option<MovedEntry<'a>> {
        let mut moved = MovedEntry { entry, node: None, directory: None };
        match &entry.body {
            EntryBody::Node(row) => moved.node = Some(row),
            EntryBody::Reference(_) if slot.is_sticky() => moved.node = reader.inode(entry.inode)?,
            EntryBody::Directory(_) if across || slot.is_sticky() => moved.directory = reader.directory(entry.inode)?,
            EntryBody::Reference(_) | EntryBody::Directory(_) => {}
        }
        Some(moved)
    }

    fn is_directory(&self) -> bool {
        matches!(self.entry.body, EntryBody::Directory(_))
    }

    /// Owner and group.
    fn owner(&self) -> Option<(u32, u32)> {
        let file = self.node.map(|row| (row.attributes.uid, row.attributes.gid));
        file.or(self.directory.map(|row| (row.uid, row.gid)))
    }

    /// A directory that changes its parent needs write permission on itself, because its `..` changes.
    fn check_reparent(&self, context: &Context<'_>) -> Result<(), Refusal> {
        if !self.is_directory() {
            return Ok(());
        }
        let row = self.directory.ok_or(Refusal::Torn(self.entry.inode))?;
        Ok(Guard::from(row).check(context.caller, access::WRITE)?)
    }

    /// Puts the entry at `slot`; `across`: it comes from another parent.
    fn put_at(&self, slot: &NameSlot<'_>, across: bool, context: &Context<'_>) -> Vec<Change> {
        let inode = self.entry.inode;
        let mut changes = Vec::new();
        let body = match (&self.entry.body, self.directory) {
            (EntryBody::Node(row), _) => {
                let mut row = row.clone();
                row.attributes.ctime = context.now;
                if (context.may_be_open)(inode) {
                    // Open descriptors locate the file by its old name; from here on they find it by its inode.
                    let kind = row.attributes.kind;
                    changes.push(put_inode(inode, row));
                    EntryBody::Reference(kind)
                } else {
                    EntryBody::Node(row)
                }
            }
            (EntryBody::Directory(attributes), Some(row)) if across => {
                let row = DirectoryRow { parent: slot.directory, ctime: context.now, ..row.clone() };
                changes.push(Change::put(Key::Directory(inode), Row::Directory(row)));
                EntryBody::Directory(*attributes)
            }
            (body, _) => body.clone(),
        };
        changes.push(slot.put(inode, body));
        changes
    }
}

impl Rule for Rename {
    type Outcome = RemovedName;
    type Rows<'a> = Rows<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Rows<'a>> {
        let old = NameSlot::look(self.parent, &self.name, reader);
        let new = NameSlot::look(self.new_parent, &self.new_name, reader);
        let (old, new) = (old?, new?);
        let mut rows = Rows {
            old,
            new,
            source: None,
            replaced: Replaced::Nothing,
            into_itself: Ok(false),
            onto_ancestor: Ok(false),
        };
        let Some(entry) = old.entry else {
            return Some(rows);
        };
        let across = self.parent != self.new_parent;
        let source = MovedEntry::look(&old, entry, across, reader);
        let replaced = match new.entry {
            None => Some(Replaced::Nothing),
            Some(target) if target.inode == entry.inode || !self.flags.replaces() => Some(Replaced::Kept),
            Some(target) if self.flags == RenameFlags::Exchange => {
                MovedEntry::look(&new, target, across, reader).map(Replaced::Exchanged)
            }
            Some(target) => NameTarget::look(target, reader).map(Replaced::Removed),
        };
        let is_directory = |entry: &EntryRow| matches!(entry.body, EntryBody::Directory(_));
        let into_itself = match across && is_directory(entry) {
            true => is_above(entry.inode, self.new_parent, reader),
            false => Some(Ok(false)),
        };
        let onto_ancestor = match new.entry {
            Some(target) if across && is_directory(target) => is_above(target.inode, self.parent, reader),
            _ => Some(Ok(false)),
        };
        rows.source = Some(source?);
        rows.replaced = replaced?;
        rows.into_itself = into_itself?;
        rows.onto_ancestor = onto_ancestor?;
        Some(rows)
    }

    fn rule(&self, rows: Rows<'_>, context: &Context<'_>) -> Result<Decision<RemovedName>, Refusal> {
        let (old, new) = (&rows.old, &rows.new);
        let found = old.search(context.caller)?;
        new.search(context.caller)?;
        let source = found.and(rows.source).ok_or(Errno::ENOENT)?;
        match (self.flags, new.entry) {
            (flags, Some(_)) if !flags.replaces() => return Err(Errno::EEXIST.into()),
            (RenameFlags::Exchange, None) => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        if rows.into_itself? {
            return Err(Errno::EINVAL.into());
        }
        if rows.onto_ancestor? {
            let exchange = self.flags == RenameFlags::Exchange;
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        if let Replaced::Kept = rows.replaced {
            return Ok(Decision::Answer(RemovedName::default()));
        }
        let across = self.parent != self.new_parent;
        access::check_take(old.parent()?, source.owner(), context.caller)?;
        let new_parent = new.parent()?;
        match &rows.replaced {
            Replaced::Nothing | Replaced::Kept => access::check_make(new_parent, context.caller)?,
            Replaced::Removed(target) => {
                access::check_take(new_parent, target.owner(), context.caller)?;
                check_kinds(&source, target)?;
            }
            Replaced::Exchanged(other) => access::check_take(new_parent, other.owner(), context.caller)?,
        }
        if across {
            source.check_reparent(context)?;
        }
        let whiteout = match self.flags.leaves_whiteout() {
            true => Some(create::whiteout(old.parent()?, context)),
            false => None,
        };
        match &rows.replaced {
            Replaced::Exchanged(other) => {
                if across {
                    other.check_reparent(context)?;
                }
                Ok(exchange(old, new, &source, other, context))
            }
            Replaced::Removed(target) => {
                let removal = match target {
                    NameTarget::File { inode, row, by_inode } => names::remove_file(*inode, row, *by_inode, context),
                    NameTarget::Directory { inode, row, partitions } => {
                        names::remove_directory(*inode, row, partitions)?
                    }
                    NameTarget::Torn(inode) => return Err(Refusal::Torn(*inode)),
                };
                Ok(move_over(old, new, &source, Left { removal: Some(removal), whiteout }, context))
            }
            Replaced::Nothing | Replaced::Kept => {
                Ok(move_over(old, new, &source, Left { removal: None, whiteout }, context))
            }
        }
    }
}

/// Only a directory replaces a directory, and a directory replaces nothing else.
fn check_kinds(source: &MovedEntry<'_>, target: &NameTarget<'_>) -> Result<(), Errno> {
    match (source.is_directory(), target) {
        (true, NameTarget::File { .. }) => Err(Errno::ENOTDIR),
        (false, NameTarget::Directory { .. }) => Err(Errno::EISDIR),
        _ => Ok(()),
    }
}

/// Effects of a move on the two names besides the source's new name.
struct Left {
    /// Of the target, which is of the same kind as the source.
    removal: Option<Removal>,
    /// The row of the whiteout at the old name.
    whiteout: Option<NodeRow>,
}

/// Moves the source to the new name.
fn move_over(
    old: &NameSlot<'_>,
    new: &NameSlot<'_>,
    source: &MovedEntry<'_>,
    Left { removal, whiteout }: Left,
    context: &Context<'_>,
) -> Decision<RemovedName> {
    let subdirectories = i64::from(source.is_directory());
    let replaced = i64::from(removal.is_some());
    let removal = removal.unwrap_or_default();
    let (at_old, entries) = match whiteout {
        Some(row) => (old.put(context.fresh, EntryBody::Node(row)), 0),
        None => (old.delete(), -1),
    };
    let mut changes = vec![
        at_old,
        old.tally(entries, -subdirectories, context.now),
        new.tally(1 - replaced, subdirectories * (1 - replaced), context.now),
    ];
    changes.extend(source.put_at(new, old.directory != new.directory, context));
    changes.extend(removal.changes);
    let outcome = RemovedName { last_name_of: removal.last_name_of, at: context.now };
    Decision::Commit { changes, effects: removal.effects, outcome }
}

fn exchange(
    old: &NameSlot<'_>,
    new: &NameSlot<'_>,
    source: &MovedEntry<'_>,
    other: &MovedEntry<'_>,
    context: &Context<'_>,
) -> Decision<RemovedName> {
    let across = old.directory != new.directory;
    let more = i64::from(source.is_directory()) - i64::from(other.is_directory());
    let mut changes = vec![old.tally(0, -more, context.now), new.tally(0, more, context.now)];
    changes.extend(source.put_at(new, across, context));
    changes.extend(other.put_at(old, across, context));
    commit(changes, RemovedName::default())
}

/// Whether `upper` is `directory` or one of its ancestors.
fn is_above(upper: InodeId, directory: InodeId, reader: &RowReader<'_>) -> Option<Result<bool, Errno>> {
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == upper {
            return Some(Ok(true));
        }
        if at == InodeId::ROOT {
            return Some(Ok(false));
        }
        match reader.directory(at)? {
            Some(row) => at = row.parent,
            // The directory was removed meanwhile. Its partition is gone too, and the caller gets that error.
            None => return Some(Ok(false)),
        }
    }
    Some(Err(Errno::ELOOP))
}
