//! Directories as stat(2) shows them through a mount.

use super::common::{SHORT, Volume, run, until, varve};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SUBDIRECTORIES: u64 = 150;

/// The output of a stat in a separate process: entries, links, mtime and ctime.
fn shown(directory: &Path) -> String {
    run(Command::new("stat").args(["-c", "%s %h %.9Y %.9Z"]).arg(directory), SHORT).succeeded("stat").stdout
}

/// The attributes in a listing of the parent directory: links and entries, from readdir(3) with attributes.
fn listed(directory: &Path) -> (u64, u64) {
    let parent = directory.parent().expect("it is below the mount");
    let lines = run(Command::new("ls").arg("-l").arg(parent), SHORT).succeeded("ls").stdout;
    let line = lines.lines().find(|line| line.ends_with("split")).expect("it is listed");
    let fields: Vec<&str> = line.split_whitespace().collect();
    (fields[1].parse().expect("links"), fields[4].parse().expect("a size"))
}

/// A new mount shows the totals of a directory with many partitions in every stat, both beside a server and embedded.
#[test]
fn first_stat_shows_all_partitions_of_a_directory() {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "3"]);
    let (server, mount) = (volume.serve(&[]), volume.mount(&["-o", "noembedded"]));
    let directory = volume.mount_point().join("split");
    fs::create_dir(&directory).expect("a directory");
    for number in 0..SUBDIRECTORIES {
        fs::create_dir(directory.join(number.to_string())).expect("a directory in it");
    }
    until("the directory is in all shards", Duration::from_secs(60), || {
        let info = run(varve().args(["--json", "info"]).arg(&directory), SHORT).succeeded("info").json();
        info["partitions"].as_array().map(Vec::len) == Some(4)
    });
    let made = fs::metadata(&directory).expect("it is there");
    assert_eq!((made.size(), made.nlink()), (SUBDIRECTORIES, SUBDIRECTORIES + 2));
    let time = |seconds: i64, nanoseconds: i64| format!("{seconds}.{nanoseconds:09}");
    let (mtime, ctime) = (time(made.mtime(), made.mtime_nsec()), time(made.ctime(), made.ctime_nsec()));
    let whole = format!("{} {} {mtime} {ctime}\n", made.size(), made.nlink());
    mount.unmount();
    server.stop();

    let server = volume.serve(&[]);
    for _ in 0..3 {
        let mount = volume.mount(&["-o", "noembedded"]);
        for turn in 0..3 {
            assert_eq!(shown(&directory), whole, "stat {turn} beside a server");
        }
        mount.unmount();
    }
    let mount = volume.mount(&["-o", "noembedded"]);
    assert_eq!(listed(&directory), (SUBDIRECTORIES + 2, SUBDIRECTORIES), "in the list of its parent, asked for first");
    mount.unmount();
    server.stop();
    for _ in 0..3 {
        let mount = volume.mount(&[]);
        for turn in 0..3 {
            assert_eq!(shown(&directory), whole, "stat {turn} of a mount that serves itself");
        }
        mount.unmount();
    }
}
