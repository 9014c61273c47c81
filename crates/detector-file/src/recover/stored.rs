//! Reading of stored bytes that may be lost.

use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Reads a range of the file; `None` if the store reports that it has lost the bytes. One bad block must not prevent
/// the recovery of everything else.
///
/// # Errors
/// If the store does not answer, for example while it is unreachable: the state of the bytes is then unknown.
pub(super) fn read_stored(file: &File, range: Range<u64>) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    match file.read_exact_at(&mut bytes, range.start) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if is_loss(&error) => {
            tracing::warn!("the store lost the file's data at {range:?}: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Errors that mean lost data: of the medium, of a checksum of a file system or device, and of a file truncated just
/// now.
pub(super) fn is_loss(error: &io::Error) -> bool {
    let lost = [Errno::IO, Errno::NODATA, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN];
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::UnexpectedEof || errno.is_some_and(|errno| lost.contains(&errno))
}

#[cfg(test)]
mod tests;
