//! Writes to small files that the row may or may not have: they are neither lost nor applied twice.

use super::late::{ChangeTiming, Late};
use super::site::*;
use std::sync::Arc;
use varve_client::{FileSystem, Handle, Io, OpenFlags, block_on};
use varve_meta::server::Server;
use varve_types::{Errno, InodeId, SetAttributes};

const APPENDING: OpenFlags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };

/// A client whose changes can be answered with errors, at a server with other clients.
fn beside_others(site: &Site) -> (Arc<FileSystem>, Late, Arc<Server>) {
    let server = Arc::new(site.serve());
    let late = Late::of(Arc::clone(&server));
    let fs = FileSystem::connect_within(site.config(), Arc::new(late.clone())).unwrap();
    (fs, late, server)
}

/// A small file with `content` that `fs` has open.
fn small(fs: &FileSystem, text: &str, content: &[u8]) -> (InodeId, Handle) {
    let (inode, handle) = create(fs, text);
    write(fs, handle, 0, content);
    close(fs, handle);
    (inode, block_on(fs.open(&root(), inode, APPENDING)).unwrap().handle)
}

/// Promise: data written to a small file that another client promotes meanwhile is kept until it is in the backing
/// file, even if that fails at first, and whichever call reports the failure.
#[test]
fn unplaceable_append_is_kept() {
    let site = Site::new(4);
    let (fs, late, _server) = beside_others(&site);
    let other = site.connect();
    let (inode, handle) = small(&fs, "f", b"small");
    write(&fs, handle, 0, b" and more");
    let large = vec![b'x'; 2 * INLINE_LIMIT as usize];
    block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    let outgrowing = open(&other, inode);
    write(&other, outgrowing, 0, &large);
    close(&other, outgrowing);

    late.set(ChangeTiming::AtOnce);
    assert_eq!(block_on(fs.attributes(&root(), inode)).unwrap_err().errno, Errno::EIO, "a stat reports the error");
    assert_eq!(read(&fs, handle, 0, 100), b"small and more");
    assert_eq!(block_on(fs.flush(handle)).unwrap_err().errno, Errno::EIO, "so does a close, as long as it lasts");
    late.set(ChangeTiming::Truly);
    close(&fs, handle);
    assert!(content(&site.connect(), "f") == [&large, &b" and more"[..]].concat());
}

/// Promise: bytes appended to a small file are there once, even if the write-back has an unknown outcome; so are bytes
/// appended after that, and bytes that make the file outgrow its row.
#[test]
fn append_with_unknown_outcome_is_applied_once() {
    let site = Site::new(4);
    let (fs, late, _server) = beside_others(&site);
    let large = vec![b'x'; 2 * INLINE_LIMIT as usize];
    for made in [ChangeTiming::AtOnce, ChangeTiming::Later] {
        for what in ["nothing more", "a little more", "much more", "an answer more", "another client's"] {
            let text = format!("{what}, {made:?}");
            let (inode, handle) = small(&fs, &text, b"small");
            write(&fs, handle, 0, b", more");
            late.set(made);
            assert!(block_on(fs.flush(handle)).unwrap_err().outcome_unknown, "{text}");
            let mut expected = b"small, more".to_vec();
            match what {
                "a little more" => {
                    write(&fs, handle, 0, b", again");
                    assert!(block_on(fs.flush(handle)).unwrap_err().outcome_unknown, "{text}");
                    expected.extend_from_slice(b", again");
                }
                "much more" => {
                    late.set(ChangeTiming::Truly);
                    write(&fs, handle, 0, &large);
                    expected.extend_from_slice(&large);
                }
                "an answer more" => {
                    assert!(block_on(fs.write(handle, 0, &large)).unwrap_err().outcome_unknown, "{text}")
                }
                "another client's" => {
                    let other = site.connect();
                    block_on(other.lookup(&root(), ROOT, &name(&text))).unwrap();
                    let theirs = open(&other, inode);
                    write(&other, theirs, 0, b"SM");
                    if made == ChangeTiming::Later {
                        close(&other, theirs);
                    }
                    late.set(ChangeTiming::Truly);
                    block_on(fs.flush(handle)).unwrap();
                    if made == ChangeTiming::AtOnce {
                        close(&other, theirs);
                    }
                    expected[..2].copy_from_slice(b"SM");
                }
                _ => {}
            }
            late.set(ChangeTiming::Truly);
            close(&fs, handle);
            let found = content(&site.connect(), &text);
            assert!(found == expected, "{text}: {} bytes for {}", found.len(), expected.len());
        }
    }
}

