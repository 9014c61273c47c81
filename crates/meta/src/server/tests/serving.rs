//! Calls that reach the tables.

use super::client::request;
use super::*;
use std::collections::BTreeSet;
use varve_proto::{
    EntryReply, FileContent, Locator, NameListing, NewNode, NodeReply, OpenMode, RenameFlags, WireCredentials,
};
use varve_types::{Errno, InodeId};

const ROOT: u64 = InodeId::ROOT.0;

fn create(name: &str) -> Call {
    Call::Create { parent: ROOT, name: name.into(), node: NewNode::Regular, mode: 0o644, open: false }
}

fn lookup(name: &str) -> Call {
    Call::Lookup { parent: ROOT, name: name.into() }
}

fn node(reply: Result<Reply, CallFailure>) -> NodeReply {
    match reply {
        Ok(Reply::Node(node)) => node,
        other => panic!("{other:?}"),
    }
}

/// A file that was created is found and listed, and no longer found after its removal; the same holds after a restart.
#[test]
fn files_are_created_and_removed() {
    let site = Site::new(4);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let made = node(client.call(0, create("a")));
    assert_eq!(client.call(0, create("a")), Err(CallFailure::Errno(Errno::EEXIST.number())));
    node(client.call(0, create("b")));
    server.stop(STOP).unwrap();

    let server = site.start();
    let mut client = TestClient::of(&server, &site, 2, Purpose::Work);
    match client.call(0, lookup("a")) {
        Ok(Reply::Entry { entry: EntryReply::Node(found), lease_ms: 0 }) => assert_eq!(found, made),
        other => panic!("{other:?}"),
    }
    let listing = match client.call(0, Call::List { directory: ROOT, from: 0, bytes_max: 64 * 1024 }) {
        Ok(Reply::Listing(listing)) => listing,
        other => panic!("{other:?}"),
    };
    assert_eq!(listing.next, None);
    let mut names: Vec<_> = listing.children.iter().map(|child| child.name.as_slice()).collect();
    names.sort();
    assert_eq!(names, [b"a", b"b"]);
    let removed = client.call(0, Call::Unlink { parent: ROOT, name: b"a".to_vec() });
    let last =
        |reply: &Reply| matches!(reply, Reply::Removed { last_name_of: Some(inode), .. } if *inode == made.inode);
    assert!(removed.as_ref().is_ok_and(last), "{removed:?}");
    assert_eq!(client.call(0, lookup("a")), Err(CallFailure::Errno(Errno::ENOENT.number())));
}

fn list_names(client: &mut TestClient<UnixStream>, bytes_max: u32) -> NameListing {
    match client.call(0, Call::ListNames { directory: ROOT, from: 0, bytes_max }) {
        Ok(Reply::Names(listing)) => listing,
        other => panic!("{other:?}"),
    }
}

/// Promise: the version of a partition's names changes with every change of a name, and with no other change.
#[test]
fn names_version_follows_changes_of_names() {
    let site = Site::new(4);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let made = node(client.call(0, create("a")));
    node(client.call(0, create("b")));
    let listed = list_names(&mut client, 64 * 1024);
    let mut names: Vec<_> = listed.names.iter().map(|entry| (entry.name.as_slice(), entry.inode)).collect();
    names.sort();
    assert_eq!(names[0], (&b"a"[..], made.inode));
    assert_eq!((names.len(), listed.next), (2, None));
    let known = list_names(&mut client, 0);
    assert_eq!((known.names.len(), known.partition), (0, listed.partition), "nothing changed");
    assert!(known.partition.version.is_some());

    let at = Locator::Entry { parent: ROOT, name: b"a".to_vec(), inode: made.inode };
    let set = varve_proto::WireSetAttributes { mode: Some(0o600), ..varve_types::SetAttributes::default().into() };
    node(client.call(0, Call::SetAttributes { at: at.clone(), set }));
    node(client.call(0, Call::WriteInline { at, generation: made.generation, data: b"x".to_vec(), mtime: None }));
    assert_eq!(list_names(&mut client, 0).partition, listed.partition, "no name changed");

    let rename = |name: &str, new: &str| Call::Rename {
        parent: ROOT,
        name: name.into(),
        new_parent: ROOT,
        new_name: new.into(),
        flags: RenameFlags::Replace,
    };
    let made = Call::MakeDirectory { parent: ROOT, name: b"d".to_vec(), mode: 0o755 };
    let changes =
        [create("c"), rename("a", "e"), rename("e", "b"), made, Call::Unlink { parent: ROOT, name: b"c".to_vec() }];
    let mut versions = vec![listed.partition.version];
    for change in changes {
        client.call(0, change.clone()).unwrap();
        let version = list_names(&mut client, 0).partition.version;
        assert!(!versions.contains(&version), "{change:?}");
        versions.push(version);
    }
    server.stop(STOP).unwrap();

    let server = site.start();
    let mut client = TestClient::of(&server, &site, 2, Purpose::Work);
    let version = list_names(&mut client, 0).partition.version;
    assert!(!versions.contains(&version), "another server does not know of changes since");
}

