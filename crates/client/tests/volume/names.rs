//! Operations on names, by one client and by two.

use crate::site::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_client::{ClientConfig, FileSystem, InodeInfo, Library, NewNode, NodeInfo, Purpose, RenameFlags, block_on};
use varve_meta::server::{Server, ServerConfig};
use varve_types::{Errno, FileKind, InodeId, Mode, Timestamp};

/// Promise: every operation on names behaves as POSIX requires, through the client.
#[test]
fn names_are_created_and_removed() {
    let site = Site::new(4);
    let _server = site.serve();
    let fs = site.connect();
    let a = make_file(&fs, ROOT, "a");
    assert_eq!(a.attributes.kind, FileKind::Regular);
    assert_eq!(block_on(fs.lookup(&root(), ROOT, &name("a"))).unwrap().inode, a.inode);
    let missing = block_on(fs.lookup(&root(), ROOT, &name("b"))).unwrap_err();
    assert_eq!(missing.errno, Errno::ENOENT);

    let d = make_directory(&fs, ROOT, "d");
    assert_eq!(block_on(fs.attributes(&root(), ROOT)).unwrap().attributes.nlink, 3);
    block_on(fs.rename(&root(), ROOT, &name("a"), d.inode, &name("b"), RenameFlags::Replace)).unwrap();
    assert_eq!(block_on(fs.attributes(&root(), a.inode)).unwrap().inode, a.inode, "found under its new name");
    assert_eq!(block_on(fs.parent(d.inode)).unwrap(), ROOT);

    let linked = block_on(fs.link(&root(), a.inode, ROOT, &name("c"))).unwrap();
    assert_eq!((linked.inode, linked.attributes.nlink), (a.inode, 2));
    block_on(fs.unlink(&root(), d.inode, &name("b"))).unwrap();
    assert_eq!(block_on(fs.attributes(&root(), a.inode)).unwrap().attributes.nlink, 1);

    let target = NewNode::Symlink { target: b"to/there".to_vec() };
    let s = block_on(fs.make_node(&root(), ROOT, &name("s"), Mode::new(0o777), target)).unwrap();
    assert_eq!(block_on(fs.read_link(&root(), s.inode)).unwrap(), b"to/there");

    block_on(fs.rename(&root(), ROOT, &name("s"), ROOT, &name("c"), RenameFlags::Exchange)).unwrap();
    assert_eq!(block_on(fs.lookup(&root(), ROOT, &name("c"))).unwrap().inode, s.inode);
    assert_eq!(block_on(fs.read_link(&root(), s.inode)).unwrap(), b"to/there");

    block_on(fs.remove_directory(&root(), ROOT, &name("d"))).unwrap();
    assert_eq!(block_on(fs.attributes(&root(), ROOT)).unwrap().attributes.nlink, 2);
}

