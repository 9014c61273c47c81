//! Attributes, open, content and the location of content, by table.

use super::names::{create, mkdir, refused, root};
use super::table::{ReferenceTable, at_second, name, user};
use crate::reference::INLINE_LIMIT;
use crate::{
    AbandonTruncate, At, BackingFile, ChangeAttributes, Decision, DirectoryNode, Effect, FindTruncate, FinishTruncate,
    GetAttributes, Granted, Link, MarkSizeStale, Node, NodeContent, Open, OpenMode, PartitionTotals, PendingTruncate,
    Promote, RaiseSize, ReadLink, RecordSize, Refusal, SizeState, WriteInline,
};
use bytes::Bytes;
use varve_schema::{BackingSize, Change, Content, EntryBody, Key, Row};
use varve_types::{Credentials, Errno, InodeId, LayoutGeneration, Mode, NameHash, SetAttributes, SetTime, Timestamp};

const ROOT: InodeId = InodeId::ROOT;
const INLINE: LayoutGeneration = LayoutGeneration(0);
const BACKING: LayoutGeneration = LayoutGeneration(1);

fn file(table: &mut ReferenceTable, mode: u16, who: &Credentials) -> At {
    let inode = create(table, ROOT, "f", mode, who).unwrap().inode;
    At::Entry { parent: ROOT, name: name("f"), inode }
}

fn promoted(table: &mut ReferenceTable, mode: u16, who: &Credentials) -> At {
    let at = file(table, mode, who);
    table.run(&Promote { at: at.clone(), generation: INLINE, size: 100 }, who).unwrap();
    table.backing.insert(at.inode(), (100, table.now));
    at
}

fn backing(at: &At, generation: LayoutGeneration) -> BackingFile {
    BackingFile { at: at.clone(), generation }
}

fn size_stale(at_least: u64) -> Content {
    Content::Backing(BackingSize::Stale { at_least })
}

fn set(table: &mut ReferenceTable, at: &At, set: SetAttributes, who: &Credentials) -> Result<Node, Refusal> {
    table.run(&ChangeAttributes { at: at.clone(), set }, who)
}

fn mode(bits: u16) -> SetAttributes {
    SetAttributes { mode: Some(Mode(bits)), ..SetAttributes::default() }
}

fn size(size: u64) -> SetAttributes {
    SetAttributes { size: Some(size), ..SetAttributes::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { uid, gid, ..SetAttributes::default() }
}

fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> SetAttributes {
    SetAttributes { atime, mtime, ..SetAttributes::default() }
}

fn content(table: &ReferenceTable, at: &At) -> Content {
    match (at, table.entry(ROOT, &name("f")).map(|row| &row.body)) {
        (At::Entry { .. }, Some(EntryBody::Node(row))) => row.content.clone(),
        _ => table.inode_row(at.inode()).unwrap().content.clone(),
    }
}

#[test]
fn missing_rows_return_not_here() {
    let mut table = ReferenceTable::new();
    let nowhere = [At::Inode(InodeId(999)), At::Entry { parent: ROOT, name: name("x"), inode: InodeId(999) }];
    for at in nowhere {
        assert_eq!(table.run(&GetAttributes { at: at.clone() }, &root()), Err(Refusal::NotHere));
        assert_eq!(set(&mut table, &at, mode(0o600), &root()), Err(Refusal::NotHere));
        let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
        assert_eq!(table.run(&open, &root()), Err(Refusal::NotHere));
        assert_eq!(table.run(&ReadLink { at: at.clone() }, &root()), Err(Refusal::NotHere));
        let mark_size_stale = MarkSizeStale { file: backing(&at, INLINE), at_least: u64::MAX };
        assert_eq!(table.run(&mark_size_stale, &root()), Err(Refusal::NotHere));
    }
}

/// chmod(2): the owner and root may; a caller outside the group cannot set set-group-id.
#[test]
fn owners_change_modes() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o644, &user(1000));
    assert_eq!(set(&mut table, &at, mode(0o600), &user(1001)), refused(Errno::EPERM));
    let node = set(&mut table, &at, mode(0o2755), &user(1000)).unwrap();
    assert_eq!(node.attributes.mode, Mode(0o2755));
    set(&mut table, &at, owner(None, Some(50)), &root()).unwrap();
    let node = set(&mut table, &at, mode(0o2755), &user(1000)).unwrap();
    assert_eq!(node.attributes.mode, Mode(0o755), "not of group 50");
}

