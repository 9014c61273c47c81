//! Content: in rows, in backing files, and during promotion.

use crate::site::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, OpenFlags, OpenMode, Whence, block_on};
use varve_types::{Credentials, Errno, InodeId, Mode, SetAttributes, SetTime, ShardId, Timestamp};

pub const LIMIT: u64 = INLINE_LIMIT as u64;

pub fn resized(fs: &FileSystem, inode: InodeId, size: u64, handle: Option<varve_client::Handle>) -> u64 {
    let set = SetAttributes { size: Some(size), ..Default::default() };
    block_on(fs.set_attributes(&root(), inode, set, handle)).unwrap().attributes.size
}

/// Promise: a client reads the data that another wrote and closed: small files from their rows, large ones from backing
/// files; sizes are recorded after close.
#[test]
fn closed_files_are_seen_by_others() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    for (text, len) in [("empty", 0), ("small", 100), ("limit", INLINE_LIMIT as usize), ("large", 300_000)] {
        let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
        let (inode, handle) = create(&one, text);
        for (i, chunk) in data.chunks(1000).enumerate() {
            write(&one, handle, i as u64 * 1000, chunk);
        }
        assert_eq!(size(&one, inode), len as u64, "while it is open");
        close(&one, handle);
        assert_eq!(size(&one, inode), len as u64);
        assert_eq!(content(&other, text), data, "{text}");
        let node = block_on(other.lookup(&root(), ROOT, &name(text))).unwrap();
        assert_eq!(node.attributes.size, len as u64);
        assert_eq!(site.volume.backing_file(inode).exists(), len as u64 > LIMIT);
    }
}

/// Promise: in the store, a file of root's volume belongs to its owner and has its permissions, but no set-id bits,
/// which would apply there to everyone; and other users have no access to the store's data directory.
#[test]
fn backing_files_have_no_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let site = Site::owned_by(0);
    let mode_of = |path: &std::path::Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    // As an earlier version made it.
    std::fs::set_permissions(site.volume.data(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let _server = site.serve();
    assert_eq!(mode_of(site.volume.data().path()), 0o700, "the server closes it");
    let one = site.connect();
    let (inode, handle) = create(&one, "large");
    let chmod = |mode: u32| {
        let set = SetAttributes { mode: Some(Mode::new(mode)), ..Default::default() };
        assert_eq!(block_on(one.set_attributes(&root(), inode, set, None)).unwrap().attributes.mode, Mode::new(mode));
    };
    chmod(0o4755);
    write(&one, handle, 0, &vec![b'x'; 2 * LIMIT as usize]);
    close(&one, handle);
    let backing = || mode_of(site.volume.backing_file(inode).path());
    assert_eq!(backing(), 0o755, "when it is made");
    chmod(0o6711);
    assert_eq!(backing(), 0o711, "when it is changed");
}

/// Promise: a client returns the attributes of a file that it has just made without a request, once, and until any
/// client changes them.
#[test]
fn new_file_needs_no_attribute_fetch() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let asked = |ask: &dyn Fn()| {
        let before = one.counters().requests();
        ask();
        one.counters().requests() - before
    };
    let (inode, handle) = create(&one, "known");
    assert_eq!(asked(&|| assert_eq!(size(&one, inode), 0)), 0, "it was told when it was made");
    assert_eq!(asked(&|| assert_eq!(size(&one, inode), 0)), 1, "it is believed once");
    close(&one, handle);

    let (inode, handle) = create(&one, "written");
    write(&one, handle, 0, b"seven b");
    assert_eq!(size(&one, inode), 7);
    close(&one, handle);

    let (inode, handle) = create(&one, "unlinked");
    block_on(one.unlink(&root(), ROOT, &name("unlinked"))).unwrap();
    assert_eq!(block_on(one.attributes(&root(), inode)).unwrap().attributes.nlink, 0);
    close(&one, handle);

    let (inode, handle) = create(&one, "chmodded");
    let node = block_on(other.lookup(&root(), ROOT, &name("chmodded"))).unwrap();
    let set = SetAttributes { mode: Some(Mode::new(0o600)), ..Default::default() };
    block_on(other.set_attributes(&root(), node.inode, set, None)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(11));
    assert_eq!(block_on(one.attributes(&root(), inode)).unwrap().attributes.mode, Mode::new(0o600));
    close(&one, handle);
}

