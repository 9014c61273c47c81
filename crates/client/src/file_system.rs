//! A connected volume, and how a client connects to it.

use crate::attribute_cache::AttributeCache;
use crate::background::BackgroundThreads;
use crate::block_on;
use crate::by_number::Searches;
use crate::calls::Core;
use crate::directories::Directories;
use crate::directory_cache::{DirectoryCache, PendingChange};
use crate::files::{FetchTicket, FileTable, backing_blocks};
use crate::lookup_pins::LookupPins;
use crate::metrics_text;
use crate::session::ClientSession;
use crate::transport::Transport;
use crate::transport::in_process::{InProcessServer, InProcessTransport};
use crate::transport::remote::RemoteTransport;
use crate::{ClientConfig, Counters, Failure, Operation, OperationOutcome, Result};
use futures::FutureExt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::{Clock, Instant, RealClock};
use varve_env::random;
use varve_env::stages::{self, Stage};
use varve_env::volume_dir::VolumeDir;
use varve_env::volume_dir::VolumeFileError;
use varve_proto::handshake::{KeyId, Purpose, VolumeKey};
use varve_proto::{EntryReply, FileContent, NodeReply, SizeState};
use varve_types::{Attributes, Credentials, Errno, FileKind, InodeId, Mode, SessionId, VolumeSettings};

/// How long the kernel of an embedded mount may cache names and attributes: no other client changes them, and the
/// kernel knows this mount's changes. An hour bounds the damage of a mistake.
const ALONE_TTL: Duration = Duration::from_secs(3600);

/// A file or directory as a frontend presents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub inode: InodeId,
    pub attributes: Attributes,
    /// 512-byte blocks, as `st_blocks`.
    pub blocks: u64,
    /// How long the kernel may cache that the name refers to this inode.
    pub entry_ttl: Duration,
    /// How long the kernel may cache the attributes.
    pub attributes_ttl: Duration,
}

/// How long a frontend's kernel may cache replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Names and attributes of directories.
    pub directories: Duration,
    /// Names and attributes of everything else.
    pub files: Duration,
    /// That a name does not exist.
    pub absent: Duration,
}

/// A connected volume. Many threads use it at once, through `Arc`.
pub struct FileSystem {
    pub(crate) core: Core,
    pub(crate) files: FileTable,
    pub(crate) directories: Directories,
    pub(crate) background: BackgroundThreads,
    pub(crate) directory_cache: DirectoryCache,
    pub(crate) attribute_cache: AttributeCache,
    pub(crate) lookup_pins: LookupPins,
    pub(crate) searches: Searches,
    /// Counts operations that may change names or attributes of files, except creations and writes; instead of writes,
    /// it counts opens for writing.
    pub(crate) changes: AtomicU64,
    /// Duration of the last directory lease, in milliseconds.
    lease_ms: AtomicU64,
}

impl FileSystem {
    /// Reads the volume's file, its key and the server record, and performs the handshake with the server. `EHOSTDOWN`:
    /// the volume has no server; `EACCES`: the server refuses this client; the message says what to do.
    pub fn connect(config: ClientConfig) -> Result<Arc<FileSystem>> {
        FileSystem::connect_to(config, None)
    }

    /// Like [`FileSystem::connect`], to a server in this process, which requires no key.
    pub fn connect_within(
        config: ClientConfig,
        in_process_server: Arc<dyn InProcessServer>,
    ) -> Result<Arc<FileSystem>> {
        FileSystem::connect_to(config, Some(in_process_server))
    }

