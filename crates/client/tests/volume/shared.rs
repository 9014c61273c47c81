//! Files that several clients have open at once.

use crate::files::{LIMIT, resized};
use crate::site::*;
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use varve_client::{FileSystem, Handle, OpenFlags, OpenMode, block_on};
use varve_env::random::Seeded;
use varve_types::{Credentials, InodeId, Mode, SetAttributes};

/// Promise: data written after a truncation to zero stays, even if others open the file during the truncation.
#[test]
fn truncate_to_zero_is_applied_once() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&one, "f");
    let content = vec![b'x'; 3 * LIMIT as usize];
    write(&one, handle, 0, &content);
    close(&one, handle);
    block_on(other.lookup(&root(), ROOT, &name("f"))).unwrap();
    std::thread::scope(|scope| {
        let (going_on, done) = std::sync::mpsc::channel::<()>();
        let other = &other;
        scope.spawn(move || {
            while done.try_recv() == Err(TryRecvError::Empty) {
                let opened = block_on(other.open(&root(), inode, OpenFlags::READ)).unwrap();
                close(other, opened.handle);
            }
        });
        for round in 0..150 {
            let emptied = OpenFlags { truncate: round % 2 == 0, ..OpenFlags::READ_WRITE };
            if !emptied.truncate {
                resized(&one, inode, 0, None);
            }
            let opened = block_on(one.open(&root(), inode, emptied)).unwrap();
            write(&one, opened.handle, 0, &content);
            block_on(one.fsync(opened.handle, false)).unwrap();
            close(&one, opened.handle);
            let opened = block_on(one.open(&root(), inode, OpenFlags::READ)).unwrap();
            let found = read(&one, opened.handle, 0, content.len());
            close(&one, opened.handle);
            assert!(found == content, "round {round}: {} bytes", found.len());
        }
        drop(going_on);
    });
}

/// Promise: if two clients have a small file open, each writes back only its own changes: the other's bytes stay,
/// appends of both stay, and a truncation by one stays.
#[test]
fn two_clients_write_one_small_file() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let opened = |text: &str, flags: OpenFlags| {
        let (inode, handle) = create(&one, text);
        write(&one, handle, 0, &[b'.'; 100]);
        close(&one, handle);
        let at = |fs: &FileSystem| {
            block_on(fs.lookup(&root(), ROOT, &name(text))).unwrap();
            block_on(fs.open(&root(), inode, flags)).unwrap().handle
        };
        (inode, at(&one), at(&other))
    };
    let synced = |fs: &FileSystem, handle, at, data: &[u8]| {
        write(fs, handle, at, data);
        block_on(fs.fsync(handle, false)).unwrap();
    };
    let third = || site.connect();

    let (_, a, b) = opened("apart", OpenFlags::READ_WRITE);
    synced(&one, a, 0, b"A");
    synced(&other, b, 50, b"B");
    write(&one, a, 99, b"A");
    write(&one, a, 1, b"A");
    synced(&other, b, 120, b"B");
    close(&one, a);
    let mut expected = [b'.'; 121];
    (expected[0], expected[1], expected[99], expected[50], expected[120]) = (b'A', b'A', b'A', b'B', b'B');
    expected[100..120].fill(0);
    assert_eq!(content(&third(), "apart"), expected);
    close(&other, b);

    let appending = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
    for sync in [true, false] {
        let text = format!("appended, each synced: {sync}");
        let (_, a, b) = opened(&text, appending);
        for _ in 0..50 {
            for (fs, handle, data) in [(&one, a, b"A"), (&other, b, b"B")] {
                if sync { synced(fs, handle, 0, data) } else { write(fs, handle, 0, data) }
            }
        }
        close(&one, a);
        close(&other, b);
        let content = content(&third(), &text);
        assert_eq!(content.len(), 200, "{text}");
        assert_eq!([b'A', b'B'].map(|by| content.iter().filter(|byte| **byte == by).count()), [50, 50], "{text}");
    }
    // Concurrently, although each finds repeatedly that the other was first.
    let (_, a, b) = opened("appended at once", appending);
    std::thread::scope(|scope| {
        for (fs, handle, data) in [(&one, a, b"A"), (&other, b, b"B")] {
            scope.spawn(move || (0..500).for_each(|_| synced(fs, handle, 0, data)));
        }
    });
    close(&one, a);
    close(&other, b);
    let appended = content(&third(), "appended at once");
    assert_eq!([b'A', b'B'].map(|by| appended.iter().filter(|byte| **byte == by).count()), [500, 500]);
    // Until it outgrows the row, and beyond.
    let (inode, a, b) = opened("outgrown", appending);
    write(&other, b, 0, b"B");
    synced(&one, a, 0, &vec![b'A'; LIMIT as usize]);
    synced(&other, b, 0, b"B");
    assert!(site.volume.backing_file(inode).exists());
    let content_then = content(&third(), "outgrown");
    assert_eq!(content_then.len() as u64, 100 + LIMIT + 2);
    assert!(content_then.ends_with(b"ABB"));
    close(&one, a);
    close(&other, b);

    let (inode, a, b) = opened("cut", OpenFlags::READ_WRITE);
    write(&one, a, 10, b"A");
    assert_eq!(resized(&other, inode, 5, None), 5, "by path, where it is open");
    close(&one, a);
    assert_eq!(content(&third(), "cut"), b".....\0\0\0\0\0A");
    let a = block_on(one.open(&root(), inode, OpenFlags::READ_WRITE)).unwrap().handle;
    write(&one, a, 1, b"A");
    let flags = OpenFlags { truncate: true, mode: OpenMode::Write, ..OpenFlags::READ };
    close(&other, block_on(other.open(&root(), inode, flags)).unwrap().handle);
    close(&one, a);
    assert_eq!(content(&third(), "cut"), b"\0A");
    close(&other, b);
}

