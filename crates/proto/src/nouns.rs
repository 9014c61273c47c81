//! Wire representations of the shared types. The types in `varve-types` have no serialization, so table rows and
//! messages can change independently.

use serde::{Deserialize, Serialize};
use varve_types::{
    Attributes, Authority, CallerCapabilities, Credentials, FileKind, IdRange, InvalidShardMap, MapServer, MappedIds,
    Mode, PartitionMap, SetAttributes, SetTime, ShardCount, ShardMap, ShardOwner, Timestamp, WorkerAddress,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

macro_rules! same_variants {
    ($wire:ident, $noun:ident: $($variant:ident),*) => {
        impl From<$noun> for $wire {
            fn from(noun: $noun) -> $wire { match noun { $($noun::$variant => $wire::$variant,)* } }
        }
        impl From<$wire> for $noun {
            fn from(wire: $wire) -> $noun { match wire { $($wire::$variant => $noun::$variant,)* } }
        }
    };
}
same_variants!(WireKind, FileKind: Regular, Directory, Symlink, Fifo, Socket, CharDevice, BlockDevice);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireTime {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl From<Timestamp> for WireTime {
    fn from(t: Timestamp) -> WireTime {
        WireTime { seconds: t.seconds, nanoseconds: t.nanoseconds }
    }
}

impl From<WireTime> for Timestamp {
    fn from(t: WireTime) -> Timestamp {
        Timestamp { seconds: t.seconds, nanoseconds: t.nanoseconds.min(999_999_999) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireAttributes {
    pub kind: WireKind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    pub rdev: u32,
    pub atime: WireTime,
    pub mtime: WireTime,
    pub ctime: WireTime,
    pub btime: WireTime,
}

impl From<Attributes> for WireAttributes {
    fn from(a: Attributes) -> WireAttributes {
        WireAttributes {
            kind: a.kind.into(),
            mode: a.mode.bits(),
            uid: a.uid,
            gid: a.gid,
            nlink: a.nlink,
            size: a.size,
            rdev: a.rdev,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            btime: a.btime.into(),
        }
    }
}

impl From<WireAttributes> for Attributes {
    fn from(a: WireAttributes) -> Attributes {
        Attributes {
            kind: a.kind.into(),
            mode: Mode::new(a.mode.into()),
            uid: a.uid,
            gid: a.gid,
            nlink: a.nlink,
            size: a.size,
            rdev: a.rdev,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            btime: a.btime.into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireSetTime {
    Now,
    To(WireTime),
}

impl From<SetTime> for WireSetTime {
    fn from(t: SetTime) -> WireSetTime {
        match t {
            SetTime::Now => WireSetTime::Now,
            SetTime::To(t) => WireSetTime::To(t.into()),
        }
    }
}

impl From<WireSetTime> for SetTime {
    fn from(t: WireSetTime) -> SetTime {
        match t {
            WireSetTime::Now => SetTime::Now,
            WireSetTime::To(t) => SetTime::To(t.into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSetAttributes {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<WireSetTime>,
    pub mtime: Option<WireSetTime>,
    pub ctime: Option<WireTime>,
}

impl From<SetAttributes> for WireSetAttributes {
    fn from(s: SetAttributes) -> WireSetAttributes {
        WireSetAttributes {
            mode: s.mode.map(Mode::bits),
            uid: s.uid,
            gid: s.gid,
            size: s.size,
            atime: s.atime.map(Into::into),
            mtime: s.mtime.map(Into::into),
            ctime: s.ctime.map(Into::into),
        }
    }
}

impl From<WireSetAttributes> for SetAttributes {
    fn from(s: WireSetAttributes) -> SetAttributes {
        SetAttributes {
            mode: s.mode.map(|bits| Mode::new(bits.into())),
            uid: s.uid,
            gid: s.gid,
            size: s.size,
            atime: s.atime.map(Into::into),
            mtime: s.mtime.map(Into::into),
            ctime: s.ctime.map(Into::into),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireCredentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub authority: WireAuthority,
}

/// The rights of a caller beyond those of its ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireAuthority {
    Ids,
    /// Capabilities of the initial user namespace.
    Capabilities {
        effective: u64,
    },
    /// Capabilities of a user namespace that maps these ids, as pairs of first id and count.
    MappedCapabilities {
        effective: u64,
        uids: Vec<(u32, u32)>,
        gids: Vec<(u32, u32)>,
    },
    /// The kernel has checked the permissions.
    Checked,
}

impl WireCredentials {
    /// A user with no rights beyond those of its ids.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> WireCredentials {
        WireCredentials { uid, gid, groups, authority: WireAuthority::Ids }
    }

    /// Whether no list is longer than Linux allows.
    pub fn is_within_limits(&self) -> bool {
        let ranges = match &self.authority {
            WireAuthority::MappedCapabilities { uids, gids, .. } => uids.len().max(gids.len()),
            WireAuthority::Ids | WireAuthority::Capabilities { .. } | WireAuthority::Checked => 0,
        };
        self.groups.len() <= Credentials::GROUPS_MAX && ranges <= MappedIds::RANGES_MAX
    }
}

impl From<Credentials> for WireCredentials {
    fn from(c: Credentials) -> WireCredentials {
        let pairs = |ranges: Vec<IdRange>| ranges.into_iter().map(|range| (range.first, range.count)).collect();
        let authority = match c.authority {
            Authority::Ids => WireAuthority::Ids,
            Authority::Checked => WireAuthority::Checked,
            Authority::Capabilities(own) => match (own.effective, own.namespace) {
                (effective, None) => WireAuthority::Capabilities { effective },
                (effective, Some(MappedIds { uids, gids })) => {
                    WireAuthority::MappedCapabilities { effective, uids: pairs(uids), gids: pairs(gids) }
                }
            },
        };
        WireCredentials { uid: c.uid, gid: c.gid, groups: c.groups, authority }
    }
}

impl From<WireCredentials> for Credentials {
    fn from(c: WireCredentials) -> Credentials {
        let ranges =
            |pairs: Vec<(u32, u32)>| pairs.into_iter().map(|(first, count)| IdRange { first, count }).collect();
        let capabilities =
            |effective, namespace| Authority::Capabilities(Box::new(CallerCapabilities { effective, namespace }));
        let authority = match c.authority {
            WireAuthority::Ids => Authority::Ids,
            WireAuthority::Checked => Authority::Checked,
            WireAuthority::Capabilities { effective } => capabilities(effective, None),
            WireAuthority::MappedCapabilities { effective, uids, gids } => {
                capabilities(effective, Some(MappedIds { uids: ranges(uids), gids: ranges(gids) }))
            }
        };
        Credentials { uid: c.uid, gid: c.gid, groups: c.groups, authority }
    }
}

/// A directory's partition map as its words; the receiver checks it against the volume's shard count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireMap(pub Vec<u64>);

impl From<&PartitionMap> for WireMap {
    fn from(map: &PartitionMap) -> WireMap {
        WireMap(map.words().to_vec())
    }
}

impl WireMap {
    /// `None` if the words are not a map of a volume with this number of shards.
    pub fn to_map(&self, shards: ShardCount) -> Option<PartitionMap> {
        PartitionMap::from_words(shards, self.0.clone())
    }
}

/// The servers of the volume and the worker that owns each shard. A later version replaces an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireShardMap {
    pub version: u64,
    pub servers: Vec<WireServer>,
    /// By shard.
    pub owners: Vec<WireOwner>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireServer {
    /// The number of the server in its `Welcome`.
    pub number: u64,
    /// The boot id of its host: only clients there use its Unix sockets.
    pub boot_id: String,
    pub workers: Vec<WireWorker>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireWorker {
    /// Path of the worker's Unix socket.
    pub unix: Option<String>,
    /// `host:port` of the worker's TCP listener.
    pub tcp: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireOwner {
    /// Index into the workers of all servers, in order; 65,535: nobody owns the shard now.
    pub worker: u16,
    /// Raised with each owner at another server: that server does not know which files clients have open.
    pub term: u64,
}

impl From<&ShardMap> for WireShardMap {
    fn from(map: &ShardMap) -> WireShardMap {
        let worker = |WorkerAddress { unix, tcp }: &WorkerAddress| WireWorker { unix: unix.clone(), tcp: tcp.clone() };
        let server = |server: &MapServer| WireServer {
            number: server.number,
            boot_id: server.boot_id.clone(),
            workers: server.workers.iter().map(worker).collect(),
        };
        let owner = |ShardOwner { worker, term }: &ShardOwner| WireOwner { worker: *worker, term: *term };
        WireShardMap {
            version: map.version(),
            servers: map.servers().iter().map(server).collect(),
            owners: map.owners().iter().map(owner).collect(),
        }
    }
}

impl WireShardMap {
    /// # Errors
    /// If it is not a map of a volume with this number of shards, or exceeds a limit of [`ShardMap::new`].
    pub fn to_map(&self, shards: ShardCount) -> Result<ShardMap, InvalidShardMap> {
        let (found, volume) = (self.owners.len(), usize::from(shards.get()));
        if found != volume {
            return Err(InvalidShardMap::OtherShards { found, volume });
        }
        let worker = |WireWorker { unix, tcp }: &WireWorker| WorkerAddress { unix: unix.clone(), tcp: tcp.clone() };
        let server = |server: &WireServer| MapServer {
            number: server.number,
            boot_id: server.boot_id.clone(),
            workers: server.workers.iter().map(worker).collect(),
        };
        let owner = |WireOwner { worker, term }: &WireOwner| ShardOwner { worker: *worker, term: *term };
        let servers = self.servers.iter().map(server).collect();
        ShardMap::new(self.version, servers, self.owners.iter().map(owner).collect())
    }
}