    fn connect_to(
        mut config: ClientConfig,
        in_process_server: Option<Arc<dyn InProcessServer>>,
    ) -> Result<Arc<FileSystem>> {
        let settings = config.store.read_settings().map_err(|error| {
            let errno = match error {
                VolumeFileError::NoVolume { .. } | VolumeFileError::NoDirectory { .. } => Errno::ENOENT,
                VolumeFileError::NotADirectory { .. } => Errno::ENOTDIR,
                _ => Errno::EIO,
            };
            Failure::new(errno, error.to_string())
        })?;
        config.store = config.store.held().map_err(refused)?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        // 0 is never a session id.
        let session = SessionId(random::number().max(1));
        let (purpose, own_clock) = (config.purpose, Arc::clone(&clock));
        let transport: Box<dyn Transport> = match in_process_server {
            Some(in_process_server) => {
                Box::new(InProcessTransport::new(in_process_server, session, purpose, own_clock))
            }
            None => {
                let key = key_of(&config, &settings)?;
                Box::new(RemoteTransport::new(&config, &settings, key, session, own_clock))
            }
        };
        let session = ClientSession::new(session, settings.shards);
        let core = block_on(Core::start(config, settings, clock, session, transport))?;
        let file_system = Arc::new(FileSystem {
            files: FileTable::new(&core.settings),
            directories: Directories::new(core.config.cookies),
            background: BackgroundThreads::default(),
            directory_cache: DirectoryCache::default(),
            attribute_cache: AttributeCache::default(),
            lookup_pins: LookupPins::default(),
            searches: Searches::default(),
            changes: AtomicU64::new(0),
            lease_ms: AtomicU64::new(0),
            core,
        });
        BackgroundThreads::start(&file_system)?;
        Ok(file_system)
    }

    /// The directory of the volume.
    pub fn store(&self) -> &VolumeDir {
        &self.core.config.store
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.core.settings
    }

    /// Whether the server runs inside this mount and serves it alone: names and attributes may then be cached for long.
    pub fn embedded(&self) -> bool {
        self.core.embedded() && self.core.config.purpose == Purpose::Work
    }

