//! Operations on names.

use crate::calls::Core;
use crate::directory_cache::{Delta, PendingChange};
use crate::inodes::ObservedInode;
use crate::locate::unexpected;
use crate::{FileSystem, NewNode, NodeInfo, OpenFlags, OpenedFile, Operation, RenameFlags, Result};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_proto::{Call, EntryReply, NodeReply, Reply, WireTime};
use varve_types::{Authority, Credentials, Errno, FileKind, InodeId, Mode, Name, NameHash};

/// Lookups of one name whose inode is removed between the two requests, before the name is considered absent: more than
/// other clients that keep replacing it can win in a row.
const VANISHED_MAX: usize = 64;

/// Opens of one name that other clients create and remove in turn: the same limit.
const RACES_MAX: usize = 64;

impl FileSystem {
    pub async fn lookup(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<NodeInfo> {
        self.count(Operation::Lookup, self.lookup_counting(caller, parent, name, 1)).await
    }

    /// Looks up a name and counts `lookups` references of the frontend.
    pub(crate) async fn lookup_counting(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        lookups: u64,
    ) -> Result<NodeInfo> {
        if self.embedded() && self.directory_cache.is_absent(parent, name.hash()) {
            return Err(Errno::ENOENT.into());
        }
        for _ in 0..VANISHED_MAX {
            let (asking, asked) = (self.files.asking(), self.core.clock.monotonic());
            let (entry, lease_ms) = self.core.look_up(caller, parent, name).await?;
            let (inode, kind, by_inode) = match &entry {
                EntryReply::Node(node) => (InodeId(node.inode), node.attributes.kind.into(), node.by_inode),
                EntryReply::Elsewhere { inode, kind } => (InodeId(*inode), FileKind::from(*kind), true),
            };
            // Stored first, so that the following calls can locate the inode by its name too.
            self.core.inodes.saw(ObservedInode { inode, parent, name, kind, by_inode }, lookups);
            let resolved = self.resolve(caller, entry, asking, self.leased(asked, lease_ms)).await;
            match resolved {
                Ok(Some(node)) => return Ok(self.under(parent, name.as_bytes(), node)),
                Ok(None) => {
                    self.core.inodes.forget(inode, lookups);
                    if kind == FileKind::Directory {
                        Box::pin(self.revive_directory(caller, parent, name)).await?;
                    }
                }
                Err(failure) => {
                    self.core.inodes.forget(inode, lookups);
                    return Err(failure);
                }
            }
        }
        Err(Errno::ENOENT.into())
    }

    /// The kernel has dropped `lookups` of its references to `inode`; with the last one, its cached state is dropped.
    /// Every `NodeInfo` that `lookup`, `create`, `create_unnamed`, `make_node`, `make_directory`, `link` and
    /// `read_directory` with `plus` return counts one reference.
    pub fn forget(&self, inode: InodeId, lookups: u64) {
        self.core.inodes.forget(inode, lookups);
    }

    /// The parent of `directory`; the root's parent is the root.
    pub async fn parent(&self, directory: InodeId) -> Result<InodeId> {
        if directory == InodeId::ROOT {
            return Ok(directory);
        }
        match self.core.inodes.parent(directory) {
            Some(parent) if !self.core.unknown_outcomes.of_inode(directory) => Ok(parent),
            _ => Ok(self.directory_reply(&Credentials::root(), directory).await?.parent),
        }
    }

    /// Creates a regular file and opens it. If the name is taken, returns `EEXIST` if `flags` are exclusive, and else
    /// opens the existing file.
    pub async fn create(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        flags: OpenFlags,
    ) -> Result<(NodeInfo, OpenedFile)> {
        self.count(Operation::Create, self.create_or_open(caller, parent, name, mode, flags)).await
    }

    async fn create_or_open(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        flags: OpenFlags,
    ) -> Result<(NodeInfo, OpenedFile)> {
        self.check_writable()?;
        for _ in 0..RACES_MAX {
            let (losses, changes) = (self.core.losses(), self.changes.load(Relaxed));
            match self.create_at(caller, parent, name, mode, NewNode::Regular, true).await {
                Ok(made) => {
                    // Stored first: the open may have to locate the inode by its name.
                    self.saw_made(parent, name, &made);
                    return match self.opened_by_create(caller, parent, &made, flags, losses).await {
                        Ok(opened) => {
                            let node = self.under(parent, name.as_bytes(), self.node(&made, Duration::ZERO));
                            self.remember_made(node, changes);
                            Ok((node, opened))
                        }
                        Err(failure) => {
                            self.forget(InodeId(made.inode), 1);
                            // The file exists, though it is not open.
                            Err(self.unknown_outcome(failure.outcome_unknown(), &[(parent, name)], &[Some(parent)]))
                        }
                    };
                }
                Err(failure) if failure.errno == Errno::EEXIST && !flags.exclusive => {}
                Err(failure) => return Err(failure),
            }
            match self.lookup_and_open(caller, parent, name, flags).await {
                Err(failure) if matches!(failure.errno, Errno::ENOENT | Errno::ESTALE) => {}
                result => return result,
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Creates a regular file without a name in `parent` and opens it (O_TMPFILE). The file ends with its last handle
    /// unless [`FileSystem::link`] names it before, which is refused if `flags` are exclusive.
    pub async fn create_unnamed(
        &self,
        caller: &Credentials,
        parent: InodeId,
        mode: Mode,
        flags: OpenFlags,
    ) -> Result<(NodeInfo, OpenedFile)> {
        self.count(Operation::Create, async {
            self.check_writable()?;
            let losses = self.core.losses();
            let call = || Call::CreateUnnamed { parent: parent.0, mode: mode.bits(), linkable: !flags.exclusive };
            let made = match self.core.ask_hash(caller, parent, NameHash::FIRST, call).await? {
                Reply::Node(made) => made,
                other => return Err(unexpected("CreateUnnamed", &other)),
            };
            self.core.inodes.saw_unnamed(InodeId(made.inode));
            match self.opened_by_create(caller, parent, &made, flags, losses).await {
                Ok(opened) => Ok((self.node(&made, Duration::ZERO), opened)),
                Err(failure) => {
                    self.forget(InodeId(made.inode), 1);
                    Err(failure)
                }
            }
        })
        .await
    }

    async fn lookup_and_open(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        flags: OpenFlags,
    ) -> Result<(NodeInfo, OpenedFile)> {
        let node = self.lookup_counting(caller, parent, name, 1).await?;
        let opened = async {
            if node.attributes.kind == FileKind::Symlink {
                return Err(Errno::ELOOP.into());
            }
            // The kernel has checked the creation of a name, not the use of a file that has it.
            let unchecked = Credentials { authority: Authority::Ids, ..caller.clone() };
            let opener = if caller.is_checked() { &unchecked } else { caller };
            let opened = self.open_with(opener, node.inode, flags, true).await?;
            // The open may have truncated the file.
            match self.attributes_of(caller, node.inode).await {
                Ok(after) => Ok((NodeInfo { entry_ttl: node.entry_ttl, ..after }, opened)),
                Err(failure) => {
                    self.release(opened.handle).await;
                    Err(failure)
                }
            }
        };
        let result = opened.await;
        if result.is_err() {
            self.forget(node.inode, 1);
        }
        result
    }

    /// Makes any inode except a directory, and does not open it.
    pub async fn make_node(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        node: NewNode,
    ) -> Result<NodeInfo> {
        self.count(Operation::MakeNode, async {
            self.check_writable()?;
            let made = self.create_at(caller, parent, name, mode, node, false).await?;
            self.saw_made(parent, name, &made);
            Ok(self.under(parent, name.as_bytes(), self.node(&made, Duration::ZERO)))
        })
        .await
    }

    /// [`FileSystem::make_node`] without counting a lookup.
    pub(crate) async fn create_at(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        node: NewNode,
        open: bool,
    ) -> Result<NodeReply> {
        let call = || Call::Create {
            parent: parent.0,
            name: name.as_bytes().to_vec(),
            node: node.clone(),
            mode: mode.bits(),
            open,
        };
        let change = self.directory_cache.change(parent, Some(name.hash()));
        let asked = self.core.ask_name(caller, parent, name, call).await;
        match asked.map_err(|failure| self.unknown_outcome(failure, &[(parent, name)], &[Some(parent)]))? {
            Reply::Node(made) => {
                made_in(change, 0, &made);
                Ok(made)
            }
            other => Err(unexpected("Create", &other)),
        }
    }

    pub async fn make_directory(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
    ) -> Result<NodeInfo> {
        self.count(Operation::MakeDirectory, async {
            let made = self.make_directory_at(caller, parent, name, mode).await?;
            self.saw_made(parent, name, &made);
            let node = self.node(&made, Duration::ZERO);
            self.directory_cache.saw(node.inode, node);
            Ok(self.under(parent, name.as_bytes(), node))
        })
        .await
    }

    pub(crate) async fn make_directory_at(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
    ) -> Result<NodeReply> {
        self.check_writable()?;
        let call = || Call::MakeDirectory { parent: parent.0, name: name.as_bytes().to_vec(), mode: mode.bits() };
        let change = self.directory_cache.change(parent, Some(name.hash()));
        let asked = self.core.ask_name(caller, parent, name, call).await;
        match asked.map_err(|failure| self.unknown_outcome(failure, &[(parent, name)], &[Some(parent)]))? {
            Reply::Node(made) => {
                made_in(change, 1, &made);
                if self.embedded() {
                    self.directory_cache.made(InodeId(made.inode));
                }
                self.files.prediction.made(InodeId(made.inode));
                Ok(made)
            }
            other => Err(unexpected("MakeDirectory", &other)),
        }
    }

    /// Called if a name refers to a directory that is unknown to its home shard: it was removed just now, or its rows
    /// were lost in a power failure. The server distinguishes the cases, and restores rows that were lost.
    async fn revive_directory(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<()> {
        let call = || Call::ReviveDirectory { parent: parent.0, name: name.as_bytes().to_vec() };
        match self.core.ask_name(caller, parent, name, call).await {
            Ok(Reply::Node(_)) => Ok(()),
            Ok(other) => Err(unexpected("ReviveDirectory", &other)),
            // The name refers to another inode by now: a new lookup finds it.
            Err(failure) if failure.errno == Errno::ENOTDIR => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn saw_made(&self, parent: InodeId, name: &Name, made: &NodeReply) {
        let kind = made.attributes.kind.into();
        let inode = InodeId(made.inode);
        self.core.inodes.saw(ObservedInode { inode, parent, name, kind, by_inode: made.by_inode }, 1);
    }

    pub async fn unlink(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<()> {
        self.count(Operation::Unlink, async {
            self.check_writable()?;
            self.changes_something();
            let call = || Call::Unlink { parent: parent.0, name: name.as_bytes().to_vec() };
            let change = self.directory_cache.change(parent, None);
            let meant = self.core.inodes.at(parent, name);
            let asked = self.core.ask_name(caller, parent, name, call).await;
            let reply =
                asked.map_err(|failure| self.unknown_outcome(failure, &[(parent, name)], &[Some(parent), meant]))?;
            let Reply::Removed { last_name_of, at } = reply else { return Err(unexpected("Unlink", &reply)) };
            removed_from(change, 0, at);
            self.unlinked(parent, name, last_name_of.map(InodeId).or(meant));
            self.removed(last_name_of);
            Ok(())
        })
        .await
    }

    /// `meant`: the inode that the name referred to, if known.
    fn unlinked(&self, parent: InodeId, name: &Name, meant: Option<InodeId>) {
        if let Some(inode) = meant {
            self.core.inodes.unlinked(parent, name, inode);
        }
    }

    /// The last name of an inode was removed: clients that have it open locate it by its row.
    fn removed(&self, last_name_of: Option<u64>) {
        if let Some(inode) = last_name_of {
            self.core.inodes.set_by_inode(InodeId(inode), true);
        }
    }

    pub async fn remove_directory(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<()> {
        self.count(Operation::RemoveDirectory, async {
            self.check_writable()?;
            let call = || Call::RemoveDirectory { parent: parent.0, name: name.as_bytes().to_vec() };
            let change = self.directory_cache.change(parent, None);
            let meant = self.core.inodes.at(parent, name);
            let asked = self.core.ask_name(caller, parent, name, call).await;
            match asked.map_err(|failure| self.unknown_outcome(failure, &[(parent, name)], &[Some(parent), meant]))? {
                Reply::Removed { at, .. } => removed_from(change, 1, at),
                other => return Err(unexpected("RemoveDirectory", &other)),
            }
            if let Some(inode) = meant {
                self.core.routing.forget(inode);
                self.directory_cache.removed(inode);
            }
            self.unlinked(parent, name, meant);
            Ok(())
        })
        .await
    }

    pub async fn rename(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        new_parent: InodeId,
        new_name: &Name,
        flags: RenameFlags,
    ) -> Result<()> {
        self.count(Operation::Rename, async {
            self.check_writable()?;
            self.changes_something();
            let call = || Call::Rename {
                parent: parent.0,
                name: name.as_bytes().to_vec(),
                new_parent: new_parent.0,
                new_name: new_name.as_bytes().to_vec(),
                flags,
            };
            // An exchanged name existed before, so only the new parent can get a name that it never had.
            let _in_both = (
                self.directory_cache.change(parent, None),
                self.directory_cache.change(new_parent, Some(new_name.hash())),
            );
            let at = |parent, name| self.core.inodes.at(parent, name);
            let (moved, meant) = (at(parent, name), at(new_parent, new_name));
            let changing = |inode: Option<InodeId>| inode.and_then(|inode| self.changing(inode));
            let _of_both = (changing(moved), changing(meant));
            let asked = self.core.ask_name(caller, parent, name, call).await;
            let (old, new) = ((parent, name, moved), (new_parent, new_name, meant));
            let reply = asked.map_err(|failure| self.mark_rename_unknown(failure, old, new))?;
            let Reply::Removed { last_name_of, .. } = reply else { return Err(unexpected("Rename", &reply)) };
            let replaced = last_name_of.map(InodeId).or(meant);
            self.renamed((parent, name, moved), (new_parent, new_name, replaced), flags);
            self.removed(last_name_of);
            Ok(())
        })
        .await
    }

    /// Updates the cached names of two inodes after a rename between them. Other inodes that were seen under these
    /// names since the request are newer, and stay.
    fn renamed(
        &self,
        (old_parent, old_name, moved): (InodeId, &Name, Option<InodeId>),
        (new_parent, new_name, replaced): (InodeId, &Name, Option<InodeId>),
        flags: RenameFlags,
    ) {
        // Two names of one file: rename(2) does nothing.
        if moved.is_some() && moved == replaced {
            return;
        }
        let inodes = &self.core.inodes;
        let moved = moved.filter(|moved| inodes.at(old_parent, old_name) == Some(*moved));
        if flags != RenameFlags::Exchange {
            self.unlinked(new_parent, new_name, replaced);
        }
        if let Some(moved) = moved {
            inodes.renamed(moved, new_parent, new_name);
        }
        if let (RenameFlags::Exchange, Some(replaced)) = (flags, replaced) {
            inodes.renamed(replaced, old_parent, old_name);
        }
    }

    pub async fn link(
        &self,
        caller: &Credentials,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &Name,
    ) -> Result<NodeInfo> {
        self.count(Operation::Link, async {
            self.check_writable()?;
            self.changes_something();
            let hash = new_name.hash();
            let _change = self.directory_cache.change(new_parent, Some(hash));
            let call = |source| Call::Link {
                source,
                inode: inode.0,
                parent: new_parent.0,
                name: new_name.as_bytes().to_vec(),
            };
            let route = |core: &Core, _: &_| core.routing.shard_of(new_parent, hash);
            let unknown_outcome =
                |failure| self.unknown_outcome(failure, &[(new_parent, new_name)], &[Some(inode), Some(new_parent)]);
            let asked = self.core.ask_located(caller, inode, route, call).await;
            let reply = asked.map_err(|refusal| unknown_outcome(refusal.into()))?;
            let Reply::Entry { entry, .. } = reply else { return Err(unexpected("Link", &reply)) };
            let kind = match &entry {
                EntryReply::Node(node) => node.attributes.kind.into(),
                EntryReply::Elsewhere { kind, .. } => FileKind::from(*kind),
            };
            let seen = ObservedInode { inode, parent: new_parent, name: new_name, kind, by_inode: true };
            self.core.inodes.saw(seen, 1);
            match self.attributes_of(caller, inode).await {
                Ok(node) => Ok(self.under(new_parent, new_name.as_bytes(), node)),
                Err(failure) => {
                    self.forget(inode, 1);
                    // The name exists.
                    Err(unknown_outcome(failure.outcome_unknown()))
                }
            }
        })
        .await
    }

    pub async fn read_link(&self, caller: &Credentials, inode: InodeId) -> Result<Vec<u8>> {
        self.count(Operation::ReadLink, async {
            match self.core.ask_inode(caller, inode, |at| Call::ReadLink { at }).await? {
                Reply::Target(target) => Ok(target),
                other => Err(unexpected("ReadLink", &other)),
            }
        })
        .await
    }
}

/// Applies a creation to the directory cache: `made` is a new entry, and the directory has `subdirectories` more.
fn made_in(change: PendingChange<'_>, subdirectories: i64, made: &NodeReply) {
    change.done(Delta { entries: 1, subdirectories, at: made.attributes.ctime.into() });
}

fn removed_from(change: PendingChange<'_>, subdirectories: i64, at: WireTime) {
    change.done(Delta { entries: -1, subdirectories: -subdirectories, at: at.into() });
}
