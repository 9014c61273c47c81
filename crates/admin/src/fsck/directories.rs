//! Checks directories: the partitions of each, and that each has exactly one name, in its parent, on a path from the
//! root.

use super::census::{Census, MissingPartition};
use super::fix::Fix;
use super::{FindingKind, FsckReport};
use std::collections::{HashMap, HashSet};
use varve_schema::PartitionState;
use varve_types::{InodeId, PartitionIndex};

/// Marks the partitions that make up each directory, from partition 0 on. A partition of depth `d` that was split off
/// at depth `b` has split at depths `b` to `d - 1`, and each split created a partition. So the marked partitions cover
/// the hash space exactly once, unless one is missing.
pub fn find_partitions(census: &mut Census, report: &mut FsckReport) {
    if !census.directories.contains_key(&InodeId::ROOT) {
        report.add(FindingKind::NoRoot, "shard 0", "the root directory has no row");
        report.fix(Fix::MakeRoot);
    }
    let directories: Vec<InodeId> = census.directories.keys().copied().collect();
    for directory in directories {
        let mut open = vec![(PartitionIndex::FIRST, 0)];
        while let Some((index, born_at)) = open.pop() {
            let depth = match census.partitions.get_mut(&(directory, index)) {
                Some(partition) => {
                    partition.live = true;
                    partition.row.depth
                }
                None => {
                    let depth = depth_of_missing(census, directory, index, born_at);
                    census.missing.push(MissingPartition { directory, index, depth });
                    depth
                }
            };
            open.extend((born_at..depth).map(|depth| (index.upper_half(depth), depth + 1)));
        }
    }
    find_without_row(census);
    note_others(census, report);
}

/// A directory that an rmdir has only partly removed lacks some partitions, and nothing is lost with them.
fn note_missing(census: &Census, report: &mut FsckReport) {
    let stray: HashSet<InodeId> = census.stray.iter().map(|stray| stray.directory).collect();
    for MissingPartition { directory, index, depth } in &census.missing {
        let named =
            *directory == InodeId::ROOT || census.directories.get(directory).is_some_and(|found| found.names > 0);
        if !named && census.entries_of(*directory) == 0 && !stray.contains(directory) {
            continue;
        }
        let place = format_args!("directory {directory} partition {}", index.0);
        let shard = census.shard_of(*directory, *index);
        report.add(FindingKind::MissingPartition, place, format_args!("shard {shard} does not have it"));
        report.fix(Fix::MakePartition { directory: *directory, index: *index, depth: *depth });
    }
}

/// The depth that follows from the partitions that were split off from it.
fn depth_of_missing(census: &Census, directory: InodeId, index: PartitionIndex, born_at: u8) -> u8 {
    let cut = |depth: &u8| census.partitions.contains_key(&(directory, index.upper_half(*depth)));
    (born_at..census.shards.depth_max()).filter(cut).max().map_or(born_at, |depth| depth + 1)
}

/// Partitions whose directory's row is lost, or which an rmdir has not removed yet. Their live entries count, so that a
/// lost row does not make all names below it stray.
fn find_without_row(census: &mut Census) {
    let rowless: Vec<(InodeId, PartitionIndex)> = census
        .partitions
        .keys()
        .filter(|(directory, _)| !census.directories.contains_key(directory))
        .copied()
        .collect();
    let mut found = HashSet::new();
    for (directory, index) in rowless {
        let cut_here = |source: PartitionIndex| {
            let source = census.partitions.get(&(directory, source));
            source.is_some_and(|source| source.row.depth > index.depth_of_cut())
        };
        let imported = index != PartitionIndex::FIRST && cut_here(index.cut_from());
        if let Some(partition) = census.partitions.get_mut(&(directory, index))
            && (partition.row.state != PartitionState::Incoming || imported)
        {
            partition.live = true;
            found.insert(directory);
        }
    }
    for directory in found {
        census.directory(directory);
    }
}

fn note_others(census: &Census, report: &mut FsckReport) {
    for ((directory, index), partition) in &census.partitions {
        let (directory, index) = (*directory, *index);
        let place = format_args!("directory {directory} partition {}", index.0);
        if partition.live {
            if partition.row.state == PartitionState::Incoming {
                // Its source has committed; the next server learns this when it asks the source.
                report.add(FindingKind::ImportedPartition, place, "its split is committed");
                report.fix(Fix::SetLive { directory, index });
            }
            continue;
        }
        if partition.row.state == PartitionState::Incoming {
            report.add(FindingKind::AbortedSplit, place, format_args!("{} entries", partition.row.entries));
            report.fix(Fix::DropPartition { directory, index });
        } else {
            let what = format_args!("it overlaps others, and its row counts {} entries", partition.row.entries);
            report.add(FindingKind::StrayPartition, place, what);
            report.fix(Fix::DissolvePartition { directory, index });
        }
    }
}

