//! The state that all workers of a server share. An ordinary call uses none of it except the clock.

use super::keys::Keys;
use super::limits::Limits;
use super::peer_network::PeerNetworkHandle;
use super::released_shards::ReleasedShards;
use super::sessions::{Admission, Sessions};
use super::shared_shard_map::SharedShardMap;
use super::store_preparation::StoreState;
use super::{ServerConfig, ServerError, doing};
use crate::shards::SESSIONS_RETURN;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use varve_cluster::lease::Lease;
use varve_cluster::membership::EndCause;
use varve_env::clock::{Clock, Instant};
use varve_env::disk::SizeQuery;
use varve_env::reserve::Reserve;
use varve_env::volume_dir::{ServerRecord, ShutdownState, VolumeDir, boot_id};
use varve_proto::WireShardMap;
use varve_proto::handshake::{VolumeKey, Welcome};
use varve_store::SyncWrites;
use varve_types::{AckLevel, VolumeSettings};

/// 1 if replies to changes wait for their fsync, else 0.
const SYNCED_GAUGE: &str = "varve_replies_synced";

pub struct ServerShared {
    pub volume: VolumeDir,
    pub settings: VolumeSettings,
    pub keys: Arc<Keys>,
    pub limits: Limits,
    pub clock: Arc<dyn Clock>,
    /// A random number that distinguishes this server from every other one.
    pub number: u64,
    pub sessions: Arc<Sessions>,
    /// When this server took the lock of the volume.
    pub owned_since: Instant,
    /// How long after the opening of a shard sessions of an earlier server may come back to it and register the files
    /// that they have open.
    pub sessions_return: Duration,
    /// Number of workers that have ended with no file open and no such session awaited.
    pub quiet_workers: AtomicUsize,
    /// How long this server may answer. It is looked at last before a reply leaves.
    pub lease: Arc<Lease>,
    /// The server is one of several.
    pub joined: bool,
    /// Why this server is no member any more, if others have ended that: its shards are theirs.
    pub ended: OnceLock<EndCause>,
    /// Whether replies to changes wait for their fsync: the volume's level is `synced`, or servers of several hosts serve it.
    pub sync_writes: SyncWrites,
    /// How the store is asked for the size of a backing file that clients write.
    pub size_query: SizeQuery,
    /// The space that is reserved in the store for removals.
    pub reserve: Arc<Reserve>,
    /// When a call last freed space, by the monotonic clock; 0: never.
    pub freed_ms: AtomicU64,
    /// Which worker owns each shard, here and at other servers.
    pub shard_map: SharedShardMap,
    /// Calls the other servers of the volume. A server that is alone has none.
    pub peer_network: OnceLock<PeerNetworkHandle>,
    /// For the thread of the membership.
    pub released: ReleasedShards,
    /// The record of a server that has joined, while it is to be in the store. Locked during work on the file.
    pub record: Mutex<Option<ServerRecord>>,
    /// Held by the move of a shard.
    pub moving: tokio::sync::Mutex<()>,
    pub embedded: bool,
    /// The state that the previous server left.
    pub found: ShutdownState,
    /// Number of shards whose first opening has ended, and whether any shard has been open.
    pub tried: AtomicUsize,
    pub any_opened: AtomicBool,
}

impl ServerShared {
    pub fn new(config: &ServerConfig, state: StoreState) -> Result<ServerShared, ServerError> {
        let StoreState { volume, settings, clock, owned_since, reserve, left } = state;
        let key = VolumeKey(volume.read_key().map_err(doing("cannot serve the volume"))?);
        let admission = Admission {
            owner_uid: settings.owner_uid,
            server_uid: rustix::process::geteuid().as_raw(),
            server_pid: std::process::id() as i32,
            embedded: config.embedded,
        };
        let (number, joined) = (varve_env::random::number(), config.join.is_some());
        let boot = boot_id().map_err(doing("cannot identify this boot"))?;
        let (workers, shards) = (config.workers.min(usize::from(settings.shards.get())), settings.shards.get());
        let shard_map = match joined {
            false => SharedShardMap::alone(number, boot, workers, shards),
            true => SharedShardMap::without_shards(number, boot, workers, shards),
        };
        let sync_writes = SyncWrites::new(volume.ack_level() == AckLevel::Synced);
        metrics::gauge!(SYNCED_GAUGE).set(if sync_writes.is_on() { 1.0 } else { 0.0 });
        Ok(ServerShared {
            sessions: Arc::new(Sessions::new(admission, Arc::clone(&clock), config.limits.clone())),
            owned_since,
            // The wait applies to a mount's own server too: clients of the previous server come to the next one, and
            // the files that they have open must still exist then.
            sessions_return: match left {
                ShutdownState::OpenFiles => SESSIONS_RETURN,
                ShutdownState::Nothing => Duration::ZERO,
            },
            quiet_workers: AtomicUsize::new(0),
            number,
            lease: Arc::new(match joined {
                false => Lease::unlimited(Arc::clone(&clock)),
                true => Lease::new(Arc::clone(&clock)),
            }),
            joined,
            ended: OnceLock::new(),
            sync_writes,
            // A directory that is missing is reported where a backing file is needed.
            size_query: SizeQuery::of(&volume.data()).unwrap_or(SizeQuery::Sync),
            reserve,
            freed_ms: AtomicU64::new(0),
            keys: Arc::new(Keys::new(volume.clone(), key)),
            limits: config.limits.clone(),
            volume,
            clock,
            shard_map: shard_map.map_err(|error| ServerError::Config(error.to_string()))?,
            peer_network: OnceLock::new(),
            released: ReleasedShards::default(),
            record: Mutex::new(None),
            moving: tokio::sync::Mutex::new(()),
            embedded: config.embedded,
            found: left,
            tried: AtomicUsize::new(0),
            any_opened: AtomicBool::new(false),
            settings,
        })
    }

    /// From here on replies to changes wait for their fsync.
    pub fn sync_before_replies(&self) {
        self.sync_writes.turn_on();
        metrics::gauge!(SYNCED_GAUGE).set(1.0);
    }

    /// Publishes the record of a server that has joined again, if it should be in the store and is not.
    pub fn restore_record(&self) -> io::Result<bool> {
        match &*self.record.lock() {
            Some(record) => self.volume.restore_joined_record(self.number, record),
            None => Ok(false),
        }
    }

    /// Removes the record of a server that has joined.
    pub fn remove_record(&self) -> io::Result<()> {
        let mut record = self.record.lock();
        *record = None;
        self.volume.remove_joined_record(self.number)
    }

    /// Counts the first opening of a shard. Returns whether it was the server's last one.
    pub fn count_opening(&self, opened: bool) -> bool {
        self.any_opened.fetch_or(opened, SeqCst);
        self.tried.fetch_add(1, SeqCst) + 1 == usize::from(self.settings.shards.get())
    }

    pub fn welcome(&self) -> Welcome {
        let settings = &self.settings;
        Welcome::Accepted {
            server: self.number,
            shards: settings.shards.get(),
            inline_limit: settings.inline_limit,
            // At most VolumeSettings::SYNC_INTERVAL_MAX.
            sync_interval_ms: settings.sync_interval.as_millis() as u32,
            owner_uid: settings.owner_uid,
            map: WireShardMap::from(&*self.shard_map.current()),
            embedded: self.embedded,
        }
    }

    /// See [`Leases::new`]: a mount's own server has one client that changes the volume.
    ///
    /// [`Leases::new`]: crate::shards::Leases::new
    pub fn leases_since(&self) -> Option<Instant> {
        (!self.embedded).then_some(self.owned_since)
    }
}
