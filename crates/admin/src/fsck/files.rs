//! Checks files: entries, inode rows, their ids and extended attributes.

use super::census::{BackedFile, Census, Stray};
use super::fix::{FIXES_MAX, Fix};
use super::{FindingKind, FsckReport};
use std::fmt;
use varve_schema::{BackingSize, Content, EntryBody, EntryRow, Key, NodeRow};
use varve_types::{FileKind, InodeId, Name, PartitionIndex, ShardId, VolumeSettings};

/// Checks the entries of one shard, which come directory by directory.
pub struct EntryReader {
    shard: ShardId,
    /// Number of entries outside of every partition here, for the directory that is being read.
    stray: Option<(InodeId, u64)>,
}

impl EntryReader {
    pub fn new(shard: ShardId) -> EntryReader {
        EntryReader { shard, stray: None }
    }

    pub fn entry(
        &mut self,
        directory: InodeId,
        name: &Name,
        entry: &EntryRow,
        census: &mut Census,
        report: &mut FsckReport,
    ) {
        let index = PartitionIndex::at(self.shard, directory.shard(), census.shards);
        let partition = census.partitions.get_mut(&(directory, index));
        let Some(partition) =
            partition.filter(|partition| partition.live && index.range(partition.row.depth).contains(name.hash()))
        else {
            if census.stray.len() < FIXES_MAX {
                census.stray.push(Stray { shard: self.shard, directory, name: name.clone(), inode: entry.inode });
            }
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
                    report.fix(Fix::CorrectNode { inode: entry.inode, at: Some((directory, name.clone())) });
                }
                let named = census.directory(entry.inode);
                named.names += 1;
                let in_parent = named.row.as_ref().is_some_and(|row| row.parent == directory);
                if in_parent || named.named_in.is_none() {
                    named.named_in = Some(directory);
                }
            }
            EntryBody::Reference(kind) => {
                let inode = census.inode(entry.inode);
                inode.references += 1;
                inode.named.get_or_insert_with(|| (directory, name.to_string()));
                if inode.row.is_some_and(|row| row.kind != *kind) {
                    report.add(
                        FindingKind::WrongAttributes,
                        place,
                        format_args!("its kind is {kind:?}, that of the inode row is not"),
                    );
                    report.fix(Fix::CorrectReference { directory, name: name.clone() });
                }
            }
            EntryBody::Node(row) => {
                census.single_named.push(entry.inode);
                if row.attributes.nlink != 1 || !row.xattrs.is_empty() {
                    let what =
                        format_args!("{} links and {} xattrs in an entry", row.attributes.nlink, row.xattrs.len());
                    report.add(FindingKind::WrongAttributes, place, what);
                    report.fix(Fix::CorrectNode { inode: entry.inode, at: Some((directory, name.clone())) });
                }
                check_node(entry.inode, row, &place, Some((directory, name)), census, report);
            }
        }
    }

    fn stray(&mut self, directory: InodeId, report: &mut FsckReport) {
        match &mut self.stray {
            Some((of, count)) if *of == directory => *count += 1,
            _ => {
                self.end(report);
                self.stray = Some((directory, 1));
            }
        }
    }

    /// Reports the finding that is still pending.
    pub fn end(&mut self, report: &mut FsckReport) {
        if let Some((directory, count)) = self.stray.take() {
            let place = format_args!("shard {} directory {directory}", self.shard);
            report.add(FindingKind::StrayEntries, place, format_args!("{count} entries outside its partition here"));
        }
    }
}

/// Checks one file's row for consistency and records where its content is. `at`: the entry that contains the row.
pub fn check_node(
    inode: InodeId,
    row: &NodeRow,
    place: &dyn fmt::Display,
    at: Option<(InodeId, &Name)>,
    census: &mut Census,
    report: &mut FsckReport,
) {
    let attributes = &row.attributes;
    let mut wrong = |what: fmt::Arguments<'_>| {
        report.add(FindingKind::WrongAttributes, place, what);
        report.fix(Fix::CorrectNode { inode, at: at.map(|(directory, name)| (directory, name.clone())) });
    };
    if !fits(row) {
        wrong(format_args!("content does not fit kind {:?}", attributes.kind));
    }
    if let Content::Inline(bytes) | Content::Symlink(bytes) = &row.content {
        if bytes.len() as u64 != attributes.size {
            wrong(format_args!("{} bytes of content and size {}", bytes.len(), attributes.size));
        }
        if attributes.kind == FileKind::Regular && bytes.len() > VolumeSettings::INLINE_LIMIT_MAX as usize {
            // The volume's own limit may have been higher in the past.
            wrong(format_args!("{} bytes inline, above the limit of any volume", bytes.len()));
        }
    }
    match &row.content {
        Content::Inline(bytes) | Content::Symlink(bytes) => {
            report.counts.files_inline += 1;
            report.counts.bytes_inline += bytes.len() as u64;
        }
        Content::Backing(size) => {
            report.counts.files_backing += 1;
            census.backing.push(match size {
                BackingSize::Authoritative => {
                    BackedFile { inode, size: Some(attributes.size), at_least: attributes.size, pending: false }
                }
                BackingSize::Stale { at_least } => {
                    BackedFile { inode, size: None, at_least: *at_least, pending: false }
                }
                // Whether the file was already truncated is unknown.
                BackingSize::Truncating(size) => BackedFile { inode, size: Some(*size), at_least: 0, pending: true },
            });
        }
        Content::None => {}
    }
}

