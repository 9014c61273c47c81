//! A stdout that takes nothing.

use super::common::{Outcome, SHORT, Volume, run, varve};
use std::path::Path;
use std::process::Command;

/// What a shell makes of stdout: nothing, something to read, a device that is full.
const REFUSING: [&str; 3] = [">&-", "1</dev/null", ">/dev/full"];

/// The program with its stdout redirected as a shell does.
fn redirected(redirection: &str, arguments: &[&str], path: &Path) -> Outcome {
    let program = varve();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {redirection}"));
    shell.arg(program.get_program()).args(arguments).arg(path);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    run(&mut shell, SHORT)
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
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
            let said = ["standard output", "cannot write the dump"].iter().any(|words| refused.stderr.contains(words));
            assert!(said && !refused.stderr.contains("panicked"), "{arguments:?} {redirection}: {}", refused.stderr);
        }
        let refused = redirected(redirection, &["completions"], Path::new("bash"));
        assert_eq!(refused.code(), Some(1), "{redirection}: {}", refused.stderr);
    }
}

/// Who starts a daemon without a stdout does not want to be told of it, and what says nothing needs none.
#[test]
fn what_goes_on_to_run_needs_no_stdout() {
    let volume = Volume::format(&["--shards", "2"]);
    let (store, directory) = (volume.store(), volume.mount_point());
    let log = format!("--log-file={}", volume.beside("mount.log").display());
    redirected(">&-", &["--json", "mount", &log, store.to_str().expect("plain")], &directory).succeeded("varve mount");
    let unmounted = redirected(">/dev/null", &["umount"], &directory);
    unmounted.succeeded("varve umount");
    volume.expect_sound();
}
