//! Files: entries, inode rows, their ids and extended attributes.

use super::census::{Backing, Census};
use super::{FindingKind, Report};
use crate::tables::{BackingSize, Content, EntryBody, EntryRow, NodeRow};
use std::fmt;
use varve_types::{FileKind, InodeId, Name, PartitionIndex, ShardId};

/// Reads the entries of one shard, which come directory by directory.
pub struct Reader {
    shard: ShardId,
    /// Entries that belong to no partition here, of the directory that is being read.
    stray: Option<(InodeId, u64)>,
}

impl Reader {
    pub fn new(shard: ShardId) -> Reader {
        Reader { shard, stray: None }
    }

    pub fn entry(
        &mut self,
        directory: InodeId,
        name: &Name,
        entry: &EntryRow,
        census: &mut Census,
        report: &mut Report,
    ) {
        let index = PartitionIndex::at(self.shard, directory.shard(), census.shards);
        let partition = census.partitions.get_mut(&(directory, index));
        let Some(partition) =
            partition.filter(|partition| partition.live && index.range(partition.row.depth).contains(name.hash()))
        else {
            return self.stray(directory, report);
        };
        partition.entries += 1;
        report.counts.entries += 1;
        let place = format_args!("{name} in directory {directory}");
        match &entry.body {
            EntryBody::Directory(attributes) => {
                partition.subdirectories += 1;
                if attributes.kind != FileKind::Directory {
                    report.add(
                        FindingKind::WrongAttributes,
                        place,
                        format_args!("a directory of kind {:?}", attributes.kind),
                    );
                }
                let named = census.directory(entry.inode);
                named.names += 1;
                named.named_in = Some(directory);
            }
            EntryBody::Reference(kind) => {
                let inode = census.inode(entry.inode);
                inode.references += 1;
                inode.named.get_or_insert_with(|| (directory, name.to_string()));
                if inode.row.is_some_and(|row| row.kind != *kind) {
                    report.add(
                        FindingKind::WrongAttributes,
                        place,
                        format_args!("it says {kind:?}, the inode row not"),
                    );
                }
            }
            EntryBody::Node(row) => {
                census.single_named.push(entry.inode);
                if row.attributes.nlink != 1 || !row.xattrs.is_empty() {
                    let what =
                        format_args!("{} links and {} xattrs in an entry", row.attributes.nlink, row.xattrs.len());
                    report.add(FindingKind::WrongAttributes, place, what);
                }
                check_node(entry.inode, row, &place, census, report);
            }
        }
    }

    fn stray(&mut self, directory: InodeId, report: &mut Report) {
        match &mut self.stray {
            Some((of, count)) if *of == directory => *count += 1,
            _ => {
                self.end(report);
                self.stray = Some((directory, 1));
            }
        }
    }

    /// Reports what is still held back.
    pub fn end(&mut self, report: &mut Report) {
        if let Some((directory, count)) = self.stray.take() {
            let place = format_args!("shard {} directory {directory}", self.shard);
            report.add(FindingKind::StrayEntries, place, format_args!("{count} entries outside its partition here"));
        }
    }
}

