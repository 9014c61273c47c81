//! Failures as `object_store` names them, with the [`io::Error`] kept in the chain of sources, so that a full or a
//! failing disk stays recognisable however many layers up ([`io_error_within`]).

use object_store::Error;
use object_store::path::Path as ObjectPath;
use std::io;

pub(super) const STORE: &str = "posix";

/// An operation on the store's files that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}")]
pub struct StoreIoError {
    pub action: &'static str,
    pub path: String,
    pub source: io::Error,
}

pub(super) fn failed(action: &'static str, location: &ObjectPath) -> impl FnOnce(io::Error) -> Error {
    let path = location.to_string();
    move |source| {
        let kind = source.kind();
        let error = Box::new(StoreIoError { action, path: path.clone(), source });
        match kind {
            // A path below a file has no object either.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::NotFound { path, source: error },
            io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: error },
            // A file that is too short stays so: SlateDB tries again what is `Generic`, seconds for each read, but not this.
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

/// The [`io::Error`] with an operating system's code that caused `error`, if one did: ENOSPC, EIO, EROFS and others.
pub fn io_error_within<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        next = match error.downcast_ref::<io::Error>() {
            Some(error) if error.raw_os_error().is_some() => return Some(error),
            // An `io::Error` made from another error shows that one only through `get_ref`.
            Some(wrapper) => wrapper.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => error.source(),
        };
    }
    None
}
