//! Copies of large files.

use super::Location;
use super::file::{File, FileOptions};
use crate::printable::printable_path;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

/// Size of one copy_file_range call, and of one read where the kernel cannot copy.
const COPY_BYTES: usize = 1024 * 1024;

/// Creates the file `to` or replaces its content as a copy of `from`, with its holes, permission bits and mtime, and
/// fsyncs it. Its name is not durable yet. Bytes that are written to `from` meanwhile may or may not be in the copy.
///
/// # Errors
/// `InvalidInput` if both are the same file, under whatever names: it stays as it is.
pub fn copy_whole<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let source = File::open(from)?;
    let found = source.metadata()?;
    let options: FileOptions = File::options().write(true).create();
    let target = options.open(to)?;
    let replaced = target.metadata()?;
    if (replaced.dev(), replaced.ino()) == (found.dev(), found.ino()) {
        let what = format!("{} and {} are the same file", printable_path(from.shown()), printable_path(to.shown()));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if replaced.len() > 0 {
        target.set_len(0)?;
    }
    let mut at = 0;
    while let Some(data) = next_data(&source, at, found.len())? {
        at = data.end;
        copy(&source, &target, data)?;
    }
    target.set_len(found.len())?;
    target.set_permissions(found.permissions())?;
    target.set_modified(found.modified()?)?;
    target.sync_all()
}

/// The next range of data between `at` and `end`. A store without support for holes reports data only.
fn next_data(source: &File, at: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    let sought = |from| match source.seek(from) {
        Ok(place) => Ok(Some(place)),
        Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    };
    if at >= end {
        return Ok(None);
    }
    let begin = match sought(SeekFrom::Data(at)) {
        Ok(Some(begin)) if begin < end => begin,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Some(at..end)),
        Err(error) => return Err(error),
    };
    // `None`: the file was truncated meanwhile.
    let hole = sought(SeekFrom::Hole(begin))?.unwrap_or(end);
    Ok(Some(begin..hole.min(end)))
}

/// Copies a range, or as much of it as exists.
fn copy(source: &File, target: &File, range: Range<u64>) -> io::Result<()> {
    let mut at = range.start;
    let piece = |at| usize::try_from(range.end - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
    // Within one store the kernel may copy without reading. If it refuses, the bytes are read and written.
    while at < range.end {
        match target.copy_range(source, at, at, piece(at)) {
            Ok(0) | Err(_) => break,
            Ok(copied) => at += copied as u64,
        }
    }
    let mut buffer = Vec::new();
    while at < range.end {
        buffer.resize(piece(at), 0);
        match source.read_at(&mut buffer, at) {
            Ok(0) => break,
            Ok(read) => {
                target.write_all_at(&buffer[..read], at)?;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