/// Promise: if two clients promote the same small file, one after the other or at once, neither overwrites the other's
/// backing file.
#[test]
fn two_clients_promote_one_file() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    for round in 0..20 {
        let text = format!("f{round}");
        let (inode, a) = create(&one, &text);
        block_on(other.lookup(&root(), ROOT, &name(&text))).unwrap();
        let b = open(&other, inode);
        let outgrow = |fs: &FileSystem, handle, at: u64, byte: u8| {
            write(fs, handle, at, &vec![byte; 2 * LIMIT as usize]);
            block_on(fs.fsync(handle, false)).unwrap();
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| outgrow(&one, a, 0, b'A'));
            if round % 2 == 0 {
                first.join().unwrap();
            }
            outgrow(&other, b, 2 * LIMIT, b'B');
        });
        let mut expected = vec![b'A'; 2 * LIMIT as usize];
        expected.extend(vec![b'B'; 2 * LIMIT as usize]);
        assert!(content(&site.connect(), &text) == expected, "round {round}");
        close(&one, a);
        close(&other, b);
        assert!(content(&site.connect(), &text) == expected, "round {round}, closed");
    }
}

/// Promise: a length set through a descriptor of a small file, by ftruncate or fallocate, is visible to every client at
/// once, and outlives the client.
#[test]
fn truncate_length_is_visible_immediately() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let (inode, handle) = create(&one, "given");
    assert_eq!(resized(&one, inode, 100, Some(handle)), 100);
    let seen = || block_on(other.lookup(&root(), ROOT, &name("given"))).unwrap().attributes.size;
    assert_eq!(seen(), 100);
    block_on(one.allocate(handle, 0, 50, 950)).unwrap();
    assert_eq!(seen(), 1000);
    assert_eq!(content(&other, "given"), [0; 1000]);
    close(&one, handle);
}

/// Promise: a write by an unprivileged user clears set-id bits that another client has set since, once the writer's
/// client has had any reply about the file.
#[test]
fn set_id_bits_set_by_another_client_are_cleared() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let writer = || Credentials::user(4711, 4711, Vec::new());
    let large = 3 * LIMIT as usize;
    for (text, len, syncs) in
        [("small", 10, false), ("small, synced", 10, true), ("large", large, false), ("large, synced", large, true)]
    {
        let (inode, handle) = create(&one, text);
        write(&one, handle, 0, &vec![1; len]);
        block_on(one.fsync(handle, false)).unwrap();
        block_on(one.drop_set_id_of(handle, writer)).unwrap();
        block_on(other.lookup(&root(), ROOT, &name(text))).unwrap();
        let set = SetAttributes { mode: Some(Mode::new(0o4755)), ..Default::default() };
        block_on(other.set_attributes(&root(), inode, set, None)).unwrap();
        write(&one, handle, len as u64, b"more");
        match syncs {
            true => block_on(one.fsync(handle, false)).unwrap(),
            false => assert_eq!(size(&one, inode), len as u64 + 4),
        }
        block_on(one.drop_set_id_of(handle, writer)).unwrap();
        let mode = block_on(other.attributes(&root(), inode)).unwrap().attributes.mode;
        assert_eq!(mode, Mode::new(0o755), "{text}");
        close(&one, handle);
    }
}

