//! The I/O modes that the client chooses for a frontend's kernel: on backing files directly, through its page cache, or
//! past it.

use crate::files::{LIMIT, resized};
use crate::site::*;
use std::time::Duration;
use varve_client::{ClientConfig, FileSystem, Io, OpenFlags, OpenedFile, block_on};
use varve_types::{InodeId, Mode};

/// Promise: passthrough is offered only for files that are in backing files and have no other kind of handle; all
/// passthrough opens share one descriptor; after the close, the file's size includes the bytes written through it.
#[test]
fn passthrough_excludes_other_io_modes() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = FileSystem::connect(ClientConfig { passthrough: true, ..site.config() }).unwrap();
    let (inode, handle) = create(&fs, "f");
    write(&fs, handle, 0, &vec![1; 2 * LIMIT as usize]);
    let io = block_on(fs.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap();
    assert!(matches!(io.io, Io::Cached { .. }), "it has a cached handle");
    close(&fs, io.handle);
    close(&fs, handle);
    let opened = block_on(fs.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap();
    let Io::Passthrough(file) = &opened.io else { panic!("{:?}", opened.io) };
    let again = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap();
    assert!(matches!(&again.io, Io::Passthrough(same) if std::sync::Arc::ptr_eq(same, file)));
    file.write_all_at(b"tail", 2 * LIMIT).unwrap();
    assert_eq!(size(&fs, inode), 2 * LIMIT + 4);
    close(&fs, again.handle);
    close(&fs, opened.handle);
    let seen = block_on(site.connect().lookup(&root(), ROOT, &name("f"))).unwrap();
    assert_eq!(seen.attributes.size, 2 * LIMIT + 4);
    let opened = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap();
    fs.decline_passthrough(opened.handle);
    let after = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap();
    assert!(matches!(after.io, Io::Cached { keep: false }));
}

/// Promise: a mount without other clients keeps a large file's pages from one open to the next, unless the kernel was
/// given a backing file, because it may have bypassed them.
#[test]
fn pages_are_kept_without_passthrough() {
    for accepted in [false, true] {
        let site = Site::new(4);
        let _server = site.serve_as(true);
        let fs = FileSystem::connect(ClientConfig { passthrough: true, ..site.config() }).unwrap();
        let (inode, handle) = create(&fs, "f");
        write(&fs, handle, 0, &vec![1; 2 * LIMIT as usize]);
        close(&fs, handle);
        let opened = || block_on(fs.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap();
        let offered = |accepted: bool| {
            let OpenedFile { handle, io } = opened();
            assert!(matches!(io, Io::Passthrough(_)), "{io:?}");
            if !accepted {
                fs.decline_passthrough(handle);
            }
            close(&fs, handle);
        };
        if accepted {
            offered(true);
        }
        offered(false);
        let OpenedFile { handle, io } = opened();
        assert!(matches!(io, Io::Cached { keep } if keep != accepted), "{accepted}: {io:?}");
        close(&fs, handle);
    }
}

/// Promise: a mount beside others keeps a file's pages from one open to the next while no client changes it, small or
/// large; an open after a change, or while another client may be changing it, drops them.
#[test]
fn pages_are_kept_while_the_file_is_unchanged() {
    for len in [100, 2 * LIMIT as usize] {
        let site = Site::synced_every(4, Duration::from_millis(1));
        let _server = site.serve();
        let (fs, other) = (site.connect(), site.connect());
        let (inode, handle) = create(&fs, "f");
        write(&fs, handle, 0, &vec![1; len]);
        close(&fs, handle);
        block_on(fs.record_all_sizes());
        let kept = |fs: &FileSystem| {
            let OpenedFile { handle, io } = block_on(fs.open(&root(), inode, OpenFlags::READ)).unwrap();
            let Io::Cached { keep } = io else { panic!("{io:?}") };
            close(fs, handle);
            keep
        };
        assert!(!kept(&fs), "it was written since they were read first");
        assert!(kept(&fs) && kept(&fs));
        block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
        let theirs = block_on(other.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap().handle;
        write(&other, theirs, 0, b"changed");
        block_on(other.flush(theirs)).unwrap();
        assert!(!kept(&fs), "another client has changed it");
        write(&other, theirs, 0, b"changed again");
        block_on(other.flush(theirs)).unwrap();
        assert!(!kept(&fs));
        close(&other, theirs);
        block_on(other.record_all_sizes());
        let in_its_row = len <= LIMIT as usize;
        assert_eq!(kept(&fs), in_its_row, "{len}: what was read of a backing file that was being written is not kept");
        assert!(kept(&fs));
        assert_eq!(resized(&other, inode, len as u64 - 1, None), len as u64 - 1);
        block_on(other.record_all_sizes());
        assert!(!kept(&fs), "{len}: it was cut");
        assert!(kept(&fs));
    }
}

/// Promise: large files that are not passed through bypass the page cache if other clients may exist, or if that is
/// configured, and if the kernel keeps the cache coherent. That includes the first file, whose open shows that nothing
/// is passed through.
#[test]
fn shared_large_files_use_direct_io() {
    for (embedded, wanted, past) in
        [(false, None, true), (true, None, false), (false, Some(false), false), (true, Some(true), true)]
    {
        let site = Site::new(4);
        let _server = site.serve_as(embedded);
        let config = ClientConfig { passthrough: true, direct_io: wanted, ..site.config() };
        let fs = FileSystem::connect(config).unwrap();
        let (inode, handle) = create(&fs, "f");
        write(&fs, handle, 0, &vec![1; 2 * LIMIT as usize]);
        close(&fs, handle);
        let open = |flags| block_on(fs.open(&root(), inode, flags)).unwrap();
        fs.direct_is_coherent();
        let first = open(OpenFlags::READ);
        assert!(matches!(first.io, Io::Passthrough(_)));
        let declined = fs.decline_passthrough(first.handle);
        let second = open(OpenFlags::READ);
        for io in [declined, second.io.clone()] {
            assert_eq!(matches!(io, Io::Direct { .. }), past, "embedded {embedded}, wanted {wanted:?}: {io:?}");
            assert!(past || matches!(io, Io::Cached { .. }));
        }
        let writer = open(OpenFlags::READ_WRITE);
        assert_eq!(matches!(writer.io, Io::Direct { .. }), wanted == Some(true), "what is written may be mapped");
        let direct = open(OpenFlags { direct: true, ..OpenFlags::READ_WRITE });
        assert_eq!(matches!(direct.io, Io::Direct { .. }), past, "what fails by O_DIRECT cuts nothing of others");
        close(&fs, direct.handle);
        write(&fs, writer.handle, 7, b"seen");
        assert_eq!(read(&fs, second.handle, 7, 4), b"seen");
        [first, second, writer].iter().for_each(|opened| close(&fs, opened.handle));
    }
}

/// Promise: if the last new files of a directory have outgrown their rows, the next one is passed through from the
/// beginning, and has the written content. One that stays small ends the prediction, for its directory alone. The first
/// file of a directory that is made meanwhile is passed through as well, and so are the files that follow it there.
#[test]
fn new_files_pass_through_after_large_siblings() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = FileSystem::connect(ClientConfig { passthrough: true, ..site.config() }).unwrap();
    let make_in = |directory: InodeId, text: &str| {
        block_on(fs.create(&root(), directory, &name(text), Mode::new(0o600), OpenFlags::READ_WRITE)).unwrap()
    };
    let make = |text: &str| make_in(ROOT, text);
    let make_directory =
        |text: &str| block_on(fs.make_directory(&root(), ROOT, &name(text), Mode::new(0o700))).unwrap().inode;
    let large = vec![1; 2 * LIMIT as usize];
    let elsewhere = make_directory("elsewhere");
    for before in ["a", "b"] {
        let (_, made) = make(before);
        assert!(matches!(made.io, Io::Cached { .. }), "{before}: {:?}", made.io);
        write(&fs, made.handle, 0, &large);
        close(&fs, made.handle);
    }
    let next = make_directory("next");
    for text in ["first", "second"] {
        let (node, made) = make_in(next, text);
        let Io::Passthrough(file) = &made.io else { panic!("{text}: {:?}", made.io) };
        file.write_all_at(&large, 0).unwrap();
        close(&fs, made.handle);
        assert_eq!(size(&fs, node.inode), large.len() as u64);
    }
    let after = make_directory("after");
    let (_, small) = make_in(elsewhere, "small");
    assert!(matches!(small.io, Io::Cached { .. }));
    close(&fs, small.handle);
    assert!(matches!(make_in(after, "after a small one").1.io, Io::Cached { .. }));
    let (_, reading) = block_on(fs.create(&root(), ROOT, &name("r"), Mode::new(0o600), OpenFlags::READ)).unwrap();
    assert!(matches!(reading.io, Io::Cached { .. }), "nothing is going to be written");
    close(&fs, reading.handle);
    for (text, len) in [("c", large.len()), ("d2", large.len()), ("e", 5)] {
        let (node, made) = make(text);
        let Io::Passthrough(file) = &made.io else { panic!("{text}: {:?}", made.io) };
        file.write_all_at(&large[..len], 0).unwrap();
        assert_eq!(size(&fs, node.inode), len as u64);
        block_on(fs.fsync(made.handle, false)).unwrap();
        close(&fs, made.handle);
        assert_eq!(content(&site.connect(), text), large[..len]);
    }
    assert!(matches!(make("f").1.io, Io::Cached { .. }), "the last one stayed small");
}

/// Promise: a new file that is opened only for writing bypasses the page cache if the kernel keeps it coherent; once it
/// is large, later opens are passed through all the same.
#[test]
fn new_write_only_files_use_direct_io() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = FileSystem::connect(ClientConfig { passthrough: true, ..site.config() }).unwrap();
    let flags = OpenFlags { mode: varve_client::OpenMode::Write, ..OpenFlags::READ };
    let make = |text: &str| block_on(fs.create(&root(), ROOT, &name(text), Mode::new(0o600), flags)).unwrap();
    assert!(matches!(make("before").1.io, Io::Cached { keep: false }), "the frontend has said nothing");
    fs.direct_is_coherent();
    let (node, writer) = make("f");
    assert!(matches!(writer.io, Io::Direct { keep: false }));
    let (_, reader) = block_on(fs.create(&root(), ROOT, &name("g"), Mode::new(0o600), OpenFlags::READ_WRITE)).unwrap();
    assert!(matches!(reader.io, Io::Cached { .. }), "what may be read gains from the page cache");
    write(&fs, writer.handle, 0, &vec![1; 2 * LIMIT as usize]);
    let (same, other) =
        block_on(fs.create(&root(), ROOT, &name("f"), Mode::new(0o600), OpenFlags::READ_WRITE)).unwrap();
    assert_eq!((same.inode, same.attributes.size), (node.inode, 2 * LIMIT));
    let Io::Passthrough(file) = &other.io else { panic!("{:?}", other.io) };
    file.write_all_at(b"tail", 2 * LIMIT).unwrap();
    close(&fs, writer.handle);
    assert_eq!(size(&fs, node.inode), 2 * LIMIT + 4);
    close(&fs, other.handle);
    assert_eq!(size(&fs, node.inode), 2 * LIMIT + 4);
}

/// Promise: nothing is passed through beside a direct handle that can be read, and so mapped, because the kernel
/// refuses one of the two; after its close, files are passed through again.
#[test]
fn mappable_file_is_not_passed_through_concurrently() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = FileSystem::connect(ClientConfig { passthrough: true, ..site.config() }).unwrap();
    fs.direct_is_coherent();
    let (inode, small) = create(&fs, "f");
    close(&fs, small);
    let opened = |flags| block_on(fs.open(&root(), inode, flags)).unwrap();
    let grown = opened(OpenFlags::READ_WRITE);
    write(&fs, grown.handle, 0, &vec![1; 2 * LIMIT as usize]);
    let mapped = opened(OpenFlags::READ);
    assert!(matches!(mapped.io, Io::Direct { .. }), "{:?}", mapped.io);
    close(&fs, grown.handle);
    for flags in [OpenFlags::READ, OpenFlags::READ_WRITE] {
        let beside = opened(flags);
        assert!(!matches!(beside.io, Io::Passthrough(_)), "{:?}", beside.io);
        close(&fs, beside.handle);
    }
    close(&fs, mapped.handle);
    let alone = opened(OpenFlags::READ);
    assert!(matches!(alone.io, Io::Passthrough(_)), "{:?}", alone.io);
    // If the kernel refuses passthrough, the handle uses direct I/O like the others.
    let declined = fs.decline_passthrough(alone.handle);
    assert!(matches!(declined, Io::Direct { .. }), "{declined:?}");
    close(&fs, alone.handle);
}
