//! The volume file, the server record and the key.
//!
//! Input: `V` and a volume file, `S` and a server record, `K` and a key.

use super::choice;
use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use varve_env::volume_dir::VolumeDir;

pub fn reads(bytes: &[u8]) -> bool {
    let volume = |path: &Path| VolumeDir::new(path.ancestors().nth(1).expect("a file in a directory"));
    match choice(bytes) {
        Some((b'V', text)) => in_file("varve.toml", text, |path| match volume(path).read_settings() {
            Ok(settings) => {
                settings.check().expect("only sound settings are read");
                true
            }
            Err(error) => {
                assert!(error.to_string().contains("varve.toml"), "{error} does not say which file");
                false
            }
        }),
        Some((b'S', text)) => in_file("servers/current.toml", text, |path| {
            let volume = VolumeDir::new(path.ancestors().nth(2).expect("a file in a directory of the volume"));
            match volume.read_server_record() {
                Ok(record) => record.is_some(),
                Err(error) => {
                    assert!(error.to_string().contains("current.toml"), "{error} does not say which file");
                    false
                }
            }
        }),
        Some((b'K', key)) => in_file("key", key, |path| volume(path).read_key().is_ok()),
        _ => false,
    }
}

/// Passes to `read` a file with these bytes, in a temporary directory of this thread.
pub fn in_file(name: &str, bytes: &[u8], read: impl FnOnce(&Path) -> bool) -> bool {
    thread_local! {
        static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
    }
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| {
            let directory = tempfile::tempdir().expect("a temporary directory");
            std::fs::create_dir(directory.path().join("servers")).expect("a directory in it");
            directory
        });
        let path = directory.path().join(name);
        // Create a new file each time: some file systems write an old one back to disk when it is truncated and
        // rewritten.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", path.display()),
            _ => {
                // A key that others may read is refused.
                let mut options = std::fs::File::options();
                let file = options.write(true).create_new(true).mode(0o600).open(&path);
                file.and_then(|mut file| file.write_all(bytes)).expect("a file in it");
            }
        }
        read(&path)
    })
}