/// A step of a client with a long-open file; the client syncs after each step.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        at: u64,
        len: usize,
    },
    Append {
        len: usize,
    },
    /// ftruncate(2).
    Resize(u64),
    /// truncate(2), by path.
    ResizeByPath(u64),
    /// fallocate(2): the size may grow, nothing changes.
    Reach {
        at: u64,
        len: u64,
    },
    Zero {
        at: u64,
        len: u64,
    },
    /// Open with O_TRUNC, and close.
    Empty,
    /// Open and close once more, which refreshes the client's state of the file.
    Look,
}

impl Step {
    fn any(random: &mut Seeded) -> Step {
        // Mostly small, so that the file's size varies below the limit, and sometimes crosses it for good.
        let scale = if random.below(12) == 0 { 3 * LIMIT as usize } else { LIMIT as usize / 2 };
        let mut any = |scale: usize| random.below(scale) as u64;
        let (at, len, which) = (any(scale), 1 + any(scale / 2), any(10));
        match which {
            0 | 1 => Step::Write { at, len: len as usize },
            2..=4 => Step::Append { len: len as usize / 4 + 1 },
            5 => Step::Resize(at),
            6 => Step::ResizeByPath(at),
            7 => Step::Reach { at, len },
            8 => Step::Zero { at, len },
            9 if len % 3 == 0 => Step::Empty,
            _ => Step::Look,
        }
    }

    fn model(self, content: &mut Vec<u8>, byte: u8) {
        let reach = |content: &mut Vec<u8>, end: usize| content.resize(content.len().max(end), 0);
        match self {
            Step::Write { at, len } => {
                reach(content, at as usize + len);
                content[at as usize..at as usize + len].fill(byte);
            }
            Step::Append { len } => content.extend(vec![byte; len]),
            Step::Resize(size) | Step::ResizeByPath(size) => content.resize(size as usize, 0),
            Step::Reach { at, len } => reach(content, (at + len) as usize),
            Step::Zero { at, len } => {
                let end = content.len().min((at + len) as usize);
                content[(at as usize).min(end)..end].fill(0);
            }
            Step::Empty => content.clear(),
            Step::Look => {}
        }
    }

    fn take(self, fs: &FileSystem, inode: InodeId, (plain, appending): (Handle, Handle), byte: u8) {
        match self {
            Step::Write { at, len } => write(fs, plain, at, &vec![byte; len]),
            Step::Append { len } => write(fs, appending, 0, &vec![byte; len]),
            Step::Resize(size) => assert_eq!(resized(fs, inode, size, Some(plain)), size),
            Step::ResizeByPath(size) => assert_eq!(resized(fs, inode, size, None), size),
            Step::Reach { at, len } => block_on(fs.allocate(plain, 0, at, len)).unwrap(),
            Step::Zero { at, len } => {
                let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                block_on(fs.allocate(plain, hole, at, len)).unwrap();
            }
            Step::Empty | Step::Look => {
                let flags = OpenFlags { truncate: matches!(self, Step::Empty), ..OpenFlags::READ_WRITE };
                close(fs, block_on(fs.open(&root(), inode, flags)).unwrap().handle);
            }
        }
        block_on(fs.fsync(if matches!(self, Step::Append { .. }) { appending } else { plain }, false)).unwrap();
    }
}