/// Promise: a thread gets the attributes that came with a lookup once more without a request, unless this client has
/// changed the file, has it open, or the thread requests them late.
#[test]
fn getattr_after_lookup_is_served_from_cache_once() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let asked = |ask: &dyn Fn()| {
        let before = fs.counters().requests();
        ask();
        fs.counters().requests() - before
    };
    let (inode, handle) = create(&fs, "f");
    close(&fs, handle);
    let look_up = |thread| {
        block_on(fs.lookup_by(thread, &root(), ROOT, &name("f"))).unwrap();
    };
    let size_by = |thread| block_on(fs.attributes_by(thread, &root(), inode)).unwrap().attributes.size;
    let questions = |thread| asked(&|| assert!(size_by(thread) <= 8));

    // (Releases sent in the background may count as requests, too.)
    look_up(1);
    assert!(questions(2) > 0, "another thread has not looked it up");
    // On a busy machine, at least one of many attempts is in time.
    let in_time = |thread| (0..1000).any(|_| (look_up(thread), questions(thread)).1 == 0);
    assert!(in_time(1), "it was told with the name");
    assert!(questions(1) > 0, "it is believed once");

    look_up(1);
    std::thread::sleep(std::time::Duration::from_millis(11));
    assert!(questions(1) > 0, "a call takes no so long");

    look_up(1);
    let handle = open(&fs, inode);
    assert!(questions(1) > 0, "of a file that is open something newer may be known");
    look_up(1);
    write(&fs, handle, 0, b"seven b");
    close(&fs, handle);
    assert_eq!(size_by(1), 7, "it was open when it was looked up");

    look_up(1);
    let handle = open(&fs, inode);
    write(&fs, handle, 7, b"!");
    close(&fs, handle);
    assert_eq!(size_by(1), 8, "it was written to meanwhile");

    look_up(1);
    let set = SetAttributes { size: Some(3), ..Default::default() };
    block_on(fs.set_attributes(&root(), inode, set, None)).unwrap();
    assert_eq!(size_by(1), 3, "it was cut meanwhile");
}

/// Promise: a small file that cannot be extended to the requested length stays as it is, and the attempt leaves nothing
/// in the store.
#[test]
fn failed_promotion_leaves_no_backing_file() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"small");
    let set = SetAttributes { size: Some(i64::MAX as u64), ..Default::default() };
    match block_on(fs.set_attributes(&root(), inode, set, Some(handle))) {
        // This store supports the size.
        Ok(_) => return,
        Err(failure) => assert_eq!(failure.errno, Errno::EFBIG),
    }
    assert!(!site.volume.backing_file(inode).exists());
    assert_eq!(read(&fs, handle, 0, 100), b"small");
    write(&fs, handle, 2 * LIMIT, b"far");
    close(&fs, handle);
    assert_eq!(size(&fs, inode), 2 * LIMIT + 3);
}

/// Promise: promotion keeps the content, holes read as zero, and reads stop at the end; also in a second handle.
#[test]
fn promotion_keeps_the_content() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, first) = create(&fs, "f");
    let second = open(&fs, inode);
    write(&fs, first, 10, b"small");
    assert_eq!(read(&fs, second, 0, 100), b"\0\0\0\0\0\0\0\0\0\0small");
    write(&fs, second, 2 * LIMIT, b"far");
    assert_eq!(size(&fs, inode), 2 * LIMIT + 3);
    assert_eq!(read(&fs, first, 10, 5), b"small");
    assert_eq!(read(&fs, first, 2 * LIMIT - 1, 100), b"\0far");
    assert_eq!(read(&fs, first, 2 * LIMIT + 3, 100), b"");
    block_on(fs.fsync(first, false)).unwrap();
    close(&fs, first);
    write(&fs, second, 0, b"S");
    close(&fs, second);
    assert_eq!(content(&fs, "f").len() as u64, 2 * LIMIT + 3);
    assert!(content(&site.connect(), "f").starts_with(b"S"));
}

/// Promise: offsets beyond the maximum size of a file fail with EFBIG, and nothing is written.
#[test]
fn file_size_limits_are_enforced() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    let failure = block_on(fs.write(handle, i64::MAX as u64, b"x")).unwrap_err();
    assert_eq!(failure.errno, Errno::EFBIG);
    let set = SetAttributes { size: Some(1 << 63), ..Default::default() };
    assert_eq!(block_on(fs.set_attributes(&root(), inode, set, None)).unwrap_err().errno, Errno::EFBIG);
    assert_eq!(size(&fs, inode), 0);
    assert_eq!(read(&fs, handle, i64::MAX as u64, 10), b"");
}

