//! Operations on attributes and extended attributes.

use crate::files::FetchTicket;
use crate::locate::unexpected;
use crate::{Failure, FileSystem, Handle, NodeInfo, Operation, Result, XattrMode};
use std::time::Duration;
use varve_proto::{Call, NodeReply, Reply};
use varve_types::{Credentials, Errno, FileKind, InodeId, PartitionMap, SetAttributes};

/// The reply of a directory's home shard.
pub(crate) struct DirectoryReply {
    node: NodeReply,
    pub parent: InodeId,
    pub map: PartitionMap,
    lease: Duration,
}

impl FileSystem {
    /// For a frontend whose kernel caches the reply. A directory's attributes may come from the directory cache, with
    /// this client's own changes since applied.
    pub async fn attributes(&self, caller: &Credentials, inode: InodeId) -> Result<NodeInfo> {
        self.count(Operation::GetAttributes, async {
            let known = self.known_attributes(inode);
            match known.or_else(|| self.as_made(inode)) {
                Some(node) => Ok(node),
                None => match self.attributes_of(caller, inode).await {
                    Err(failure) if failure.errno == Errno::ESTALE && self.core.inodes.is_directory(inode) => {
                        Box::pin(self.as_removed(inode, failure)).await
                    }
                    result => result,
                },
            }
        })
        .await
    }

    /// The attributes of a directory that the frontend still has open and that was removed: no links, no entries, and
    /// otherwise the last known attributes. Lookups in it find nothing. If its name still refers to it, its rows were
    /// lost in a power failure; the lookup then restored them.
    pub(crate) async fn as_removed(&self, directory: InodeId, stale: Failure) -> Result<NodeInfo> {
        if let Some((parent, name)) = self.core.inodes.name(directory) {
            match self.lookup_counting(&Credentials::root(), parent, &name, 0).await {
                Ok(node) if node.inode == directory => return Ok(node),
                Err(failure) if !matches!(failure.errno, Errno::ENOENT | Errno::ESTALE) => return Err(failure),
                Ok(_) | Err(_) => {}
            }
        }
        let mut node = self.directory_cache.last_attributes(directory).ok_or(stale)?;
        (node.attributes.nlink, node.attributes.size) = (0, 0);
        (node.entry_ttl, node.attributes_ttl) = (Duration::ZERO, Duration::ZERO);
        Ok(node)
    }

    /// A directory's cached attributes, unless an operation with unknown outcome may have changed them.
    fn known_attributes(&self, directory: InodeId) -> Option<NodeInfo> {
        let known = self.directory_cache.attributes(directory, self.core.clock.monotonic())?;
        (!self.core.unknown_outcomes.of_inode(directory)).then_some(known)
    }

    pub(crate) async fn attributes_of(&self, caller: &Credentials, inode: InodeId) -> Result<NodeInfo> {
        if inode == InodeId::ROOT || self.core.inodes.is_directory(inode) {
            return self.directory_node(caller, inode).await;
        }
        let node = self.file_row(caller, inode).await?;
        // An inode number that was never looked up here may be that of a directory.
        if node.attributes.kind == FileKind::Directory { self.directory_node(caller, inode).await } else { Ok(node) }
    }

    /// A file's attributes from its row. For a file that this client has open, the client's newer state replaces the
    /// row's.
    pub(crate) async fn file_row(&self, caller: &Credentials, inode: InodeId) -> Result<NodeInfo> {
        if let Some(open) = self.files.find(inode) {
            return self.open_attributes(caller, &open).await;
        }
        let reply = self.get_attributes(caller, inode).await?;
        Ok(self.node(&reply, Duration::ZERO))
    }