/// When a user writes a file, the kernel clears set-id with a chmod in that user's name: writers may do that and
/// nothing more.
#[test]
fn writers_may_clear_set_id() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o6777, &user(1000));
    assert_eq!(set(&mut table, &at, mode(0o770), &user(1001)), refused(Errno::EPERM));
    assert_eq!(set(&mut table, &at, mode(0o777), &user(1001)).unwrap().attributes.mode, Mode(0o777));
    assert_eq!(set(&mut table, &at, mode(0o4777), &user(1001)), refused(Errno::EPERM));
}

/// chown(2): root may give files away, owners choose among their groups, and set-id bits are cleared even if root
/// calls.
#[test]
fn owners_choose_among_their_groups() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o6755, &user(1000));
    assert_eq!(set(&mut table, &at, owner(Some(1001), None), &user(1000)), refused(Errno::EPERM));
    assert_eq!(set(&mut table, &at, owner(None, Some(50)), &user(1000)), refused(Errno::EPERM));
    assert_eq!(set(&mut table, &at, owner(None, Some(3000)), &user(1001)), refused(Errno::EPERM));
    let attributes = set(&mut table, &at, owner(Some(1000), Some(3000)), &user(1000)).unwrap().attributes;
    assert_eq!((attributes.gid, attributes.mode), (3000, Mode(0o755)));
    set(&mut table, &at, mode(0o6755), &root()).unwrap();
    let attributes = set(&mut table, &at, owner(Some(7), None), &root()).unwrap().attributes;
    assert_eq!((attributes.uid, attributes.mode), (7, Mode(0o755)));
}

/// utimensat(2): only the owner sets arbitrary times; a writer may set both to now (EACCES for others); one time set to
/// now counts as arbitrary.
#[test]
fn only_owner_sets_arbitrary_times() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o646, &user(1000));
    let (now, then) = (Some(SetTime::Now), Some(SetTime::To(at_second(5))));
    let (writer, reader) = (user(1001), Credentials::user(7, 1000, Vec::new()));
    assert_eq!(set(&mut table, &at, times(then, then), &writer), refused(Errno::EPERM));
    assert_eq!(set(&mut table, &at, times(None, now), &writer), refused(Errno::EPERM));
    assert!(set(&mut table, &at, times(now, now), &writer).is_ok());
    assert_eq!(set(&mut table, &at, times(now, now), &reader), refused(Errno::EACCES));
    let attributes = set(&mut table, &at, times(None, then), &user(1000)).unwrap().attributes;
    assert_eq!(attributes.mtime, at_second(5));
    assert_eq!(attributes.ctime, table.now);
}

/// All partitions of a directory hold its mode and owner, and the fact that an mtime was set, which may be in the past
/// or the future.
#[test]
fn directory_attributes_are_copied_to_every_partition() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, ROOT, "d", 0o777, &root()).unwrap().inode;
    for i in 0..12 {
        create(&mut table, directory, &i.to_string(), 0o644, &root()).unwrap();
        table.split(directory, NameHash(i << 59));
    }
    // The row's own map is a hint and does not contain the splits.
    assert_eq!(table.directory_row(directory).unwrap().map.len(), 1);
    let at = At::Inode(directory);
    let change = SetAttributes {
        mode: Some(Mode(0o700)),
        uid: Some(9),
        mtime: Some(SetTime::To(at_second(5))),
        ..SetAttributes::default()
    };
    let node = set(&mut table, &at, change, &root()).unwrap();
    assert_eq!(node.attributes.mtime, at_second(5));
    let partitions = table.partitions(directory);
    assert!(partitions.len() > 2);
    for partition in partitions {
        assert_eq!((partition.mode, partition.uid, partition.mtime), (Mode(0o700), 9, Timestamp::NEVER));
    }
    assert_eq!(set(&mut table, &at, size(0), &root()), refused(Errno::EISDIR));
}

