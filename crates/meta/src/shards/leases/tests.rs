use super::*;
use varve_schema::EntryRow;
use varve_types::{FileKind, Mode, Name, PartitionMap, ShardCount, Timestamp};

const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);
const KEY: LeaseKey = LeaseKey { directory: InodeId(77), hash: 0 };
/// Later than every lease of an earlier owner.
const NOW: Instant = Instant(Duration::from_secs(100));

fn leases() -> Leases {
    Leases::new(Some(Instant(Duration::ZERO)))
}

fn granted(leases: &Leases, session: SessionId, now: Instant) -> Duration {
    leases.grant(KEY, session, leases.ticket(KEY), now)
}

/// A change waits for the leases of other sessions, and never longer than one term, although they ask for more.
#[test]
fn change_waits_for_leases_of_others() {
    let leases = leases();
    assert_eq!(granted(&leases, ONE, NOW), LEASE);
    let end = leases.change(&[KEY], Some(TWO), NOW).unwrap_err();
    assert_eq!(end, NOW.after(LEASE));
    for session in [ONE, TWO] {
        assert!(granted(&leases, session, end).is_zero(), "a change waits for it");
    }
    leases.change(&[KEY], Some(TWO), end).unwrap();
    assert_eq!(granted(&leases, ONE, end), LEASE);
}

/// A change that is not decided again after its wait does not keep others from the lease.
#[test]
fn abandoned_change_pauses_leases_briefly() {
    let leases = leases();
    assert_eq!(granted(&leases, ONE, NOW), LEASE);
    let end = leases.change(&[KEY], Some(TWO), NOW).unwrap_err();
    assert_eq!(granted(&leases, ONE, end.after(PAUSE)), LEASE);
}

/// A session's own leases do not delay its changes.
#[test]
fn change_does_not_wait_for_own_lease() {
    let leases = leases();
    assert_eq!(granted(&leases, ONE, NOW), LEASE);
    leases.change(&[KEY], Some(ONE), NOW).unwrap();
    assert_eq!(granted(&leases, ONE, NOW), LEASE);
    assert!(leases.change(&[KEY], None, NOW).is_err(), "a change of nobody waits for all");
}

/// Data that was read before a change was decided is not leased after that.
#[test]
fn stale_read_gets_no_lease() {
    let leases = leases();
    let before = leases.ticket(KEY);
    leases.change(&[KEY], Some(TWO), NOW).unwrap();
    assert!(leases.grant(KEY, ONE, before, NOW).is_zero());
    assert_eq!(granted(&leases, ONE, NOW), LEASE);
}

/// An owner waits for leases that it cannot know: those of the owner before it, and those on rows that a split brings.
#[test]
fn new_owner_waits_one_lease_term() {
    let leases = Leases::new(Some(NOW));
    assert_eq!(leases.change(&[KEY], Some(ONE), NOW), Err(NOW.after(LEASE)));
    let later = NOW.after(LEASE);
    leases.change(&[KEY], Some(ONE), later).unwrap();
    leases.inherit(later);
    assert_eq!(leases.change(&[KEY], Some(ONE), later), Err(later.after(LEASE)));
    assert_eq!(leases.change(&[], Some(ONE), later), Ok(()));
}

/// Leases move with their shard, and a server with one client grants them and never waits.
#[test]
fn moved_leases_are_kept_and_a_lone_client_never_waits() {
    let before = leases();
    assert_eq!(granted(&before, ONE, NOW), LEASE);
    let after = Leases::from(before.move_away());
    assert_eq!(after.change(&[KEY], Some(TWO), NOW), Err(NOW.after(LEASE)));
    assert_eq!(before.change(&[KEY], Some(TWO), NOW), Ok(()));
    let alone = Leases::new(None);
    assert_eq!(granted(&alone, ONE, NOW), LEASE);
    alone.inherit(NOW);
    alone.change(&[KEY], Some(TWO), NOW).unwrap();
}

/// Only changes of a directory's name and rights end leases.
#[test]
fn only_changes_of_names_and_rights_end_leases() {
    let name = Name::new(b"d").unwrap();
    let entry = Key::Entry(InodeId(77), name.clone());
    let attributes = varve_schema::samples::attributes(FileKind::Directory, 0);
    let named = |inode| Row::Entry(EntryRow { inode: InodeId(inode), body: EntryBody::Directory(attributes) });
    let here = LeaseKey::name(InodeId(77), name.hash());
    let by = |change: Change, before: &Row| LeaseKey::changed_by(&change, KeyState::Present(before));
    assert_eq!(by(Change::Delete(entry.clone()), &named(5)), Some(here));
    assert_eq!(by(Change::put(entry.clone(), named(6)), &named(5)), Some(here));
    assert_eq!(by(Change::put(entry.clone(), named(5)), &named(5)), None);
    let file = Row::Entry(EntryRow { inode: InodeId(5), body: EntryBody::Reference(FileKind::Regular) });
    assert_eq!(by(Change::Delete(entry.clone()), &file), None);
    assert_eq!(LeaseKey::changed_by(&Change::Delete(entry), KeyState::Absent), None);

    let row = |mode, seconds| {
        let time = Timestamp { seconds, ..Timestamp::default() };
        let (parent, map) = (InodeId::ROOT, PartitionMap::whole(ShardCount::new(4).unwrap()));
        Row::Directory(DirectoryRow {
            parent,
            mode: Mode::new(mode),
            uid: 1,
            gid: 1,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            map,
            xattrs: Vec::new(),
        })
    };
    let key = Key::Directory(InodeId(77));
    assert_eq!(by(Change::put(key.clone(), row(0o700, 1)), &row(0o755, 1)), Some(KEY));
    assert_eq!(by(Change::put(key, row(0o755, 2)), &row(0o755, 1)), None);
}
