//! A volume through Varve's library, without the kernel. Each client joins the volume on its own, as a separate process
//! would: it has its own session, connections and caches.

use super::{BenchTarget, TargetClient};
use crate::{Error, Result};
use std::io;
use varve_client::{Failure, Library, RenameFlags, block_on};
use varve_env::store_url::StoreUrl;
use varve_env::volume_dir::VolumeDir;
use varve_types::{Errno, FileKind, Mode};

pub struct LibraryTarget {
    store: String,
    volume: VolumeDir,
}

impl LibraryTarget {
    /// `store` as on the command line: a `file://` URL or a path. A server must be running.
    pub fn open(store: &str) -> Result<LibraryTarget> {
        let url = StoreUrl::parse(store).map_err(|error| Error::Usage(format!("library:{store}: {error}")))?;
        Ok(LibraryTarget { store: store.to_owned(), volume: VolumeDir::new(url.directory()) })
    }
}

impl BenchTarget for LibraryTarget {
    fn label(&self) -> String {
        format!("library:{}", self.store)
    }

    fn connect(&self) -> Result<Box<dyn TargetClient>> {
        let library = Library::open_volume(self.volume.clone())
            .map_err(|failure| Error::Io { what: self.label(), source: to_io(failure) })?;
        Ok(Box::new(LibraryClient { library, path: String::from("/"), directory_len: 1 }))
    }
}

struct LibraryClient {
    library: Library,
    /// The entered directory, with a trailing slash. Each call appends a name to it.
    path: String,
    directory_len: usize,
}

const FILE_MODE: Mode = Mode(0o644);
const DIRECTORY_MODE: Mode = Mode(0o755);

/// Keeps the errno if there is nothing more to report, so that `ErrorKind` is right.
fn to_io(failure: Failure) -> io::Error {
    let errno = io::Error::from_raw_os_error(failure.errno.number());
    match &failure.message {
        None => errno,
        Some(message) => io::Error::new(errno.kind(), format!("{message} ({})", failure.errno)),
    }
}

impl LibraryClient {
    fn path(&mut self, name: &str) {
        self.path.truncate(self.directory_len);
        self.path.push_str(name);
    }

    fn remove(&self, path: &str) -> varve_client::Result<()> {
        let mut children = Vec::new();
        block_on(self.library.list(path.as_bytes(), &mut |entry| {
            children.push((String::from_utf8_lossy(entry.name).into_owned(), entry.kind));
            true
        }))?;
        for (name, kind) in children {
            let child = format!("{path}/{name}");
            match kind {
                FileKind::Directory => self.remove(&child)?,
                _ => block_on(self.library.unlink(child.as_bytes()))?,
            }
        }
        block_on(self.library.remove_directory(path.as_bytes()))
    }
}

impl TargetClient for LibraryClient {
    fn enter(&mut self, directory: &str) -> io::Result<()> {
        self.path.clear();
        self.path.push('/');
        self.path.push_str(directory);
        // One stat fills the caches of the path walk, as opening a directory does for the kernel's caches.
        block_on(self.library.stat(self.path.as_bytes())).map_err(to_io)?;
        if !directory.is_empty() {
            self.path.push('/');
        }
        self.directory_len = self.path.len();
        Ok(())
    }

    fn create(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.path(name);
        let path = self.path.as_bytes();
        if content.is_empty() {
            block_on(self.library.create(path, FILE_MODE)).map_err(to_io)
        } else {
            block_on(self.library.write_file(path, FILE_MODE, content)).map_err(to_io)
        }
    }

    fn stat(&mut self, name: &str) -> io::Result<u64> {
        self.path(name);
        let node = block_on(self.library.stat(self.path.as_bytes())).map_err(to_io)?;
        Ok(node.attributes.size)
    }

    fn read(&mut self, name: &str, _buffer: &mut [u8]) -> io::Result<u64> {
        self.path(name);
        Ok(block_on(self.library.read_file(self.path.as_bytes())).map_err(to_io)?.len() as u64)
    }

    fn read_first(&mut self, name: &str, buffer: &mut [u8]) -> io::Result<()> {
        self.path(name);
        let content = block_on(self.library.read_file(self.path.as_bytes())).map_err(to_io)?;
        match content.get(..buffer.len()) {
            Some(first) => buffer.copy_from_slice(first),
            None => return Err(io::Error::other(format!("it ends after {} bytes", content.len()))),
        }
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> io::Result<()> {
        self.path(name);
        block_on(self.library.unlink(self.path.as_bytes())).map_err(to_io)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.path(from);
        let from = self.path.clone();
        self.path(to);
        let flags = RenameFlags::Replace;
        block_on(self.library.rename(from.as_bytes(), self.path.as_bytes(), flags)).map_err(to_io)
    }

    fn drain(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn make_directory(&mut self, name: &str) -> io::Result<()> {
        self.path(name);
        block_on(self.library.make_directory(self.path.as_bytes(), DIRECTORY_MODE)).map_err(to_io)
    }

    fn remove_directory(&mut self, name: &str) -> io::Result<()> {
        self.path(name);
        block_on(self.library.remove_directory(self.path.as_bytes())).map_err(to_io)
    }

    fn remove_tree(&mut self, path: &str) -> io::Result<()> {
        match self.remove(&format!("/{path}")) {
            Err(failure) if failure.errno == Errno::ENOENT => Ok(()),
            result => result.map_err(to_io),
        }
    }
}
