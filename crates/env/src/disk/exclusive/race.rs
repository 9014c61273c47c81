//! Two processes race for names, to prove that a primitive has one winner for each.
//!
//! Both go through the same names in the same order. A process that finds a name taken does less work than the winner,
//! so it catches up, and the two stay close together.

use super::Exclusive;
use crate::disk::{self, Location};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::time::{Duration, Instant};

const NAMES: usize = 1_000;

/// Links to one file. Some file systems allow few: GlusterFS keeps the name of each link in an attribute of the file,
/// for which ext4 has room some 70 times. A new file for each name would make the race a hundred times slower on ext4.
const LINKS_MAX: usize = 32;

/// Limit for the whole race. A contended creation on a slow cluster file system takes some tens of milliseconds.
const RACE_MAX: Duration = Duration::from_secs(300);
const LOOKED_AT_EVERY: Duration = Duration::from_millis(1);

/// Outcome of one attempt, as one byte of the child's report.
const WON: u8 = b'w';
const TAKEN: u8 = b't';
const FAILED: u8 = b'f';

/// Whether exactly one of two processes gets each of [`NAMES`] names in a new directory below `directory`.
///
/// # Errors
/// If the processes cannot be run, or are not done within [`RACE_MAX`].
pub(super) fn has_one_winner_each<L: Location + ?Sized>(primitive: Exclusive, directory: &L) -> io::Result<bool> {
    let arena = directory.child(OsStr::new(&disk::temporary_name()));
    disk::create_directory(&arena)?;
    let raced = arena.open_directory().and_then(|opened| run(primitive, &opened));
    let removed = disk::remove_tree(&arena);
    let outcomes = raced?;
    removed?;
    Ok(outcomes.iter().all(|pair| matches!(pair, [WON, TAKEN] | [TAKEN, WON])))
}

fn run(primitive: Exclusive, arena: &impl AsFd) -> io::Result<Vec<[u8; 2]>> {
    let names: Vec<CString> = (0..NAMES).map(|number| text(format!("name{number}"))).collect();
    let sources = [text("first".to_owned()), text("second".to_owned())];
    let (report, reporter) = io::pipe()?;
    // SAFETY: the child calls nothing but system calls on memory that it inherited, until it ends by `_exit`: no
    // allocation, no lock and no destructor, which threads that the child does not have could be in the middle of.
    let child = match unsafe { libc::fork() } {
        0 => {
            let mut outcomes = [FAILED; NAMES];
            attempt_all(primitive, arena, &sources[1], &names, &mut outcomes);
            let written = rustix::io::write(&reporter, &outcomes);
            // SAFETY: as above; no code of this process runs after it.
            unsafe { libc::_exit(i32::from(written != Ok(NAMES))) }
        }
        number => Pid::from_raw(number).filter(|_| number > 0).ok_or_else(io::Error::last_os_error)?,
    };
    drop(reporter);
    let began = Instant::now();
    let mut own = [FAILED; NAMES];
    attempt_all(primitive, arena, &sources[0], &names, &mut own);
    let other = outcomes_of(child, &report, began);
    // The recorded changes of a store (`crate::power_loss`) hold the directory alone.
    for name in names.iter().chain(&sources) {
        match rustix::fs::unlinkat(arena, name.as_c_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let other = other?;
    Ok(std::iter::zip(own, other).map(|(own, other)| [own, other]).collect())
}

/// Waits for the child and reads its report, which fits in the pipe.
fn outcomes_of(child: Pid, report: &impl AsFd, began: Instant) -> io::Result<[u8; NAMES]> {
    let mut outcomes = [FAILED; NAMES];
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(None) if began.elapsed() < RACE_MAX => std::thread::sleep(LOOKED_AT_EVERY),
            Ok(None) => {
                let _ = rustix::process::kill_process(child, Signal::KILL);
                let what = format!("{NAMES} creations took more than {} s", RACE_MAX.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            // Another part of the program may have reaped it (SIGCHLD ignored): its report says how it ended.
            Ok(Some(_)) | Err(Errno::CHILD) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::read(report, &mut outcomes)?;
    Ok(outcomes)
}

/// Attempts to get each name. Makes only system calls.
fn attempt_all(primitive: Exclusive, arena: &impl AsFd, source: &CStr, names: &[CString], outcomes: &mut [u8; NAMES]) {
    for (number, (name, outcome)) in names.iter().zip(outcomes).enumerate() {
        if number % LINKS_MAX == 0 {
            let _ = rustix::fs::unlinkat(arena, source, AtFlags::empty());
        }
        *outcome = match attempt(primitive, arena, source, name) {
            Ok(true) => WON,
            Ok(false) => TAKEN,
            Err(_) => FAILED,
        };
    }
}

/// As [`Exclusive::publish`], but the temporary name of a link stays for the next attempt.
fn attempt(primitive: Exclusive, arena: &impl AsFd, source: &CStr, name: &CStr) -> rustix::io::Result<bool> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(arena, source, flags, Mode::RUSR | Mode::WUSR)?;
    let published = match primitive {
        Exclusive::Link => rustix::fs::linkat(arena, source, arena, name, AtFlags::empty()),
        Exclusive::RenameNoReplace => rustix::fs::renameat_with(arena, source, arena, name, RenameFlags::NOREPLACE),
    };
    match published {
        Ok(()) => {}
        Err(Errno::EXIST) => {
            // A repeated request; see `is_same_file`.
            let found = rustix::fs::statat(arena, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let own = rustix::fs::fstat(&file)?;
            if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino) {
                return Ok(false);
            }
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

fn text(name: String) -> CString {
    CString::new(name).expect("the name has no zero byte")
}