/// A retry gets the first reply, from the same server and from the next one.
#[test]
fn retry_gets_the_first_reply() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let first = request(1, 3, 1, 0, create("once"));
    let answer = client.exchange(first.clone()).unwrap();
    node(answer.clone());
    assert_eq!(client.exchange(first.clone()).unwrap(), answer);
    let mut elsewhere = TestClient::of(&server, &site, 1, Purpose::Work);
    assert_eq!(elsewhere.exchange(first.clone()).unwrap(), answer, "over another connection");
    server.stop(STOP).unwrap();

    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    assert_eq!(client.exchange(first).unwrap(), answer, "by the next server");
    let other = client.exchange(request(1, 3, 2, 0, create("once"))).unwrap();
    assert_eq!(other, Err(CallFailure::Errno(Errno::EEXIST.number())), "a new call is a new call");
}

/// Invalid names are refused with the specific error, and invalid ids as stale.
#[test]
fn impossible_names_and_inodes_are_refused() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let failed = |reply: Result<Reply, CallFailure>| match reply {
        Err(CallFailure::Errno(number)) => Errno::from_number(number),
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(client.call(0, lookup(&"x".repeat(256)))), Errno::ENAMETOOLONG);
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(failed(client.call(0, create(name))), Errno::EINVAL, "{name:?}");
    }
    let stray = Call::Lookup { parent: u64::MAX, name: b"a".to_vec() };
    assert_eq!(failed(client.call(0, stray)), Errno::ESTALE);
    assert!(matches!(client.call(3, Call::Sync), Err(CallFailure::NotOwner { .. })));
}

/// Observers can read but change nothing; an embedded server lets all clients except its own mount only observe.
#[test]
fn observers_change_nothing() {
    let mut site = Site::new(1);
    site.config.embedded = true;
    let server = site.start();
    let mut own = TestClient::of(&server, &site, 1, Purpose::Work);
    node(own.call(0, create("a")));
    let stream = UnixStream::connect(socket(&server, 0)).unwrap();
    let refused = TestClient::new(stream, &site.key, 2, Purpose::Work).err().unwrap();
    assert!(refused.contains("inside the mount"), "{refused}");
    let mut observer = TestClient::of(&server, &site, 2, Purpose::Observe);
    assert!(observer.call(0, lookup("a")).is_ok());
    let refused = Err(CallFailure::Errno(Errno::EROFS.number()));
    assert_eq!(observer.call(0, create("b")), refused);
    assert_eq!(observer.call(0, Call::Unlink { parent: ROOT, name: b"a".to_vec() }), refused);
    assert!(site.config.volume.read_server_record().unwrap().unwrap().embedded);
}

/// Lets other users connect to the first worker, whose socket does not admit them by default.
fn open_to_users(server: &Server) {
    let path = std::path::PathBuf::from(socket(server, 0));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o600);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
}

