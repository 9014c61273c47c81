//! Lookup, create, mkdir, unlink, rmdir and link by table: cases that random sequences do not reach or do not show.

use super::table::{ReferenceTable, name, shards, user};
use crate::{
    At, Create, CreateUnnamed, Decision, Effect, Entry, GetDirectory, LINKS_MAX, Link, List, Lookup, MakeDirectory,
    NewNode, Node, Promote, Refusal, RemoveDirectory, ReviveDirectory, SetXattr, Unlink, XattrMode,
};
use bytes::Bytes;
use varve_schema::{Change, EntryBody, Key, Row};
use varve_types::{Credentials, Errno, FileKind, InodeId, LayoutGeneration, Mode, NameHash, PartitionIndex};

pub fn create(
    table: &mut ReferenceTable,
    parent: InodeId,
    text: &str,
    mode: u16,
    who: &Credentials,
) -> Result<Node, Refusal> {
    table.run(&Create { parent, name: name(text), node: NewNode::Regular, mode: Mode(mode) }, who)
}

pub fn mkdir(
    table: &mut ReferenceTable,
    parent: InodeId,
    text: &str,
    mode: u16,
    who: &Credentials,
) -> Result<Node, Refusal> {
    table.run(&MakeDirectory { parent, name: name(text), mode: Mode(mode) }, who)
}

pub fn root() -> Credentials {
    Credentials::root()
}

pub fn refused<T>(errno: Errno) -> Result<T, Refusal> {
    Err(Refusal::Errno(errno))
}

fn lookup(table: &mut ReferenceTable, parent: InodeId, text: &str, who: &Credentials) -> Result<Entry, Refusal> {
    table.run(&Lookup { parent, name: name(text) }, who)
}

fn unlink(
    table: &mut ReferenceTable,
    parent: InodeId,
    text: &str,
    who: &Credentials,
) -> Result<Option<InodeId>, Refusal> {
    table.run(&Unlink { parent, name: name(text) }, who).map(|removed| removed.last_name_of)
}

#[test]
fn lookup_in_removed_directory_fails() {
    let mut table = ReferenceTable::new();
    let gone = InodeId(999);
    assert_eq!(lookup(&mut table, gone, "a", &root()), refused(Errno::ENOENT));
    assert_eq!(create(&mut table, gone, "a", 0o644, &root()), refused(Errno::ENOENT));
    assert_eq!(mkdir(&mut table, gone, "a", 0o755, &root()), refused(Errno::ENOENT));
    assert_eq!(unlink(&mut table, gone, "a", &root()), refused(Errno::ENOENT));
}

/// Errors come in Linux's order: search permission before the name, an existing name before write permission.
#[test]
fn create_errors_follow_linux_order() {
    let mut table = ReferenceTable::new();
    let closed = mkdir(&mut table, InodeId::ROOT, "closed", 0o700, &root()).unwrap().inode;
    let visible = mkdir(&mut table, InodeId::ROOT, "visible", 0o755, &root()).unwrap().inode;
    create(&mut table, visible, "taken", 0o644, &root()).unwrap();
    let who = user(1000);
    assert_eq!(create(&mut table, closed, "a", 0o644, &who), refused(Errno::EACCES));
    assert_eq!(create(&mut table, visible, "taken", 0o644, &who), refused(Errno::EEXIST));
    assert_eq!(create(&mut table, visible, "free", 0o644, &who), refused(Errno::EACCES));
    assert_eq!(lookup(&mut table, closed, "missing", &who), refused(Errno::EACCES));
    assert_eq!(lookup(&mut table, visible, "missing", &who), refused(Errno::ENOENT));
}

