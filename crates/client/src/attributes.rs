//! Operations on what a file is: attributes and extended attributes.

use crate::locate::unexpected;
use crate::{FileSystem, Handle, Node, Operation, Result, XattrMode};
use std::time::Duration;
use varve_types::{Credentials, Errno, FileKind, InodeId, PartitionIndex, PartitionMap, SetAttributes, Timestamp};
use varve_wire::{Call, NodeReply, Reply};

/// What a directory's home says of it.
pub(crate) struct DirectoryReply {
    pub node: NodeReply,
    pub parent: InodeId,
    pub map: PartitionMap,
    subdirectories: u64,
    pub lease: Duration,
}

/// What a directory's partitions other than the home's say together.
#[derive(Default)]
struct Others {
    entries: u64,
    subdirectories: u64,
    mtime: Option<Timestamp>,
    ctime: Option<Timestamp>,
}

/// Times that a directory which goes on splitting is asked before its counts are taken as they are.
const MERGES_MAX: usize = 4;

impl FileSystem {
    /// For a door whose kernel believes what it is told: of a directory that may be what it was told before, with this
    /// client's own changes since.
    pub async fn attributes(&self, caller: &Credentials, inode: InodeId) -> Result<Node> {
        self.count(Operation::GetAttributes, async {
            let known = self.known.attributes(inode, self.core.clock.monotonic());
            match known.or_else(|| self.as_made(inode)) {
                Some(node) => Ok(node),
                None => self.attributes_of(caller, inode).await,
            }
        })
        .await
    }

    pub(crate) async fn attributes_of(&self, caller: &Credentials, inode: InodeId) -> Result<Node> {
        if inode == InodeId::ROOT || self.core.inodes.is_directory(inode) {
            return self.directory_node(caller, inode).await;
        }
        let node = self.file_row(caller, inode).await?;
        // A number that was never looked up here may be a directory's.
        if node.attributes.kind == FileKind::Directory { self.directory_node(caller, inode).await } else { Ok(node) }
    }

    /// A file's attributes from its row, with what this client knows better of a file that it has open.
    pub(crate) async fn file_row(&self, caller: &Credentials, inode: InodeId) -> Result<Node> {
        if let Some(open) = self.files.find(inode) {
            return self.open_attributes(caller, &open).await;
        }
        let reply = self.get_attributes(caller, inode).await?;
        Ok(self.node(&reply, Duration::ZERO))
    }

    /// The node of `reply`, just received, or newer if this client has the file open.
    pub(crate) async fn file_node(&self, reply: NodeReply) -> Result<Node> {
        match self.files.find(InodeId(reply.inode)) {
            Some(open) if !open.quiet(&self.files) => Box::pin(self.open_attributes(&Credentials::root(), &open)).await,
            _ => Ok(self.node(&reply, Duration::ZERO)),
        }
    }

    pub(crate) async fn get_attributes(&self, caller: &Credentials, inode: InodeId) -> Result<NodeReply> {
        match self.core.ask_inode(caller, inode, |at| Call::GetAttributes { at }).await? {
            Reply::Node(node) => {
                self.core.inodes.set_by_inode(inode, node.by_inode);
                Ok(node)
            }
            other => Err(unexpected("GetAttributes", &other)),
        }
    }

    /// Asks a directory's home.
    pub(crate) async fn directory_reply(&self, caller: &Credentials, directory: InodeId) -> Result<DirectoryReply> {
        let call = |_| Call::GetDirectory { directory: directory.0 };
        let asked = self.core.clock.monotonic();
        match self.core.ask_inode(caller, directory, call).await? {
            Reply::Directory { node, parent, map, subdirectories, lease_ms, .. } => {
                self.core.routing.learn(directory, &map);
                let map = self.core.routing.map(directory);
                let lease = self.leased(asked, lease_ms);
                Ok(DirectoryReply { node, parent: InodeId(parent), map, subdirectories, lease })
            }
            other => Err(unexpected("GetDirectory", &other)),
        }
    }

    /// The directory that a name means, which may be believed for `lease` from now. Merged of all its partitions as when it
    /// is asked for itself: the kernel shows what it was told with a name, too.
    pub(crate) async fn directory_of_name(
        &self,
        caller: &Credentials,
        directory: InodeId,
        lease: Duration,
    ) -> Result<Node> {
        let until = self.core.clock.monotonic().after(lease);
        let mut node = self.directory_node(caller, directory).await?;
        if !self.embedded() {
            let left = until.since(self.core.clock.monotonic());
            node.entry_ttl = node.entry_ttl.min(left);
            node.attributes_ttl = node.attributes_ttl.min(left);
        }
        Ok(node)
    }

    /// A directory's attributes, merged of all its partitions.
    ///
    /// A split moves names to a partition with a higher index, and the home hears of it before it begins. So partitions
    /// are asked from the highest index down, the home last, and all again if it knows of further ones by then: what
    /// moved meanwhile is counted once.
    async fn directory_node(&self, caller: &Credentials, directory: InodeId) -> Result<Node> {
        let known = &self.known;
        if self.embedded()
            && let Some(node) = known.attributes(directory, self.core.clock.monotonic())
        {
            return Ok(node);
        }
        let ticket = known.ask(directory);
        let node = self.ask_directory_node(caller, directory).await?;
        if let Some(ticket) = ticket {
            known.keep(directory, ticket, node, self.core.clock.monotonic());
        }
        Ok(node)
    }