/// A user's calls are made with that user's credentials, whatever the request says; root may act for other users.
#[test]
fn credentials_are_forced_to_the_peer() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let site = Site::new(1);
    let server = site.start();
    let open = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    };
    open(site.directory.path());
    open_to_users(&server);
    let mut root = TestClient::of(&server, &site, 1, Purpose::Work);
    let made = Call::MakeDirectory { parent: ROOT, name: b"open".to_vec(), mode: 0o777 };
    let directory = node(root.call(0, made)).inode;
    let made = Call::MakeDirectory { parent: ROOT, name: b"secret".to_vec(), mode: 0o711 };
    let secret = node(root.call(0, made)).inode;
    let in_it = |name: &str| Call::Create {
        parent: directory,
        name: name.into(),
        node: NewNode::Regular,
        mode: 0o600,
        open: false,
    };
    let mut spoken_for = request(1, 2, 1, 0, in_it("spoken-for"));
    spoken_for.credentials = WireCredentials::user(4321, 4321, vec![]);
    assert_eq!(node(root.exchange(spoken_for).unwrap()).attributes.uid, 4321);
    let made = std::thread::scope(|scope| {
        let user = scope.spawn(|| {
            // The system call changes only this thread, while libc's function would change the process.
            let set = unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) };
            assert_eq!(set, 0);
            let mut user = TestClient::of(&server, &site, 2, Purpose::Work);
            let list = Call::List { directory: secret, from: 0, bytes_max: 4096 };
            assert_eq!(user.call(0, list), Err(CallFailure::Errno(Errno::EACCES.number())), "not the user's to read");
            node(user.call(0, in_it("forced")))
        });
        user.join().unwrap()
    });
    assert_eq!(made.attributes.uid, 1234, "the request said 0");
}

/// Promise: the creator of a file that not even its owner may write can reopen it, as its client does when content
/// moves and after a restart; a session that has the file open for reading cannot write it.
#[test]
fn a_file_without_permissions_is_opened_again() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let site = Site::new(1);
    let server = site.start();
    let permit = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(site.directory.path(), permit).unwrap();
    open_to_users(&server);
    let mut root = TestClient::of(&server, &site, 1, Purpose::Work);
    let made = Call::MakeDirectory { parent: ROOT, name: b"open".to_vec(), mode: 0o777 };
    let parent = node(root.call(0, made)).inode;
    let refused = |errno: Errno| Err(CallFailure::Errno(errno.number()));
    let play = || {
        let set = unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) };
        assert_eq!(set, 0);
        let (mut maker, mut comes_back) =
            (TestClient::of(&server, &site, 2, Purpose::Work), TestClient::of(&server, &site, 3, Purpose::Work));
        let node_of = NewNode::Regular;
        let made =
            node(maker.call(0, Call::Create { parent, name: b"f".to_vec(), node: node_of, mode: 0o444, open: true }));
        let at = Locator::Entry { parent, name: b"f".to_vec(), inode: made.inode };
        let open = |client: &mut TestClient<UnixStream>, session, uid, mode, truncate| {
            let call = Call::Open { at: at.clone(), mode, truncate };
            client.number += 1;
            let mut asked = request(session, 1, client.number, 0, call);
            asked.credentials = WireCredentials::user(uid, uid, vec![]);
            client.exchange(asked).unwrap()
        };
        assert!(open(&mut maker, 2, 0, OpenMode::ReadWrite, false).is_ok(), "it has it open");
        assert_eq!(
            open(&mut maker, 2, 1234, OpenMode::ReadWrite, false),
            refused(Errno::EACCES),
            "a caller's own open"
        );
        assert_eq!(
            open(&mut maker, 2, 0, OpenMode::ReadWrite, true),
            refused(Errno::EACCES),
            "a cut is a caller's own"
        );
        assert!(open(&mut comes_back, 3, 1234, OpenMode::Read, false).is_ok());
        let write = Call::WriteInline { at: at.clone(), generation: made.generation, data: vec![1], mtime: None };
        assert_eq!(comes_back.call(0, write.clone()), refused(Errno::EBADF), "it has it open to read it");
        assert!(
            open(&mut comes_back, 3, 0, OpenMode::ReadWrite, false).is_ok(),
            "its owner, who may set the permissions"
        );
        assert!(comes_back.call(0, write).is_ok());
        at
    };
    let at = std::thread::scope(|scope| scope.spawn(play).join().unwrap());
    let another = || {
        let set = unsafe { libc::syscall(libc::SYS_setresuid, 4321, 4321, 4321) };
        assert_eq!(set, 0);
        let mut other = TestClient::of(&server, &site, 4, Purpose::Work);
        other.call(0, Call::Open { at, mode: OpenMode::ReadWrite, truncate: false })
    };
    let opened = std::thread::scope(|scope| scope.spawn(another).join().unwrap());
    assert_eq!(opened, refused(Errno::EACCES), "it is not the owner, whatever its request says");
}

