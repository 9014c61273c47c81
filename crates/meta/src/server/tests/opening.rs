//! A server whose shards are still being opened.

use super::*;
use varve_proto::NewNode;
use varve_types::InodeId;

const SHARDS: u16 = 16;

/// Makes directories in the root whose home shards are spread over all shards, with a server of its own.
fn make_directories(site: &Site) -> Vec<u64> {
    let server = site.start();
    let mut client = TestClient::of(&server, site, 1, Purpose::Work);
    let made = (0..64).map(|number| {
        let name = format!("d{number}").into_bytes();
        match settled(&mut client, 0, &Call::MakeDirectory { parent: InodeId::ROOT.0, name, mode: 0o755 }) {
            Ok(Reply::Node(made)) => made.inode,
            other => panic!("{other:?}"),
        }
    });
    let made = made.collect();
    drop(client);
    server.stop(STOP).unwrap();
    made
}

/// Retries until the shard is open; a server on a busy machine may reply Busy before.
fn settled(client: &mut TestClient<UnixStream>, shard: u16, call: &Call) -> Result<Reply, CallFailure> {
    let begun = Instant::now();
    loop {
        match client.call(shard, call.clone()) {
            Err(CallFailure::Busy) if begun.elapsed() < STOP => {}
            answer => return answer,
        }
    }
}

/// A call for a shard that is not open yet is not refused: the shard is opened next.
#[test]
fn calls_wait_for_their_shard_to_be_open() {
    let site = Site::new(SHARDS);
    let directories = make_directories(&site);
    let server = site.start();
    let mut clients = [0, 1].map(|worker| TestClient::at(&server, &site, worker, 2, Purpose::Work));
    for directory in directories.iter().rev() {
        let shard = InodeId(*directory).shard().0;
        let create = Call::Create {
            parent: *directory,
            name: b"file".to_vec(),
            node: NewNode::Regular,
            mode: 0o644,
            open: false,
        };
        let created = settled(&mut clients[usize::from(shard % 2)], shard, &create);
        assert!(created.is_ok(), "{created:?}");
    }
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// A stop waits for the shards that are being opened and opens no others.
#[test]
fn a_server_stops_while_it_opens() {
    let site = Site::new(SHARDS);
    let directories = make_directories(&site);
    for _ in 0..10 {
        site.start().stop(STOP).unwrap();
    }
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 3, Purpose::Work);
    for number in 0..directories.len() {
        let name = format!("d{number}").into_bytes();
        let found = settled(&mut client, 0, &Call::Lookup { parent: InodeId::ROOT.0, name });
        assert!(found.is_ok(), "d{number}: {found:?}");
    }
}

