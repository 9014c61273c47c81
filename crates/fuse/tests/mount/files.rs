//! Content of files, small (in their row) and large (in backing files).

use crate::fixture::{Volume, can_mount, copy_program, shell, volume};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Below the inline limit of the fixture, across it, and well above.
const LENGTHS: [usize; 4] = [0, 5_000, 20_000, 3_000_000];

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 253) as u8).collect()
}

pub fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn content_survives_reopening(volume: &Volume) {
    for length in LENGTHS {
        let path = volume.join(format!("f{length}"));
        let wanted = pattern(length);
        fs::write(&path, &wanted).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        assert!(fs::read(&path).unwrap() == wanted, "{length} bytes");
        // Overwrite in the middle, write beyond the end, and truncate.
        let file = read_write(&path);
        file.write_all_at(b"middle", length as u64 / 2).unwrap();
        file.write_all_at(b"far", length as u64 + 10_000).unwrap();
        drop(file);
        let mut changed = wanted;
        changed.resize(changed.len().max(length / 2 + 6), 0);
        changed[length / 2..length / 2 + 6].copy_from_slice(b"middle");
        changed.resize(length + 10_000, 0);
        changed.extend_from_slice(b"far");
        assert!(fs::read(&path).unwrap() == changed, "{length} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), changed.len() as u64);
        File::options().write(true).open(&path).unwrap().set_len(77).unwrap();
        changed.truncate(77);
        assert_eq!(fs::read(&path).unwrap(), changed);
        truncate(&path, 100_000);
        changed.resize(100_000, 0);
        assert!(fs::read(&path).unwrap() == changed);
        OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}

/// truncate(2) by path, which the standard library does not have.
fn truncate(path: &Path, length: i64) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a NUL-terminated string that lives through the call.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), length) }, 0, "{}", std::io::Error::last_os_error());
}

/// fcntl(2) on a range: the lock is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
fn lock_range(file: &File, lock: i32, start: i64, length: i64) -> Result<(), i32> {
    // SAFETY: all fields of a flock are integers, for which zero is a value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_start, range.l_len) = (lock as i16, start, length);
    // SAFETY: the descriptor is open and the argument is what the command takes.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

/// Reads return the written content, also after the file outgrew its row.
#[test]
fn content_is_what_was_written() {
    let Some(volume) = volume() else { return };
    content_survives_reopening(&volume);
    volume.close();
}

/// The same without passthrough: through requests and the client's own I/O.
#[test]
fn content_is_what_was_written_without_passthrough() {
    if !can_mount() {
        return;
    }
    let volume = Volume::with_options("nopassthrough");
    content_survives_reopening(&volume);
    volume.close();
}

/// The same, and past the kernel's page cache.
#[test]
fn content_is_what_was_written_without_the_page_cache() {
    if !can_mount() {
        return;
    }
    let volume = Volume::with_options("nopassthrough,direct_io");
    content_survives_reopening(&volume);
    volume.close();
}

/// A running program can be neither written nor truncated, and the attempt does not change it.
#[test]
fn running_program_is_not_modified() {
    let Some(volume) = volume() else { return };
    let path = volume.join("program");
    let sleep = shell("command -v sleep", &[]);
    copy_program(Path::new(sleep.trim()), &path);
    let wanted = fs::read(&path).unwrap();
    let mut running = std::process::Command::new(&path).arg("60").spawn().unwrap();
    for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC] {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated string that lives through the call.
        let descriptor = unsafe { libc::open(path.as_ptr(), flags) };
        let error = std::io::Error::last_os_error();
        assert_eq!((descriptor, error.raw_os_error()), (-1, Some(libc::ETXTBSY)), "flags {flags:#o}: {error}");
    }
    assert_eq!(running.try_wait().unwrap(), None, "it goes on running");
    assert!(fs::read(&path).unwrap() == wanted);
    running.kill().unwrap();
    running.wait().unwrap();
    volume.close();
}

/// Two descriptors see each other's writes at once, also while the file outgrows its row.
#[test]
fn descriptors_of_one_file_are_coherent() {
    let Some(volume) = volume() else { return };
    let path = volume.join("shared");
    let (writer, reader) = (read_write(&path), read_write(&path));
    let mut wanted = Vec::new();
    for step in 0..40u8 {
        let piece = vec![step; 1500];
        writer.write_all_at(&piece, wanted.len() as u64).unwrap();
        wanted.extend_from_slice(&piece);
        let mut seen = vec![0; wanted.len()];
        reader.read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == wanted, "after {step}");
        assert_eq!(reader.metadata().unwrap().len(), wanted.len() as u64);
        assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
    }
    drop((writer, reader));
    assert!(fs::read(&path).unwrap() == wanted);
    volume.close();
}