/// Promise: a file that a user has open across a server restart stays open even if the permissions to open it were
/// revoked meanwhile; the claim alone does not let anybody read the file.
#[test]
fn a_file_whose_permissions_fell_stays_open_over_a_restart() {
    if rustix::process::geteuid().as_raw() != 0 {
        return;
    }
    let site = Site::new(1);
    let permit = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(site.directory.path(), permit).unwrap();
    let server = site.start();
    let mut root = TestClient::of(&server, &site, 1, Purpose::Work);
    let create = Call::Create { parent: ROOT, name: b"f".to_vec(), node: NewNode::Regular, mode: 0o600, open: true };
    let inode = node(root.call(0, create)).inode;
    server.stop(STOP).unwrap();
    let server = site.start();
    open_to_users(&server);
    let mut root = TestClient::of(&server, &site, 3, Purpose::Work);
    let at = Locator::Entry { parent: ROOT, name: b"f".to_vec(), inode };
    let come_back = || {
        let set = unsafe { libc::syscall(libc::SYS_setresuid, 1234, 1234, 1234) };
        assert_eq!(set, 0);
        let mut user = TestClient::of(&server, &site, 2, Purpose::Work);
        for _ in 0..2 {
            let opened = user.call(0, Call::Open { at: at.clone(), mode: OpenMode::Read, truncate: false });
            assert_eq!(opened, Err(CallFailure::Errno(Errno::EACCES.number())));
        }
        user
    };
    let mut user = std::thread::scope(|scope| scope.spawn(come_back).join().unwrap());
    root.call(0, Call::Unlink { parent: ROOT, name: b"f".to_vec() }).unwrap();
    let mut open_files = || match root.call(0, Call::ShardStatus) {
        Ok(Reply::ShardStatus(status)) => status.open_files,
        other => panic!("{other:?}"),
    };
    assert_eq!(open_files(), 1, "it is kept as long as the user's client has it open");
    let kept = root.call(0, Call::GetAttributes { at: Locator::Inode { inode } });
    assert!(kept.is_ok(), "{kept:?}");
    let mut release = request(2, 1, user.number + 1, 0, Call::Release);
    release.released = vec![inode];
    assert_eq!(user.exchange(release).unwrap(), Ok(Reply::Done));
    let Ok(Reply::ShardStatus(status)) = root.call(0, Call::ShardStatus) else { panic!("no status") };
    assert_eq!(status.open_files, 0);
}

