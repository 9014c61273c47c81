//! A store's files are opened only beneath its open directory (`varve_env::store_path`), never by their full path.

use super::{SourceTree, Violation};

/// Code that accesses stores.
const WATCHED: [&str; 7] = [
    "crates/admin/src/",
    "crates/client/src/",
    "crates/meta/src/",
    "crates/env/src/posix_store",
    "crates/env/src/reserve",
    "crates/env/src/store_path",
    "crates/env/src/volume_dir",
];

/// Calls that resolve a path from the current or the root directory.
const BY_PATH: [&str; 28] = [
    "fs::read(",
    "fs::read_dir(",
    "fs::read_link(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::remove_",
    "fs::create_dir",
    "fs::copy(",
    "fs::hard_link(",
    "fs::metadata(",
    "fs::symlink_metadata(",
    "fs::set_permissions(",
    "fs::canonicalize(",
    "fs::exists(",
    "fs::OpenOptions",
    "fs::DirBuilder",
    "std::fs::rename(",
    "std::fs::File::",
    "use std::fs;",
    "rustix::fs::open(",
    "rustix::fs::stat(",
    "rustix::fs::statvfs(",
    "rustix::fs::rename(",
    "unix::fs::symlink(",
    "unix::fs::chown(",
    "unix::fs::lchown(",
    "rustix::fs::CWD",
    "OpenOptionsExt",
];

/// Exceptions: file, call and the reason.
const MAY: [(&str, &str, &str); 6] = [
    ("crates/meta/src/server/listener.rs", "fs::", "sockets and their directory, which are in no store"),
    ("crates/meta/src/server/peer_network.rs", "fs::", "a socket, which is in no store"),
    ("crates/meta/src/server/sockets.rs", "fs::", "sockets of servers that died"),
    ("crates/env/src/store_path.rs", "rustix::fs::open(", "the root itself, by the path that the user gave"),
    ("crates/env/src/volume_dir/rights.rs", "fs::read_to_string(", "the kernel's number for nobody"),
    ("crates/env/src/volume_dir/server_record.rs", "fs::read_to_string(", "threads of a process, in /proc"),
];

pub fn beneath(tree: &SourceTree) -> Vec<Violation> {
    let mut violations = Vec::new();
    let watched = |path: &str| WATCHED.iter().any(|prefix| path.starts_with(prefix));
    let is_test = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    for file in tree.files.iter().filter(|file| file.has_extension("rs") && watched(&file.path) && !is_test(&file.path))
    {
        let lines: Vec<&str> = file.text.lines().collect();
        // Tests in the same file come last.
        let is_begin_of_tests =
            |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod tests {");
        let end = lines.windows(2).position(is_begin_of_tests).unwrap_or(lines.len());
        for (index, line) in lines[..end].iter().enumerate() {
            // Files in /proc are not in a store.
            if line.contains("\"/proc/") || line.contains("format!(\"/proc/") || line.trim_start().starts_with("//") {
                continue;
            }
            let allowed = |call: &str| MAY.iter().any(|(path, what, _)| file.path == *path && call.contains(what));
            if let Some(call) = BY_PATH.iter().find(|call| line.contains(**call) && !allowed(call)) {
                let text =
                    format!("`{call}` takes a whole path: open files of a store by varve_env::store_path and disk");
                violations.push(file.violation(index, text));
            }
        }
    }
    violations
}
