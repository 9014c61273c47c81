//! Changes that fail with an unknown outcome, at the only client of a volume.

use super::late::{ChangeTiming, Late};
use super::site::{ROOT, STOP, Site, close, make_directory, make_file, name, read, root, write};
use std::sync::Arc;
use std::time::Duration;
use varve_client::{FileSystem, NewNode, OpenFlags, RenameFlags, Result, UnknownOutcome, XattrMode, block_on};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Errno, InodeId, Mode, SetAttributes};

/// Longer than any lease.
const LONG: Duration = Duration::from_secs(60);

/// The only client of a volume, the wrapper that delays its changes, and the server.
fn alone(site: &Site) -> (Arc<FileSystem>, Late, Arc<Server>) {
    let config = ServerConfig {
        workers: 2,
        embedded: true,
        unix_directory: Some(site.path("sockets")),
        memory_bytes: 128 * 1024 * 1024,
        ..ServerConfig::new(site.volume.clone())
    };
    let server = Arc::new(Server::start(config).unwrap());
    let late = Late::of(Arc::clone(&server));
    let fs = FileSystem::connect_within(site.config(), Arc::new(late.clone())).unwrap();
    (fs, late, server)
}

fn look_up(fs: &FileSystem, at: InodeId, text: &str) -> Result<varve_client::NodeInfo> {
    block_on(fs.lookup(&root(), at, &name(text)))
}

/// The inode of a name, whose entry must not be cached.
fn next_unknown_outcome(fs: &FileSystem, at: InodeId, text: &str) -> Option<InodeId> {
    match look_up(fs, at, text) {
        Ok(node) => {
            assert!(node.entry_ttl.is_zero(), "{text} is believed");
            Some(node.inode)
        }
        Err(failure) => {
            assert_eq!(failure.errno, Errno::ENOENT, "{text}: {failure}");
            assert!(fs.absent_ttl(at, text.as_bytes()).is_zero(), "{text} is believed to be absent");
            None
        }
    }
}

fn attributes_ttl(fs: &FileSystem, inode: InodeId) -> Duration {
    block_on(fs.attributes(&root(), inode)).unwrap().attributes_ttl
}

fn meaning(fs: &FileSystem, at: InodeId, text: &str) -> Option<InodeId> {
    look_up(fs, at, text).ok().map(|node| node.inode)
}

type Change = fn(&FileSystem, InodeId, InodeId) -> Result<()>;

/// Changes of the names `a` and `b`, of which the first refers to a file with some inode, and their state after the
/// change: the same inode, a new one, or none.
const CHANGES: [(&str, Change, [Option<bool>; 2]); 9] = [
    (
        "create",
        |fs, at, _| block_on(fs.create(&root(), at, &name("b"), Mode::new(0o644), OpenFlags::READ_WRITE)).map(drop),
        [Some(true), Some(false)],
    ),
    (
        "make node",
        |fs, at, _| block_on(fs.make_node(&root(), at, &name("b"), Mode::new(0o644), NewNode::Fifo)).map(drop),
        [Some(true), Some(false)],
    ),
    (
        "make directory",
        |fs, at, _| block_on(fs.make_directory(&root(), at, &name("b"), Mode::new(0o755))).map(drop),
        [Some(true), Some(false)],
    ),
    ("link", |fs, at, inode| block_on(fs.link(&root(), inode, at, &name("b"))).map(drop), [Some(true), Some(true)]),
    ("unlink", |fs, at, _| block_on(fs.unlink(&root(), at, &name("a"))), [None, None]),
    (
        "rename",
        |fs, at, _| block_on(fs.rename(&root(), at, &name("a"), at, &name("b"), RenameFlags::Replace)),
        [None, Some(true)],
    ),
    (
        "set attributes",
        |fs, _, inode| {
            let set = SetAttributes { mode: Some(Mode::new(0o600)), ..Default::default() };
            block_on(fs.set_attributes(&root(), inode, set, None)).map(drop)
        },
        [Some(true), None],
    ),
    (
        "set xattr",
        |fs, _, inode| block_on(fs.set_xattr(&root(), inode, b"user.x", b"value", XattrMode::CreateOrReplace)),
        [Some(true), None],
    ),
    ("remove xattr", |fs, _, inode| block_on(fs.remove_xattr(&root(), inode, b"user.before")), [Some(true), None]),
];

