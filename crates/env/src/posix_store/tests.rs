//! One suite over this store and over `object_store`'s in-memory store, where both behave the same; then the guarantees
//! that only this store gives.

use super::*;
use bytes::Bytes;
use object_store::memory::InMemory;
use object_store::{Error, GetRange, ObjectStoreExt, UpdateVersion};
use std::path::{Path, PathBuf};

mod stopped;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

fn posix() -> (tempfile::TempDir, PosixStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = PosixStore::open(directory.path()).unwrap();
    (directory, store)
}

/// Runs `test` in every environment: in memory, and on a directory with each primitive for exclusive creation, with and
/// without non-waiting reads.
fn everywhere(test: impl Fn(&dyn ObjectStore)) {
    test(&InMemory::new());
    for exclusive in [Exclusive::RenameNoReplace, Exclusive::Link] {
        let directory = tempfile::tempdir().unwrap();
        let store = PosixStore::with_exclusive(directory.path().to_owned(), exclusive);
        store.inner.reads_without_waiting.store(exclusive != Exclusive::Link, std::sync::atomic::Ordering::Relaxed);
        test(&store);
        assert_eq!(hidden(directory.path()), 0, "{exclusive:?} left temporary files");
    }
}

fn hidden(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => hidden(&entry.path()),
            false => usize::from(entry.file_name().to_string_lossy().starts_with(disk::TEMPORARY_PREFIX)),
        })
        .sum()
}

fn path(text: &str) -> ObjectPath {
    ObjectPath::from(text)
}

async fn put(store: &dyn ObjectStore, name: &str, content: &'static [u8]) -> PutResult {
    store.put(&path(name), content.into()).await.unwrap()
}

async fn create(store: &dyn ObjectStore, name: &str, content: &'static [u8]) -> Result<PutResult> {
    store.put_opts(&path(name), content.into(), PutMode::Create.into()).await
}

async fn update(store: &dyn ObjectStore, name: &str, content: Bytes, e_tag: Option<String>) -> Result<PutResult> {
    let version = UpdateVersion { e_tag, version: None };
    store.put_opts(&path(name), content.into(), PutMode::Update(version).into()).await
}

async fn content(store: &dyn ObjectStore, name: &str) -> Bytes {
    store.get(&path(name)).await.unwrap().bytes().await.unwrap()
}

async fn names(store: &dyn ObjectStore, prefix: Option<&str>) -> Vec<String> {
    let prefix = prefix.map(path);
    let mut names: Vec<_> =
        store.list(prefix.as_ref()).map_ok(|meta| meta.location.to_string()).try_collect().await.unwrap();
    names.sort();
    names
}

/// Objects are put, replaced, read, measured and deleted.
#[test]
fn objects_are_put_and_read() {
    everywhere(|store| {
        block_on(async {
            put(store, "a/b/c", b"first").await;
            put(store, "a/b/c", b"second").await;
            put(store, "empty", b"").await;
            assert_eq!(content(store, "a/b/c").await, "second");
            assert_eq!(content(store, "empty").await, "");
            assert_eq!(store.head(&path("a/b/c")).await.unwrap().size, 6);
            store.delete(&path("a/b/c")).await.unwrap();
            assert!(matches!(store.get(&path("a/b/c")).await, Err(Error::NotFound { .. })));
            assert!(matches!(store.head(&path("a/b")).await, Err(Error::NotFound { .. })));
            assert!(matches!(store.head(&path("a/b/c/d")).await, Err(Error::NotFound { .. })));
        })
    });
}

/// Ranges are cut off at the object's end; a range that begins beyond it is an error.
#[test]
fn ranges_are_read() {
    everywhere(|store| {
        block_on(async {
            put(store, "object", b"0123456789").await;
            let range = |range: GetRange| async move {
                let options = GetOptions::new().with_range(Some(range));
                store.get_opts(&path("object"), options).await.unwrap().bytes().await.unwrap()
            };
            assert_eq!(range(GetRange::Bounded(2..5)).await, "234");
            assert_eq!(range(GetRange::Bounded(8..50)).await, "89");
            assert_eq!(range(GetRange::Offset(7)).await, "789");
            assert_eq!(range(GetRange::Suffix(2)).await, "89");
            assert_eq!(store.get_ranges(&path("object"), &[0..1, 4..6]).await.unwrap(), ["0", "45"]);
            assert!(store.get_range(&path("object"), 10..11).await.is_err());
        })
    });
}

