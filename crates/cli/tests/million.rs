//! One directory with very many files: it is spread over all shards, listed as a stream, and complete after kill -9.
//!
//! 60,000 files in CI, a million with `VARVE_SOAK=1`.

mod common;

use common::{Mount, SHORT, Server, Volume, expect_bounded, must, resident_bytes, run, soak, varve};
use std::collections::HashSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, Library, block_on};
use varve_env::random::Seeded;
use varve_env::volume_dir::VolumeDir;
use varve_types::{Credentials, Mode};

const CLIENTS: usize = 4;
const SHARDS: u64 = 32;
/// The first names must arrive while the rest is still being read.
const FIRST_NAMES: Duration = Duration::from_secs(3);
/// Maximum growth of the mount's memory by a listing of any length.
const LISTING_BYTES_MAX: u64 = 96 << 20;

fn files() -> usize {
    if soak() { 1_000_000 } else { 60_000 }
}

/// With this threshold, every shard has a part of the directory long before the last file.
fn split_threshold() -> &'static str {
    if soak() { "250" } else { "60" }
}

fn name(file: usize) -> String {
    format!("file-{file:07}")
}

/// A client of the volume's server.
fn connect(volume: &Volume) -> Library {
    let file_system =
        FileSystem::connect(ClientConfig::new(VolumeDir::new(volume.store()))).expect("the server answers");
    Library::new(file_system, caller())
}

fn caller() -> Credentials {
    Credentials::user(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw(), Vec::new())
}

#[test]
fn million_file_directory_splits_lists_and_survives_restart() {
    let shards = SHARDS.to_string();
    let volume = Volume::format(&["--shards", &shards, "--split-threshold", split_threshold()]);
    let server = volume.serve(&[]);
    let library = connect(&volume);
    block_on(library.make_directory(b"/many", Mode(0o755))).expect("a directory can be made");
    let begun = Instant::now();
    create_all(library.file_system());
    let took = begun.elapsed();
    println!("{} files created in {took:.1?}: {:.0} a second", files(), files() as f64 / took.as_secs_f64());
    expect_all(&library);
    block_on(library.file_system().shutdown()).expect("a session ends");
    drop(library);

    let mount = volume.mount(&[]);
    expect_spread(&mount);
    expect_stream(&mount);
    mount.unmount();

    server.kill();
    // The server is killed again while it opens its shards: first at the earliest observable time, then later.
    restart(&volume, Until::FirstAnswer).kill();
    restart(&volume, Until::AllOpen).kill();
    let server = restart(&volume, Until::AllOpen);
    let library = connect(&volume);
    expect_all(&library);
    block_on(library.file_system().shutdown()).expect("a session ends");
    expect_bounded("the server of very many files", server.pid());
    server.stop();
    let checked = must(varve().args(["--json", "fsck"]).arg(volume.store())).bounded("varve fsck").json();
    assert_eq!(checked["sound"], true, "{checked:#}");
    let (dump, loaded) = (volume.beside("dump"), volume.beside("loaded"));
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump)).bounded("varve dump");
    must(varve().arg("load").arg(&dump).arg(&loaded)).bounded("varve load");
    let again = must(varve().args(["--json", "fsck"]).arg(&loaded)).json();
    assert_eq!(again["counts"]["entries"], checked["counts"]["entries"]);
}

#[derive(Clone, Copy, PartialEq)]
enum Until {
    FirstAnswer,
    AllOpen,
}

