//! A store that is full, frozen, read-only or failing, and a server that does not run.

use super::common::disk::Disk;
use super::common::{Mount, SHORT, Server, Volume, expect_bounded, must, run, soak, until, varve};
use super::{DEADLINE, DEADLINE_OPTION, Kept, comes_back, expect_no_panic, fails, says};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, OpenFlags, block_on};
use varve_env::volume_dir::VolumeDir;
use varve_types::{Credentials, Errno, InodeId, Mode, Name};

/// How long the store is in trouble under load.
fn loaded() -> Duration {
    Duration::from_secs(if soak() { 60 } else { 4 })
}

/// A failed shard is reopened repeatedly for some seconds, and then once in a while.
const REFUSING: Duration = Duration::from_secs(6);

const SMALL: [&str; 4] = ["--shards", "2", "--inline-limit", "4KiB"];

/// A small volume in use, with files that must exist at the end.
struct Site {
    volume: Volume,
    server: Server,
    mount: Mount,
    kept: Kept,
}

impl Site {
    fn on(directory: &Path) -> Site {
        let volume = Volume::format_in(directory, &SMALL);
        let server = volume.serve(&[]);
        let mount = volume.mount(&["-o", DEADLINE_OPTION]);
        let mut kept = Kept::default();
        kept.write(&mount.directory, "before");
        Site { volume, server, mount, kept }
    }

    /// Checks that work continues, no kept file is lost, and the volume is sound.
    fn ends_well(mut self) {
        comes_back("writing", || self.kept.write_one(&self.mount.directory, "after", 5_000));
        self.kept.write(&self.mount.directory, "later");
        self.kept.expect(&self.mount.directory);
        expect_no_panic("the server", &self.server.log());
        expect_bounded("the server", self.server.pid());
        expect_bounded("the mount", self.mount.pid());
        self.mount.unmount_within(super::RECOVERY);
        self.server.stop();
        self.volume.expect_sound();
    }
}

fn fill_until_refused(kept: &mut Kept, directory: &Path) -> io::Result<()> {
    (0..200).try_for_each(|number| kept.write_one(directory, &format!("more-{number}"), 1_000 * (number % 9)))
}

/// Checks that changes fail with the store's own errno as long as it takes no writes: when a shard fails, while it is
/// reopened, and when that fails.
fn refuses_all_with(errno: i32, directory: &Path, changes: &[Change]) {
    let begun = Instant::now();
    for number in 0.. {
        for change in changes {
            let refused = fails("changing a store that takes no writes", || change(directory, number));
            assert_eq!(refused, errno, "change {number}: {}", io::Error::from_raw_os_error(refused));
        }
        if begun.elapsed() > REFUSING {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A change, with a number for fresh names.
type Change = fn(&Path, u32) -> io::Result<()>;

const GROWING: [Change; 3] = [
    |directory, number| std::fs::write(directory.join(format!("small-{number}")), [1; 100]),
    |directory, number| std::fs::write(directory.join(format!("large-{number}")), [1; 70_000]),
    |directory, number| std::fs::create_dir(directory.join(format!("directory-{number}"))),
];

const OTHERS: [Change; 3] = [
    |directory, _| std::fs::remove_file(directory.join("idle")),
    |directory, number| std::fs::rename(directory.join("idle"), directory.join(format!("renamed-{number}"))),
    |directory, _| std::os::unix::fs::chown(directory.join("idle"), Some(1), Some(1)),
];

#[test]
fn full_store_returns_enospc_until_space_is_freed() {
    let Some(disk) = Disk::make("48M") else { return };
    let mut site = Site::on(&disk.path());
    disk.fill();
    let errno = fails("writing to a full store", || fill_until_refused(&mut site.kept, &site.mount.directory));
    assert_eq!(errno, libc::ENOSPC, "{}", io::Error::from_raw_os_error(errno));
    refuses_all_with(libc::ENOSPC, &site.mount.directory, &GROWING);
    still_readable(&site.kept, &site.mount.directory);
    // `status` on the mount point, which the table of mounts resolves.
    let status = run(varve().arg("status").arg(&site.mount.directory), SHORT);
    assert_eq!(status.code(), Some(3), "{}{}", status.stdout, status.stderr);
    assert!(status.stdout.contains("the store is full"), "{}", status.stdout);
    let available = || rustix::fs::statvfs(&site.mount.directory).expect("a mount answers").f_bavail;
    assert_eq!(available(), 0, "what is refused is not said to have room");
    disk.give_room();
    assert_ne!(available(), 0);
    site.ends_well();
}

/// Small files that would outgrow their rows on a full store are refused, and the attempt leaves nothing in the store.
#[test]
fn failed_promotion_leaves_no_files() {
    let Some(disk) = Disk::make("48M") else { return };
    let site = Site::on(&disk.path());
    let path = |number: u32| site.mount.directory.join(format!("growing-{number}"));
    let grow = |number: u32, bytes: &[u8]| -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(path(number))?;
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    };
    let backing_files = || {
        let directories = std::fs::read_dir(site.volume.store().join("data")).expect("listing");
        directories
            .map(|entry| std::fs::read_dir(entry.expect("an entry").path()).expect("listing").count())
            .sum::<usize>()
    };
    (0..20).for_each(|number| grow(number, &[1; 3_000]).expect("there is room"));
    let before = backing_files();
    disk.fill();
    // The server may still free space of its logs, and then a file can grow.
    let grew = disk.keep_full_during(|| {
        let grows = |number: &u32| match grow(*number, &[2; 9_000]) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
                assert!(std::fs::read(path(*number)).expect("it is readable").starts_with(&[1; 3_000]));
                false
            }
        };
        (0..20).filter(grows).count()
    });
    assert!(grew < 20, "the store was never full");
    assert!(backing_files() <= before + grew, "a copy was left");
    disk.give_room();
    comes_back("growing", || grow(0, &[3; 9_000]));
    site.ends_well();
}

