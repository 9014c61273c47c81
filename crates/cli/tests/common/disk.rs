//! Small disks of a suite's own, which it can fill, freeze and break without harm to the machine's.

use super::mounted::detach;
use super::{BUSY_FOR_A_MOMENT, LONG, SHORT, must, run, scratch};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

/// A file system on a loop device.
pub struct Disk {
    scratch: tempfile::TempDir,
}

impl Disk {
    /// `None`, with a message, if this machine has no loop devices or the suite does not run as root.
    pub fn make(size: &str) -> Option<Disk> {
        let excuse = if !rustix::process::geteuid().is_root() {
            Some("only root can mount a disk")
        } else if !Path::new("/dev/loop-control").exists() {
            Some("this machine has no loop devices")
        } else {
            None
        };
        if let Some(excuse) = excuse {
            eprintln!("SKIPPED: {excuse}");
            return None;
        }
        let disk = Disk { scratch: scratch() };
        must(Command::new("truncate").arg("-s").arg(size).arg(disk.image()));
        must(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(disk.image()));
        std::fs::create_dir(disk.path()).expect("a directory to mount on");
        disk.mount();
        Some(disk)
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("image")
    }

    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }

    pub fn mount(&self) {
        must(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(self.path()));
    }

    pub fn unmount(&self) {
        let end = Instant::now() + BUSY_FOR_A_MOMENT;
        let mut unmount = Command::new("umount");
        unmount.arg(self.path());
        while run(&mut unmount, SHORT).code() != Some(0) {
            assert!(Instant::now() < end, "{} is busy", self.path().display());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Simulates an error of the device after which ext4 does not trust its journal: the file system turns read-only.
    pub fn turn_read_only(&self) {
        // mount(8) itself fails, because the requested state is impossible. It matters only that nothing can be
        // written.
        run(Command::new("mount").args(["-o", "remount,abort"]).arg(self.path()), SHORT);
        let refused = std::fs::File::create(self.path().join("probe")).expect_err("the disk is read-only");
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS), "{refused}");
    }

    /// Repairs such a disk as an administrator would. The disk must not be in use.
    pub fn repair(&self) {
        self.unmount();
        // 1: errors were corrected.
        let checked = run(Command::new("e2fsck").arg("-fp").arg(self.image()), LONG);
        assert!(matches!(checked.code(), Some(0 | 1)), "{}{}", checked.stdout, checked.stderr);
        self.mount();
    }

    /// Blocks all writers from here on.
    pub fn freeze(&self) {
        must(&mut self.freezing());
    }

    pub fn thaw(&self) {
        must(&mut self.thawing());
    }

    pub fn freezing(&self) -> Command {
        let mut command = Command::new("fsfreeze");
        command.arg("-f").arg(self.path());
        command
    }

    pub fn thawing(&self) -> Command {
        let mut command = Command::new("fsfreeze");
        command.arg("-u").arg(self.path());
        command
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    /// Fills the disk completely.
    pub fn fill(&self) {
        let mut ballast = std::fs::File::create(self.ballast()).expect("a file on the disk");
        let mut write = |size: usize| ballast.write_all(&vec![7; size]).and_then(|()| ballast.sync_data()).is_ok();
        // A server may free megabytes meanwhile. Single bytes would take minutes to fill them.
        while write(1) {
            while write(1 << 20) {}
            while write(4096) {}
            (0..4096).take_while(|_| write(1)).for_each(drop);
        }
    }

    /// Takes all free space, also what others free, while `work` runs.
    pub fn keep_full_during<T>(&self, work: impl FnOnce() -> T) -> T {
        let ballast = std::fs::File::options().create(true).append(true).open(self.ballast());
        let mut ballast = ballast.expect("a file on the disk");
        std::thread::scope(|scope| {
            // Dropped at the end of the work, also after a panic.
            let (_working, work_ends) = mpsc::channel::<()>();
            scope.spawn(move || {
                let piece = vec![7; 64 << 10];
                while work_ends.try_recv() == Err(TryRecvError::Empty) {
                    if ballast.write_all(&piece).is_err() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            });
            work()
        })
    }

    pub fn give_room(&self) {
        std::fs::remove_file(self.ballast()).expect("the ballast can go");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A frozen disk cannot be unmounted. The disk is rarely frozen here, and then this command fails.
        let _ = Command::new("fsfreeze").arg("-u").arg(self.path()).stderr(std::process::Stdio::null()).status();
        detach(&self.path());
    }
}