/// `PutMode::Create` refuses a taken name and leaves it alone.
#[test]
fn creation_is_exclusive() {
    everywhere(|store| {
        block_on(async {
            create(store, "manifest/1", b"mine").await.unwrap();
            assert!(matches!(create(store, "manifest/1", b"theirs").await, Err(Error::AlreadyExists { .. })));
            assert_eq!(content(store, "manifest/1").await, "mine");
            store.delete(&path("manifest/1")).await.unwrap();
            create(store, "manifest/1", b"again").await.unwrap();
            put(store, "manifest/1", b"replaced").await;
            assert_eq!(content(store, "manifest/1").await, "replaced");
        })
    });
}

/// `PutMode::Update` replaces exactly the version it names.
#[test]
fn updates_compare_and_swap() {
    everywhere(|store| {
        block_on(async {
            let first = put(store, "boundary", b"one").await.e_tag;
            assert_eq!(store.get(&path("boundary")).await.unwrap().meta.e_tag, first);
            assert_eq!(store.head(&path("boundary")).await.unwrap().e_tag, first);
            let second = update(store, "boundary", "two".into(), first.clone()).await.unwrap().e_tag;
            assert_ne!(first, second);
            let stale = update(store, "boundary", "three".into(), first.clone()).await;
            assert!(matches!(stale, Err(Error::Precondition { .. })));
            assert!(matches!(update(store, "none", "x".into(), second).await, Err(Error::Precondition { .. })));
            assert!(update(store, "boundary", "x".into(), None).await.is_err());
            assert_eq!(content(store, "boundary").await, "two");
            let options = GetOptions::new().with_if_match(first);
            assert!(matches!(store.get_opts(&path("boundary"), options).await, Err(Error::Precondition { .. })));
        })
    });
}

/// Lists return the objects below a prefix of complete path parts, optionally from an offset, and one level with its
/// prefixes.
#[test]
fn lists_are_by_prefix_offset_and_level() {
    everywhere(|store| {
        block_on(async {
            for name in ["a/1", "a/2", "a/b/3", "ab", "c"] {
                put(store, name, b"x").await;
            }
            assert_eq!(names(store, None).await, ["a/1", "a/2", "a/b/3", "ab", "c"]);
            assert_eq!(names(store, Some("a")).await, ["a/1", "a/2", "a/b/3"]);
            assert_eq!(names(store, Some("a/1")).await, [""; 0]);
            assert_eq!(names(store, Some("none")).await, [""; 0]);
            let after: Vec<_> = store
                .list_with_offset(Some(&path("a")), &path("a/1"))
                .map_ok(|meta| meta.location.to_string())
                .try_collect()
                .await
                .unwrap();
            assert_eq!(after, ["a/2", "a/b/3"]);
            store.delete(&path("a/b/3")).await.unwrap();
            put(store, "a/c/d/4", b"x").await;
            let level = store.list_with_delimiter(Some(&path("a"))).await.unwrap();
            assert_eq!(level.common_prefixes, [path("a/c")]);
            let objects: Vec<_> = level.objects.iter().map(|meta| (meta.location.as_ref(), meta.size)).collect();
            assert_eq!(objects, [("a/1", 1), ("a/2", 1)]);
        })
    });
}

/// Promise: a copy to a free name has one winner and needs no space for the content, and replacing one of the two objects
/// leaves the other as it is.
#[test]
fn copy_to_a_free_name_shares_the_file() {
    let (directory, store) = posix();
    block_on(async {
        put(&store, "a/from", b"content").await;
        store.copy_if_not_exists(&path("a/from"), &path("a/to")).await.unwrap();
        let file = |name: &str| std::os::unix::fs::MetadataExt::ino(&directory.path().join(name).metadata().unwrap());
        assert_eq!(file("a/from"), file("a/to"));
        put(&store, "a/other", b"other").await;
        let taken = store.copy_if_not_exists(&path("a/other"), &path("a/to")).await;
        assert!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
        let absent = store.copy_if_not_exists(&path("a/absent"), &path("a/free")).await;
        assert!(matches!(absent, Err(Error::NotFound { .. })), "{absent:?}");
        put(&store, "a/from", b"replaced").await;
        assert_eq!(store.get(&path("a/to")).await.unwrap().bytes().await.unwrap(), "content");
        assert_eq!(names(&store, None).await, ["a/from", "a/other", "a/to"]);
        let without_links = PosixStore::with_exclusive(directory.path().to_owned(), Exclusive::RenameNoReplace);
        let refused = without_links.copy_if_not_exists(&path("a/from"), &path("a/free")).await;
        assert!(matches!(refused, Err(Error::NotImplemented { .. })), "{refused:?}");
    });
    assert_eq!(hidden(directory.path()), 0);
}

