//! What was acknowledged outlives the death of the processes that acknowledged it.
//!
//! Writers work on the mount and keep, outside the volume, a manifest of what was acknowledged to them. The server, or
//! the mount with its embedded server, is killed with -9 in the middle of the work and started again; then every name,
//! content, permission and link must be as the manifest says. An operation that was under way when its process died may
//! have happened or not; nothing in between.
//!
//! A few rounds in CI; a hundred with `VARVE_SOAK=1`.

mod common;

use common::random::Random;
use common::{Volume, on_plain_directory, soak};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const WRITERS: u64 = 4;
/// More names than this in a writer's directory make later operations meet earlier files.
const NAMES: usize = 200;
/// Of new files; no umask in use takes anything from it.
const MODE: u32 = 0o600;
/// From empty over inline to backing files (the inline limit of these volumes is 4 KiB).
const SIZES: [usize; 6] = [0, 1, 700, 4096, 4097, 60_000];

fn rounds() -> u64 {
    if soak() { 100 } else { 4 }
}

/// What is known of a file. Two names of one file share one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Content {
    seed: u64,
    length: usize,
    mode: u32,
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        Random::new(self.seed).bytes(self.length)
    }
}

/// What one writer was told: names to files, files to contents.
#[derive(Clone, Debug, Default)]
struct Manifest {
    names: BTreeMap<String, u64>,
    files: BTreeMap<u64, Content>,
    directories: Vec<String>,
}

#[derive(Clone, Debug)]
enum Operation {
    /// Makes or replaces a file: written under the name and closed; `sync`: fsynced before.
    Write {
        name: String,
        content: Content,
        sync: bool,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
    Chmod {
        name: String,
        mode: u32,
    },
    /// Truncates to nothing.
    Cut {
        name: String,
    },
    MakeDirectory {
        name: String,
    },
    RemoveDirectory {
        name: String,
    },
}

impl Manifest {
    /// An operation that makes sense now.
    fn choose(&self, random: &mut Random) -> Operation {
        let fresh = |random: &mut Random| format!("f{}", random.below(NAMES));
        let existing = |random: &mut Random| self.names.keys().nth(random.below(self.names.len().max(1))).cloned();
        let Some(name) = existing(random) else {
            return self.write(fresh(random), random);
        };
        let unused = fresh(random);
        match random.below(16) {
            0..=5 => self.write(unused, random),
            6..=8 => Operation::Rename { from: name, to: unused },
            9 if !self.names.contains_key(&unused) => Operation::Link { from: name, to: unused },
            10 | 11 => Operation::Unlink { name },
            12 => Operation::Chmod { name, mode: 0o600 + random.below(0o100) as u32 },
            13 => Operation::Cut { name },
            14 => Operation::MakeDirectory { name: format!("d{}", self.directories.len()) },
            _ => match self.directories.last() {
                Some(name) => Operation::RemoveDirectory { name: name.clone() },
                None => Operation::Unlink { name },
            },
        }
    }

    fn write(&self, name: String, random: &mut Random) -> Operation {
        let mode = self.names.get(&name).map_or(MODE, |file| self.files[file].mode);
        let content = Content { seed: random.next(), length: SIZES[random.below(SIZES.len())], mode };
        Operation::Write { name, content, sync: random.below(4) == 0 }
    }

    /// What the operation does once it is acknowledged.
    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Write { name, content, .. } => {
                let next = self.files.keys().last().map_or(0, |last| last + 1);
                let file = *self.names.entry(name.clone()).or_insert(next);
                self.files.insert(file, content.clone());
            }
            Operation::Rename { from, to } => {
                // Two names of one file: rename(2) does nothing.
                if self.names.get(from) != self.names.get(to) {
                    let file = self.names.remove(from).expect("chosen among the names");
                    self.names.insert(to.clone(), file);
                }
            }
            Operation::Link { from, to } => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Operation::Unlink { name } => {
                self.names.remove(name);
            }
            Operation::Chmod { name, mode } => {
                self.files.get_mut(&self.names[name]).expect("a name's file").mode = *mode;
            }
            Operation::Cut { name } => self.files.get_mut(&self.names[name]).expect("a name's file").length = 0,
            Operation::MakeDirectory { name } => self.directories.push(name.clone()),
            Operation::RemoveDirectory { .. } => {
                self.directories.pop();
            }
        }
        let named: Vec<u64> = self.names.values().copied().collect();
        self.files.retain(|file, _| named.contains(file));
    }
}

