//! What `cargo xtask` does, as a library, so that the house rules are also a test.

pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the workspace that this program was built from.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}
