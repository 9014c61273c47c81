//! What was written to small files, and the row does not have for sure: it is neither lost nor written twice.

use super::late::{Late, Made};
use super::site::*;
use std::sync::Arc;
use varve_client::{FileSystem, Handle, OpenFlags, now};
use varve_meta::server::Server;
use varve_types::{Errno, InodeId};

const APPENDING: OpenFlags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };

/// A client whose changes can be answered with errors, at a server that has others.
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
    (inode, now(fs.open(&root(), inode, APPENDING)).unwrap().handle)
}

/// Promise: what was written to a small file that another client moves to the store meanwhile is kept until it is there, should
/// that fail at first, and whoever is told of the failure.
#[test]
fn what_cannot_be_placed_is_kept() {
    let site = Site::new(4);
    let (fs, late, _server) = beside_others(&site);
    let other = site.connect();
    let (inode, handle) = small(&fs, "f", b"small");
    write(&fs, handle, 0, b" and more");
    let large = vec![b'x'; 2 * INLINE_LIMIT as usize];
    now(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    let outgrowing = open(&other, inode);
    write(&other, outgrowing, 0, &large);
    close(&other, outgrowing);

    late.set(Made::AtOnce);
    assert_eq!(now(fs.attributes(&root(), inode)).unwrap_err().errno, Errno::EIO, "who only asks is told");
    assert_eq!(read(&fs, handle, 0, 100), b"small and more");
    assert_eq!(now(fs.flush(handle)).unwrap_err().errno, Errno::EIO, "and who closes, as long as it lasts");
    late.set(Made::Truly);
    close(&fs, handle);
    assert!(content(&site.connect(), "f") == [&large, &b" and more"[..]].concat());
}