/// Workers run as fast as they can while the store fills, while nothing can be written, and when there is space again.
/// The waiting data is bounded, in the server and in the mount.
#[test]
fn full_store_under_load_uses_bounded_memory() {
    let Some(disk) = Disk::make("192M") else { return };
    let site = Site::on(&disk.path());
    under_load(&site.mount.directory, || {
        std::thread::sleep(loaded() / 2);
        disk.keep_full_during(|| std::thread::sleep(loaded()));
        disk.give_room();
        std::thread::sleep(loaded() / 2);
    });
    site.ends_well();
}

/// The same load while the store returns errors: the store is a mount of Varve whose server is killed.
#[test]
fn failing_store_under_load_uses_bounded_memory() {
    let beneath = Volume::format(&["--shards", "2", "--inline-limit", "1MiB"]);
    let beneath_server = beneath.serve(&[]);
    let store = beneath.mount(&["-o", "noembedded,deadline=1s"]);
    let site = Site::on(&store.directory);
    let beneath_server = under_load(&site.mount.directory, || {
        std::thread::sleep(loaded() / 2);
        beneath_server.kill();
        std::thread::sleep(loaded());
        beneath.serve(&[])
    });
    site.ends_well();
    store.unmount();
    beneath_server.stop();
    beneath.expect_sound();
}

/// The same load while the store hangs.
#[test]
fn hanging_store_under_load_uses_bounded_memory() {
    let Some(disk) = Disk::make("192M") else { return };
    let site = Site::on(&disk.path());
    under_load(&site.mount.directory, || {
        std::thread::sleep(loaded() / 2);
        disk.freeze();
        std::thread::sleep(loaded());
        disk.thaw();
    });
    site.ends_well();
}