/// Promise: bytes appended to a small file are there once if its promotion had an unknown outcome.
#[test]
fn promotion_with_unknown_outcome_is_applied_once() {
    let site = Site::new(4);
    let (fs, late, _server) = beside_others(&site);
    let large = vec![b'x'; 2 * INLINE_LIMIT as usize];
    for made in [ChangeTiming::AtOnce, ChangeTiming::Later] {
        for (others, again) in [(false, false), (false, true), (true, true)] {
            let text = format!("{made:?}, others {others}, again {again}");
            let (inode, handle) = small(&fs, &text, b"small");
            write(&fs, handle, 0, b", more");
            late.set(made);
            assert!(block_on(fs.write(handle, 0, &large)).unwrap_err().outcome_unknown, "{text}");
            late.set(ChangeTiming::Truly);
            let mut expected = b"small, more".to_vec();
            if again {
                write(&fs, handle, 0, b", again");
                expected.extend_from_slice(b", again");
            }
            if others {
                let other = site.connect();
                block_on(other.lookup(&root(), ROOT, &name(&text))).unwrap();
                let theirs = block_on(other.open(&root(), inode, APPENDING)).unwrap().handle;
                write(&other, theirs, 0, b"theirs");
                close(&other, theirs);
                let at = if made == ChangeTiming::AtOnce { 11 } else { 5 };
                expected.splice(at..at, *b"theirs");
            }
            close(&fs, handle);
            let found = content(&site.connect(), &text);
            assert!(found == expected, "{text}: {}", String::from_utf8_lossy(&found));
            assert_eq!(size(&fs, inode), found.len() as u64, "{text}");
        }
    }
}

/// Promise: data of a small file that is lost, because it could not be written back at close, is no longer shown: the
/// kernel of a mount without other clients, which keeps its cached pages, is made to drop them.
#[test]
fn lost_write_is_not_kept() {
    let site = Site::new(4);
    let late = Late::of(Arc::new(site.serve_as(true)));
    let fs = FileSystem::connect_within(site.config(), Arc::new(late.clone())).unwrap();
    let keeps = |inode| {
        let opened = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap();
        close(&fs, opened.handle);
        matches!(opened.io, Io::Cached { keep: true })
    };
    for others in [false, true] {
        let (inode, handle) = small(&fs, &format!("others {others}"), b"small");
        close(&fs, handle);
        assert!(keeps(inode));
        let handle = open(&fs, inode);
        write(&fs, handle, 0, b"lost");
        late.set(ChangeTiming::Later);
        assert!(block_on(fs.attributes(&root(), inode)).unwrap().attributes_ttl.is_zero());
        block_on(fs.release(handle));
        late.set(ChangeTiming::Truly);
        if others {
            // This opens the file, too, but not for the kernel.
            let set = SetAttributes { size: Some(2 * u64::from(INLINE_LIMIT)), ..Default::default() };
            block_on(fs.set_attributes(&root(), inode, set, None)).unwrap();
        }
        assert!(!keeps(inode), "{others}");
        assert!(keeps(inode));
        assert_eq!(content(&fs, &format!("others {others}"))[..5], *b"small", "{others}");
    }
}

/// Promise: a small file that cannot be written back still reads and stats as it was written, and close reports the
/// failure.
#[test]
fn unwritten_data_stays_readable() {
    let site = Site::new(4);
    let (fs, late, _server) = beside_others(&site);
    let (inode, handle) = small(&fs, "f", b"small");
    write(&fs, handle, 0, b" and more");
    late.set(ChangeTiming::Later);
    for _ in 0..2 {
        assert_eq!(size(&fs, inode), 14);
        let reads = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap().handle;
        assert_eq!(read(&fs, reads, 0, 100), b"small and more");
        block_on(fs.release(reads));
        assert_eq!(block_on(fs.flush(handle)).unwrap_err().errno, Errno::EIO);
    }
    late.set(ChangeTiming::Truly);
    close(&fs, handle);
    assert_eq!(content(&site.connect(), "f"), b"small and more");
}
