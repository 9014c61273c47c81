//! A stdout that accepts no output.

use super::common::{Outcome, SHORT, Volume, must, run, until, varve};
use std::path::Path;
use std::process::Command;

/// Redirections of a shell that make stdout unwritable: closed, open for reading, a full device.
const REFUSING: [&str; 3] = [">&-", "1</dev/null", ">/dev/full"];

/// Runs the program with its stdout redirected by a shell.
fn redirected(redirection: &str, arguments: &[&str], path: &Path) -> Outcome {
    run(shell(redirection, arguments).arg(path), SHORT)
}

fn redirected_alone(redirection: &str, arguments: &[&str]) -> Outcome {
    run(&mut shell(redirection, arguments), SHORT)
}

/// A shell that executes the program in its place.
fn shell(redirection: &str, arguments: &[&str]) -> Command {
    let program = varve();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}"));
    shell.arg(program.get_program()).args(arguments);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn unwritable_result_is_a_failure() {
    let volume = Volume::format(&["--shards", "2"]);
    let commands: [(&[&str], i32); 9] = [
        (&["dump", "-o", "-"], 1),
        (&["dump"], 1),
        (&["status"], 1),
        (&["--json", "status"], 1),
        (&["fsck"], 8),
        (&["--json", "fsck"], 8),
        (&["fsck", "--repair"], 8),
        (&["format", "--force", "--force", "--shards", "2"], 1),
        (&["man"], 1),
    ];
    for redirection in REFUSING {
        for (arguments, code) in commands {
            let path = if arguments == ["man"] { volume.beside("man") } else { volume.store() };
            let refused = redirected(redirection, arguments, &path);
            assert_eq!(refused.code(), Some(code), "{arguments:?} {redirection}: {}", refused.stderr);
            let printed =
                ["standard output", "cannot write the dump"].iter().any(|words| refused.stderr.contains(words));
            assert!(printed && !refused.stderr.contains("panicked"), "{arguments:?} {redirection}: {}", refused.stderr);
        }
        let refused = redirected(redirection, &["completions"], Path::new("bash"));
        assert_eq!(refused.code(), Some(1), "{redirection}: {}", refused.stderr);
    }
}

#[test]
fn unwritable_help_is_a_failure() {
    for redirection in REFUSING {
        for (arguments, code) in [
            (&["--version"][..], 1),
            (&["--help"], 1),
            (&["help", "format"], 1),
            (&["format", "--help"], 1),
            (&["fsck", "--help"], 8),
        ] {
            let refused = redirected_alone(redirection, arguments);
            assert_eq!(refused.code(), Some(code), "{arguments:?} {redirection}: {}", refused.stderr);
            assert!(refused.stderr.contains("standard output"), "{arguments:?} {redirection}: {}", refused.stderr);
        }
    }
    let help = redirected_alone("", &["--version"]).succeeded("varve --version");
    assert!(help.stdout.starts_with("varve ") && help.stdout.ends_with('\n'), "{}", help.stdout);
}

/// A load keeps the volume if it cannot write its report, and the error says so.
#[test]
fn load_keeps_the_volume_if_its_report_cannot_be_written() {
    let volume = Volume::format(&["--shards", "2"]);
    let (store, dump) = (volume.store(), volume.beside("dump"));
    run(varve().arg("dump").arg("-o").arg(&dump).arg(&store), SHORT).succeeded("varve dump");
    let loaded = volume.beside("loaded");
    let refused = redirected(">/dev/full", &["load", dump.to_str().expect("plain")], &loaded);
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    let words = ["standard output", "The load itself is done", "is complete, and stays"];
    assert!(words.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    run(varve().arg("fsck").arg(&loaded), SHORT).succeeded("varve fsck");
}

/// A server may have acknowledged changes before it announces that it serves.
#[test]
fn server_runs_with_stdout_closed() {
    let volume = Volume::format(&["--shards", "2"]);
    let mut shell = shell(">/dev/full", &["serve", "--unix-dir"]);
    shell.arg(volume.beside("sockets")).arg(volume.store());
    let log = std::fs::File::create(volume.beside("server.log")).expect("a file");
    let mut server = shell.stderr(log).spawn().expect("sh is everywhere");
    let printed = || std::fs::read_to_string(volume.beside("server.log")).expect("it can be read");
    until("the server has tried to say that it serves", SHORT, || printed().contains("standard output"));
    assert!(printed().contains("It goes on all the same"), "{}", printed());
    let mount = volume.mount(&["-o", "noembedded"]);
    std::fs::write(mount.directory.join("file"), "served").expect("it is served");
    mount.unmount();
    must(Command::new("kill").arg(server.id().to_string()));
    assert!(server.wait().expect("it was started here").success(), "{}", printed());
    volume.expect_sound();
}

/// A daemon started with a closed stdout prints no error about it, and a command without output needs no stdout.
#[test]
fn long_running_commands_tolerate_closed_stdout() {
    let volume = Volume::format(&["--shards", "2"]);
    let (store, directory) = (volume.store(), volume.mount_point());
    let log = format!("--log-file={}", volume.beside("mount.log").display());
    redirected(">&-", &["--json", "mount", &log, store.to_str().expect("plain")], &directory).succeeded("varve mount");
    let unmounted = redirected(">/dev/null", &["umount"], &directory);
    unmounted.succeeded("varve umount");
    volume.expect_sound();
}
