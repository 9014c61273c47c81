//! Disk space that a volume reserves in its store, so that a full store still accepts removals.
//!
//! The volume's file `reserve` occupies [`Reserve::bytes`] of the store's space. A writer whose write fails for lack of
//! space calls [`Reserve::release`] and writes again. While the store [`Reserve::is_short`], the frontend refuses
//! operations that need space, so that removals and the tables get the released space. [`Reserve::tend`] takes the
//! reserve again when there is enough free space.

use crate::disk::{self, FileOptions, Location};
use crate::store_path::StorePath;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, StatVfs, fallocate, fstatvfs, ftruncate};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Reserve in a large store: enough for some hundred thousand removals, including their tables.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// In a small store, the reserve is this fraction of the store.
const PART_OF_STORE: u64 = 16;

/// With less free space than that of so many reserves the store is tight.
const TIGHT_RESERVES: u64 = 2;

const RESERVE_MODE: u32 = 0o600;

/// Size of one write where the store cannot allocate without writing.
const STEP_BYTES: usize = 1024 * 1024;

/// The reserve's file, in a volume's store or at a plain path.
#[derive(Debug)]
pub enum ReserveFile {
    Plain(PathBuf),
    OfStore(StorePath),
}

#[derive(Debug)]
pub struct Reserve {
    file: ReserveFile,
    bytes: u64,
    /// Held while the file is taken or released.
    work: Mutex<()>,
    short: AtomicBool,
    tight: AtomicBool,
    telling: Mutex<Telling>,
}

/// The space of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSpace {
    pub bytes: u64,
    /// Bytes that this user may still allocate.
    pub free_bytes: u64,
}

/// When to log that the store is full.
#[derive(Debug)]
enum Telling {
    Now,
    /// A server is starting. If it fails for another reason, the shortage is not logged.
    Later(Option<String>),
}

impl Reserve {
    /// The reserve in the file `file`. It holds the space that an earlier process took; [`Reserve::tend`] takes more.
    pub fn of(file: impl Into<ReserveFile>) -> io::Result<Reserve> {
        let file = file.into();
        let bytes = bytes_of(&file.space()?);
        let reserve = Reserve {
            file,
            bytes,
            work: Mutex::new(()),
            short: AtomicBool::new(false),
            tight: AtomicBool::new(false),
            telling: Mutex::new(Telling::Now),
        };
        reserve.is_held()?;
        Ok(reserve)
    }

