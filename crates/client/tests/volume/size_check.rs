//! Backing files that are shorter than their rows say.

use crate::site::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use varve_client::{ClientConfig, Failure, FileSystem, OpenFlags, OpenMode, block_on};
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
    block_on(fs.record_all_sizes());
    inode
}

/// The error names the file, the remaining bytes, and what to do.
fn refused(failure: &Failure, text: &str) {
    assert_eq!(failure.errno, Errno::EIO);
    let said = failure.to_string();
    for word in [text, "300000 bytes", "100000 are left", "varve fsck"] {
        assert!(said.contains(word), "{said}");
    }
}

/// Promise: a large file that was truncated outside Varve fails for every open and for reads beyond its end, until it
/// is restored, rewritten or repaired; other files still work.
#[test]
fn externally_truncated_file_is_refused() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let inode = large(&one, "cut");
    large(&one, "other");
    block_on(other.lookup(&root(), ROOT, &name("cut"))).unwrap();
    let early = block_on(other.open(&root(), inode, OpenFlags::READ)).unwrap().handle;
    cut_outside(&site, inode, LEFT);

    let write_only = OpenFlags { mode: OpenMode::Write, ..OpenFlags::READ };
    for flags in [OpenFlags::READ, OpenFlags::READ_WRITE, write_only] {
        refused(&block_on(one.open(&root(), inode, flags)).unwrap_err(), "cut");
        refused(&block_on(other.open(&root(), inode, flags)).unwrap_err(), "cut");
    }
    assert_eq!(read(&other, early, 0, 50_000), [7; 50_000], "what is there is read");
    for (offset, length) in [(0, BYTES), (LEFT, 1), (LEFT + 1000, BYTES), (BYTES as u64 - 1, 1)] {
        let mut buffer = vec![0; length];
        refused(&block_on(other.read(early, offset, &mut buffer)).unwrap_err(), "cut");
    }
    assert_eq!(read(&other, early, BYTES as u64, 10), b"", "there the row says that it ends");
    let (_, copy) = create(&other, "copy");
    write(&other, copy, 0, &vec![1; BYTES]);
    refused(&block_on(other.copy_range(early, 0, copy, 0, BYTES as u64)).unwrap_err(), "cut");
    assert_eq!(content(&one, "other").len(), BYTES);

    // As if restored from a copy of the store.
    cut_outside(&site, inode, BYTES as u64);
    assert_eq!(content(&one, "cut").len(), BYTES);

    cut_outside(&site, inode, LEFT);
    let anew = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let handle = block_on(one.open(&root(), inode, anew)).unwrap().handle;
    write(&one, handle, 0, &vec![8; 2 * INLINE_LIMIT as usize]);
    close(&one, handle);
    assert_eq!(content(&other, "cut"), vec![8; 2 * INLINE_LIMIT as usize]);
}

/// Promise: the size that was fsynced is checked at once, whether or not the file is closed, and for every writer. A
/// truncation through Varve is not treated as damage, and later writes can be synced.
#[test]
fn externally_truncated_synced_file_is_refused() {
    let site = Site::new(4);
    let server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&one, "cut");
    write(&one, handle, 0, &vec![7; BYTES]);
    block_on(one.fsync(handle, false)).unwrap();
    block_on(other.lookup(&root(), ROOT, &name("cut"))).unwrap();
    let both = |site: &Site| {
        cut_outside(site, inode, LEFT);
        for fs in [&one, &other] {
            refused(&block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap_err(), "cut");
        }
        let mut buffer = vec![0; BYTES];
        refused(&block_on(one.read(handle, 0, &mut buffer)).unwrap_err(), "cut");
        cut_outside(site, inode, BYTES as u64);
    };
    both(&site);
    let cut = SetAttributes { size: Some(50_000), ..Default::default() };
    block_on(one.set_attributes(&root(), inode, cut, Some(handle))).unwrap();
    assert_eq!(content(&other, "cut").len(), 50_000);
    write(&one, handle, 50_000, &vec![8; BYTES - 50_000]);
    assert_eq!(content(&other, "cut").len(), BYTES);
    block_on(one.fsync(handle, true)).unwrap();
    both(&site);
    // Also if only the row has the size.
    server.stop(STOP).unwrap();
    let server = site.serve();
    both(&site);
    close(&one, handle);
    server.stop(STOP).unwrap();
}

/// Promise: the size of a file whose writer died is recorded by the next open, if nothing of it is missing.
#[test]
fn next_open_records_a_size_after_a_crash() {
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
        block_on(one.fsync(handle, false)).unwrap();
        // No row has the size of these bytes.
        write(&one, handle, BYTES as u64, &[8; 10]);
        inode
    });
    // Neither closed nor released, as when its process dies.
    server.stop(STOP).unwrap();
    drop(one);
    cut_outside(&site, files[1], LEFT);
    let found = || {
        let report = varve_admin::fsck::check(&site.volume, &mut |_| {}).unwrap();
        report.totals.into_iter().map(|(kind, count)| (kind.name(), count)).collect::<Vec<_>>()
    };
    assert_eq!(found(), [("wrong-size", 1), ("unsettled-size", 1)]);
    let server = serve();
    let two = site.connect();
    let inode = block_on(two.lookup(&root(), ROOT, &name("cut"))).unwrap().inode;
    refused(&block_on(two.open(&root(), inode, OpenFlags::READ)).unwrap_err(), "cut");
    assert_eq!(content(&two, "whole").len(), BYTES + 10);
    block_on(two.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    assert_eq!(found(), [("wrong-size", 1)]);
}