/// utimensat(2) of a directory, with times before and after now: the ctime is that of the call. The mtime stays as set
/// until a name changes, and is the time of that change from then on.
#[test]
fn explicit_directory_mtime_stays_until_names_change() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, ROOT, "d", 0o777, &root()).unwrap().inode;
    for i in 0..12 {
        create(&mut table, directory, &i.to_string(), 0o644, &root()).unwrap();
        table.split(directory, NameHash(i << 59));
    }
    let at = At::Inode(directory);
    let shown = |table: &ReferenceTable| {
        let row = table.directory_row(directory).unwrap().clone();
        let mut counts = PartitionTotals::default();
        table.partitions(directory).iter().for_each(|partition| counts.add(partition));
        DirectoryNode { inode: directory, map: row.map.clone(), row, depth: 0, counts }.node().attributes
    };
    for (step, to) in [at_second(5), at_second(4_000_000_000)].into_iter().enumerate() {
        set(&mut table, &at, times(None, Some(SetTime::To(to))), &root()).unwrap();
        assert_eq!((shown(&table).mtime, shown(&table).ctime), (to, table.now));
        set(&mut table, &at, mode(0o700 + step as u16), &root()).unwrap();
        assert_eq!((shown(&table).mtime, shown(&table).ctime), (to, table.now), "chmod changes no names");
        create(&mut table, directory, &format!("new {step}"), 0o644, &root()).unwrap();
        assert_eq!((shown(&table).mtime, shown(&table).ctime), (table.now, table.now));
    }
}

/// Setting only the atime changes no partition, so that the change stays in the home shard.
#[test]
fn directory_atime_is_in_its_row_only() {
    let mut table = ReferenceTable::new();
    let directory = mkdir(&mut table, ROOT, "d", 0o777, &root()).unwrap().inode;
    let verb = ChangeAttributes { at: At::Inode(directory), set: times(Some(SetTime::Now), None) };
    let Decision::Commit { changes, .. } = table.decide(&verb, &root()) else { panic!("commits") };
    assert!(matches!(&changes[..], [Change::Put(Key::Directory(_), _)]));
}

#[test]
fn inline_content_is_cut_and_filled_with_zeros() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o644, &root());
    let data = Bytes::from_static(b"hello");
    table.run(&WriteInline { at: at.clone(), generation: INLINE, data, mtime: None }, &root()).unwrap();
    set(&mut table, &at, size(2), &root()).unwrap();
    set(&mut table, &at, size(4), &root()).unwrap();
    let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
    let node = table.run(&open, &root()).unwrap();
    assert_eq!(node.content, NodeContent::Inline(Some(Bytes::from_static(b"he\0\0"))));
    let limit = u64::from(INLINE_LIMIT);
    assert_eq!(set(&mut table, &at, size(limit), &root()).unwrap().attributes.size, limit);
    assert_eq!(set(&mut table, &at, size(limit + 1), &root()), Err(Refusal::MustPromote));
    assert_eq!(set(&mut table, &at, size(u64::MAX), &root()), refused(Errno::EFBIG));
    assert_eq!(set(&mut table, &at, size(0), &user(1000)), refused(Errno::EACCES));
}

/// A descriptor outlives a chmod: the owner of an open file may truncate it whatever its mode.
#[test]
fn owner_can_truncate_an_open_read_only_file() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o444, &user(1000));
    assert_eq!(set(&mut table, &at, size(0), &user(1000)), refused(Errno::EACCES));
    table.open.insert(at.inode());
    assert!(set(&mut table, &at, size(0), &user(1000)).is_ok());
    assert_eq!(set(&mut table, &at, size(0), &user(1001)), refused(Errno::EACCES));
}

