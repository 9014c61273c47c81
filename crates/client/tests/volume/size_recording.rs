//! Sizes of closed files that several handles and clients had open: none is left stale, and none is wrong.

use crate::site::*;
use std::sync::Arc;
use std::time::Duration;
use varve_client::{FileSystem, Handle, OpenFlags, RenameFlags, block_on};
use varve_types::InodeId;

const STOP: Duration = Duration::from_secs(10);
const BYTES: usize = 200_000;

/// A large file that both clients have partly written and may have closed.
struct SharedFile {
    one: Arc<FileSystem>,
    other: Arc<FileSystem>,
    inode: InodeId,
}

impl SharedFile {
    /// The first client has opened and written it.
    fn begin(site: &Site) -> (SharedFile, Handle) {
        let (one, other) = (site.connect(), site.connect());
        let (inode, handle) = create(&one, "f");
        write(&one, handle, 0, &[1; BYTES]);
        block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
        (SharedFile { one, other, inode }, handle)
    }

    fn open(&self, fs: &FileSystem, flags: OpenFlags) -> Handle {
        block_on(fs.open(&root(), self.inode, flags)).unwrap().handle
    }
}

/// Runs a scene, which returns the file's final length, and ends it: after both clients have shut down, the row must
/// have that length.
fn played(text: &str, scene: impl FnOnce(&SharedFile, Handle) -> usize) {
    let site = Site::new(2);
    let server = site.serve();
    let (of, handle) = SharedFile::begin(&site);
    let length = scene(&of, handle);
    for fs in [&of.one, &of.other] {
        block_on(fs.shutdown()).unwrap();
    }
    let third = site.connect();
    block_on(third.lookup(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(size(&third, of.inode), length as u64, "{text}");
    block_on(third.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    let report = varve_admin::fsck::check(&site.volume, &mut |_| {}).unwrap();
    assert!(report.totals.is_empty(), "{text}: {:?}", report.totals);
}

/// docs/semantics.md, `umount-lengths`: also if another client had the file open.
#[test]
fn size_written_by_several_clients_is_recorded() {
    played("opened by another to be written, which it is not", |scene, handle| {
        let idle = scene.open(&scene.other, OpenFlags::READ_WRITE);
        close(&scene.one, handle);
        block_on(scene.one.record_all_sizes());
        close(&scene.other, idle);
        BYTES
    });
    played("the same, by the one itself", |scene, handle| {
        close(&scene.one, handle);
        let idle = scene.open(&scene.one, OpenFlags::READ_WRITE);
        block_on(scene.one.record_all_sizes());
        let also = scene.open(&scene.one, OpenFlags::READ);
        close(&scene.one, also);
        close(&scene.one, idle);
        BYTES
    });
    played("written again by one whose size was not taken, and which has it open", |scene, handle| {
        let (reads, writes) =
            (scene.open(&scene.other, OpenFlags::READ), scene.open(&scene.other, OpenFlags::READ_WRITE));
        write(&scene.other, writes, BYTES as u64, &[2; 10]);
        close(&scene.other, writes);
        block_on(scene.other.record_all_sizes());
        let writes = scene.open(&scene.other, OpenFlags::READ_WRITE);
        write(&scene.other, writes, BYTES as u64 + 10, &[2; 1000]);
        close(&scene.one, handle);
        block_on(scene.one.record_all_sizes());
        write(&scene.other, writes, BYTES as u64 + 1010, &[2; 1000]);
        close(&scene.other, writes);
        close(&scene.other, reads);
        BYTES + 2010
    });
    played("renamed by another before it was settled", |scene, handle| {
        close(&scene.one, handle);
        let rename = |from, to| {
            block_on(scene.other.rename(&root(), ROOT, &name(from), ROOT, &name(to), RenameFlags::Replace)).unwrap();
        };
        rename("f", "g");
        block_on(scene.one.record_all_sizes());
        let writes = scene.open(&scene.other, OpenFlags::READ_WRITE);
        write(&scene.other, writes, BYTES as u64, &[2; 10]);
        close(&scene.other, writes);
        block_on(scene.other.record_all_sizes());
        assert_eq!(scene.other.sizes_to_record(), 0, "the one is done with it");
        rename("g", "f");
        BYTES + 10
    });
    played("written by turns, each before the other is done", |scene, mut handle| {
        let mut length = BYTES;
        for turn in 0..12 {
            let [this, next] = if turn % 2 == 0 { [&scene.one, &scene.other] } else { [&scene.other, &scene.one] };
            let following = scene.open(next, OpenFlags::READ_WRITE);
            write(next, following, length as u64, &[turn; 7]);
            length += 7;
            close(this, handle);
            block_on(this.record_all_sizes());
            handle = following;
        }
        close(&scene.one, handle);
        length
    });
}