/// Workers write small and large files, rename and remove, whatever the result, while `trouble` runs.
fn under_load<T>(directory: &Path, trouble: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let done = &done;
            scope.spawn(move || {
                for number in 0.. {
                    if done.load(Relaxed) {
                        return;
                    }
                    let path = |kind: &str| directory.join(format!("{kind}-{worker}-{}", number % 500));
                    let length = if number % 10 == 0 { 200_000 } else { 3_000 };
                    // Errors are expected; other tests check the acknowledged changes.
                    let _ = std::fs::write(path("load"), vec![worker as u8; length]);
                    let _ = std::fs::rename(path("load"), path("moved"));
                    if number % 3 == 0 {
                        let _ = std::fs::remove_file(path("moved"));
                    }
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trouble));
        done.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Existing files can be read and listed although nothing can be written: at once, or as soon as the server has
/// noticed.
fn still_readable(kept: &Kept, directory: &Path) {
    comes_back("listing", || std::fs::read_dir(directory)?.try_for_each(|entry| entry.map(drop)));
    for (name, bytes) in &kept.files {
        let found = comes_back("reading", || std::fs::read(directory.join(name)));
        assert!(found == *bytes, "{name} has {} other bytes", found.len());
    }
}

/// The store is filled through the mount itself, by a large file whose bytes bypass all of Varve's limits. Names and
/// small files fail with ENOSPC, existing files can be read and listed, and removals free space again.
#[test]
fn a_full_store_takes_removals() {
    let Some(disk) = Disk::make("64M") else { return };
    let site = Site::on(&disk.path());
    let large = site.mount.directory.join("large");
    let fill = || -> io::Result<()> {
        let mut file = File::create(&large)?;
        (0..128).try_for_each(|_| io::Write::write_all(&mut file, &[7; 1 << 20]))
    };
    assert_eq!(fails("filling the store", fill), libc::ENOSPC);
    let small = |number: u32| std::fs::write(site.mount.directory.join(format!("small-{number}")), [1; 3000]);
    let refused = (0..2000).find_map(|number| {
        // Files that fit below the mark at the next check are still accepted.
        std::thread::sleep(Duration::from_millis(2));
        small(number).err()
    });
    assert_eq!(refused.expect("it is full").raw_os_error(), Some(libc::ENOSPC));
    site.kept.expect(&site.mount.directory);
    for entry in std::fs::read_dir(&site.mount.directory).expect("listing") {
        let path = entry.expect("an entry").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("small-")) {
            std::fs::remove_file(path).expect("removals go on");
        }
    }
    let is_small = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("small-");
    let left =
        std::fs::read_dir(&site.mount.directory).expect("listing").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(left.filter(|name| is_small(name)).count(), 0);
    std::fs::remove_file(&large).expect("removals go on");
    site.ends_well();
}

/// When a removal of a large file returns, the next call can use its space, whether or not the server had noticed that
/// the store is full.
#[test]
fn removal_on_a_full_store_gives_space_at_once() {
    let Some(disk) = Disk::make("96M") else { return };
    let site = Site::on(&disk.path());
    let path = |name: &str| site.mount.directory.join(name);
    let write = |name: &str, mib: usize| -> io::Result<()> {
        let mut file = File::create(path(name))?;
        let piece = vec![7; 1 << 20];
        (0..mib).try_for_each(|_| io::Write::write_all(&mut file, &piece))?;
        file.sync_all()
    };
    let mut directories = 0;
    let mut make = || {
        directories += 1;
        std::fs::create_dir(path(&format!("directory-{directories}")))
    };
    for round in 0..4 {
        assert_eq!(fails("filling the store", || write("large", 128)), libc::ENOSPC);
        if round % 2 == 1 {
            let end = Instant::now() + super::RECOVERY;
            while make().is_ok() {
                assert!(Instant::now() < end, "the server does not notice that the store is full");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        std::fs::remove_file(path("large")).expect("removals go on");
        make().unwrap_or_else(|error| panic!("round {round}: {error}"));
        write("next", 16).unwrap_or_else(|error| panic!("round {round}: {error}"));
        std::fs::remove_file(path("next")).expect("removals go on");
        // This removal was not from a full store.
        until("the space is free", SHORT, || {
            let store = rustix::fs::statvfs(disk.path()).expect("a file system");
            store.f_bavail * store.f_frsize > 72 << 20
        });
    }
    site.ends_well();
}

/// The space of each of several removals can be used at once, not only that of the first. The test leaves out the 9 MiB
/// with which the reserve is filled again.
#[test]
fn each_removal_on_a_full_store_gives_space_at_once() {
    let Some(disk) = Disk::make("96M") else { return };
    let site = Site::on(&disk.path());
    let write = |name: &str, mib: usize| -> io::Result<()> {
        let mut file = File::create(site.mount.directory.join(name))?;
        let piece = vec![7; 1 << 20];
        (0..mib).try_for_each(|_| io::Write::write_all(&mut file, &piece))?;
        file.sync_all()
    };
    let removed = |name: &str| std::fs::remove_file(site.mount.directory.join(name)).expect("removals go on");
    for round in 0..3 {
        let full = (0..12).find_map(|number| write(&format!("large-{number}"), 8).err()).expect("it gets full");
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC), "{full}");
        (0..3).for_each(|number| removed(&format!("large-{number}")));
        write("next", 14).unwrap_or_else(|error| panic!("round {round}: {error}"));
        std::fs::create_dir(site.mount.directory.join(format!("directory-{round}"))).expect("a name has space");
        for entry in std::fs::read_dir(&site.mount.directory).expect("listing") {
            let name = entry.expect("an entry").file_name().into_string().expect("plain names");
            if name == "next" || name.starts_with("large-") {
                removed(&name);
            }
        }
    }
    site.ends_well();
}

/// Signals to programs that wait for a call leave no error in the log of the mount.
#[test]
fn interrupted_calls_log_no_error() {
    let volume = Volume::format(&SMALL);
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    std::fs::write(mount.directory.join("f"), b"content").expect("written");
    server.hang();
    let read = || Command::new("cat").arg(mount.directory.join("f")).stdout(Stdio::null()).spawn().expect("cat");
    let mut waiting: Vec<_> = (0..8).map(|_| read()).collect();
    until("all of them wait for the mount", SHORT, || {
        let waits = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/wchan"));
        waiting.iter().all(|child| waits(child.id()).is_ok_and(|function| function == "request_wait_answer"))
    });
    for child in &waiting {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    }
    std::thread::sleep(Duration::from_millis(200));
    server.go_on();
    for child in &mut waiting {
        child.wait().expect("waited for");
    }
    assert_eq!(std::fs::read(mount.directory.join("f")).expect("the mount works"), b"content");
    let log = mount.log();
    assert!(!log.contains("ERROR"), "{log}");
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// A server was stopped or killed, and others filled its store in the meantime. It starts on its reserve, so that files
/// can be removed.
#[test]
fn a_server_starts_on_a_full_store() {
    [Server::kill, Server::stop].into_iter().for_each(starts_on_a_full_store);
}

fn starts_on_a_full_store(ended: fn(Server)) {
    let Some(disk) = Disk::make("64M") else { return };
    let Site { volume, server, mount, mut kept } = Site::on(&disk.path());
    let reserve = volume.store().join("reserve");
    comes_back("keeping room back", || match reserve.metadata()?.len() {
        0 => Err(io::Error::other("nothing is kept back yet")),
        _ => Ok(()),
    });
    mount.unmount();
    ended(server);
    disk.fill();
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", DEADLINE_OPTION]);
    kept.expect(&mount.directory);
    for name in ["before-1", "before-3"] {
        std::fs::remove_file(mount.directory.join(name)).expect("removals go on");
        kept.files.remove(name);
    }
    disk.give_room();
    Site { volume, server, mount, kept }.ends_well();
}

/// Even the reserve is gone.
#[test]
fn server_starts_read_only_on_a_store_without_space() {
    [Server::kill, Server::stop].into_iter().for_each(starts_on_a_store_without_any_room_and_reads);
}

fn starts_on_a_store_without_any_room_and_reads(ended: fn(Server)) {
    let Some(disk) = Disk::make("64M") else { return };
    let Site { volume, server, mount, kept } = Site::on(&disk.path());
    mount.unmount();
    ended(server);
    File::create(volume.store().join("reserve")).expect("nothing is kept back");
    disk.fill();
    // Other writers also wait for any space that is freed.
    let (server, mount) = disk.keep_full_during(|| {
        let status = run(varve().arg("status").arg(volume.store()), SHORT);
        assert_eq!(status.code(), Some(3), "{}{}", status.stdout, status.stderr);
        assert!(status.stdout.contains("the store is full"), "{}", status.stdout);
        let (server, mount) = (volume.serve(&[]), volume.mount(&["-o", "deadline=60s"]));
        kept.expect(&mount.directory);
        let errno = fails("creating on a full store", || File::create(mount.directory.join("more")));
        assert_eq!(errno, libc::ENOSPC, "{}", io::Error::from_raw_os_error(errno));
        (server, mount)
    });
    disk.give_room();
    Site { volume, server, mount, kept }.ends_well();
}

/// A server is stopped while its store has no space at all. The acknowledged changes are in its log, synced, so it
/// stops cleanly, and the next server reads them there.
#[test]
fn server_stops_on_a_store_without_space() {
    let Some(disk) = Disk::make("64M") else { return };
    let Site { volume, server, mount, kept } = Site::on(&disk.path());
    mount.unmount();
    File::create(volume.store().join("reserve")).expect("nothing is kept back");
    disk.fill();
    let log = disk.keep_full_during(|| {
        let log = server.log();
        server.stop();
        // A server that could open nothing does not wait either.
        let server = volume.serve(&[]);
        server.stop();
        log
    });
    expect_no_panic("the server", &log);
    disk.give_room();
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", DEADLINE_OPTION]);
    kept.expect(&mount.directory);
    Site { volume, server, mount, kept }.ends_well();
}

#[test]
fn hanging_store_is_waited_for() {
    let Some(disk) = Disk::make("64M") else { return };
    let site = Site::on(&disk.path());
    disk.freeze();
    let frozen = Instant::now();
    let errno = fails("creating on a store that hangs", || File::create(site.mount.directory.join("hung")));
    assert!(matches!(errno, libc::EIO | libc::ETIMEDOUT), "{}", io::Error::from_raw_os_error(errno));
    std::thread::sleep(Duration::from_secs(if soak() { 60 } else { 5 }).saturating_sub(frozen.elapsed()));
    disk.thaw();
    site.ends_well();
}

/// A close waits no longer than the deadline for another call on the file that waits for the store. (A process that
/// starts a program closes its open files, and the program may be `fsfreeze -u`.)
#[test]
fn close_returns_while_a_hanging_store_blocks_the_writer() {
    let Some(disk) = Disk::make("64M") else { return };
    let site = Site::on(&disk.path());
    let config = ClientConfig { deadline: DEADLINE, ..ClientConfig::new(VolumeDir::new(site.volume.store())) };
    let client = FileSystem::connect(config).expect("the server answers");
    let (root, name) = (Credentials::root(), Name::new(b"grows").expect("a name"));
    let made = client.create(&root, InodeId::ROOT, &name, Mode(0o644), OpenFlags::READ_WRITE);
    let handle = block_on(made).expect("a file").1.handle;
    disk.freeze();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| block_on(client.write(handle, 0, &[7; 100_000])));
        // The write makes the file's backing file.
        std::thread::sleep(Duration::from_secs(1));
        let closing = scope.spawn(|| block_on(client.flush(handle)));
        let given_up = Instant::now() + SHORT;
        while !closing.is_finished() && Instant::now() < given_up {
            std::thread::sleep(Duration::from_millis(50));
        }
        let hangs = !writing.is_finished();
        disk.thaw();
        let closed = closing.join().expect("the closing thread").expect_err("its content was being written");
        assert_eq!(closed.errno, Errno::ETIMEDOUT, "{closed}");
        assert!(hangs, "the writer waited for the store");
        assert_eq!(writing.join().expect("the writer").expect("it is written"), 100_000);
    });
    block_on(client.flush(handle)).expect("it can be closed");
    block_on(client.release(handle));
    drop(client);
    site.ends_well();
}

