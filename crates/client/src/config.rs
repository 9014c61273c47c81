//! How a client joins a volume.

use std::time::Duration;
use varve_env::volume_dir::{KeyFile, VolumeDir};
use varve_proto::handshake::Purpose;

/// What a client is told when it connects.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub store: VolumeDir,
    pub purpose: Purpose,
    /// The key of this host, as `varve key add` has written it; `None`: the client proves the volume's own, from the store.
    pub key_file: Option<KeyFile>,
    /// Come by TCP, also on the server's own host.
    pub tcp: bool,
    /// How long a call goes on trying when its server is gone or busy.
    pub deadline: Duration,
    /// Refuse every change with `EROFS` before it leaves this process.
    pub read_only: bool,
    /// Offer the kernel descriptors of backing files ([`crate::Io::Passthrough`]).
    pub passthrough: bool,
    /// Have the kernel read and write large files that it is not given past its page cache ([`crate::Io::Direct`]), where it
    /// keeps that coherent. `None`: where others may be beside this client, and files are opened with O_DIRECT or only to be
    /// read, for then it asks for a file's attributes before each read of its pages, which takes as long as a read past them.
    pub direct_io: Option<bool>,
    /// Bytes written to small files that may wait in memory for their write-back; above it a writer writes its own
    /// file back at once.
    pub dirty_bytes_max: usize,
}

impl ClientConfig {
    pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);
    /// A thousand small files of the usual inline limit.
    pub const DIRTY_BYTES_DEFAULT: usize = 64 * 1024 * 1024;

    /// A client that works on the volume at `store`, with everything else as usual.
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
            dirty_bytes_max: Self::DIRTY_BYTES_DEFAULT,
        }
    }
}