/// Promise: clients that take turns, each syncing its changes, find one consistent file, whatever state each had
/// cached: in its row, in a backing file, and during promotion. No client gets an error about a damaged file.
#[test]
fn alternating_clients_share_one_file() {
    let site = Site::new(4);
    let _server = site.serve();
    let clients = [site.connect(), site.connect(), site.connect()];
    let reader = site.connect();
    let sequences = if std::env::var_os("VARVE_SOAK").is_some() { 5000 } else { 60 };
    for seed in 0..sequences {
        let mut random = Seeded::new(seed);
        let text = format!("turns {seed}");
        let (inode, made) = create(&clients[0], &text);
        close(&clients[0], made);
        // All have had it open since it was empty.
        let opened = |fs: &Arc<FileSystem>| {
            block_on(fs.lookup(&root(), ROOT, &name(&text))).unwrap();
            let open = |flags| block_on(fs.open(&root(), inode, flags)).unwrap().handle;
            (open(OpenFlags::READ_WRITE), open(OpenFlags { append: true, ..OpenFlags::READ_WRITE }))
        };
        let handles = clients.each_ref().map(opened);
        let (mut expected, mut steps) = (Vec::new(), Vec::new());
        for number in 0..12_u8 {
            let (who, step) = (random.below(clients.len()), Step::any(&mut random));
            steps.push((who, step));
            step.take(&clients[who], inode, handles[who], b'a' + number);
            step.model(&mut expected, b'a' + number);
            let found = content(&reader, &text);
            let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            assert!(
                found == expected,
                "seed {seed}: {} bytes instead of {}, different from {differs:?} on, after {steps:?}",
                found.len(),
                expected.len()
            );
        }
        for (fs, (plain, appending)) in clients.iter().zip(handles) {
            close(fs, plain);
            close(fs, appending);
        }
        assert!(content(&reader, &text) == expected, "seed {seed}: closed, after {steps:?}");
    }
}

/// Promise: concurrent appends of several clients, each syncing its records, are all there and complete, while the file
/// outgrows its row and after.
#[test]
fn concurrent_appends_are_all_kept() {
    let site = Site::new(4);
    let _server = site.serve();
    let clients = [site.connect(), site.connect(), site.connect()];
    let record = LIMIT as usize / 40;
    for round in 0..5 {
        let text = format!("records {round}");
        let (inode, made) = create(&clients[0], &text);
        close(&clients[0], made);
        std::thread::scope(|scope| {
            for (fs, byte) in clients.iter().zip(b'A'..) {
                let text = &text;
                scope.spawn(move || {
                    block_on(fs.lookup(&root(), ROOT, &name(text))).unwrap();
                    let flags = OpenFlags { append: true, ..OpenFlags::READ_WRITE };
                    let handle = block_on(fs.open(&root(), inode, flags)).unwrap().handle;
                    for _ in 0..60 {
                        write(fs, handle, 0, &vec![byte; record]);
                        block_on(fs.fsync(handle, false)).unwrap();
                    }
                    close(fs, handle);
                });
            }
        });
        let found = content(&site.connect(), &text);
        assert_eq!(found.len(), clients.len() * 60 * record, "round {round}");
        for byte in (b'A'..).take(clients.len()) {
            let whole = found.chunks(record).filter(|chunk| chunk.iter().all(|found| *found == byte)).count();
            assert_eq!(whole, 60, "round {round}: records of {}", char::from(byte));
        }
    }
}

/// Promise: truncating or extending the file clears them as well, also through a descriptor that root has opened.
#[test]
fn truncate_through_roots_descriptor_clears_set_id_bits() {
    let site = Site::new(4);
    let _server = site.serve();
    let one = site.connect();
    let somebody = Credentials::user(4711, 4711, Vec::new());
    let large = 3 * LIMIT as usize;
    for (len, size) in [(10, 5), (10, large), (large, large / 2), (large, 2 * large)] {
        let (inode, handle) = create(&one, &format!("{len} to {size}"));
        write(&one, handle, 0, &vec![1; len]);
        let set = SetAttributes { mode: Some(Mode::new(0o4755)), ..Default::default() };
        block_on(one.set_attributes(&root(), inode, set, None)).unwrap();
        let cut = SetAttributes { size: Some(size as u64), ..Default::default() };
        block_on(one.set_attributes(&root(), inode, cut, Some(handle))).unwrap();
        assert_eq!(
            block_on(one.attributes(&root(), inode)).unwrap().attributes.mode,
            Mode::new(0o4755),
            "root keeps them"
        );
        let cut = SetAttributes { size: Some(size as u64 + 1), ..Default::default() };
        let node = block_on(one.set_attributes(&somebody, inode, cut, Some(handle))).unwrap();
        assert_eq!((node.attributes.mode, node.attributes.size), (Mode::new(0o755), size as u64 + 1));
        close(&one, handle);
    }
}
