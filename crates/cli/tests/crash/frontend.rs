//! The two frontends that writers use: the mount and the library.

use super::manifest::{FileOperation, MODE};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use varve_client::{
    Failure, FileSystem, Handle, Library, NodeInfo, OpenFlags, OpenMode, RenameFlags, XattrMode, block_on,
};
use varve_types::{Errno, FileKind, InodeId, Mode, Name, SetAttributes, SetTime, Timestamp};

pub const XATTR: &str = "user.trial";

/// The error of an operation that failed.
#[derive(Debug)]
pub struct Stopped {
    pub error: io::Error,
    /// Whether the file was fsynced before: then the written bytes are acknowledged.
    pub synced: bool,
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Stopped {
        Stopped { error, synced: false }
    }
}

/// A file or directory as it is on the volume.
#[derive(Clone, Debug)]
pub struct FoundFile {
    pub directory: bool,
    pub bytes: Vec<u8>,
    pub mode: u32,
    pub nlink: u64,
    pub mtime: i64,
    pub xattr: Option<Vec<u8>>,
}

pub trait Frontend: Send {
    fn perform(&self, operation: &FileOperation) -> Result<(), Stopped>;
    /// Names in a directory; `""` is the writer's own.
    fn list(&self, directory: &str) -> io::Result<Vec<String>>;
    fn look(&self, name: &str) -> io::Result<FoundFile>;
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A directory of a mount, or a plain one.
pub struct MountedFrontend {
    pub root: PathBuf,
}

impl MountedFrontend {
    pub fn new(root: PathBuf) -> MountedFrontend {
        std::fs::create_dir(&root).expect("a writer's directory");
        MountedFrontend { root }
    }

    fn at(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    fn write(&self, mut file: File, bytes: &[u8], sync: bool) -> Result<(), Stopped> {
        file.write_all(bytes)?;
        if sync {
            file.sync_all()?;
        }
        close(file).map_err(|error| Stopped { error, synced: sync })
    }
}

impl Frontend for MountedFrontend {
    fn perform(&self, operation: &FileOperation) -> Result<(), Stopped> {
        match operation {
            FileOperation::Write { name, piece, sync } => {
                let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(self.at(name))?;
                return self.write(file, &piece.bytes(), *sync);
            }
            FileOperation::Append { name, piece, sync } => {
                let file = OpenOptions::new().append(true).open(self.at(name))?;
                return self.write(file, &piece.bytes(), *sync);
            }
            FileOperation::Rename { from, to } | FileOperation::MoveDirectory { from, to } => {
                std::fs::rename(self.at(from), self.at(to))?;
            }
            FileOperation::Exchange { one, other } => {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, self.at(one), CWD, self.at(other), flags).map_err(io::Error::from)?;
            }
            FileOperation::Link { from, to } => std::fs::hard_link(self.at(from), self.at(to))?,
            FileOperation::Unlink { name } => std::fs::remove_file(self.at(name))?,
            FileOperation::Chmod { name, mode } => {
                std::fs::set_permissions(self.at(name), std::fs::Permissions::from_mode(*mode))?;
            }
            FileOperation::SetTime { name, seconds } => {
                let time = Timespec { tv_sec: *seconds, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, self.at(name), &times, AtFlags::empty()).map_err(io::Error::from)?;
            }
            FileOperation::SetXattr { name, value } => {
                rustix::fs::setxattr(self.at(name), XATTR, value, XattrFlags::empty()).map_err(io::Error::from)?;
            }
            FileOperation::RemoveXattr { name } => {
                rustix::fs::removexattr(self.at(name), XATTR).map_err(io::Error::from)?;
            }
            FileOperation::Truncate { name, length } => {
                let path = std::ffi::CString::new(self.at(name).into_os_string().into_encoded_bytes()).expect("no NUL");
                // SAFETY: the path is a C string that lives over the call. This calls truncate(2) itself: one call, one
                // result.
                if unsafe { libc::truncate(path.as_ptr(), *length as libc::off_t) } != 0 {
                    return Err(io::Error::last_os_error().into());
                }
            }
            FileOperation::MakeDirectory { name } => std::fs::create_dir(self.at(name))?,
            FileOperation::RemoveDirectory { name } => std::fs::remove_dir(self.at(name))?,
        }
        Ok(())
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.at(directory))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn look(&self, name: &str) -> io::Result<FoundFile> {
        let path = self.at(name);
        let metadata = path.symlink_metadata()?;
        let directory = metadata.is_dir();
        Ok(FoundFile {
            directory,
            bytes: if directory { Vec::new() } else { std::fs::read(&path)? },
            mode: metadata.mode() & 0o7777,
            nlink: metadata.nlink(),
            mtime: metadata.mtime(),
            xattr: if directory { None } else { xattr(&path)? },
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.at(name))
    }
}

fn xattr(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 4096];
    match rustix::fs::getxattr(path, XATTR, &mut value[..]) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// close(2) with its result, which `File`'s drop discards. The result acknowledges a small file.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor belongs to the file, is given up here, and is not used again.
    match unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A directory through the library.
pub struct LibraryFrontend {
    library: Library,
    root: String,
}

impl LibraryFrontend {
    pub fn new(library: Library, root: &str) -> LibraryFrontend {
        block_on(library.make_directory(root.as_bytes(), Mode(0o755))).expect("a writer's directory");
        LibraryFrontend { library, root: root.to_owned() }
    }