fn perform(root: &Path, operation: &Operation) -> io::Result<()> {
    match operation {
        Operation::Write { name, content, sync } => {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(root.join(name))?;
            file.write_all(&content.bytes())?;
            if *sync {
                file.sync_all()?;
            }
            close(file)
        }
        Operation::Rename { from, to } => std::fs::rename(root.join(from), root.join(to)),
        Operation::Link { from, to } => std::fs::hard_link(root.join(from), root.join(to)),
        Operation::Unlink { name } => std::fs::remove_file(root.join(name)),
        Operation::Chmod { name, mode } => {
            std::fs::set_permissions(root.join(name), std::fs::Permissions::from_mode(*mode))
        }
        Operation::Cut { name } => OpenOptions::new().write(true).open(root.join(name))?.set_len(0),
        Operation::MakeDirectory { name } => std::fs::create_dir(root.join(name)),
        Operation::RemoveDirectory { name } => std::fs::remove_dir(root.join(name)),
    }
}

/// close(2) with its answer, which `File`'s drop throws away: it is what acknowledges a small file.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is the file's own, given up just here, and used no more.
    match unsafe { libc::close(std::os::fd::IntoRawFd::into_raw_fd(file)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One writer's directory and what it knows.
struct Writer {
    root: PathBuf,
    random: Random,
    manifest: Manifest,
    /// Under way when the process died.
    unanswered: Option<Operation>,
    acknowledged: u64,
}

impl Writer {
    fn new(root: PathBuf, seed: u64) -> Writer {
        std::fs::create_dir(&root).expect("a writer's directory");
        Writer { root, random: Random::new(seed), manifest: Manifest::default(), unanswered: None, acknowledged: 0 }
    }

    /// Works until told to stop, or until the volume's process is dead.
    fn work(&mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let operation = self.manifest.choose(&mut self.random);
            match perform(&self.root, &operation) {
                Ok(()) => {
                    self.manifest.apply(&operation);
                    self.acknowledged += 1;
                }
                Err(error) if is_death(&error) => {
                    self.unanswered = Some(operation);
                    return;
                }
                Err(error) => panic!("{operation:?} in {}: {error}", self.root.display()),
            }
        }
    }

    /// Compares the volume with the manifest; then the volume's word counts for what was unanswered.
    fn check(&mut self) {
        let found = Found::read(&self.root);
        let before = self.manifest.clone();
        let differences = found.differences(&before, None);
        let Some(operation) = self.unanswered.take() else {
            assert!(differences.is_empty(), "{}: {}", self.root.display(), differences.join("\n"));
            return;
        };
        if differences.is_empty() {
            return;
        }
        let mut after = before.clone();
        after.apply(&operation);
        // A file that was being written may have any prefix of it; its name is then left out of the comparison.
        let partial = match &operation {
            Operation::Write { name, .. } => Some(name.as_str()),
            _ => None,
        };
        let unlike_after = found.differences(&after, partial);
        assert!(
            unlike_after.is_empty(),
            "{}: after {operation:?}, which was not answered, the volume is neither as before:\n{}\nnor as after:\n{}",
            self.root.display(),
            differences.join("\n"),
            unlike_after.join("\n")
        );
        self.manifest = after;
        if let Some(name) = partial {
            self.forget(name);
        }
    }

    /// Removes a file whose content nobody was promised.
    fn forget(&mut self, name: &str) {
        std::fs::remove_file(self.root.join(name)).or_else(absent).expect("a file can be removed");
        let file = self.manifest.names.remove(name);
        let shared =
            self.manifest.names.iter().filter(|(_, other)| Some(**other) == file).map(|(name, _)| name.clone());
        for other in shared.collect::<Vec<_>>() {
            std::fs::remove_file(self.root.join(&other)).or_else(absent).expect("a file can be removed");
            self.manifest.names.remove(&other);
        }
        self.manifest.files.retain(|known, _| Some(*known) != file);
    }
}

fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// How a dead mount answers.
fn is_death(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO | libc::EINTR))
}

/// A writer's directory as it is on the volume.
struct Found {
    files: BTreeMap<String, (u64, Vec<u8>, u32, u64)>,
    directories: Vec<String>,
}

impl Found {
    fn read(root: &Path) -> Found {
        let mut found = Found { files: BTreeMap::new(), directories: Vec::new() };
        for entry in std::fs::read_dir(root).expect("the writer's directory is there") {
            let path = entry.expect("a listing goes on").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            let metadata = path.symlink_metadata().expect("a listed name is there");
            if metadata.is_dir() {
                found.directories.push(name);
            } else {
                let bytes = std::fs::read(&path).expect("a file can be read");
                found.files.insert(name, (metadata.ino(), bytes, metadata.mode() & 0o7777, metadata.nlink()));
            }
        }
        found
    }