/// Promise: appending handles write to the end, even after another handle has moved it.
#[test]
fn appends_go_to_the_end() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    let appending = block_on(fs.open(&root(), inode, flags)).unwrap().handle;
    write(&fs, handle, 0, b"123");
    write(&fs, appending, 0, b"456");
    write(&fs, handle, LIMIT, b"789");
    write(&fs, appending, 0, b"0");
    assert_eq!(read(&fs, handle, LIMIT, 10), b"7890");
    assert_eq!(read(&fs, handle, 0, 6), b"123456");
}

/// Promise: truncation by handle, by path and by O_TRUNC, below and above the inline limit, is visible to open handles.
#[test]
fn truncation_is_seen_everywhere() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    for start in [100, 3 * LIMIT] {
        let text = format!("f{start}");
        let (inode, handle) = create(&fs, &text);
        write(&fs, handle, 0, &vec![7; start as usize]);
        assert_eq!(resized(&fs, inode, 50, None), 50, "by path, with unwritten bytes");
        assert_eq!(read(&fs, handle, 0, 100), [7; 50]);
        assert_eq!(resized(&fs, inode, 60, Some(handle)), 60, "by handle");
        assert_eq!(read(&fs, handle, 48, 100), b"\x07\x07\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(resized(&fs, inode, 2 * LIMIT, None), 2 * LIMIT, "beyond the limit, by path");
        write(&fs, handle, 2 * LIMIT, b"x");
        assert_eq!(size(&fs, inode), 2 * LIMIT + 1);
        let flags = OpenFlags { truncate: true, mode: OpenMode::Write, ..OpenFlags::READ };
        let cut = block_on(fs.open(&root(), inode, flags)).unwrap().handle;
        assert_eq!(size(&fs, inode), 0);
        assert_eq!(read(&fs, handle, 0, 10), b"");
        write(&fs, cut, 0, b"new");
        assert_eq!(read(&fs, handle, 0, 10), b"new");
        close(&fs, cut);
        close(&fs, handle);
        assert_eq!(content(&site.connect(), &text), b"new");
    }
    // The same for a file that is not open.
    let inode = make_file(&fs, ROOT, "closed").inode;
    assert_eq!(resized(&fs, inode, 10, None), 10);
    assert_eq!(resized(&fs, inode, 5 * LIMIT, None), 5 * LIMIT);
    assert_eq!(content(&fs, "closed"), vec![0; 5 * LIMIT as usize]);
    assert_eq!(resized(&fs, inode, 1, None), 1);
    assert_eq!(content(&fs, "closed"), [0]);
}

/// Promise: a time that is set after a write survives close, below and above the inline limit.
#[test]
fn explicit_mtime_survives_write_back() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    for len in [10, 2 * LIMIT] {
        let text = format!("f{len}");
        let (inode, handle) = create(&fs, &text);
        write(&fs, handle, 0, &vec![1; len as usize]);
        let mtime = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };
        let set = SetAttributes { mtime: Some(SetTime::To(mtime)), ..Default::default() };
        let node = block_on(fs.set_attributes(&root(), inode, set, Some(handle))).unwrap();
        assert_eq!(node.attributes.mtime, mtime);
        close(&fs, handle);
        assert_eq!(block_on(fs.attributes(&root(), inode)).unwrap().attributes.mtime, mtime, "{len} bytes");
        assert_eq!(block_on(site.connect().lookup(&root(), ROOT, &name(&text))).unwrap().attributes.mtime, mtime);
    }
}

/// Promise: a truncation that the store failed is not applied later, when others may have written.
#[test]
fn failed_truncate_is_not_applied_later() {
    let site = Site::new(1);
    let _server = site.serve();
    let (fs, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &[1; 200_000]);
    block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    let (data, elsewhere) = (site.volume.data(), site.path("elsewhere"));
    std::fs::rename(&data, &elsewhere).unwrap();
    let set = SetAttributes { size: Some(0), ..Default::default() };
    let refusal = block_on(other.set_attributes(&root(), inode, set, None)).unwrap_err();
    assert_eq!(refusal.errno, Errno::EIO, "{refusal}");
    std::fs::rename(&elsewhere, &data).unwrap();
    write(&fs, handle, 200_000, &[2; 1000]);
    block_on(fs.fsync(handle, false)).unwrap();
    assert_eq!(content(&other, "f"), [vec![1; 200_000], vec![2; 1000]].concat());
    close(&fs, handle);
}