    fn at(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.root).into_bytes()
    }

    fn file_system(&self) -> &FileSystem {
        self.library.file_system()
    }

    /// Looks up a name, counted as one lookup.
    fn look_up(&self, name: &str) -> Result<NodeInfo, Failure> {
        let path = format!("{}/{name}", self.root);
        let (parent, last) = path.rsplit_once('/').expect("below the writer's directory");
        let parent = block_on(self.library.stat(parent.as_bytes()))?.inode;
        block_on(self.file_system().lookup(self.library.caller(), parent, &Name::new(last.as_bytes()).expect("a name")))
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&FileSystem, InodeId) -> Result<T, Failure>) -> io::Result<T> {
        let node = self.look_up(name).map_err(io_error)?;
        let done = work(self.file_system(), node.inode);
        self.file_system().forget(node.inode, 1);
        done.map_err(io_error)
    }

    fn set(&self, name: &str, set: SetAttributes) -> io::Result<()> {
        self.with(name, |fs, inode| block_on(fs.set_attributes(self.library.caller(), inode, set, None)).map(drop))
    }

    fn write(&self, name: &str, flags: OpenFlags, bytes: &[u8], sync: bool) -> Result<(), Stopped> {
        match self.look_up(name) {
            Err(failure) if failure.errno == Errno::ENOENT => {
                block_on(self.library.create(&self.at(name), Mode(MODE as u16))).map_err(io_error)?;
            }
            Err(failure) => return Err(io_error(failure).into()),
            Ok(node) => self.file_system().forget(node.inode, 1),
        }
        let mut synced = false;
        let written = self.with(name, |fs, inode| {
            let handle = block_on(fs.open(self.library.caller(), inode, flags))?.handle;
            // The library performs the I/O itself.
            fs.decline_passthrough(handle);
            let written = write_all(fs, handle, inode, flags.append, bytes)
                .and_then(|()| if sync { block_on(fs.fsync(handle, false)).map(|()| synced = true) } else { Ok(()) })
                .and_then(|()| block_on(fs.flush(handle)));
            block_on(fs.release(handle));
            written
        });
        written.map_err(|error| Stopped { error, synced })
    }
}

fn write_all(fs: &FileSystem, handle: Handle, inode: InodeId, append: bool, bytes: &[u8]) -> Result<(), Failure> {
    let caller = varve_types::Credentials::root();
    let mut at = if append { block_on(fs.attributes(&caller, inode))?.attributes.size } else { 0 };
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = block_on(fs.write(handle, at, rest))?;
        at += count as u64;
        rest = &rest[count..];
    }
    Ok(())
}

