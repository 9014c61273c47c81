//! A directory over several shards, one of which is damaged.

use super::common::{SHORT, Volume, run, until, varve};
use super::{DEADLINE_OPTION, expect_no_panic};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILES: usize = 150;

fn eio<T>(what: &str, result: io::Result<T>) {
    match result {
        Ok(_) => panic!("{what} should fail"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{what}: {error}"),
    }
}

/// Entries of each shard, once the directory has spread over all four.
fn spread(directory: &Path) -> BTreeMap<u64, usize> {
    let mut spread = BTreeMap::new();
    until("the directory is in all shards", Duration::from_secs(60), || {
        let info = run(varve().args(["--json", "info"]).arg(directory), SHORT).succeeded("info").json();
        let number = |part: &serde_json::Value, field: &str| part[field].as_u64().expect("a number");
        let parts = info["partitions"].as_array().expect("a directory has partitions");
        spread = parts.iter().map(|part| (number(part, "shard"), number(part, "entries") as usize)).collect();
        spread.len() == 4 && spread.values().sum::<usize>() == FILES
    });
    spread
}

/// The log of a shard that is the home neither of the root nor of the directory itself.
fn log_of(volume: &Volume, shard: u64) -> PathBuf {
    let directory = volume.store().join(format!("shards/{shard:04}/log"));
    let files = std::fs::read_dir(&directory).expect("a log").map(|entry| entry.expect("an entry").path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().expect("a file of the log")
}

fn names(directory: &Path) -> Vec<PathBuf> {
    (0..FILES).map(|number| directory.join(format!("f{number}"))).collect()
}

/// Promise: the names of the sound shards are present, and paths lead to them. Only operations that need the damaged
/// shard give EIO.
#[test]
fn intact_parts_of_a_damaged_directory_work() {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "3"]);
    let mount = volume.mount(&[]);
    let directory = mount.directory.join("split");
    std::fs::create_dir(&directory).expect("a directory");
    names(&directory).iter().for_each(|path| std::fs::write(path, b"content").expect("a file"));
    let spread = spread(&directory);
    let home = directory.metadata().expect("it is there").ino() >> 48;
    let shard = *spread.keys().find(|shard| **shard != home && **shard != 0).expect("a shard of files alone");
    let lost = spread[&shard];
    mount.unmount();
    let log = log_of(&volume, shard);
    let sound = std::fs::read(&log).expect("a log");
    let mut bytes = sound.clone();
    bytes[10] ^= 1;
    let mut sound_names = FILES - lost;
    for served in [false, true] {
        std::fs::write(&log, &bytes).expect("it can be damaged");
        let server = served.then(|| volume.serve(&[]));
        let mount = volume.mount(&["-o", DEADLINE_OPTION]);
        let found: Vec<_> = names(&directory).iter().map(std::fs::read).collect();
        let (whole, failed): (Vec<_>, Vec<_>) = found.into_iter().partition(Result::is_ok);
        assert_eq!((whole.len(), failed.len()), (FILES - lost, lost), "served: {served}");
        failed.into_iter().for_each(|failed| eio("what is in the damaged shard", failed));
        assert!(whole.into_iter().flatten().all(|bytes| bytes == b"content"));
        let shown = directory.metadata().expect("the directory is there");
        assert_eq!((shown.size(), shown.nlink()), (sound_names as u64, 1), "served: {served}: what can be counted");
        eio("a listing", std::fs::read_dir(&directory).and_then(|listing| listing.collect::<Result<Vec<_>, _>>()));
        eio("rmdir", std::fs::remove_dir(&directory));
        let moved = mount.directory.join("moved");
        std::fs::rename(&directory, &moved)
            .and_then(|()| std::fs::rename(&moved, &directory))
            .expect("its own name is sound");
        let made: Vec<_> =
            (0..20).map(|number| std::fs::write(directory.join(format!("n{served}{number}")), b"new")).collect();
        let (made, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        assert!(
            !made.is_empty() && !refused.is_empty(),
            "served: {served}: {} made, {} not",
            made.len(),
            refused.len()
        );
        sound_names += made.len();
        refused.into_iter().for_each(|refused| eio("a name of the damaged shard", refused));
        let log_text = server.as_ref().map_or_else(|| mount.log(), |server| server.log());
        expect_no_panic("the server", &log_text);
        // The mount of a server does not know which unsynced changes an earlier server left in the damaged shard.
        if served {
            drop(mount)
        } else {
            mount.unmount()
        }
        server.into_iter().for_each(|server| server.kill());
        std::fs::write(&log, &sound).expect("it can be restored");
    }
    let mount = volume.mount(&[]);
    assert!(names(&directory).iter().all(|path| std::fs::read(path).is_ok_and(|bytes| bytes == b"content")));
    assert_eq!(directory.metadata().expect("it is there").nlink(), 2);
    mount.unmount();
    volume.expect_sound();
}