/// A pending truncate of a backing file has priority until it is done: an open or write of the file repeats it first.
#[test]
fn interrupted_truncate_is_repeated() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    let verb = ChangeAttributes { at: at.clone(), set: size(40) };
    let Decision::Commit { changes, effects, outcome } = table.decide(&verb, &root()) else { panic!("commits") };
    let now = outcome.attributes.ctime;
    let decided = Some(PendingTruncate { size: 40, ctime: now, mtime: now });
    assert_eq!(effects, [Effect::Truncate { at: at.clone(), decided }]);
    let truncate = Effect::Truncate { at: at.clone(), decided: None };
    assert_eq!((outcome.attributes.size, outcome.content), (40, NodeContent::Backing(SizeState::Authoritative)));
    // The server dies here: the change is committed, the effect is not done.
    for change in changes {
        let Change::Put(key, row) = change else { panic!("a truncate puts one row") };
        table.rows.insert(key, *row);
    }
    let node = table.run(&GetAttributes { at: at.clone() }, &root()).unwrap();
    assert_eq!(node.attributes.size, 40, "stat sees the new size at once");
    let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
    let mark_size_stale = MarkSizeStale { file: backing(&at, BACKING), at_least: u64::MAX };
    let settle = RecordSize { file: backing(&at, BACKING), size: 100, mtime: at_second(1) };
    let again = |decision| matches!(decision, Decision::Commit { effects, .. } if effects == [truncate.clone()]);
    assert!(again(table.decide(&open, &root())));
    assert!(again(table.decide(&mark_size_stale, &root())));
    assert!(again(table.decide(&settle, &root())));
    table.run(&open, &root()).unwrap();
    assert_eq!(content(&table, &at), Content::Backing(BackingSize::Authoritative));
    let Decision::Commit { effects, .. } = table.decide(&mark_size_stale, &root()) else { panic!("commits") };
    assert_eq!(effects, [Effect::SizeStale(at.inode())], "on disk before the file is written");
    let late =
        FinishTruncate { at: at.clone(), begun: PendingTruncate { size: 7, ctime: at_second(0), mtime: at_second(0) } };
    assert_eq!(table.decide(&late, &root()), Decision::Answer(true), "a truncate that was overtaken settles nothing");
    assert_eq!(table.decide(&FindTruncate { at }, &root()), Decision::Answer(None), "nor is it done once more");
}

/// Of two truncates to one size, finishing the first does not finish the second, because a writer may have written in
/// between.
#[test]
fn truncate_does_not_finish_another() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    let begin = |table: &mut ReferenceTable, second| {
        table.now = at_second(second);
        let set = ChangeAttributes { at: at.clone(), set: size(0) };
        let Decision::Commit { changes, .. } = table.decide(&set, &root()) else { panic!("commits") };
        for change in changes {
            let Change::Put(key, row) = change else { panic!("a truncate puts one row") };
            table.rows.insert(key, *row);
        }
        let found = table.decide(&FindTruncate { at: at.clone() }, &root());
        let Decision::Answer(Some(begun)) = found else { panic!("{found:?}") };
        begun
    };
    let (first, second) = (begin(&mut table, 1000), begin(&mut table, 1001));
    let finish = |table: &ReferenceTable, begun| table.decide(&FinishTruncate { at: at.clone(), begun }, &root());
    assert_eq!(finish(&table, first), Decision::Answer(false));
    let effects = |finished| match finished {
        Decision::Commit { outcome: true, effects, .. } => effects,
        other => panic!("{other:?}"),
    };
    assert_eq!(effects(finish(&table, second)), []);
    // A session that has the file open may write it from then on: the next open must not truncate it.
    table.open.insert(at.inode());
    assert_eq!(effects(finish(&table, second)), [Effect::SizeStale(at.inode())]);
}

/// A truncate that the store cannot do is abandoned, and the file keeps its content.
#[test]
fn truncate_refused_by_the_store_is_abandoned() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    let verb = ChangeAttributes { at: at.clone(), set: size(1 << 62) };
    let Decision::Commit { changes, .. } = table.decide(&verb, &root()) else { panic!("commits") };
    for change in changes {
        let Change::Put(key, row) = change else { panic!("a truncate puts one row") };
        table.rows.insert(key, *row);
    }
    let found = table.decide(&FindTruncate { at: at.clone() }, &root());
    let Decision::Answer(Some(begun)) = found else { panic!("{found:?}") };
    let another = PendingTruncate { ctime: at_second(1), mtime: at_second(1), ..begun };
    table.run(&AbandonTruncate { at: at.clone(), begun: another }, &root()).unwrap();
    assert_eq!(
        content(&table, &at),
        Content::Backing(BackingSize::Truncating(1 << 62)),
        "another one to the same size"
    );
    // The row has moved to an inode row since, by a change that does not affect the content.
    let source = at.clone();
    table.run(&Link { source, parent: InodeId::ROOT, name: name("another") }, &root()).unwrap();
    assert!(matches!(table.decide(&FindTruncate { at: at.clone() }, &root()), Decision::Refuse(Refusal::NotHere)));
    table.run(&AbandonTruncate { at: at.clone(), begun }, &root()).unwrap();
    assert_eq!(table.effects.last(), Some(&Effect::SizeStale(at.inode())), "that it was settled may be on disk");
    let at = At::Inode(at.inode());
    assert_eq!(content(&table, &at), size_stale(0));
    let open = Open { at, mode: OpenMode::Read, truncate: false, granted: Granted::Nothing };
    assert!(matches!(table.decide(&open, &root()), Decision::Answer(_)));
}