/// O_APPEND: records of several writers are each at the end, none lost or torn.
#[test]
fn appended_records_are_atomic() {
    let Some(volume) = volume() else { return };
    let path = volume.join("log");
    const RECORD: usize = 100;
    const EACH: usize = 200;
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
                for _ in 0..EACH {
                    file.write_all(&[b'a' + writer; RECORD]).unwrap();
                }
            });
        }
    });
    let content = fs::read(&path).unwrap();
    assert_eq!(content.len(), 4 * EACH * RECORD);
    assert!(content.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])));
    let mut file = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(file.stream_position().unwrap(), (4 * EACH * RECORD + 3) as u64);
    drop(file);
    volume.close();
}

/// mmap(2): shared writes reach the file, and writes reach the mapping, in every I/O mode.
#[test]
fn shared_mappings_are_coherent_with_the_file() {
    if !can_mount() {
        return;
    }
    for options in ["", "nopassthrough", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(options);
        mappings_are_the_file(&volume);
        volume.close();
    }
    let (volume, other) = Volume::mounted_twice("nopassthrough");
    mappings_are_the_file(&volume);
    other.close();
    volume.close();
}

fn mappings_are_the_file(volume: &Volume) {
    for length in [4096usize, 3 * 1024 * 1024] {
        let path = volume.join(format!("mapped{length}"));
        fs::write(&path, vec![1; length]).unwrap();
        let file = read_write(&path);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of `length` bytes of a file of that length, unmapped below and not used after.
        let map = unsafe {
            let start = rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0).unwrap();
            std::slice::from_raw_parts_mut(start.cast::<u8>(), length)
        };
        assert!(map.iter().all(|byte| *byte == 1));
        map[10] = 42;
        map[length - 1] = 43;
        // SAFETY: the mapping made above.
        unsafe { rustix::mm::msync(map.as_mut_ptr().cast(), length, MsyncFlags::SYNC).unwrap() };
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes[..1], 10).unwrap();
        file.read_exact_at(&mut bytes[1..], length as u64 - 1).unwrap();
        assert_eq!(bytes, [42, 43]);
        file.write_all_at(b"written", 100).unwrap();
        assert_eq!(&map[100..107], b"written");
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { rustix::mm::munmap(map.as_mut_ptr().cast(), length).unwrap() };
        drop(file);
        let content = fs::read(&path).unwrap();
        assert_eq!((content[10], content[length - 1], &content[100..107]), (42, 43, &b"written"[..]));
    }
}

/// Writes through a mapping go to their own offset even if the file is open for appending, and appends go to the end.
#[test]
fn mappings_of_appended_files_are_coherent() {
    if !can_mount() {
        return;
    }
    for options in ["", "nopassthrough", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(options);
        for length in [100usize, 5000, 300_000] {
            let path = volume.join(format!("appended{length}"));
            for round in 0..2 {
                let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path).unwrap();
                if round == 0 {
                    file.write_all(&vec![b'a'; length]).unwrap();
                }
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                // SAFETY: a new mapping of bytes that the file has, written within them and unmapped below.
                unsafe {
                    let at = rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &file, 0);
                    let at = at.unwrap().cast::<u8>();
                    at.add(10 + round).write(b'Z');
                    rustix::mm::munmap(at.cast(), length).unwrap();
                }
                file.write_all(b"end").unwrap();
                drop(file);
                let mut wanted = vec![b'a'; length];
                wanted[10..=10 + round].fill(b'Z');
                wanted.extend(b"end".repeat(round + 1));
                assert!(fs::read(&path).unwrap() == wanted, "{options:?}, {length} bytes, round {round}");
            }
        }
        volume.close();
    }
}

/// A program on the volume runs, and is busy while it does (ETXTBSY comes from the kernel).
#[test]
fn programs_run_from_the_volume() {
    if !can_mount() {
        return;
    }
    for options in ["", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(options);
        let program = volume.join("true");
        copy_program(Path::new("/bin/true"), &program);
        shell("\"$1\"", &[&program]);
        volume.close();
    }
}

