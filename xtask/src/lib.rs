//! The tasks of `cargo xtask` as a library, so that a test can also run the checks.

pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the workspace that this program was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}
