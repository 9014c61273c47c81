//! Appends past the kernel's page cache, and reads of files that are open for appending.

use crate::files::{pattern, read_write};
use crate::fixture::{Volume, can_mount, volume};
use crate::io_modes::passes_through;
use rustix::io::Errno;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The size of several kernel requests.
const RECORD: usize = 4 * 1024 * 1024;

/// A record that is aligned for O_DIRECT; each of its words contains its position.
fn with_record(work: impl FnOnce(&[u8])) {
    let layout = Layout::from_size_align(RECORD, 4096).unwrap();
    // SAFETY: a fresh allocation of non-zero size, used only as the slice below and freed at the end.
    let memory = unsafe { alloc_zeroed(layout) };
    // SAFETY: as above.
    let record = unsafe { std::slice::from_raw_parts_mut(memory, RECORD) };
    for (number, word) in record.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(number as u64 + 1).to_ne_bytes());
    }
    work(record);
    // SAFETY: allocated above with the same layout; the slice is not used any more.
    unsafe { dealloc(memory, layout) };
}

/// `struct iocb` of <linux/aio_abi.h>.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_descriptor: u32,
}

const IOCB_CMD_PWRITE: u16 = 1;

/// Writes like libaio, for which the kernel sends its requests in parallel where it can.
fn write_by_aio(file: &File, data: &[u8]) {
    let (mut context, mut event) = (0u64, [0u64; 4]);
    let mut request = Iocb {
        opcode: IOCB_CMD_PWRITE,
        descriptor: file.as_raw_fd() as u32,
        buffer: data.as_ptr() as u64,
        bytes: data.len() as u64,
        ..Iocb::default()
    };
    let requests = [&raw mut request];
    let none = std::ptr::null_mut::<libc::timespec>();
    // SAFETY: the calls follow io_setup(2) to io_destroy(2); all their arguments live until the last call.
    let (submitted, done) = unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_setup, 1, &raw mut context), 0);
        let submitted = libc::syscall(libc::SYS_io_submit, context, 1, requests.as_ptr());
        let done = libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), none);
        assert_eq!(libc::syscall(libc::SYS_io_destroy, context), 0);
        (submitted, done)
    };
    assert_eq!((submitted, done, event[2]), (1, 1, data.len() as u64), "{}", event[2] as i64);
}

fn records_are_appended_in_order(volume: &Volume, how: &str) {
    for (number, (flags, aio, small)) in [
        (libc::O_DIRECT, false, false),
        (libc::O_DIRECT, false, true),
        (libc::O_DIRECT, true, true),
        (libc::O_DIRECT, true, false),
        (0, true, false),
    ]
    .into_iter()
    .enumerate()
    {
        let path = volume.join(format!("records{number}"));
        if small {
            fs::write(&path, b"").unwrap();
        }
        let mut file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(&path).unwrap();
        with_record(|record| {
            for _ in 0..3 {
                match aio {
                    true => write_by_aio(&file, record),
                    false => file.write_all(record).unwrap(),
                }
            }
            drop(file);
            let found = fs::read(&path).unwrap();
            let differs = found.chunks(8).zip(record.repeat(3).chunks(8)).position(|(found, wanted)| found != wanted);
            assert_eq!((found.len(), differs), (3 * RECORD, None), "{how}, {flags:o}, aio {aio}, small {small}");
        });
    }
}

/// The kernel splits a record that is appended past the page cache into several requests, and may send them in
/// parallel. They are appended in order in every I/O mode.
#[test]
fn large_records_are_appended_in_order() {
    if !can_mount() {
        return;
    }
    for options in ["", "nopassthrough", "nopassthrough,direct_io"] {
        let volume = Volume::with_options(options);
        records_are_appended_in_order(&volume, options);
        volume.close();
        let (volume, other) = Volume::mounted_twice(options);
        records_are_appended_in_order(&volume, &format!("{options}, beside another"));
        other.close();
        volume.close();
    }
}

/// A failed O_DIRECT write does not truncate data that another mount has written since this mount last checked the
/// size.
#[test]
fn failed_append_does_not_truncate_others() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("nopassthrough");
    for (name, length) in [("small", 5_000), ("large", 100_000), ("new", 0)] {
        if length > 0 {
            fs::write(volume.join(name), pattern(length)).unwrap();
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
        let file = options.open(volume.join(name)).unwrap();
        let mut theirs = OpenOptions::new().append(true).open(other.join(name)).unwrap();
        theirs.write_all(&pattern(RECORD)).unwrap();
        drop(theirs);
        with_record(|record| {
            // No store accepts a file of this size.
            let refused = file.write_at(record, 1 << 62).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{name}");
        });
        drop(file);
        assert_eq!(fs::metadata(other.join(name)).unwrap().len(), (length + RECORD) as u64, "{name}");
    }
    other.close();
    volume.close();
}

/// sendfile(2) sends the current content of a large file that the kernel reads and writes itself. From a descriptor
/// that is also open for appending it fails, so that programs fall back to read.
#[test]
fn sendfile_returns_file_content() {
    let Some(volume) = volume() else { return };
    let path = volume.join("sent");
    fs::write(&path, pattern(200_000)).unwrap();
    let writer = read_write(&path);
    let appender = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    if !passes_through(&volume, 2) {
        return;
    }
    let local = volume.store.path().join("copy");
    for round in 0..3u8 {
        writer.write_all_at(&[round; 100], 1000).unwrap();
        assert_eq!(sent(&writer, &local).unwrap()[..100], [round; 100]);
        assert_eq!(sent(&appender, &local).map(|sent| sent.len()), Err(Errno::INVAL));
        let mut read = [0; 100];
        appender.read_exact_at(&mut read, 1000).unwrap();
        assert_eq!(read, [round; 100]);
    }
    drop((writer, appender));
    volume.close();
}

/// A page from byte 1000 on, sent to the file `to`.
fn sent(from: &File, to: &Path) -> Result<Vec<u8>, Errno> {
    let file = File::create(to).unwrap();
    let mut offset = 1000;
    let count = rustix::fs::sendfile(&file, from, Some(&mut offset), 4096)?;
    assert_eq!(count, 4096);
    Ok(fs::read(to).unwrap())
}