/// Whether a file of this kind can have this content.
pub fn fits(row: &NodeRow) -> bool {
    matches!(
        (row.attributes.kind, &row.content),
        (FileKind::Regular, Content::Inline(_) | Content::Backing(_))
            | (FileKind::Symlink, Content::Symlink(_))
            | (FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice, Content::None)
    )
}

pub fn note_xattr(shard: ShardId, inode: InodeId, name: &bytes::Bytes, census: &mut Census, report: &mut FsckReport) {
    report.counts.xattrs += 1;
    let place = format_args!("inode {inode} xattr {}", name.escape_ascii());
    if inode.shard() != shard {
        let what = format_args!("it is in shard {shard} and belongs to shard {}", inode.shard());
        report.add(FindingKind::MisplacedRow, place, what);
        let key = varve_schema::Key::Xattr(inode, name.clone());
        return report.fix(Fix::MoveRow { from: shard, to: inode.shard(), key });
    }
    let listed = census.xattrs_listed.get_mut(&inode).is_some_and(|names| names.remove(name));
    if !listed {
        report.add(FindingKind::StrayXattr, place, "no row lists it");
        report.fix(Fix::StrayXattr { inode, name: name.clone() });
    }
}

/// Compares inode rows with their names, and all ids with each other and with the counters.
pub fn compare(census: &mut Census, report: &mut FsckReport) {
    for (inode, found) in &census.inodes {
        let (inode, place) = (*inode, format_args!("inode {inode}"));
        let Some(row) = found.row else {
            let (directory, name) = found.named.as_ref().map_or((InodeId::ROOT, ""), |(of, name)| (*of, name));
            let what = format_args!("{name} in directory {directory} refers to it, but it has no row");
            report.add(FindingKind::MissingInode, place, what);
            report.fix(Fix::DropReferences { inode });
            continue;
        };
        if found.references == 0 {
            if census.orphans.contains(&inode) {
                report.add(FindingKind::Orphan, place, "it has no name and was open");
                report.fix(Fix::DropOrphan { inode });
            } else {
                report.add(FindingKind::InodeWithoutName, place, format_args!("it counts {} links", row.nlink));
                report.fix(Fix::AttachFile { inode });
            }
            continue;
        }
        if census.orphans.contains(&inode) {
            report.add(FindingKind::OrphanWithName, place, format_args!("it has {} names", found.references));
            report.fix(Fix::DropRow { shard: inode.shard(), key: Key::Orphan(inode) });
        }
        if row.nlink != found.references {
            let what = format_args!("it counts {} links and has {} names", row.nlink, found.references);
            report.add(FindingKind::WrongLinkCount, place, what);
            report.fix(Fix::SetLinks { inode, links: found.references });
        }
    }
    for inode in census.orphans.iter().filter(|inode| !census.inodes.contains_key(inode)) {
        report.add(FindingKind::Orphan, format_args!("inode {inode}"), "it has no inode row any more");
        report.fix(Fix::DropRow { shard: inode.shard(), key: Key::Orphan(*inode) });
    }
    for (inode, names) in &census.xattrs_listed {
        for name in names {
            let place = format_args!("inode {inode} xattr {}", name.escape_ascii());
            report.add(FindingKind::MissingXattr, place, "it is listed and has no row");
            report.fix(Fix::Unlist { inode: *inode, name: name.clone() });
        }
    }
    compare_ids(census, report);
}

fn compare_ids(census: &mut Census, report: &mut FsckReport) {
    let mut ids = std::mem::take(&mut census.single_named);
    ids.extend(census.inodes.keys());
    ids.extend(census.directories.keys());
    ids.sort_unstable();
    let mut before = None;
    for pair in ids.windows(2).filter(|pair| pair[0] == pair[1]) {
        if before.replace(pair[0]) != Some(pair[0]) {
            report.add(FindingKind::DuplicateInode, format_args!("inode {}", pair[0]), "several files have this id");
            report.fix(Fix::Duplicate { inode: pair[0] });
        }
    }
    // Sorted: the ids of a shard are adjacent, with the highest last.
    for (place, inode) in ids.iter().enumerate() {
        if ids.get(place + 1).is_none_or(|next| next.shard() != inode.shard()) {
            compare_counter(*inode, census, report);
        }
    }
    for stray in &census.stray {
        let known = ids.binary_search(&stray.inode).is_ok();
        let (shard, directory, name) = (stray.shard, stray.directory, stray.name.clone());
        report.fix(Fix::Stray { shard, directory, name, known });
    }
    census.ids = ids;
}

/// `highest`: the highest id that its shard has created.
fn compare_counter(highest: InodeId, census: &Census, report: &mut FsckReport) {
    let place = format_args!("inode {highest}");
    let shard = highest.shard();
    match census.inodes_end.get(usize::from(shard.0)) {
        None => {
            let what = format_args!("its id is of shard {shard}, which does not exist");
            report.add(FindingKind::WrongAttributes, place, what);
            report.fix(Fix::Duplicate { inode: highest });
        }
        Some(end) if highest.0 & InodeId::COUNTER_MAX >= *end => {
            let what = format_args!("shard {shard} would give ids from counter {end} on");
            report.add(FindingKind::CounterTooLow, place, what);
            report.fix(Fix::RaiseCounter { shard, above: highest.0 & InodeId::COUNTER_MAX });
        }
        Some(_) => {}
    }
}
