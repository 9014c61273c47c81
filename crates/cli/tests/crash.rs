//! Acknowledged changes survive the death of the processes that acknowledged them.
//!
//! Writers work through the mount and through the library. Outside the volume they keep a manifest of the changes
//! acknowledged to them. The server, the mount or both are killed with -9 at a random time during the work and started
//! again. Then every name, content, permission, time, attribute and link must match the manifest, and `fsck` must find
//! nothing. An operation that was in progress when its process died may have happened or not, but nothing in between.
//!
//! Forty kills in CI; five hundred with `VARVE_SOAK=1`. `VARVE_SEED` selects other runs.

#[path = "crash/check.rs"]
mod check;
mod common;
#[path = "crash/frontend.rs"]
mod frontend;
#[path = "crash/histories.rs"]
mod histories;
#[path = "crash/manifest.rs"]
mod manifest;
#[path = "crash/moves.rs"]
mod moves;
#[path = "crash/servers.rs"]
mod servers;
#[path = "crash/surroundings.rs"]
mod surroundings;

use check::ManifestWriter;
use common::{Mount, SHORT, Server, Volume, on_plain_directory, run, soak, varve};
use frontend::{Frontend, LibraryFrontend, MountedFrontend};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_client::Library;
use varve_env::random::Seeded;
use varve_env::volume_dir::VolumeDir;

/// Number of writers on the mount, and of writers on the library.
const WRITERS: u64 = 3;
/// Number of kills between two checks with fsck. For a check, the volume must be taken out of service, and an unmount
/// waits until a server that was just started knows all its clients.
const DEATHS_A_CHECK: u64 = 7;

/// Kills of a server with a separate mount, and of embedded mounts.
fn deaths() -> (u64, u64) {
    if soak() { (350, 150) } else { (28, 12) }
}

fn seed() -> u64 {
    std::env::var("VARVE_SEED").map_or(1, |seed| seed.parse().expect("VARVE_SEED is a number"))
}

fn on_mount(root: &Path) -> Vec<ManifestWriter> {
    let frontend = |writer| Box::new(MountedFrontend::new(root.join(format!("mount-{writer}"))));
    (0..WRITERS)
        .map(|writer| ManifestWriter::new(format!("mount-{writer}"), frontend(writer), seed() + writer))
        .collect()
}

fn in_library(volume: &Volume) -> Vec<ManifestWriter> {
    let frontend = |writer| -> Box<dyn Frontend> {
        let library = Library::open_volume(VolumeDir::new(volume.store())).expect("the server answers");
        Box::new(LibraryFrontend::new(library, &format!("/library-{writer}")))
    };
    let writer = |writer| ManifestWriter::new(format!("library-{writer}"), frontend(writer), seed() + 100 + writer);
    (0..WRITERS).map(writer).collect()
}

/// Runs the writers, and runs `meanwhile` while they work.
fn work<T>(writers: &mut [ManifestWriter], meanwhile: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Stops the writers also if `meanwhile` panics. Otherwise the suite would wait for them for ever.
        let _at_the_end = StopOnDrop(&stop);
        for writer in writers.iter_mut() {
            let stop = &stop;
            scope.spawn(move || writer.work(stop));
        }
        meanwhile()
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn a_while(random: &mut Seeded) {
    std::thread::sleep(Duration::from_millis(20 + random.below(400) as u64));
}

/// Small limits, so that splits and promotions happen all the time.
const FORMAT: &[&str] = &["--shards", "8", "--split-threshold", "2", "--inline-limit", "4KiB"];

fn volume() -> Volume {
    Volume::format(FORMAT)
}

/// The process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Server,
    Mount,
    /// The server, and shortly after it the mount that waits for it.
    ServerThenMount,
    MountThenServer,
}

impl Victim {
    const ALL: [Victim; 4] = [Victim::Server, Victim::Mount, Victim::ServerThenMount, Victim::MountThenServer];
}

/// A volume with a server and a separate mount.
struct Site {
    volume: Volume,
    server: Option<Server>,
    mount: Option<Mount>,
}

impl Site {
    fn start(volume: Volume) -> Site {
        let server = Some(volume.serve(&[]));
        let mount = Some(volume.mount(&[]));
        Site { volume, server, mount }
    }

    fn kill_server(&mut self) {
        self.server.take().expect("a server runs").kill();
    }

    fn kill_mount(&mut self) {
        self.mount.as_mut().expect("a mount is there").kill_process();
    }

    /// Kills, and restarts the server. A dead mount stays until its writers have noticed its death.
    fn suffer(&mut self, victim: Victim, random: &mut Seeded) {
        a_while(random);
        match victim {
            Victim::Server => self.kill_server(),
            Victim::Mount => self.kill_mount(),
            Victim::ServerThenMount => {
                self.kill_server();
                std::thread::sleep(Duration::from_millis(random.below(30) as u64));
                self.kill_mount();
            }
            Victim::MountThenServer => {
                self.kill_mount();
                std::thread::sleep(Duration::from_millis(random.below(30) as u64));
                self.kill_server();
            }
        }
        if self.server.is_none() {
            self.server = Some(self.volume.serve(&[]));
        }
        a_while(random);
    }