/// Promise: a size that cannot be recorded, for example while the store is unreachable, is recorded when that is
/// possible, by a sync and without one; a later truncation of such a file by another program is noticed.
#[test]
fn unrecorded_size_is_recorded_later() {
    let site = Site::new(2);
    let _server = site.serve();
    let fs = site.connect();
    let (store, aside) = (site.path("store"), site.path("aside"));
    for (text, by_sync) in [("by sync", true), ("without", false)] {
        let (inode, handle) = create(&fs, text);
        write(&fs, handle, 0, &vec![7; BYTES]);
        close(&fs, handle);
        std::fs::rename(&store, &aside).unwrap();
        block_on(fs.record_all_sizes());
        assert_eq!(fs.sizes_to_record(), 1, "{text}: nothing is known of it");
        std::fs::rename(&aside, &store).unwrap();
        if by_sync {
            block_on(fs.sync()).unwrap();
        }
        let begun = std::time::Instant::now();
        while fs.sizes_to_record() > 0 {
            assert!(!by_sync && begun.elapsed() < 3 * STOP, "{text}: it is not settled");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        cut_outside(&site, inode, LEFT);
        refused(&block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap_err(), text);
    }
}

/// Promise: a sync or shutdown that cannot record a size by its deadline reports that.
#[test]
fn unrecordable_size_is_reported() {
    let site = Site::new(2);
    let server = site.serve();
    let deadline = std::time::Duration::from_secs(1);
    let fs = FileSystem::connect(ClientConfig { deadline, ..site.config() }).unwrap();
    let (inode, handle) = create(&fs, "file");
    write(&fs, handle, 0, &vec![7; BYTES]);
    close(&fs, handle);
    block_on(fs.sync()).unwrap();
    let (directory, aside) = (site.volume.backing_directory(inode), site.path("aside"));
    std::fs::rename(&directory, &aside).unwrap();
    std::fs::write(&directory, b"no directory").unwrap();
    block_on(fs.record_all_sizes());
    let said = block_on(fs.sync()).unwrap_err();
    assert!(said.errno == Errno::EIO && said.to_string().contains("the sizes of 1 closed files"), "{said}");
    std::fs::remove_file(&directory).unwrap();
    std::fs::rename(&aside, &directory).unwrap();
    block_on(fs.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    let report = varve_admin::fsck::check(&site.volume, &mut |_| {}).unwrap();
    assert!(report.totals.is_empty(), "it is settled");
}

/// Promise: truncations through Varve, of every kind and beside every reader, are not treated as damage.
#[test]
fn file_truncated_by_another_client_passes_size_check() {
    let site = Site::new(1);
    let _server = site.serve();
    let writer = site.connect();
    let inode = large(&writer, "f");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let fs = site.connect();
                block_on(fs.lookup(&root(), ROOT, &name("f"))).unwrap();
                let mut buffer = vec![0; 2 * BYTES];
                while !done.load(Relaxed) {
                    let handle = block_on(fs.open(&root(), inode, OpenFlags::READ)).expect("it is whole").handle;
                    for _ in 0..3 {
                        block_on(fs.read(handle, 0, &mut buffer)).expect("it is whole");
                    }
                    block_on(fs.release(handle));
                }
            });
        }
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..60_u8 {
                let cut = |size| SetAttributes { size: Some(size), ..Default::default() };
                match round % 3 {
                    // By the server, and extended again.
                    0 => {
                        block_on(writer.set_attributes(&root(), inode, cut(10), None)).unwrap();
                        block_on(writer.set_attributes(&root(), inode, cut(1000), None)).unwrap();
                    }
                    1 => {
                        block_on(writer.set_attributes(&root(), inode, cut(LEFT), None)).unwrap();
                    }
                    _ => {
                        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
                        let handle = block_on(writer.open(&root(), inode, flags)).unwrap().handle;
                        close(&writer, handle);
                    }
                }
                let handle = open(&writer, inode);
                write(&writer, handle, 0, &vec![round; BYTES]);
                close(&writer, handle);
                block_on(writer.record_all_sizes());
            }
        }));
        done.store(true, Relaxed);
        written.expect("the writer is undisturbed");
    });
}

/// Promise: a small file that another client makes large, while this client has it open, stays writable here after each
/// next step: a truncation by path, new attributes, or an open with O_TRUNC. (Before, a truncation failed with EIO, and
/// later writes could not be written back.)
#[test]
fn file_promoted_by_another_client_stays_usable() {
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
                close(fs, block_on(fs.open(&root(), inode, anew)).unwrap().handle);
            },
            Vec::new(),
        ),
    ];
    for (text, then, mut expected) in steps {
        let (inode, handle) = create(&one, text);
        write(&one, handle, 0, b"small");
        block_on(one.fsync(handle, false)).unwrap();
        block_on(other.lookup(&root(), ROOT, &name(text))).unwrap();
        let others = block_on(other.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap().handle;
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
    block_on(fs.set_attributes(&root(), inode, set, None)).unwrap();
}

fn resized(bytes: u64) -> SetAttributes {
    SetAttributes { size: Some(bytes), ..SetAttributes::default() }
}

fn reset(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(Mode::new(bits)), ..SetAttributes::default() }
}
