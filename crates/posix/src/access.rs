//! Permission checks: the rules of POSIX.1-2024 4.7 with Linux's rules for root, capabilities, sticky directories and
//! set-id bits.

use varve_schema::{DirectoryRow, PartitionRow};
use varve_types::{Attributes, Capability, Credentials, Errno, FileKind, Mode};

pub(super) const READ: u16 = 4;
pub(super) const WRITE: u16 = 2;
pub(super) const EXECUTE: u16 = 1;

/// The extended attribute with the capabilities that a program gets when it is run.
pub(super) const FILE_CAPABILITIES: &[u8] = b"security.capability";

/// The attributes of a file that permission checks use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) kind: FileKind,
    pub(super) mode: Mode,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl From<&Attributes> for Guard {
    fn from(a: &Attributes) -> Guard {
        Guard { kind: a.kind, mode: a.mode, uid: a.uid, gid: a.gid }
    }
}

impl From<&DirectoryRow> for Guard {
    fn from(row: &DirectoryRow) -> Guard {
        Guard { kind: FileKind::Directory, mode: row.mode, uid: row.uid, gid: row.gid }
    }
}

impl From<&PartitionRow> for Guard {
    fn from(row: &PartitionRow) -> Guard {
        Guard { kind: FileKind::Directory, mode: row.mode, uid: row.uid, gid: row.gid }
    }
}

impl Guard {
    /// Whether `caller` has all of `wanted` ([`READ`], [`WRITE`], [`EXECUTE`]). The first class that includes the
    /// caller decides, even if a later class would grant more. Root and CAP_DAC_OVERRIDE have every permission, except
    /// execution of a file that nobody may execute. CAP_DAC_READ_SEARCH reads files, and reads and searches
    /// directories.
    pub(super) fn allows(&self, caller: &Credentials, wanted: u16) -> bool {
        let bits = self.mode.bits();
        let directory = self.kind == FileKind::Directory;
        let runnable = wanted & EXECUTE == 0 || directory || bits & 0o111 != 0;
        if caller.is_checked() || runnable && self.capable(caller, Capability::DacOverride) {
            return true;
        }
        let searches = wanted & !(READ | if directory { EXECUTE } else { 0 }) == 0;
        if searches && self.capable(caller, Capability::DacReadSearch) {
            return true;
        }
        if caller.is_root() {
            return false;
        }
        let granted = if caller.uid == self.uid {
            bits >> 6
        } else if caller.in_group(self.gid) {
            bits >> 3
        } else {
            bits
        };
        granted & wanted == wanted
    }

    /// [`Guard::allows`], or EACCES.
    pub(super) fn check(&self, caller: &Credentials, wanted: u16) -> Result<(), Errno> {
        if self.allows(caller, wanted) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether `caller` owns the file, is root or has CAP_FOWNER.
    pub(super) fn owned_by(&self, caller: &Credentials) -> bool {
        caller.uid == self.uid || self.capable(caller, Capability::Fowner)
    }

    /// Whether `caller` has `capability` for this file.
    pub(super) fn capable(&self, caller: &Credentials, capability: Capability) -> bool {
        caller.capable_for(capability, self.uid, self.gid)
    }

    /// The mode after a write, truncate or change of owner: without set-user-id, and without set-group-id if the group
    /// may execute or the caller is not in the group (otherwise the bit has another meaning and stays; Linux's
    /// `setattr_should_drop_sgid`). The ids of the caller decide, also if the kernel has checked the call.
    pub(super) fn mode_without_set_id(&self, caller: &Credentials) -> Mode {
        let mut mode = self.mode.without(Mode::SET_UID);
        if mode.has(0o010) || !(caller.is_root() || caller.in_group(self.gid)) {
            mode = mode.without(Mode::SET_GID);
        }
        mode
    }

    /// The mode after `caller` wrote to the file: a regular file loses its set-id bits unless the caller keeps them.
    pub(super) fn mode_after_write(&self, caller: &Credentials) -> Mode {
        if caller.keeps_set_id() { self.mode } else { self.mode_without_set_id(caller) }
    }
}

/// The partition row of a name's parent. If it is absent, the directory does not exist.
pub(super) fn parent(partition: Option<&PartitionRow>) -> Result<&PartitionRow, Errno> {
    partition.ok_or(Errno::ENOENT)
}

/// Checks that `caller` may look up names in `parent`.
pub(super) fn check_search(parent: &PartitionRow, caller: &Credentials) -> Result<(), Errno> {
    Guard::from(parent).check(caller, EXECUTE)
}

/// Checks that `caller` may create names in `parent`.
pub(super) fn check_make(parent: &PartitionRow, caller: &Credentials) -> Result<(), Errno> {
    Guard::from(parent).check(caller, WRITE | EXECUTE)
}

/// Checks that `caller` may remove a name from `parent` whose target has this owner and group. In a sticky directory
/// only the owner of the file, the owner of the directory, root and CAP_FOWNER may. `owner` is `None` if the directory
/// is not sticky and the owner was not read.
pub(super) fn check_take(parent: &PartitionRow, owner: Option<(u32, u32)>, caller: &Credentials) -> Result<(), Errno> {
    Guard::from(parent).check(caller, WRITE | EXECUTE)?;
    let owns = |(uid, gid): (u32, u32)| uid == caller.uid || caller.capable_for(Capability::Fowner, uid, gid);
    let free = !parent.mode.has(Mode::STICKY)
        || caller.uid == parent.uid
        || owner.map_or(caller.capable(Capability::Fowner), owns);
    if free { Ok(()) } else { Err(Errno::EPERM) }
}

/// Group and mode of a file created in `parent`. A set-group-id directory passes on its group, and to directories also
/// the bit. A file does not get set-group-id with that group if its creator could not set it (Linux's
/// `mode_strip_sgid`).
pub(super) fn inherit(parent: &PartitionRow, kind: FileKind, mode: Mode, caller: &Credentials) -> (u32, Mode) {
    if !parent.mode.has(Mode::SET_GID) {
        return (caller.gid, mode);
    }
    let foreign = !(caller.in_group(parent.gid) || Guard::from(parent).capable(caller, Capability::Fsetid));
    let mode = match kind {
        FileKind::Directory => Mode(mode.bits() | Mode::SET_GID),
        _ if mode.has(Mode::SET_GID) && mode.has(0o010) && foreign => mode.without(Mode::SET_GID),
        _ => mode,
    };
    (parent.gid, mode)
}
