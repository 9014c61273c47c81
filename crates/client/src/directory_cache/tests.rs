use super::*;
use std::time::Duration;
use varve_types::{Attributes, FileKind, Mode};

const DIRECTORY: InodeId = InodeId(10);
const NOW: Instant = Instant(Duration::from_secs(100));

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn node(entries: u64) -> NodeInfo {
    let attributes = Attributes {
        kind: FileKind::Directory,
        mode: Mode::new(0o755),
        uid: 0,
        gid: 0,
        nlink: 2,
        size: entries,
        rdev: 0,
        atime: time(1),
        mtime: time(1),
        ctime: time(1),
        btime: time(1),
    };
    NodeInfo {
        inode: DIRECTORY,
        attributes,
        blocks: 0,
        entry_ttl: Duration::from_secs(1),
        attributes_ttl: Duration::from_secs(1),
    }
}

fn delta(entries: i64, at: i64) -> Delta {
    Delta { entries, subdirectories: entries, at: time(at) }
}

fn asked(all: &DirectoryCache, entries: u64) {
    let ticket = all.ask(DIRECTORY).expect("nothing is under way");
    all.keep(DIRECTORY, ticket, node(entries), NOW);
}

#[test]
fn cached_attributes_follow_own_changes() {
    let all = DirectoryCache::default();
    assert_eq!(all.attributes(DIRECTORY, NOW), None);
    asked(&all, 5);
    all.change(DIRECTORY, None).done(delta(1, 9));
    all.change(DIRECTORY, None).done(delta(-1, 8));
    all.change(DIRECTORY, None).done(delta(1, 7));
    let now = all.attributes(DIRECTORY, NOW).expect("known").attributes;
    assert_eq!((now.size, now.nlink, now.mtime, now.ctime, now.atime), (6, 3, time(9), time(9), time(1)));
}

/// An mtime that was set to a future time is replaced by the next change of a name.
#[test]
fn future_mtime_is_replaced_by_next_change() {
    let all = DirectoryCache::default();
    let ticket = all.ask(DIRECTORY).expect("nothing is under way");
    let mut set = node(5);
    set.attributes.mtime = time(1000);
    all.keep(DIRECTORY, ticket, set, NOW);
    all.change(DIRECTORY, None).done(delta(1, 9));
    all.change(DIRECTORY, None).done(delta(1, 8));
    let now = all.attributes(DIRECTORY, NOW).expect("known").attributes;
    assert_eq!((now.mtime, now.ctime), (time(9), time(9)));
}

/// Attributes are no longer cached when their lease has expired.
#[test]
fn attributes_expire_with_their_lease() {
    let all = DirectoryCache::default();
    asked(&all, 5);
    let later = NOW.after(Duration::from_millis(400));
    assert_eq!(all.attributes(DIRECTORY, later).map(|node| node.attributes_ttl), Some(Duration::from_millis(600)));
    assert_eq!(all.attributes(DIRECTORY, NOW.after(Duration::from_secs(1))), None);
}

/// A change with unknown effect invalidates the directory's attributes.
#[test]
fn failed_change_invalidates_cache() {
    let all = DirectoryCache::default();
    asked(&all, 5);
    drop(all.change(DIRECTORY, None));
    assert_eq!(all.attributes(DIRECTORY, NOW), None);
}

/// A reply that may or may not include a change is not cached, however the two overlap.
#[test]
fn replies_overlapping_changes_are_not_cached() {
    let all = DirectoryCache::default();
    let change = all.change(DIRECTORY, None);
    assert!(all.ask(DIRECTORY).is_none());
    change.done(delta(1, 2));
    let ticket = all.ask(DIRECTORY).expect("it has ended");
    let within = all.change(DIRECTORY, None);
    all.keep(DIRECTORY, ticket, node(5), NOW);
    assert_eq!(all.attributes(DIRECTORY, NOW), None);
    within.done(delta(1, 3));
    all.keep(DIRECTORY, ticket, node(5), NOW);
    assert_eq!(all.attributes(DIRECTORY, NOW), None);
}

/// Promise: the last attributes of a directory are kept after its removal or after a change that may have failed, but
/// are not valid.
#[test]
fn removed_names_are_cached_as_absent() {
    let all = DirectoryCache::default();
    assert_eq!(all.last_attributes(DIRECTORY), None);
    all.saw(DIRECTORY, node(1));
    assert_eq!((all.attributes(DIRECTORY, NOW), all.last_attributes(DIRECTORY)), (None, Some(node(1))));
    let ticket = all.ask(DIRECTORY).expect("nothing is under way");
    all.keep(DIRECTORY, ticket, node(3), NOW);
    all.saw(DIRECTORY, node(1));
    assert!(all.attributes(DIRECTORY, NOW).is_some());
    drop(all.change(DIRECTORY, None));
    assert_eq!((all.attributes(DIRECTORY, NOW), all.last_attributes(DIRECTORY)), (None, Some(node(3))));
    all.removed(DIRECTORY);
    assert_eq!((all.attributes(DIRECTORY, NOW), all.last_attributes(DIRECTORY)), (None, Some(node(3))));
}

/// Only in a directory that this client made is a name known to be absent.
#[test]
fn never_created_names_are_absent() {
    let all = DirectoryCache::default();
    assert!(!all.is_absent(DIRECTORY, NameHash(7)));
    all.made(DIRECTORY);
    assert!(all.is_absent(DIRECTORY, NameHash(7)));
    drop(all.change(DIRECTORY, Some(NameHash(7))));
    assert!(!all.is_absent(DIRECTORY, NameHash(7)), "a failed change may have made it");
    assert!(all.is_absent(DIRECTORY, NameHash(8)));
    all.removed(DIRECTORY);
    assert!(!all.is_absent(DIRECTORY, NameHash(8)));
    assert_eq!(all.names.load(Relaxed), 0);
}

/// The cache is bounded for any number of directories, and directories with changes in progress are not evicted.
#[test]
fn eviction_keeps_pending_changes() {
    let all = DirectoryCache::default();
    let change = all.change(DIRECTORY, None);
    for number in 0..(STRIPES * DIRECTORIES_PER_STRIPE_MAX * 3) as u64 {
        all.made(InodeId(1000 + number));
        drop(all.change(InodeId(1000 + number), Some(NameHash(9))));
    }
    let known: usize = all.stripes.iter().map(|stripe| stripe.lock().len()).sum();
    assert!(known <= STRIPES * DIRECTORIES_PER_STRIPE_MAX, "{known}");
    assert!(all.names.load(Relaxed) <= known);
    assert!(all.ask(DIRECTORY).is_none(), "still under way");
    drop(change);
    assert!(all.ask(DIRECTORY).is_some());
}

/// Promise: a reply is not cached for a directory that changed and was evicted since the request, however often it had
/// changed before.
#[test]
fn reply_older_than_eviction_is_not_cached() {
    let all = DirectoryCache::default();
    let ticket = all.ask(DIRECTORY).expect("nothing is under way");
    all.change(DIRECTORY, None).done(delta(1, 2));
    for number in 0..(STRIPES * DIRECTORIES_PER_STRIPE_MAX * 3) as u64 {
        all.made(InodeId(1000 + number));
    }
    assert!(all.last_attributes(DIRECTORY).is_none());
    assert!(!all.keep(DIRECTORY, ticket, node(5), NOW));
    assert_eq!(all.attributes(DIRECTORY, NOW), None);
}