/// Nothing needs copies over an object and renames, so they are refused.
#[test]
fn copies_over_objects_and_renames_are_refused() {
    let (_directory, store) = posix();
    block_on(async {
        put(&store, "from", b"content").await;
        for refused in [
            store.copy(&path("from"), &path("to")).await,
            store.rename(&path("from"), &path("to")).await,
            store.rename_if_not_exists(&path("from"), &path("to")).await,
        ] {
            assert!(matches!(refused, Err(Error::NotImplemented { .. })));
        }
        assert_eq!(names(&store, None).await, ["from"]);
    });
}

/// Parts arrive in any order; nothing is visible before completion or after an abort.
#[test]
fn multipart_objects_appear_whole() {
    everywhere(|store| {
        block_on(async {
            let mut upload = store.put_multipart(&path("a/large")).await.unwrap();
            let parts: Vec<_> = (0..4u8).map(|part| upload.put_part(vec![part; 3_000_000].into())).collect();
            futures::future::try_join_all(parts.into_iter().rev()).await.unwrap();
            assert!(matches!(store.head(&path("a/large")).await, Err(Error::NotFound { .. })));
            let e_tag = upload.complete().await.unwrap().e_tag;
            let got = store.get(&path("a/large")).await.unwrap();
            assert_eq!(got.meta.e_tag, e_tag);
            let bytes = got.bytes().await.unwrap();
            assert_eq!(bytes.len(), 12_000_000);
            assert!(bytes.chunks(3_000_000).enumerate().all(|(part, chunk)| chunk.iter().all(|b| *b == part as u8)));
            let mut aborted = store.put_multipart(&path("a/aborted")).await.unwrap();
            aborted.put_part("x".into()).await.unwrap();
            aborted.abort().await.unwrap();
            assert_eq!(names(store, None).await, ["a/large"]);
        })
    });
}

/// Of concurrent updates of one version exactly one succeeds, so no increment is lost. The threads use separate stores
/// (as processes do), and overwrites of another object run in between.
#[test]
fn concurrent_updates_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = PosixStore::open(directory.path()).unwrap();
    block_on(put(&store, "counter", b"0"));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let store = PosixStore::open(directory.path()).unwrap();
                for _ in 0..50 {
                    block_on(increment(&store));
                    block_on(put(&store, "other", b"x"));
                }
            });
        }
    });
    assert_eq!(block_on(content(&store, "counter")), "200");
}