#[test]
fn read_only_store_refuses_changes_and_keeps_synced_data() {
    let Some(disk) = Disk::make("64M") else { return };
    let Site { volume, server, mount, mut kept } = Site::on(&disk.path());
    kept.write_one(&mount.directory, "idle", 100).expect("a file");
    disk.turn_read_only();
    for changes in [GROWING, OTHERS] {
        refuses_all_with(libc::EROFS, &mount.directory, &changes);
    }
    assert!(server.log().contains("Read-only file system"), "the server does not say why:\n{}", server.log());
    still_readable(&kept, &mount.directory);
    expect_no_panic("the server", &server.log());
    expect_bounded("the server of a store that is read-only", server.pid());
    expect_bounded("its mount", mount.pid());
    drop(mount);
    server.kill();
    disk.repair();
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    kept.expect(&mount.directory);
    kept.write(&mount.directory, "after");
    kept.expect(&mount.directory);
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// Commands that only read a volume work in a store that takes no writes. Commands that write report the reason for
/// their failure.
#[test]
fn read_only_store_can_be_checked_and_dumped() {
    let Some(disk) = Disk::make("64M") else { return };
    let volume = Volume::format_in(&disk.path(), &SMALL);
    let mount = volume.mount(&[]);
    std::fs::write(mount.directory.join("file"), "content").expect("a file");
    mount.unmount();
    must(Command::new("mount").args(["-o", "remount,ro"]).arg(disk.path()));
    volume.expect_sound();
    let elsewhere = super::common::scratch();
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(elsewhere.path().join("dump")));
    for command in [["serve"].as_slice(), &["fsck", "--repair"]] {
        let refused = run(varve().args(command).arg(volume.store()), SHORT);
        assert!(refused.stderr.contains("takes no writes: mount that read-write"), "{}", refused.stderr);
    }
}