/// Starts a server after a kill, and prints how long clients wait that are there at once: for a random file, for the
/// first names of the listing, and for the last shard. Most of the time is the replay of the logs. The unoptimised
/// program of the suites takes several times longer for it than a release build.
fn restart(volume: &Volume, until: Until) -> Server {
    let begun = Instant::now();
    let server = volume.serve(&[]);
    let serving = begun.elapsed();
    let library = connect(volume);
    let path = format!("/many/{}", name(Seeded::new(begun.elapsed().as_nanos() as u64).below(files())));
    block_on(library.stat(path.as_bytes())).unwrap_or_else(|error| panic!("{path}: {error}"));
    let first = begun.elapsed();
    print!("again after kill -9: announced {serving:.2?}, {path} {first:.2?}");
    if until == Until::AllOpen {
        let mut names = 0;
        let listed = block_on(library.list(b"/many", &mut |_| {
            names += 1;
            false
        }));
        listed.expect("the directory can be listed");
        let listed = begun.elapsed();
        let mut status = varve();
        status.arg("status").arg(volume.store());
        run(&mut status, SHORT).succeeded("varve status");
        print!(", first names {listed:.2?}, all shards {:.2?}", begun.elapsed());
        assert_eq!(names, 1);
    }
    println!(" after the start");
    server
}

fn create_all(file_system: &Arc<FileSystem>) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let library = Library::new(Arc::clone(file_system), caller());
            scope.spawn(move || {
                for file in (client..files()).step_by(CLIENTS) {
                    let path = format!("/many/{}", name(file));
                    block_on(library.create(path.as_bytes(), Mode(0o644)))
                        .unwrap_or_else(|error| panic!("{path}: {error}"));
                }
            });
        }
    });
}

/// Every file is listed once, and every file can be looked up.
fn expect_all(library: &Library) {
    let mut found = HashSet::new();
    let mut twice = Vec::new();
    block_on(library.list(b"/many", &mut |entry| {
        if !found.insert(entry.name.to_vec()) {
            twice.push(String::from_utf8_lossy(entry.name).into_owned());
        }
        true
    }))
    .expect("the directory can be listed");
    assert!(twice.is_empty(), "{} names are listed twice: {:?}", twice.len(), &twice[..twice.len().min(5)]);
    let lost: Vec<String> = (0..files()).map(name).filter(|name| !found.contains(name.as_bytes())).collect();
    assert!(lost.is_empty(), "{} names are lost: {:?}", lost.len(), &lost[..lost.len().min(5)]);
    assert_eq!(found.len(), files(), "names that nobody made");
    let mut random = Seeded::new(7);
    for _ in 0..2_000 {
        let path = format!("/many/{}", name(random.below(files())));
        block_on(library.stat(path.as_bytes())).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Checks that `varve info` names a partition in every shard.
fn expect_spread(mount: &Mount) {
    let mut info = varve();
    info.args(["--json", "info"]).arg(mount.directory.join("many"));
    let info = run(&mut info, SHORT).succeeded("varve info").json();
    let partitions = info["partitions"].as_array().unwrap_or_else(|| panic!("no partitions in {info}"));
    assert_eq!(partitions.len() as u64, SHARDS, "{info}");
}

/// Checks that `ls -f` shows its first names at once and all of them in the end, and that the mount's memory does not
/// grow with their number.
fn expect_stream(mount: &Mount) {
    let before = resident_bytes(mount.pid());
    let begun = Instant::now();
    let mut ls = Command::new("ls");
    ls.arg("-f").arg(mount.directory.join("many")).stdout(Stdio::piped());
    let mut child = ls.spawn().expect("ls is everywhere");
    let mut stdout = child.stdout.take().expect("piped");
    let mut text = vec![0; 4096];
    let first = stdout.read(&mut text).expect("ls writes");
    let waited = begun.elapsed();
    text.truncate(first);
    let mut peak = before;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match stdout.read(&mut buffer).expect("ls writes") {
            0 => break,
            more => text.extend_from_slice(&buffer[..more]),
        }
        peak = peak.max(resident_bytes(mount.pid()));
    }
    assert!(child.wait().expect("ls ends").success());
    let names = text.split(|byte| *byte == b'\n').filter(|name| name.starts_with(b"file-")).count();
    println!(
        "ls -f: first names after {waited:.2?}, all {names} after {:.2?}, the mount grew by {} KiB",
        begun.elapsed(),
        (peak - before) >> 10
    );
    assert_eq!(names, files());
    assert!(waited < FIRST_NAMES, "the first names came after {waited:?}");
    assert!(peak - before < LISTING_BYTES_MAX, "the mount grew by {} bytes while it listed", peak - before);
}
