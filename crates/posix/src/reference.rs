//! A file system as POSIX and Linux's manual pages describe it, kept as a tree in memory. It is written to be compared
//! with those pages, not with the verbs: it has no rows, partitions or locations of content except those that clients
//! can see. It judges tests of this crate and, with the feature `testing`, of other crates.

use crate::{NewNode, Refusal, RenameFlags, XattrMode};
use std::collections::{BTreeMap, BTreeSet};
use varve_types::{Credentials, Errno, FileKind, InodeId, SetAttributes, SetTime, Timestamp};

/// Content above this many bytes is refused: the file must be promoted first.
pub const INLINE_LIMIT: u32 = 64;

type ReferenceName = Vec<u8>;
pub type ReferenceResult<T> = Result<T, Refusal>;

#[derive(Clone, Debug)]
pub enum Body {
    Directory(BTreeMap<ReferenceName, InodeId>),
    Inline(Vec<u8>),
    Backing(u64),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug)]
pub struct ReferenceNode {
    pub kind: FileKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub body: Body,
    pub xattrs: BTreeMap<ReferenceName, Vec<u8>>,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// An alternative later ctime, where POSIX permits a call to change it.
    pub ctime_or: Option<Timestamp>,
}

#[derive(Clone)]
pub struct Reference {
    pub nodes: BTreeMap<InodeId, ReferenceNode>,
    pub open: BTreeSet<InodeId>,
    /// Files that never had a name and may get one.
    linkable: BTreeSet<InodeId>,
    pub now: Timestamp,
}

fn no<T>(errno: Errno) -> ReferenceResult<T> {
    Err(Refusal::Errno(errno))
}

impl ReferenceNode {
    fn may(&self, who: &Credentials, bits: u16) -> bool {
        if who.uid == 0 {
            return bits & 1 == 0 || self.kind == FileKind::Directory || self.mode & 0o111 != 0;
        }
        let shift = match () {
            () if who.uid == self.uid => 6,
            () if who.gid == self.gid || who.groups.contains(&self.gid) => 3,
            () => 0,
        };
        (self.mode >> shift) & bits == bits
    }

    fn owner(&self, who: &Credentials) -> bool {
        who.uid == 0 || who.uid == self.uid
    }