/// Promise: names and attributes that such a change could have affected are not cached, whenever it is made; all others
/// are. A known inode is found at its present location.
#[test]
fn cache_distrusts_targets_of_unknown_outcomes() {
    let site = Site::new(4);
    let (fs, late, server) = alone(&site);
    fs.subscribe_unknown_outcomes();
    for (number, (what, change, names)) in CHANGES.into_iter().enumerate() {
        for made in [ChangeTiming::AtOnce, ChangeTiming::Later] {
            let at = make_directory(&fs, ROOT, &format!("{number} {made:?}")).inode;
            let held = make_file(&fs, at, "a");
            if what == "remove xattr" {
                block_on(fs.set_xattr(&root(), held.inode, b"user.before", b"value", XattrMode::CreateOrReplace))
                    .unwrap();
            }
            let other = make_file(&fs, at, "other");
            assert!(held.entry_ttl > LONG && attributes_ttl(&fs, at) > LONG, "nothing is of unknown outcome yet");
            assert_eq!(look_up(&fs, at, "b").unwrap_err().errno, Errno::ENOENT);
            assert!(fs.absent_ttl(at, b"b") > LONG);

            late.set(made);
            let failure = change(&fs, at, held.inode).expect_err(what);
            assert!(failure.errno == Errno::EIO && failure.outcome_unknown, "{what}: {failure}");
            late.set(ChangeTiming::Truly);
            let touched: &[&str] = match what {
                "unlink" => &["a"],
                "rename" => &["a", "b"],
                what if what.starts_with("set") || what.starts_with("remove") => &[],
                _ => &["b"],
            };
            let touches_names = !touched.is_empty();
            if made == ChangeTiming::Later {
                let before = |text| {
                    if touched.contains(&text) { next_unknown_outcome(&fs, at, text) } else { meaning(&fs, at, text) }
                };
                assert_eq!([before("a"), before("b")], [Some(held.inode), None], "{what} is not made yet");
                assert_eq!(late.make(), 1);
            }
            if touches_names {
                // By its number, before the new name is looked up.
                let found = block_on(fs.attributes(&root(), held.inode));
                assert_eq!(found.is_ok(), what != "unlink", "{what}, {made:?}: {found:?}");
                for (text, as_before) in ["a", "b"].into_iter().zip(names) {
                    let meant = if touched.contains(&text) {
                        next_unknown_outcome(&fs, at, text)
                    } else {
                        meaning(&fs, at, text)
                    };
                    assert_eq!(meant.map(|inode| inode == held.inode), as_before, "{what}, {made:?}: {text}");
                }
                assert!(attributes_ttl(&fs, at).is_zero(), "{what}");
            } else {
                assert!(attributes_ttl(&fs, held.inode).is_zero() && attributes_ttl(&fs, at) > LONG, "{what}");
            }
            let reported = fs.next_unknown_outcome();
            let reported_by = |text: &str| reported.contains(&UnknownOutcome::Name(at, name(text)));
            assert!(
                ["a", "b", "other"].iter().all(|text| reported_by(text) == touched.contains(text)),
                "{what}: {reported:?}"
            );
            assert_eq!(reported.contains(&UnknownOutcome::Attributes(at)), touches_names, "{what}: {reported:?}");
            assert!(fs.next_unknown_outcome().is_empty(), "it is told once");
            assert!(
                look_up(&fs, at, "other").unwrap().entry_ttl > LONG && attributes_ttl(&fs, other.inode) > LONG,
                "{what}"
            );
        }
    }
    block_on(fs.shutdown()).unwrap();
    drop(fs);
    server.stop(super::site::STOP).unwrap();
}

