//! Repairs of backing files and of files that should have one.

use super::repair::kill_point::BATCHES_LEFT;
use super::repairs::{NOTHING, Outcome, repaired};
use super::*;

#[test]
fn unnamed_data_gets_a_name() {
    let inode = InodeId((1 << 48) | 77);
    let come = [("/lost+found/100000000004d", "1 Regular bytes")];
    let damage = |site: &Site| {
        std::fs::write(site.volume.backing_file(inode), b"bytes").unwrap();
        std::fs::write(site.volume.backing_file(InodeId(78)), b"").unwrap();
    };
    repaired(damage, FindingKind::StrayBackingFile, &Outcome { come: &come, ..NOTHING });
    // Content under the id of another object gets an id of its own; if the id is beyond the counter, the counter is
    // raised.
    let twin = |site: &Site| std::fs::write(site.volume.backing_file(PLAIN), b"bytes").unwrap();
    let come = [("/lost+found/64", "1 Regular bytes")];
    repaired(twin, FindingKind::StrayBackingFile, &Outcome { come: &come, ..NOTHING });
    let beyond = |site: &Site| std::fs::write(site.volume.backing_file(InodeId(5000)), b"bytes").unwrap();
    let come = [("/lost+found/1388", "1 Regular bytes")];
    repaired(beyond, FindingKind::StrayBackingFile, &Outcome { come: &come, ..NOTHING });
}

#[test]
fn a_name_without_data_is_set_apart() {
    let come = [("/lost+found/3", "1 Regular ")];
    let outcome = Outcome { gone: &["/large"], come: &come, ..NOTHING };
    let damage = |site: &Site| std::fs::remove_file(site.volume.backing_file(LARGE)).unwrap();
    repaired(damage, FindingKind::MissingBackingFile, &outcome);
    let linked = |site: &Site| {
        let mut row = backing(5, BackingSize::Authoritative);
        row.attributes.nlink = 2;
        row.xattrs = vec![Bytes::from_static(b"user.x")];
        site.put(SHARD_0, Key::Inode(LINKED), Row::Inode(row));
    };
    let come = [("/lost+found/4", "1 Regular ")];
    let outcome = Outcome { gone: &["/one", "/dir/two"], come: &come, ..NOTHING };
    repaired(linked, FindingKind::MissingBackingFile, &outcome);
}

/// Promise: if a repair is interrupted at any point while it moves a name without data to lost+found, the next one
/// completes it, with the result of an uninterrupted repair.
#[test]
fn a_name_without_data_is_set_apart_once() {
    let both = |site: &Site| {
        std::fs::remove_file(site.volume.backing_file(LARGE)).unwrap();
        let mut row = backing(5, BackingSize::Authoritative);
        row.attributes.nlink = 2;
        row.xattrs = vec![Bytes::from_static(b"user.x")];
        site.put(SHARD_0, Key::Inode(LINKED), Row::Inode(row));
        // Some of the names that a repair finds are in the other shard.
        let row = entry(InodeId(50), EntryBody::Node(backing(7, BackingSize::Authoritative)));
        site.put(SHARD_1, entry_key(DIRECTORY, "far"), row);
        site.put(SHARD_1, Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(partition(2, 0)));
    };
    let at_once = Site::new();
    both(&at_once);
    repair(&at_once.volume, MissingContent::SetApart, &mut |_| {}).unwrap();
    let expected = at_once.tree();
    assert_eq!(expected.keys().filter(|path| path.starts_with("/lost+found/")).count(), 3, "{expected:#?}");
    for batches in 0.. {
        let site = Site::new();
        both(&site);
        BATCHES_LEFT.set(Some(batches));
        let first = repair(&site.volume, MissingContent::SetApart, &mut |_| {});
        BATCHES_LEFT.set(None);
        let repaired = repair(&site.volume, MissingContent::SetApart, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.findings, [], "after {batches} batches: {:#?}", repaired.repairs);
        assert_eq!(site.tree(), expected, "after {batches} batches: {:#?}", repaired.repairs);
        if first.is_ok() {
            assert!(batches >= 5, "it was broken off {batches} times");
            return;
        }
    }
}

#[test]
fn sizes_are_those_of_the_data() {
    let come = [("/large", "1 Regular longer")];
    let outcome = Outcome { come: &come, ..NOTHING };
    let longer = |site: &Site| std::fs::write(site.volume.backing_file(LARGE), b"longer").unwrap();
    repaired(longer, FindingKind::WrongSize, &outcome);
    let left = |site: &Site| {
        longer(site);
        site.put(SHARD_0, entry_key(ROOT, "large"), entry(LARGE, EntryBody::Node(size_stale(3))));
    };
    let site = repaired(left, FindingKind::StaleSize, &outcome);
    assert!(!site.volume.damaged().join("cut.txt").exists());
    let truncating = |site: &Site| {
        let row = entry(LARGE, EntryBody::Node(backing(3, BackingSize::Truncating(1))));
        site.put(SHARD_0, entry_key(ROOT, "large"), row);
    };
    let come = [("/large", "1 Regular a")];
    repaired(truncating, FindingKind::PendingTruncate, &Outcome { come: &come, ..NOTHING });
}

/// For truncated files, the remaining bytes are kept and the former sizes are recorded, with their paths.
#[test]
fn truncated_files_are_noted() {
    let come = [("/large", "1 Regular ab"), ("/dir/deep", "1 Regular cd")];
    let cut = |site: &Site| {
        std::fs::write(site.volume.backing_file(LARGE), b"ab").unwrap();
        let deep = InodeId(DIRECTORY.0 + 1);
        std::fs::write(site.volume.backing_file(deep), b"cd").unwrap();
        site.put(SHARD_1, entry_key(DIRECTORY, "deep"), entry(deep, EntryBody::Node(size_stale(9))));
        site.put(SHARD_1, Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(partition(2, 0)));
    };
    let site = repaired(cut, FindingKind::WrongSize, &Outcome { come: &come, ..NOTHING });
    let noted = std::fs::read_to_string(site.volume.damaged().join("cut.txt")).unwrap();
    let mut lines: Vec<&str> = noted.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["/dir/deep\t9\t2", "/large\t3\t2"]);
}
