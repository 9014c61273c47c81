//! Listing a directory of a store.

use super::StorePath;
use crate::disk::Location;
use rustix::fs::{Dir, FileType};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct StoreEntry {
    path: StorePath,
    kind: FileType,
}

impl StoreEntry {
    pub fn path(&self) -> &StorePath {
        &self.path
    }

    pub fn into_path(self) -> StorePath {
        self.path
    }

    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub fn is_symlink(&self) -> bool {
        self.kind == FileType::Symlink
    }
}

pub(super) fn read(directory: &StorePath) -> io::Result<Vec<StoreEntry>> {
    let opened = directory.open_directory()?;
    let mut entries = Vec::new();
    for entry in Dir::read_from(&opened)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        let path = directory.join(name);
        let kind = match entry.file_type() {
            // The file system does not return the type.
            FileType::Unknown => match path.symlink_metadata() {
                Ok(found) => FileType::from_raw_mode(std::os::unix::fs::MetadataExt::mode(&found)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            },
            kind => kind,
        };
        entries.push(StoreEntry { path, kind });
    }
    Ok(entries)
}
