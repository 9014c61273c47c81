//! Access control of the service, as its commands show it: tokens, TLS, and listening beyond this host.

use super::*;
use common::run;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

/// A user that exists on no machine.
const STRANGER: u32 = 47111;
const LIMIT: Duration = Duration::from_secs(60);

fn certificate(name: &str) -> String {
    workspace().join("crates/detector-service/tests/tls").join(name).to_str().expect("text").to_owned()
}

fn token_file(directory: &Path, name: &str, mode: u32) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, "0123456789abcdef").expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
    path
}

/// Runs a service that must not start with `arguments`, and expects `words` in its error.
fn refused(directory: &Path, arguments: &[&str], words: &str) {
    let mut command = varve();
    let output = run(command.args(["record", "serve"]).arg(directory).args(arguments), LIMIT);
    assert!(output.code() == Some(2) && output.stderr.contains(words), "{arguments:?}: {}", output.stderr);
}

#[test]
fn listening_beyond_this_host_needs_tls_and_a_token() {
    let directory = common::scratch();
    let at = directory.path();
    let token = token_file(at, "token", 0o600).to_str().expect("text").to_owned();
    let (cert, key) = (certificate("service.pem"), certificate("service.key"));
    let near = "127.0.0.1:0";
    for far in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"] {
        for (listen, http) in [(far, near), (near, far), (far, far)] {
            let place = ["--listen", listen, "--http", http];
            let with = |more: &[&'static str]| [&place[..], more].concat();
            refused(at, &with(&[]), "is open to other hosts");
            refused(at, &[&place[..], &["--token-file", &token]].concat(), "--tls-cert and --tls-key");
            refused(at, &with(&["--insecure"]), "Give --token-file");
            refused(at, &[&place[..], &["--tls-cert", &cert, "--tls-key", &key]].concat(), "Give --token-file");
        }
    }
    refused(at, &["--tls-cert", &cert], "--tls-key");
    refused(at, &["--tls-key", &key], "--tls-cert");
    refused(at, &["--insecure", "--tls-cert", &cert, "--tls-key", &key], "cannot be used with");
    refused(at, &["--tls-cert", &key, "--tls-key", &key], "contains no certificate");
    refused(
        at,
        &["--tls-cert", &certificate("untrusted.pem"), "--tls-key", &key],
        "cannot use the certificate and key",
    );
    refused(at, &["--allow-host", "http://name"], "without a port");
}

#[test]
fn unfit_token_files_are_refused_by_every_command() {
    let directory = common::scratch();
    let at = directory.path();
    let good = token_file(at, "good", 0o600);
    symlink(&good, at.join("link")).expect("made");
    token_file(at, "open", 0o640);
    fs::write(at.join("short"), "1234567").expect("written");
    fs::set_permissions(at.join("short"), Permissions::from_mode(0o600)).expect("set");
    let mut cases =
        vec![("link", "is a symbolic link"), ("open", "chmod 600"), ("short", "has 7 bytes"), ("none", "No such")];
    if rustix::process::geteuid().is_root() {
        chown(token_file(at, "another", 0o600), Some(STRANGER), None).expect("given away");
        cases.push(("another", "belongs to user 47111"));
    }
    let root = at.to_str().expect("text");
    let commands: [&[&str]; 4] = [
        &["record", "serve", root],
        &["record", "status"],
        &["record", "join", "127.0.0.1:1", "run", "--directory", root],
        &["detector", "simulate", "--to", "tcp://127.0.0.1:1", "--frames", "1", "--model", "64x48xu16"],
    ];
    for (name, words) in cases {
        for command in commands {
            let output = run(varve().args(command).arg("--token-file").arg(at.join(name)), LIMIT);
            assert!(output.code() == Some(2) && output.stderr.contains(words), "{name} {command:?}: {}", output.stderr);
        }
    }
}

/// Another local user cannot end a run without the token.
#[test]
fn other_users_need_the_token() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let directory = common::scratch();
    let service = Service::start(directory.path());
    assert_eq!(service.record(&["start", "mine", "mine.h5", "--frame", "48x48"]).0, 0, "its own user gives none");
    let open = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().expect("a directory");
    let program = open.path().join("varve");
    common::copy_program(Path::new(env!("CARGO_BIN_EXE_varve")), &program);
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("set");
    for runtime in ["/run", "/tmp", "/nonexistent"] {
        for words in [&["abort", "mine"][..], &["stop", "mine"], &["status"]] {
            let mut command = Command::new(&program);
            command.env_clear().env("XDG_RUNTIME_DIR", runtime).current_dir("/").uid(STRANGER).gid(STRANGER);
            let output = run(command.arg("record").args(words).args(["--http", &service.http]), LIMIT);
            let printed = output.stderr.as_str();
            assert!(
                output.code() == Some(1) && printed.contains("needs a token, and none was given"),
                "{words:?}: {printed}"
            );
            assert!(printed.contains("--token-file"), "{printed}");
        }
    }
    assert_eq!(service.record(&["status", "mine"]).1["state"], "running");
    service.process.terminate();
}

#[test]
fn commands_and_the_simulator_speak_tls() {
    let directory = common::scratch();
    let mut command = varve();
    command.args(Service::words(directory.path(), "127.0.0.1:0", "127.0.0.1:0"));
    command.args(["--tls-cert", &certificate("service.pem"), "--tls-key", &certificate("service.key")]);
    let service = Service::of(directory.path(), command);
    let authority = certificate("authority.pem");
    let url = format!("https://{}", service.http);
    let trusting = ["--http", &url, "--tls-ca", &authority];
    run(varve().args(["record", "status"]).args(trusting), LIMIT).succeeded("status");
    let to = format!("tcp://{}", service.listen);
    let simulate = ["detector", "simulate", "--to", &to, "--model", "64x48xu16", "--frames", "20", "--file", "tls.h5"];
    run(varve().args(simulate).args(["--run", "tls", "--tls-ca", &authority]), LIMIT).succeeded("simulate");
    let status =
        run(varve().args(["--json", "record", "status", "tls"]).args(trusting), LIMIT).succeeded("status").json();
    assert_eq!(status["durable"], 20, "{status}");
    let unauthenticated = certificate("untrusted.pem");
    for (arguments, words) in [
        (&["--http", &url][..], "needs --tls-ca"),
        (&["--http", &service.http], "--tls-ca"),
        (&["--http", &url, "--tls-ca", &unauthenticated], "is not trusted"),
        (&["--http", &url, "--tls-ca", "/nonexistent"], "cannot read the certificates"),
    ] {
        let output = run(varve().args(["record", "status"]).args(arguments), LIMIT);
        assert!(output.code() != Some(0) && output.stderr.contains(words), "{arguments:?}: {}", output.stderr);
    }
    let joined = ["record", "join", &service.listen, "tls", "--directory", "/nonexistent", "--retry", "1s"];
    let output = run(varve().args(joined).args(["--tls-ca", &unauthenticated]), LIMIT);
    assert!(output.code() == Some(1), "{}", output.stderr);
    service.process.terminate();
}

#[test]
fn insecure_listening_warns() {
    let directory = common::scratch();
    let token = token_file(directory.path(), "token", 0o600);
    let mut command = varve();
    command.args(Service::words(directory.path(), "0.0.0.0:0", "127.0.0.1:0")).arg("--insecure");
    let child = command.arg("--token-file").arg(&token).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("varve runs");
    let mut reported = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut reported).expect("a line");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("told");
    let output = child.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("warning: --listen 0.0.0.0:0 is open to other hosts without TLS"), "{reported} {printed}");
}