impl Frontend for LibraryFrontend {
    fn perform(&self, operation: &FileOperation) -> Result<(), Stopped> {
        let library = &self.library;
        match operation {
            FileOperation::Write { name, piece, sync } => {
                let flags = OpenFlags { mode: OpenMode::Write, truncate: true, ..OpenFlags::READ };
                return self.write(name, flags, &piece.bytes(), *sync);
            }
            FileOperation::Append { name, piece, sync } => {
                let flags = OpenFlags { mode: OpenMode::Write, append: true, ..OpenFlags::READ };
                return self.write(name, flags, &piece.bytes(), *sync);
            }
            FileOperation::Rename { from, to } | FileOperation::MoveDirectory { from, to } => {
                block_on(library.rename(&self.at(from), &self.at(to), RenameFlags::Replace)).map_err(io_error)?;
            }
            FileOperation::Exchange { one, other } => {
                block_on(library.rename(&self.at(one), &self.at(other), RenameFlags::Exchange)).map_err(io_error)?;
            }
            FileOperation::Link { from, to } => {
                block_on(library.link(&self.at(from), &self.at(to))).map_err(io_error)?
            }
            FileOperation::Unlink { name } => block_on(library.unlink(&self.at(name))).map_err(io_error)?,
            FileOperation::Chmod { name, mode } => {
                self.set(name, SetAttributes { mode: Some(Mode(*mode as u16)), ..SetAttributes::default() })?;
            }
            FileOperation::SetTime { name, seconds } => {
                let time = Some(SetTime::To(Timestamp { seconds: *seconds, nanoseconds: 0 }));
                self.set(name, SetAttributes { atime: time, mtime: time, ..SetAttributes::default() })?;
            }
            FileOperation::SetXattr { name, value } => self.with(name, |fs, inode| {
                block_on(fs.set_xattr(library.caller(), inode, XATTR.as_bytes(), value, XattrMode::CreateOrReplace))
            })?,
            FileOperation::RemoveXattr { name } => {
                self.with(name, |fs, inode| block_on(fs.remove_xattr(library.caller(), inode, XATTR.as_bytes())))?;
            }
            FileOperation::Truncate { name, length } => {
                self.set(name, SetAttributes { size: Some(*length as u64), ..SetAttributes::default() })?;
            }
            FileOperation::MakeDirectory { name } => {
                block_on(library.make_directory(&self.at(name), Mode(0o755))).map_err(io_error)?;
            }
            FileOperation::RemoveDirectory { name } => {
                block_on(library.remove_directory(&self.at(name))).map_err(io_error)?
            }
        }
        Ok(())
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        block_on(self.library.list(&self.at(directory), &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        }))
        .map_err(io_error)?;
        Ok(names)
    }

    fn look(&self, name: &str) -> io::Result<FoundFile> {
        let attributes = block_on(self.library.stat(&self.at(name))).map_err(io_error)?.attributes;
        let directory = attributes.kind == FileKind::Directory;
        let mut found = FoundFile {
            directory,
            bytes: Vec::new(),
            mode: attributes.mode.bits().into(),
            nlink: attributes.nlink.into(),
            mtime: attributes.mtime.seconds,
            xattr: None,
        };
        if !directory {
            found.bytes = block_on(self.library.read_file(&self.at(name))).map_err(io_error)?;
            found.xattr = self.with(name, |fs, inode| {
                match block_on(fs.get_xattr(self.library.caller(), inode, XATTR.as_bytes())) {
                    Ok(value) => Ok(Some(value)),
                    Err(failure) if failure.errno == Errno::ENODATA => Ok(None),
                    Err(failure) => Err(failure),
                }
            })?;
        }
        Ok(found)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        block_on(self.library.unlink(&self.at(name))).map_err(io_error)
    }
}

/// Keeps the text, which the errno alone does not have.
fn io_error(failure: Failure) -> io::Error {
    let kind = io::Error::from_raw_os_error(failure.errno.number()).kind();
    io::Error::new(kind, failure)
}
