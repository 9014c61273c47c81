use super::*;
use std::time::Duration;
use varve_types::{Attributes, FileKind, Mode};

const DIRECTORY: InodeId = InodeId(10);

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn node(entries: u64) -> Node {
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
    Node {
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

fn asked(alone: &Alone, entries: u64) {
    let ticket = alone.ask(DIRECTORY).expect("nothing is under way");
    alone.keep(DIRECTORY, ticket, node(entries));
}

#[test]
fn attributes_follow_changes() {
    let alone = Alone::default();
    assert_eq!(alone.attributes(DIRECTORY), None);
    asked(&alone, 5);
    alone.change(DIRECTORY, None).done(delta(1, 9));
    alone.change(DIRECTORY, None).done(delta(-1, 8));
    alone.change(DIRECTORY, None).done(delta(1, 7));
    let now = alone.attributes(DIRECTORY).expect("known").attributes;
    assert_eq!((now.size, now.nlink, now.mtime, now.ctime, now.atime), (6, 3, time(9), time(9), time(1)));
}

/// A change whose effect is not known makes the directory unknown.
#[test]
fn what_failed_is_asked_anew() {
    let alone = Alone::default();
    asked(&alone, 5);
    drop(alone.change(DIRECTORY, None));
    assert_eq!(alone.attributes(DIRECTORY), None);
}

/// An answer that may or may not have a change in it is not kept, however the two overlap.
#[test]
fn answers_that_overlap_changes_are_not_kept() {
    let alone = Alone::default();
    let change = alone.change(DIRECTORY, None);
    assert!(alone.ask(DIRECTORY).is_none());
    change.done(delta(1, 2));
    let ticket = alone.ask(DIRECTORY).expect("it has ended");
    let within = alone.change(DIRECTORY, None);
    alone.keep(DIRECTORY, ticket, node(5));
    assert_eq!(alone.attributes(DIRECTORY), None);
    within.done(delta(1, 3));
    alone.keep(DIRECTORY, ticket, node(5));
    assert_eq!(alone.attributes(DIRECTORY), None);
}

/// Only a directory that was made here is known not to have a name.
#[test]
fn names_that_never_were_are_absent() {
    let alone = Alone::default();
    assert!(!alone.is_absent(DIRECTORY, NameHash(7)));
    alone.made(DIRECTORY);
    assert!(alone.is_absent(DIRECTORY, NameHash(7)));
    drop(alone.change(DIRECTORY, Some(NameHash(7))));
    assert!(!alone.is_absent(DIRECTORY, NameHash(7)), "a failed change may have made it");
    assert!(alone.is_absent(DIRECTORY, NameHash(8)));
    alone.removed(DIRECTORY);
    assert!(!alone.is_absent(DIRECTORY, NameHash(8)));
    assert_eq!(alone.names.load(Relaxed), 0);
}

/// However many directories there are, what is known stays bounded, and what is under way is not forgotten.
#[test]
fn directories_are_forgotten_but_not_their_changes() {
    let alone = Alone::default();
    let change = alone.change(DIRECTORY, None);
    for number in 0..(STRIPES * DIRECTORIES_PER_STRIPE_MAX * 3) as u64 {
        alone.made(InodeId(1000 + number));
        drop(alone.change(InodeId(1000 + number), Some(NameHash(9))));
    }
    let known: usize = alone.stripes.iter().map(|stripe| stripe.lock().len()).sum();
    assert!(known <= STRIPES * DIRECTORIES_PER_STRIPE_MAX, "{known}");
    assert!(alone.names.load(Relaxed) <= known);
    assert!(alone.ask(DIRECTORY).is_none(), "still under way");
    drop(change);
    assert!(alone.ask(DIRECTORY).is_some());
}