/// Promise: a client with an outdated map of a split directory finds every name, and learns the map from the replies.
#[test]
fn stale_maps_are_corrected() {
    let site = Site::new(8);
    let _server = site.serve();
    let (writer, reader) = (site.connect(), site.connect());
    let d = make_directory(&writer, ROOT, "d").inode;
    block_on(reader.lookup(&root(), ROOT, &name("d"))).unwrap();
    for round in 0..3 {
        for i in 0..200 {
            make_file(&writer, d, &format!("{round}-{i}"));
        }
        for i in 0..200 {
            let text = format!("{round}-{i}");
            block_on(reader.lookup(&root(), d, &name(&text))).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
    // The server splits asynchronously, and a split may come at any time.
    let retries_of_all = || {
        let before = reader.counters().retries();
        for i in 0..600 {
            block_on(reader.lookup(&root(), d, &name(&format!("{}-{}", i / 200, i % 200)))).unwrap();
        }
        reader.counters().retries() - before
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while reader.counters().retries() == 0 {
        assert!(Instant::now() < deadline, "the directory splits, and the reader is not told before");
        retries_of_all();
    }
    while retries_of_all() > 0 {
        assert!(Instant::now() < deadline, "what was learned is not used");
    }
}

/// Promise: a directory's link count and times are those of all its partitions together.
#[test]
fn a_split_directory_is_one_directory() {
    let site = Site::new(8);
    let _server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    for i in 0..150 {
        make_directory(&fs, d, &format!("sub-{i}"));
    }
    let before = block_on(fs.attributes(&root(), d)).unwrap().attributes;
    assert_eq!((before.size, before.nlink), (150, 152));
    for i in 0..40 {
        block_on(fs.remove_directory(&root(), d, &name(&format!("sub-{i}")))).unwrap();
    }
    let after = block_on(fs.attributes(&root(), d)).unwrap().attributes;
    assert_eq!(after.nlink, 112);
    assert!(after.mtime > before.mtime);
    assert_eq!(block_on(fs.lookup(&root(), ROOT, &name("d"))).unwrap().attributes, after);
}

/// Promise: a client without cached state of a split directory gets its counts and times over all partitions, in every
/// kind of request, also after a restart of the server; and also as the only client.
#[test]
fn new_client_sees_all_partitions_of_a_directory() {
    const THREAD: u32 = 7;
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let d = make_directory(&fs, ROOT, "d").inode;
    let last = (0..150).map(|i| make_directory(&fs, d, &format!("sub-{i}")).attributes.mtime).max().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let all = |described: InodeInfo| {
        described.partitions.len() == 4 && described.partitions.iter().map(|part| part.entries).sum::<u64>() == 150
    };
    while !block_on(fs.describe(&root(), d)).is_ok_and(all) {
        assert!(Instant::now() < deadline, "the directory is split");
    }
    block_on(fs.shutdown()).unwrap();
    server.stop(STOP).unwrap();
    type Ask = fn(Arc<FileSystem>, InodeId) -> Vec<NodeInfo>;
    let asks: [(&str, Ask); 4] = [
        ("looked up", |fs, _| vec![block_on(fs.lookup(&root(), ROOT, &name("d"))).unwrap()]),
        ("by its number", |fs, d| vec![block_on(fs.attributes(&root(), d)).unwrap()]),
        ("by its path", |fs, _| vec![block_on(Library::new(fs, root()).stat(b"/d")).unwrap()]),
        ("looked up by a thread, then asked for by that and another", |fs, d| {
            let looked_up = block_on(fs.lookup_by(THREAD, &root(), ROOT, &name("d"))).unwrap();
            let asked = [THREAD, THREAD + 1].map(|thread| block_on(fs.attributes_by(thread, &root(), d)).unwrap());
            vec![looked_up, asked[0], asked[1]]
        }),
    ];
    for (embedded, (how, ask)) in [false, true].into_iter().flat_map(|embedded| asks.map(|ask| (embedded, ask))) {
        let config = ServerConfig {
            embedded,
            unix_directory: Some(site.path("sockets")),
            memory_bytes: 128 * 1024 * 1024,
            ..ServerConfig::new(site.volume.clone())
        };
        let server = Server::start(config).unwrap();
        let fs = site.connect();
        for reported in ask(Arc::clone(&fs), d) {
            let found = reported.attributes;
            let shown = (found.size, found.nlink, found.mtime, found.ctime);
            assert_eq!(shown, (150, 152, last, last), "{how}, embedded {embedded}");
        }
        block_on(fs.shutdown()).unwrap();
        server.stop(STOP).unwrap();
    }
}

/// Promise: a lookup of a directory with one partition needs no additional requests: one for the name and one for the
/// directory.
#[test]
fn unsplit_directory_stat_takes_one_request() {
    let site = Site::new(4);
    let _server = site.serve();
    make_directory(&site.connect(), ROOT, "d");
    let fs = site.connect();
    let before = fs.counters().requests();
    block_on(fs.lookup(&root(), ROOT, &name("d"))).unwrap();
    assert_eq!(fs.counters().requests() - before, 2);
    let library = Library::new(site.connect(), root());
    let before = library.file_system().counters().requests();
    block_on(library.stat(b"/d")).unwrap();
    assert_eq!(library.file_system().counters().requests() - before, 2);
}

/// Promise: a file that another client renamed or linked is found by its present name or row.
#[test]
fn files_renamed_by_others_are_found() {
    let site = Site::new(4);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let a = make_file(&one, ROOT, "a").inode;
    block_on(other.lookup(&root(), ROOT, &name("a"))).unwrap();
    block_on(other.link(&root(), a, ROOT, &name("b"))).unwrap();
    assert_eq!(block_on(one.attributes(&root(), a)).unwrap().attributes.nlink, 2, "it has an inode row now");
    let gone = make_file(&one, ROOT, "gone").inode;
    block_on(other.unlink(&root(), ROOT, &name("gone"))).unwrap();
    assert_eq!(block_on(one.attributes(&root(), gone)).unwrap_err().errno, Errno::ESTALE);
}

/// Promise: times with nanoseconds, modes and xattrs are kept as set.
#[test]
fn attribute_changes_persist() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let a = make_file(&fs, ROOT, "a").inode;
    let mtime = Timestamp { seconds: -5, nanoseconds: 123_456_789 };
    let set = varve_types::SetAttributes {
        mode: Some(Mode::new(0o4711)),
        mtime: Some(varve_types::SetTime::To(mtime)),
        ..Default::default()
    };
    block_on(fs.set_attributes(&root(), a, set, None)).unwrap();
    block_on(fs.set_xattr(&root(), a, b"user.k", b"value", varve_client::XattrMode::Create)).unwrap();
    block_on(fs.shutdown()).unwrap();
    drop(server);
    let _server = site.serve();
    let fs = site.connect();
    let node = block_on(fs.lookup(&root(), ROOT, &name("a"))).unwrap();
    assert_eq!((node.attributes.mode, node.attributes.mtime), (Mode::new(0o4711), mtime));
    assert_eq!(block_on(fs.get_xattr(&root(), a, b"user.k")).unwrap(), b"value");
    assert_eq!(block_on(fs.list_xattrs(&root(), a)).unwrap(), [b"user.k".to_vec()]);
    block_on(fs.remove_xattr(&root(), a, b"user.k")).unwrap();
    assert_eq!(block_on(fs.get_xattr(&root(), a, b"user.k")).unwrap_err().errno, Errno::ENODATA);
}

/// Promise: the directory attributes that a volume's only client caches equal those of the server.
#[test]
fn lone_client_caches_its_directories() {
    let site = Site::new(4);
    let config = varve_meta::server::ServerConfig {
        embedded: true,
        unix_directory: Some(site.path("sockets")),
        ..varve_meta::server::ServerConfig::new(site.volume.clone())
    };
    let _server = varve_meta::server::Server::start(config).unwrap();
    let fs = site.connect();
    let directory = make_directory(&fs, ROOT, "d").inode;
    let beside = make_directory(&fs, ROOT, "beside").inode;
    let agree = |step: &str| {
        let observer = FileSystem::connect(ClientConfig { purpose: Purpose::Observe, ..site.config() }).unwrap();
        for inode in [ROOT, directory, beside] {
            let mine = block_on(fs.attributes(&root(), inode)).unwrap().attributes;
            let theirs = block_on(observer.attributes(&root(), inode)).unwrap().attributes;
            assert_eq!(mine, theirs, "{step}");
        }
    };
    let gone = |text: &str| block_on(fs.lookup(&root(), directory, &name(text))).unwrap_err().errno;
    agree("empty");
    // More than a partition holds, so that names move to other partitions meanwhile.
    for number in 0..100 {
        make_file(&fs, directory, &format!("f{number}"));
        if number % 10 == 0 {
            agree("making files");
        }
    }
    let requests = fs.counters().requests();
    assert_eq!(gone("absent"), Errno::ENOENT);
    block_on(fs.attributes(&root(), directory)).unwrap();
    assert_eq!(fs.counters().requests(), requests, "what is known is not asked for");
    make_directory(&fs, directory, "inner");
    agree("a directory in it");
    let file = block_on(fs.lookup(&root(), directory, &name("f1"))).unwrap().inode;
    block_on(fs.link(&root(), file, beside, &name("link"))).unwrap();
    agree("a link");
    assert_eq!(block_on(fs.lookup(&root(), beside, &name("link"))).unwrap().inode, file);
    block_on(fs.rename(&root(), directory, &name("f2"), beside, &name("f2"), RenameFlags::Replace)).unwrap();
    agree("a rename");
    assert_eq!(gone("f2"), Errno::ENOENT);
    block_on(fs.lookup(&root(), beside, &name("f2"))).unwrap();
    block_on(fs.rename(&root(), directory, &name("inner"), beside, &name("inner"), RenameFlags::Replace)).unwrap();
    agree("a directory's rename");
    block_on(fs.rename(&root(), directory, &name("f3"), beside, &name("f2"), RenameFlags::Exchange)).unwrap();
    agree("an exchange");
    block_on(fs.lookup(&root(), directory, &name("f3"))).unwrap();
    block_on(fs.remove_directory(&root(), beside, &name("inner"))).unwrap();
    block_on(fs.unlink(&root(), beside, &name("f2"))).unwrap();
    agree("removals");
    let set = varve_types::SetAttributes { mode: Some(Mode::new(0o700)), ..Default::default() };
    block_on(fs.set_attributes(&root(), directory, set, None)).unwrap();
    agree("chmod");
    block_on(fs.set_xattr(&root(), directory, b"user.x", b"1", varve_client::XattrMode::CreateOrReplace)).unwrap();
    agree("an attribute");
    block_on(fs.unlink(&root(), directory, &name("f4"))).unwrap();
    make_file(&fs, directory, "f4");
    agree("made again");
    block_on(fs.lookup(&root(), directory, &name("f4"))).unwrap();
}

/// Promise: mode and owner of a directory are current at once, even if another client changes them; times and counts
/// are current at the latest when the directory's lease has expired.
#[test]
fn directory_changes_by_others_appear_within_the_lease() {
    let site = Site::new(4);
    let _server = site.serve();
    let (fs, other) = (site.connect(), site.connect());
    let directory = make_directory(&fs, ROOT, "d").inode;
    let shown = || block_on(fs.attributes(&root(), directory)).unwrap();
    make_file(&fs, directory, "mine");
    assert_eq!(shown().attributes.size, 1);
    make_file(&fs, directory, "also");
    let known = shown();
    assert_eq!(known.attributes.size, 2, "one's own changes show at once");
    make_file(&other, directory, "theirs");
    let set = varve_types::SetAttributes { mode: Some(Mode::new(0o700)), ..Default::default() };
    block_on(other.set_attributes(&root(), directory, set, None)).unwrap();
    // The change of the mode has waited for the lease, so nothing from before it is cached any more.
    let after = shown().attributes;
    assert_eq!((after.mode, after.size), (Mode::new(0o700), 3));
}

/// Promise: a user of a name through the library gets one of its files while others replace it.
#[test]
fn replaced_name_is_never_stale() {
    let site = Site::new(4);
    let _server = site.serve();
    let (writer, user) = (Library::new(site.connect(), root()), Library::new(site.connect(), root()));
    let replace = |round: usize| -> varve_client::Result<()> {
        block_on(writer.write_file(b"/next", Mode::new(0o644), format!("round {round}").as_bytes()))?;
        block_on(writer.rename(b"/next", b"/name", RenameFlags::Replace))
    };
    replace(0).unwrap();
    let using = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1.. {
                replace(round).unwrap();
                if !using.load(Relaxed) {
                    return;
                }
            }
        });
        let mut failures = Vec::new();
        for call in 0..300 {
            let linked = format!("/link-{call}");
            let done = match call % 3 {
                0 => block_on(user.read_file(b"/name")).map(|content| assert!(content.starts_with(b"round "))),
                1 => block_on(user.stat(b"/name")).map(drop),
                _ => block_on(user.link(b"/name", linked.as_bytes())),
            };
            failures.extend(done.err().map(|failure| (call, failure)));
        }
        using.store(false, Relaxed);
        assert_eq!(failures, []);
    });
}
