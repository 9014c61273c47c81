//! Calls about a name and calls about an inode: the shard to ask, and where to look next if the row is not there.

use crate::calls::{BUSY_WAIT, CallRefusal, Core};
use crate::inodes::ObservedInode;
use crate::{Failure, Result};
use varve_proto::{Call, EntryReply, Locator, Reply};
use varve_types::{Credentials, Errno, InodeId, Name, ShardId};

/// Locations tried for one inode before it is considered removed. Its entry, its row and its name are one round;
/// between rounds another thread's rename may end.
const PLACES_MAX: usize = 6;

impl Core {
    /// Sends a call about `name` in `directory` to the shard of its partition.
    pub async fn ask_name(
        &self,
        caller: &Credentials,
        directory: InodeId,
        name: &Name,
        call: impl Fn() -> Call,
    ) -> Result<Reply> {
        self.ask_hash(caller, directory, name.hash(), call).await
    }

    pub async fn ask_hash(
        &self,
        caller: &Credentials,
        directory: InodeId,
        hash: varve_types::NameHash,
        call: impl Fn() -> Call,
    ) -> Result<Reply> {
        let mut calling = self.begin(caller);
        let mut wait = BUSY_WAIT;
        loop {
            match calling.ask(self.routing.shard_of(directory, hash), call()).await {
                Ok(reply) => return Ok(reply),
                Err(CallRefusal::Moved { learned: true }) => {}
                Err(CallRefusal::Moved { learned: false }) => {
                    calling.pause(&mut wait, "the shards disagree on the owner of a partition of the directory").await?
                }
                // For a call about a name, `NotHere` means that its directory is missing.
                Err(CallRefusal::NotHere) => return Err(Errno::ENOENT.into()),
                Err(refusal) => return Err(refusal.into()),
            }
        }
    }

    /// Sends `shard` a call about itself.
    pub async fn ask_shard(&self, shard: ShardId, call: Call) -> Result<Reply> {
        self.begin(&Credentials::root()).ask(shard, call).await.map_err(Failure::from)
    }

    /// Sends a call about `inode` to the shard of its row. Returns `CallRefusal::Stale` to the caller, and `NotHere`
    /// only if the inode is at none of its possible locations.
    pub async fn ask_inode(
        &self,
        caller: &Credentials,
        inode: InodeId,
        call: impl Fn(Locator) -> Call,
    ) -> std::result::Result<Reply, CallRefusal> {
        self.ask_located(caller, inode, |core, at| core.shard_at(at), call).await
    }

    /// Sends a call about `inode`, which contains a locator, to the shard that `route` chooses.
    pub async fn ask_located(
        &self,
        caller: &Credentials,
        inode: InodeId,
        route: impl Fn(&Core, &Locator) -> ShardId,
        call: impl Fn(Locator) -> Call,
    ) -> std::result::Result<Reply, CallRefusal> {
        let mut calling = self.begin(caller);
        let mut wait = BUSY_WAIT;
        let mut places = 0;
        loop {
            let at = self.inodes.locator(inode);
            match calling.ask(route(self, &at), call(at.clone())).await {
                Err(CallRefusal::Moved { learned: true }) => {}
                Err(CallRefusal::Moved { learned: false }) => {
                    calling.pause(&mut wait, "the shards disagree on the owner of a partition of a directory").await?
                }
                Err(CallRefusal::NotHere) if places < PLACES_MAX => {
                    places += 1;
                    Box::pin(self.look_elsewhere(inode, &at)).await?;
                    if places > 2 {
                        calling.pause(&mut wait, "the file is not found where it should be").await?;
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Called if `inode` is not at `tried`: corrects its cached location.
    async fn look_elsewhere(&self, inode: InodeId, tried: &Locator) -> Result<()> {
        if self.inodes.locator(inode) != *tried {
            // Another thread has updated the location meanwhile.
            return Ok(());
        }
        if let Locator::Entry { .. } = tried {
            self.inodes.set_by_inode(inode, true);
            return Ok(());
        }
        // A rename with unknown outcome may have been made.
        for (parent, name) in self.inodes.name(inode).into_iter().chain(self.unknown_outcomes.places(inode)) {
            match self.look_up(&Credentials::root(), parent, &name).await {
                Ok((EntryReply::Node(node), _)) if node.inode == inode.0 => {
                    let kind = node.attributes.kind.into();
                    self.inodes.saw(ObservedInode { inode, parent, name: &name, kind, by_inode: false }, 0);
                    return Ok(());
                }
                Ok(_) => {}
                Err(failure) if failure.errno == Errno::ENOENT => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The entry of a name, and for how many milliseconds a directory's name may be cached.
    pub async fn look_up(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<(EntryReply, u32)> {
        let call = || Call::Lookup { parent: parent.0, name: name.as_bytes().to_vec() };
        match self.ask_name(caller, parent, name, call).await? {
            Reply::Entry { entry, lease_ms } => Ok((entry, lease_ms)),
            other => Err(unexpected("Lookup", &other)),
        }
    }
}

/// The failure for a reply that violates the protocol.
pub(crate) fn unexpected(call: &str, reply: &Reply) -> Failure {
    let text = format!("{reply:?}");
    let shown: String = text.chars().take(120).collect();
    Failure::new(Errno::EIO, format!("the server answered {call} with {shown}"))
}
