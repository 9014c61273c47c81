//! Keys of hosts and a server's listeners, from the command line.

use super::common::{SHORT, Volume, run, until, varve};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

fn key(words: &[&str], store: &Path, rest: &[&str]) -> super::common::Outcome {
    run(varve().args(["--json", "key"]).args(words).arg(store).args(rest), SHORT)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Promise: `varve key add` writes a file that only its owner can read. A mount with this file works by TCP. Once the
/// key is revoked, the mount's calls fail, and a new client gets an error with the reason.
#[test]
fn a_host_key_is_added_used_and_revoked() {
    let volume = Volume::format(&["--shards", "2"]);
    let store = volume.store();
    let file = volume.beside("host.key");
    let path = file.to_str().expect("plain");
    let added = json(&key(&["add"], &store, &["host-1", "--out", path]).succeeded("key add").stdout);
    assert_eq!((&added["name"], &added["file"]), (&Value::from("host-1"), &Value::from(path)));
    assert_eq!(std::fs::metadata(&file).expect("the key's file").permissions().mode() & 0o7777, 0o600);
    let again = key(&["add"], &store, &["host-2", "--out", path]);
    assert!(again.code() == Some(1) && again.stderr.contains("is there already"), "{}", again.stderr);
    let same = key(&["add"], &store, &["host-1", "--out", "/nonexistent/key"]);
    assert!(same.code() == Some(1) && same.stderr.contains("there is a key host-1"), "{}", same.stderr);
    let nowhere = key(&["add"], &store, &["host-2", "--out", "/nonexistent/key"]);
    assert_eq!(nowhere.code(), Some(1));
    let listed = json(&key(&["list"], &store, &[]).succeeded("key list").stdout);
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(!listed.to_string().contains("secret"));

    let server = volume.serve(&["--listen", "127.0.0.1:0"]);
    let status = || run(varve().args(["--json", "status", "--tcp", "--key-file", path]).arg(&store), SHORT);
    assert_eq!(status().code(), Some(0), "{}", status().stdout);
    let mount = volume.mount(&["--tcp", "--key-file", path, "--deadline", "2s"]);
    std::fs::write(mount.directory.join("file"), vec![7; 300_000]).expect("it is served");
    assert_eq!(std::fs::read(mount.directory.join("file")).expect("it is there"), vec![7; 300_000]);
    std::fs::create_dir(mount.directory.join("directory")).expect("it is served");

    key(&["revoke"], &store, &["host-1"]).succeeded("key revoke");
    let refused = status();
    assert!(refused.code() == Some(3) && refused.stdout.contains("was it revoked"), "{}", refused.stdout);
    until("the mount has lost its server", Duration::from_secs(60), || {
        std::fs::create_dir(mount.directory.join("another"))
            .and_then(|()| std::fs::remove_dir(mount.directory.join("another")))
            .is_err()
    });
    let own = run(varve().args(["--json", "status"]).arg(&store), SHORT);
    assert_eq!(own.code(), Some(0), "the volume's own key is as before: {}", own.stdout);
    run(varve().args(["umount", "--force"]).arg(&mount.directory), SHORT);
    server.stop();
}

/// Promise: TCP is off by default, and `status` shows the protection of each listener.
#[test]
fn tcp_is_off_unless_asked_for() {
    let volume = Volume::format(&["--shards", "1"]);
    let status = |flags: &[&str]| run(varve().arg("status").args(flags).arg(volume.store()), SHORT);
    let server = volume.serve(&[]);
    let shown = json(&status(&["--json"]).stdout);
    let worker = &shown["server"]["workers"][0];
    assert_eq!(worker["tcp"], Value::Null);
    assert_eq!(worker["listeners"][0]["transport"], "unix");
    assert_eq!(worker["listeners"][0]["protection"], "peer's user and key checked");
    let by_tcp = status(&["--tcp"]);
    assert!(by_tcp.code() == Some(3) && by_tcp.stdout.contains("--listen HOST:PORT"), "{}", by_tcp.stdout);
    server.stop();
    let server = volume.serve(&["--listen", "127.0.0.1:0"]);
    let shown = status(&[]).stdout;
    assert!(shown.contains("(key checked, encrypted)") && shown.contains("(peer's user and key checked)"), "{shown}");
    server.stop();
}
