//! An [`ObjectStore`] over a directory of any POSIX file system, for the tables.
//!
//! Guarantees beyond those of `object_store`'s own local store:
//!
//! - **Durable**: once a put, copy or rename has returned, the complete object survives a power loss. (A delete is not
//!   made durable: an object that reappears is garbage, which is collected again.)
//! - **Exclusive** [`PutMode::Create`], by a primitive that was proven on this very store ([`disk::Exclusive`]).
//! - **Compare-and-swap** [`PutMode::Update`]: every publication locks the store's lock file, an update exclusively and
//!   all others shared, across threads and processes. So no publication can come between an update's check of the old
//!   version and its rename. The kernel releases a dead process's lock, and the rename is atomic, so a crash leaves the
//!   old or the new object.
//! - No hard links unless the file system lacks renames without replacing.
//!
//! The version of an object is its entity tag. Up to [`HASHED_BYTES_MAX`] it is a hash of the content, as in S3, so
//! that it does not depend on a file system's clock; above that size it is made of inode number, time of modification
//! and size.
//!
//! Names that begin with [`disk::RESERVED_PREFIX`] are the store's own: they are refused as objects and never listed.

mod error;
mod list;
mod multipart;
mod read;
mod write;

pub use error::{StoreIoError, io_error_within, is_unreachable};

use crate::disk::{self, Exclusive};
use crate::reserve::{self, Reserve};
use crate::store_path::{StoreEntry, StorePath};
use crate::volume_dir::PinnedDirectories;
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode, Result,
};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;

/// Up to this size, the entity tag is a hash of the content. Manifests and markers, which are replaced by
/// compare-and-swap, are far smaller. Tables, which never change, are larger and would be slow to hash.
pub const HASHED_BYTES_MAX: u64 = 1024 * 1024;

const LOCK_NAME: &str = ".~lock";

/// See the module documentation. Clones are cheap and refer to the same store.
#[derive(Clone, Debug)]
pub struct PosixStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: StorePath,
    exclusive: Exclusive,
    /// Some file systems emulate flock by process-wide locks, which do not exclude threads of one process.
    publications: parking_lot::RwLock<()>,
    /// Whether reads can be tried without waiting for the device (`RWF_NOWAIT`); assumed until one fails.
    reads_without_waiting: AtomicBool,
    reserve: Option<Arc<Reserve>>,
    /// The directories of the volume that the tables belong to.
    place: Option<Arc<PinnedDirectories>>,
    /// Number of refused writes.
    refused: watch::Sender<u64>,
}

impl PosixStore {
    /// Opens the store in `root`, which must exist, and proves its primitive for exclusive creation.
    pub fn open(root: impl Into<StorePath>) -> io::Result<PosixStore> {
        let root = root.into();
        let exclusive = Exclusive::prove(&root)?;
        Ok(PosixStore::with_exclusive(root, exclusive))
    }

    /// Opens the store in `root` with a primitive that is known to work there.
    pub fn with_exclusive(root: impl Into<StorePath>, exclusive: Exclusive) -> PosixStore {
        PosixStore {
            inner: Arc::new(Inner {
                root: root.into(),
                exclusive,
                publications: parking_lot::RwLock::new(()),
                reads_without_waiting: AtomicBool::new(true),
                reserve: None,
                place: None,
                refused: watch::Sender::new(0),
            }),
        }
    }

    /// Adds a reserve of disk space, used when the store is full. Only for a store that was just opened.
    pub fn with_reserve(mut self, reserve: Arc<Reserve>) -> PosixStore {
        Arc::get_mut(&mut self.inner).expect("a store that was just opened is not shared").reserve = Some(reserve);
        self
    }

    /// Refuses reads and writes while the volume's directories are not in place. Only for a store that was just opened.
    pub fn with_place(mut self, place: Option<Arc<PinnedDirectories>>) -> PosixStore {
        Arc::get_mut(&mut self.inner).expect("a store that was just opened is not shared").place = place;
        self
    }

    pub fn reserve(&self) -> Option<&Arc<Reserve>> {
        self.inner.reserve.as_ref()
    }