/// While the file is open its size is the backing file's, also after a truncate.
#[test]
fn truncate_of_an_open_file_leaves_its_size_stale() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    table.open.insert(at.inode());
    set(&mut table, &at, size(40), &root()).unwrap();
    assert_eq!(content(&table, &at), size_stale(40));
    let then = Some(SetTime::To(at_second(5)));
    set(&mut table, &at, times(None, then), &root()).unwrap();
    assert_eq!(table.effects.last(), Some(&Effect::Touch { inode: at.inode(), mtime: at_second(5) }));
}

/// While the size is stale, the row holds the minimum size of the backing file: the size at the promotion, the last
/// recorded size, the size of the last truncate, or the size that a writer reported to be on disk. A writer that
/// truncates lowers the minimum first, on disk.
#[test]
fn row_with_stale_size_keeps_a_lower_bound() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    assert_eq!(content(&table, &at), size_stale(100));
    let raise = |at_least| RaiseSize { file: backing(&at, BACKING), at_least };
    let mark_size_stale = |at_least| MarkSizeStale { file: backing(&at, BACKING), at_least };
    let settle = |size| RecordSize { file: backing(&at, BACKING), size, mtime: at_second(1) };
    table.backing.insert(at.inode(), (300, at_second(1)));
    let node = table.run(&raise(200), &root()).unwrap();
    assert_eq!(node.content, NodeContent::Backing(SizeState::Stale { at_least: 200 }));
    assert!(matches!(table.decide(&raise(150), &root()), Decision::Answer(_)), "it is known to have more");
    assert!(matches!(table.decide(&mark_size_stale(u64::MAX), &root()), Decision::Answer(_)));
    assert!(matches!(table.decide(&mark_size_stale(200), &root()), Decision::Answer(_)));
    assert!(matches!(table.decide(&settle(199), &root()), Decision::Answer(_)), "it was cut by something else");

    let Decision::Commit { effects, .. } = table.decide(&mark_size_stale(50), &root()) else { panic!("commits") };
    assert_eq!(effects, [Effect::SizeStale(at.inode())], "on disk before the file is cut");
    table.run(&mark_size_stale(50), &root()).unwrap();
    assert_eq!(content(&table, &at), size_stale(50));
    table.run(&settle(300), &root()).unwrap();
    assert_eq!(content(&table, &at), Content::Backing(BackingSize::Authoritative));
    assert!(matches!(table.decide(&raise(400), &root()), Decision::Answer(_)), "a settled row is right");
    table.run(&mark_size_stale(u64::MAX), &root()).unwrap();
    assert_eq!(content(&table, &at), size_stale(300));
    let stale = RaiseSize { file: backing(&at, INLINE), at_least: 1000 };
    assert_eq!(table.run(&stale, &root()), Err(Refusal::Stale(BACKING)));
}

/// A writer with an old generation gets the current one, and its bytes are not stored.
#[test]
fn generations_keep_stale_writers_out() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o644, &root());
    let data = Bytes::from_static(b"old");
    let write = WriteInline { at: at.clone(), generation: INLINE, data, mtime: None };
    assert_eq!(table.run(&write, &root()), Err(Refusal::Stale(BACKING)));
    let promote = Promote { at: at.clone(), generation: INLINE, size: 5 };
    assert_eq!(table.run(&promote, &root()), Err(Refusal::Stale(BACKING)));
    let again = Promote { at: at.clone(), generation: BACKING, size: 5 };
    assert_eq!(table.run(&again, &root()), Err(Refusal::Stale(BACKING)), "promoted already");
    let mark_size_stale = MarkSizeStale { file: backing(&at, INLINE), at_least: u64::MAX };
    assert_eq!(table.run(&mark_size_stale, &root()), Err(Refusal::Stale(BACKING)));
    let settle = RecordSize { file: backing(&at, BACKING), size: 123, mtime: at_second(6) };
    let node = table.run(&settle, &root()).unwrap();
    assert_eq!((node.attributes.size, node.attributes.mtime), (123, at_second(6)));
    assert_eq!(node.content, NodeContent::Backing(SizeState::Authoritative));
}