/// An open file outlives its name until the session releases it; then its content is gone.
#[test]
fn an_open_file_outlives_its_name() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let mut call = create("a");
    if let Call::Create { open, .. } = &mut call {
        *open = true;
    }
    let made = node(client.call(0, call));
    let at = Locator::Entry { parent: ROOT, name: b"a".to_vec(), inode: made.inode };
    let write = |at: &Locator, generation: u32, data: &[u8]| Call::WriteInline {
        at: at.clone(),
        generation,
        data: data.to_vec(),
        mtime: None,
    };
    let written = node(client.call(0, write(&at, made.generation, b"bytes")));
    assert_eq!(written.attributes.size, 5);
    let mut other = TestClient::of(&server, &site, 2, Purpose::Work);
    other.call(0, Call::Unlink { parent: ROOT, name: b"a".to_vec() }).unwrap();
    let by_inode = Locator::Inode { inode: made.inode };
    assert_eq!(node(client.call(0, write(&by_inode, written.generation, b"more bytes"))).attributes.size, 10);
    let opened = node(client.call(0, Call::Open { at: by_inode.clone(), mode: OpenMode::Read, truncate: false }));
    assert_eq!(opened.content, FileContent::Inline { data: Some(b"more bytes".to_vec()) });
    let mut release = request(1, 1, client.number + 1, 0, Call::Release);
    release.released = vec![made.inode];
    assert_eq!(client.exchange(release).unwrap(), Ok(Reply::Done));
    let deadline = Instant::now() + Duration::from_secs(10);
    client.number += 1;
    while client.call(0, Call::GetAttributes { at: by_inode.clone() }) != Err(CallFailure::NotHere) {
        assert!(Instant::now() < deadline, "the orphan was not reaped");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The name of a directory is leased, and another session's rename of the directory waits until the lease has ended.
#[test]
fn a_rename_waits_for_the_leases_of_others() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    node(client.call(0, Call::MakeDirectory { parent: ROOT, name: b"d".to_vec(), mode: 0o755 }));
    std::thread::sleep(LEASE);
    let begin = Instant::now();
    match client.call(0, lookup("d")) {
        Ok(Reply::Entry { entry: EntryReply::Elsewhere { .. }, lease_ms }) => {
            assert_eq!(u128::from(lease_ms), LEASE.as_millis());
        }
        other => panic!("{other:?}"),
    }
    let rename = |name: &str, new_name: &str| Call::Rename {
        parent: ROOT,
        name: name.into(),
        new_parent: ROOT,
        new_name: new_name.into(),
        flags: RenameFlags::Replace,
    };
    let mut other = TestClient::of(&server, &site, 2, Purpose::Work);
    other.call(0, rename("d", "e")).unwrap();
    assert!(begin.elapsed() >= LEASE, "{:?}", begin.elapsed());
    client.call(0, lookup("e")).unwrap();
    let begin = Instant::now();
    client.call(0, rename("e", "f")).unwrap();
    assert!(begin.elapsed() < LEASE / 2, "one's own lease does not hold one back: {:?}", begin.elapsed());
}

