//! Rename by table: the cases of rename(2) and renameat2(2) that random sequences seldom reach.

use super::names::{create, mkdir, refused, root};
use super::table::{ReferenceTable, name, user};
use crate::{At, Decision, GetAttributes, Refusal, Rename, RenameFlags, Unlink};
use varve_schema::{Change, EntryBody, Key};
use varve_types::{Credentials, Errno, FileKind, InodeId, Mode};

fn verb(parent: InodeId, text: &str, new_parent: InodeId, new: &str, flags: RenameFlags) -> Rename {
    Rename { parent, name: name(text), new_parent, new_name: name(new), flags }
}

fn rename(
    table: &mut ReferenceTable,
    (parent, text): (InodeId, &str),
    (new_parent, new): (InodeId, &str),
    who: &Credentials,
) -> Result<Option<InodeId>, Refusal> {
    let verb = verb(parent, text, new_parent, new, RenameFlags::Replace);
    table.run(&verb, who).map(|removed| removed.last_name_of)
}

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn rename_requires_matching_types() {
    let mut table = ReferenceTable::new();
    create(&mut table, ROOT, "file", 0o644, &root()).unwrap();
    let full = mkdir(&mut table, ROOT, "full", 0o755, &root()).unwrap().inode;
    create(&mut table, full, "inside", 0o644, &root()).unwrap();
    let empty = mkdir(&mut table, ROOT, "empty", 0o755, &root()).unwrap().inode;
    assert_eq!(rename(&mut table, (ROOT, "full"), (ROOT, "file"), &root()), refused(Errno::ENOTDIR));
    assert_eq!(rename(&mut table, (ROOT, "file"), (ROOT, "empty"), &root()), refused(Errno::EISDIR));
    assert_eq!(rename(&mut table, (ROOT, "empty"), (ROOT, "full"), &root()), refused(Errno::ENOTEMPTY));
    assert_eq!(rename(&mut table, (ROOT, "nothing"), (ROOT, "full"), &root()), refused(Errno::ENOENT));
    assert_eq!(rename(&mut table, (ROOT, "full"), (ROOT, "empty"), &root()), Ok(Some(empty)));
    assert_eq!(table.entry(ROOT, &name("empty")).unwrap().inode, full);
    assert!(!table.rows.contains_key(&Key::Directory(empty)));
}

/// The cycle check climbs any number of levels.
#[test]
fn directory_cannot_move_into_itself() {
    let mut table = ReferenceTable::new();
    let mut chain = vec![ROOT];
    for level in 0..30 {
        let parent = chain[level];
        chain.push(mkdir(&mut table, parent, "d", 0o777, &root()).unwrap().inode);
    }
    assert_eq!(rename(&mut table, (ROOT, "d"), (chain[1], "e"), &root()), refused(Errno::EINVAL));
    assert_eq!(rename(&mut table, (ROOT, "d"), (chain[30], "e"), &root()), refused(Errno::EINVAL));
    assert_eq!(rename(&mut table, (chain[29], "d"), (ROOT, "d"), &root()), refused(Errno::ENOTEMPTY));
    create(&mut table, chain[30], "file", 0o644, &root()).unwrap();
    assert_eq!(
        rename(&mut table, (chain[30], "file"), (ROOT, "d"), &root()),
        refused(Errno::ENOTEMPTY),
        "onto what it is in: as Linux says it, before the kinds are compared"
    );
    let exchange = verb(chain[30], "file", ROOT, "d", RenameFlags::Exchange);
    assert_eq!(table.run(&exchange, &root()), refused(Errno::EINVAL));
    assert_eq!(rename(&mut table, (chain[29], "d"), (ROOT, "e"), &root()), Ok(None));
    assert_eq!(table.directory_row(chain[30]).unwrap().parent, ROOT);
}

#[test]
fn rename_flags_handle_an_existing_target() {
    let mut table = ReferenceTable::new();
    let a = create(&mut table, ROOT, "a", 0o644, &root()).unwrap().inode;
    let d = mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap().inode;
    let run = |table: &mut ReferenceTable, from: &str, to: &str, flags| {
        table.run(&verb(ROOT, from, ROOT, to, flags), &root())
    };
    assert_eq!(run(&mut table, "a", "d", RenameFlags::NoReplace), refused(Errno::EEXIST));
    assert_eq!(run(&mut table, "a", "a", RenameFlags::NoReplace), refused(Errno::EEXIST));
    assert_eq!(run(&mut table, "a", "b", RenameFlags::Exchange), refused(Errno::ENOENT));
    assert!(run(&mut table, "a", "d", RenameFlags::Exchange).is_ok());
    assert_eq!(table.entry(ROOT, &name("a")).unwrap().inode, d);
    assert_eq!(table.entry(ROOT, &name("d")).unwrap().inode, a);
    assert!(run(&mut table, "a", "b", RenameFlags::NoReplace).is_ok());
}

/// Moving a directory to another parent changes its `..` and so requires write permission on the directory itself; a
/// rename within the parent does not.
#[test]
fn reparented_directory_must_be_writable() {
    let mut table = ReferenceTable::new();
    let who = user(1000);
    let to = mkdir(&mut table, ROOT, "to", 0o777, &root()).unwrap().inode;
    mkdir(&mut table, ROOT, "locked", 0o555, &who).unwrap();
    assert_eq!(rename(&mut table, (ROOT, "locked"), (to, "locked"), &who), refused(Errno::EACCES));
    assert_eq!(rename(&mut table, (ROOT, "locked"), (ROOT, "moved"), &who), Ok(None));
}