/// The store is itself a mount of Varve whose server is killed. Every call to the store fails with an error, until the
/// server is back.
#[test]
fn store_recovers_after_transient_errors() {
    let beneath = Volume::format(&["--shards", "2", "--inline-limit", "1MiB"]);
    let beneath_server = beneath.serve(&[]);
    let store = beneath.mount(&["-o", "noembedded,deadline=1s"]);
    let site = Site::on(&store.directory);
    beneath_server.kill();
    let errno = fails("writing to a store that fails", || {
        let mut refused = Kept::default();
        fill_until_refused(&mut refused, &site.mount.directory)
    });
    assert!(matches!(errno, libc::EIO | libc::ETIMEDOUT | libc::EHOSTDOWN), "{}", io::Error::from_raw_os_error(errno));
    let beneath_server = beneath.serve(&[]);
    site.ends_well();
    store.unmount();
    beneath_server.stop();
    beneath.expect_sound();
}

#[test]
fn missing_server_is_waited_for_until_the_deadline() {
    let volume = Volume::format(&["--shards", "2"]);
    let absent =
        run(varve().arg("mount").arg(volume.store()).arg(volume.mount_point()).args(["-f", "-o", "noembedded"]), SHORT);
    says("varve mount", &absent, &["nobody serves", "varve s"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", DEADLINE_OPTION]);
    let mut kept = Kept::default();
    kept.write(&mount.directory, "before");
    // The server hangs.
    server.hang();
    let errno = fails("asking a server that hangs", || File::create(mount.directory.join("hung")));
    assert_eq!(errno, libc::ETIMEDOUT, "{}", io::Error::from_raw_os_error(errno));
    server.go_on();
    comes_back("writing", || kept.write_one(&mount.directory, "after", 5_000));
    // The server is dead.
    server.kill();
    let begun = Instant::now();
    let errno = fails("asking a server that is dead", || File::create(mount.directory.join("dead")));
    assert!(begun.elapsed() >= DEADLINE, "gave up after {:?}", begun.elapsed());
    assert!(matches!(errno, libc::EHOSTDOWN | libc::ETIMEDOUT), "{}", io::Error::from_raw_os_error(errno));
    let unmounted = run(varve().arg("umount").arg(&mount.directory), SHORT);
    says("umount", &unmounted, &["its server does not answer", "Bring the store back"]);
    let server = volume.serve(&[]);
    comes_back("writing", || kept.write_one(&mount.directory, "later", 5_000));
    kept.expect(&mount.directory);
    mount.unmount();
    server.stop();
    volume.expect_sound();
}
