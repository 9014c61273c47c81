//! Directories: which partitions make them up, and whether each has one name, in its parent, on a path from the root.

use super::census::Census;
use super::{FindingKind, Report};
use crate::tables::PartitionState;
use std::collections::HashMap;
use varve_types::{InodeId, PartitionIndex};

/// Marks the partitions that make up each directory, from partition 0 on: a partition of depth `d` that was cut off at
/// depth `b` has been cut at depths `b` to `d - 1`, and each cut made a partition. So what is found tiles the hash space
/// exactly once, unless one is missing.
pub fn find_partitions(census: &mut Census, report: &mut Report) {
    let directories: Vec<InodeId> = census.directories.keys().copied().collect();
    for directory in directories {
        let mut open = vec![(PartitionIndex::FIRST, 0)];
        while let Some((index, born_at)) = open.pop() {
            match census.partitions.get_mut(&(directory, index)) {
                Some(partition) => {
                    partition.live = true;
                    open.extend((born_at..partition.row.depth).map(|depth| (index.upper_half(depth), depth + 1)));
                }
                None => {
                    let place = format_args!("directory {directory} partition {}", index.0);
                    let shard = census.shard_of(directory, index);
                    report.add(FindingKind::MissingPartition, place, format_args!("shard {shard} does not have it"));
                }
            }
        }
    }
    for ((directory, index), partition) in &census.partitions {
        if partition.live {
            continue;
        }
        let place = format_args!("directory {directory} partition {}", index.0);
        let has_directory = census.directories.contains_key(directory);
        let kind = match partition.row.state {
            PartitionState::Arriving => FindingKind::AbortedSplit,
            _ if !has_directory => FindingKind::DirectoryWithoutName,
            _ => FindingKind::StrayPartition,
        };
        report.add(kind, place, format_args!("{:?}, {} entries", partition.row.state, partition.row.entries));
    }
}

/// Compares the rows of directories with each other and with their names.
pub fn compare(census: &Census, report: &mut Report) {
    if census.directories.get(&InodeId::ROOT).is_none_or(|root| root.row.is_none()) {
        report.add(FindingKind::NoRoot, "shard 0", "there is no root directory");
    }
    compare_partitions(census, report);
    for (inode, directory) in &census.directories {
        let place = format_args!("directory {inode}");
        let expected = u32::from(*inode != InodeId::ROOT);
        match (&directory.row, directory.names) {
            (None, _) => {
                let parent = directory.named_in.unwrap_or(InodeId::ROOT);
                report.add(FindingKind::DirectoryWithoutRow, place, format_args!("named in directory {parent}"));
            }
            (Some(row), 0) if expected == 1 => {
                report.add(FindingKind::DirectoryWithoutName, place, format_args!("its parent was {}", row.parent));
            }
            (Some(_), names) if names > expected => {
                report.add(FindingKind::SeveralNames, place, format_args!("{names} entries name it"));
            }
            (Some(row), _) => {
                let named_in = directory.named_in.unwrap_or(InodeId::ROOT);
                if row.parent != named_in {
                    let what = format_args!("its parent is {}, and its name is in {named_in}", row.parent);
                    report.add(FindingKind::WrongParent, place, what);
                }
            }
        }
    }
    find_unreachable(census, report);
}

fn compare_partitions(census: &Census, report: &mut Report) {
    for ((inode, index), partition) in census.partitions.iter().filter(|(_, partition)| partition.live) {
        let place = format_args!("directory {inode} partition {}", index.0);
        let row = &partition.row;
        // What arrives is counted when it is live; it is, for its source says so, but nobody has asked yet.
        if (row.entries, row.subdirectories) != (partition.entries, partition.subdirectories) {
            let what = format_args!(
                "it says {} entries, {} of them directories, and has {} and {}",
                row.entries, row.subdirectories, partition.entries, partition.subdirectories
            );
            report.add(FindingKind::WrongCount, place, what);
        }
        let Some(directory) = census.directories.get(inode).and_then(|directory| directory.row.as_ref()) else {
            continue;
        };
        if (row.mode, row.uid, row.gid) != (directory.mode, directory.uid, directory.gid) {
            let what = format_args!(
                "its mode, owner and group are {:o} {} {}, and the directory's {:o} {} {}",
                row.mode.bits(),
                row.uid,
                row.gid,
                directory.mode.bits(),
                directory.uid,
                directory.gid
            );
            report.add(FindingKind::WrongPartition, place, what);
        }
    }
}

/// Follows parents to the root. Each directory is walked over once.
fn find_unreachable(census: &Census, report: &mut Report) {
    // `true`: leads to the root, or to something that is reported already.
    let mut ends: HashMap<InodeId, bool> = HashMap::from([(InodeId::ROOT, true)]);
    for start in census.directories.keys() {
        let mut path = Vec::new();
        let mut here = *start;
        let end = loop {
            if let Some(end) = ends.get(&here) {
                break *end;
            }
            // Noted as a cycle until the walk has come to an end.
            ends.insert(here, false);
            path.push(here);
            match census.directories.get(&here).and_then(|directory| directory.row.as_ref()) {
                Some(row) => here = row.parent,
                None => break true,
            }
        };
        if !end {
            let what = format_args!("its parents lead in a circle");
            report.add(FindingKind::Unreachable, format_args!("directory {start}"), what);
        }
        ends.extend(path.into_iter().map(|inode| (inode, end)));
    }
}