#[test]
fn create_writes_one_entry_and_one_count() {
    let table = ReferenceTable::new();
    let verb = Create { parent: InodeId::ROOT, name: name("a"), node: NewNode::Regular, mode: Mode(0o640) };
    let Decision::Commit { changes, effects, outcome } = table.decide(&verb, &user(1000)) else {
        panic!("a create commits");
    };
    assert_eq!(effects, []);
    assert!(matches!(
        &changes[..],
        [Change::Put(Key::Entry(..), _), Change::Tally { entries: 1, subdirectories: 0, .. }]
    ));
    let a = outcome.attributes;
    assert_eq!((a.kind, a.mode, a.uid, a.gid, a.nlink, a.size), (FileKind::Regular, Mode(0o640), 1000, 1000, 1, 0));
    assert!(!outcome.by_inode);
}

/// symlink(2): an empty target is ENOENT, one beyond PATH_MAX is ENAMETOOLONG; a symlink's size is its target's length.
#[test]
fn targets_of_symlinks_are_bounded() {
    let mut table = ReferenceTable::new();
    for (length, expected) in [(0, Err(Errno::ENOENT)), (4095, Ok(4095)), (4096, Err(Errno::ENAMETOOLONG))] {
        let node = NewNode::Symlink { target: Bytes::from(vec![b'x'; length]) };
        let verb = Create { parent: InodeId::ROOT, name: name(&format!("l{length}")), node, mode: Mode(0) };
        let answer = table.run(&verb, &root()).map(|node| (node.attributes.size, node.attributes.mode));
        assert_eq!(answer, expected.map(|size| (size, Mode(0o777))).map_err(Refusal::Errno));
    }
}

#[test]
fn set_gid_directory_passes_on_its_group() {
    let mut table = ReferenceTable::new();
    let shared = mkdir(&mut table, InodeId::ROOT, "shared", 0o777, &root()).unwrap().inode;
    let Some(Row::Directory(row)) = table.rows.get_mut(&Key::Directory(shared)) else { panic!("no directory row") };
    (row.mode, row.gid) = (Mode(0o2777), 50);
    let Some(Row::Partition(row)) = table.rows.get_mut(&Key::Partition(shared, PartitionIndex::FIRST)) else {
        panic!("no partition row")
    };
    (row.mode, row.gid) = (Mode(0o2777), 50);
    let who = user(1000);
    let file = create(&mut table, shared, "f", 0o2755, &who).unwrap().attributes;
    assert_eq!((file.gid, file.mode), (50, Mode(0o755)), "not of the group: cannot make a set-group-id program");
    let data = create(&mut table, shared, "d", 0o2644, &who).unwrap().attributes;
    assert_eq!((data.gid, data.mode), (50, Mode(0o2644)), "without execution the bit is no right");
    let below = mkdir(&mut table, shared, "b", 0o4755, &who).unwrap().attributes;
    assert_eq!((below.gid, below.mode), (50, Mode(0o2755)));
}

#[test]
fn new_directory_lives_on_the_shard_of_its_id() {
    let mut table = ReferenceTable::new();
    let inode = mkdir(&mut table, InodeId::ROOT, "d", 0o755, &root()).unwrap().inode;
    let node = table.run(&GetDirectory { directory: inode }, &root()).unwrap();
    assert_eq!((node.row.parent, node.counts.entries, node.counts.subdirectories), (InodeId::ROOT, 0, 0));
    assert_eq!(node.map.shard_of(inode.shard(), NameHash::LAST), inode.shard());
    assert_eq!(node.map.shards(), shards());
    let parent = table.run(&GetDirectory { directory: InodeId::ROOT }, &root()).unwrap();
    assert_eq!((parent.counts.entries, parent.counts.subdirectories, parent.node().attributes.nlink), (1, 1, 3));
}

