//! Changes mode, owner, times and size: the rules of chmod(2), chown(2), utimensat(2) and truncate(2).

use super::access::{Guard, WRITE};
use super::get_attributes::directory_node;
use super::locate::{Located, LocatedRow};
use super::node::{At, Node};
use super::partitions::{self, PartitionRows};
use super::reader::RowReader;
use super::rule::Rule;
use super::size::own_if_changed;
use super::verb::{Context, Decision, Effect, PendingTruncate, Refusal, commit};
use bytes::Bytes;
use varve_schema::{BackingSize, Change, Content, DirectoryRow, Key, NodeRow, PartitionRow, Row};
use varve_types::{Capability, Errno, FileKind, InodeId, Mode, SetAttributes, SetTime, Timestamp};

/// Maximum bytes of a file: the maximum of `off_t`.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Changes attributes, all or none. Attributes that `set` does not name stay unchanged, except for ctime, and for the
/// set-id bits and file capabilities, which a change of owner or of size clears.
///
/// A size above the inline limit is refused with [`Refusal::MustPromote`] while the content is in the row: the caller
/// writes the content to the backing file, promotes the file and retries. So a row never promises bytes that only an
/// effect would write.
///
/// A directory's mode and owner are copied into all its partition rows in the same change. So is the fact that an mtime
/// was set.
#[derive(Clone, Debug)]
pub struct ChangeAttributes {
    pub at: At,
    pub set: SetAttributes,
}

impl Rule for ChangeAttributes {
    type Outcome = Node;
    type Rows<'a> = (LocatedRow<'a>, PartitionRows<'a>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let found = LocatedRow::look(&self.at, reader)?;
        let partitions = match found {
            LocatedRow::Directory(inode, row) => partitions::look(inode, Some(row), reader)?,
            LocatedRow::File(_) | LocatedRow::Nothing => PartitionRows::new(),
        };
        Some((found, partitions))
    }

    fn rule(&self, (found, partitions): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        match found {
            LocatedRow::Nothing => Err(Refusal::NotHere),
            LocatedRow::File(file) => self.change_file(&file, context),
            LocatedRow::Directory(inode, row) => self.change_directory(inode, row, &partitions, context),
        }
    }
}

impl ChangeAttributes {
    fn change_file(&self, file: &Located<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        if self.set == SetAttributes::default() {
            return Ok(Decision::Answer(file.node()));
        }
        let kind = file.row.attributes.kind;
        match self.set.size {
            Some(_) if kind != FileKind::Regular => return Err(Errno::EINVAL.into()),
            Some(size) if size > FILE_BYTES_MAX => return Err(Errno::EFBIG.into()),
            _ => {}
        }
        if self.set.mode.is_some() && kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let is_open = || (context.is_open)(file.inode);
        let owner = check(file.guard(), &self.set, is_open, context)?;
        // A new owner or size takes the file's capabilities.
        let mut row = match self.set.uid.is_some() || self.set.gid.is_some() || self.set.size.is_some() {
            true => file.without_privileges(file.row.attributes.mode),
            false => file.row.clone(),
        };
        let mut effects = Vec::new();
        if let Some(size) = self.set.size {
            self.resize(&mut row, size, context)?;
        }
        let times = &mut row.attributes;
        owner.apply(&mut times.mode, &mut times.uid, &mut times.gid);
        set_time(&mut times.atime, self.set.atime, context.now);
        set_time(&mut times.mtime, self.set.mtime, context.now);
        times.ctime = self.set.ctime.unwrap_or(context.now);
        if self.set.size.is_some()
            && let decided @ Some(_) = PendingTruncate::of(&row)
        {
            effects.push(Effect::Truncate { at: self.at.clone(), decided });
        }
        effects.extend(self.beside(file, &row));
        let outcome = Node::of(file.inode, &row, file.by_inode());
        Ok(Decision::Commit { changes: file.put_without_xattrs(row), effects, outcome })
    }

    fn resize(&self, row: &mut NodeRow, size: u64, context: &Context<'_>) -> Result<(), Refusal> {
        match &row.content {
            Content::Inline(bytes) => {
                if size > u64::from(context.inline_limit) {
                    return Err(Refusal::MustPromote);
                }
                let mut bytes = bytes.to_vec();
                bytes.resize(size as usize, 0);
                row.content = Content::Inline(Bytes::from(bytes));
                row.generation = row.generation.next();
            }
            Content::Backing(_) => row.content = Content::Backing(BackingSize::Truncating(size)),
            Content::Symlink(_) | Content::None => return Err(Errno::EINVAL.into()),
        }
        row.attributes.size = size;
        row.attributes.mtime = context.now;
        Ok(())
    }

    /// The effects that update the backing file, if there is one.
    fn beside(&self, file: &Located<'_>, row: &NodeRow) -> Vec<Effect> {
        let Content::Backing(_) = row.content else {
            return Vec::new();
        };
        let mut effects: Vec<Effect> = own_if_changed(file, row).into_iter().collect();
        // Needed even while the row's mtime counts: the backing file's mtime counts from the next open for writing on,
        // even if nothing is written then.
        if self.set.mtime.is_some() {
            effects.push(Effect::Touch { inode: file.inode, mtime: row.attributes.mtime });
        }
        effects
    }

