//! Operations on the volume as a whole.

use crate::locate::unexpected;
use crate::{Failure, FileSystem, Operation, Result};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::{disk, reserve};
use varve_proto::{Call, FoundName, Reply, ShardLocation, ShardStatus};
use varve_types::{Errno, InodeId, Name, ShardId};

/// The result of statfs(2): the space and files of the store, which the volume shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeStatistics {
    /// Size of the blocks below, in bytes.
    pub block_bytes: u64,
    pub blocks: u64,
    pub blocks_free: u64,
    /// Available to users other than root, before the volume refuses writes: the store's, less the reserve.
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    pub name_bytes_max: u32,
}

impl FileSystem {
    pub async fn statistics(&self) -> Result<VolumeStatistics> {
        self.count(Operation::Statistics, async {
            let volume = &self.core.config.store;
            let store =
                volume.space().map_err(|error| Failure::store("cannot ask the store for its free space", &error))?;
            Ok(VolumeStatistics {
                block_bytes: store.f_frsize,
                blocks: store.f_blocks,
                blocks_free: store.f_bfree,
                blocks_available: reserve::room(&volume.reserve(), &store) / store.f_frsize.max(1),
                files: store.f_files,
                files_free: store.f_ffree,
                name_bytes_max: Name::BYTES_MAX as u32,
            })
        })
        .await
    }

    /// Returns when everything acknowledged before is on disk, and the sizes of closed files that could not be recorded
    /// in time are recorded.
    pub async fn sync(&self) -> Result<()> {
        self.count(Operation::Sync, async {
            self.write_back_all().await?;
            self.sync_backing_files()?;
            self.sync_all_shards().await?;
            // Last, so that nothing else waits for a store that fails.
            if self.record_late_sizes().await? {
                self.sync_all_shards().await?;
            }
            Ok(())
        })
        .await
    }

    async fn sync_all_shards(&self) -> Result<()> {
        for shard in self.core.settings.shards.all() {
            self.sync_shard(shard).await?;
        }
        Ok(())
    }

