//! A directory of the kernel: plain, or of a mount. It uses raw system calls on names relative to an open directory, so
//! that the figures include neither a path walk nor a library.

use super::{BenchTarget, TargetClient, joined, missing};
use crate::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};

pub struct DirectoryTarget {
    kind: &'static str,
    root: PathBuf,
}

impl DirectoryTarget {
    /// `kind` is the word before the colon of its label.
    pub fn open(kind: &'static str, root: &Path) -> Result<DirectoryTarget> {
        let metadata = std::fs::metadata(root).map_err(Error::io(format!("{kind}:{}", root.display())))?;
        if !metadata.is_dir() {
            return Err(Error::Usage(format!("{kind}:{} is no directory", root.display())));
        }
        Ok(DirectoryTarget { kind, root: root.to_owned() })
    }
}

impl BenchTarget for DirectoryTarget {
    fn label(&self) -> String {
        format!("{}:{}", self.kind, self.root.display())
    }

    fn connect(&self) -> Result<Box<dyn TargetClient>> {
        let entered = open_directory(&self.root).map_err(Error::io(self.label()))?;
        Ok(Box::new(DirectoryClient { root: self.root.clone(), entered }))
    }
}

struct DirectoryClient {
    root: PathBuf,
    entered: OwnedFd,
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Unlike a drop, returns the error of close(2): a file system that writes on close reports its errors there.
fn close(file: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is owned and given up here, so it is closed exactly once.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn write_all(file: &OwnedFd, mut content: &[u8]) -> io::Result<()> {
    while !content.is_empty() {
        match rustix::io::write(file.as_fd(), content) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => content = &content[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn read_to_end(file: &OwnedFd, buffer: &mut [u8]) -> io::Result<u64> {
    let mut total = 0;
    loop {
        match rustix::io::read(file.as_fd(), &mut *buffer) {
            Ok(0) => return Ok(total),
            Ok(read) => total += read as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl TargetClient for DirectoryClient {
    fn enter(&mut self, directory: &str) -> io::Result<()> {
        self.entered = open_directory(&joined(&self.root, directory))?;
        Ok(())
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.entered, name, flags, Mode::from_raw_mode(0o644))?;
        write_all(&file, content)?;
        close(file)
    }

    fn stat(&mut self, name: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.entered, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_size as u64)
    }

    fn read(&mut self, name: &str, buffer: &mut [u8]) -> io::Result<u64> {
        let file = rustix::fs::openat(&self.entered, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let total = read_to_end(&file, buffer)?;
        close(file)?;
        Ok(total)
    }

    fn read_first(&mut self, name: &str, buffer: &mut [u8]) -> io::Result<()> {
        let file = rustix::fs::openat(&self.entered, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::read(file.as_fd(), &mut buffer[done..]) {
                Ok(0) => return Err(io::Error::other(format!("it ends after {done} bytes"))),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        close(file)
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.entered, name, AtFlags::empty())?)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.entered, from, &self.entered, to)?)
    }

    fn drain(&mut self) -> io::Result<bool> {
        rustix::fs::syncfs(&self.entered)?;
        Ok(true)
    }

    fn make_directory(&mut self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.entered, name, Mode::from_raw_mode(0o755))?)
    }

    fn remove_directory(&mut self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.entered, name, AtFlags::REMOVEDIR)?)
    }

    fn remove_tree(&mut self, path: &str) -> io::Result<()> {
        match std::fs::remove_dir_all(joined(&self.root, path)) {
            Err(error) if !missing(&error) => Err(error),
            _ => Ok(()),
        }
    }
}
