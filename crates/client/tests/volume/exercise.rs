//! Random operations on one file, compared with a byte vector, as fsx does through a mount; and on many files by many
//! threads.

use crate::site::*;
use std::sync::Arc;
use varve_client::{FileSystem, Handle, RenameFlags, block_on};
use varve_types::{Errno, InodeId, SetAttributes};

/// xorshift64: the same sequence from the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| 1 + self.below(255) as u8).collect()
    }
}

/// The tested offsets extend to both sides of the inline limit.
const REACH: u64 = 3 * INLINE_LIMIT as u64;

struct Exercise<'a> {
    fs: &'a FileSystem,
    inode: InodeId,
    handles: Vec<Handle>,
    expected: Vec<u8>,
    name: String,
    named: bool,
}

impl Exercise<'_> {
    fn step(&mut self, dice: &mut Dice) {
        let at = dice.below(self.handles.len() as u64) as usize;
        let handle = self.handles[at];
        // Mostly within the inline limit, so that not every file is promoted at once.
        let reach = if dice.below(8) == 0 { REACH } else { u64::from(INLINE_LIMIT) / 2 };
        match dice.below(14) {
            0..=3 => {
                let (offset, len) = (dice.below(reach), 1 + dice.below(reach / 4));
                let data = dice.bytes(len);
                write(self.fs, handle, offset, &data);
                let end = offset as usize + data.len();
                self.expected.resize(self.expected.len().max(end), 0);
                self.expected[offset as usize..end].copy_from_slice(&data);
            }
            4 | 5 => self.check(handle, dice.below(REACH), dice.below(REACH)),
            6 => {
                let size = dice.below(reach);
                let through = (dice.below(2) == 0 || !self.named).then_some(handle);
                let set = SetAttributes { size: Some(size), ..Default::default() };
                let node = block_on(self.fs.set_attributes(&root(), self.inode, set, through)).unwrap();
                assert_eq!(node.attributes.size, size);
                self.expected.resize(size as usize, 0);
            }
            7 => block_on(self.fs.fsync(handle, dice.below(2) == 0)).unwrap(),
            8 => block_on(self.fs.flush(handle)).unwrap(),
            9 => self.handles.push(open(self.fs, self.inode)),
            10 if self.handles.len() > 1 => {
                self.handles.swap_remove(at);
                close(self.fs, handle);
            }
            11 if self.named => {
                // Closes all handles, and opens the file again by its name.
                self.handles.drain(..).for_each(|handle| close(self.fs, handle));
                let found = block_on(self.fs.lookup(&root(), ROOT, &name(&self.name))).unwrap();
                assert_eq!((found.inode, found.attributes.size), (self.inode, self.expected.len() as u64));
                self.fs.forget(self.inode, 1);
                self.handles.push(open(self.fs, self.inode));
            }
            12 if self.named => {
                let new_name = format!("{}'", self.name);
                let (old, new) = (name(&self.name), name(&new_name));
                block_on(self.fs.rename(&root(), ROOT, &old, ROOT, &new, RenameFlags::Replace)).unwrap();
                self.name = new_name;
            }
            _ => {
                let (offset, len) = (dice.below(reach), 1 + dice.below(reach / 2));
                let flags = [0, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE][dice.below(2) as usize];
                match block_on(self.fs.allocate(handle, flags, offset, len)) {
                    Ok(()) => {}
                    // Not every store supports it.
                    Err(failure) if failure.errno == Errno::EOPNOTSUPP => return,
                    Err(failure) => panic!("{failure}"),
                }
                let end = (offset + len) as usize;
                if flags == 0 {
                    self.expected.resize(self.expected.len().max(end), 0);
                } else {
                    let end = end.min(self.expected.len());
                    let start = (offset as usize).min(end);
                    self.expected[start..end].fill(0);
                }
            }
        }
        assert_eq!(size(self.fs, self.inode), self.expected.len() as u64);
    }

    fn check(&self, handle: Handle, offset: u64, len: u64) {
        let start = (offset as usize).min(self.expected.len());
        let end = (start + len as usize).min(self.expected.len());
        let seen = read(self.fs, handle, offset, len as usize);
        assert!(seen == self.expected[start..end], "{} bytes at {offset} are not as written", seen.len());
    }
}

