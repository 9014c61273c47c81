//! Extended attributes: getxattr(2), setxattr(2), listxattr(2), removexattr(2) and the namespaces of xattr(7).
//!
//! A file's first attribute moves the file's row from its entry to an inode row. The names are listed there (or in the
//! directory row), and each value has a row of its own.

use super::access::{FILE_CAPABILITIES, Guard, READ, WRITE};
use super::locate::{Located, LocatedRow};
use super::node::At;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use bytes::Bytes;
use varve_schema::{Change, DirectoryRow, Key, Row};
use varve_types::{Capability, Errno, FileKind, InodeId, Mode, Timestamp};

/// Bytes of a name, namespace included (Linux's XATTR_NAME_MAX).
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a value (Linux's XATTR_SIZE_MAX).
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all names of a file, each with a NUL: the maximum that listxattr(2) returns (Linux's XATTR_LIST_MAX).
pub const LIST_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    CreateOrReplace,
    Create,
    Replace,
}

/// Returns a value; ENODATA if there is none.
#[derive(Clone, Debug)]
pub struct GetXattr {
    pub at: At,
    pub name: Bytes,
}

/// Sets a value. [`XattrMode::Create`] fails with EEXIST if there is a value, [`XattrMode::Replace`] with ENODATA if
/// there is none. E2BIG if the value is too long, ENOSPC if the list of names would be too long.
#[derive(Clone, Debug)]
pub struct SetXattr {
    pub at: At,
    pub name: Bytes,
    pub value: Bytes,
    pub mode: XattrMode,
}

/// Returns the names, sorted. Only root sees names in `trusted.`.
#[derive(Clone, Debug)]
pub struct ListXattrs {
    pub at: At,
}

/// Removes an attribute; ENODATA if there is none.
#[derive(Clone, Debug)]
pub struct RemoveXattr {
    pub at: At,
    pub name: Bytes,
}

impl Rule for GetXattr {
    type Outcome = Bytes;
    type Rows<'a> = (LocatedRow<'a>, Option<&'a Bytes>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let found = LocatedRow::look(&self.at, reader)?;
        let value = match holder(found) {
            Ok(holder) if holder.has(&self.name) => reader.xattr(holder.inode(), &self.name)?,
            _ => None,
        };
        Some((found, value))
    }

    fn rule(&self, (found, value): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Bytes>, Refusal> {
        let holder = holder(found)?;
        check_name(&self.name)?;
        holder.check_read(Namespace::of(&self.name)?, context)?;
        Ok(Decision::Answer(value.ok_or(Errno::ENODATA)?.clone()))
    }
}

impl Rule for SetXattr {
    type Outcome = ();
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<()>, Refusal> {
        let holder = holder(found)?;
        check_name(&self.name)?;
        if self.value.len() > VALUE_BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        holder.check_write(&self.name, context)?;
        let mut names = holder.names().to_vec();
        match (names.binary_search(&self.name), self.mode) {
            (Ok(_), XattrMode::Create) => return Err(Errno::EEXIST.into()),
            (Err(_), XattrMode::Replace) => return Err(Errno::ENODATA.into()),
            (Ok(_), _) => {}
            (Err(place), _) => names.insert(place, self.name.clone()),
        }
        if names.iter().map(|name| name.len() + 1).sum::<usize>() > LIST_BYTES_MAX {
            return Err(Errno::ENOSPC.into());
        }
        let mut changes = holder.put_names(names, context.now);
        let key = Key::Xattr(holder.inode(), self.name.clone());
        changes.push(Change::put(key, Row::Xattr(self.value.clone())));
        Ok(commit(changes, ()))
    }
}

impl Rule for ListXattrs {
    type Outcome = Vec<Bytes>;
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<Vec<Bytes>>, Refusal> {
        let holder = holder(found)?;
        // The kernel checks no permission to list names, so the ids of the caller decide.
        let shown = |name: &&Bytes| context.caller.is_root() || Namespace::of(name) != Ok(Namespace::Trusted);
        Ok(Decision::Answer(holder.names().iter().filter(shown).cloned().collect()))
    }
}

impl Rule for RemoveXattr {
    type Outcome = ();
    type Rows<'a> = LocatedRow<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        LocatedRow::look(&self.at, reader)
    }

    fn rule(&self, found: LocatedRow<'_>, context: &Context<'_>) -> Result<Decision<()>, Refusal> {
        let holder = holder(found)?;
        check_name(&self.name)?;
        holder.check_write(&self.name, context)?;
        let mut names = holder.names().to_vec();
        let place = names.binary_search(&self.name).map_err(|_| Errno::ENODATA)?;
        names.remove(place);
        let mut changes = holder.put_names(names, context.now);
        changes.push(Change::Delete(Key::Xattr(holder.inode(), self.name.clone())));
        Ok(commit(changes, ()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
}

impl Namespace {
    /// EOPNOTSUPP for a namespace that is not supported (`system.`, and with it POSIX ACLs), EINVAL for a namespace
    /// without a name.
    fn of(name: &[u8]) -> Result<Namespace, Errno> {
        let known: [(&[u8], Namespace); 3] =
            [(b"user.", Namespace::User), (b"trusted.", Namespace::Trusted), (b"security.", Namespace::Security)];
        let (prefix, namespace) =
            known.into_iter().find(|(prefix, _)| name.starts_with(prefix)).ok_or(Errno::EOPNOTSUPP)?;
        if name.len() == prefix.len() { Err(Errno::EINVAL) } else { Ok(namespace) }
    }
}

/// setxattr(2): ERANGE if the name is empty or too long.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        1..=NAME_BYTES_MAX if name.contains(&0) => Err(Errno::EINVAL),
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(Errno::ERANGE),
    }
}

/// A file or directory, whose row lists its attributes.
#[derive(Clone, Copy)]
enum XattrHolder<'a> {
    File(Located<'a>),
    Directory(InodeId, &'a DirectoryRow),
}

fn holder(found: LocatedRow<'_>) -> Result<XattrHolder<'_>, Refusal> {
    match found {
        LocatedRow::File(file) => Ok(XattrHolder::File(file)),
        LocatedRow::Directory(inode, row) => Ok(XattrHolder::Directory(inode, row)),
        LocatedRow::Nothing => Err(Refusal::NotHere),
    }
}

impl<'a> XattrHolder<'a> {
    fn inode(&self) -> InodeId {
        match self {
            XattrHolder::File(file) => file.inode,
            XattrHolder::Directory(inode, _) => *inode,
        }
    }

    fn names(&self) -> &'a [Bytes] {
        match self {
            XattrHolder::File(file) => &file.row.xattrs,
            XattrHolder::Directory(_, row) => &row.xattrs,
        }
    }

    fn has(&self, name: &Bytes) -> bool {
        self.names().binary_search(name).is_ok()
    }

    fn guard(&self) -> Guard {
        match self {
            XattrHolder::File(file) => file.guard(),
            XattrHolder::Directory(_, row) => Guard::from(*row),
        }
    }

    /// xattr(7): `user.` follows the file's permissions and exists only on regular files and directories. Only root
    /// and CAP_SYS_ADMIN read `trusted.`. Everybody reads `security.`.
    fn check_read(&self, namespace: Namespace, context: &Context<'_>) -> Result<(), Errno> {
        let guard = self.guard();
        match namespace {
            Namespace::User if !has_user_namespace(guard.kind) => Err(Errno::ENODATA),
            Namespace::User => guard.check(context.caller, READ),
            Namespace::Trusted if !context.caller.capable(Capability::SysAdmin) => Err(Errno::ENODATA),
            Namespace::Trusted | Namespace::Security => Ok(()),
        }
    }

    /// xattr(7): only the owner of a sticky directory, in which many users may write, changes its own `user.`
    /// attributes. CAP_SETFCAP changes `security.capability`, CAP_SYS_ADMIN the other names.
    fn check_write(&self, name: &[u8], context: &Context<'_>) -> Result<(), Errno> {
        let (guard, namespace) = (self.guard(), Namespace::of(name)?);
        let privileged = match name {
            FILE_CAPABILITIES => guard.capable(context.caller, Capability::Setfcap),
            _ => context.caller.capable(Capability::SysAdmin),
        };
        match namespace {
            Namespace::User if !has_user_namespace(guard.kind) => Err(Errno::EPERM),
            Namespace::User
                if guard.kind == FileKind::Directory
                    && guard.mode.has(Mode::STICKY)
                    && !guard.owned_by(context.caller) =>
            {
                Err(Errno::EPERM)
            }
            Namespace::User => guard.check(context.caller, WRITE),
            Namespace::Trusted | Namespace::Security if !privileged => Err(Errno::EPERM),
            Namespace::Trusted | Namespace::Security => Ok(()),
        }
    }

    fn put_names(&self, names: Vec<Bytes>, now: Timestamp) -> Vec<Change> {
        match self {
            XattrHolder::File(file) => {
                let mut row = file.row.clone();
                row.attributes.ctime = now;
                row.xattrs = names;
                file.put_externalised(row)
            }
            XattrHolder::Directory(inode, row) => {
                let row = DirectoryRow { ctime: now, xattrs: names, ..(*row).clone() };
                vec![Change::put(Key::Directory(*inode), Row::Directory(row))]
            }
        }
    }
}

fn has_user_namespace(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Directory)
}