#[test]
fn only_root_makes_devices_but_whiteouts() {
    let mut table = ReferenceTable::new();
    let whiteout = NewNode::CharDevice { rdev: 0 };
    let verb = Create { parent: InodeId::ROOT, name: name("whiteout"), node: whiteout, mode: Mode(0) };
    let attributes = table.run(&verb, &user(1000)).unwrap().attributes;
    assert_eq!((attributes.kind, attributes.rdev, attributes.uid), (FileKind::CharDevice, 0, 1000));
    let devices = [NewNode::CharDevice { rdev: 1 }, NewNode::BlockDevice { rdev: 0 }, NewNode::BlockDevice { rdev: 1 }];
    for node in devices {
        let verb = Create { parent: InodeId::ROOT, name: name("dev"), node, mode: Mode(0o600) };
        assert_eq!(table.run(&verb, &user(1000)), refused(Errno::EPERM));
    }
}

/// unlink(2) of a directory is EISDIR on Linux, rmdir(2) of anything else ENOTDIR, of a full one ENOTEMPTY.
#[test]
fn files_are_unlinked_and_empty_directories_removed() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, InodeId::ROOT, "d", 0o755, &root()).unwrap().inode;
    create(&mut table, directory, "f", 0o644, &root()).unwrap();
    let remove = |parent, text: &str| RemoveDirectory { parent, name: name(text) };
    assert_eq!(unlink(&mut table, InodeId::ROOT, "d", &root()), refused(Errno::EISDIR));
    assert_eq!(table.run(&remove(directory, "f"), &root()), refused(Errno::ENOTDIR));
    assert_eq!(table.run(&remove(InodeId::ROOT, "d"), &root()), refused(Errno::ENOTEMPTY));
    unlink(&mut table, directory, "f", &root()).unwrap();
    let removed = table.run(&remove(InodeId::ROOT, "d"), &root()).unwrap();
    assert_eq!(removed.last_name_of, Some(directory));
    assert_eq!(table.rows.len(), 2, "the root's rows alone are left");
}

/// A directory is empty only if all its partitions are, and its removal deletes all of them.
#[test]
fn rmdir_removes_all_partitions() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, InodeId::ROOT, "d", 0o755, &root()).unwrap().inode;
    for i in 0..20 {
        create(&mut table, directory, &i.to_string(), 0o644, &root()).unwrap();
        table.split(directory, NameHash(i << 58));
    }
    assert!(table.partitions(directory).len() > 4);
    let remove = RemoveDirectory { parent: InodeId::ROOT, name: name("d") };
    for i in 0..20 {
        assert_eq!(table.run(&remove, &root()), refused(Errno::ENOTEMPTY));
        unlink(&mut table, directory, &i.to_string(), &root()).unwrap();
    }
    table.run(&remove, &root()).unwrap();
    assert_eq!(table.rows.len(), 2, "the root's rows alone are left");
}

#[test]
fn sticky_directory_protects_files_of_others() {
    let mut table = ReferenceTable::new();
    let tmp = mkdir(&mut table, InodeId::ROOT, "tmp", 0o1777, &user(5)).unwrap().inode;
    for text in ["a", "b", "c"] {
        create(&mut table, tmp, text, 0o666, &user(1000)).unwrap();
    }
    assert_eq!(unlink(&mut table, tmp, "a", &user(1001)), refused(Errno::EPERM));
    assert!(unlink(&mut table, tmp, "a", &user(1000)).is_ok(), "the file's owner");
    assert!(unlink(&mut table, tmp, "b", &user(5)).is_ok(), "the directory's owner");
    assert!(unlink(&mut table, tmp, "c", &root()).is_ok());
}

#[test]
fn unlink_of_last_name_reaps_backing_file() {
    let mut table = ReferenceTable::new();
    let file = create(&mut table, InodeId::ROOT, "f", 0o644, &root()).unwrap().inode;
    let at = At::Entry { parent: InodeId::ROOT, name: name("f"), inode: file };
    table.run(&Promote { at, generation: LayoutGeneration(0), size: 100 }, &root()).unwrap();
    table.backing.insert(file, (100, table.now));
    assert_eq!(unlink(&mut table, InodeId::ROOT, "f", &root()), Ok(Some(file)));
    assert_eq!(table.effects.last(), Some(&Effect::Reap(file)));
}

