//! A smaller copy of a finished file. The commits of a run leave space behind that readers may still need. Where that is
//! much of the file, a copy without it takes the file's name. Readers that have the file open keep the old one.
//!
//! The copy costs little: it has at most [`LOSS_PART`] times the bytes that the commits left behind. It has a mark, because
//! the run's journal does not describe it.

use crate::commit::image;
use crate::run_files::{self, remove_if_there, sync_directory};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::dataset_spec::Allocate;
use varve_detector_hdf5::ChunkRecord;
use varve_detector_hdf5::superblock::{self, Superblock};

/// A file is copied if a larger part than one in so many bytes is unused.
pub const LOSS_PART: u64 = 12;
/// Less unused space is never worth a copy.
const LOSS_BYTES_MIN: u64 = 64 << 10;
/// Behind the superblock of a copy; no object of the file refers to it.
const MARK: [u8; 8] = *b"VARVECPY";
/// Limit for the bytes to copy: the end of a run waits for them. Unused space is reused while a run lasts, and exceeds
/// [`LOSS_PART`] only in files that are small.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes that a copy leaves free in the file system, for other runs.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// Limit for the chunks, whose addresses are sorted in memory.
const CHUNKS_MAX: u64 = 1 << 24;
/// Bytes that are copied at once.
const STEP_BYTES: usize = 4 << 20;

/// A complete copy, which does not have the file's name yet.
#[derive(Debug)]
pub struct Copied {
    path: PathBuf,
    /// Length of the copy.
    pub bytes: u64,
}

/// [`copy`], for a caller that has a valid file in any case.
pub fn copy_if_possible(path: &Path, file: &File, catalog: &mut Catalog, length: (u64, u64)) -> Option<Copied> {
    copy(path, file, catalog, length).unwrap_or_else(|error| {
        tracing::info!(path = %path.display(), "cannot write a smaller copy of the file, which stays as it is: {error}");
        None
    })
}

/// [`Copied::take_name`], for a caller that has a valid file in any case. Returns the length of the copy.
pub fn take_name_if_possible(copied: Option<Copied>, path: &Path, file: &File) -> Option<u64> {
    copied?.take_name(path, file).unwrap_or_else(|error| {
        tracing::info!(path = %path.display(), "cannot rename a smaller copy of the file, which stays as it is: {error}");
        None
    })
}

/// Makes a copy of the finished file at `path` if it is worth it. `end` is the file's length, and `holes` the bytes of it
/// that take no space. The caller has the file's journal. The catalog describes the copy afterwards.
///
/// # Errors
/// If the copy cannot be written; the file is as it was.
pub fn copy(path: &Path, file: &File, catalog: &mut Catalog, (end, holes): (u64, u64)) -> io::Result<Option<Copied>> {
    let made = run_files::compacted(path);
    remove_if_there(&made)?;
    if !has_name(file, path)? || !is_worth_it(file, catalog, end - holes)? {
        return Ok(None);
    }
    let copied = write(&made, file, catalog);
    if copied.is_err() {
        remove_if_there(&made)?;
    }
    Ok(Some(Copied { bytes: copied?, path: made }))
}

/// Whether a file is a copy, for which no journal counts.
pub fn is_copy(file: &File) -> io::Result<bool> {
    let mut mark = [0; MARK.len()];
    match file.read_exact_at(&mut mark, superblock::LENGTH as u64) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| mark == MARK),
    }
}

fn is_worth_it(file: &File, catalog: &mut Catalog, end: u64) -> io::Result<bool> {
    let chunks = catalog.chunks.count();
    // Elsewhere holes are part of the file.
    if catalog.description.allocate != Allocate::Packed || chunks > CHUNKS_MAX {
        return Ok(false);
    }
    let used = first(catalog) + catalog.stored_bytes() + image(catalog, 0)?.0.len() as u64;
    // A hard link, or an attribute that somebody set, belongs to the old file.
    Ok(used <= BYTES_MAX
        && end.saturating_sub(used) > (end / LOSS_PART).max(LOSS_BYTES_MIN)
        && file.metadata()?.nlink() == 1
        && !has_attributes(file)
        && has_space(used, rustix::fs::fstatvfs(file).map(|store| store.f_bavail.saturating_mul(store.f_frsize))?))
}

/// Whether a copy of `used` bytes fits `free` ones twice, because other runs write meanwhile.
fn has_space(used: u64, free: u64) -> bool {
    free > 2 * used + FREE_BYTES_MIN
}

/// Whether the name itself, and not a symbolic link of that name, refers to this file. A rename would replace the link.
fn has_name(file: &File, path: &Path) -> io::Result<bool> {
    let (own, there) = (file.metadata()?, path.symlink_metadata()?);
    Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
}

