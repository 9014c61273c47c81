//! A formatted volume in a temporary directory, its server and clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use varve_client::{ClientConfig, FileSystem, Handle, NodeInfo, OpenFlags, block_on};
use varve_env::random;
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Credentials, InodeId, Mode, Name, ShardCount, VolumeId, VolumeSettings};

pub const STOP: Duration = Duration::from_secs(10);
pub const INLINE_LIMIT: u32 = 4096;

pub struct Site {
    directory: tempfile::TempDir,
    pub volume: VolumeDir,
    pub workers: usize,
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Site {
    /// A volume whose directories split early.
    pub fn new(shards: u16) -> Site {
        Site::of(shards, 4, Duration::from_secs(5), own_uid())
    }

    /// A volume whose small directories are not split, because a split fsyncs.
    pub fn synced_every(shards: u16, sync_interval: Duration) -> Site {
        Site::of(shards, 32, sync_interval, own_uid())
    }

    /// A volume owned by another user.
    pub fn owned_by(owner_uid: u32) -> Site {
        Site::of(4, 4, Duration::from_secs(5), owner_uid)
    }

    fn of(shards: u16, split_threshold: u64, sync_interval: Duration, owner_uid: u32) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let volume = VolumeDir::new(directory.path().join("store"));
        let settings = VolumeSettings {
            id: VolumeId(random::bytes()),
            name: "test".into(),
            shards: ShardCount::new(shards).unwrap(),
            split_threshold,
            inline_limit: INLINE_LIMIT,
            sync_interval,
            owner_uid,
        };
        varve_admin::format::format(&volume, &settings, FormatOver::Nothing).unwrap();
        Site { directory, volume, workers: 2 }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn serve(&self) -> Server {
        self.serve_as(false)
    }

    /// `embedded`: like a server in its only client's process.
    pub fn serve_as(&self, embedded: bool) -> Server {
        let config = ServerConfig {
            embedded,
            workers: self.workers,
            unix_directory: Some(self.path("sockets")),
            memory_bytes: 128 * 1024 * 1024,
            ..ServerConfig::new(self.volume.clone())
        };
        Server::start(config).unwrap()
    }

    /// Serves another directory.
    pub fn serve_at(&self, volume: VolumeDir, sockets: &str) -> Server {
        let unix_directory = Some(self.path(sockets));
        let memory_bytes = 128 * 1024 * 1024;
        Server::start(ServerConfig { workers: 2, unix_directory, memory_bytes, ..ServerConfig::new(volume) }).unwrap()
    }

    pub fn config(&self) -> ClientConfig {
        ClientConfig { deadline: Duration::from_secs(20), ..ClientConfig::new(self.volume.clone()) }
    }

    pub fn connect(&self) -> Arc<FileSystem> {
        FileSystem::connect(self.config()).unwrap()
    }
}

pub const ROOT: InodeId = InodeId::ROOT;

pub fn root() -> Credentials {
    Credentials::root()
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn make_file(fs: &FileSystem, parent: InodeId, text: &str) -> NodeInfo {
    block_on(fs.make_node(&root(), parent, &name(text), Mode::new(0o644), varve_client::NewNode::Regular)).unwrap()
}

pub fn make_directory(fs: &FileSystem, parent: InodeId, text: &str) -> NodeInfo {
    block_on(fs.make_directory(&root(), parent, &name(text), Mode::new(0o755))).unwrap()
}

pub fn create(fs: &FileSystem, text: &str) -> (InodeId, Handle) {
    let made = block_on(fs.create(&root(), ROOT, &name(text), Mode::new(0o644), OpenFlags::READ_WRITE)).unwrap();
    (made.0.inode, made.1.handle)
}

pub fn open(fs: &FileSystem, inode: InodeId) -> Handle {
    block_on(fs.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap().handle
}

pub fn write(fs: &FileSystem, handle: Handle, offset: u64, data: &[u8]) {
    assert_eq!(block_on(fs.write(handle, offset, data)).unwrap(), data.len());
}

pub fn read(fs: &FileSystem, handle: Handle, offset: u64, len: usize) -> Vec<u8> {
    let mut buffer = vec![0xaa; len];
    let count = block_on(fs.read(handle, offset, &mut buffer)).unwrap();
    buffer.truncate(count);
    buffer
}

pub fn size(fs: &FileSystem, inode: InodeId) -> u64 {
    block_on(fs.attributes(&root(), inode)).unwrap().attributes.size
}

pub fn close(fs: &FileSystem, handle: Handle) {
    block_on(fs.flush(handle)).unwrap();
    block_on(fs.release(handle));
}

/// The file's content as a new open reads it.
pub fn content(fs: &FileSystem, text: &str) -> Vec<u8> {
    let node = block_on(fs.lookup(&root(), ROOT, &name(text))).unwrap();
    let handle = block_on(fs.open(&root(), node.inode, OpenFlags::READ)).unwrap().handle;
    let content = read(fs, handle, 0, 1024 * 1024);
    block_on(fs.release(handle));
    fs.forget(node.inode, 1);
    content
}