#[test]
fn inline_content_has_a_limit_and_a_time() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o6755, &user(1000));
    let write = |size: usize, mtime: Option<Timestamp>| WriteInline {
        at: at.clone(),
        generation: INLINE,
        data: Bytes::from(vec![1; size]),
        mtime,
    };
    let limit = INLINE_LIMIT as usize;
    assert_eq!(table.run(&write(limit + 1, None), &user(1000)), refused(Errno::EFBIG));
    let attributes = table.run(&write(limit, Some(at_second(3))), &user(1000)).unwrap().attributes;
    assert_eq!((attributes.size, attributes.mtime), (limit as u64, at_second(3)));
    assert_eq!(attributes.mode, Mode(0o755), "a write ends set-id");
    assert_eq!(attributes.ctime, table.now);
}

/// Promise: of two writers of a row's content, the second gets an error that the content has changed, whichever way it
/// changed.
#[test]
fn replaced_content_raises_the_generation() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o644, &root());
    let write = |generation, bytes: &'static [u8]| WriteInline {
        at: at.clone(),
        generation,
        data: Bytes::from_static(bytes),
        mtime: None,
    };
    let mut known = INLINE;
    let mut replaced = |table: &mut ReferenceTable, node: Result<Node, Refusal>, how: &str| {
        let now = node.unwrap().generation;
        assert_eq!(table.run(&write(known, b"stale"), &root()), Err(Refusal::Stale(now)), "{how}");
        known = now;
    };
    let node = table.run(&write(INLINE, b"first"), &root());
    replaced(&mut table, node, "written");
    let node = set(&mut table, &at, size(3), &root());
    replaced(&mut table, node, "cut");
    let node =
        table.run(&Open { at: at.clone(), mode: OpenMode::Write, truncate: true, granted: Granted::Nothing }, &root());
    replaced(&mut table, node, "opened and cut");
    let node = set(&mut table, &at, mode(0o600), &root()).unwrap();
    assert_eq!(node.generation, known, "attributes alone");
    let last = LayoutGeneration(u32::MAX);
    assert_eq!(last.next(), INLINE, "it wraps around");
}

/// On root's volumes, backing files follow the owner and mode of their files.
#[test]
fn backing_files_follow_owner_and_mode() {
    let mut table = ReferenceTable::new();
    let at = promoted(&mut table, 0o640, &user(1000));
    let inode = at.inode();
    assert_eq!(table.effects, [Effect::Own { inode, uid: 1000, gid: 1000, mode: Mode(0o640) }]);
    set(&mut table, &at, owner(Some(7), Some(8)), &root()).unwrap();
    assert_eq!(table.effects[1..], [Effect::Own { inode, uid: 7, gid: 8, mode: Mode(0o640) }]);
    set(&mut table, &at, times(Some(SetTime::Now), None), &root()).unwrap();
    assert_eq!(table.effects.len(), 2);
}

/// open(2): O_TRUNC requires write permission whatever the mode, and has no effect on a file that is not regular.
#[test]
fn opens_are_checked() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, 0o444, &user(1000));
    let open = |at: &At, mode, truncate| Open { at: at.clone(), mode, truncate, granted: Granted::Nothing };
    let who = user(1000);
    assert!(table.run(&open(&at, OpenMode::Read, false), &who).is_ok());
    for (mode, truncate) in [(OpenMode::Read, true), (OpenMode::Write, false), (OpenMode::ReadWrite, false)] {
        assert_eq!(table.run(&open(&at, mode, truncate), &who), refused(Errno::EACCES));
    }
    assert!(table.run(&open(&at, OpenMode::ReadWrite, true), &root()).is_ok());
    let directory = At::Inode(mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap().inode);
    assert_eq!(table.run(&open(&directory, OpenMode::Write, false), &root()), refused(Errno::EISDIR));
    assert!(table.run(&open(&directory, OpenMode::Read, false), &who).is_ok());
    assert_eq!(table.run(&ReadLink { at: directory }, &root()), refused(Errno::EINVAL));
}

/// A location by entry does not find a directory, because a directory's entry only refers to its row.
#[test]
fn directory_is_not_located_by_entry() {
    let mut table = ReferenceTable::new();
    let inode = mkdir(&mut table, ROOT, "d", 0o755, &root()).unwrap().inode;
    let at = At::Entry { parent: ROOT, name: name("d"), inode };
    assert_eq!(table.run(&GetAttributes { at }, &root()), Err(Refusal::NotHere));
    assert!(matches!(table.rows.get(&Key::Directory(inode)), Some(Row::Directory(_))));
}