    /// How the volume is not as the manifest says; `except`: a name whose content is not compared.
    fn differences(&self, manifest: &Manifest, except: Option<&str>) -> Vec<String> {
        let mut differences = Vec::new();
        let excepted = except.and_then(|name| manifest.names.get(name));
        for (name, file) in &manifest.names {
            let content = &manifest.files[file];
            let links = manifest.names.values().filter(|other| *other == file).count() as u64;
            match self.files.get(name) {
                _ if Some(file) == excepted => {}
                None => differences.push(format!("{name} is lost")),
                Some((_, bytes, mode, nlink)) => {
                    if *bytes != content.bytes() {
                        differences.push(format!("{name} has {} other bytes than {content:?}", bytes.len()));
                    }
                    if (*mode, *nlink) != (content.mode, links) {
                        differences
                            .push(format!("{name} has mode {mode:o} and {nlink} links, not {content:?}, {links}"));
                    }
                }
            }
        }
        let unknown =
            self.files.keys().filter(|name| !manifest.names.contains_key(*name) && Some(name.as_str()) != except);
        differences.extend(unknown.map(|name| format!("{name} should not be there")));
        let (mut here, mut there) = (self.directories.clone(), manifest.directories.clone());
        here.sort();
        there.sort();
        if here != there {
            differences.push(format!("directories are {here:?}, not {there:?}"));
        }
        differences
    }
}

fn writers(root: &Path) -> Vec<Writer> {
    (0..WRITERS).map(|writer| Writer::new(root.join(format!("writer-{writer}")), writer)).collect()
}

/// Lets the writers work, and does something in the middle of it.
fn work(writers: &mut [Writer], meanwhile: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let stop = &stop;
            scope.spawn(move || writer.work(stop));
        }
        meanwhile();
        stop.store(true, Relaxed);
    });
}

/// A moment that differs from round to round, for the death to find other work under way each time.
fn a_while(round: u64) -> Duration {
    Duration::from_millis(150 + 137 * (round % 7))
}

fn volume() -> Volume {
    // Small limits, so that splits and promotions happen all the time.
    Volume::format(&["--shards", "8", "--split-threshold", "32", "--inline-limit", "4KiB"])
}

/// The server dies and comes back under a mount that stays: no call fails, and nothing acknowledged is lost.
#[test]
fn acknowledged_survives_kill_of_the_server() {
    let volume = volume();
    let mut server = Some(volume.serve(&[]));
    let mount = volume.mount(&[]);
    let mut writers = writers(&mount.directory);
    for round in 0..rounds() {
        work(&mut writers, || {
            std::thread::sleep(a_while(round));
            server.take().expect("a server runs").kill();
            server = Some(volume.serve(&[]));
            std::thread::sleep(a_while(round));
        });
        for writer in &mut writers {
            assert!(writer.unanswered.is_none(), "a call failed though the server came back: {:?}", writer.unanswered);
            writer.check();
        }
    }
    expect_work(&writers, 100 * rounds());
    mount.unmount();
    server.take().expect("a server runs").stop();
    volume.expect_sound();
}

/// The mount, which contains the server, dies: what it had acknowledged is there when the volume is mounted again.
#[test]
fn acknowledged_survives_kill_of_the_mount() {
    let volume = volume();
    let mut mount = volume.mount(&[]);
    let mut writers = writers(&mount.directory);
    for round in 0..rounds() {
        let mut dying = Some(mount);
        work(&mut writers, || {
            std::thread::sleep(a_while(round));
            dying.take().expect("one mount a round").kill();
        });
        mount = volume.mount(&[]);
        writers.iter_mut().for_each(Writer::check);
        // Changes that the crash cut short are finished by now, or are when the volume is closed.
        if round % 2 == 1 {
            mount.unmount();
            volume.expect_sound();
            mount = volume.mount(&[]);
        }
    }
    expect_work(&writers, 100 * rounds());
    mount.unmount();
    volume.expect_sound();
}

fn expect_work(writers: &[Writer], least: u64) {
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged).sum();
    println!("{acknowledged} operations acknowledged");
    assert!(acknowledged > least, "only {acknowledged} operations: the suite proves nothing");
}

/// The suite's own manifest is right: on a plain directory it finds no difference.
#[test]
fn the_manifest_agrees_with_a_plain_directory() {
    if !on_plain_directory() {
        // On a mount the other tests say it all.
        let scratch = common::scratch();
        let mut writers = writers(scratch.path());
        work(&mut writers, || std::thread::sleep(Duration::from_millis(300)));
        writers.iter_mut().for_each(Writer::check);
        expect_work(&writers, 100);
    }
}