/// An open file that loses its last name becomes an orphan, and its content stays.
#[test]
fn an_open_file_without_a_name_is_an_orphan() {
    let mut table = ReferenceTable::new();
    let file = create(&mut table, InodeId::ROOT, "f", 0o644, &root()).unwrap().inode;
    table.open.insert(file);
    assert_eq!(unlink(&mut table, InodeId::ROOT, "f", &root()), Ok(Some(file)));
    assert_eq!(table.inode_row(file).unwrap().attributes.nlink, 0);
    assert!(table.rows.contains_key(&Key::Orphan(file)));
    assert_eq!(table.effects, []);
    let link = Link { source: At::Inode(file), parent: InodeId::ROOT, name: name("again") };
    assert_eq!(table.run(&link, &root()), refused(Errno::ENOENT), "linkat(2): no way back");
}

#[test]
fn a_second_name_moves_a_file_into_an_inode_row() {
    let mut table = ReferenceTable::new();
    let file = create(&mut table, InodeId::ROOT, "f", 0o644, &root()).unwrap().inode;
    let source = At::Entry { parent: InodeId::ROOT, name: name("f"), inode: file };
    let link = Link { source: source.clone(), parent: InodeId::ROOT, name: name("g") };
    assert_eq!(table.run(&link, &root()), Ok(Entry::Elsewhere { inode: file, kind: FileKind::Regular }));
    assert_eq!(table.run(&link, &root()), Err(Refusal::NotHere), "the entry holds no attributes any more");
    for text in ["f", "g"] {
        let body = &table.entry(InodeId::ROOT, &name(text)).unwrap().body;
        assert_eq!(*body, EntryBody::Reference(FileKind::Regular));
    }
    assert_eq!(table.inode_row(file).unwrap().attributes.nlink, 2);
    assert_eq!(unlink(&mut table, InodeId::ROOT, "f", &root()), Ok(None));
    assert_eq!(unlink(&mut table, InodeId::ROOT, "g", &root()), Ok(Some(file)));
    assert_eq!(table.rows.len(), 2, "the root's rows alone are left");
}

#[test]
fn links_have_a_limit_and_directories_have_none() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, InodeId::ROOT, "d", 0o755, &root()).unwrap().inode;
    let link = |inode, text: &str| Link { source: At::Inode(inode), parent: InodeId::ROOT, name: name(text) };
    assert_eq!(table.run(&link(directory, "e"), &root()), refused(Errno::EPERM));
    let file = create(&mut table, InodeId::ROOT, "f", 0o644, &root()).unwrap().inode;
    let source = At::Entry { parent: InodeId::ROOT, name: name("f"), inode: file };
    table.run(&Link { source, parent: InodeId::ROOT, name: name("g") }, &root()).unwrap();
    let Some(Row::Inode(row)) = table.rows.get_mut(&Key::Inode(file)) else { panic!("no inode row") };
    row.attributes.nlink = LINKS_MAX;
    assert_eq!(table.run(&link(file, "h"), &root()), refused(Errno::EMLINK));
    assert_eq!(table.run(&link(file, "g"), &root()), refused(Errno::EEXIST), "before the limit is looked at");
}

/// A reference without its inode row gives an error and no panic, because it may be damage.
#[test]
fn entry_without_inode_row_is_reported() {
    let mut table = ReferenceTable::new();
    let file = create(&mut table, InodeId::ROOT, "f", 0o644, &root()).unwrap().inode;
    let at = At::Entry { parent: InodeId::ROOT, name: name("f"), inode: file };
    let xattr = SetXattr { at, name: "user.a".into(), value: "1".into(), mode: XattrMode::Create };
    table.run(&xattr, &root()).unwrap();
    table.rows.remove(&Key::Inode(file));
    assert_eq!(unlink(&mut table, InodeId::ROOT, "f", &root()), Err(Refusal::Torn(file)));
}

