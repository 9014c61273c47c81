//! Compares rows with backing files.

use super::census::{BackedFile, Census};
use super::fix::{Cut, Fix};
use super::{CheckProgress, FindingKind, FsckError, FsckReport};
use std::collections::{BTreeMap, HashSet};
use std::io;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_schema::Key;
use varve_types::{InodeId, ShardId};

const DIRECTORIES: u16 = 256;

pub fn compare(
    volume: &VolumeDir,
    census: &mut Census,
    report: &mut FsckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<(), FsckError> {
    if is_gone(volume, census)? {
        report.data_gone = true;
        let files = census.backing.len();
        let what = format_args!("it is missing or empty, but {files} large files have their content in it");
        report.add(FindingKind::MissingData, volume.data().display(), what);
        census.backing.iter().for_each(|backing| report.fix(Fix::Bereaved { inode: backing.inode }));
        return Ok(());
    }
    compare_garbage(volume, census, report)?;
    // Sorted by directory, so that each directory is listed once and its files are checked together.
    census.backing.sort_unstable_by_key(|backing| (backing.inode.0 & 0xff, backing.inode));
    let mut rest = census.backing.as_slice();
    for number in 0..DIRECTORIES {
        progress(CheckProgress::Data { directories: number });
        let of_directory = rest.partition_point(|backing| backing.inode.0 & 0xff <= u64::from(number));
        let (expected, after) = rest.split_at(of_directory);
        rest = after;
        let directory = volume.backing_directory(InodeId(u64::from(number)));
        let failed = |source| FsckError::Io { doing: format!("cannot read {}", directory.display()), source };
        compare_directory(volume, &directory, expected, &census.garbage, report).map_err(failed)?;
    }
    progress(CheckProgress::Data { directories: DIRECTORIES });
    Ok(())
}

/// Whether all content is missing at once: this means that the directory is missing, not that files are damaged.
fn is_gone(volume: &VolumeDir, census: &Census) -> Result<bool, FsckError> {
    if census.backing.is_empty() {
        return Ok(false);
    }
    match volume.data().read_dir() {
        Ok(entries) => Ok(entries.is_empty()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(FsckError::Io { doing: format!("cannot read {}", volume.data().display()), source }),
    }
}

/// Backing files that a server is to remove. A surplus row must not remove content.
fn compare_garbage(volume: &VolumeDir, census: &Census, report: &mut FsckReport) -> Result<(), FsckError> {
    for (inode, shard) in &census.garbage {
        let place = format_args!("inode {inode}");
        if census.ids.binary_search(inode).is_ok() {
            let what = format_args!("shard {shard} lists the file as removed, but it exists");
            report.add(FindingKind::RemovedContentInUse, place, what);
            report.fix(Fix::DropRow { shard: *shard, key: Key::Garbage(*inode) });
            continue;
        }
        let path = volume.backing_file(*inode);
        match path.symlink_metadata() {
            Ok(found) => {
                report.add(FindingKind::RemovedContent, place, format_args!("{} bytes to remove", found.len()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                report.add(FindingKind::RemovedContent, place, "the backing file is gone; its row is not removed yet");
            }
            Err(source) => {
                return Err(FsckError::Io { doing: format!("cannot look at {}", path.display()), source });
            }
        }
        report.fix(Fix::DropGarbage { shard: *shard, inode: *inode });
    }
    Ok(())
}

fn compare_directory(
    volume: &VolumeDir,
    directory: &StorePath,
    expected: &[BackedFile],
    garbage: &BTreeMap<InodeId, ShardId>,
    report: &mut FsckReport,
) -> io::Result<()> {
    for backing in expected {
        compare_file(&volume.backing_file(backing.inode), backing, report)?;
    }
    let inodes: HashSet<InodeId> = expected.iter().map(|backing| backing.inode).collect();
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry.into_path();
        match inode_of(volume, &path) {
            Some(inode) if inodes.contains(&inode) || garbage.contains_key(&inode) => {}
            Some(inode) if path.symlink_metadata().is_ok_and(|found| found.is_file()) => {
                let bytes = path.symlink_metadata().map_or(0, |found| found.len());
                let what = format_args!("{bytes} bytes, but no row of inode {inode} refers to this file");
                report.add(FindingKind::StrayBackingFile, path.display(), what);
                report.fix(Fix::AttachData { inode });
            }
            _ => report.add(FindingKind::StrangeFile, path.display(), "not a backing file"),
        }
    }
    Ok(())
}

fn compare_file(path: &StorePath, backing: &BackedFile, report: &mut FsckReport) -> io::Result<()> {
    let place = format_args!("inode {}", backing.inode);
    let size = match path.symlink_metadata() {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => {
            let path = path.display();
            report.add(FindingKind::MissingBackingFile, place, format_args!("{path} is not a regular file"));
            report.fix(Fix::Bereaved { inode: backing.inode });
            return Ok(());
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            report.add(FindingKind::MissingBackingFile, place, format_args!("{} does not exist", path.display()));
            report.fix(Fix::Bereaved { inode: backing.inode });
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    report.counts.bytes_backing += size;
    if backing.size != Some(size) || backing.pending {
        let cut = (size < backing.at_least).then_some(Cut { expected: backing.at_least, found: size });
        report.fix(Fix::RecordSize { inode: backing.inode, cut });
    }
    match backing.size {
        None if size < backing.at_least => {
            let at_least = backing.at_least;
            report.add(
                FindingKind::WrongSize,
                place,
                format_args!("the row says at least {at_least} bytes, the store {size}"),
            );
        }
        None => report.add(FindingKind::StaleSize, place, format_args!("{size} bytes at present")),
        Some(meant) if backing.pending => {
            report.add(FindingKind::PendingTruncate, place, format_args!("from {size} to {meant} bytes"));
        }
        Some(meant) if meant != size => {
            report.add(FindingKind::WrongSize, place, format_args!("the row says {meant} bytes, the store {size}"));
        }
        Some(_) => {}
    }
    Ok(())
}

/// The inode whose backing file has this path.
fn inode_of(volume: &VolumeDir, path: &StorePath) -> Option<InodeId> {
    let name = path.file_name()?.to_str()?;
    let inode = InodeId(u64::from_str_radix(name, 16).ok()?);
    (volume.backing_file(inode) == *path).then_some(inode)
}