    /// Syncs backing files, including those closed without fsync, by a syncfs of the store's file system.
    pub(crate) fn sync_backing_files(&self) -> Result<()> {
        let store = &self.core.config.store;
        let data = store.data();
        match disk::sync_file_system(&data) {
            // The volume never had a large file.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && store.lacks(&data).is_ok_and(|none| none) => {
                Ok(())
            }
            synced => synced.map_err(|error| Failure::store("cannot sync the store", &error)),
        }
    }

    pub async fn shard_status(&self, shard: ShardId) -> Result<ShardStatus> {
        self.check_shard(shard)?;
        match self.core.ask_shard(shard, Call::ShardStatus).await? {
            Reply::ShardStatus(status) => Ok(status),
            other => Err(unexpected("ShardStatus", &other)),
        }
    }

    /// Where `shard` is and in which state; also answered if the shard cannot be used.
    pub async fn locate_shard(&self, shard: ShardId) -> Result<ShardLocation> {
        self.check_shard(shard)?;
        match self.core.ask_shard(shard, Call::LocateShard).await? {
            Reply::ShardLocation(location) => Ok(location),
            other => Err(unexpected("LocateShard", &other)),
        }
    }

    /// Moves `shard` to another worker of its server, for a client that administers the volume. Returns the worker that
    /// had the shard, and for how long calls for it had to wait. `EBUSY`: the shard stays where it is.
    pub async fn move_shard(&self, shard: ShardId, worker: u16) -> Result<(u16, Duration)> {
        self.check_shard(shard)?;
        match self.core.ask_shard(shard, Call::MoveShard { worker }).await? {
            Reply::ShardMoved { from, microseconds, .. } => Ok((from, Duration::from_micros(microseconds))),
            Reply::ShardStays { reason } => Err(Failure::new(Errno::EBUSY, reason)),
            other => Err(unexpected("MoveShard", &other)),
        }
    }

    /// Makes the server keep a consistent snapshot of the whole volume under `number`, chosen at random, for
    /// [`Self::read_snapshot`].
    pub async fn take_snapshot(&self, number: u64) -> Result<()> {
        match self.core.ask_shard(ShardId(0), Call::TakeSnapshot { number }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected("TakeMoment", &other)),
        }
    }

    /// Rows of `shard` in the snapshot `number`, as they are stored: those with keys in `from..end`, at most about
    /// `bytes_max` of them; none when there are no more.
    pub async fn read_snapshot(
        &self,
        number: u64,
        shard: ShardId,
        from: Vec<u8>,
        end: Vec<u8>,
        bytes_max: u32,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.check_shard(shard)?;
        match self.core.ask_shard(shard, Call::ReadSnapshot { number, from, end, bytes_max }).await? {
            Reply::Rows(rows) => Ok(rows),
            other => Err(unexpected("ReadMoment", &other)),
        }
    }

    /// The next names of files in the range of `inode` ([`varve_proto::FOUND_RANGE`]) in the snapshot `number` of
    /// `shard`, and where the search goes on: empty at the end.
    pub(crate) async fn find_names(
        &self,
        number: u64,
        shard: ShardId,
        inode: InodeId,
        from: Vec<u8>,
    ) -> Result<(Vec<FoundName>, Vec<u8>)> {
        match self.core.ask_shard(shard, Call::FindNames { number, inode: inode.0, from }).await? {
            Reply::FoundNames { found, next } => Ok((found, next)),
            other => Err(unexpected("FindNames", &other)),
        }
    }

    pub async fn release_snapshot(&self, number: u64) -> Result<()> {
        match self.core.ask_shard(ShardId(0), Call::ReleaseSnapshot { number }).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected("ForgetMoment", &other)),
        }
    }

    /// One round trip to the owner of `shard` with `payload`: measures the transport.
    pub async fn ping(&self, shard: ShardId, payload: &[u8]) -> Result<()> {
        self.check_shard(shard)?;
        match self.core.ask_shard(shard, Call::Ping { payload: payload.to_vec() }).await? {
            Reply::Pong { payload: echo } if echo == payload => Ok(()),
            other => Err(unexpected("Ping", &other)),
        }
    }

    fn check_shard(&self, shard: ShardId) -> Result<()> {
        let shards = self.core.settings.shards.get();
        if shard.0 < shards {
            return Ok(());
        }
        Err(Failure::new(Errno::EINVAL, format!("there is no shard {shard}: the volume has {shards}")))
    }

    /// For a frontend that was taken away by force: if nothing waits for write-back and the server does not answer within
    /// `wait`, all calls end, present and future, so that the process can end. Returns whether they did.
    pub fn give_up_unless_answered(self: &Arc<Self>, wait: Duration) -> bool {
        if self.files.has_dirty() {
            return false;
        }
        let (this, (answered, answers)) = (Arc::clone(self), mpsc::sync_channel(1));
        // A thread of its own, because a connection to a server that hangs takes longer than `wait`.
        let ask = move || answered.send(crate::block_on(this.core.is_answered_within(wait)));
        let asking = std::thread::Builder::new().name("varve-answers".into()).spawn(ask);
        let given_up = asking.is_err() || answers.recv_timeout(wait) != Ok(true);
        if given_up {
            self.core.close();
        }
        given_up
    }

    /// Writes back, syncs and ends the session. Handles that are still open are closed. No call is possible afterwards.
    pub async fn shutdown(&self) -> Result<()> {
        if self.is_shut_down() {
            self.background.stop();
            return Ok(());
        }
        self.background.stop();
        let written = self.write_back_all().await;
        if written.as_ref().is_err_and(|failure| failure.errno == Errno::ETIMEDOUT) {
            // The server is gone: every further step would wait as long.
            self.core.close();
            return written;
        }
        self.let_go_all();
        for handle in self.files.handles() {
            self.release(handle).await;
        }
        // Also releases of files that were given up just now: the server gets no further message of this session.
        self.core.session.release_due(Instant(Duration::MAX));
        self.send_releases().await;
        self.record_all_sizes().await;
        let synced = self.sync().await;
        self.core.close();
        written.and(synced)
    }

    /// Whether [`FileSystem::shutdown`] has finished.
    pub fn is_shut_down(&self) -> bool {
        self.core.is_closed()
    }
}
