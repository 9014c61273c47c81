//! An [`ObjectStore`] over a directory of any POSIX file system, for the tables.
//!
//! Guarantees beyond those of `object_store`'s own local store:
//!
//! - **Durable**: once a put, copy or rename has returned, the complete object survives a power loss. (A delete is not
//!   made durable: an object that reappears is garbage, which is collected again.)
//! - **Exclusive** [`PutMode::Create`], by a primitive that was proven on this very store ([`disk::Exclusive`]). It
//!   takes no lock: a process that was stopped in any place, or hangs, keeps no other one from creating an object. All
//!   that a takeover of a shard needs are creations.
//! - **Compare-and-swap** [`PutMode::Update`]: a put that replaces an object locks the lock file of its shard's
//!   directory, across threads and processes. So no other replacement comes between an update's check of the old version and its
//!   rename. The kernel releases a dead process's lock, and the rename is atomic, so a crash leaves the old or the new
//!   object. A delete takes no lock: what is updated must not be deleted. SlateDB updates one kind of object, the
//!   boundaries of its garbage collection.
//!
//! A copy to a free name is a hard link: the registry of several servers renews leases by it on a full store. Copies over an
//! object and renames are not supported, because nothing needs them.
//!
//! The version of an object is its entity tag; `version.rs` says why it is unique.
//!
//! Names that begin with [`disk::RESERVED_PREFIX`] are the store's own: they are refused as objects and never listed.

mod error;
mod list;
mod multipart;
mod read;
mod version;
mod write;

pub use error::{StoreIoError, io_error_within, is_unreachable};

use crate::disk::{self, Exclusive, WriterId};
use crate::reserve::{self, Reserve};
use crate::store_path::{StoreEntry, StorePath};
use crate::volume_dir::{PinnedDirectories, VolumeDir};
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::watch;

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
    /// Taken before a shard's lock: some file systems emulate flock by process-wide locks, which do not exclude threads
    /// of one process.
    replacements: parking_lot::Mutex<()>,
    /// Whether reads can be tried without waiting for the device (`RWF_NOWAIT`); assumed until one fails.
    reads_without_waiting: AtomicBool,
    reserve: Option<Arc<Reserve>>,
    /// The directories of the volume that the tables belong to.
    place: Option<Arc<PinnedDirectories>>,
    /// Number of refused writes.
    refused: watch::Sender<u64>,
}

impl PosixStore {
    /// Opens the store in `root`, which must exist, with the first primitive for exclusive creation that works there.
    pub fn open(root: impl Into<StorePath>) -> io::Result<PosixStore> {
        let root = root.into();
        let exclusive = Exclusive::working(&root)?;
        Ok(PosixStore::with_exclusive(root, exclusive))
    }

    /// Opens the store of a volume's tables with the primitive that the volume file records. While a volume is being
    /// made it has no such file, and this is [`PosixStore::open`].
    ///
    /// # Errors
    /// Also if the primitive does not work there (any more): a volume may have been copied to another file system.
    pub fn of_volume(volume: &VolumeDir) -> io::Result<PosixStore> {
        let root = volume.shards();
        let Some(exclusive) = volume.exclusive() else { return PosixStore::open(root) };
        if exclusive.works_in(&root)? {
            return Ok(PosixStore::with_exclusive(root, exclusive));
        }
        let what = format!(
            "{root} does not support exclusive creation by {exclusive}, which the volume uses: run `varve doctor {}`, \
             which looks for a primitive that works there",
            volume.root().display()
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Opens the store in `root` with a primitive that is known to work there.
    pub fn with_exclusive(root: impl Into<StorePath>, exclusive: Exclusive) -> PosixStore {
        PosixStore {
            inner: Arc::new(Inner {
                root: root.into(),
                exclusive,
                replacements: parking_lot::Mutex::new(()),
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

    /// Removes temporary files that crashes left below the root, except those of the writers in `living`.
    pub fn remove_leftovers(&self, living: &[WriterId]) -> io::Result<u64> {
        let mut removed = 0;
        let mut directories = vec![self.inner.root.clone()];
        while let Some(directory) = directories.pop() {
            removed += disk::remove_leftovers(&directory, living)?;
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
        if options.mode != CopyMode::Create {
            return Err(error::not_implemented("copy over an object"));
        }
        let (from, to) = (from.clone(), to.clone());
        self.off_thread(move |inner| inner.copy_creating(&from, &to)).await
    }

    async fn rename_opts(&self, _from: &ObjectPath, _to: &ObjectPath, _options: RenameOptions) -> Result<()> {
        Err(error::not_implemented("rename"))
    }
}

#[cfg(test)]
mod tests;