    fn kill_set_id(&mut self, who: &Credentials) {
        self.mode &= !0o4000;
        let member = who.uid == 0 || who.gid == self.gid || who.groups.contains(&self.gid);
        if self.mode & 0o010 != 0 || !member {
            self.mode &= !0o2000;
        }
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::Directory(children) => children.len() as u64,
            Body::Inline(bytes) | Body::Symlink(bytes) => bytes.len() as u64,
            Body::Backing(size) => *size,
            Body::Special => 0,
        }
    }

    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl Reference {
    pub fn new(now: Timestamp) -> Reference {
        let root = ReferenceNode {
            kind: FileKind::Directory,
            mode: 0o777,
            uid: 0,
            gid: 0,
            rdev: 0,
            body: Body::Directory(BTreeMap::new()),
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            ctime_or: None,
        };
        Reference {
            nodes: BTreeMap::from([(InodeId::ROOT, root)]),
            open: BTreeSet::new(),
            linkable: BTreeSet::new(),
            now,
        }
    }

    pub fn children(&self, directory: InodeId) -> ReferenceResult<&BTreeMap<ReferenceName, InodeId>> {
        match self.nodes.get(&directory).map(|node| &node.body) {
            Some(Body::Directory(children)) => Ok(children),
            _ => no(Errno::ENOENT),
        }
    }

    fn children_mut(&mut self, directory: InodeId) -> &mut BTreeMap<ReferenceName, InodeId> {
        match &mut self.nodes.get_mut(&directory).unwrap().body {
            Body::Directory(children) => children,
            _ => unreachable!("only directories have children"),
        }
    }

    pub fn nlink(&self, inode: InodeId) -> u32 {
        let all = || {
            self.nodes.values().filter_map(|node| match &node.body {
                Body::Directory(children) => Some(children),
                _ => None,
            })
        };
        match &self.nodes[&inode].body {
            Body::Directory(children) => {
                2 + children.values().filter(|child| self.nodes[child].is_directory()).count() as u32
            }
            _ => all().flat_map(|children| children.values()).filter(|child| **child == inode).count() as u32,
        }
    }

    pub fn parent(&self, directory: InodeId) -> Option<InodeId> {
        self.nodes.iter().find_map(|(inode, node)| match &node.body {
            Body::Directory(children) if children.values().any(|child| *child == directory) => Some(*inode),
            _ => None,
        })
    }

    /// Whether `upper` is `lower` or one of its ancestors.
    fn above(&self, upper: InodeId, lower: InodeId) -> bool {
        upper == lower || self.parent(lower).is_some_and(|parent| self.above(upper, parent))
    }

    fn searchable(&self, who: &Credentials, directory: InodeId) -> ReferenceResult<()> {
        self.children(directory)?;
        if self.nodes[&directory].may(who, 1) { Ok(()) } else { no(Errno::EACCES) }
    }

    fn writable(&self, who: &Credentials, directory: InodeId) -> ReferenceResult<()> {
        if self.nodes[&directory].may(who, 3) { Ok(()) } else { no(Errno::EACCES) }
    }

    /// unlink(2): EACCES without write permission on the directory, EPERM where it is sticky and others own it.
    fn removable(&self, who: &Credentials, directory: InodeId, child: InodeId) -> ReferenceResult<()> {
        self.writable(who, directory)?;
        let (parent, child) = (&self.nodes[&directory], &self.nodes[&child]);
        if parent.mode & 0o1000 != 0 && !parent.owner(who) && !child.owner(who) {
            return no(Errno::EPERM);
        }
        Ok(())
    }

    fn touch_directory(&mut self, directory: InodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&directory).unwrap();
        (node.mtime, node.ctime, node.ctime_or) = (now, now, None);
    }

    fn changed(&mut self, inode: InodeId) {
        let now = self.now;
        let node = self.nodes.get_mut(&inode).unwrap();
        (node.ctime, node.ctime_or) = (now, None);
    }

    fn may_have_changed(&mut self, inode: InodeId) {
        let now = self.now;
        self.nodes.get_mut(&inode).unwrap().ctime_or = Some(now);
    }

    pub fn lookup(&self, who: &Credentials, directory: InodeId, name: &ReferenceName) -> ReferenceResult<InodeId> {
        self.searchable(who, directory)?;
        self.children(directory)?.get(name).copied().ok_or(Refusal::Errno(Errno::ENOENT))
    }

    fn make(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        name: &ReferenceName,
        inode: InodeId,
        kind: FileKind,
        mode: u16,
    ) -> ReferenceResult<&mut ReferenceNode> {
        self.searchable(who, directory)?;
        if self.children(directory)?.contains_key(name) {
            return no(Errno::EEXIST);
        }
        self.writable(who, directory)?;
        let node = self.made(who, directory, kind, mode);
        self.children_mut(directory).insert(name.clone(), inode);
        self.touch_directory(directory);
        self.nodes.insert(inode, node);
        Ok(self.nodes.get_mut(&inode).unwrap())
    }

    /// A new node of `who` in `directory`, before it has content.
    fn made(&self, who: &Credentials, directory: InodeId, kind: FileKind, mode: u16) -> ReferenceNode {
        let (mut gid, mut mode) = (who.gid, mode);
        let parent = &self.nodes[&directory];
        if parent.mode & 0o2000 != 0 {
            gid = parent.gid;
            let member = who.uid == 0 || who.gid == gid || who.groups.contains(&gid);
            if kind == FileKind::Directory {
                mode |= 0o2000;
            } else if mode & 0o2010 == 0o2010 && !member {
                mode &= !0o2000;
            }
        }
        let now = self.now;
        ReferenceNode {
            kind,
            mode,
            uid: who.uid,
            gid,
            rdev: 0,
            body: Body::Special,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            ctime_or: None,
        }
    }

    pub fn create(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        name: &ReferenceName,
        inode: InodeId,
        new: &NewNode,
        mode: u16,
    ) -> ReferenceResult<()> {
        if matches!(new, NewNode::Symlink { target } if target.is_empty()) {
            return no(Errno::ENOENT);
        }
        let mode = if new.kind() == FileKind::Symlink { 0o777 } else { mode };
        // Errors about the directory and the name come first.
        let earlier = self.children(directory)?.contains_key(name) || !self.nodes[&directory].may(who, 3);
        let device = matches!(new, NewNode::CharDevice { rdev: 1.. } | NewNode::BlockDevice { .. });
        if device && who.uid != 0 && !earlier {
            return no(Errno::EPERM);
        }
        let node = self.make(who, directory, name, inode, new.kind(), mode)?;
        match new {
            NewNode::Regular => node.body = Body::Inline(Vec::new()),
            NewNode::Symlink { target } => node.body = Body::Symlink(target.to_vec()),
            NewNode::CharDevice { rdev } | NewNode::BlockDevice { rdev } => node.rdev = *rdev,
            NewNode::Fifo | NewNode::Socket => {}
        }
        Ok(())
    }

    /// open(2) with O_TMPFILE; the file is open.
    pub fn create_unnamed(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        inode: InodeId,
        mode: u16,
        linkable: bool,
    ) -> ReferenceResult<()> {
        self.children(directory)?;
        self.writable(who, directory)?;
        let node = self.made(who, directory, FileKind::Regular, mode);
        self.nodes.insert(inode, ReferenceNode { body: Body::Inline(Vec::new()), ..node });
        self.open.insert(inode);
        if linkable {
            self.linkable.insert(inode);
        }
        Ok(())
    }

    pub fn mkdir(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        name: &ReferenceName,
        inode: InodeId,
        mode: u16,
    ) -> ReferenceResult<()> {
        let node = self.make(who, directory, name, inode, FileKind::Directory, mode & 0o1777)?;
        node.body = Body::Directory(BTreeMap::new());
        Ok(())
    }

    /// The inode, if this was its last name.
    fn drop_name(&mut self, inode: InodeId) -> Option<InodeId> {
        if self.nlink(inode) > 0 && !self.nodes[&inode].is_directory() {
            self.changed(inode);
            return None;
        }
        if self.open.contains(&inode) {
            self.changed(inode);
        } else {
            self.nodes.remove(&inode);
        }
        Some(inode)
    }

    pub fn unlink(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        name: &ReferenceName,
    ) -> ReferenceResult<Option<InodeId>> {
        let inode = self.lookup(who, directory, name)?;
        self.removable(who, directory, inode)?;
        if self.nodes[&inode].is_directory() {
            return no(Errno::EISDIR);
        }
        self.children_mut(directory).remove(name);
        self.touch_directory(directory);
        Ok(self.drop_name(inode))
    }

    pub fn rmdir(
        &mut self,
        who: &Credentials,
        directory: InodeId,
        name: &ReferenceName,
    ) -> ReferenceResult<Option<InodeId>> {
        let inode = self.lookup(who, directory, name)?;
        self.removable(who, directory, inode)?;
        if !self.nodes[&inode].is_directory() {
            return no(Errno::ENOTDIR);
        }
        if !self.children(inode)?.is_empty() {
            return no(Errno::ENOTEMPTY);
        }
        self.children_mut(directory).remove(name);
        self.touch_directory(directory);
        Ok(self.drop_name(inode))
    }

    pub fn rename(
        &mut self,
        who: &Credentials,
        (old_dir, old_name): (InodeId, &ReferenceName),
        (new_dir, new_name): (InodeId, &ReferenceName),
        flags: RenameFlags,
        fresh: InodeId,
    ) -> ReferenceResult<Option<InodeId>> {
        self.searchable(who, old_dir)?;
        self.searchable(who, new_dir)?;
        let source = self.lookup(who, old_dir, old_name)?;
        let target = self.children(new_dir)?.get(new_name).copied();
        let source_is_directory = self.nodes[&source].is_directory();
        let target_is_directory = target.is_some_and(|target| self.nodes[&target].is_directory());
        let across = old_dir != new_dir;
        match (flags, target) {
            (RenameFlags::NoReplace | RenameFlags::WhiteoutNoReplace, Some(_)) => return no(Errno::EEXIST),
            (RenameFlags::Exchange, None) => return no(Errno::ENOENT),
            _ => {}
        }
        if across && source_is_directory && self.above(source, new_dir) {
            return no(Errno::EINVAL);
        }
        if let Some(target) = target.filter(|target| across && target_is_directory && self.above(*target, old_dir)) {
            assert!(self.nodes.contains_key(&target));
            return no(if flags == RenameFlags::Exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        if target == Some(source) {
            return Ok(None);
        }
        self.removable(who, old_dir, source)?;
        match target {
            None => self.writable(who, new_dir)?,
            Some(target) => self.removable(who, new_dir, target)?,
        }
        if flags != RenameFlags::Exchange && target.is_some() {
            match (source_is_directory, target_is_directory) {
                (true, false) => return no(Errno::ENOTDIR),
                (false, true) => return no(Errno::EISDIR),
                _ => {}
            }
        }
        let turned = |inode: InodeId| self.nodes[&inode].is_directory() && !self.nodes[&inode].may(who, 2);
        if across && (turned(source) || (flags == RenameFlags::Exchange && target.is_some_and(turned))) {
            return no(Errno::EACCES);
        }
        let replaced = target.filter(|_| flags != RenameFlags::Exchange);
        if replaced.is_some_and(|inode| self.children(inode).is_ok_and(|children| !children.is_empty())) {
            return no(Errno::ENOTEMPTY);
        }
        self.children_mut(old_dir).remove(old_name);
        self.children_mut(new_dir).insert(new_name.clone(), source);
        self.touch_directory(old_dir);
        self.touch_directory(new_dir);
        self.may_have_changed(source);
        if matches!(flags, RenameFlags::Whiteout | RenameFlags::WhiteoutNoReplace) {
            self.children_mut(old_dir).insert(old_name.clone(), fresh);
            let whiteout = self.made(who, old_dir, FileKind::CharDevice, 0);
            self.nodes.insert(fresh, whiteout);
        }
        if let (RenameFlags::Exchange, Some(target)) = (flags, target) {
            self.children_mut(old_dir).insert(old_name.clone(), target);
            self.may_have_changed(target);
        }
        Ok(replaced.and_then(|inode| self.drop_name(inode)))
    }

    pub fn link(
        &mut self,
        who: &Credentials,
        source: InodeId,
        directory: InodeId,
        name: &ReferenceName,
    ) -> ReferenceResult<()> {
        self.searchable(who, directory)?;
        if self.children(directory)?.contains_key(name) {
            return no(Errno::EEXIST);
        }
        self.writable(who, directory)?;
        if self.nodes[&source].is_directory() {
            return no(Errno::EPERM);
        }
        if self.nlink(source) == 0 && !self.linkable.remove(&source) {
            return no(Errno::ENOENT);
        }
        self.children_mut(directory).insert(name.clone(), source);
        self.touch_directory(directory);
        self.changed(source);
        Ok(())
    }

    pub fn set_attributes(&mut self, who: &Credentials, inode: InodeId, set: &SetAttributes) -> ReferenceResult<()> {
        let (now, open) = (self.now, self.open.contains(&inode));
        let Some(node) = self.nodes.get_mut(&inode) else { return Err(Refusal::NotHere) };
        if *set == SetAttributes::default() {
            return Ok(());
        }
        match (set.size, node.kind) {
            (None, _) | (Some(_), FileKind::Regular) => {}
            (Some(_), FileKind::Directory) => return no(Errno::EISDIR),
            (Some(_), _) => return no(Errno::EINVAL),
        }
        if set.mode.is_some() && node.kind == FileKind::Symlink {
            return no(Errno::EOPNOTSUPP);
        }
        if set.size.is_some() && !node.may(who, 2) && !(open && node.owner(who)) {
            return no(Errno::EACCES);
        }
        let member = |gid| who.gid == gid || who.groups.contains(&gid);
        if who.uid != 0 {
            let owner = who.uid == node.uid;
            if set.uid.is_some_and(|uid| !owner || uid != node.uid) {
                return no(Errno::EPERM);
            }
            if set.gid.is_some_and(|gid| !owner || !(gid == node.gid || member(gid))) {
                return no(Errno::EPERM);
            }
        }
        match (set.atime, set.mtime) {
            (None, None) => {}
            _ if node.owner(who) => {}
            (Some(SetTime::Now), Some(SetTime::Now)) if node.may(who, 2) => {}
            (Some(SetTime::Now), Some(SetTime::Now)) => return no(Errno::EACCES),
            (None, Some(SetTime::Now)) if set.size.is_some() => {}
            _ => return no(Errno::EPERM),
        }
        if let Some(mode) = set.mode.map(|mode| mode.bits()) {
            let lost = node.mode & !mode;
            // A kernel may clear bits that are clear already; a mode that keeps both bits clears nothing.
            let only_set_id_lost = mode & !node.mode == 0 && lost & !0o6000 == 0 && mode & 0o6000 != 0o6000;
            let may = node.owner(who) || node.may(who, 2) && only_set_id_lost;
            if !may {
                return no(Errno::EPERM);
            }
        }
        if set.size.is_some_and(|size| matches!(node.body, Body::Inline(_)) && size > u64::from(INLINE_LIMIT)) {
            return Err(Refusal::MustPromote);
        }
        let chown = set.uid.is_some() || set.gid.is_some();
        if set.mode.is_none() && !node.is_directory() && (chown || (set.size.is_some() && who.uid != 0)) {
            node.kill_set_id(who);
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            let keeps = who.uid == 0 || member(node.gid);
            node.mode = if keeps { mode.bits() } else { mode.bits() & !0o2000 };
        }
        if let Some(size) = set.size {
            match &mut node.body {
                Body::Inline(bytes) => bytes.resize(size as usize, 0),
                body => *body = Body::Backing(size),
            }
            node.mtime = now;
        }
        let time = |set, old| match set {
            None => old,
            Some(SetTime::Now) => now,
            Some(SetTime::To(to)) => to,
        };
        (node.atime, node.mtime) = (time(set.atime, node.atime), time(set.mtime, node.mtime));
        (node.ctime, node.ctime_or) = (now, None);
        Ok(())
    }

    pub fn open(&mut self, who: &Credentials, inode: InodeId, bits: u16, truncate: bool) -> ReferenceResult<()> {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&inode) else { return Err(Refusal::NotHere) };
        let bits = if truncate { bits | 2 } else { bits };
        match node.kind {
            FileKind::Directory if bits & 2 != 0 => return no(Errno::EISDIR),
            FileKind::Symlink => return no(Errno::ELOOP),
            _ if !node.may(who, bits) => return no(Errno::EACCES),
            _ => {}
        }
        if truncate && node.kind == FileKind::Regular {
            node.body = match node.body {
                Body::Inline(_) => Body::Inline(Vec::new()),
                _ => Body::Backing(0),
            };
            if who.uid != 0 {
                node.kill_set_id(who);
            }
            (node.mtime, node.ctime, node.ctime_or) = (now, now, None);
        }
        Ok(())
    }

    /// Writes new content to its current location. The ctime of a backing file's content is known only when a writer
    /// reports it.
    pub fn write(&mut self, who: &Credentials, inode: InodeId, body: Body) {
        let now = self.now;
        let node = self.nodes.get_mut(&inode).unwrap();
        if who.uid != 0 {
            node.kill_set_id(who);
        }
        node.mtime = now;
        match body {
            Body::Backing(_) if matches!(node.body, Body::Backing(_)) => node.ctime_or = Some(now),
            _ => (node.ctime, node.ctime_or) = (now, None),
        }
        node.body = body;
    }

    fn xattr_permission(
        &self,
        who: &Credentials,
        inode: InodeId,
        name: &ReferenceName,
        write: bool,
    ) -> ReferenceResult<()> {
        let node = &self.nodes[&inode];
        let errno = match name.split(|byte| *byte == b'.').next() {
            Some(b"user") => {
                let kind = matches!(node.kind, FileKind::Regular | FileKind::Directory);
                let sticky = node.is_directory() && node.mode & 0o1000 != 0 && !node.owner(who);
                match write {
                    true if !kind || sticky => Errno::EPERM,
                    false if !kind => Errno::ENODATA,
                    _ if node.may(who, if write { 2 } else { 4 }) => return Ok(()),
                    _ => Errno::EACCES,
                }
            }
            Some(b"trusted") if who.uid != 0 => {
                if write {
                    Errno::EPERM
                } else {
                    Errno::ENODATA
                }
            }
            Some(b"security") if who.uid != 0 && write => Errno::EPERM,
            Some(b"trusted" | b"security") => return Ok(()),
            _ => Errno::EOPNOTSUPP,
        };
        no(errno)
    }

    pub fn get_xattr(&self, who: &Credentials, inode: InodeId, name: &ReferenceName) -> ReferenceResult<Vec<u8>> {
        self.xattr_permission(who, inode, name, false)?;
        self.nodes[&inode].xattrs.get(name).cloned().ok_or(Refusal::Errno(Errno::ENODATA))
    }

    pub fn set_xattr(
        &mut self,
        who: &Credentials,
        inode: InodeId,
        name: &ReferenceName,
        value: &[u8],
        mode: XattrMode,
    ) -> ReferenceResult<()> {
        self.xattr_permission(who, inode, name, true)?;
        let xattrs = &mut self.nodes.get_mut(&inode).unwrap().xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return no(Errno::EEXIST),
            (XattrMode::Replace, false) => return no(Errno::ENODATA),
            _ => {}
        }
        xattrs.insert(name.clone(), value.to_vec());
        self.changed(inode);
        Ok(())
    }

    pub fn remove_xattr(&mut self, who: &Credentials, inode: InodeId, name: &ReferenceName) -> ReferenceResult<()> {
        self.xattr_permission(who, inode, name, true)?;
        if self.nodes.get_mut(&inode).unwrap().xattrs.remove(name).is_none() {
            return no(Errno::ENODATA);
        }
        self.changed(inode);
        Ok(())
    }

    pub fn list_xattrs(&self, who: &Credentials, inode: InodeId) -> Vec<ReferenceName> {
        let shown = |name: &&ReferenceName| who.uid == 0 || !name.starts_with(b"trusted.");
        self.nodes[&inode].xattrs.keys().filter(shown).cloned().collect()
    }

    pub fn release(&mut self, inode: InodeId) {
        self.open.remove(&inode);
        let node = self.nodes.get(&inode);
        if node.is_some_and(|node| !node.is_directory()) && self.nlink(inode) == 0 {
            self.nodes.remove(&inode);
        }
    }
}
