//! Maps failures to `object_store` errors and keeps the [`io::Error`] in the chain of sources, so that a full or
//! failing disk is recognisable at every layer ([`io_error_within`]).

use super::Inner;
use crate::volume_dir::VolumeDir;
use object_store::Error;
use object_store::path::Path as ObjectPath;
use std::io;
use std::path::PathBuf;

pub(super) const STORE: &str = "posix";

/// A failed operation on the store's files.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct StoreIoError {
    pub action: &'static str,
    pub path: String,
    pub source: io::Error,
}

/// The store's own directory is missing, so a missing file in it does not prove that an object does not exist.
#[derive(Debug, thiserror::Error)]
#[error("the store's directory {} is not there ({source}); bring it back", root.display())]
struct StoreUnreachable {
    root: PathBuf,
    source: io::Error,
}

/// The store's directory was missing shortly before: the file that was not found exists now.
#[derive(Debug, thiserror::Error)]
#[error("the store's directory {} was unreachable for a moment ({source})", root.display())]
struct WasUnreachable {
    root: PathBuf,
    source: io::Error,
}

impl Inner {
    /// [`failed`] for an object that is read, listed or removed. It reports the object as missing only if the store
    /// itself is present.
    pub(super) fn failed(&self, action: &'static str, location: &ObjectPath) -> impl FnOnce(io::Error) -> Error {
        move |error| failed(action, location)(self.vouched(location, error))
    }

    /// [`failed`] for an object that is written. A write depends on no other object, so a missing file is a failure of
    /// the store, and the write may be retried.
    pub(super) fn refused(&self, action: &'static str, location: &ObjectPath) -> impl FnOnce(io::Error) -> Error {
        move |error| match is_absence(&error) {
            true if self.root.is_dir() => failed(action, location)(self.was_unreachable(error)),
            true => failed(action, location)(self.unreachable(error)),
            false => failed(action, location)(error),
        }
    }

    /// Returns `error` unchanged if it reports that nothing exists at `location` and this is true, or if it reports
    /// something else. The lookup starts at the store's directory, so it does not matter when that disappears or comes
    /// back.
    pub(super) fn vouched(&self, location: &ObjectPath, error: io::Error) -> io::Error {
        if !is_absence(&error) {
            return error;
        }
        if let Err(error) = self.root.metadata() {
            return self.unreachable(error);
        }
        let path = if location.as_ref().is_empty() { self.root.clone() } else { self.root.join(location.as_ref()) };
        match path.metadata() {
            Err(found) if is_absence(&found) => error,
            Err(other) => other,
            // A directory is not an object; this error has no code of the operating system. A file is not a directory
            // of objects.
            Ok(found) if found.is_dir() && error.raw_os_error().is_none() => error,
            Ok(found) if !found.is_dir() && error.kind() == io::ErrorKind::NotADirectory => error,
            Ok(_) => self.was_unreachable(error),
        }
    }

    /// Fails with an error that [`is_unreachable`] recognises if another directory is in the volume's place.
    pub(super) fn in_place(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.check()).map_err(|error| self.unreachable(error))
    }

    /// As [`Inner::in_place`], for the directory that contains `location`: a shard's directory, or the volume.
    pub(super) fn holds_in_place(&self, location: &ObjectPath) -> io::Result<()> {
        let Some(place) = &self.place else { return Ok(()) };
        let shard = location.parts().next().and_then(|name| VolumeDir::shard_named(name.as_ref()));
        shard.map_or_else(|| place.check(), |shard| place.check_shard(shard)).map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, source: io::Error) -> io::Error {
        io::Error::other(StoreUnreachable { root: self.root.clone().into(), source })
    }

    fn was_unreachable(&self, source: io::Error) -> io::Error {
        io::Error::other(WasUnreachable { root: self.root.clone().into(), source })
    }
}

/// Whether `error` reports that something does not exist. A path below a file does not name an object either.
pub(super) fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

pub(super) fn failed(action: &'static str, location: &ObjectPath) -> impl FnOnce(io::Error) -> Error {
    let path = location.to_string();
    move |source| {
        let kind = source.kind();
        let error = Box::new(StoreIoError { action, path: path.clone(), source });
        match kind {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::NotFound { path, source: error },
            io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: error },
            // A file that is too short stays too short. SlateDB retries `Generic` errors for seconds at each read, but
            // not this one.
            io::ErrorKind::UnexpectedEof => Error::NotSupported { source: error },
            io::ErrorKind::PermissionDenied => Error::PermissionDenied { path, source: error },
            _ => Error::Generic { store: STORE, source: error },
        }
    }
}

pub(super) fn precondition(location: &ObjectPath, reason: String) -> Error {
    Error::Precondition { path: location.to_string(), source: reason.into() }
}

pub(super) fn reserved(location: &ObjectPath) -> Error {
    Error::NotSupported { source: format!("{location}: names that begin with \".~\" belong to the store").into() }
}

pub(super) fn not_implemented(operation: &str) -> Error {
    Error::NotImplemented { operation: operation.to_owned(), implementer: STORE.to_owned() }
}

/// The [`io::Error`] with an operating system code that caused `error`, if any: ENOSPC, EIO, EROFS and others.
pub fn io_error_within<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    causes(error).find_map(|cause| cause.downcast_ref::<io::Error>().filter(|error| error.raw_os_error().is_some()))
}

/// Whether `error` reports a store whose directory is not in its place, or was not shortly before.
pub fn is_unreachable(error: &(dyn std::error::Error + 'static)) -> bool {
    causes(error).any(|cause| cause.is::<StoreUnreachable>() || cause.is::<WasUnreachable>())
}

/// An error and its causes.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| match error.downcast_ref::<io::Error>() {
        // An `io::Error` made from another error shows that one only through `get_ref`.
        Some(wrapper) => wrapper.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
        None => error.source(),
    })
}
