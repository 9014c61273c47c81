//! Each test plants one damage in an intact volume, through the real tables. The check reports it, a repair corrects
//! it, the next check finds nothing at all, and everything else is unchanged.

use super::*;
use crate::snapshot::offline::{self, OfflineSnapshot};
use crate::snapshot::{Snapshot, SnapshotRow};
use std::collections::BTreeMap;
use varve_schema::Kind;

/// Everything that can be reached from the root: each path with a description of its object.
type Tree = BTreeMap<String, String>;

impl Site {
    pub(super) fn rows(&self, kind: Kind) -> Vec<(Key, Row)> {
        let runtime = offline::runtime().unwrap();
        let store = offline::store_for_reading(&self.volume);
        let config = offline::table_config(&self.volume, &self.settings, store, runtime.handle().clone());
        runtime.block_on(async {
            let mut tables = OfflineSnapshot::open(&config, self.settings.shards).await.unwrap();
            let mut all = Vec::new();
            let mut snapshot = Snapshot::begin(&mut tables).await.unwrap();
            for shard in self.settings.shards.all() {
                let mut rows = snapshot.rows(shard, kind).await.unwrap();
                while let Some(found) = rows.next().await.unwrap() {
                    if let SnapshotRow::Row(key, row) = found {
                        all.push((key, row));
                    }
                }
            }
            tables.close().await.unwrap();
            all
        })
    }

    pub(super) fn tree(&self) -> Tree {
        let entries = self.rows(Kind::Entry);
        let inodes: BTreeMap<InodeId, NodeRow> = self
            .rows(Kind::Inode)
            .into_iter()
            .filter_map(|(key, row)| match (key, row) {
                (Key::Inode(inode), Row::Inode(row)) => Some((inode, row)),
                _ => None,
            })
            .collect();
        let mut tree = Tree::new();
        let mut open = vec![(ROOT, String::new())];
        while let Some((directory, path)) = open.pop() {
            for (key, row) in &entries {
                let (Key::Entry(of, name), Row::Entry(row)) = (key, row) else { continue };
                if *of != directory {
                    continue;
                }
                let path = format!("{path}/{name}");
                let node = match &row.body {
                    EntryBody::Directory(_) => {
                        open.push((row.inode, path.clone()));
                        tree.insert(path, "directory".into());
                        continue;
                    }
                    EntryBody::Reference(_) => &inodes[&row.inode],
                    EntryBody::Node(node) => node,
                };
                let backing = std::fs::read(self.volume.backing_file(row.inode)).ok();
                let bytes = match (&node.content, backing) {
                    (Content::Inline(bytes) | Content::Symlink(bytes), _) => bytes.to_vec(),
                    (Content::Backing(_), Some(bytes)) => bytes,
                    _ => Vec::new(),
                };
                assert_eq!(node.attributes.size, bytes.len() as u64, "{path}");
                let links = node.attributes.nlink;
                tree.insert(path, format!("{links} {:?} {}", node.attributes.kind, bytes.escape_ascii()));
            }
        }
        tree
    }
}

/// `gone` and `come`: the paths that a repair removes and creates; of the other paths, those in `changed` may differ.
pub(super) struct Outcome<'a> {
    pub(super) gone: &'a [&'a str],
    pub(super) come: &'a [(&'a str, &'a str)],
    pub(super) changed: &'a [&'a str],
}

pub(super) const NOTHING: Outcome<'static> = Outcome { gone: &[], come: &[], changed: &[] };

/// Plants `damage`, expects `kind` among the findings, repairs, and checks the result.
pub(super) fn repaired(damage: impl FnOnce(&Site), kind: FindingKind, outcome: &Outcome<'_>) -> Site {
    let site = Site::new();
    let mut expected = site.tree();
    damage(&site);
    let found = site.check();
    assert!(found.totals.contains_key(&kind), "{kind:?} is not among {:#?}", found.findings);
    assert_eq!(site.check(), found, "a check that does not repair changes nothing");
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.before, found);
    assert!(repaired.repairs_total > 0);
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert_eq!(site.check().findings, []);
    for path in outcome.gone {
        assert!(expected.remove(*path).is_some(), "{path} was not there");
    }
    for (path, what) in outcome.come {
        expected.insert((*path).into(), (*what).into());
    }
    if outcome.come.iter().any(|(path, _)| path.starts_with("/lost+found/")) {
        expected.insert("/lost+found".into(), "directory".into());
    }
    let mut tree = site.tree();
    for path in outcome.changed {
        assert!(tree.contains_key(*path), "{path} is gone");
        expected.remove(*path);
        tree.remove(*path);
    }
    assert_eq!(tree, expected, "{:#?}", repaired.repairs);
    let again = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!((again.repairs_total, again.before.findings.len()), (0, 0));
    site
}

