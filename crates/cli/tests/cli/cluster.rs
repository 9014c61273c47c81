//! `varve cluster`: shards and their workers.

use super::common::{Outcome, SHORT, Volume, run, varve};
use serde_json::Value;
use std::path::Path;

fn cluster(words: &[&str], store: &Path, rest: &[&str]) -> Outcome {
    run(varve().args(words).arg(store).args(rest), SHORT)
}

fn status(store: &Path) -> Vec<Value> {
    let status = cluster(&["--json", "cluster", "status"], store, &[]).succeeded("varve cluster status").json();
    status["shards"].as_array().expect("a list").clone()
}

fn refused(outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.code(), Some(1), "{}", outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "{word:?} is not in {}", outcome.stderr);
    }
}

/// A shard moves from worker to worker while a mount uses the volume, and status shows where each is.
#[test]
fn cluster_moves_a_shard_of_a_served_volume() {
    let volume = Volume::format(&["--shards", "4"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    for name in ["a", "b"] {
        std::fs::create_dir(mount.directory.join(name)).expect("a directory");
    }
    let before = status(&volume.store());
    let workers: Vec<_> = before.iter().map(|shard| shard["worker"].as_u64()).collect();
    assert_eq!(workers, [Some(0), Some(1), Some(0), Some(1)]);
    assert!(before.iter().all(|shard| shard["state"] == "open" && shard["problem"].is_null()), "{before:?}");
    assert!(before[0]["names_loaded"].as_u64() >= Some(2), "{before:?}");

    let moved = cluster(&["cluster", "move"], &mount.directory, &["0", "1"]).succeeded("varve cluster move");
    assert!(moved.stdout.starts_with("moved shard 0 from worker 0 to worker 1 in 0."), "{}", moved.stdout);
    let again = cluster(&["cluster", "move"], &volume.store(), &["0", "1"]).succeeded("varve cluster move");
    assert_eq!(again.stdout, "shard 0 is at worker 1 already\n");
    assert_eq!(status(&volume.store())[0]["worker"], 1);
    std::fs::create_dir(mount.directory.join("c")).expect("the shard serves");
    let shown = cluster(&["cluster", "status"], &mount.directory, &[]).succeeded("varve cluster status").stdout;
    assert!(shown.lines().nth(3).is_some_and(|line| line.contains("0      1        open")), "{shown}");

    mount.unmount();
    server.stop();
    volume.expect_sound();
}

/// A move that cannot be made says why, and changes nothing.
#[test]
fn cluster_refuses_impossible_moves() {
    let volume = Volume::format(&["--shards", "4"]);
    let store = volume.store();
    refused(&cluster(&["cluster", "move"], &store, &["0", "1"]), &["cannot move shard 0", "nobody serves"]);
    let server = volume.serve(&[]);
    let moves = |shard, worker| cluster(&["cluster", "move"], &store, &[shard, worker]);
    let no_worker = moves("0", "2");
    refused(&no_worker, &["cannot move shard 0", "there is no worker 2: the server has workers 0 to 1"]);
    assert!(!no_worker.stderr.contains("EBUSY"), "{}", no_worker.stderr);
    refused(&moves("4", "0"), &["there is no shard 4: the volume has 4"]);
    let key = volume.beside("host.key");
    run(varve().args(["key", "add"]).arg(&store).args(["host", "--out"]).arg(&key), SHORT).succeeded("varve key add");
    let by_host = moves("0", "1").code();
    assert_eq!(by_host, Some(0), "with the volume's key");
    let flag = key.to_str().expect("temporary directories have plain names");
    refused(&cluster(&["cluster", "move", "--key-file", flag], &store, &["0", "0"]), &["only the volume's own key"]);
    assert_eq!(status(&store)[0]["worker"], 1);
    server.stop();
}

/// The server inside a mount has workers too: the commands reach it by the mount's sockets.
#[test]
fn cluster_moves_a_shard_of_an_embedded_mount() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = volume.mount(&["-o", "workers=2"]);
    std::fs::write(mount.directory.join("file"), "content").expect("a file");
    let moved = cluster(&["--json", "cluster", "move"], &mount.directory, &["0", "1"]).succeeded("varve cluster move");
    assert_eq!((&moved.json()["from"], &moved.json()["to"]), (&Value::from(0), &Value::from(1)));
    assert_eq!(std::fs::read_to_string(mount.directory.join("file")).expect("it is there"), "content");
    std::fs::rename(mount.directory.join("file"), mount.directory.join("renamed")).expect("the shard serves");
    assert_eq!(status(&volume.store())[0]["worker"], 1);
    mount.unmount();
    volume.expect_sound();
}
