//! Files of the servers that somebody removed or copied.

use super::common::{SHORT, run, until, varve};
use super::{SHARDS, TAKEOVER, await_open, await_shares, map, number_of, refused, volume};
use std::path::Path;
use std::process::Command;
use varve_env::volume_dir::VolumeDir;

/// Promise: servers whose registry has lost its maps end with an error that says so, and others start anew.
#[test]
fn servers_end_when_the_maps_are_lost() {
    let volume = volume();
    let mut one = volume.join("one.log", &[]);
    let mut other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    std::fs::remove_dir_all(volume.store().join("cluster/map")).expect("the maps");
    for server in [&mut one, &mut other] {
        assert_eq!(server.expect_failure(), 1, "{}", server.log());
        let log = server.log();
        assert!(log.contains("has lost the cluster's map") && log.contains("stop all servers"), "{log}");
    }
    let third = volume.join("third.log", &[]);
    await_shares(&volume, &[(third.pid(), SHARDS)]);
    third.stop();
    volume.expect_sound();
}

/// Promise: the record of a server that somebody removed is published again.
#[test]
fn removed_record_comes_back() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let record = volume.store().join(format!("servers/{}.toml", number_of(&volume, one.pid())));
    let written = std::fs::read(&record).expect("a record");
    std::fs::remove_file(&record).expect("it is there");
    until("the record is there again", TAKEOVER, || std::fs::read(&record).is_ok_and(|again| again == written));
    one.stop();
    assert!(!record.exists());
    volume.expect_sound();
}

/// Promise: commands work in a copy of a store while servers serve the original, and leave the original alone.
#[test]
fn copy_of_a_served_store_is_checked_and_dumped() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS / 2), (other.pid(), SHARDS / 2)]);
    await_open(&volume);
    let copy = volume.beside("copy");
    copy_served(&volume.store(), &copy);
    let version = map(&volume).version;
    run(varve().arg("fsck").arg(&copy), SHORT).succeeded("varve fsck of the copy");
    run(varve().arg("dump").arg(&copy).arg("-o").arg(volume.beside("dump")), SHORT).succeeded("varve dump of the copy");
    run(varve().arg("fsck").arg("--repair").arg(&copy), SHORT).succeeded("varve fsck --repair of the copy");
    refused(&run(varve().arg("fsck").arg(volume.store()), SHORT), &["is in use by"]);
    assert_eq!((map(&volume).version, map(&volume).members.len()), (version, 2));
    assert_eq!(VolumeDir::new(&copy).living_joined().len(), 2, "the records are those of the original");
    one.stop();
    other.stop();
    volume.expect_sound();
}

/// Copies a store while servers renew in it: a renewal that they remove meanwhile makes `cp` fail.
fn copy_served(store: &Path, copy: &Path) {
    until("cp copies all files", TAKEOVER, || {
        let copied = Command::new("cp").arg("-a").arg(store).arg(copy).status().expect("cp starts").success();
        if !copied {
            std::fs::remove_dir_all(copy).expect("a part of the copy");
        }
        copied
    });
}

/// Promise: members that died are not shown as active beside a server that is alone.
#[test]
fn dead_members_are_not_shown_beside_a_lone_server() {
    let volume = volume();
    let one = volume.join("one.log", &[]);
    await_shares(&volume, &[(one.pid(), SHARDS)]);
    one.kill();
    let alone = volume.serve(&[]);
    let status = run(varve().args(["--json", "cluster", "status"]).arg(volume.store()), SHORT);
    let status = status.succeeded("varve cluster status").json();
    assert_eq!((&status["servers"], &status["ack"]), (&serde_json::json!([]), &"appended".into()));
    alone.stop();
    volume.expect_sound();
}
