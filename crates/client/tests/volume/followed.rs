//! Open files that other clients change: size and content are one snapshot.

use crate::files::{LIMIT, resized};
use crate::site::*;
use std::time::{Duration, Instant};
use varve_client::{FileSystem, Handle, OpenFlags, block_on};
use varve_types::InodeId;

/// For this long a client may read a file as it was without a request.
const LEASE: Duration = Duration::from_secs(1);

fn open_to_read(fs: &FileSystem, text: &str) -> (InodeId, Handle) {
    let inode = block_on(fs.lookup(&root(), ROOT, &name(text))).unwrap().inode;
    (inode, block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap().handle)
}

fn requests(fs: &FileSystem, ask: impl FnOnce()) -> u64 {
    let before = fs.counters().requests();
    ask();
    fs.counters().requests() - before
}

/// Promise: the size of an open small file that a client reports is that of the content that it reads next, whatever
/// another client did to the file, and whichever call fetched the attributes.
#[test]
fn size_and_content_of_an_open_file_agree() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    for by_name in [false, true] {
        let text = format!("by name: {by_name}");
        let (inode, handle) = create(&other, &text);
        let limit = LIMIT as usize;
        write(&other, handle, 0, &[1; 100]);
        close(&other, handle);
        let (_, reader) = open_to_read(&one, &text);
        assert_eq!(read(&one, reader, 0, limit), [1; 100]);
        let agrees = |content: &[u8]| {
            let size = match by_name {
                true => block_on(one.lookup(&root(), ROOT, &name(&text))).unwrap().attributes.size,
                false => size(&one, inode),
            };
            assert_eq!(size, content.len() as u64, "{text}");
            assert!(read(&one, reader, 0, 4 * limit) == content, "{text}: {size} bytes");
        };
        let handle = open(&other, inode);
        write(&other, handle, 0, &[2; 200]);
        block_on(other.fsync(handle, false)).unwrap();
        agrees(&[2; 200]);
        write(&other, handle, 0, &[3; 200]);
        block_on(other.flush(handle)).unwrap();
        agrees(&[3; 200]);
        resized(&other, inode, 50, None);
        agrees(&[3; 50]);
        // It outgrows its row.
        write(&other, handle, 50, &vec![3; 2 * limit]);
        block_on(other.flush(handle)).unwrap();
        agrees(&vec![3; 2 * limit + 50]);
        resized(&other, inode, 7, None);
        agrees(&[3; 7]);
        close(&other, handle);
        block_on(one.release(reader));
    }
}

/// Promise: bytes that this client has not written back are in the content that it reads, and in the size, when another
/// client has replaced the file meanwhile.
#[test]
fn unwritten_bytes_are_read_in_changed_content() {
    let site = Site::synced_every(4, Duration::from_secs(300));
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, ours) = create(&one, "f");
    write(&one, ours, 0, &[1; 100]);
    block_on(one.flush(ours)).unwrap();
    write(&one, ours, 0, &[2; 10]);
    let (_, _) = open_to_read(&other, "f");
    let theirs = open(&other, inode);
    write(&other, theirs, 90, &[3; 20]);
    block_on(other.flush(theirs)).unwrap();
    std::thread::sleep(LEASE);
    let wanted = [vec![2; 10], vec![1; 80], vec![3; 20]].concat();
    assert_eq!(read(&one, ours, 0, 200), wanted);
    assert_eq!(size(&one, inode), 110);
    assert_eq!(content(&other, "f"), wanted);
}

/// Promise: a read that no request for attributes precedes sees a change by another client within the lease.
#[test]
fn reads_alone_follow_within_the_lease() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&other, "f");
    write(&other, handle, 0, b"old");
    close(&other, handle);
    let (_, reader) = open_to_read(&one, "f");
    assert_eq!(read(&one, reader, 0, 10), b"old");
    let handle = open(&other, inode);
    write(&other, handle, 0, b"newer");
    close(&other, handle);
    std::thread::sleep(LEASE);
    assert_eq!(read(&one, reader, 0, 10), b"newer");
    block_on(one.release(reader));
}

/// Promise: reads of a file that nobody changes need no request, but one per lease where other clients are possible.
#[test]
fn reads_of_unchanged_files_need_no_request() {
    for embedded in [false, true] {
        let site = Site::new(4);
        let _server = site.serve_as(embedded);
        let fs = site.connect();
        let (inode, handle) = create(&fs, "f");
        write(&fs, handle, 0, b"content");
        close(&fs, handle);
        let (_, reader) = open_to_read(&fs, "f");
        let many = || (0..100).for_each(|_| assert_eq!(read(&fs, reader, 0, 10), b"content"));
        let (began, asked) = (Instant::now(), requests(&fs, many));
        // The machine may take long.
        assert!(asked <= began.elapsed().as_secs(), "{asked} requests");
        assert_eq!(requests(&fs, || assert_eq!(size(&fs, inode), 7)), 1);
        std::thread::sleep(LEASE);
        let asked = requests(&fs, || assert_eq!(read(&fs, reader, 0, 10), b"content"));
        assert_eq!(asked, u64::from(!embedded));
        block_on(fs.release(reader));
    }
}