/// fsync(2) and fdatasync(2) of small and large files, O_SYNC, and sync_file_range by way of sync(1).
#[test]
fn files_are_synced() {
    let Some(volume) = volume() else { return };
    for length in LENGTHS {
        let path = volume.join(format!("synced{length}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(&pattern(length)).unwrap();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
    }
    let mut file =
        OpenOptions::new().write(true).create(true).custom_flags(libc::O_SYNC).open(volume.join("o")).unwrap();
    file.write_all(b"synced as written").unwrap();
    drop(file);
    shell("sync -f \"$1\"", &[volume.path()]);
    volume.close();
}

/// O_DIRECT is accepted, and agrees with cached reads.
#[test]
fn direct_io_agrees_with_cached_io() {
    let Some(volume) = volume() else { return };
    let path = volume.join("direct");
    let layout = std::alloc::Layout::from_size_align(64 * 1024, 4096).unwrap();
    // SAFETY: a fresh allocation of non-zero size, used only as the slice below and freed at the end.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    // SAFETY: as above.
    let buffer = unsafe { std::slice::from_raw_parts_mut(memory, layout.size()) };
    buffer.fill(9);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    file.write_all_at(buffer, 0).unwrap();
    file.write_all_at(buffer, 64 * 1024).unwrap();
    assert!(fs::read(&path).unwrap() == vec![9; 128 * 1024]);
    buffer.fill(0);
    file.read_exact_at(buffer, 64 * 1024).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 9));
    // SAFETY: allocated above with the same layout; the slice is not used any more.
    unsafe { std::alloc::dealloc(memory, layout) };
    drop(file);
    volume.close();
}

/// fcntl(2) and flock(2) locks exclude other holders.
#[test]
fn flock_excludes_other_processes() {
    let Some(volume) = volume() else { return };
    let path = volume.join("locked");
    let (mine, other) = (read_write(&path), read_write(&path));
    mine.try_lock().unwrap();
    assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    mine.unlock().unwrap();
    other.try_lock().unwrap();
    other.unlock().unwrap();
    // Locks on ranges belong to an open file (F_OFD_SETLK), so that one process can hold two.
    assert_eq!(lock_range(&mine, libc::F_WRLCK, 100, 50), Ok(()));
    assert_eq!(lock_range(&other, libc::F_RDLCK, 149, 1), Err(libc::EAGAIN));
    assert_eq!(lock_range(&other, libc::F_WRLCK, 150, 10), Ok(()));
    assert_eq!(lock_range(&mine, libc::F_UNLCK, 100, 50), Ok(()));
    assert_eq!(lock_range(&other, libc::F_RDLCK, 149, 1), Ok(()));
    drop((mine, other));
    volume.close();
}

/// copy_file_range(2), sendfile(2) and cp(1) make equal files.
#[test]
fn copies_are_equal() {
    let Some(volume) = volume() else { return };
    for length in LENGTHS {
        let (from, to) = (volume.join(format!("from{length}")), volume.join(format!("to{length}")));
        let wanted = pattern(length);
        fs::write(&from, &wanted).unwrap();
        assert_eq!(fs::copy(&from, &to).unwrap(), length as u64);
        assert!(fs::read(&to).unwrap() == wanted, "{length}");
        let (source, target) = (File::open(&from).unwrap(), File::create(volume.join("ranges")).unwrap());
        let mut copied = 0;
        loop {
            let (mut at, mut to) = (copied, copied);
            match rustix::fs::copy_file_range(&source, Some(&mut at), &target, Some(&mut to), 1_000_000).unwrap() {
                0 => break,
                more => copied += more as u64,
            }
        }
        assert_eq!(copied, length as u64);
        assert!(fs::read(volume.join("ranges")).unwrap() == wanted, "{length}");
        shell("cp -a \"$1\" \"$2\" && cmp \"$1\" \"$2\"", &[&from, &volume.join("cp")]);
    }
    volume.close();
}