    fn mount_again(&mut self) {
        self.mount.take().expect("a dead mount is there").bury();
        self.mount = Some(self.volume.mount(&[]));
    }

    fn check(&mut self) {
        self.mount.take().expect("a mount is there").unmount();
        self.server.take().expect("a server runs").stop();
        self.volume.expect_sound();
    }

    fn resume(&mut self) {
        self.server = Some(self.volume.serve(&[]));
        self.mount = Some(self.volume.mount(&[]));
    }
}

/// The server is killed and restarted under a mount and a library that stay: none of their calls fails. Or the mount is
/// killed under a server that stays. Or both are killed. No acknowledged change is lost.
#[test]
fn acknowledged_survives_kill_of_the_server() {
    let (deaths, _) = deaths();
    let mut random = Seeded::new(seed());
    let mut site = Site::start(volume());
    let root = site.volume.mount_point();
    let mut writers = on_mount(&root);
    writers.extend(in_library(&site.volume));
    for death in 0..deaths {
        let victim = Victim::ALL[random.below(Victim::ALL.len())];
        work(&mut writers, || site.suffer(victim, &mut random));
        if victim != Victim::Server {
            site.mount_again();
        }
        for writer in &mut writers {
            let may_fail = victim != Victim::Server && writer.name.starts_with("mount");
            assert!(may_fail || writer.unanswered.is_none(), "{victim:?} died: {writer:?} though its server came back");
            writer.check(&format!("death {death}, {victim:?}"));
        }
        if death % DEATHS_A_CHECK == DEATHS_A_CHECK - 1 {
            site.check();
            site.resume();
        }
    }
    expect_work(&writers, 10 * deaths);
    let split = writers.iter().filter(|writer| partitions(&root.join(&writer.name)) > 1).count();
    assert!(split > 0, "no writer's directory was split: the suite does not prove that splits survive");
    site.check();
}

/// The number of partitions of the directory.
fn partitions(directory: &Path) -> usize {
    let info = run(varve().args(["--json", "info"]).arg(directory), SHORT).succeeded("varve info").json();
    info["partitions"].as_array().map_or(0, Vec::len)
}

/// The embedded mount is killed: its acknowledged changes are present when the volume is mounted again.
#[test]
fn acknowledged_survives_kill_of_the_mount() {
    let (_, deaths) = deaths();
    let mut random = Seeded::new(seed() + 1);
    let volume = volume();
    let mut mount = volume.mount(&[]);
    let mut writers = on_mount(&mount.directory);
    for death in 0..deaths {
        work(&mut writers, || {
            a_while(&mut random);
            mount.kill_process();
        });
        mount.bury();
        mount = volume.mount(&[]);
        writers.iter_mut().for_each(|writer| writer.check(&format!("death {death}")));
        // Changes that the crash interrupted are finished by now, or at the latest when the volume is closed.
        if death % DEATHS_A_CHECK == DEATHS_A_CHECK - 1 {
            mount.unmount();
            volume.expect_sound();
            mount = volume.mount(&[]);
        }
    }
    expect_work(&writers, 10 * deaths);
    mount.unmount();
    volume.expect_sound();
}

/// A mount that is killed as soon as the kernel knows it, before it reports that it is ready, dies. It waits for no
/// reply that only the mount itself could give.
#[test]
fn killed_starting_mount_leaves_a_usable_volume() {
    if on_plain_directory() {
        return;
    }
    let volume = volume();
    let _server = volume.serve(&[]);
    for _ in 0..if soak() { 300 } else { 10 } {
        let mut mount = volume.mount_unasked(&[]);
        mount.kill_process();
        mount.bury();
    }
}

fn expect_work(writers: &[ManifestWriter], least: u64) {
    let acknowledged: u64 = writers.iter().map(|writer| writer.acknowledged).sum();
    let files: usize = writers.iter().map(ManifestWriter::files).sum();
    println!("{acknowledged} operations acknowledged, {files} files in the end");
    assert!(acknowledged > least, "only {acknowledged} operations: the suite proves nothing");
}

/// Checks the suite itself: on a plain directory, its manifest finds no difference.
#[test]
fn manifest_matches_a_plain_directory() {
    if !on_plain_directory() {
        // On a mount the other tests cover this.
        let scratch = common::scratch();
        let mut writers = on_mount(scratch.path());
        work(&mut writers, || std::thread::sleep(Duration::from_millis(300)));
        writers.iter_mut().for_each(|writer| writer.check("nothing died"));
        expect_work(&writers, 100);
    }
}