const FIRST: PartitionIndex = PartitionIndex::FIRST;

#[test]
fn an_entry_without_its_inode_row_goes() {
    let outcome = Outcome { gone: &["/one", "/dir/two"], ..NOTHING };
    repaired(|site| site.delete(SHARD_0, Key::Inode(LINKED)), FindingKind::MissingInode, &outcome);
}

#[test]
fn missing_inode_row_with_data_is_recreated() {
    let damage = |site: &Site| {
        site.delete(SHARD_0, Key::Inode(LINKED));
        std::fs::write(site.volume.backing_file(LINKED), b"kept").unwrap();
    };
    let come = [("/one", "2 Regular kept"), ("/dir/two", "2 Regular kept")];
    repaired(damage, FindingKind::MissingInode, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn an_inode_row_without_entry_is_found_a_name() {
    let inode = InodeId(9);
    let come = [("/lost+found/9", "1 Regular alone")];
    let damage = |site: &Site| site.put(SHARD_0, Key::Inode(inode), Row::Inode(inline(b"alone")));
    repaired(damage, FindingKind::InodeWithoutName, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn link_counts_are_counted() {
    let come = [("/one", "1 Regular twice")];
    let outcome = Outcome { gone: &["/dir/two"], come: &come, ..NOTHING };
    repaired(|site| site.delete(SHARD_1, entry_key(DIRECTORY, "two")), FindingKind::WrongLinkCount, &outcome);
}

#[test]
fn a_directory_without_row_gets_one() {
    repaired(|site| site.delete(SHARD_1, Key::Directory(DIRECTORY)), FindingKind::DirectoryWithoutRow, &NOTHING);
    let both = |site: &Site| {
        site.delete(SHARD_1, Key::Directory(DIRECTORY));
        site.delete(SHARD_1, Key::Partition(DIRECTORY, FIRST));
        site.delete(SHARD_1, entry_key(DIRECTORY, "two"));
    };
    let come = [("/one", "1 Regular twice")];
    let outcome = Outcome { gone: &["/dir/two"], come: &come, ..NOTHING };
    repaired(both, FindingKind::DirectoryWithoutRow, &outcome);
}

#[test]
fn a_directory_without_entry_is_found_a_name() {
    let come = [("/lost+found/1000000000002", "directory"), ("/lost+found/1000000000002/two", "2 Regular twice")];
    let outcome = Outcome { gone: &["/dir", "/dir/two"], come: &come, ..NOTHING };
    repaired(|site| site.delete(SHARD_0, entry_key(ROOT, "dir")), FindingKind::LostDirectory, &outcome);
    let neither = |site: &Site| {
        site.delete(SHARD_0, entry_key(ROOT, "dir"));
        site.delete(SHARD_1, Key::Directory(DIRECTORY));
    };
    repaired(neither, FindingKind::LostDirectory, &outcome);
}

#[test]
fn an_empty_directory_without_entry_goes() {
    let inode = InodeId(DIRECTORY.0 + 1);
    let damage = |site: &Site| {
        site.put(SHARD_1, Key::Directory(inode), Row::Directory(directory(ROOT)));
        site.put(SHARD_1, Key::Partition(inode, FIRST), Row::Partition(partition(0, 0)));
    };
    repaired(damage, FindingKind::DirectoryWithoutName, &NOTHING);
}

#[test]
fn partition_map_with_a_hole_is_rebuilt() {
    let garbage = |site: &Site| {
        let mut row = codec::encode_row(&Row::Directory(directory(ROOT)));
        // The only word of the map: partition 1 without partition 0, which it was split from.
        let place = row.len() - 2;
        assert_eq!(row[place], 1);
        row[place] = 2;
        assert!(codec::decode_row(Kind::Directory, &row).is_err());
        site.edit(SHARD_1, |batch| batch.put(codec::encode_key(&Key::Directory(DIRECTORY)), row));
    };
    let site = repaired(garbage, FindingKind::DamagedRow, &NOTHING);
    assert_eq!(std::fs::read_dir(site.volume.damaged()).unwrap().count(), 1, "the row's bytes are kept");
}

/// The directory `dir` in two partitions.
fn split(site: &Site) -> (PartitionIndex, ShardId) {
    let upper = PartitionIndex(1);
    let moves = NameHash::of(b"two") >= upper.range(1).first;
    let mut map = map();
    map.add(upper);
    let row = |index, entries| PartitionRow { index, depth: 1, map: map.clone(), ..partition(entries, 0) };
    site.put(SHARD_1, Key::Directory(DIRECTORY), Row::Directory(DirectoryRow { map: map.clone(), ..directory(ROOT) }));
    site.put(SHARD_1, Key::Partition(DIRECTORY, FIRST), Row::Partition(row(FIRST, u64::from(!moves))));
    site.put(SHARD_0, Key::Partition(DIRECTORY, upper), Row::Partition(row(upper, u64::from(moves))));
    if moves {
        site.delete(SHARD_1, entry_key(DIRECTORY, "two"));
        let two = entry(LINKED, EntryBody::Reference(FileKind::Regular));
        site.put(SHARD_0, entry_key(DIRECTORY, "two"), two);
    }
    assert_eq!(site.check().findings, []);
    if moves { (upper, SHARD_0) } else { (FIRST, SHARD_1) }
}

#[test]
fn missing_partition_is_rebuilt_with_its_names() {
    let damage = |site: &Site| {
        let (index, shard) = split(site);
        site.delete(shard, Key::Partition(DIRECTORY, index));
    };
    repaired(damage, FindingKind::MissingPartition, &NOTHING);
    let other = |site: &Site| {
        let (index, _) = split(site);
        let (other, shard) = if index == FIRST { (PartitionIndex(1), SHARD_0) } else { (FIRST, SHARD_1) };
        site.delete(shard, Key::Partition(DIRECTORY, other));
    };
    repaired(other, FindingKind::MissingPartition, &NOTHING);
}

#[test]
fn partition_map_regains_a_missing_partition() {
    let damage = |site: &Site| {
        split(site);
        site.put(SHARD_1, Key::Directory(DIRECTORY), Row::Directory(directory(ROOT)));
    };
    repaired(damage, FindingKind::WrongMap, &NOTHING);
}

#[test]
fn an_overlapping_partition_is_dissolved() {
    let damage = |site: &Site| {
        let stray = PartitionRow { index: PartitionIndex(1), depth: 1, ..partition(2, 0) };
        site.put(SHARD_0, Key::Partition(DIRECTORY, PartitionIndex(1)), Row::Partition(stray));
        site.put(SHARD_0, entry_key(DIRECTORY, "own"), entry(InodeId(9), EntryBody::Node(inline(b"own"))));
        site.put(SHARD_0, entry_key(DIRECTORY, "two"), entry(InodeId(10), EntryBody::Node(inline(b"other"))));
    };
    let come = [("/dir/own", "1 Regular own"), ("/lost+found/a", "1 Regular other")];
    repaired(damage, FindingKind::StrayPartition, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn an_entry_outside_of_its_partition_is_not_lost() {
    let damage = |site: &Site| {
        site.put(SHARD_0, entry_key(DIRECTORY, "astray"), entry(InodeId(9), EntryBody::Node(inline(b"only"))));
        // As after a split: the same name is in its right partition.
        site.put(SHARD_0, entry_key(DIRECTORY, "two"), entry(LINKED, EntryBody::Reference(FileKind::Regular)));
    };
    let come = [("/lost+found/9", "1 Regular only")];
    repaired(damage, FindingKind::StrayEntries, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn partitions_of_interrupted_splits_are_repaired() {
    let incoming = |site: &Site| {
        let row =
            PartitionRow { index: PartitionIndex(1), depth: 1, state: PartitionState::Incoming, ..partition(1, 0) };
        site.put(SHARD_0, Key::Partition(DIRECTORY, PartitionIndex(1)), Row::Partition(row));
        site.put(SHARD_0, entry_key(DIRECTORY, "two"), entry(LINKED, EntryBody::Reference(FileKind::Regular)));
    };
    repaired(incoming, FindingKind::AbortedSplit, &NOTHING);
}

#[test]
fn counts_and_copies_are_rebuilt() {
    let key = || Key::Partition(DIRECTORY, FIRST);
    repaired(|site| site.put(SHARD_1, key(), Row::Partition(partition(7, 3))), FindingKind::WrongCount, &NOTHING);
    let other = PartitionRow { mode: Mode(0o700), ..partition(1, 0) };
    repaired(|site| site.put(SHARD_1, key(), Row::Partition(other)), FindingKind::WrongPartition, &NOTHING);
}

fn transaction() -> TransactionId {
    TransactionId { coordinator: SHARD_0, epoch: varve_types::Epoch(1), counter: 7 }
}

/// A file created in `dir` by a transaction that shard 0 coordinates.
fn intent(site: &Site) {
    let name = Name::new(b"made").unwrap();
    let at = Timestamp { seconds: 2, nanoseconds: 0 };
    let row = entry(InodeId(9), EntryBody::Node(inline(b"made")));
    let changes = vec![
        Change::put(Key::Entry(DIRECTORY, name.clone()), row),
        Change::Tally { directory: DIRECTORY, name, entries: 1, subdirectories: 0, at },
    ];
    let intent = IntentRow { participants: vec![SHARD_1], changes, reads: Vec::new(), reply: None };
    site.put(SHARD_1, Key::Intent(transaction()), Row::Intent(intent));
}

#[test]
fn an_undecided_intent_is_dropped() {
    repaired(intent, FindingKind::Intent, &NOTHING);
}

#[test]
fn a_decided_intent_is_applied() {
    let damage = |site: &Site| {
        intent(site);
        let decision = DecisionRow { participants: vec![SHARD_1] };
        site.put(SHARD_0, Key::Decision(transaction()), Row::Decision(decision));
        assert!(site.check().is_sound());
    };
    let come = [("/dir/made", "1 Regular made")];
    repaired(damage, FindingKind::Intent, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn an_intent_stored_on_all_shards_is_applied() {
    let damage = |site: &Site| {
        intent(site);
        let own = IntentRow { participants: vec![SHARD_1], changes: Vec::new(), reads: Vec::new(), reply: None };
        site.put(SHARD_0, Key::Intent(transaction()), Row::Intent(own));
        assert!(site.check().is_sound());
    };
    let come = [("/dir/made", "1 Regular made")];
    repaired(damage, FindingKind::Intent, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn files_with_one_inode_id_are_separated() {
    let twin = |row: NodeRow| entry(PLAIN, EntryBody::Node(row));
    let inline_twin = |site: &Site| site.put(SHARD_1, entry_key(DIRECTORY, "twin"), twin(inline(b"twin")));
    let come = [("/dir/twin", "1 Regular twin")];
    let counted = Outcome { come: &come, ..NOTHING };
    repaired(inline_twin, FindingKind::DuplicateInode, &counted);
    let large = |site: &Site| {
        let row = entry(LARGE, EntryBody::Node(backing(3, BackingSize::Authoritative)));
        site.put(SHARD_1, entry_key(DIRECTORY, "twin"), row);
    };
    let come = [("/large", "2 Regular abc"), ("/dir/twin", "2 Regular abc")];
    repaired(large, FindingKind::DuplicateInode, &Outcome { come: &come, ..NOTHING });
    let like_a_directory = |site: &Site| {
        let row = entry(DIRECTORY, EntryBody::Node(inline(b"file")));
        site.put(SHARD_0, entry_key(ROOT, "file"), row);
    };
    let come = [("/file", "1 Regular file")];
    repaired(like_a_directory, FindingKind::DuplicateInode, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn a_directory_keeps_one_name() {
    let damage = |site: &Site| {
        let again = entry(DIRECTORY, EntryBody::Directory(attributes(FileKind::Directory, 0)));
        site.put(SHARD_0, entry_key(ROOT, "a second one"), again.clone());
        site.put(SHARD_1, entry_key(DIRECTORY, "in itself"), again);
    };
    let site = Site::new();
    damage(&site);
    assert_eq!(site.check().totals[&FindingKind::SeveralNames], 1);
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, []);
    let tree = site.tree();
    assert!(tree.contains_key("/dir/two") != tree.contains_key("/a second one/two"), "{tree:#?}");
}

#[test]
fn directory_cycle_is_broken() {
    let damage = |site: &Site| {
        site.delete(SHARD_0, entry_key(ROOT, "dir"));
        let own = entry(DIRECTORY, EntryBody::Directory(attributes(FileKind::Directory, 0)));
        site.put(SHARD_1, entry_key(DIRECTORY, "own"), own);
    };
    let come = [("/lost+found/1000000000002", "directory"), ("/lost+found/1000000000002/two", "2 Regular twice")];
    let outcome = Outcome { gone: &["/dir", "/dir/two"], come: &come, ..NOTHING };
    repaired(damage, FindingKind::Unreachable, &outcome);
}

#[test]
fn a_wrong_parent_is_corrected() {
    let wrong = Row::Directory(directory(InodeId(DIRECTORY.0 + 50)));
    repaired(|site| site.put(SHARD_1, Key::Directory(DIRECTORY), wrong), FindingKind::WrongParent, &NOTHING);
}

#[test]
fn missing_root_is_recreated() {
    repaired(|site| site.delete(SHARD_0, Key::Directory(ROOT)), FindingKind::NoRoot, &NOTHING);
    let both = |site: &Site| {
        site.delete(SHARD_0, Key::Directory(ROOT));
        site.delete(SHARD_0, Key::Partition(ROOT, FIRST));
    };
    repaired(both, FindingKind::NoRoot, &NOTHING);
}

#[test]
fn xattrs_and_their_lists_agree_again() {
    let value = || Row::Xattr(Bytes::from_static(b"value"));
    let without_inode = |site: &Site| site.put(SHARD_0, xattr_key(InodeId(50), "user.stray"), value());
    repaired(without_inode, FindingKind::StrayXattr, &NOTHING);
    let unlisted = |site: &Site| site.put(SHARD_0, xattr_key(LINKED, "user.a"), value());
    let site = repaired(unlisted, FindingKind::StrayXattr, &NOTHING);
    assert_eq!(site.rows(Kind::Xattr).len(), 2, "a file's xattr is listed, not removed");
    let missing = |site: &Site| site.delete(SHARD_0, xattr_key(LINKED, "user.x"));
    repaired(missing, FindingKind::MissingXattr, &NOTHING);
}

#[test]
fn orphans_go_and_named_ones_stay() {
    let since = OrphanRow { since: Timestamp { seconds: 1, nanoseconds: 0 } };
    let named = |site: &Site| site.put(SHARD_0, Key::Orphan(LINKED), Row::Orphan(since));
    repaired(named, FindingKind::OrphanWithName, &NOTHING);
    let inode = InodeId(9);
    let orphan = |site: &Site| {
        let mut row = backing(4, BackingSize::Authoritative);
        row.attributes.nlink = 0;
        row.xattrs = vec![Bytes::from_static(b"user.o")];
        site.put(SHARD_0, Key::Inode(inode), Row::Inode(row));
        site.put(SHARD_0, xattr_key(inode, "user.o"), Row::Xattr(Bytes::from_static(b"value")));
        site.put(SHARD_0, Key::Orphan(inode), Row::Orphan(since));
        std::fs::write(site.volume.backing_file(inode), b"gone").unwrap();
    };
    let site = repaired(orphan, FindingKind::Orphan, &NOTHING);
    assert!(!site.volume.backing_file(inode).exists());
}

/// Removed files stay removed; existing files stay.
#[test]
fn only_content_of_removed_files_is_deleted() {
    let inode = InodeId(9);
    let removed = |site: &Site| {
        site.put(SHARD_1, Key::Garbage(inode), Row::Garbage);
        std::fs::write(site.volume.backing_file(inode), b"gone").unwrap();
    };
    let site = repaired(removed, FindingKind::RemovedContent, &NOTHING);
    assert!(!site.volume.backing_file(inode).exists());
    let gone_already = |site: &Site| site.put(SHARD_0, Key::Garbage(inode), Row::Garbage);
    repaired(gone_already, FindingKind::RemovedContent, &NOTHING);
    let in_use = |site: &Site| site.put(SHARD_0, Key::Garbage(LARGE), Row::Garbage);
    let site = repaired(in_use, FindingKind::RemovedContentInUse, &NOTHING);
    assert_eq!(site.rows(Kind::Garbage), []);
}

/// No server starts without the key, though nothing else needs it.
#[test]
fn damaged_key_is_recreated() {
    let keys = |site: &Site| VolumeDir::new(site.volume.root()).read_key();
    let cut = |site: &Site| std::fs::write(site.volume.key_file(), b"short").unwrap();
    let site = repaired(cut, FindingKind::DamagedKey, &NOTHING);
    let made = keys(&site).unwrap();
    let site =
        repaired(|site| std::fs::remove_file(site.volume.key_file()).unwrap(), FindingKind::DamagedKey, &NOTHING);
    assert_ne!(keys(&site).unwrap(), made);
}

/// No server starts without the volume file; nor does it start on another one.
#[test]
fn volume_file_is_restored_from_its_copy() {
    let text = |site: &Site| std::fs::read_to_string(site.volume.volume_file()).unwrap();
    let sound = text(&Site::new());
    let cut = |site: &Site| std::fs::write(site.volume.volume_file(), "format_version = 4\nid = \"00").unwrap();
    let lost = |site: &Site| std::fs::remove_file(site.volume.volume_file()).unwrap();
    let damages: [&dyn Fn(&Site); 2] = [&cut, &lost];
    for damage in damages {
        let site = repaired(damage, FindingKind::DamagedVolumeFile, &NOTHING);
        assert_eq!(text(&site), sound);
    }
}

/// Only the copy is damaged: nothing needs it before the file is damaged too.
#[test]
fn damaged_volume_file_copy_is_restored() {
    let text = |site: &Site| std::fs::read_to_string(site.volume.volume_file_copy()).unwrap();
    let sound = text(&Site::new());
    for damaged in [&b"format_version = 4\nid = \"00"[..], b"", b"\xff\xfe"] {
        let damage = |site: &Site| std::fs::write(site.volume.volume_file_copy(), damaged).unwrap();
        let site = repaired(damage, FindingKind::DamagedVolumeCopy, &NOTHING);
        assert_eq!(text(&site), sound);
    }
}

#[test]
fn misplaced_rows_are_moved() {
    let damage = |site: &Site| {
        site.delete(SHARD_1, Key::Directory(DIRECTORY));
        site.put(SHARD_0, Key::Directory(DIRECTORY), Row::Directory(directory(ROOT)));
    };
    repaired(damage, FindingKind::MisplacedRow, &NOTHING);
}

#[test]
fn contradictory_rows_are_corrected() {
    let short = entry(PLAIN, EntryBody::Node(NodeRow { attributes: attributes(FileKind::Regular, 9), ..inline(b"x") }));
    let come = [("/plain", "1 Regular x")];
    let outcome = Outcome { come: &come, ..NOTHING };
    repaired(|site| site.put(SHARD_0, entry_key(ROOT, "plain"), short), FindingKind::WrongAttributes, &outcome);
    let limit = VolumeSettings::INLINE_LIMIT_MAX as usize + 1;
    let long = Bytes::from(vec![b'l'; limit]);
    let row = entry(PLAIN, EntryBody::Node(regular(limit as u64, Content::Inline(long))));
    let outcome = Outcome { changed: &["/plain"], ..NOTHING };
    let damage = |site: &Site| site.put(SHARD_0, entry_key(ROOT, "plain"), row);
    let site = repaired(damage, FindingKind::WrongAttributes, &outcome);
    assert_eq!(std::fs::read(site.volume.backing_file(PLAIN)).unwrap().len(), limit);
    let kind = entry(LINKED, EntryBody::Reference(FileKind::Fifo));
    repaired(|site| site.put(SHARD_0, entry_key(ROOT, "one"), kind), FindingKind::WrongAttributes, &NOTHING);
}

#[test]
fn undecodable_rows_are_set_aside() {
    let garbage = |site: &Site| {
        site.edit(SHARD_0, |batch| batch.put(codec::encode_key(&entry_key(ROOT, "plain")), b"\x01garbage"));
    };
    let outcome = Outcome { gone: &["/plain"], ..NOTHING };
    let site = repaired(garbage, FindingKind::DamagedRow, &outcome);
    let kept: Vec<_> = std::fs::read_dir(site.volume.damaged()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(std::fs::read(&kept[0]).unwrap().ends_with(b"\x01garbage"));
}

/// Several damages at once.
#[test]
fn several_damages_are_repaired_together() {
    let damage = |site: &Site| {
        site.delete(SHARD_0, Key::Inode(LINKED));
        site.delete(SHARD_1, Key::Directory(DIRECTORY));
        site.delete(SHARD_0, Key::Counter);
        site.delete(SHARD_0, Key::Partition(ROOT, FIRST));
        std::fs::write(site.volume.backing_file(InodeId(60)), b"stray").unwrap();
        std::fs::remove_file(site.volume.backing_file(LARGE)).unwrap();
    };
    let come = [("/lost+found/3", "1 Regular "), ("/lost+found/3c", "1 Regular stray")];
    let outcome = Outcome { gone: &["/one", "/dir/two", "/large"], come: &come, ..NOTHING };
    repaired(damage, FindingKind::MissingPartition, &outcome);
}
