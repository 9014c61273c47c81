//! `docs/operate/varve-job.sbatch`, the job script for Slurm, with one node and an `srun` that runs the command here.

use super::common::{LONG, run, scratch, varve};
use super::is_mounted;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

const SRUN: &str = r#"#!/bin/bash
while [[ $1 == --* ]]; do
  case $1 in --chdir=*) cd "${1#*=}" ;; esac
  shift
done
exec "$@"
"#;

#[test]
fn job_script_runs_program_on_volume_and_stops_all() {
    let directory = scratch();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("bin")).expect("a directory");
    fs::write(at("bin/srun"), SRUN).expect("a file");
    fs::set_permissions(at("bin/srun"), fs::Permissions::from_mode(0o755)).expect("the file is there");
    symlink(varve().get_program(), at("bin/varve")).expect("a link");
    let path = std::env::var("PATH").expect("a path");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/varve-job.sbatch");
    let mut job = Command::new("bash");
    job.arg(script).args(["sh", "-c", "pwd && echo content > file && cat file; exit 7"]);
    job.env("PATH", format!("{}:{path}", at("bin").display()));
    job.env("VARVE_JOB_STORE", at("volume")).env("VARVE_JOB_MOUNT", at("mount"));
    // Its number chooses the port, and the tests of two users may run on this host.
    job.env("SLURM_JOB_ID", std::process::id().to_string()).env("SLURM_JOB_NUM_NODES", "1");
    let done = run(&mut job, LONG);
    assert_eq!(done.code(), Some(7), "{}{}", done.stdout, done.stderr);
    let here = fs::canonicalize(at("mount")).expect("it is there").display().to_string();
    assert!(done.stdout.contains(&format!("{here}\ncontent\n")), "{}{}", done.stdout, done.stderr);
    assert!(!is_mounted(&at("mount")), "{}", done.stderr);
    let checked = run(varve().arg("fsck").arg(at("volume")), LONG);
    checked.succeeded("varve fsck, which no server keeps away");
}
