//! Listings of directories that split.

use crate::site::*;
use std::collections::BTreeSet;
use varve_client::{DirectoryHandle, FileSystem, OpenFlags, block_on};
use varve_types::Mode;

/// Reads from `cookie` with space for `room` entries; returns the names and the cookie after the last.
fn read_some(fs: &FileSystem, handle: DirectoryHandle, cookie: u64, room: usize, plus: bool) -> (Vec<String>, u64) {
    let (mut names, mut after) = (Vec::new(), cookie);
    block_on(fs.read_directory(handle, cookie, plus, &mut |entry| {
        if names.len() == room {
            return false;
        }
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        after = entry.cookie;
        true
    }))
    .unwrap();
    (names, after)
}

fn read_all(fs: &FileSystem, handle: DirectoryHandle, room: usize, plus: bool) -> Vec<String> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let (names, after) = read_some(fs, handle, cookie, room, plus);
        if names.is_empty() {
            return all;
        }
        all.extend(names);
        cookie = after;
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Promise: a listing in portions of any size, with or without attributes, has every name once.
#[test]
fn listing_shows_each_name_once() {
    let site = Site::new(8);
    let _server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    let mut expected = vec![".".to_owned(), "..".to_owned()];
    for i in 0..300 {
        make_file(&fs, d, &format!("name-{i}"));
        expected.push(format!("name-{i}"));
    }
    let expected = sorted(expected);
    let handle = block_on(fs.open_directory(&root(), d)).unwrap();
    for room in [1, 7, 64, 1000] {
        for plus in [false, true] {
            assert_eq!(sorted(read_all(&fs, handle, room, plus)), expected, "{room} at a time, plus {plus}");
        }
    }
    fs.close_directory(handle);
}

/// Promise: while a directory grows and splits, a listing in progress loses no name that was there all the time, and
/// repeats none; positions from before the splits remain valid.
#[test]
fn split_during_listing_keeps_each_name_once() {
    let site = Site::new(16);
    let _server = site.serve();
    let (reader, writer) = (site.connect(), site.connect());
    let d = make_directory(&writer, ROOT, "d").inode;
    let old: BTreeSet<String> = (0..30).map(|i| format!("old-{i}")).collect();
    for text in &old {
        make_file(&writer, d, text);
    }
    let handle = block_on(reader.open_directory(&root(), d)).unwrap();
    let (mut seen, mut cookie) = (Vec::new(), 0);
    let mut positions = Vec::new();
    for round in 0.. {
        let (names, after) = read_some(&reader, handle, cookie, 3, round % 2 == 0);
        if names.is_empty() {
            break;
        }
        seen.extend(names);
        cookie = after;
        positions.push((cookie, seen.len()));
        for i in 0..20 {
            make_file(&writer, d, &format!("new-{round}-{i}"));
        }
    }
    let shown: BTreeSet<String> = seen.iter().cloned().collect();
    assert_eq!(shown.len(), seen.len(), "a name was doubled");
    assert!(old.is_subset(&shown), "lost: {:?}", old.difference(&shown));
    let (cookie, before) = positions[positions.len() / 2];
    let rest: BTreeSet<String> = read_some(&reader, handle, cookie, usize::MAX, false).0.into_iter().collect();
    let come: BTreeSet<String> = seen[before..].iter().cloned().collect();
    assert!(come.is_subset(&rest), "a position taken before goes on where it was taken");
    assert!(seen[..before].iter().all(|text| !rest.contains(text)));
}

/// Promise: names can be removed during their listing, as `rm -r` does, until none is left.
#[test]
fn removal_during_listing_is_safe() {
    let site = Site::new(8);
    let _server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    for i in 0..200 {
        make_file(&fs, d, &format!("name-{i}"));
    }
    let handle = block_on(fs.open_directory(&root(), d)).unwrap();
    let mut cookie = 0;
    loop {
        let (names, after) = read_some(&fs, handle, cookie, 17, false);
        if names.is_empty() {
            break;
        }
        for text in names.iter().filter(|text| !text.starts_with('.')) {
            block_on(fs.unlink(&root(), d, &name(text))).unwrap();
        }
        cookie = after;
    }
    fs.close_directory(handle);
    block_on(fs.remove_directory(&root(), ROOT, &name("d"))).unwrap();
}

/// Promise: attributes that come with a listing count one lookup each, and are those of the file.
#[test]
fn listed_attributes_are_counted() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (a, handle) = create(&fs, "a");
    write(&fs, handle, 0, b"12345");
    close(&fs, handle);
    fs.forget(a, 1);
    let listing = block_on(fs.open_directory(&root(), ROOT)).unwrap();
    let mut sizes = Vec::new();
    block_on(fs.read_directory(listing, 0, true, &mut |entry| {
        sizes.extend(entry.node.map(|node| (node.inode, node.attributes.size)));
        true
    }))
    .unwrap();
    assert_eq!(sizes, [(a, 5)]);
    assert_eq!(size(&fs, a), 5, "known by its name from the listing");
}

/// Promise: for a file that is closed during its listing, a listing has the attributes after the last write or none,
/// and not those of its row before.
#[test]
fn listing_shows_current_size_of_a_file_closed_meanwhile() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    let made = ["one", "other"]
        .map(|at| block_on(fs.create(&root(), d, &name(at), Mode::new(0o644), OpenFlags::READ_WRITE)).unwrap());
    for (_, opened) in &made {
        write(&fs, opened.handle, 0, b"written");
    }
    let handle = block_on(fs.open_directory(&root(), d)).unwrap();
    let mut open = made.to_vec();
    let mut sizes = Vec::new();
    block_on(fs.read_directory(handle, 0, true, &mut |entry| {
        if entry.name.len() > 2 {
            // Both are closed with the first name.
            open.drain(..).for_each(|(_, opened)| close(&fs, opened.handle));
            sizes.extend(entry.node.map(|node| node.attributes.size));
        }
        true
    }))
    .unwrap();
    assert!(sizes.iter().all(|size| *size == 7), "{sizes:?}");
    let mut sizes = Vec::new();
    block_on(fs.read_directory(handle, 0, true, &mut |entry| {
        sizes.extend(entry.node.map(|node| node.attributes.size));
        true
    }))
    .unwrap();
    assert_eq!(sizes, [7, 7], "they are known once they are asked for after that");
    fs.close_directory(handle);
}

/// Promise: a rewound listing has the current names, whatever entries the first one had left over.
#[test]
fn rewound_listing_is_fresh() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    make_file(&fs, d, "a");
    let handle = block_on(fs.open_directory(&root(), d)).unwrap();
    assert_eq!(sorted(read_all(&fs, handle, 100, false)), [".", "..", "a"]);
    make_file(&fs, d, "b");
    assert_eq!(sorted(read_all(&fs, handle, 100, false)), [".", "..", "a", "b"]);
    fs.close_directory(handle);
}