/// Promise: after random operations through several handles, a file reads as it was written: inline, promoted, renamed,
/// without a name, closed and opened again.
#[test]
fn random_writes_read_back() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let (seeds, steps) = if std::env::var_os("VARVE_SOAK").is_some() { (150, 300) } else { (12, 60) };
    for seed in 1..=seeds {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let text = format!("f{seed}");
        let (inode, handle) = create(&fs, &text);
        let mut exercise =
            Exercise { fs: &fs, inode, handles: vec![handle], expected: Vec::new(), name: text, named: true };
        let unlinked_at = dice.below(2 * steps);
        for step in 0..steps {
            if step == unlinked_at {
                block_on(fs.unlink(&root(), ROOT, &name(&exercise.name))).unwrap();
                exercise.named = false;
            }
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| exercise.step(&mut dice)));
            assert!(failed.is_ok(), "seed {seed}, step {step}");
        }
        exercise.check(exercise.handles[0], 0, 2 * REACH);
        exercise.handles.iter().for_each(|handle| close(&fs, *handle));
        if exercise.named {
            assert!(content(&site.connect(), &exercise.name) == exercise.expected, "seed {seed}");
        }
    }
}

/// Promise: threads that open, write, rename, unlink and list in one directory at once leave exactly the files that
/// each of them left.
#[test]
fn threads_share_a_directory() {
    let site = Site::new(8);
    let _server = site.serve();
    let fs = site.connect();
    let steps = if std::env::var_os("VARVE_SOAK").is_some() { 3000 } else { 120 };
    let threads: Vec<_> = (0..4u64)
        .map(|thread| {
            let fs = Arc::clone(&fs);
            std::thread::spawn(move || work(&fs, thread, steps))
        })
        .collect();
    let mut expected: Vec<String> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    expected.sort();
    let listing = block_on(fs.open_directory(&root(), ROOT)).unwrap();
    let mut found = Vec::new();
    block_on(fs.read_directory(listing, 2, false, &mut |entry| {
        found.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    }))
    .unwrap();
    found.sort();
    assert_eq!(found, expected);
    for text in &found {
        let bytes = content(&fs, text);
        assert!(bytes.starts_with(text.split('.').next().unwrap().as_bytes()), "{text}");
    }
}

/// Returns the remaining names.
fn work(fs: &FileSystem, thread: u64, steps: u64) -> Vec<String> {
    let mut dice = Dice(0x1234_5678_9abc_def1_u64.wrapping_mul(thread + 1));
    let mut left = Vec::new();
    for step in 0..steps {
        let text = format!("{thread}-{step}");
        let (inode, handle) = create(fs, &text);
        write(fs, handle, 0, text.as_bytes());
        if dice.below(4) == 0 {
            write(fs, handle, u64::from(INLINE_LIMIT), b"far");
        }
        match dice.below(4) {
            0 => block_on(fs.unlink(&root(), ROOT, &name(&text))).unwrap(),
            1 => {
                let new = format!("{text}.new");
                block_on(fs.rename(&root(), ROOT, &name(&text), ROOT, &name(&new), RenameFlags::NoReplace)).unwrap();
                left.push(new);
            }
            _ => left.push(text.clone()),
        }
        assert_eq!(read(fs, handle, 0, text.len()), text.as_bytes());
        close(fs, handle);
        fs.forget(inode, 1);
        if dice.below(3) == 0 && !left.is_empty() {
            let gone = left.swap_remove(dice.below(left.len() as u64) as usize);
            block_on(fs.unlink(&root(), ROOT, &name(&gone))).unwrap();
        }
    }
    left
}
