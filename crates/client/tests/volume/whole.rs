//! Backing files that are shorter than their rows say.

use crate::site::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use varve_client::{ClientConfig, Failure, FileSystem, OpenFlags, OpenMode, now};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Errno, InodeId, Mode, SetAttributes};

const BYTES: usize = 300_000;
const LEFT: u64 = 100_000;

fn cut_outside(site: &Site, inode: InodeId, size: u64) {
    let file = std::fs::File::options().write(true).open(site.volume.backing_file(inode)).unwrap();
    file.set_len(size).unwrap();
}

fn large(fs: &FileSystem, text: &str) -> InodeId {
    let (inode, handle) = create(fs, text);
    write(fs, handle, 0, &vec![7; BYTES]);
    close(fs, handle);
    now(fs.settle_all());
    inode
}

/// It says which file it is, what is left of it, and what to do.
fn refused(failure: &Failure, text: &str) {
    assert_eq!(failure.errno, Errno::EIO);
    let said = failure.to_string();
    for word in [text, "300000 bytes", "100000 are left", "varve fsck"] {
        assert!(said.contains(word), "{said}");
    }
}

/// Promise: a large file that was cut outside Varve is an error for whoever opens it or reads beyond the cut, until it is
/// restored, written anew or repaired; other files go on.
#[test]
fn a_file_that_was_cut_outside_is_refused() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let inode = large(&one, "cut");
    large(&one, "other");
    now(other.lookup(&root(), ROOT, &name("cut"))).unwrap();
    let early = now(other.open(&root(), inode, OpenFlags::READ)).unwrap().handle;
    cut_outside(&site, inode, LEFT);

    let write_only = OpenFlags { mode: OpenMode::Write, ..OpenFlags::READ };
    for flags in [OpenFlags::READ, OpenFlags::READ_WRITE, write_only] {
        refused(&now(one.open(&root(), inode, flags)).unwrap_err(), "cut");
        refused(&now(other.open(&root(), inode, flags)).unwrap_err(), "cut");
    }
    assert_eq!(read(&other, early, 0, 50_000), [7; 50_000], "what is there is read");
    for (offset, length) in [(0, BYTES), (LEFT, 1), (LEFT + 1000, BYTES), (BYTES as u64 - 1, 1)] {
        let mut buffer = vec![0; length];
        refused(&now(other.read(early, offset, &mut buffer)).unwrap_err(), "cut");
    }
    assert_eq!(read(&other, early, BYTES as u64, 10), b"", "there the row says that it ends");
    let (_, copy) = create(&other, "copy");
    write(&other, copy, 0, &vec![1; BYTES]);
    refused(&now(other.copy_range(early, 0, copy, 0, BYTES as u64)).unwrap_err(), "cut");
    assert_eq!(content(&one, "other").len(), BYTES);

    // As from a copy of the store.
    cut_outside(&site, inode, BYTES as u64);
    assert_eq!(content(&one, "cut").len(), BYTES);

    cut_outside(&site, inode, LEFT);
    let anew = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = now(one.open(&root(), inode, anew)).unwrap().handle;
    write(&one, handle, 0, &vec![8; 2 * INLINE_LIMIT as usize]);
    close(&one, handle);
    assert_eq!(content(&other, "cut"), vec![8; 2 * INLINE_LIMIT as usize]);
}

/// Promise: what was fsynced is known to be there at once, whether or not the file is closed, and whoever writes it; who
/// cuts it through Varve makes no damage of it, and who goes on syncs what comes then.
#[test]
fn a_file_that_was_synced_and_cut_outside_is_refused() {
    let site = Site::new(4);
    let server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&one, "cut");
    write(&one, handle, 0, &vec![7; BYTES]);
    now(one.fsync(handle, false)).unwrap();
    now(other.lookup(&root(), ROOT, &name("cut"))).unwrap();
    let both = |site: &Site| {
        cut_outside(site, inode, LEFT);
        for fs in [&one, &other] {
            refused(&now(fs.open(&root(), inode, OpenFlags::READ)).unwrap_err(), "cut");
        }
        let mut buffer = vec![0; BYTES];
        refused(&now(one.read(handle, 0, &mut buffer)).unwrap_err(), "cut");
        cut_outside(site, inode, BYTES as u64);
    };
    both(&site);
    let cut = SetAttributes { size: Some(50_000), ..Default::default() };
    now(one.set_attributes(&root(), inode, cut, Some(handle))).unwrap();
    assert_eq!(content(&other, "cut").len(), 50_000);
    write(&one, handle, 50_000, &vec![8; BYTES - 50_000]);
    assert_eq!(content(&other, "cut").len(), BYTES);
    now(one.fsync(handle, true)).unwrap();
    both(&site);
    // Also if nobody remembers but the row.
    server.stop(STOP).unwrap();
    let server = site.serve();
    both(&site);
    close(&one, handle);
    server.stop(STOP).unwrap();
}