/// Compares the rows of directories with each other and with their names.
pub fn compare(census: &mut Census, report: &mut FsckReport) {
    note_missing(census, report);
    compare_partitions(census, report);
    for (inode, directory) in &census.directories {
        let (inode, place) = (*inode, format_args!("directory {inode}"));
        if inode == InodeId::ROOT {
            if directory.names > 0 {
                report.add(FindingKind::SeveralNames, place, "an entry names the root directory");
                report.fix(Fix::OneName { directory: inode, keep: inode });
            }
            continue;
        }
        match (&directory.row, directory.names) {
            (row, 0) => match census.entries_of(inode) {
                0 => {
                    let what = format_args!("no entry names it, and it is empty{}", parent_in_words(row.as_ref()));
                    report.add(FindingKind::DirectoryWithoutName, place, what);
                    report.fix(Fix::DropDirectory { directory: inode });
                }
                entries => {
                    let what = format_args!("it has {entries} entries{}", parent_in_words(row.as_ref()));
                    report.add(FindingKind::LostDirectory, place, what);
                    report.fix(Fix::AttachDirectory { directory: inode });
                }
            },
            (None, _) => {
                let parent = directory.named_in.unwrap_or(InodeId::ROOT);
                report.add(FindingKind::DirectoryWithoutRow, place, format_args!("named in directory {parent}"));
                report.fix(Fix::MakeDirectoryRow { directory: inode, parent });
            }
            (Some(row), names) if names > 1 => {
                report.add(FindingKind::SeveralNames, place, format_args!("{names} entries name it"));
                let keep = directory.named_in.unwrap_or(row.parent);
                report.fix(Fix::OneName { directory: inode, keep });
            }
            (Some(row), _) => {
                let named_in = directory.named_in.unwrap_or(row.parent);
                if row.parent != named_in {
                    let what = format_args!("its parent is {}, and its name is in {named_in}", row.parent);
                    report.add(FindingKind::WrongParent, place, what);
                    report.fix(Fix::SetParent { directory: inode, parent: named_in });
                }
            }
        }
    }
    find_unreachable(census, report);
}

fn parent_in_words(row: Option<&varve_schema::DirectoryRow>) -> String {
    row.map_or_else(|| "; it has no row".into(), |row| format!("; its parent was {}", row.parent))
}

fn compare_partitions(census: &Census, report: &mut FsckReport) {
    let mut lacking = HashSet::new();
    for ((inode, index), partition) in census.partitions.iter().filter(|(_, partition)| partition.live) {
        let place = format_args!("directory {inode} partition {}", index.0);
        let row = &partition.row;
        // Entries of an incoming partition count once it is live. It is, because its source has committed, but no
        // server has asked the source yet.
        if (row.entries, row.subdirectories) != (partition.entries, partition.subdirectories) {
            let what = format_args!(
                "its row counts {} entries, {} of them directories, but it has {} and {}",
                row.entries, row.subdirectories, partition.entries, partition.subdirectories
            );
            report.add(FindingKind::WrongCount, place, what);
            let (entries, subdirectories) = (partition.entries, partition.subdirectories);
            report.fix(Fix::SetCounts { directory: *inode, index: *index, entries, subdirectories });
        }
        let Some(directory) = census.directories.get(inode).and_then(|directory| directory.row.as_ref()) else {
            continue;
        };
        if !directory.map.has(*index) && lacking.insert(*inode) {
            let what = format_args!("its map lacks partition {}", index.0);
            report.add(FindingKind::WrongMap, format_args!("directory {inode}"), what);
            report.fix(Fix::SetMap { directory: *inode });
        }
        if (row.mode, row.uid, row.gid) != (directory.mode, directory.uid, directory.gid) {
            let what = format_args!(
                "its mode, owner and group are {:o} {} {}, but those of the directory {:o} {} {}",
                row.mode.bits(),
                row.uid,
                row.gid,
                directory.mode.bits(),
                directory.uid,
                directory.gid
            );
            report.add(FindingKind::WrongPartition, place, what);
            report.fix(Fix::CopyMode { directory: *inode, index: *index });
        }
    }
}

/// Follows names up to the root. Walks over each directory once and reports one directory of each cycle.
fn find_unreachable(census: &Census, report: &mut FsckReport) {
    let mut walked: HashMap<InodeId, InodeId> = HashMap::from([(InodeId::ROOT, InodeId::ROOT)]);
    for start in census.directories.keys() {
        let mut here = *start;
        // Each directory is marked with the walk that visits it: a walk that meets its own mark is in a cycle.
        while !walked.contains_key(&here) {
            walked.insert(here, *start);
            match census.directories.get(&here).and_then(|directory| directory.named_in) {
                Some(parent) => here = parent,
                None => break,
            }
        }
        let named = |inode: InodeId| census.directories.get(&inode).is_some_and(|found| found.named_in.is_some());
        if walked.get(&here) == Some(start) && here != InodeId::ROOT && named(here) {
            report.add(FindingKind::Unreachable, format_args!("directory {here}"), "its parents form a cycle");
            report.fix(Fix::AttachDirectory { directory: here });
        }
    }
}