    async fn ask_directory_node(&self, caller: &Credentials, directory: InodeId) -> Result<Node> {
        let mut asked = self.core.routing.map(directory);
        let mut others = self.other_partitions(directory, &asked).await?;
        let mut reply = self.directory_reply(caller, directory).await?;
        for _ in 0..MERGES_MAX {
            if reply.map == asked {
                break;
            }
            asked = reply.map;
            others = self.other_partitions(directory, &asked).await?;
            reply = self.directory_reply(caller, directory).await?;
        }
        let mut node = self.node(&reply.node, reply.lease);
        let attributes = &mut node.attributes;
        attributes.nlink = nlink(reply.subdirectories + others.subdirectories);
        // A directory's size is the number of its entries.
        attributes.size += others.entries;
        attributes.mtime = attributes.mtime.max(others.mtime.unwrap_or(attributes.mtime));
        attributes.ctime = attributes.ctime.max(others.ctime.unwrap_or(attributes.ctime));
        Ok(node)
    }

    /// What the partitions of `map` other than the home's have together.
    async fn other_partitions(&self, directory: InodeId, map: &PartitionMap) -> Result<Others> {
        let mut others = Others::default();
        let mut indexes: Vec<PartitionIndex> = map.iter().skip(1).collect();
        indexes.reverse();
        for index in indexes {
            let shard = index.shard(directory.shard(), self.core.settings.shards);
            match self.core.ask_shard(shard, Call::PartitionStatus { directory: directory.0 }).await {
                Ok(Reply::Partition { entries, subdirectories, mtime, ctime }) => {
                    others.entries += entries;
                    others.subdirectories += subdirectories;
                    others.mtime = others.mtime.max(Some(mtime.into()));
                    others.ctime = others.ctime.max(Some(ctime.into()));
                }
                Ok(other) => return Err(unexpected("PartitionStatus", &other)),
                // The map is ahead of the shard, or the directory is being removed.
                Err(failure) if matches!(failure.errno, Errno::ESTALE | Errno::ENOENT) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(others)
    }

    /// chmod, chown, truncate and utimensat. `handle`: the open file through which it was asked (ftruncate needs no
    /// permission on the file).
    pub async fn set_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
        handle: Option<Handle>,
    ) -> Result<Node> {
        self.count(Operation::SetAttributes, async {
            self.check_writable()?;
            self.changes_something();
            if inode == InodeId::ROOT || self.core.inodes.is_directory(inode) {
                let change = self.changing(inode);
                self.send_attributes(caller, inode, set).await?;
                drop(change);
                return self.directory_node(caller, inode).await;
            }
            match set.size {
                Some(size) => self.resize_and_set(caller, inode, size, set, handle).await,
                None => self.set_file_attributes(caller, inode, set).await,
            }
        })
        .await
    }

    /// Changes of a file other than of its size.
    pub(crate) async fn set_file_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
    ) -> Result<Node> {
        if let Some(open) = self.files.find(inode) {
            return self.set_open_attributes(caller, &open, set).await;
        }
        let reply = self.send_attributes(caller, inode, set).await?;
        Ok(self.node(&reply, Duration::ZERO))
    }

    pub(crate) async fn send_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
    ) -> Result<NodeReply> {
        match self.core.ask_inode(caller, inode, |at| Call::SetAttributes { at, set: set.into() }).await? {
            Reply::Node(node) => {
                self.core.inodes.set_by_inode(inode, node.by_inode);
                Ok(node)
            }
            other => Err(unexpected("SetAttributes", &other)),
        }
    }

    /// The whole value; `ENODATA` if there is none of that name.
    pub async fn get_xattr(&self, caller: &Credentials, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.count(Operation::Xattr, async {
            let call = |at| Call::GetXattr { at, name: name.to_vec() };
            match self.core.ask_inode(caller, inode, call).await? {
                Reply::Xattr(value) => Ok(value),
                other => Err(unexpected("GetXattr", &other)),
            }
        })
        .await
    }

    pub async fn set_xattr(
        &self,
        caller: &Credentials,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.count(Operation::Xattr, async {
            self.check_writable()?;
            self.changes_something();
            let _change = self.changing(inode);
            let call = |at| Call::SetXattr { at, name: name.to_vec(), value: value.to_vec(), mode };
            match self.core.ask_inode(caller, inode, call).await? {
                Reply::Done | Reply::Node(_) => {
                    // Files with xattrs have inode rows.
                    self.core.inodes.set_by_inode(inode, true);
                    Ok(())
                }
                other => Err(unexpected("SetXattr", &other)),
            }
        })
        .await
    }

    pub async fn list_xattrs(&self, caller: &Credentials, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        self.count(Operation::Xattr, async {
            match self.core.ask_inode(caller, inode, |at| Call::ListXattrs { at }).await? {
                Reply::Xattrs(names) => Ok(names),
                other => Err(unexpected("ListXattrs", &other)),
            }
        })
        .await
    }

    pub async fn remove_xattr(&self, caller: &Credentials, inode: InodeId, name: &[u8]) -> Result<()> {
        self.count(Operation::Xattr, async {
            self.check_writable()?;
            self.changes_something();
            let _change = self.changing(inode);
            let call = |at| Call::RemoveXattr { at, name: name.to_vec() };
            match self.core.ask_inode(caller, inode, call).await? {
                Reply::Done | Reply::Node(_) => Ok(()),
                other => Err(unexpected("RemoveXattr", &other)),
            }
        })
        .await
    }
}

/// Names of a directory with so many subdirectories: its own, its `.`, and each one's `..`.
fn nlink(subdirectories: u64) -> u32 {
    u32::try_from(subdirectories.saturating_add(2)).unwrap_or(u32::MAX)
}