/// Whether the file has extended attributes besides a label of the system.
fn has_attributes(file: &File) -> bool {
    let mut names = [0; 4096];
    match rustix::fs::flistxattr(file, &mut names) {
        Ok(bytes) => {
            let mut names = names[..bytes].split(|byte| *byte == 0).filter(|name| !name.is_empty());
            names.any(|name| !name.starts_with(b"security."))
        }
        Err(rustix::io::Errno::OPNOTSUPP) => false,
        Err(_) => true,
    }
}

/// Writes the copy and returns its length.
fn write(made: &Path, file: &File, catalog: &mut Catalog) -> io::Result<u64> {
    let metadata = file.metadata()?;
    let copy = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(made)?;
    // For example a default ACL of the directory, which the file does not have.
    if has_attributes(&copy) {
        return Err(io::Error::other("its directory gives new files extended attributes that it does not have"));
    }
    let own = copy.metadata()?;
    if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
        std::os::unix::fs::fchown(&copy, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    copy.set_permissions(std::fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    let mut chunks: Vec<ChunkRecord> = catalog.chunks.present().copied().collect();
    chunks.sort_unstable_by_key(|chunk| chunk.address);
    copy.write_all_at(&MARK, superblock::LENGTH as u64)?;
    copy_arrays(file, &copy, catalog)?;
    let first = first(catalog);
    let mut starts = Vec::with_capacity(chunks.len());
    let mut at = first;
    for chunk in &chunks {
        starts.push(at);
        at += chunk.size;
    }
    copy_chunks(file, &copy, &chunks, first)?;
    catalog.relocate(&mut |record| {
        let found = chunks.binary_search_by_key(&record.address, |chunk| chunk.address);
        starts[found.expect("a chunk of the catalog")]
    });
    let base = at.next_multiple_of(8);
    let data = catalog.store(base);
    copy.write_all_at(&data.block, base)?;
    let base = (base + data.block.len() as u64).next_multiple_of(8);
    let (tree, root) = image(catalog, base)?;
    copy.write_all_at(&tree, base)?;
    let end = base + tree.len() as u64;
    copy.write_all_at(&Superblock { root, end }.encode(), 0)?;
    copy.sync_all()?;
    Ok(end)
}

/// First address of the copy's chunks, behind its mark and the run's arrays.
fn first(catalog: &Catalog) -> u64 {
    let behind_mark = (superblock::LENGTH + MARK.len()) as u64;
    match catalog.description.arrays.is_empty() {
        true => behind_mark,
        false => behind_mark.max(catalog.description.first_address()),
    }
}

/// Copies the arrays of the whole run, whose addresses follow from its spec. Blocks of zeros stay holes.
fn copy_arrays(file: &File, copy: &File, catalog: &Catalog) -> io::Result<()> {
    const BLOCK: u64 = 64 << 10;
    let description = &catalog.description;
    let Some(mut at) = description.array_addresses().first().copied() else { return Ok(()) };
    let end = description.first_address();
    let mut block = Vec::new();
    while at < end {
        block.resize(BLOCK.min(end - at) as usize, 0);
        file.read_exact_at(&mut block, at)?;
        if block.iter().any(|byte| *byte != 0) {
            copy.write_all_at(&block, at)?;
        }
        at += block.len() as u64;
    }
    Ok(())
}

/// Copies chunks one after the other to `at`. Adjacent ones are copied together.
fn copy_chunks(file: &File, copy: &File, chunks: &[ChunkRecord], mut at: u64) -> io::Result<()> {
    let mut buffer = Vec::new();
    for together in chunks.chunk_by(|one, next| one.address + one.size == next.address) {
        let (Some(first), Some(last)) = (together.first(), together.last()) else { continue };
        let (mut from, end) = (first.address, last.address + last.size);
        while from < end {
            buffer.resize(STEP_BYTES.min((end - from) as usize), 0);
            file.read_exact_at(&mut buffer, from)?;
            copy.write_all_at(&buffer, at)?;
            from += buffer.len() as u64;
            at += buffer.len() as u64;
        }
    }
    Ok(())
}

impl Copied {
    /// Gives the copy the name of `file`, whose journal is removed, and returns its length. If the name belongs to
    /// another file meanwhile, the copy is removed.
    ///
    /// # Errors
    /// If the copy cannot be renamed; the file is as it was.
    pub fn take_name(self, path: &Path, file: &File) -> io::Result<Option<u64>> {
        let named = has_name(file, path)
            .and_then(|is_ours| if is_ours { std::fs::rename(&self.path, path).map(|()| true) } else { Ok(false) });
        if !matches!(named, Ok(true)) {
            remove_if_there(&self.path)?;
            return named.map(|_| None);
        }
        sync_directory(path)?;
        Ok(Some(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_leaves_space_for_other_runs() {
        assert!(has_space(100, FREE_BYTES_MIN + 201));
        assert!(!has_space(100, FREE_BYTES_MIN + 200));
        assert!(!has_space(BYTES_MAX, 2 * BYTES_MAX));
    }
}