    fn change_directory(
        &self,
        inode: InodeId,
        row: &DirectoryRow,
        partitions: &PartitionRows<'_>,
        context: &Context<'_>,
    ) -> Result<Decision<Node>, Refusal> {
        let home = partitions.first().map(|(_, partition)| *partition);
        if self.set == SetAttributes::default() {
            return Ok(Decision::Answer(directory_node(inode, row, home)));
        }
        if self.set.size.is_some() {
            return Err(Errno::EISDIR.into());
        }
        let owner = check(Guard::from(row), &self.set, || false, context)?;
        let mut row = row.clone();
        owner.apply(&mut row.mode, &mut row.uid, &mut row.gid);
        set_time(&mut row.atime, self.set.atime, context.now);
        set_time(&mut row.mtime, self.set.mtime, context.now);
        row.ctime = self.set.ctime.unwrap_or(context.now);
        let copy = |partition: &PartitionRow| {
            let mut copy = partition.clone();
            (copy.mode, copy.uid, copy.gid) = (row.mode, row.uid, row.gid);
            // A name change before this call no longer hides the mtime that was set; a later one does, whatever its
            // time. The partition row records that, instead of a comparison of times, because clocks can be set back.
            if self.set.mtime.is_some() {
                copy.mtime = Timestamp::NEVER;
            }
            copy
        };
        let node = directory_node(inode, &row, home.map(&copy).as_ref());
        let mut changes: Vec<Change> = partitions
            .iter()
            .map(|(index, partition)| (index, copy(partition), *partition))
            .filter(|(_, copy, partition)| copy != *partition)
            .map(|(index, copy, _)| Change::put(Key::Partition(inode, *index), Row::Partition(copy)))
            .collect();
        changes.push(Change::put(Key::Directory(inode), Row::Directory(row)));
        Ok(commit(changes, node))
    }
}

fn set_time(time: &mut Timestamp, set: Option<SetTime>, now: Timestamp) {
    match set {
        None => {}
        Some(SetTime::Now) => *time = now,
        Some(SetTime::To(to)) => *time = to,
    }
}

/// Mode and owner after a change.
struct Ownership {
    mode: Mode,
    uid: u32,
    gid: u32,
}

impl Ownership {
    fn apply(&self, mode: &mut Mode, uid: &mut u32, gid: &mut u32) {
        (*mode, *uid, *gid) = (self.mode, self.uid, self.gid);
    }
}

/// Checks that the caller may change all of `set`, and returns the resulting mode and owner.
fn check(
    guard: Guard,
    set: &SetAttributes,
    is_open: impl Fn() -> bool,
    context: &Context<'_>,
) -> Result<Ownership, Errno> {
    let caller = context.caller;
    if set.size.is_some()
        && let Err(denied) = guard.check(caller, WRITE)
    {
        // ftruncate(2) through a descriptor needs no permission; the owner of the file could grant it anyway.
        let through_descriptor = guard.owned_by(caller) && is_open();
        if !through_descriptor {
            return Err(denied);
        }
    }
    check_owner(guard, set, context)?;
    check_times(guard, set, context)?;
    let (uid, gid) = (set.uid.unwrap_or(guard.uid), set.gid.unwrap_or(guard.gid));
    let mode = match set.mode {
        Some(mode) => {
            let clears_set_id_only = guard.allows(caller, WRITE)
                && (mode == guard.mode.without(Mode::SET_UID | Mode::SET_GID)
                    || mode == guard.mode.without(Mode::SET_UID)
                    || mode == guard.mode.without(Mode::SET_GID));
            // When a user writes a file, kernels clear the bits with a chmod in that user's name.
            if !guard.owned_by(caller) && !clears_set_id_only {
                return Err(Errno::EPERM);
            }
            // chmod(2): a caller outside the group cannot set set-group-id.
            let keeps = caller.in_group(gid) || guard.capable(caller, Capability::Fsetid);
            if keeps { mode } else { mode.without(Mode::SET_GID) }
        }
        None => implied_mode(guard, set, context),
    };
    Ok(Ownership { mode, uid, gid })
}

/// The mode if `set` has none: a new owner (set by root too, as in Linux) and a new size clear the set-id bits.
fn implied_mode(guard: Guard, set: &SetAttributes, context: &Context<'_>) -> Mode {
    let chown = set.uid.is_some() || set.gid.is_some();
    match guard.kind {
        FileKind::Directory => guard.mode,
        _ if chown => guard.mode_without_set_id(context.caller),
        _ if set.size.is_some() => guard.mode_after_write(context.caller),
        _ => guard.mode,
    }
}

/// chown(2): root and CAP_CHOWN may change any owner, in a user namespace to its mapped ids; an owner may change the
/// group to one of their own groups.
fn check_owner(guard: Guard, set: &SetAttributes, context: &Context<'_>) -> Result<(), Errno> {
    let caller = context.caller;
    let (uid, gid) = (set.uid.unwrap_or(guard.uid), set.gid.unwrap_or(guard.gid));
    if guard.capable(caller, Capability::Chown) && caller.capable_for(Capability::Chown, uid, gid) {
        return Ok(());
    }
    let owns = caller.uid == guard.uid;
    let uid_allowed = set.uid.is_none_or(|uid| owns && uid == guard.uid);
    let gid_allowed = set.gid.is_none_or(|gid| owns && (gid == guard.gid || caller.in_group(gid)));
    if uid_allowed && gid_allowed { Ok(()) } else { Err(Errno::EPERM) }
}

/// utimensat(2): the owner may set any time, a writer may set both times to now. An mtime of now with a new size
/// belongs to the change of size.
fn check_times(guard: Guard, set: &SetAttributes, context: &Context<'_>) -> Result<(), Errno> {
    let owned = guard.owned_by(context.caller);
    match (set.atime, set.mtime) {
        _ if owned => Ok(()),
        (None, None) => Ok(()),
        (None, Some(SetTime::Now)) if set.size.is_some() => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => guard.check(context.caller, WRITE),
        _ => Err(Errno::EPERM),
    }
}