/// Promise: a file whose writer died is settled by who opens it next, if nothing is missing of it.
#[test]
fn what_a_crash_left_is_settled_by_who_opens_it() {
    let site = Site::new(2);
    let serve = || {
        let config = ServerConfig {
            unix_directory: Some(site.path("sockets")),
            embedded: true,
            memory_bytes: 128 * 1024 * 1024,
            ..ServerConfig::new(site.volume.clone())
        };
        Server::start(config).unwrap()
    };
    let server = serve();
    let one = site.connect();
    let files = ["whole", "cut"].map(|text| {
        let (inode, handle) = create(&one, text);
        write(&one, handle, 0, &vec![7; BYTES]);
        now(one.fsync(handle, false)).unwrap();
        // Of this nobody knows how much is there.
        write(&one, handle, BYTES as u64, &[8; 10]);
        inode
    });
    // Neither closed nor told, as when its process dies.
    server.stop(STOP).unwrap();
    drop(one);
    cut_outside(&site, files[1], LEFT);
    let found = || {
        let report = varve_meta::fsck::check(&site.volume, &mut |_| {}).unwrap();
        report.totals.into_iter().map(|(kind, count)| (kind.name(), count)).collect::<Vec<_>>()
    };
    assert_eq!(found(), [("wrong-size", 1), ("unsettled-size", 1)]);
    let server = serve();
    let two = site.connect();
    let inode = now(two.lookup(&root(), ROOT, &name("cut"))).unwrap().inode;
    refused(&now(two.open(&root(), inode, OpenFlags::READ)).unwrap_err(), "cut");
    assert_eq!(content(&two, "whole").len(), BYTES + 10);
    now(two.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    assert_eq!(found(), [("wrong-size", 1)]);
}

/// Promise: a size that cannot be settled, as while the store is away, is settled when it can be, by a sync and without;
/// an end that something cuts off such a file then is noticed.
#[test]
fn what_could_not_be_settled_is_settled_later() {
    let site = Site::new(2);
    let _server = site.serve();
    let fs = site.connect();
    let (store, aside) = (site.path("store"), site.path("aside"));
    for (text, by_sync) in [("by sync", true), ("without", false)] {
        let (inode, handle) = create(&fs, text);
        write(&fs, handle, 0, &vec![7; BYTES]);
        close(&fs, handle);
        std::fs::rename(&store, &aside).unwrap();
        now(fs.settle_all());
        assert_eq!(fs.sizes_to_settle(), 1, "{text}: nothing is known of it");
        std::fs::rename(&aside, &store).unwrap();
        if by_sync {
            now(fs.sync()).unwrap();
        }
        let begun = std::time::Instant::now();
        while fs.sizes_to_settle() > 0 {
            assert!(!by_sync && begun.elapsed() < 3 * STOP, "{text}: it is not settled");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        cut_outside(&site, inode, LEFT);
        refused(&now(fs.open(&root(), inode, OpenFlags::READ)).unwrap_err(), text);
    }
}

/// Promise: a sync or shutdown that cannot settle a size by its deadline says so.
#[test]
fn what_cannot_be_settled_is_said() {
    let site = Site::new(2);
    let server = site.serve();
    let deadline = std::time::Duration::from_secs(1);
    let fs = FileSystem::connect(ClientConfig { deadline, ..site.config() }).unwrap();
    let (inode, handle) = create(&fs, "file");
    write(&fs, handle, 0, &vec![7; BYTES]);
    close(&fs, handle);
    now(fs.sync()).unwrap();
    let (directory, aside) = (site.volume.backing_directory(inode), site.path("aside"));
    std::fs::rename(&directory, &aside).unwrap();
    std::fs::write(&directory, b"no directory").unwrap();
    now(fs.settle_all());
    let said = now(fs.sync()).unwrap_err();
    assert!(said.errno == Errno::EIO && said.to_string().contains("sizes of closed files, 1 of them"), "{said}");
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    now(fs.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    let report = varve_meta::fsck::check(&site.volume, &mut |_| {}).unwrap();
    assert!(report.totals.is_empty(), "it is settled");
}

/// Promise: who cuts a file through Varve, in whichever way and beside whichever reader, makes no damage of it.
#[test]
fn files_that_others_cut_are_whole() {
    let site = Site::new(1);
    let _server = site.serve();
    let writer = site.connect();
    let inode = large(&writer, "f");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let fs = site.connect();
                now(fs.lookup(&root(), ROOT, &name("f"))).unwrap();
                let mut buffer = vec![0; 2 * BYTES];
                while !done.load(Relaxed) {
                    let handle = now(fs.open(&root(), inode, OpenFlags::READ)).expect("it is whole").handle;
                    for _ in 0..3 {
                        now(fs.read(handle, 0, &mut buffer)).expect("it is whole");
                    }
                    now(fs.release(handle));
                }
            });
        }
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..60_u8 {
                let cut = |size| SetAttributes { size: Some(size), ..Default::default() };
                match round % 3 {
                    // By the server, and longer again.
                    0 => {
                        now(writer.set_attributes(&root(), inode, cut(10), None)).unwrap();
                        now(writer.set_attributes(&root(), inode, cut(1000), None)).unwrap();
                    }
                    1 => {
                        now(writer.set_attributes(&root(), inode, cut(LEFT), None)).unwrap();
                    }
                    _ => {
                        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
                        let handle = now(writer.open(&root(), inode, flags)).unwrap().handle;
                        close(&writer, handle);
                    }
                }
                let handle = open(&writer, inode);
                write(&writer, handle, 0, &vec![round; BYTES]);
                close(&writer, handle);
                now(writer.settle_all());
            }
        }));
        done.store(true, Relaxed);
        written.expect("the writer is undisturbed");
    });
}

