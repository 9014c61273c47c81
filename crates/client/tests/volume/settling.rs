//! Sizes of closed files that several handles and clients have had open: none is left unsettled, and none is wrong.

use crate::site::*;
use std::sync::Arc;
use std::time::Duration;
use varve_client::{FileSystem, Handle, OpenFlags, RenameFlags, now};
use varve_types::InodeId;

const STOP: Duration = Duration::from_secs(10);
const BYTES: usize = 200_000;

/// A large file that both clients have written in part and closed, or not.
struct Scene {
    one: Arc<FileSystem>,
    other: Arc<FileSystem>,
    inode: InodeId,
}

impl Scene {
    /// Opened by the one, who has written it.
    fn begin(site: &Site) -> (Scene, Handle) {
        let (one, other) = (site.connect(), site.connect());
        let (inode, handle) = create(&one, "f");
        write(&one, handle, 0, &[1; BYTES]);
        now(other.lookup(&root(), ROOT, &name("f"))).unwrap();
        (Scene { one, other, inode }, handle)
    }

    fn open(&self, fs: &FileSystem, flags: OpenFlags) -> Handle {
        now(fs.open(&root(), self.inode, flags)).unwrap().handle
    }
}

/// Plays a scene, which says how long the file has become, and ends it: after both clients are gone the row says that.
fn played(text: &str, scene: impl FnOnce(&Scene, Handle) -> usize) {
    let site = Site::new(2);
    let server = site.serve();
    let (of, handle) = Scene::begin(&site);
    let length = scene(&of, handle);
    for fs in [&of.one, &of.other] {
        now(fs.shutdown()).unwrap();
    }
    let third = site.connect();
    now(third.lookup(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(size(&third, of.inode), length as u64, "{text}");
    now(third.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    let report = varve_meta::fsck::check(&site.volume, &mut |_| {}).unwrap();
    assert!(report.totals.is_empty(), "{text}: {:?}", report.totals);
}

/// docs/semantics.md, `umount-lengths`: also if another client had the file open.
#[test]
fn what_several_have_written_is_settled() {
    played("opened by another to be written, which it is not", |scene, handle| {
        let idle = scene.open(&scene.other, OpenFlags::READ_WRITE);
        close(&scene.one, handle);
        now(scene.one.settle_all());
        close(&scene.other, idle);
        BYTES
    });
    played("the same, by the one itself", |scene, handle| {
        close(&scene.one, handle);
        let idle = scene.open(&scene.one, OpenFlags::READ_WRITE);
        now(scene.one.settle_all());
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
        now(scene.other.settle_all());
        let writes = scene.open(&scene.other, OpenFlags::READ_WRITE);
        write(&scene.other, writes, BYTES as u64 + 10, &[2; 1000]);
        close(&scene.one, handle);
        now(scene.one.settle_all());
        write(&scene.other, writes, BYTES as u64 + 1010, &[2; 1000]);
        close(&scene.other, writes);
        close(&scene.other, reads);
        BYTES + 2010
    });
    played("renamed by another before it was settled", |scene, handle| {
        close(&scene.one, handle);
        let rename = |from, to| {
            now(scene.other.rename(&root(), ROOT, &name(from), ROOT, &name(to), RenameFlags::Replace)).unwrap();
        };
        rename("f", "g");
        now(scene.one.settle_all());
        let writes = scene.open(&scene.other, OpenFlags::READ_WRITE);
        write(&scene.other, writes, BYTES as u64, &[2; 10]);
        close(&scene.other, writes);
        now(scene.other.settle_all());
        assert_eq!(scene.other.sizes_to_settle(), 0, "the one is done with it");
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
            now(this.settle_all());
            handle = following;
        }
        close(&scene.one, handle);
        length
    });
}