async fn increment(store: &PosixStore) {
    loop {
        let got = store.get(&path("counter")).await.unwrap();
        let e_tag = got.meta.e_tag.clone();
        let count: u32 = std::str::from_utf8(&got.bytes().await.unwrap()).unwrap().parse().unwrap();
        match update(store, "counter", (count + 1).to_string().into(), e_tag).await {
            Ok(_) => return,
            Err(Error::Precondition { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The same between processes: this test starts itself twice at once as a child that increments.
#[test]
fn updates_of_two_processes_lose_nothing() {
    const CHILD: &str = "VARVE_TEST_UPDATES_OF";
    if let Some(root) = std::env::var_os(CHILD) {
        let store = PosixStore::open(PathBuf::from(root)).unwrap();
        (0..100).for_each(|_| block_on(increment(&store)));
        return;
    }
    let (directory, store) = posix();
    block_on(put(&store, "counter", b"0"));
    let children: Vec<_> = (0..2)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "posix_store::tests::updates_of_two_processes_lose_nothing"])
                .env(CHILD, directory.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(block_on(content(&store, "counter")), "200");
}

/// No version of an object has the tag of an earlier one: not if the content is the same, if the clock goes back, or if
/// the store keeps whole seconds.
#[test]
fn tags_of_replaced_objects_never_return() {
    let (directory, store) = posix();
    let file = directory.path().join("boundary");
    let set = |time| std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    let mut tags = std::collections::HashSet::new();
    block_on(async {
        put(&store, "boundary", b"same").await;
        let future = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
        for round in 0..100 {
            match round {
                // As if the clock had gone back by an hour since the last version.
                30 => set(future),
                // As a store would show it that keeps whole seconds.
                60 => set(std::time::UNIX_EPOCH + std::time::Duration::from_secs(5_000_000_000)),
                _ => {}
            }
            let found = store.head(&path("boundary")).await.unwrap().e_tag;
            assert_eq!(store.get(&path("boundary")).await.unwrap().meta.e_tag, found);
            let new = match round % 2 {
                0 => update(&store, "boundary", "same".into(), found.clone()).await.unwrap().e_tag,
                _ => put(&store, "boundary", b"same").await.e_tag,
            };
            assert!(tags.insert(found.clone().unwrap()), "a tag came back in round {round}");
            let stale = update(&store, "boundary", "stale".into(), found).await;
            assert!(matches!(stale, Err(Error::Precondition { .. })));
            assert_eq!(store.head(&path("boundary")).await.unwrap().e_tag, new);
        }
    });
}

/// An object that was deleted and put again with the same content is another version.
#[test]
fn object_that_was_put_again_has_another_tag() {
    let (_directory, store) = posix();
    block_on(async {
        let mut tags = std::collections::HashSet::new();
        for _ in 0..100 {
            assert!(tags.insert(create(&store, "object", b"same").await.unwrap().e_tag));
            store.delete(&path("object")).await.unwrap();
        }
    });
}

/// Names of the store's own are refused, hidden, and removed at the start if a crash left them.
#[test]
fn leftovers_are_hidden_and_removed() {
    let (directory, store) = posix();
    block_on(put(&store, "a/object", b"x"));
    let of_another = ".~tmp.00000000000000ab.0123456789abcdef";
    for name in [".~tmp.0123", of_another] {
        std::fs::write(directory.path().join("a").join(name), b"half").unwrap();
    }
    assert_eq!(block_on(names(&store, None)), ["a/object"]);
    // Such a name can be created only by parsing one.
    let reserved = ObjectPath::parse("a/.~tmp.0123").unwrap();
    assert!(matches!(block_on(store.head(&reserved)), Err(Error::NotSupported { .. })));
    assert_eq!(store.remove_leftovers(&["00000000000000ab".parse().unwrap()]).unwrap(), 1);
    assert!(directory.path().join("a").join(of_another).exists());
    assert_eq!(store.remove_leftovers(&[]).unwrap(), 1);
    assert_eq!(hidden(directory.path()), 0);
    assert_eq!(block_on(content(&store, "a/object")), "x");
}

/// ENOSPC, EIO and EROFS stay recognisable, however deeply the error is wrapped.
#[test]
fn system_errors_stay_recognisable() {
    for code in [libc::ENOSPC, libc::EIO, libc::EROFS] {
        let wrapped = error::failed("write", &path("a"))(io::Error::from_raw_os_error(code));
        let wrapped = io::Error::other(std::sync::Arc::new(wrapped));
        assert_eq!(io_error_within(&wrapped).and_then(io::Error::raw_os_error), Some(code));
    }
    assert!(io_error_within(&io::Error::other("no code")).is_none());
}

/// A get of more than one piece is streamed completely.
#[test]
fn large_objects_are_streamed() {
    let (_directory, store) = posix();
    let large: Vec<u8> = (0..20_000_000u32).map(|at| (at / 1000) as u8).collect();
    block_on(store.put(&path("large"), large.clone().into())).unwrap();
    assert_eq!(block_on(content(&store, "large")), large);
    let range = block_on(store.get_range(&path("large"), 5_000_000..5_000_100)).unwrap();
    assert_eq!(range, large[5_000_000..5_000_100]);
}

/// A truncated file is reported immediately: SlateDB retries `Generic` errors for seconds.
#[test]
fn read_beyond_the_end_is_not_retried() {
    let (_directory, store) = posix();
    block_on(async {
        put(&store, "a", b"short").await;
        let error = store.get_range(&path("a"), 100..200).await.unwrap_err();
        assert!(matches!(error, Error::NotSupported { .. }) && error.to_string().contains("read a"), "{error:?}");
    });
}

/// A store that was moved away is missing, and no write recreates its directory, so that it can be moved back.
#[test]
fn moved_root_is_not_recreated() {
    let directory = tempfile::tempdir().unwrap();
    let (root, moved) = (directory.path().join("volume/shards"), directory.path().join("moved"));
    std::fs::create_dir_all(&root).unwrap();
    let store = PosixStore::open(root.as_path()).unwrap();
    block_on(async {
        put(&store, "0000/a", b"x").await;
        std::fs::rename(directory.path().join("volume"), &moved).unwrap();
        for name in ["b", "0000/b", "0000/manifest/b"] {
            let payload = || PutPayload::from_static(b"y");
            let update = PutMode::Update(UpdateVersion { e_tag: Some("\"0\"".into()), version: None });
            for mode in [PutMode::Overwrite, PutMode::Create, update] {
                let error = store.put_opts(&path(name), payload(), mode.into()).await.unwrap_err();
                assert_eq!(io_error_within(&error).map(io::Error::kind), Some(io::ErrorKind::NotFound), "{error}");
            }
            store.put_multipart(&path(name)).await.unwrap_err();
            assert!(!directory.path().join("volume").exists(), "{name}");
        }
        // Only the store's own directory is missing, as in a volume that was partly removed.
        std::fs::create_dir(directory.path().join("volume")).unwrap();
        store.put(&path("0000/b"), "y".into()).await.unwrap_err();
        assert!(!root.exists());
        std::fs::remove_dir(directory.path().join("volume")).unwrap();
        std::fs::rename(&moved, directory.path().join("volume")).unwrap();
        put(&store, "0000/manifest/b", b"y").await;
        assert_eq!(content(&store, "0000/a").await, "x");
    });
}

/// While the store is unreachable, no object is reported missing and no listing is empty: otherwise a new database
/// would be created over an existing one. All these operations may be retried.
#[test]
fn unreachable_store_reports_no_missing_objects() {
    let directory = tempfile::tempdir().unwrap();
    let (root, moved) = (directory.path().join("volume/shards"), directory.path().join("moved"));
    std::fs::create_dir_all(&root).unwrap();
    let store = PosixStore::open(root.as_path()).unwrap();
    let is_trouble = |error: &Error| {
        let text = error.to_string();
        assert!(matches!(error, Error::Generic { .. }), "{error:?}");
        assert!(text.contains("is not there") && text.contains("bring it back"), "{text}");
    };
    let all = async |store: &PosixStore| {
        let names = ["0000/manifest/1", "0000/manifest/2", "absent"];
        let mut errors = Vec::new();
        for name in names {
            errors.extend(store.get(&path(name)).await.err());
            errors.extend(store.head(&path(name)).await.err());
            errors.extend(store.delete(&path(name)).await.err());
            let update = PutMode::Update(UpdateVersion { e_tag: Some("\"0\"".into()), version: None });
            errors.extend(store.put_opts(&path(name), "y".into(), update.into()).await.err());
        }
        for prefix in ["0000/manifest", "0000", "absent"] {
            errors.extend(store.list(Some(&path(prefix))).try_collect::<Vec<_>>().await.err());
            errors.extend(store.list_with_delimiter(Some(&path(prefix))).await.err());
        }
        errors.extend(store.list(None).try_collect::<Vec<_>>().await.err());
        errors
    };
    block_on(async {
        put(&store, "0000/manifest/1", b"x").await;
        std::fs::rename(directory.path().join("volume"), &moved).unwrap();
        assert!(!store.is_there());
        let errors = all(&store).await;
        assert_eq!(errors.len(), 3 * 4 + 3 * 2 + 1);
        errors.iter().for_each(is_trouble);
        std::fs::rename(&moved, directory.path().join("volume")).unwrap();
        assert!(store.is_there());
        // A missing object in a reachable store is reported missing, and so is a path below an object.
        for absent in ["absent", "0000/manifest", "0000/manifest/1/below"] {
            let error = store.get(&path(absent)).await.unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
            store.delete(&path("absent")).await.unwrap();
        }
        for empty in ["absent", "0000/manifest/1"] {
            assert!(store.list(Some(&path(empty))).try_collect::<Vec<_>>().await.unwrap().is_empty());
        }
        assert_eq!(content(&store, "0000/manifest/1").await, "x");
    });
}