    /// Must be held during a change of `inode` whose effect the directory cache does not follow.
    pub(crate) fn changing(&self, inode: InodeId) -> Option<PendingChange<'_>> {
        let directory = inode == InodeId::ROOT || self.core.inodes.is_directory(inode);
        directory.then(|| self.directory_cache.change(inode, None))
    }

    /// The longest times for which the kernel may cache replies at present. Objects with an unknown outcome get less.
    pub fn timeouts(&self) -> Timeouts {
        if self.embedded() {
            return Timeouts { directories: ALONE_TTL, files: ALONE_TTL, absent: ALONE_TTL };
        }
        let directories = Duration::from_millis(self.lease_ms.load(Relaxed));
        Timeouts { directories, files: Duration::ZERO, absent: Duration::ZERO }
    }

    /// The remaining lease of a directory that was leased for `lease_ms` milliseconds, counted from `asked`.
    pub(crate) fn leased(&self, asked: Instant, lease_ms: u32) -> Duration {
        if lease_ms > 0 {
            self.lease_ms.store(lease_ms.into(), Relaxed);
        }
        let passed = self.core.clock.monotonic().since(asked);
        Duration::from_millis(lease_ms.into()).saturating_sub(passed)
    }

    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// The counters as Prometheus' text, for a program that serves them.
    pub fn metrics_text(&self) -> String {
        metrics_text::of(self.counters())
    }

    /// Counts `work`, which begins now, as one operation. This is not an async function, because the future of an async
    /// function would contain `work` twice, as argument and as awaited value, and move it.
    pub(crate) fn count<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>>,
    ) -> impl Future<Output = Result<T>> {
        let start = self.core.clock.monotonic();
        let passage = stages::enter(Stage::Client);
        work.map(move |result| {
            drop(passage);
            let took = self.core.clock.monotonic().since(start);
            self.core.counters.record(operation, took, OperationOutcome::of(&result));
            result
        })
    }

    /// Whether the client is configured read-only.
    pub fn read_only(&self) -> bool {
        self.core.config.read_only
    }

    /// Fails if the client is configured read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only() { Err(Errno::EROFS.into()) } else { Ok(()) }
    }

    /// The node of `reply` for a frontend. `lease`: how long a directory's name may be cached.
    pub(crate) fn node(&self, reply: &NodeReply, lease: Duration) -> NodeInfo {
        let attributes = Attributes::from(reply.attributes);
        // A directory whose link count is unknown is not cached, even in an embedded mount: its partitions may become
        // readable later.
        let counted = attributes.nlink != Attributes::NLINK_UNKNOWN || attributes.kind != FileKind::Directory;
        let (entry_ttl, attributes_ttl) = if self.embedded() && counted {
            (ALONE_TTL, ALONE_TTL)
        } else if attributes.kind == FileKind::Directory {
            // The lease covers mode, owner and name. Times and counts, which other clients may have changed since, are
            // those at the start of the lease; the kernel knows this mount's own changes.
            (lease, lease)
        } else {
            (Duration::ZERO, Duration::ZERO)
        };
        let outcome_unknown = self.core.unknown_outcomes.of_inode(InodeId(reply.inode));
        // The kernel does not tell of a write through a mapping of a passthrough file, nor refresh set-id bits that the
        // client has removed.
        let changes_silently = matches!(reply.content, FileContent::Backing(size) if size != SizeState::Authoritative)
            || attributes.kind == FileKind::Regular && attributes.mode.has(Mode::SET_UID | Mode::SET_GID);
        let attributes_ttl = if outcome_unknown || changes_silently { Duration::ZERO } else { attributes_ttl };
        let blocks = match reply.content {
            FileContent::Backing { .. } => backing_blocks(&self.core, InodeId(reply.inode)),
            _ => None,
        };
        let blocks = blocks.unwrap_or(attributes.blocks());
        NodeInfo { inode: InodeId(reply.inode), attributes, blocks, entry_ttl, attributes_ttl }
    }

    /// `node` under one of its names, as a frontend presents it.
    pub(crate) fn under(&self, parent: InodeId, name: &[u8], node: NodeInfo) -> NodeInfo {
        match self.core.unknown_outcomes.of_name(parent, name) {
            true => NodeInfo { entry_ttl: Duration::ZERO, ..node },
            false => node,
        }
    }

    /// The node of an entry, which was fetched when `asked` was taken. Fetches the node from its own shard if needed.
    /// `None` if it was removed in between.
    pub(crate) async fn resolve(
        &self,
        caller: &Credentials,
        entry: EntryReply,
        asked: FetchTicket,
        lease: Duration,
    ) -> Result<Option<NodeInfo>> {
        let resolved = match entry {
            EntryReply::Node(node) => self.file_node(node, asked).await,
            EntryReply::Elsewhere { inode, kind } => {
                self.core.inodes.set_by_inode(InodeId(inode), true);
                match FileKind::from(kind) {
                    FileKind::Directory => Box::pin(self.directory_of_name(caller, InodeId(inode), lease)).await,
                    _ => Box::pin(self.file_row(caller, InodeId(inode))).await,
                }
            }
        };
        match resolved {
            Ok(node) => Ok(Some(node)),
            Err(failure) if failure.errno == Errno::ESTALE => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        self.background.stop();
        self.core.close();
    }
}

/// The key that this client authenticates with: that of its host, or the volume's own.
fn key_of(config: &ClientConfig, settings: &VolumeSettings) -> Result<(KeyId, VolumeKey)> {
    let Some(file) = &config.key_file else {
        return Ok((KeyId::VOLUME, VolumeKey(config.store.read_key().map_err(refused)?)));
    };
    if file.volume != settings.id {
        let (meant, found) = (settings.id, file.volume);
        return Err(Failure::new(Errno::EACCES, format!("the key file is of volume {found}, not of {meant}")));
    }
    Ok((KeyId(file.key.id), VolumeKey(file.key.secret)))
}

fn refused(error: io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::EACCES, Errno::from_number);
    Failure::new(errno, error.to_string())
}
