//! Files that a process has open, and mapped, while another mount changes them.

use crate::files::pattern;
use crate::fixture::{Beside, Volume, can_mount};
use rustix::fs::{Timespec, Timestamps};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::{self, File, FileTimes, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Environment variable with the path for the process that observes a file: this program, run once more. The process
/// that serves a mount must not map its files.
const OBSERVED: &str = "VARVE_TEST_OBSERVED";

/// Longer than any file here.
const MAPPED_BYTES: usize = 1024 * 1024;

/// Within this time after an fsync or close elsewhere, an open file shows the change whatever its attributes are. The
/// lease is a second; the rest is for a slow machine.
const LEASE: Duration = Duration::from_secs(6);

/// The I/O modes of a mount.
const MODES: [&str; 3] = ["", "nopassthrough", "nopassthrough,direct_io"];

/// The results of observations: a size, or a hash of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen(Vec<String>);

fn hash(bytes: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{}:{:x}", bytes.len(), hasher.finish())
}

/// Observations of `content`, in the order of `what`.
fn expected(what: &str, content: &[u8]) -> Seen {
    let of = |what| match what {
        "fstat" | "stat" => content.len().to_string(),
        _ => hash(content),
    };
    Seen(what.split(' ').map(of).collect())
}

/// A process that has a file open and mapped.
struct Observer {
    process: Child,
    tell: Option<ChildStdin>,
    printed: Lines<BufReader<ChildStdout>>,
}

impl Observer {
    fn of(path: &Path) -> Observer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared::open_files_follow_other_mounts", "--nocapture"])
            .env(OBSERVED, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (tell, printed) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()).lines());
        let mut observer = Observer { process, tell, printed };
        observer.answer();
        observer
    }

    /// `what`: the observations, in this order.
    fn sees(&mut self, what: &str) -> Seen {
        writeln!(self.tell.as_mut().unwrap(), "{what}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Seen {
        loop {
            let Some(Ok(line)) = self.printed.next() else {
                panic!("the observer ended: {:?}", self.process.wait());
            };
            if let Some((_, seen)) = line.split_once("SEEN ") {
                return Seen(seen.split(' ').map(str::to_owned).collect());
            }
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        drop(self.tell.take());
        let ended = self.process.wait().unwrap();
        assert!(ended.success() || std::thread::panicking(), "{ended:?}");
    }
}

/// The observing process: answers each line on standard input with one of observations.
fn observe(path: &Path) {
    let file = File::open(path).unwrap();
    // SAFETY: a new mapping, read through volatile reads up to the size that the file was just reported to have.
    let mapped = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), MAPPED_BYTES, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap()
    };
    let mut size = 0;
    println!("SEEN ready");
    for line in std::io::stdin().lines() {
        let mut seen = Vec::new();
        for what in line.unwrap().split(' ') {
            let metadata = match what {
                "fstat" => Some(file.metadata().unwrap()),
                "stat" => Some(fs::metadata(path).unwrap()),
                _ => None,
            };
            if let Some(metadata) = &metadata {
                size = metadata.len() as usize;
            }
            seen.push(match what {
                "fstat" | "stat" => size.to_string(),
                "map" => {
                    // SAFETY: as above.
                    let bytes = (0..size).map(|at| unsafe { mapped.cast::<u8>().add(at).read_volatile() });
                    hash(&bytes.collect::<Vec<u8>>())
                }
                "read" => {
                    let mut bytes = vec![0; MAPPED_BYTES];
                    let mut length = 0;
                    while let count @ 1.. = file.read_at(&mut bytes[length..], length as u64).unwrap() {
                        length += count;
                    }
                    size = length;
                    hash(&bytes[..length])
                }
                other => panic!("{other}"),
            });
        }
        println!("SEEN {}", seen.join(" "));
    }
}

/// Opens the file in the other mount for `work`.
fn change(path: &Path, options: &mut OpenOptions, work: impl FnOnce(&mut File)) {
    work(&mut options.open(path).unwrap());
}

/// Changes the file as `content`, in another mount, and closes it.
fn make(path: &Path, kind: &str, content: &mut Vec<u8>) {
    match kind {
        "append" => {
            let more = pattern(900);
            change(path, File::options().append(true), |file| file.write_all(&more).unwrap());
            content.extend_from_slice(&more);
        }
        "grow" => {
            let more = pattern(100_000);
            change(path, File::options().append(true), |file| file.write_all(&more).unwrap());
            content.extend_from_slice(&more);
        }
        "cut" => {
            let length = content.len() / 3;
            change(path, File::options().write(true), |file| file.set_len(length as u64).unwrap());
            content.truncate(length);
        }
        "overwrite" => {
            content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            change(path, File::options().write(true), |file| file.write_all_at(content, 0).unwrap());
        }
        "replace" => {
            *content = pattern(content.len() + 7).split_off(3);
            fs::write(path, &content).unwrap();
        }
        other => panic!("{other}"),
    }
}

/// Promise: an open file shows the content, size and mapping of one state: the one that another mount closed. Whichever
/// call asks first.
fn follows(volume: &Volume, other: &Beside, length: usize, mode: &str) {
    let orders = ["fstat map read", "stat map read fstat", "fstat read map", "read map fstat"];
    // Reads past the page cache do not make the kernel request the attributes, which its mapping follows.
    let past_pages = length > 16_384 && !mode.is_empty();
    for (number, asked) in orders[..if past_pages { 3 } else { 4 }].iter().enumerate() {
        let name = format!("{length} {number}");
        let theirs = other.join(&name);
        let mut content = pattern(length);
        fs::write(&theirs, &content).unwrap();
        let mut observer = Observer::of(&volume.join(&name));
        assert_eq!(observer.sees(asked), expected(asked, &content));
        for kind in ["append", "overwrite", "cut", "replace", "append", "grow", "append", "overwrite", "cut", "replace"]
        {
            make(&theirs, kind, &mut content);
            assert_eq!(observer.sees(asked), expected(asked, &content), "{mode}: {name} after {kind}, by {asked}");
        }
    }
}