/// Several files of all sizes at once, from several threads.
#[test]
fn threads_do_not_disturb_each_other() {
    let Some(volume) = volume() else { return };
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let directory = volume.join(format!("t{thread}"));
            scope.spawn(move || {
                fs::create_dir(&directory).unwrap();
                for round in 0..25usize {
                    let path = directory.join(format!("f{}", round % 5));
                    let wanted = pattern((thread + 1) * (round + 1) * 997);
                    fs::write(&path, &wanted).unwrap();
                    let mut file = File::open(&path).unwrap();
                    let mut seen = Vec::new();
                    file.read_to_end(&mut seen).unwrap();
                    assert!(seen == wanted);
                    file.seek(SeekFrom::End(-1)).unwrap();
                    assert_eq!(file.metadata().unwrap().size(), wanted.len() as u64);
                    if round % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    volume.close();
}

/// Writes to a file that was just created are visible at once to other readers and mappings, also while they continue
/// reading.
#[test]
fn writes_to_a_new_file_are_seen_by_readers_and_mappings() {
    const CELLS: usize = 64;
    const CELL: usize = 512;
    let Some(volume) = volume() else { return };
    let path = volume.join("new");
    let writer = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    writer.write_all_at(&[0; CELLS * CELL], 0).unwrap();
    let reader = File::open(&path).unwrap();
    let map = |file: &File| {
        // SAFETY: a mapping of a file that lives and keeps its length until the mapping is no longer read.
        unsafe {
            let (at, length) = (std::ptr::null_mut(), CELLS * CELL);
            rustix::mm::mmap(at, length, ProtFlags::READ, MapFlags::SHARED, file, 0).unwrap().cast::<u64>() as usize
        }
    };
    // SAFETY: the mapping is not read afterwards.
    let unmap = |base: usize| unsafe { rustix::mm::munmap(base as *mut _, CELLS * CELL).unwrap() };
    // SAFETY: within the mapping, and aligned; the kernel may change it at any time.
    let mapped = |base: usize, cell: usize| unsafe { (base as *const u64).add(cell * CELL / 8).read_volatile() };
    let base = map(&reader);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Other readers, which keep bringing pages into memory.
        for _ in 0..2 {
            scope.spawn(|| {
                let other = File::open(&path).unwrap();
                let base = map(&other);
                let mut step = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    step = (step + 7) % CELLS;
                    let mut seen = [0; 8];
                    other.read_exact_at(&mut seen, (step * CELL) as u64).unwrap();
                    std::hint::black_box(mapped(base, step));
                }
                unmap(base);
            });
        }
        for number in 1..=2_000u64 {
            let cell = (number as usize * 37) % CELLS;
            writer.write_all_at(&number.to_ne_bytes(), (cell * CELL) as u64).unwrap();
            let mut seen = [0; 8];
            reader.read_exact_at(&mut seen, (cell * CELL) as u64).unwrap();
            let seen = (u64::from_ne_bytes(seen), mapped(base, cell));
            if seen != (number, number) {
                done.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            assert_eq!(seen, (number, number));
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    unmap(base);
    drop((writer, reader));
    volume.close();
}

/// st_blocks of a large file are those of its backing file, open or closed, and closing it changes no time.
#[test]
fn close_of_a_large_file_changes_no_attributes() {
    let Some(volume) = volume() else { return };
    let path = volume.join("sparse");
    let file = File::create(&path).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    file.write_all_at(&[1; 100], 50_000_000).unwrap();
    let shown = |metadata: fs::Metadata| {
        let (mtime, ctime) = ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()));
        (metadata.len(), mtime, ctime)
    };
    let before = shown(file.metadata().unwrap());
    file.sync_all().unwrap();
    drop(file);
    // The kernel sends RELEASE after close(2) has returned.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let after = fs::metadata(&path).unwrap();
    assert!(after.blocks() * 512 < 2_000_000, "{} blocks", after.blocks());
    assert!(after.blocks() * 512 >= 100_000, "{} blocks", after.blocks());
    assert_eq!(shown(after), before);
    volume.close();
}

/// O_APPEND applies as it is set at each write, because programs set and clear it (xz clears it to leave holes).
#[test]
fn append_mode_is_taken_from_each_write() {
    for options in ["", "nopassthrough"] {
        if !can_mount() {
            return;
        }
        let volume = Volume::with_options(options);
        for length in [10u64, 100_000] {
            let path = volume.join(format!("f{length}"));
            fs::write(&path, pattern(length as usize)).unwrap();
            // Together with a passthrough descriptor, which is opened before or after, and sees the appended bytes.
            let before = File::open(&path).unwrap();
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            let after = read_write(&path);
            file.write_all(b"end").unwrap();
            for beside in [&before, &after] {
                let mut end = [0; 3];
                beside.read_exact_at(&mut end, length).unwrap();
                assert_eq!(&end, b"end", "{options}, {length}");
            }
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::APPEND).unwrap();
            file.seek(SeekFrom::Start(length + 2 * length)).unwrap();
            file.write_all(b"beyond a hole").unwrap();
            rustix::fs::fcntl_setfl(&file, flags).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.write_all(b"at the end again").unwrap();
            drop(file);
            let mut wanted = [pattern(length as usize), b"end".to_vec()].concat();
            wanted.resize(3 * length as usize, 0);
            wanted.extend_from_slice(b"beyond a holeat the end again");
            let found = fs::read(&path).unwrap();
            let differs = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
            assert_eq!((found.len(), differs), (wanted.len(), None), "{options}, {length}");
        }
        volume.close();
    }
}

/// Data that was written through a descriptor with O_SYNC or O_DSYNC is visible to other mounts when the write returns.
#[test]
fn synchronous_writes_are_durable_on_return() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    for (name, flag) in [("sync", libc::O_SYNC), ("dsync", libc::O_DSYNC)] {
        for reads in [false, true] {
            let name = format!("{name}-{reads}");
            let mut options = OpenOptions::new();
            let options = options.write(true).read(reads).create_new(true).custom_flags(flag);
            let mut file = options.open(volume.join(&name)).unwrap();
            file.write_all(b"synced as written").unwrap();
            assert_eq!(fs::read(other.join(&name)).unwrap(), b"synced as written", "{name}");
            drop(file);
        }
    }
    other.close();
    volume.close();
}
