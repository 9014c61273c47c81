//! Shared code of the tests with independent readers: the paths of the readers, and functions to run them.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod cutter;
pub mod frames;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in the workspace").to_path_buf()
}

/// Python with h5py and hdf5plugin.
pub fn interpreter() -> PathBuf {
    let interpreter = workspace().join("venv/bin/python");
    assert!(interpreter.exists(), "{} is missing; run `make setup`, which makes it", interpreter.display());
    interpreter
}

/// Runs a Python program of this directory, with h5py and hdf5plugin. If it fails, panics with its output.
pub fn python(script: &str, arguments: &[&Path]) -> String {
    let mut command = Command::new(interpreter());
    command.arg(workspace().join("crates/detector-writer/tests").join(script)).args(arguments);
    printed(&mut command)
}

/// The directory of hdf5plugin's filters.
pub fn plugins() -> &'static str {
    static PATH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let ask = || printed(Command::new(interpreter()).args(["-c", "import hdf5plugin; print(hdf5plugin.PLUGIN_PATH)"]));
    PATH.get_or_init(ask).trim()
}

/// Makes Debian's HDF5 tools use those filters.
pub fn with_plugins(command: &mut Command) -> &mut Command {
    command.env("HDF5_PLUGIN_PATH", plugins())
}

/// The output of a program that must succeed.
pub fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?} ended with {status}:\n{stdout}\n{stderr}");
    stdout.into_owned()
}