/// Promise: a small file that another client makes large, while this one has it open, stays writable here whatever comes
/// next: a cut by path, new attributes, or an open that empties it. (Before, a cut was EIO, and what was written after the
/// others could not be written back.)
#[test]
fn a_file_that_another_made_large_goes_on() {
    let site = Site::new(1);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let large = vec![3; 3 * INLINE_LIMIT as usize];
    type Then = fn(&FileSystem, InodeId);
    let steps: [(&str, Then, Vec<u8>); 3] = [
        ("cut", |fs, inode| set(fs, inode, resized(1000)), vec![3; 1000]),
        ("mode", |fs, inode| set(fs, inode, reset(0o600)), large.clone()),
        (
            "emptied",
            |fs, inode| {
                let anew = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
                close(fs, now(fs.open(&root(), inode, anew)).unwrap().handle);
            },
            Vec::new(),
        ),
    ];
    for (text, then, mut expected) in steps {
        let (inode, handle) = create(&one, text);
        write(&one, handle, 0, b"small");
        now(one.fsync(handle, false)).unwrap();
        now(other.lookup(&root(), ROOT, &name(text))).unwrap();
        let others = now(other.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap().handle;
        write(&other, others, 0, &large);
        close(&other, others);
        if text == "emptied" {
            write(&one, handle, 0, b"not kept");
        }
        then(&one, inode);
        write(&one, handle, 0, b"after");
        close(&one, handle);
        expected.resize(expected.len().max(5), 0);
        expected[..5].copy_from_slice(b"after");
        assert_eq!(content(&other, text), expected, "{text}");
    }
}

fn set(fs: &FileSystem, inode: InodeId, set: SetAttributes) {
    now(fs.set_attributes(&root(), inode, set, None)).unwrap();
}

fn resized(bytes: u64) -> SetAttributes {
    SetAttributes { size: Some(bytes), ..SetAttributes::default() }
}

fn reset(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(Mode::new(bits)), ..SetAttributes::default() }
}
