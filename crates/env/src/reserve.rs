//! Room that a volume keeps back in its store, so that a full store still takes removals.
//!
//! A file `reserve` of the volume holds [`Reserve::bytes`] of the store's room. Whoever must write and is refused for
//! want of room gives it up ([`Reserve::release`]) and writes again; while the store [`Reserve::is_short`], what would
//! grow is refused at the frontend, so that the room given up goes to removals and to the tables. [`Reserve::tend`]
//! takes it back when there is room again.

use crate::disk::{self, FileOptions, Location};
use crate::store_path::StorePath;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, StatVfs, fallocate, fstatvfs, ftruncate};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What is kept back of a large store: enough for some hundred thousand removals, their tables included.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Of a small store, this part of it.
const PART_OF_STORE: u64 = 16;

const RESERVE_MODE: u32 = 0o600;

/// Written at a time where the store cannot allocate without writing.
const STEP_BYTES: usize = 1024 * 1024;

/// The file that holds the room, in a volume's store or by itself.
#[derive(Debug)]
pub enum ReserveFile {
    Plain(PathBuf),
    OfStore(StorePath),
}

#[derive(Debug)]
pub struct Reserve {
    file: ReserveFile,
    bytes: u64,
    held: Mutex<bool>,
    short: AtomicBool,
    telling: Mutex<Telling>,
}

/// When it is logged that the store is full.
#[derive(Debug)]
enum Telling {
    Now,
    /// A server is starting. Where it fails for another reason, the room is of no interest.
    Later(Option<String>),
}

impl Reserve {
    /// The reserve of the store that `file`, the reserve's file, is in. What is held is what an earlier process held; more is
    /// taken by [`Reserve::tend`].
    pub fn of(file: impl Into<ReserveFile>) -> io::Result<Reserve> {
        let file = file.into();
        let bytes = bytes_of(&file.space()?);
        let held = match file.look() {
            Ok(found) => found.is_file() && found.len() >= bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        Ok(Reserve {
            file,
            bytes,
            held: Mutex::new(held),
            short: AtomicBool::new(false),
            telling: Mutex::new(Telling::Now),
        })
    }

    /// Logs that the store is full only after [`Reserve::has_started`].
    pub fn while_starting(self) -> Reserve {
        Reserve { telling: Mutex::new(Telling::Later(None)), ..self }
    }

    /// The server that uses it serves: what was not logged so far is.
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

    /// Gives the room up if the store is full already, for whoever is about to begin work that needs some.
    pub fn release_if_full(&self) -> io::Result<()> {
        if self.file.free()? < self.bytes / 2 {
            self.release();
        }
        Ok(())
    }

    /// The store has so little room left that only what makes room should be done.
    pub fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Takes room where there is enough, and notes whether there is too little. To be called once a second or so; waits
    /// for the store.
    pub fn tend(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        let free = self.file.free()?;
        // Half of the reserve besides it, for what is under way while a shortage is noticed.
        let besides = self.bytes / 2;
        let wanted = self.bytes + besides;
        if !*held && free >= wanted {
            self.take()?;
            *held = true;
        }
        let short = !*held || free < besides;
        let was_short = self.short.swap(short, Relaxed);
        if short && !was_short {
            let missing = if *held { besides - free } else { wanted - free };
            self.tell(format!("the store is full: what would grow is refused until {missing} bytes are freed"));
        } else if was_short && !short {
            tracing::info!("the store has room again");
        }
        Ok(())
    }

    /// Gives the room up to who was refused for want of it. Whether there was any.
    pub fn release(&self) -> bool {
        let mut held = self.held.lock();
        self.short.store(true, Relaxed);
        if !std::mem::take(&mut *held) {
            return false;
        }
        let released = self.file.open(disk::File::options()).and_then(|file| Ok(ftruncate(&file, 0)?));
        match released {
            Ok(()) => {
                self.tell(format!(
                    "the store is full: the {} bytes kept back for removals are used now, and what would grow is refused",
                    self.bytes
                ));
                true
            }
            Err(error) => {
                tracing::error!(%error, "cannot give up the room kept back for removals");
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

    /// By writing, on stores that cannot allocate.
    fn write(&self, file: &File) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        // Not zeros, which some stores do not keep.
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

/// Bytes of the room in `store` that a volume fills before it refuses what would grow; its reserve's file is `path`. None
/// while it refuses.
pub fn room(path: &StorePath, store: &StatVfs) -> u64 {
    let (free, bytes) = (store.f_bavail.saturating_mul(store.f_frsize), bytes_of(store));
    let held = path.symlink_metadata().is_ok_and(|file| file.is_file() && file.len() >= bytes);
    free.saturating_sub(if held { bytes / 2 } else { bytes + bytes / 2 })
}

impl ReserveFile {
    /// For writing. Below a store it must belong to whom its directory belongs to: nobody else's file is cut or filled.
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
                "{path} belongs to user {found}, and the store to user {owner}: remove it, and another one is made"
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

    /// Bytes that this user may still take.
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

/// Whether `error` says that the store has no room.
pub fn is_for_want_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests;
