//! A server whose shards are still being opened.

use super::*;
use varve_types::InodeId;
use varve_wire::NewNode;

const SHARDS: u16 = 16;

/// Directories of the root: their homes are spread over all shards.
fn make_directories(server: &Server, site: &Site) -> Vec<u64> {
    let mut client = Client::of(server, site, 1, Purpose::Work);
    let made = (0..64).map(|number| {
        let name = format!("d{number}").into_bytes();
        match client.call(0, Call::MakeDirectory { parent: InodeId::ROOT.0, name, mode: 0o755 }) {
            Ok(Reply::Node(made)) => made.inode,
            other => panic!("{other:?}"),
        }
    });
    made.collect()
}

/// Who asks for a shard that is not open yet is not turned away: the shard is opened next.
#[test]
fn calls_wait_for_their_shard_to_be_open() {
    let site = Site::new(SHARDS);
    let directories = make_directories(&site.start(), &site);
    let server = site.start();
    let mut clients = [0, 1].map(|worker| Client::at(&server, &site, worker, 2, Purpose::Work));
    for directory in directories.iter().rev() {
        let shard = InodeId(*directory).shard().0;
        let create = Call::Create {
            parent: *directory,
            name: b"file".to_vec(),
            node: NewNode::Regular,
            mode: 0o644,
            open: false,
        };
        let created = clients[usize::from(shard % 2)].call(shard, create);
        assert!(created.is_ok(), "{created:?}");
    }
    server.stop(STOP).unwrap();
    assert!(crate::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// A stop waits for the shards that are being opened and begins no others.
#[test]
fn a_server_stops_while_it_opens() {
    let site = Site::new(SHARDS);
    let directories = make_directories(&site.start(), &site);
    for _ in 0..10 {
        site.start().stop(STOP).unwrap();
    }
    let server = site.start();
    let mut client = Client::of(&server, &site, 3, Purpose::Work);
    for number in 0..directories.len() {
        let name = format!("d{number}").into_bytes();
        let found = client.call(0, Call::Lookup { parent: InodeId::ROOT.0, name });
        assert!(found.is_ok(), "d{number}: {found:?}");
    }
}

/// A shard that cannot be opened ends the server, with what is wrong.
#[test]
fn a_shard_that_cannot_be_opened_ends_the_server() {
    let site = Site::new(SHARDS);
    site.start().stop(STOP).unwrap();
    let log = site.config.volume.shard_log(ShardId(SHARDS - 1));
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, b"no directory").unwrap();
    let server = site.start();
    let ended = server.wait_timeout(STOP).expect("it does not serve for long");
    assert!(ended.is_err_and(|error| error.to_string().contains("shard 15 cannot be opened")));
}
