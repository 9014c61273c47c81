//! Commands and the store beneath: `varve doctor`, the recorded primitive, temporary files.

use super::common::disk::Disk;
use super::common::{SHORT, Volume, run, scratch, varve};
use serde_json::Value;
use std::path::Path;

fn doctor(store: &Path) -> super::common::Outcome {
    run(varve().args(["--json", "doctor"]).arg(store), SHORT)
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("a directory").count()
}

/// A directory is checked before it is formatted: it stays as it was. A file is refused.
#[test]
fn doctor_checks_a_plain_directory() {
    let directory = scratch();
    std::fs::write(directory.path().join("mine"), "kept").expect("a file");
    let checked = doctor(directory.path()).succeeded("doctor").json();
    assert_eq!(checked["exclusive_create"], "link", "{checked}");
    assert_eq!(checked["exclusive_create_recorded"], Value::Null, "{checked}");
    assert!(checked["clock_ahead_s"].as_i64().is_some_and(|ahead| ahead.abs() <= 60), "{checked}");
    assert_eq!(checked["verdict"], "fit", "{checked}");
    assert_eq!(entries(directory.path()), 1);
    let text = run(varve().arg("doctor").arg(directory.path()), SHORT).succeeded("doctor").stdout;
    assert!(text.contains("link") && text.contains("ahead of the store"), "{text}");
    assert!(text.lines().last().is_some_and(|last| last.ends_with("fit for Varve")), "{text}");
    for wrong in ["mine", "none"] {
        let refused = doctor(&directory.path().join(wrong));
        assert!(refused.code() == Some(1) && refused.stderr.contains("cannot check"), "{}", refused.stderr);
    }
}

/// A full store and the root of a mounted volume are not fit, and the doctor says why.
#[test]
fn doctor_refuses_full_stores_and_mounts() {
    let refused = |store: &Path, why: &str| {
        let refused = doctor(store);
        assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
        assert!(refused.stderr.contains("is not fit for Varve") && refused.stderr.contains(why), "{}", refused.stderr);
    };
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&[]);
    refused(&mount.directory, "a volume is mounted there");
    mount.unmount();
    let Some(disk) = Disk::make("16M") else { return };
    let directory = disk.path().join("store");
    std::fs::create_dir(&directory).expect("a directory");
    doctor(&directory).succeeded("doctor");
    disk.fill();
    refused(&directory, "no space is left");
    assert_eq!(entries(&directory), 0);
}

/// The doctor records the proven primitive in the volume file and its copy unless the volume is served, and servers
/// work with the recorded one.
#[test]
fn doctor_records_the_primitive_of_a_volume() {
    let volume = Volume::format(&["--shards", "2"]);
    let store = volume.store();
    let files = [store.join("varve.toml"), store.join("shards/varve.toml")];
    let read = || files.each_ref().map(|file| std::fs::read_to_string(file).expect("it is text"));
    let formatted = read();
    for file in &files {
        std::fs::write(file, format!("{}exclusive_create = \"renameat2\"\n", formatted[0])).expect("it is written");
    }
    let server = volume.serve(&[]);
    let checked = doctor(&store).succeeded("doctor").json();
    assert_eq!(
        (&checked["exclusive_create"], &checked["exclusive_create_recorded"]),
        (&"link".into(), &"renameat2".into())
    );
    let text = run(varve().arg("doctor").arg(&store), SHORT).succeeded("doctor").stdout;
    assert!(text.contains("stop the server and run this again"), "{text}");
    server.stop();
    volume.expect_sound();
    assert_ne!(read(), formatted, "a server keeps what is recorded");
    let checked = doctor(&store).succeeded("doctor").json();
    assert_eq!(checked["exclusive_create_recorded"], "link");
    assert_eq!(read(), formatted);
    volume.serve(&[]).stop();
    volume.expect_sound();
}

/// The next server removes the temporary files of one that was killed.
#[test]
fn temporary_files_of_a_killed_server_are_removed() {
    let volume = Volume::format(&["--shards", "2"]);
    let store = volume.store();
    let server = volume.serve(&[]);
    let record: toml::Table =
        std::fs::read_to_string(store.join("servers/current.toml")).expect("a record").parse().expect("TOML");
    let writer = record["writer"].as_str().expect("16 digits").to_owned();
    server.kill();
    let places = ["", "servers", "shards", "shards/0000", "shards/0000/manifest", "shards/0000/log"];
    let left = places.map(|place| store.join(place).join(format!(".~tmp.{writer}.0000000000000001")));
    left.iter().for_each(|file| std::fs::write(file, "half").expect("a file"));
    volume.serve(&[]).stop();
    assert!(left.iter().all(|file| !file.exists()), "{left:?}");
    volume.expect_sound();
}