/// Files that many connections create concurrently, at all workers and while the directory splits, all exist.
#[test]
fn a_directory_splits_under_load() {
    let site = Site::new(4);
    let server = site.start();
    let count = 400;
    std::thread::scope(|scope| {
        for session in 1..=4u64 {
            let (site, server) = (&site, &server);
            scope.spawn(move || {
                let mut clients = [0, 1].map(|worker| TestClient::at(server, site, worker, session, Purpose::Work));
                for i in 0..count {
                    make_somewhere(&mut clients, &format!("{session}-{i}"));
                }
            });
        }
    });
    let expected: BTreeSet<_> =
        (1..=4).flat_map(|s| (0..count).map(move |i| format!("{s}-{i}").into_bytes())).collect();
    let check = |server: &Server| {
        let mut clients = [0, 1].map(|worker| TestClient::at(server, &site, worker, 9, Purpose::Work));
        let listed = list_all(&mut clients);
        assert_eq!(listed.len(), expected.len(), "every entry is listed once");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
        // During a split, both sides may count a half, because the two are not read at the same time.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let counted: u64 = (0..4).map(|shard| entries_of_root(&mut clients, shard)).sum();
            if counted == expected.len() as u64 {
                break;
            }
            assert!(Instant::now() < deadline, "the partitions count {counted} entries of {}", expected.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    check(&server);
    server.stop(STOP).unwrap();
    check(&site.start());
    assert_sound(&site);
}

/// Asserts that fsck finds nothing in the stopped volume.
fn assert_sound(site: &Site) {
    let report = varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap();
    assert_eq!(report.findings, []);
}

fn entries_of_root(clients: &mut [TestClient<UnixStream>; 2], shard: u16) -> u64 {
    match clients[usize::from(shard % 2)].call(shard, Call::PartitionStatus { directory: ROOT }) {
        Ok(Reply::Partition { entries, .. }) => entries,
        other => panic!("shard {shard}: {other:?}"),
    }
}

/// All names of the root in order of hash, read from the shard that holds the next one.
fn list_all(clients: &mut [TestClient<UnixStream>; 2]) -> Vec<Vec<u8>> {
    let shards = ShardCount::new(4).unwrap();
    let mut map = varve_types::PartitionMap::whole(shards);
    let (mut names, mut from) = (Vec::new(), 0);
    loop {
        let shard = map.shard_of(InodeId::ROOT.shard(), varve_types::NameHash(from));
        let call = Call::List { directory: ROOT, from, bytes_max: 4096 };
        match clients[usize::from(shard.0 % 2)].call(shard.0, call) {
            Ok(Reply::Listing(listing)) => {
                names.extend(listing.children.into_iter().map(|child| child.name));
                match listing.next {
                    Some(next) => from = next,
                    None => return names,
                }
            }
            Err(CallFailure::Moved { map: newer, .. }) => map.merge(&newer.to_map(shards).unwrap()),
            Err(CallFailure::Busy) => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{other:?}"),
        }
    }
}

/// Creates a file and follows the servers' maps, as a client does.
fn make_somewhere(clients: &mut [TestClient<UnixStream>; 2], name: &str) {
    let shards = ShardCount::new(4).unwrap();
    let hash = varve_types::NameHash::of(name.as_bytes());
    let mut map = varve_types::PartitionMap::whole(shards);
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let shard = map.shard_of(InodeId::ROOT.shard(), hash);
        match clients[usize::from(shard.0 % 2)].call(shard.0, create(name)) {
            Ok(Reply::Node(_)) => return,
            Err(CallFailure::Moved { map: newer, .. }) => map.merge(&newer.to_map(shards).unwrap()),
            Err(CallFailure::Busy) => std::thread::sleep(Duration::from_millis(1)),
            other => panic!("{name}: {other:?}"),
        }
    }
    panic!("{name} could not be made");
}

/// Promise: files that clients had open at a server that was stopped or killed stay open even if an embedded server ran
/// in between, whether that one stopped or was killed: the next server waits for the clients, and a file that the mount
/// removed still exists for the sessions that have it open.
#[test]
fn embedded_mount_keeps_open_files_of_others() {
    let mut site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (name, kind) = (b"file".to_vec(), NewNode::Regular);
    let create = Call::Create { parent: ROOT, name: name.clone(), node: kind, mode: 0o644, open: true };
    let file = node(client.call(0, create)).inode;
    server.stop(STOP).unwrap();
    let volume = site.config.volume.clone();
    for (killed, removes) in [(false, true), (true, false), (false, false)] {
        site.config.embedded = true;
        let server = site.start();
        if removes {
            let mut own = TestClient::of(&server, &site, 2, Purpose::Work);
            assert!(own.call(0, Call::Unlink { parent: ROOT, name: name.clone() }).is_ok());
        }
        let of_a_mount = volume.read_server_record().unwrap().unwrap();
        server.stop(STOP).unwrap();
        if killed {
            const NOBODY: u32 = i32::MAX as u32;
            let lock = volume.lock().unwrap();
            // It has consumed the record of its predecessor.
            std::fs::remove_file(volume.left_server_file()).unwrap();
            volume.write_server_record(&lock, &ServerRecord { pid: NOBODY, ..of_a_mount }).unwrap();
        }
    }
    site.config.embedded = false;
    let server = site.start();
    assert!(!server.shared.sessions_return.is_zero(), "it waits for those who may have files open");
    let calls_before = client.number;
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    client.number = calls_before;
    let open = Call::Open { at: Locator::Inode { inode: file }, mode: OpenMode::ReadWrite, truncate: false };
    let opened = node(client.call(0, open));
    assert_eq!((opened.inode, opened.attributes.nlink), (file, 0));
    server.stop(STOP).unwrap();
}

/// Promise: a client of a volume's server does not reach the server of a copy, which has the same id and key. In two
/// PID namespaces both may have the same process number, as they have here.
#[test]
fn the_server_of_a_copy_has_other_sockets() {
    let site = Site::new(1);
    let copy = site.directory.path().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(site.config.volume.root()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let server = site.start();
    let of_copy = Server::start(ServerConfig { volume: VolumeDir::new(&copy), ..site.config.clone() }).unwrap();
    assert_ne!(socket(&server, 0), socket(&of_copy, 0));
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    assert!(client.call(0, create("file")).is_ok() && client.call(0, lookup("file")).is_ok());
    let mut client = TestClient::of(&of_copy, &site, 1, Purpose::Work);
    assert!(client.call(0, lookup("file")).is_err());
    server.stop(STOP).unwrap();
    of_copy.stop(STOP).unwrap();
}
