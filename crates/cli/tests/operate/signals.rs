//! Signals that logrotate and operators send, and the notifications of a service manager.

use super::common::process::{Launcher, Process, is_running};
use super::common::{SHORT, Volume, must, run, scratch, until, varve};
use super::{read, text};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Signals that a service must survive.
const HARMLESS: [&str; 5] = ["HUP", "USR1", "USR2", "PIPE", "ALRM"];

fn send(signal: &str, pid: u32) {
    must(Command::new("kill").args(["-s", signal, &pid.to_string()]));
}

/// Sends each harmless signal, and checks that the log is in a new file after it was renamed.
fn expect_survival(pid: u32, log: &Path) {
    until("the log has its first line", SHORT, || !read(log).is_empty());
    let old = log.with_extension("old");
    fs::rename(log, &old).expect("a log can be renamed");
    for signal in HARMLESS {
        send(signal, pid);
    }
    until("the log is opened anew", SHORT, || read(log).contains("SIGHUP: log "));
    until("the last signal was received", SHORT, || {
        read(log).contains("SIGALRM has no effect") || read(&old).contains("SIGALRM")
    });
    assert!(is_running(pid), "{}{}", read(&old), read(log));
}

/// Promise: SIGHUP opens the log of a server and of a mount anew, and no signal of logrotate or an operator ends them.
#[test]
fn signals_renew_logs_and_end_nothing() {
    let volume = Volume::format(&["--shards", "2"]);
    let (server_log, mount_log) = (volume.beside("server-own.log"), volume.beside("mount-own.log"));
    let server = volume.serve(&["--log-file", text(&server_log)]);
    let mount = volume.mount(&["-o", "noembedded", "--log-file", text(&mount_log)]);
    expect_survival(server.pid(), &server_log);
    expect_survival(mount.pid(), &mount_log);
    fs::write(mount.directory.join("file"), "still served").expect("the mount works");
    mount.unmount();
    server.stop();
    assert!(read(&server_log).contains("has stopped"), "{}", read(&server_log));
    assert!(read(&mount_log).contains("unmounted "), "{}", read(&mount_log));
}

/// Promise: the same of a mount in the background, which takes over the filter of the configuration file.
#[test]
fn background_mount_rereads_its_configuration() {
    let volume = Volume::format(&["--shards", "2"]);
    let (log, home) = (volume.beside("mount.log"), scratch());
    let configuration = home.path().join("varve/config.toml");
    fs::create_dir(home.path().join("varve")).expect("a directory");
    fs::write(&configuration, "log = \"info\"\n").expect("a file");
    let command = |arguments: &[&str]| {
        let mut command = varve();
        command.env("XDG_CONFIG_HOME", home.path()).args(arguments);
        run(&mut command, SHORT).succeeded("varve")
    };
    let (store, directory) = (volume.store(), volume.mount_point());
    let mounted = command(&["--json", "mount", text(&store), text(&directory), "--log-file", text(&log)]).json();
    let pid = mounted["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    expect_survival(pid, &log);
    fs::write(&configuration, "log = \"inof\"\n").expect("a file");
    send("HUP", pid);
    until("a wrong filter is reported", SHORT, || read(&log).contains("\"inof\" is no level"));
    fs::write(&configuration, "log = \"error\"\n").expect("a file");
    send("HUP", pid);
    // The line about it is below the new filter, so the next signal shows it.
    let lines = || read(&log).lines().count();
    let before = lines();
    std::thread::sleep(std::time::Duration::from_millis(300));
    send("USR2", pid);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(lines(), before, "{}", read(&log));
    command(&["umount", text(&directory)]);
}

/// Promise: the same of the detector service.
#[test]
fn signals_end_no_detector_service() {
    let directory = scratch();
    let (log, data) = (directory.path().join("record.log"), directory.path().join("data"));
    fs::create_dir(&data).expect("a directory");
    let mut command = varve();
    command.env("XDG_RUNTIME_DIR", directory.path());
    command.args(["record", "serve", text(&data), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.args(["--log-file", text(&log)]);
    let launcher = Arc::new(Launcher::start());
    let mut service = Process::start(&launcher, &command, &directory.path().join("output"));
    until("the service has started", SHORT, || read(&log).contains("has started"));
    expect_survival(service.pid(), &log);
    send("TERM", service.pid());
    service.expect_end("the detector service", SHORT);
    assert!(read(&log).contains("has stopped"), "{}", read(&log));
}

/// Promise: a server and a mount tell the service manager when they are ready, and that they stop.
#[test]
fn service_manager_is_notified() {
    let volume = Volume::format(&["--shards", "2"]);
    let path = volume.beside("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(SHORT)).expect("a timeout");
    let receive = || {
        let mut bytes = [0; 512];
        let length = manager.recv(&mut bytes).expect("a notification");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let launcher = Arc::new(Launcher::start());
    let store = volume.store();
    for arguments in [
        vec!["serve".into(), store.clone(), "--unix-dir".into(), volume.beside("sockets")],
        vec!["mount".into(), "-f".into(), store, volume.mount_point()],
    ] {
        let mut command = varve();
        command.env("NOTIFY_SOCKET", &path).args(&arguments);
        let mut process = Process::start(&launcher, &command, &volume.beside("notified.log"));
        assert!(receive().starts_with("READY=1\n"), "{arguments:?}");
        send("TERM", process.pid());
        assert_eq!(receive(), "STOPPING=1\n", "{arguments:?}");
        process.expect_end("a notified service", SHORT);
    }
}
