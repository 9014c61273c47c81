//! The configuration of a client.

use std::time::Duration;
use varve_env::volume_dir::{KeyFile, VolumeDir};
use varve_proto::handshake::Purpose;

/// The size of positions in listings ([`crate::DirectoryEntry::cookie`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CookieWidth {
    /// 63 bits: the hash of a name.
    #[default]
    Long,
    /// 31 bits, for programs whose `off_t` or `long` has 32.
    Short,
}

/// Parameters of a connection.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub store: VolumeDir,
    pub purpose: Purpose,
    /// The key of this host, as `varve key add` wrote it. `None`: the client uses the volume's own key, from the store.
    pub key_file: Option<KeyFile>,
    /// Connect over TCP, also on the server's own host.
    pub tcp: bool,
    /// Timeout of a call while its server is gone or busy.
    pub deadline: Duration,
    /// Refuse every change with `EROFS` before it leaves this process.
    pub read_only: bool,
    /// Offer the kernel descriptors of backing files ([`crate::Io::Passthrough`]).
    pub passthrough: bool,
    /// Have the kernel bypass its page cache for large files that are not passed through ([`crate::Io::Direct`]), where
    /// it keeps the cache coherent. `None`: only where other clients may use the volume, and only for files opened with
    /// O_DIRECT or for reading. In that case the kernel requests a file's attributes before each read of cached pages,
    /// which takes as long as a read past the cache.
    pub direct_io: Option<bool>,
    pub cookies: CookieWidth,
    /// Bytes of small files that may wait in memory for their write-back. Above this, a writer writes its own file back
    /// at once.
    pub dirty_bytes_max: usize,
}

impl ClientConfig {
    pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);
    /// A thousand small files of the default inline limit.
    pub const DIRTY_BYTES_DEFAULT: usize = 64 * 1024 * 1024;

    /// A client for the volume at `store`, with defaults for everything else.
    pub fn new(store: VolumeDir) -> ClientConfig {
        ClientConfig {
            store,
            purpose: Purpose::Work,
            key_file: None,
            tcp: false,
            deadline: Self::DEADLINE_DEFAULT,
            read_only: false,
            passthrough: false,
            direct_io: None,
            cookies: CookieWidth::Long,
            dirty_bytes_max: Self::DIRTY_BYTES_DEFAULT,
        }
    }
}
