//! A volume of another format version is opened, or refused with advice; a refused one stays unchanged.

mod common;

use common::{SHORT, Volume, must, run, varve};
use std::fs;
use std::process::Command;

/// The behaviour of every command that opens a volume, with a newer one.
#[test]
fn a_newer_volume_is_refused_with_advice() {
    let volume = Volume::format(&["--shards", "2"]);
    let file = volume.store().join("varve.toml");
    let text = fs::read_to_string(&file).expect("the volume file");
    // A newer format may have keys that this program does not know.
    let newer = text.replace("format_version = 4", "format_version = 5\nlater = true");
    assert_ne!(text, newer);
    fs::write(&file, &newer).expect("the volume file can be written");
    let store = volume.store();
    let commands: [&[&str]; 5] =
        [&["fsck"], &["fsck", "--repair"], &["dump", "-o", "/dev/null"], &["serve"], &["status"]];
    for words in commands {
        let refused = run(varve().args(words).arg(&store), SHORT);
        assert!(!refused.status.success(), "{words:?}");
        let printed = &refused.stderr;
        assert!(printed.contains("format version 5") && printed.contains("use a newer varve"), "{words:?}: {printed}");
    }
    let mount = run(varve().arg("mount").arg(&store).arg(volume.mount_point()).arg("-f"), SHORT);
    assert!(!mount.status.success() && mount.stderr.contains("use a newer varve"), "{}", mount.stderr);
    assert_eq!(fs::read_to_string(&file).expect("the volume file"), newer);
}

/// A volume made by an earlier build (`volumes/1.tar.gz`: one shard, a directory with a small, a large and a linked
/// file, left by kill -9, so that its log is part of it) is sound, can be served, and has its content.
#[test]
fn a_volume_of_version_1_opens() {
    let volume = Volume::format(&[]);
    let store = volume.store();
    fs::remove_dir_all(&store).expect("the new volume goes");
    fs::create_dir(&store).expect("an empty directory");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/volumes/1.tar.gz");
    must(Command::new("tar").arg("-xzf").arg(golden).arg("-C").arg(&store).arg("--no-same-owner"));
    volume.expect_sound();
    let mount = volume.mount(&[]);
    let root = volume.mount_point();
    assert_eq!(fs::read_to_string(root.join("directory/small")).expect("a file"), "small");
    assert_eq!(fs::read_to_string(root.join("directory/linked")).expect("a file"), "small");
    assert_eq!(fs::read(root.join("large")).expect("a file"), vec![7; 10_000]);
    fs::write(root.join("new"), "new").expect("it can be written to");
    mount.unmount();
    volume.expect_sound();
    let raised = fs::read_to_string(store.join("varve.toml")).expect("the volume file");
    assert!(raised.contains("format_version = 4"), "older programs must refuse what a newer one has written: {raised}");
}