/// Promise: stat after close shows the same attributes as fstat after the write: build tools and git compare both.
#[test]
fn times_do_not_change_at_close() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"data");
    let open = block_on(fs.attributes(&root(), inode)).unwrap().attributes;
    close(&fs, handle);
    assert_eq!(block_on(fs.attributes(&root(), inode)).unwrap().attributes, open);
}

/// Promise: a file without a name works as long as it is open, and its backing file is removed afterwards.
#[test]
fn unlinked_open_files_work() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"before");
    block_on(fs.unlink(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(block_on(fs.attributes(&root(), inode)).unwrap().attributes.nlink, 0);
    write(&fs, handle, 6, b" after");
    block_on(fs.fsync(handle, true)).unwrap();
    write(&fs, handle, LIMIT, b"large");
    assert_eq!(read(&fs, handle, 0, 12), b"before after");
    assert_eq!(size(&fs, inode), LIMIT + 5);
    // The name is free for another file, which is not this one.
    let (other, other_handle) = create(&fs, "f");
    assert_ne!(other, inode);
    write(&fs, other_handle, 0, b"other");
    close(&fs, other_handle);
    close(&fs, handle);
    fs.forget(inode, 1);
    assert_eq!(content(&fs, "f"), b"other");
    block_on(fs.sync()).unwrap();
    let backing = site.volume.backing_file(inode);
    let gone = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !backing.exists()
    });
    assert!(gone, "the backing file stays after the last close");
}

/// Promise: renaming an open file over another changes the open content of neither.
#[test]
fn renamed_open_files_work() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (a, a_handle) = create(&fs, "a");
    let (_, b_handle) = create(&fs, "b");
    write(&fs, a_handle, 0, b"from a");
    write(&fs, b_handle, 0, b"from b");
    let replace = varve_client::RenameFlags::Replace;
    block_on(fs.rename(&root(), ROOT, &name("a"), ROOT, &name("b"), replace)).unwrap();
    write(&fs, a_handle, 6, b"!");
    assert_eq!(read(&fs, b_handle, 0, 10), b"from b");
    close(&fs, b_handle);
    close(&fs, a_handle);
    assert_eq!(content(&site.connect(), "b"), b"from a!");
    assert_eq!(size(&fs, a), 7);
}

/// Promise: fallocate extends, keeps the size, punches and zeroes, inline and in the backing file.
#[test]
fn fallocate_works_inline_and_in_backing_files() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"0123456789");
    for at in [0, 2 * LIMIT] {
        block_on(fs.allocate(handle, 0, at, 20)).unwrap();
        assert_eq!(size(&fs, inode), at + 20);
    }
    block_on(fs.allocate(handle, libc::FALLOC_FL_KEEP_SIZE, 4 * LIMIT, 20)).unwrap();
    assert_eq!(size(&fs, inode), 2 * LIMIT + 20);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    block_on(fs.allocate(handle, punch, 2, 3)).unwrap();
    assert_eq!(read(&fs, handle, 0, 10), b"01\0\0\x0056789");
    let collapse = block_on(fs.allocate(handle, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)).unwrap_err();
    assert_eq!(collapse.errno, Errno::EOPNOTSUPP);

    let (small, handle) = create(&fs, "small");
    write(&fs, handle, 0, b"0123456789");
    block_on(fs.allocate(handle, punch, 2, 3)).unwrap();
    block_on(fs.allocate(handle, libc::FALLOC_FL_ZERO_RANGE, 8, 4)).unwrap();
    assert_eq!(read(&fs, handle, 0, 100), b"01\0\0\x00567\0\0\0\0");
    assert_eq!(size(&fs, small), 12);
}

/// Promise: SEEK_DATA and SEEK_HOLE find holes in backing files, and treat inline files as data.
#[test]
fn holes_are_found() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (_, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"data");
    assert_eq!(block_on(fs.seek(handle, 1, Whence::Data)).unwrap(), 1);
    assert_eq!(block_on(fs.seek(handle, 1, Whence::Hole)).unwrap(), 4);
    assert_eq!(block_on(fs.seek(handle, 4, Whence::Data)).unwrap_err().errno, Errno::ENXIO);
    write(&fs, handle, 1 << 20, b"far");
    let hole = block_on(fs.seek(handle, 0, Whence::Hole)).unwrap();
    assert!(hole <= 1 << 20, "{hole}");
    assert_eq!(block_on(fs.seek(handle, (1 << 20) + 3, Whence::Data)).unwrap_err().errno, Errno::ENXIO);
}