    /// The node of `reply`, which was just received. The attributes are newer if this client has the file open, or has
    /// closed it since the request was sent. They are not returned before an open file has the content they describe.
    pub(crate) async fn file_node(&self, reply: NodeReply, asked: FetchTicket) -> Result<NodeInfo> {
        let inode = InodeId(reply.inode);
        match self.files.find(inode) {
            Some(open) if !open.quiet(&self.files) || !self.embedded() && !open.confirmed_by(&reply) => {
                Box::pin(self.open_attributes(&Credentials::root(), &open)).await
            }
            _ if self.files.is_outdated(inode, asked) => Box::pin(self.file_row(&Credentials::root(), inode)).await,
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

    /// Fetches the state of a directory that only its home shard has.
    pub(crate) async fn directory_reply(&self, caller: &Credentials, directory: InodeId) -> Result<DirectoryReply> {
        self.ask_home(caller, directory, Call::GetDirectory { directory: directory.0 }).await
    }

    async fn ask_home(&self, caller: &Credentials, directory: InodeId, call: Call) -> Result<DirectoryReply> {
        let asked = self.core.clock.monotonic();
        match self.core.ask_inode(caller, directory, |_| call.clone()).await? {
            Reply::Directory { node, parent, map, lease_ms, .. } => {
                self.core.routing.learn(directory, &map);
                let map = self.core.routing.map(directory);
                let lease = self.leased(asked, lease_ms);
                Ok(DirectoryReply { node, parent: InodeId(parent), map, lease })
            }
            other => Err(unexpected("a call about a directory", &other)),
        }
    }

    /// The directory that a name refers to; its attributes may be cached for `lease` from now. They are merged from all
    /// partitions, as for a getattr request, because the kernel caches the attributes that a lookup returns, too.
    pub(crate) async fn directory_of_name(
        &self,
        caller: &Credentials,
        directory: InodeId,
        lease: Duration,
    ) -> Result<NodeInfo> {
        let until = self.core.clock.monotonic().after(lease);
        let mut node = self.directory_node(caller, directory).await?;
        if !self.embedded() {
            let left = until.since(self.core.clock.monotonic());
            node.entry_ttl = node.entry_ttl.min(left);
            node.attributes_ttl = node.attributes_ttl.min(left);
        }
        Ok(node)
    }

    /// A directory's attributes, merged from all its partitions.
    async fn directory_node(&self, caller: &Credentials, directory: InodeId) -> Result<NodeInfo> {
        let known = &self.directory_cache;
        if self.embedded()
            && let Some(node) = self.known_attributes(directory)
        {
            return Ok(node);
        }
        let ticket = known.ask(directory);
        let reply = self.ask_home(caller, directory, Call::StatDirectory { directory: directory.0 }).await?;
        let mut node = self.node(&reply.node, reply.lease);
        // False: a change by this client was in progress, and the reply may lack it.
        let kept = ticket.is_some_and(|ticket| known.keep(directory, ticket, node, self.core.clock.monotonic()));
        if !kept {
            node.attributes_ttl = Duration::ZERO;
        }
        Ok(node)
    }

    /// chmod, chown, truncate and utimensat. `handle`: the open file that the call used (ftruncate needs no permission
    /// on the file).
    pub async fn set_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
        handle: Option<Handle>,
    ) -> Result<NodeInfo> {
        self.count(Operation::SetAttributes, async {
            self.check_writable()?;
            self.changes_something();
            let done = match set.size {
                _ if inode == InodeId::ROOT || self.core.inodes.is_directory(inode) => {
                    self.set_directory_attributes(caller, inode, set).await
                }
                Some(size) => self.resize_and_set(caller, inode, size, set, handle).await,
                None => self.set_file_attributes(caller, inode, set).await,
            };
            done.map_err(|failure| self.unknown_outcome(failure, &[], &[Some(inode)]))
        })
        .await
    }

    async fn set_directory_attributes(
        &self,
        caller: &Credentials,
        directory: InodeId,
        set: SetAttributes,
    ) -> Result<NodeInfo> {
        let change = self.changing(directory);
        self.send_attributes(caller, directory, set).await?;
        drop(change);
        // The attributes are set, even if this request fails.
        self.directory_node(caller, directory).await.map_err(Failure::outcome_unknown)
    }

    /// Sets attributes of a file other than its size.
    pub(crate) async fn set_file_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
    ) -> Result<NodeInfo> {
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

    /// The whole value; `ENODATA` if there is none with that name.
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
            let asked = self.core.ask_inode(caller, inode, call).await;
            self.xattr_is_set(inode, name);
            match asked.map_err(|refusal| self.unknown_outcome(refusal.into(), &[], &[Some(inode)]))? {
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
            let asked = self.core.ask_inode(caller, inode, call).await;
            match asked.map_err(|refusal| self.unknown_outcome(refusal.into(), &[], &[Some(inode)]))? {
                Reply::Done | Reply::Node(_) => Ok(()),
                other => Err(unexpected("RemoveXattr", &other)),
            }
        })
        .await
    }
}