#[test]
fn sticky_directories_guard_both_names() {
    let mut table = ReferenceTable::new();
    let tmp = mkdir(&mut table, ROOT, "tmp", 0o1777, &root()).unwrap().inode;
    create(&mut table, tmp, "theirs", 0o666, &user(1001)).unwrap();
    create(&mut table, tmp, "mine", 0o666, &user(1000)).unwrap();
    let who = user(1000);
    assert_eq!(rename(&mut table, (tmp, "theirs"), (ROOT, "x"), &who), refused(Errno::EPERM));
    assert_eq!(rename(&mut table, (tmp, "mine"), (tmp, "theirs"), &who), refused(Errno::EPERM));
    assert_eq!(rename(&mut table, (tmp, "mine"), (tmp, "free"), &who), Ok(None));
}

/// Attribute changes name the inode id. An open file that is renamed keeps a location that its descriptors can find.
#[test]
fn renamed_open_file_gets_an_inode_row() {
    let mut table = ReferenceTable::new();
    let file = create(&mut table, ROOT, "f", 0o644, &root()).unwrap().inode;
    table.open.insert(file);
    rename(&mut table, (ROOT, "f"), (ROOT, "g"), &root()).unwrap();
    assert_eq!(table.entry(ROOT, &name("g")).unwrap().body, EntryBody::Reference(FileKind::Regular));
    let old = At::Entry { parent: ROOT, name: name("f"), inode: file };
    assert_eq!(table.run(&GetAttributes { at: old }, &root()), Err(Refusal::NotHere));
    assert_eq!(table.run(&GetAttributes { at: At::Inode(file) }, &root()).unwrap().inode, file);
}

/// A file that takes over a name is never mistaken for the previous one.
#[test]
fn entry_of_another_inode_returns_not_here() {
    let mut table = ReferenceTable::new();
    let first = create(&mut table, ROOT, "a", 0o644, &root()).unwrap().inode;
    create(&mut table, ROOT, "b", 0o644, &root()).unwrap();
    assert_eq!(rename(&mut table, (ROOT, "b"), (ROOT, "a"), &root()), Ok(Some(first)));
    let at = At::Entry { parent: ROOT, name: name("a"), inode: first };
    assert_eq!(table.run(&GetAttributes { at }, &root()), Err(Refusal::NotHere));
}

/// Two names of a split directory are in two partitions, and each is counted in its own.
#[test]
fn a_rename_within_a_split_directory_counts_in_both_partitions() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap().inode;
    table.split(directory, varve_types::NameHash::FIRST);
    let upper = |text: &&str| table.map(directory).partition_of(name(text).hash()).0 == 1;
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let high = names.iter().find(|text| upper(text)).unwrap();
    let low = names.iter().find(|text| !upper(text)).unwrap();
    mkdir(&mut table, directory, low, 0o755, &root()).unwrap();
    rename(&mut table, (directory, low), (directory, high), &root()).unwrap();
    let counts: Vec<(u64, u64)> =
        table.partitions(directory).iter().map(|partition| (partition.entries, partition.subdirectories)).collect();
    assert_eq!(counts, [(0, 0), (1, 1)]);
}

/// A rename within one directory reads and writes only the two names, so that it stays in the shards of their
/// partitions.
#[test]
fn rename_within_parent_keeps_the_directory_row() {
    let mut table = ReferenceTable::new();
    mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap();
    let verb = verb(ROOT, "d", ROOT, "e", RenameFlags::Replace);
    let Decision::Commit { changes, .. } = table.decide(&verb, &root()) else { panic!("a rename commits") };
    let outside = |change: &Change| !matches!(change, Change::Put(Key::Entry(..), _) | Change::Delete(Key::Entry(..)));
    assert!(changes.iter().filter(|change| outside(change)).all(|change| matches!(change, Change::Tally { .. })));
}

/// RENAME_WHITEOUT: the old name becomes a character device 0:0 of the caller, also for a directory.
#[test]
fn rename_leaves_a_whiteout_if_asked() {
    let mut table = ReferenceTable::new();
    let who = user(1000);
    create(&mut table, ROOT, "file", 0o644, &root()).unwrap();
    mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap();
    for old in ["file", "d"] {
        let moved = table.entry(ROOT, &name(old)).unwrap().inode;
        table.run(&verb(ROOT, old, ROOT, "new", RenameFlags::WhiteoutNoReplace), &who).unwrap();
        assert_eq!(table.entry(ROOT, &name("new")).unwrap().inode, moved);
        let EntryBody::Node(row) = &table.entry(ROOT, &name(old)).unwrap().body else { panic!("no whiteout") };
        let attributes = row.attributes;
        assert_eq!((attributes.kind, attributes.rdev, attributes.mode), (FileKind::CharDevice, 0, Mode(0)));
        assert_eq!((attributes.uid, attributes.nlink), (1000, 1));
        let again = verb(ROOT, "new", ROOT, old, RenameFlags::WhiteoutNoReplace);
        assert_eq!(table.run(&again, &who), refused(Errno::EEXIST));
        table.run(&verb(ROOT, "new", ROOT, "other", RenameFlags::Whiteout), &who).unwrap();
        table.run(&verb(ROOT, "other", ROOT, "elsewhere", RenameFlags::Replace), &who).unwrap();
        table.run(&Unlink { parent: ROOT, name: name("new") }, &who).unwrap();
        if old == "file" {
            table.run(&Unlink { parent: ROOT, name: name("elsewhere") }, &who).unwrap();
        }
    }
}
