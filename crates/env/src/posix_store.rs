//! An [`ObjectStore`] over a directory of any POSIX file system, for the tables.
//!
//! What it promises beyond `object_store`'s own local store:
//!
//! - **Durable**: when a put, copy or rename has returned, the object is there after a power cut, whole. (A delete is
//!   not made durable: a removed object that comes back is garbage that is collected again.)
//! - **Exclusive** [`PutMode::Create`], by a primitive that was proven on this very store ([`disk::Exclusive`]).
//! - **Compare-and-swap** [`PutMode::Update`]: every publication holds the store's lock file, an update alone and the
//!   others together, across threads and processes; so nothing comes between an update's look at the old version and
//!   its rename. The kernel drops a dead process's lock, and the rename is atomic, so a crash leaves old or new.
//! - No hard links unless renames without replacing are missing.
//!
//! The version of an object is its entity tag: a hash of its content up to [`HASHED_BYTES_MAX`], as in S3, so that it
//! depends on no file system's clock; beyond that size, inode number, time of modification and size.
//!
//! Names that begin with [`disk::RESERVED_PREFIX`] are the store's own: refused as objects, never listed.

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

/// Objects up to this size have a hash of their content as entity tag. Manifests and markers, which are swapped, are
/// far smaller; tables, which are never changed, are larger and would be slow to hash.
pub const HASHED_BYTES_MAX: u64 = 1024 * 1024;

const LOCK_NAME: &str = ".~lock";

/// See the module. Cloning is cheap and gives the same store.
#[derive(Clone, Debug)]
pub struct PosixStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    root: StorePath,
    exclusive: Exclusive,
    /// Some file systems emulate flock by locks of the whole process, which do not hold between threads.
    publications: parking_lot::RwLock<()>,
    /// Whether reads can be tried without waiting for the device here (`RWF_NOWAIT`); assumed until one fails.
    reads_without_waiting: AtomicBool,
    reserve: Option<Arc<Reserve>>,
    /// Of the volume whose tables are in it.
    place: Option<Arc<PinnedDirectories>>,
    /// Writes that were refused.
    refused: watch::Sender<u64>,
}

impl PosixStore {
    /// Opens the store in `root`, which must exist, and proves how it can create exclusively.
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

    /// This store, just opened, with room kept back for when it is full.
    pub fn with_reserve(mut self, reserve: Arc<Reserve>) -> PosixStore {
        Arc::get_mut(&mut self.inner).expect("a store that was just opened is not shared").reserve = Some(reserve);
        self
    }

    /// This store, just opened, in which nothing is read or written while its volume is not in its place.
    pub fn with_place(mut self, place: Option<Arc<PinnedDirectories>>) -> PosixStore {
        Arc::get_mut(&mut self.inner).expect("a store that was just opened is not shared").place = place;
        self
    }

    pub fn reserve(&self) -> Option<&Arc<Reserve>> {
        self.inner.reserve.as_ref()
    }

    /// Ready when a write is refused from now on, as all are by a store that is full, read-only or broken.
    pub fn refuses_a_write(&self) -> impl Future<Output = ()> + 'static {
        let mut refused = self.inner.refused.subscribe();
        async move {
            // An error means that the store itself is gone, where nobody writes either.
            let _ = refused.changed().await;
        }
    }

    /// Whether the store's directory is in its place: it may have been moved away, or what holds it unmounted.
    pub fn is_there(&self) -> bool {
        self.inner.root.is_dir() && self.inner.in_place().is_ok()
    }

    pub fn root(&self) -> &StorePath {
        &self.inner.root
    }

    pub fn exclusive(&self) -> Exclusive {
        self.inner.exclusive
    }

    /// Removes what crashes left below the root. Only for the one process that holds the volume's lock.
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

    /// Runs `work`, which blocks, where it holds up nobody.
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
    /// Does `write` once more where the store was full and had room kept back.
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

    /// The file of an object. Names are used as they are: an object path has no `.`, `..` or empty parts.
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
        // A file has no place for attributes; to drop them silently would be a lie.
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
