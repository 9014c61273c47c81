//! `varve fsck --repair` on a volume that lost a whole shard and some large files: what is left is whole afterwards, also
//! when the repair is killed again and again on its way.

mod common;

use common::{Volume, must, run, soak, varve};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use varve_world::random::Seeded;

const FILES: usize = 400;

/// Files in directories that are spread over the shards; then shard 2 is emptied and some content is removed.
fn damaged() -> Volume {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "32", "--inline-limit", "1KiB"]);
    {
        let mount = volume.mount(&[]);
        let root = volume.mount_point();
        for directory in 0..8 {
            fs::create_dir(root.join(format!("d{directory}"))).expect("a directory");
        }
        for number in 0..FILES {
            let path = root.join(format!("d{}/f{number}", number % 8));
            fs::write(&path, vec![b'x'; if number % 10 == 0 { 3000 } else { 50 }]).expect("a file");
            if number % 9 == 0 {
                fs::hard_link(&path, root.join(format!("d{}/l{number}", (number + 3) % 8))).expect("a link");
            }
        }
        mount.unmount();
    }
    let shard = volume.store().join("shards/0002");
    fs::remove_dir_all(&shard).expect("a shard's tables");
    fs::create_dir_all(shard.join("log")).expect("as if it had never been opened");
    let mut removed = 0;
    for directory in fs::read_dir(volume.store().join("data")).expect("data") {
        for file in fs::read_dir(directory.expect("a directory").path()).expect("a directory") {
            if removed < 5 {
                fs::remove_file(file.expect("a file").path()).expect("removed");
                removed += 1;
            }
        }
    }
    volume
}

/// What there is in the end, in figures.
fn counts(store: &Path) -> Vec<(String, u64)> {
    let checked = must(varve().arg("fsck").arg("--json").arg(store)).json();
    assert_eq!(checked["findings"].as_array().map(Vec::len), Some(0), "{checked:#}");
    let of = ["directories", "entries", "inodes", "files_inline", "bytes_inline", "files_backing", "bytes_backing"];
    of.iter().map(|name| ((*name).to_owned(), checked["counts"][name].as_u64().expect("a number"))).collect()
}

#[test]
fn a_repair_that_is_killed_goes_on() {
    let volume = damaged();
    let found = run(varve().arg("fsck").arg(volume.store()), common::LONG);
    assert_eq!(found.code(), Some(4), "{}", found.stderr);
    let at_once = volume.beside("at-once");
    must(std::process::Command::new("cp").arg("-a").arg(volume.store()).arg(&at_once));
    let repaired = run(varve().arg("fsck").arg("--repair").arg(&at_once), common::LONG);
    assert_eq!(repaired.code(), Some(1), "{}\n{}", repaired.stdout, repaired.stderr);
    let expected = counts(&at_once);

    let mut random = Seeded::new(11);
    for round in 0..if soak() { 60 } else { 2 } {
        let store = volume.beside(&format!("killed{round}"));
        must(std::process::Command::new("cp").arg("-a").arg(volume.store()).arg(&store));
        for _ in 0..4 {
            let mut command = varve();
            command.arg("fsck").arg("--repair").arg(&store).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("the program starts");
            std::thread::sleep(Duration::from_millis(20 + random.below(1500) as u64));
            child.kill().expect("it is a child");
            child.wait().expect("it is a child");
        }
        let repaired = run(varve().arg("fsck").arg("--repair").arg(&store), common::LONG);
        assert!(matches!(repaired.code(), Some(0 | 1)), "{}\n{}", repaired.stdout, repaired.stderr);
        assert_eq!(counts(&store), expected, "round {round}");
        fs::remove_dir_all(&store).expect("removed");
    }
}