/// Promise: an open descriptor, and its mapping, agree with each other and with the last close of another mount, for
/// files in their rows, outside, and for those that outgrow their rows meanwhile.
#[test]
fn open_files_follow_other_mounts() {
    if let Some(path) = std::env::var_os(OBSERVED) {
        return observe(Path::new(&path));
    }
    if !can_mount() {
        return;
    }
    for mode in MODES {
        let (volume, other) = Volume::mounted_twice(mode);
        for length in [0, 5_000, 100_000] {
            follows(&volume, &other, length, mode);
        }
        other.close();
        volume.close();
    }
}

/// Promise: the same after an fsync elsewhere, while both have the file open and also write to it.
#[test]
fn open_files_follow_an_fsync_elsewhere() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    let (here, there) = (volume.join("f"), other.join("f"));
    fs::write(&there, b"begin").unwrap();
    let mut observer = Observer::of(&here);
    let open = |path: &Path| OpenOptions::new().append(true).open(path).unwrap();
    let (mut ours, mut theirs) = (open(&here), open(&there));
    let mut content = b"begin".to_vec();
    for round in 0..40u32 {
        let line = vec![b'a' + (round % 26) as u8; 1000];
        content.extend_from_slice(&line);
        let writer = if round % 2 == 0 { &mut theirs } else { &mut ours };
        writer.write_all(&line).unwrap();
        writer.sync_all().unwrap();
        let asked = ["fstat map read", "stat map", "read fstat map"][round as usize % 3];
        assert_eq!(observer.sees(asked), expected(asked, &content), "round {round}: {asked}");
    }
    drop((observer, ours, theirs));
    other.close();
    volume.close();
}

/// Promise: content of the same size whose writer sets the times back is seen by open files within the lease.
#[test]
fn content_with_unchanged_times_is_followed() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    let theirs = other.join("f");
    let at = Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
    let write = |content: &[u8]| {
        let file = File::options().write(true).create(true).truncate(false).open(&theirs).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::futimens(&file, &Timestamps { last_access: at, last_modification: at }).unwrap();
    };
    let mut content = pattern(9_000);
    write(&content);
    let mut observer = Observer::of(&volume.join("f"));
    assert_eq!(observer.sees("fstat map read"), expected("fstat map read", &content));
    for round in 0..2 {
        content.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        write(&content);
        let end = Instant::now() + LEASE;
        while observer.sees("fstat map read") != expected("fstat map read", &content) {
            assert!(Instant::now() < end, "round {round}: an old page stays");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    drop(observer);
    other.close();
    volume.close();
}

/// Promise: the same for a file that has outgrown its row since it was opened: old bytes that another mount overwrites are
/// seen within the lease, although size and mtime are as they were at the last read.
#[test]
fn backing_file_with_unchanged_times_is_followed() {
    if !can_mount() {
        return;
    }
    for mode in MODES {
        let (volume, other) = Volume::mounted_twice(mode);
        let theirs = other.join("f");
        let mut content = pattern(60_000);
        fs::write(&theirs, &content).unwrap();
        let mut observer = Observer::of(&volume.join("f"));
        assert_eq!(observer.sees("fstat map read"), expected("fstat map read", &content));
        make(&theirs, "grow", &mut content);
        for round in 0..3 {
            assert_eq!(observer.sees("fstat read"), expected("fstat read", &content), "{mode}: round {round}");
            let file = File::options().write(true).open(&theirs).unwrap();
            let before = file.metadata().unwrap();
            content[..5_000].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            file.write_all_at(&content[..5_000], 0).unwrap();
            file.set_times(FileTimes::new().set_modified(before.modified().unwrap())).unwrap();
            file.sync_all().unwrap();
            assert_eq!(file.metadata().unwrap().modified().unwrap(), before.modified().unwrap());
            let end = Instant::now() + LEASE;
            while observer.sees("fstat map read") != expected("fstat map read", &content) {
                assert!(Instant::now() < end, "{mode}: round {round}: an old page stays");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        drop(observer);
        other.close();
        volume.close();
    }
}

/// Promise: `tail -f` prints what another mount appends, also when the file outgrows its row.
#[test]
fn tail_follows_another_mount() {
    if !can_mount() {
        return;
    }
    let (volume, other) = Volume::mounted_twice("");
    let append = |line: &str| {
        let mut log = OpenOptions::new().append(true).create(true).open(other.join("log")).unwrap();
        writeln!(log, "{line}").unwrap();
    };
    append("first");
    let mut tail = Command::new("tail");
    tail.args(["-f", "-s", "0.1", "-n", "+1"]).arg(volume.join("log")).stdout(Stdio::piped());
    let mut tail = tail.spawn().unwrap();
    let (lines, read) = mpsc::channel();
    let printed = BufReader::new(tail.stdout.take().unwrap()).lines();
    let reader = std::thread::spawn(move || printed.map_while(Result::ok).for_each(|line| drop(lines.send(line))));
    let long = "x".repeat(30_000);
    for line in ["first", "second", &long, "third"] {
        if line != "first" {
            append(line);
        }
        let printed = read.recv_timeout(LEASE);
        if printed.as_deref() != Ok(line) {
            tail.kill().unwrap();
        }
        assert_eq!(printed.map(|line| line.len()), Ok(line.len()), "{}", &line[..5]);
    }
    tail.kill().unwrap();
    tail.wait().unwrap();
    reader.join().unwrap();
    other.close();
    volume.close();
}
