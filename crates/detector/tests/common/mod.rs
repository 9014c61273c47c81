//! What tests with independent readers share: where the readers are, and running them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the workspace").to_path_buf()
}

/// Runs a Python program of this directory, with h5py and hdf5plugin, and panics with its words if it fails.
pub fn python(script: &str, arguments: &[&Path]) -> String {
    let interpreter = workspace().join("venv/bin/python");
    assert!(interpreter.exists(), "{} is missing; run `make setup`, which makes it", interpreter.display());
    let mut command = Command::new(interpreter);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script)).args(arguments);
    said(&mut command)
}

/// The output of a program that must succeed.
pub fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} ended with {status}:\n{stdout}\n{stderr}");
    stdout.into_owned()
}