/// Promise: copy_range copies between inline and backing files in all four combinations, and stops at the end.
#[test]
fn ranges_are_copied() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let data = |len: usize| -> Vec<u8> { (0..len).map(|i| (i % 253) as u8).collect() };
    let large = 5 * LIMIT as usize;
    for (i, (from_len, to_len)) in [(100, 0), (100, large), (large, 10), (large, large)].into_iter().enumerate() {
        let (_, from) = create(&fs, &format!("from{i}"));
        let (_, to) = create(&fs, &format!("to{i}"));
        write(&fs, from, 0, &data(from_len));
        if to_len > 0 {
            write(&fs, to, 0, &vec![0xff; to_len]);
        }
        let copied = block_on(fs.copy_range(from, 10, to, 0, 1 << 30)).unwrap();
        assert_eq!(copied, from_len as u64 - 10);
        assert_eq!(read(&fs, to, 0, from_len - 10), data(from_len)[10..]);
    }
}

/// Promise: dirty bytes beyond the limit are written back while files are still open, and old ones by the background.
#[test]
fn dirty_bytes_are_bounded() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = FileSystem::connect(ClientConfig { dirty_bytes_max: 10_000, ..site.config() }).unwrap();
    let other = site.connect();
    let handles: Vec<_> = (0..6).map(|i| create(&fs, &format!("f{i}")).1).collect();
    handles.iter().for_each(|handle| write(&fs, *handle, 0, &[1; 3000]));
    let written = (0..6).filter(|i| content(&other, &format!("f{i}")).len() == 3000).count();
    assert_eq!(written, 3, "three files of 3000 bytes fit");
}

/// Promise: O_CREAT without O_EXCL opens an existing file; with O_EXCL it fails with EEXIST.
#[test]
fn create_opens_an_existing_file() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, b"old");
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let (node, again) = block_on(fs.create(&root(), ROOT, &name("f"), Mode::new(0o600), flags)).unwrap();
    assert_eq!((node.inode, node.attributes.size), (inode, 0));
    assert_eq!(read(&fs, again.handle, 0, 10), b"");
    let flags = OpenFlags { exclusive: true, ..OpenFlags::READ_WRITE };
    let failure = block_on(fs.create(&root(), ROOT, &name("f"), Mode::new(0o600), flags)).unwrap_err();
    assert_eq!(failure.errno, Errno::EEXIST);
}

/// Promise: a failed open of a file that was just closed leaves nothing open at the server.
#[test]
fn failed_open_leaves_nothing_open() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (inode, handle) = create(&fs, "f");
    let unauthenticated = Credentials::user(4711, 4711, Vec::new());
    close(&fs, handle);
    let refused = block_on(fs.open(&unauthenticated, inode, OpenFlags::READ_WRITE)).unwrap_err();
    assert_eq!(refused.errno, Errno::EACCES);
    let begun = Instant::now();
    while block_on(fs.shard_status(ShardId(0))).unwrap().open_files > 0 {
        assert!(begun.elapsed() < STOP, "it stays open");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Promise: a symbolic link in place of a file's content in the store is not followed, for writes or reads. The owner
/// of a volume can change it, and root's mount must not do on the owner's behalf what the owner may not.
#[test]
fn symlink_in_place_of_content_is_not_followed() {
    let site = Site::new(1);
    let _server = site.serve();
    let fs = site.connect();
    let (target, secret) = (site.path("elsewhere"), vec![5; 300_000]);
    std::fs::write(&target, &secret).unwrap();
    let link = |inode: InodeId| std::os::unix::fs::symlink(&target, site.volume.backing_file(inode)).unwrap();
    let (inode, handle) = create(&fs, "written");
    link(inode);
    block_on(fs.write(handle, 0, &vec![1; 2 * LIMIT as usize])).unwrap_err();
    assert_eq!(std::fs::read(&target).unwrap(), secret);
    std::fs::remove_file(site.volume.backing_file(inode)).unwrap();
    close(&fs, handle);

    let (inode, handle) = create(&fs, "read");
    write(&fs, handle, 0, &vec![1; secret.len()]);
    close(&fs, handle);
    std::fs::remove_file(site.volume.backing_file(inode)).unwrap();
    link(inode);
    block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap_err();
    let cut = SetAttributes { size: Some(0), ..Default::default() };
    let _ = block_on(fs.set_attributes(&root(), inode, cut, None));
    assert_eq!(std::fs::read(&target).unwrap(), secret);
}
