//! The log: what it says at INFO, its forms, and its filter.

use super::common::{SHORT, Volume, run, until, varve};
use super::{read, text};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Promise: at INFO the log has a line for the start, each shard, each client that comes and goes, and the stop.
#[test]
fn info_lines_tell_of_starts_clients_and_stops() {
    let volume = Volume::format(&["--shards", "2"]);
    let (server_log, mount_log) = (volume.beside("server-own.log"), volume.beside("mount-own.log"));
    let server = volume.serve(&["--log-file", text(&server_log)]);
    let mount = volume.mount(&["-o", "noembedded", "--log-file", text(&mount_log)]);
    let client = format!("process {} of user {}", mount.pid(), rustix::process::geteuid().as_raw());
    until("the client is logged", SHORT, || read(&server_log).contains(&format!("client connected: {client}")));
    mount.unmount();
    until("its end is logged", SHORT, || read(&server_log).contains(&format!("client gone: {client}")));
    server.stop();
    let version = env!("CARGO_PKG_VERSION");
    for words in [
        format!("has started: varve {version}, process"),
        "2 shards, 2 workers, memory".to_owned(),
        "shard 0 is open at worker 0: epoch".to_owned(),
        "shard 1 is open at worker 1: epoch".to_owned(),
        "the server is stopping".to_owned(),
        "has stopped".to_owned(),
    ] {
        assert!(read(&server_log).contains(&words), "{words} is missing in:\n{}", read(&server_log));
    }
    for words in
        [format!("mounted {}", volume.store().display()), format!("unmounted {}", volume.mount_point().display())]
    {
        assert!(read(&mount_log).contains(&words), "{words} is missing in:\n{}", read(&mount_log));
    }
}

/// Promise: `--log-format json` writes one object a line.
#[test]
fn json_log_has_one_object_a_line() {
    let volume = Volume::format(&["--shards", "2"]);
    let log = volume.beside("server-own.log");
    let server = volume.serve(&["--log-file", text(&log), "--log-format", "json"]);
    server.stop();
    let lines = read(&log);
    assert!(lines.lines().count() > 3, "{lines}");
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(["time", "level", "target", "message"].iter().all(|key| line[key].is_string()), "{line}");
    }
}

/// Promise: in the journal each line has its priority and no time, and the default level is info.
#[test]
fn journal_gets_priorities() {
    let volume = Volume::format(&["--shards", "2"]);
    let path = volume.beside("journal");
    let journal = std::fs::File::create(&path).expect("a file");
    let found = journal.metadata().expect("its inode");
    let mut command = varve();
    command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    command.arg("serve").arg(volume.store()).arg("--unix-dir").arg(volume.beside("sockets"));
    let mut server = command.stdout(Stdio::null()).stderr(journal).spawn().expect("it starts");
    until("it has started", SHORT, || read(&path).contains("has started"));
    let stopped = Command::new("kill").arg(server.id().to_string()).status().expect("kill is everywhere");
    assert!(stopped.success() && server.wait().expect("its end").success());
    let lines = read(&path);
    let is_prefixed = |line: &str| line.starts_with("<6>varve_") || line.starts_with("<4>varve_");
    assert!(lines.lines().all(is_prefixed), "{lines}");
}

/// Promise: a misspelt level is a usage error that lists the levels.
#[test]
fn misspelt_level_is_refused() {
    let volume = Volume::format(&["--shards", "2"]);
    let refused = run(varve().args(["--log", "inof", "status"]).arg(volume.store()), SHORT);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr.contains("off, error, warn, info, debug or trace"), "{}", refused.stderr);
    let wrong_form = run(varve().args(["--log-format", "xml", "status"]).arg(volume.store()), SHORT);
    assert_eq!(wrong_form.code(), Some(2));
}