    /// Whether the file holds the space now. Another process of the volume may have taken or released it, so this is
    /// never remembered.
    fn is_held(&self) -> io::Result<bool> {
        match self.file.look() {
            Ok(found) => Ok(found.is_file() && found.len() >= self.bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Defers the warning that the store is full until [`Reserve::has_started`].
    pub fn while_starting(self) -> Reserve {
        Reserve { telling: Mutex::new(Telling::Later(None)), ..self }
    }

    /// The server has started: logs the deferred warning.
    pub fn has_started(&self) {
        if let Telling::Later(Some(text)) = std::mem::replace(&mut *self.telling.lock(), Telling::Now) {
            tracing::warn!("{text}");
        }
    }

    fn tell(&self, text: String) {
        match &mut *self.telling.lock() {
            Telling::Now => tracing::warn!("{text}"),
            Telling::Later(untold) => *untold = Some(text),
        }
    }

    /// Releases the reserve if the store is already full, before work that needs space.
    pub fn release_if_full(&self) -> io::Result<()> {
        if self.file.free()? < self.bytes / 2 {
            self.release();
        }
        Ok(())
    }

    /// The store has so little free space that only operations that free space should run.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// The store is short of free space, or may be soon: removals should free theirs before they are answered, so that
    /// the next write can use it.
    pub fn is_tight(&self) -> bool {
        self.tight.load(Relaxed) || self.is_short()
    }

    /// The space of the store; blocks on it.
    pub fn store_space(&self) -> io::Result<StoreSpace> {
        let store = self.file.space()?;
        let of = |blocks: u64| blocks.saturating_mul(store.f_frsize);
        Ok(StoreSpace { bytes: of(store.f_blocks), free_bytes: of(store.f_bavail) })
    }

    /// Takes the reserve if there is enough free space, and records whether there is too little. Called about once a
    /// second; blocks on the store.
    pub fn tend(&self) -> io::Result<()> {
        let _work = self.work.lock();
        let (mut held, free) = (self.is_held()?, self.file.free()?);
        // Half of the reserve in addition, for operations in progress until the shortage is detected.
        let besides = self.bytes / 2;
        let wanted = self.bytes + besides;
        if !held && free >= wanted {
            self.take()?;
            held = true;
        }
        let short = !held || free < besides;
        self.tight.store(free < TIGHT_RESERVES * self.bytes, Relaxed);
        let was_short = self.short.swap(short, Relaxed);
        if short && !was_short {
            let missing = if held { besides - free } else { wanted - free };
            self.tell(format!("the store is full: writes fail until {missing} bytes are freed"));
        } else if was_short && !short {
            tracing::info!("the store has free space again");
        }
        Ok(())
    }

    /// Releases the reserve to a writer that ran out of space. Returns whether there was a reserve to release.
    pub fn release(&self) -> bool {
        let _work = self.work.lock();
        self.short.store(true, Relaxed);
        let released = self.is_held().and_then(|held| match held {
            true => self.file.open(disk::File::options()).and_then(|file| Ok(ftruncate(&file, 0)?)).map(|()| true),
            false => Ok(false),
        });
        match released {
            Ok(false) => false,
            Ok(true) => {
                self.tell(format!(
                    "the store is full: the reserve of {} bytes for removals is in use, and writes fail",
                    self.bytes
                ));
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot release the reserve for removals");
                false
            }
        }
    }

    fn take(&self) -> io::Result<()> {
        let file = self.file.open(disk::File::options().create().mode(RESERVE_MODE))?;
        let taken = match fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
            Err(rustix::io::Errno::OPNOTSUPP) => self.write(&file),
            taken => taken.map_err(io::Error::from),
        };
        if taken.is_err() {
            ftruncate(&file, 0)?;
        }
        taken
    }

    /// Takes the space by writing, on stores that cannot allocate.
    fn write(&self, file: &File) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        // Not zeros, for which some stores allocate no blocks.
        let step = vec![0xa5; STEP_BYTES];
        let mut at = 0;
        while at < self.bytes {
            file.write_all_at(&step, at)?;
            at += STEP_BYTES as u64;
        }
        file.sync_all()
    }
}

fn bytes_of(store: &StatVfs) -> u64 {
    (store.f_blocks.saturating_mul(store.f_frsize) / PART_OF_STORE).min(BYTES_MAX)
}

/// Bytes of space in `store` that a volume can fill before it refuses operations that need space; `path` is its
/// reserve's file. 0 while it refuses them.
pub fn room(path: &StorePath, store: &StatVfs) -> u64 {
    let (free, bytes) = (store.f_bavail.saturating_mul(store.f_frsize), bytes_of(store));
    let held = path.symlink_metadata().is_ok_and(|file| file.is_file() && file.len() >= bytes);
    free.saturating_sub(if held { bytes / 2 } else { bytes + bytes / 2 })
}

impl ReserveFile {
    /// Opens the file for writing. Below a store the file must belong to the owner of its directory, so that no other
    /// user's file is truncated or filled.
    fn open(&self, options: FileOptions) -> io::Result<File> {
        let options = options.write(true).no_follow();
        let path = match self {
            ReserveFile::Plain(path) => return path.open_file(&options),
            ReserveFile::OfStore(path) => path,
        };
        let file = path.open_file(&options)?;
        let (found, owner) = (file.metadata()?.uid(), path.parent().metadata()?.uid());
        if found != owner {
            let what = format!(
                "{path} belongs to user {found}, and the store to user {owner}: remove it, and Varve creates another \
                 one"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
        Ok(file)
    }

    fn look(&self) -> io::Result<Metadata> {
        match self {
            ReserveFile::Plain(path) => path.look(),
            ReserveFile::OfStore(path) => path.look(),
        }
    }

    fn space(&self) -> io::Result<StatVfs> {
        let directory = match self {
            ReserveFile::Plain(path) => path.around().open_directory()?,
            ReserveFile::OfStore(path) => path.parent().open_directory()?,
        };
        Ok(fstatvfs(&directory)?)
    }

    /// Bytes that this user may still allocate.
    fn free(&self) -> io::Result<u64> {
        let store = self.space()?;
        Ok(store.f_bavail.saturating_mul(store.f_frsize))
    }
}

impl From<PathBuf> for ReserveFile {
    fn from(path: PathBuf) -> ReserveFile {
        ReserveFile::Plain(path)
    }
}

impl From<StorePath> for ReserveFile {
    fn from(path: StorePath) -> ReserveFile {
        ReserveFile::OfStore(path)
    }
}

/// Whether `error` means that the store is out of space.
pub fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests;
