//! Names that come from users and from directories.
//!
//! Input: `E` and a name of an entry, `U` and the URL of a store, `M` and mount options, `O` and the name of a file
//! among the tables.

use super::choice;
use futures::{FutureExt, StreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use tempfile::TempDir;
use varve_env::posix_store::PosixStore;
use varve_env::store_url::StoreUrl;
use varve_fuse::MountOptions;
use varve_types::Name;

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'E', name)) => Name::new(name).is_ok_and(|read| read.as_bytes() == name && read.hash().0 < 1 << 63),
        Some((b'U', url)) => text(url).is_some_and(|url| StoreUrl::parse(url).is_ok()),
        Some((b'M', options)) => text(options).is_some_and(|options| MountOptions::new("store").parse(options).is_ok()),
        Some((b'O', name)) => reads_object_name(name),
        _ => false,
    }
}

/// Without a runtime, the store works on the calling thread.
const AT_ONCE: &str = "nothing to wait for";

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// An object is listed under the name by which it is found, whatever other files are in the store.
fn reads_object_name(name: &[u8]) -> bool {
    thread_local! {
        static STORE: RefCell<Option<(TempDir, PosixStore)>> = const { RefCell::new(None) };
    }
    // A directory can contain only valid file names.
    let a_file_name = (1..256).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
    if !a_file_name || matches!(name, b"." | b"..") {
        return false;
    }
    STORE.with_borrow_mut(|store| {
        let (directory, store) = store.get_or_insert_with(|| {
            let directory = tempfile::tempdir().expect("a temporary directory");
            std::fs::create_dir(directory.path().join("shards")).expect("a directory in it");
            let store = PosixStore::open(directory.path().join("shards")).expect("a store in it");
            (directory, store)
        });
        let path: PathBuf = directory.path().join("shards").join(OsStr::from_bytes(name));
        std::fs::write(&path, b"object").expect("a file in the store");
        let listed: Vec<_> = store.list(None).collect().now_or_never().expect(AT_ONCE);
        let names: Vec<ObjectPath> = listed.into_iter().map(|object| object.expect("a list ends").location).collect();
        let found = names.iter().any(|location| location.as_ref().as_bytes() == name);
        if found {
            let location = names.into_iter().find(|location| location.as_ref().as_bytes() == name).expect("found");
            store.head(&location).now_or_never().expect(AT_ONCE).expect("what is listed is there");
        }
        std::fs::remove_file(&path).expect("it can be removed");
        found
    })
}