/// Promise: a file that is open when it is renamed or removed late stays usable.
#[test]
fn open_file_is_found_after_late_rename() {
    for what in ["rename", "exchange", "unlink", "remove directory"] {
        let site = Site::new(4);
        let (fs, late, server) = alone(&site);
        let (inode, handle) = super::site::create(&fs, "a");
        write(&fs, handle, 0, b"before");
        make_directory(&fs, ROOT, "b");
        let other = make_file(&fs, ROOT, "c");
        late.set(ChangeTiming::Later);
        let (a, c) = (name("a"), name("c"));
        let failure = match what {
            "rename" => block_on(fs.rename(&root(), ROOT, &a, ROOT, &c, RenameFlags::Replace)),
            "exchange" => block_on(fs.rename(&root(), ROOT, &a, ROOT, &c, RenameFlags::Exchange)),
            "unlink" => block_on(fs.unlink(&root(), ROOT, &a)),
            _ => block_on(fs.remove_directory(&root(), ROOT, &name("b"))),
        };
        assert!(failure.unwrap_err().outcome_unknown, "{what}");
        late.set(ChangeTiming::Truly);
        late.make();
        write(&fs, handle, 6, b" and after");
        assert_eq!(read(&fs, handle, 0, 100), b"before and after", "{what}");
        assert!(
            block_on(fs.attributes(&root(), inode)).unwrap().attributes_ttl.is_zero() || what == "remove directory"
        );
        block_on(fs.fsync(handle, false)).unwrap();
        let expected = match what {
            "rename" => [None, Some(inode)],
            "exchange" => [Some(other.inode), Some(inode)],
            "unlink" => [None, Some(other.inode)],
            _ => [Some(inode), Some(other.inode)],
        };
        assert_eq!(["a", "c"].map(|text| meaning(&fs, ROOT, text)), expected, "{what}");
        assert_eq!(look_up(&fs, ROOT, "b").is_ok(), what != "remove directory");
        close(&fs, handle);
        block_on(fs.shutdown()).unwrap();
        drop(fs);
        server.stop(super::site::STOP).unwrap();
    }
}

/// Promise: an error which guarantees that nothing was changed leaves no unknown outcome.
#[test]
fn refused_change_has_a_known_outcome() {
    let site = Site::new(4);
    let (fs, _late, server) = alone(&site);
    fs.subscribe_unknown_outcomes();
    make_file(&fs, ROOT, "a");
    let refused = [
        block_on(fs.make_directory(&root(), ROOT, &name("a"), Mode::new(0o755))).map(drop),
        block_on(fs.unlink(&root(), ROOT, &name("b"))),
        block_on(fs.rename(&root(), ROOT, &name("b"), ROOT, &name("a"), RenameFlags::Replace)),
        block_on(fs.remove_directory(&root(), ROOT, &name("a"))),
    ];
    assert!(refused.into_iter().all(|refused| !refused.unwrap_err().outcome_unknown));
    assert!(look_up(&fs, ROOT, "a").unwrap().entry_ttl > LONG && fs.absent_ttl(ROOT, b"b") > LONG);
    assert!(attributes_ttl(&fs, ROOT) > LONG && fs.next_unknown_outcome().is_empty());
    block_on(fs.shutdown()).unwrap();
    drop(fs);
    server.stop(super::site::STOP).unwrap();
}

/// Promise: an open whose reply this client did not get, and which the server executes later, leaves nothing open, even
/// if a release arrives first; and a file that was opened again meanwhile stays open.
#[test]
fn abandoned_open_leaves_nothing_open() {
    let site = Site::new(4);
    let (fs, late, _server) = alone(&site);
    let files = ["given up", "opened again", "closed again"].map(|text| make_file(&fs, ROOT, text).inode);
    let open = |inode| block_on(fs.open(&root(), inode, OpenFlags::READ_WRITE));
    let open_files = || block_on(fs.shard_status(ROOT.shard())).unwrap().open_files;
    late.set(ChangeTiming::OpenLater);
    for inode in files {
        assert!(open(inode).unwrap_err().outcome_unknown);
    }
    late.set(ChangeTiming::Truly);
    let again = open(files[1]).unwrap().handle;
    close(&fs, open(files[2]).unwrap().handle);
    // Longer than the delay of a release.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(late.make(), 3);
    assert_eq!(open_files(), 3);
    let begun = std::time::Instant::now();
    while open_files() > 1 {
        assert!(begun.elapsed() < 4 * STOP, "it stays open");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(open_files(), 1);
    close(&fs, again);
}