/// A shard that cannot be opened does not affect the others: calls for it fail with the reason, and it is opened as
/// soon as possible.
#[test]
fn failed_shard_open_affects_only_that_shard() {
    let site = Site::new(SHARDS);
    let directories = make_directories(&site);
    let shard_of = |directory: u64| InodeId(directory).shard().0;
    let broken_directory = *directories.iter().find(|directory| shard_of(**directory) != 0).unwrap();
    let broken = shard_of(broken_directory);
    let log = site.config.volume.shard_log(ShardId(broken));
    let aside = site.directory.path().join("aside");
    std::fs::rename(&log, &aside).unwrap();
    std::fs::write(&log, b"no directory").unwrap();
    let server = site.start();
    let mut clients = [0, 1].map(|worker| TestClient::at(&server, &site, worker, 2, Purpose::Work));
    let list = |directory| Call::List { directory, from: 0, bytes_max: 1000 };
    for call in [list(broken_directory), Call::Sync, Call::ShardStatus] {
        match settled(&mut clients[usize::from(broken % 2)], broken, &call) {
            Err(CallFailure::Server { errno, message }) => {
                assert_eq!(errno, libc::EIO);
                assert!(
                    message.contains(&format!("shard {broken} cannot be opened")) && message.contains("log"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    for (number, directory) in directories.iter().enumerate() {
        let lookup = Call::Lookup { parent: InodeId::ROOT.0, name: format!("d{number}").into_bytes() };
        let found = settled(&mut clients[0], 0, &lookup);
        assert!(found.is_ok(), "d{number}: {found:?}");
        let shard = shard_of(*directory);
        if shard != broken {
            let listed = settled(&mut clients[usize::from(shard % 2)], shard, &list(*directory));
            assert!(listed.is_ok(), "d{number}: {listed:?}");
        }
    }
    std::fs::remove_file(&log).unwrap();
    std::fs::rename(&aside, &log).unwrap();
    let begun = Instant::now();
    while let Err(failure) = clients[usize::from(broken % 2)].call(broken, list(broken_directory)) {
        assert!(begun.elapsed() < STOP, "{failure:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(clients);
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// An empty directory in place of a shard's directory is not taken for a new shard: callers immediately get an error
/// that says what to do. The other shards are served.
#[test]
fn shard_that_lost_everything_is_refused() {
    let site = Site::new(2);
    let directories = make_directories(&site);
    let lost = *directories.iter().find(|directory| InodeId(**directory).shard().0 == 1).unwrap();
    std::fs::remove_dir_all(site.config.volume.shard(ShardId(1))).unwrap();
    std::fs::create_dir_all(site.config.volume.shard_log(ShardId(1))).unwrap();
    let server = site.start();
    let mut client = TestClient::at(&server, &site, 1, 2, Purpose::Work);
    let name = b"file".to_vec();
    let create = Call::Create { parent: lost, name: name.clone(), node: NewNode::Regular, mode: 0o644, open: false };
    for call in [Call::Lookup { parent: lost, name }, create] {
        match client.call(1, call) {
            Err(CallFailure::Server { errno, message }) => {
                assert_eq!(errno, libc::EIO);
                assert!(message.contains("opened before") && message.contains("varve fsck --repair"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut client = TestClient::of(&server, &site, 3, Purpose::Work);
    let found = settled(&mut client, 0, &Call::Lookup { parent: InodeId::ROOT.0, name: b"d0".to_vec() });
    assert!(found.is_ok(), "{found:?}");
    drop(client);
    server.stop(STOP).unwrap();
}

/// A sync after the trouble is over waits until its shard is open again, and does not report the past failure.
#[test]
fn sync_waits_for_the_next_open_attempt() {
    let site = Site::new(2);
    site.start().stop(STOP).unwrap();
    let tables = site.config.volume.shard(ShardId(1));
    let itself = tables.path().to_str().unwrap();
    let Some(read_only) = MountGuard::mount(&["--bind", itself], tables.path()) else { return };
    read_only.turn_read_only();
    let server = site.start();
    let mut client = TestClient::at(&server, &site, 1, 2, Purpose::Work);
    for call in [Call::ShardStatus, Call::Sync] {
        match settled(&mut client, 1, &call) {
            Err(CallFailure::Server { errno, .. }) => assert_eq!(errno, libc::EROFS, "{call:?}"),
            other => panic!("{call:?}: {other:?}"),
        }
    }
    drop(read_only);
    assert_eq!(client.call(1, Call::Sync), Ok(Reply::Done));
    drop(client);
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// If acknowledged changes of a failed shard are lost, the next sync of each session reports the loss, once. A failure
/// that lost nothing is not reported.
#[test]
fn sync_reports_a_loss_once() {
    let site = Site::new(1);
    let server = site.start();
    let mut clients = [1, 2].map(|session| TestClient::of(&server, &site, session, Purpose::Work));
    let log = site.config.volume.shard_log(ShardId(0));
    let aside = site.directory.path().join("aside");
    for lost in [false, true] {
        assert_eq!(clients[0].call(0, Call::Sync), Ok(Reply::Done));
        let name = format!("lost {lost}").into_bytes();
        let make = Call::MakeDirectory { parent: InodeId::ROOT.0, name: name.clone(), mode: 0o755 };
        assert!(matches!(settled(&mut clients[0], 0, &make), Ok(Reply::Node(_))));
        std::fs::rename(&log, &aside).unwrap();
        // The log file is open, and the sync writes it at its new location.
        let refused = settled(&mut clients[1], 0, &Call::Sync);
        assert!(matches!(refused, Err(CallFailure::Server { .. })), "{refused:?}");
        if lost {
            cut_last_byte(&aside);
        }
        std::fs::rename(&aside, &log).unwrap();
        let look = Call::Lookup { parent: InodeId::ROOT.0, name };
        let begun = Instant::now();
        while let Err(CallFailure::Server { .. } | CallFailure::Busy) = clients[0].call(0, look.clone()) {
            assert!(begun.elapsed() < STOP);
            std::thread::sleep(Duration::from_millis(50));
        }
        let first = clients[0].call(0, Call::Sync);
        match lost {
            true => assert!(matches!(&first, Err(CallFailure::Server { message, .. }) if message.contains("are lost"))),
            false => assert_eq!(first, Ok(Reply::Done)),
        }
        for client in &mut clients {
            assert_eq!(client.call(0, Call::Sync), Ok(Reply::Done), "it was told already");
        }
    }
    drop(clients);
    server.stop(STOP).unwrap();
}

/// Truncates the last log file that has content.
fn cut_last_byte(log: &std::path::Path) {
    let files = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
    let last = files.filter(|path| path.extension().is_some_and(|extension| extension == "log")).max().unwrap();
    let file = std::fs::File::options().write(true).open(last).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
}

/// A server that can open no shard ends with the reason.
#[test]
fn server_ends_if_no_shard_opens() {
    let site = Site::new(1);
    site.start().stop(STOP).unwrap();
    let log = site.config.volume.shard_log(ShardId(0));
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, b"no directory").unwrap();
    // On a slow machine the server may find that before its start is over.
    let ended = match Server::start(site.config.clone()) {
        Ok(server) => server.wait_timeout(STOP).expect("it does not serve for long"),
        Err(error) => Err(error),
    };
    assert!(ended.is_err_and(|error| error.to_string().contains("shard 0 cannot be opened")));
}