/// Checks one file's row against itself and notes where its content is.
pub fn check_node(inode: InodeId, row: &NodeRow, place: &dyn fmt::Display, census: &mut Census, report: &mut Report) {
    let attributes = &row.attributes;
    let fits = matches!(
        (attributes.kind, &row.content),
        (FileKind::Regular, Content::Inline(_) | Content::Backing(_))
            | (FileKind::Symlink, Content::Symlink(_))
            | (FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice, Content::None)
    );
    if !fits {
        report.add(
            FindingKind::WrongAttributes,
            place,
            format_args!("content does not fit kind {:?}", attributes.kind),
        );
    }
    match &row.content {
        Content::Inline(bytes) | Content::Symlink(bytes) => {
            if bytes.len() as u64 != attributes.size {
                let what = format_args!("{} bytes of content and size {}", bytes.len(), attributes.size);
                report.add(FindingKind::WrongAttributes, place, what);
            }
            if attributes.kind == FileKind::Regular && bytes.len() as u64 > census.inline_limit {
                let what = format_args!("{} bytes inline, above the volume's limit", bytes.len());
                report.add(FindingKind::WrongAttributes, place, what);
            }
            report.counts.files_inline += 1;
            report.counts.bytes_inline += bytes.len() as u64;
        }
        Content::Backing(size) => {
            report.counts.files_backing += 1;
            census.backing.push(match size {
                BackingSize::Settled => Backing { inode, size: Some(attributes.size), pending: false },
                BackingSize::Unsettled => Backing { inode, size: None, pending: false },
                BackingSize::Truncating(size) => Backing { inode, size: Some(*size), pending: true },
            });
        }
        Content::None => {}
    }
}

pub fn note_xattr(shard: ShardId, inode: InodeId, name: &bytes::Bytes, census: &mut Census, report: &mut Report) {
    report.counts.xattrs += 1;
    let place = format_args!("inode {inode} xattr {}", name.escape_ascii());
    if inode.shard() != shard {
        let what = format_args!("it is in shard {shard} and belongs to shard {}", inode.shard());
        return report.add(FindingKind::MisplacedRow, place, what);
    }
    let listed = census.xattrs_listed.get_mut(&inode).is_some_and(|names| names.remove(name));
    if !listed {
        report.add(FindingKind::StrayXattr, place, "no row lists it");
    }
}

/// Compares inode rows with their names, and all ids with each other and with the counters.
pub fn compare(census: &mut Census, report: &mut Report) {
    for (inode, found) in &census.inodes {
        let place = format_args!("inode {inode}");
        let Some(row) = found.row else {
            let (directory, name) = found.named.as_ref().map_or((InodeId::ROOT, ""), |(of, name)| (*of, name));
            let what = format_args!("{name} in directory {directory} names it, and it has no row");
            report.add(FindingKind::MissingInode, place, what);
            continue;
        };
        if census.orphans.contains(inode) && found.references == 0 {
            report.add(FindingKind::Orphan, place, "it was unlinked while open");
        } else if found.references == 0 {
            report.add(FindingKind::InodeWithoutName, place, format_args!("it counts {} links", row.nlink));
        } else if row.nlink != found.references {
            let what = format_args!("it counts {} links and has {} names", row.nlink, found.references);
            report.add(FindingKind::WrongLinkCount, place, what);
        }
    }
    for inode in census.orphans.iter().filter(|inode| !census.inodes.contains_key(inode)) {
        report.add(FindingKind::Orphan, format_args!("inode {inode}"), "it has no inode row any more");
    }
    for (inode, names) in &census.xattrs_listed {
        for name in names {
            let place = format_args!("inode {inode} xattr {}", name.escape_ascii());
            report.add(FindingKind::MissingXattr, place, "it is listed and has no row");
        }
    }
    compare_ids(census, report);
}

fn compare_ids(census: &mut Census, report: &mut Report) {
    let mut ids = std::mem::take(&mut census.single_named);
    ids.extend(census.inodes.keys());
    ids.extend(census.directories.keys());
    ids.sort_unstable();
    for pair in ids.windows(2).filter(|pair| pair[0] == pair[1]) {
        report.add(FindingKind::DuplicateInode, format_args!("inode {}", pair[0]), "several files have this id");
    }
    for inode in ids {
        let counter = inode.0 & InodeId::COUNTER_MAX;
        let place = format_args!("inode {inode}");
        match census.inodes_end.get(usize::from(inode.shard().0)) {
            None => report.add(FindingKind::WrongAttributes, place, "there is no such shard"),
            Some(end) if counter >= *end => {
                let what = format_args!("shard {} would give ids from counter {end} on", inode.shard());
                report.add(FindingKind::CounterTooLow, place, what);
            }
            Some(_) => {}
        }
    }
}