    /// Resolves at the next refused write. A store that is full, read-only or broken refuses all writes.
    pub fn refuses_a_write(&self) -> impl Future<Output = ()> + 'static {
        let mut refused = self.inner.refused.subscribe();
        async move {
            // An error means that the store was dropped; no writes can follow.
            let _ = refused.changed().await;
        }
    }

    /// Whether the store's directory is in place. It may have been moved away, or its file system unmounted.
    pub fn is_there(&self) -> bool {
        self.inner.root.is_dir() && self.inner.in_place().is_ok()
    }

    pub fn root(&self) -> &StorePath {
        &self.inner.root
    }

    pub fn exclusive(&self) -> Exclusive {
        self.inner.exclusive
    }

    /// Removes temporary files that crashes left below the root. Only the process that holds the volume's lock may call
    /// it.
    pub fn remove_leftovers(&self) -> io::Result<u64> {
        let mut removed = 0;
        let mut directories = vec![self.inner.root.clone()];
        while let Some(directory) = directories.pop() {
            removed += disk::remove_leftovers(&directory)?;
            let below = directory.read_dir()?.into_iter().filter(StoreEntry::is_dir);
            directories.extend(below.map(StoreEntry::into_path));
        }
        Ok(removed)
    }

    /// Runs the blocking closure `work` on a thread where it delays no other task.
    async fn off_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = self.inner.clone();
        off_thread(move || work(&inner)).await
    }
}

async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_err() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(join) => match join.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(join) => Err(object_store::Error::Generic { store: error::STORE, source: Box::new(join) }),
        },
    }
}

impl Inner {
    /// Runs `write`; if the store is full and has a reserve, releases the reserve and runs it again.
    fn with_room<T>(&self, write: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let written = match write() {
            Err(error)
                if reserve::is_for_want_of_room(&error) && self.reserve.as_ref().is_some_and(|r| r.release()) =>
            {
                write()
            }
            written => written,
        };
        if written.is_err() {
            self.refused.send_modify(|refused| *refused += 1);
        }
        written
    }

    /// The file of an object. Names are used unchanged: an object path has no `.`, `..` or empty parts.
    fn file(&self, location: &ObjectPath) -> Result<StorePath> {
        self.holds_in_place(location).map_err(error::failed("find", location))?;
        if location.parts().any(|part| part.as_ref().starts_with(disk::RESERVED_PREFIX)) {
            return Err(error::reserved(location));
        }
        Ok(if location.as_ref().is_empty() { self.root.clone() } else { self.root.join(location.as_ref()) })
    }
}

impl fmt::Display for PosixStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PosixStore({})", self.inner.root)
    }
}

#[async_trait]
impl ObjectStore for PosixStore {
    async fn put_opts(&self, location: &ObjectPath, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        // A file cannot store the attributes; dropping them silently would be wrong.
        if !options.attributes.is_empty() {
            return Err(error::not_implemented("put with attributes"));
        }
        let location = location.clone();
        self.off_thread(move |inner| match options.mode {
            PutMode::Overwrite => inner.put_overwriting(&location, &payload),
            PutMode::Create => inner.put_creating(&location, &payload),
            PutMode::Update(version) => inner.put_updating(&location, &payload, version),
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() {
            return Err(error::not_implemented("multipart put with attributes"));
        }
        let location = location.clone();
        let store = self.clone();
        self.off_thread(move |_| multipart::Upload::start(store, location)).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Result<GetResult> {
        self.read(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<ObjectPath>>,
    ) -> BoxStream<'static, Result<ObjectPath>> {
        let store = self.clone();
        locations
            .and_then(move |location| {
                let store = store.clone();
                async move {
                    let gone = location.clone();
                    store.off_thread(move |inner| inner.delete(&gone)).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&ObjectPath>,
        offset: &ObjectPath,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult> {
        let prefix = prefix.cloned();
        self.off_thread(move |inner| inner.list_level(prefix.as_ref())).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.off_thread(move |inner| inner.copy(&from, &to, options.mode)).await
    }

    async fn rename_opts(&self, from: &ObjectPath, to: &ObjectPath, options: RenameOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        let mode = match options.target_mode {
            RenameTargetMode::Overwrite => CopyMode::Overwrite,
            RenameTargetMode::Create => CopyMode::Create,
        };
        self.off_thread(move |inner| inner.rename(&from, &to, mode)).await
    }
}

#[cfg(test)]
mod tests;