/// A directory whose rows were lost is recreated as it was made, for any caller who may search the parent; a directory
/// that has its rows stays unchanged.
#[test]
fn lost_directories_are_revived_empty() {
    let mut table = ReferenceTable::new();
    let owner = user(1000);
    let made = mkdir(&mut table, InodeId::ROOT, "d", 0o750, &owner).unwrap();
    let revive = |at: &str| ReviveDirectory { parent: InodeId::ROOT, name: name(at) };
    create(&mut table, made.inode, "kept", 0o644, &owner).unwrap();
    assert_eq!(table.run(&revive("d"), &user(1001)).unwrap().attributes.size, 1, "it is not lost");

    table.rows.retain(|key, _| match key {
        Key::Directory(inode) | Key::Partition(inode, _) | Key::Entry(inode, _) => *inode != made.inode,
        _ => true,
    });
    let revived = table.run(&revive("d"), &user(1001)).unwrap();
    assert_eq!((revived.inode, revived.attributes), (made.inode, made.attributes));
    assert_eq!(table.directory_row(made.inode).unwrap().parent, InodeId::ROOT);
    create(&mut table, made.inode, "new", 0o644, &owner).unwrap();
    assert_eq!(table.run(&revive("nothing"), &owner), refused(Errno::ENOENT));
    create(&mut table, InodeId::ROOT, "file", 0o644, &owner).unwrap();
    assert_eq!(table.run(&revive("file"), &owner), refused(Errno::ENOTDIR));
}

/// Listing requires read permission; search permission is not enough.
#[test]
fn listing_needs_read_permission() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, InodeId::ROOT, "d", 0o711, &user(1000)).unwrap().inode;
    let list = List { directory, from: NameHash(0) };
    table.run(&list, &user(1000)).unwrap();
    table.run(&list, &root()).unwrap();
    assert_eq!(table.run(&list, &user(1001)), refused(Errno::EACCES));
    let gone = List { directory: InodeId(999), from: NameHash(0) };
    assert_eq!(table.run(&gone, &root()), refused(Errno::ENOENT));
}

/// open(2) with O_TMPFILE: the file is an orphan. Without O_EXCL, link(2) gives it a name once.
#[test]
fn unnamed_file_gets_its_name_by_link() {
    let mut table = ReferenceTable::new();
    let closed = mkdir(&mut table, InodeId::ROOT, "closed", 0o755, &root()).unwrap().inode;
    let unnamed = |parent, linkable| CreateUnnamed { parent, at: NameHash::FIRST, mode: Mode(0o640), linkable };
    let link = |source, text: &str| Link { source: At::Inode(source), parent: InodeId::ROOT, name: name(text) };
    let user = user(1000);
    assert_eq!(table.run(&unnamed(InodeId(999), true), &user), refused(Errno::ENOENT));
    assert_eq!(table.run(&unnamed(closed, true), &user), refused(Errno::EACCES));

    let made = table.run(&unnamed(InodeId::ROOT, true), &user).unwrap();
    assert_eq!((made.attributes.nlink, made.attributes.uid, made.by_inode), (0, 1000, true));
    assert!(table.rows.contains_key(&Key::Orphan(made.inode)));
    assert!(table.entries(InodeId::ROOT).iter().all(|(name, _)| name.as_bytes() == b"closed"));
    table.run(&link(made.inode, "named"), &user).unwrap();
    assert!(!table.rows.contains_key(&Key::Orphan(made.inode)));
    assert_eq!(table.inode_row(made.inode).unwrap().attributes.nlink, 1);

    // With its last name removed it is like any other file.
    table.open.insert(made.inode);
    unlink(&mut table, InodeId::ROOT, "named", &user).unwrap();
    assert_eq!(table.run(&link(made.inode, "again"), &user), refused(Errno::ENOENT));
    let exclusive = table.run(&unnamed(InodeId::ROOT, false), &user).unwrap();
    assert_eq!(table.run(&link(exclusive.inode, "never"), &user), refused(Errno::ENOENT));
}
