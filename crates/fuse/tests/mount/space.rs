//! Holes and allocation: fallocate(2), lseek(2) with SEEK_DATA and SEEK_HOLE.

use crate::fixture::{Volume, can_mount, volume};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn file_of(path: &Path, length: usize) -> File {
    fs::write(path, vec![5; length]).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// fallocate(2) of small and large files: extending, keeping the size, punching and zeroing.
#[test]
fn space_is_allocated_punched_and_zeroed() {
    let Some(volume) = volume() else { return };
    for length in [8_000usize, 1_000_000] {
        let path = volume.join(format!("f{length}"));
        let file = file_of(&path, length);
        let end = length as u64;
        fallocate(&file, FallocateFlags::empty(), 0, end + 5_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), end + 5_000);
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, end + 50_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), end + 5_000);
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 1_000, 4_000).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, 6_000, 1_000).unwrap();
        fallocate(&file, FallocateFlags::ZERO_RANGE, end + 4_000, 3_000).unwrap();
        let mut wanted = vec![5; length];
        wanted.resize(length + 7_000, 0);
        wanted[1_000..5_000].fill(0);
        wanted[6_000..7_000].fill(0);
        assert!(fs::read(&path).unwrap() == wanted, "{length}");
        drop(file);
        assert!(fs::read(&path).unwrap() == wanted, "{length} reopened");
        let file = file_of(&path, length);
        assert_eq!(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        assert_eq!(fallocate(&file, FallocateFlags::INSERT_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
        assert_eq!(fallocate(&file, FallocateFlags::empty(), 0, 0), Err(Errno::INVAL));
    }
    volume.close();
}

/// SEEK_DATA and SEEK_HOLE find every byte of data, and the hole at the end.
#[test]
fn data_and_holes_are_found() {
    let Some(volume) = volume() else { return };
    for (name, data_at, end) in [("small", 3_000u64, 9_000u64), ("large", 3 * 1024 * 1024, 8 * 1024 * 1024)] {
        let path = volume.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(b"data", data_at).unwrap();
        file.set_len(end).unwrap();
        let data = seek(&file, SeekFrom::Data(0)).unwrap();
        assert!(data <= data_at, "{name}: data at {data}");
        assert!(seek(&file, SeekFrom::Hole(data_at)).unwrap() >= data_at + 4, "{name}");
        assert!(seek(&file, SeekFrom::Hole(data_at)).unwrap() <= end, "{name}");
        assert_eq!(seek(&file, SeekFrom::Data(end)), Err(Errno::NXIO), "{name}");
        assert_eq!(seek(&file, SeekFrom::Hole(end)), Err(Errno::NXIO), "{name}");
        // A large sparse file takes little of the store.
        let metadata = file.metadata().unwrap();
        assert!(end < 1024 * 1024 || metadata.blocks() * 512 < end / 2, "{name}: {} blocks", metadata.blocks());
    }
    volume.close();
}

/// Partly written pages count as unwritten: msync of the mapping fails with the store full.
#[test]
fn msync_fails_when_the_store_is_full() {
    const MAPPED: usize = 16 << 20;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    for list in ["nopassthrough", "nopassthrough,direct_io"] {
        let Some(volume) = can_mount().then(|| Volume::in_small_store(list, 64)).flatten() else { return };
        let file = file_of(&volume.join("mapped"), 1 << 20);
        file.set_len(MAPPED as u64).unwrap();
        // SAFETY: a new mapping of a file of that length, unmapped below and not used after.
        let at = unsafe { mmap(std::ptr::null_mut(), MAPPED, protection, MapFlags::SHARED, &file, 0).unwrap() };
        // SAFETY: the mapping made above.
        let map = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), MAPPED) };
        let filler = volume.store.path().join("filler");
        let full = File::create(&filler).unwrap();
        let chunk = vec![1; 1 << 20];
        while (&full).write_all(&chunk).is_ok() {}
        // Space for half of one request.
        full.set_len(full.metadata().unwrap().len() - (512 << 10)).unwrap();
        map[2 << 20..3 << 20].fill(9);
        // SAFETY: the mapping made above.
        let sync = || unsafe { msync(at, MAPPED, MsyncFlags::SYNC) };
        assert!(sync().is_err(), "{list}");
        fs::remove_file(&filler).unwrap();
        map[4 << 20..5 << 20].fill(9);
        // The kernel may report an error of its own writeback more than once.
        assert!((0..3).any(|_| sync().is_ok()), "{list}");
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { munmap(at, MAPPED).unwrap() };
        drop(file);
        volume.close();
    }
}
