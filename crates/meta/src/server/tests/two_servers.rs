//! Shards of two servers that call each other. Each server has a copy of the volume, whose lock it holds, and the map gives
//! it half of the shards: what the copies have of the other half does not count.

use super::client::request;
use super::moves::settled;
use super::*;
use crate::server::peer_network::{PeerMember, PeerNetwork, PeerNetworkConfig};
use varve_cluster::lease::Lease;
use varve_env::clock::RealClock;
use varve_proto::{EntryReply, Locator, NewNode, OpenMode, RenameFlags};
use varve_types::{InodeId, MapServer, SessionId, ShardOwner};

const ROOT: u64 = InodeId::ROOT.0;

/// Two servers of the same volume. Even shards are at worker 0 of the first one, odd ones at worker 1 of the second.
struct TwoServers {
    _networks: [PeerNetwork; 2],
    leases: [Arc<Lease>; 2],
    servers: [Server; 2],
    clients: [TestClient<UnixStream>; 2],
    number: u64,
    sites: [Site; 2],
}

fn map_server(server: &Server) -> MapServer {
    let current = server.shared.shard_map.current();
    current.server(server.shared.number).expect("a server knows itself").clone()
}

fn network(server: &Server, site: &Site, lease: &Arc<Lease>) -> PeerNetwork {
    let unix = site.directory.path().join("peers");
    let failed = Box::new(|reason| panic!("{reason}"));
    let config = PeerNetworkConfig::of_server(
        &server.shared,
        server.inboxes.clone(),
        Arc::clone(lease),
        (Some(unix), None),
        failed,
    );
    let network = PeerNetwork::start(config.unwrap()).unwrap();
    assert!(server.shared.peer_network.set(network.handle().clone()).is_ok());
    network
}

impl TwoServers {
    fn start() -> TwoServers {
        let site = Site::new(4);
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("volume");
        let copied = Command::new("cp").arg("-a").arg(site.config.volume.root()).arg(&copy).status().unwrap();
        assert!(copied.success());
        let (volume, unix_directory) = (VolumeDir::new(&copy), Some(directory.path().join("sockets")));
        let config = ServerConfig { volume, unix_directory, ..site.config.clone() };
        let sites = [Site { directory, config, key: site.key.clone() }, site];
        let servers = sites.each_ref().map(Site::start);
        let lease = || Arc::new(Lease::unlimited(Arc::new(RealClock::new())));
        let leases = [lease(), lease()];
        let networks = [0, 1].map(|at| network(&servers[at], &sites[at], &leases[at]));
        let member = |at: usize| {
            let MapServer { number, boot_id, .. } = map_server(&servers[at]);
            PeerMember { number, boot_id, address: networks[at].address().clone() }
        };
        networks[0].handle().set_members(vec![member(1)]);
        networks[1].handle().set_members(vec![member(0)]);
        // The flattened list has workers 0 and 1 of each server.
        let owners = [0, 3, 0, 3].map(|worker| ShardOwner { worker, term: 1 }).to_vec();
        let map = varve_types::ShardMap::new(9, servers.each_ref().map(map_server).to_vec(), owners).unwrap();
        for server in &servers {
            assert!(server.shared.shard_map.replace(map.clone()).unwrap());
        }
        let clients = [0, 1].map(|at| TestClient::at(&servers[at], &sites[at], at, 5, Purpose::Work));
        TwoServers { _networks: networks, leases, servers, clients, number: 0, sites }
    }

    /// Asks again while the shard is busy, at most for `busy_max`.
    fn ask_for(&mut self, busy_max: Duration, shard: u16, call: Call) -> Result<Reply, CallFailure> {
        self.number += 1;
        let request = request(5, 5, self.number, shard, call);
        let begun = Instant::now();
        loop {
            match self.clients[usize::from(shard % 2)].exchange(request.clone()).unwrap() {
                Err(CallFailure::Busy) if begun.elapsed() < busy_max => std::thread::sleep(Duration::from_millis(1)),
                answer => return answer,
            }
        }
    }

    fn ask(&mut self, shard: u16, call: Call) -> Result<Reply, CallFailure> {
        self.ask_for(STOP, shard, call)
    }

    fn make_directory(&mut self, name: &str) -> InodeId {
        match self.ask(0, Call::MakeDirectory { parent: ROOT, name: name.into(), mode: 0o755 }) {
            Ok(Reply::Node(made)) => InodeId(made.inode),
            other => panic!("{name}: {other:?}"),
        }
    }

    fn stop(self) {
        for server in &self.servers {
            server.stop(STOP).unwrap();
        }
    }
}

/// Promise: directories, files, renames and removals work whichever servers have the shards.
#[test]
fn transactions_span_two_servers() {
    let mut volume = TwoServers::start();
    let made: Vec<_> = (0..40).map(|number| volume.make_directory(&format!("d{number}"))).collect();
    let [here, there] = [0, 1].map(|parity| {
        *made.iter().find(|inode| inode.shard().0 % 2 == parity).expect("homes are spread over the servers")
    });
    for (number, (from, to)) in [(here, there), (there, here)].into_iter().enumerate() {
        let name = format!("f{number}").into_bytes();
        let create =
            Call::Create { parent: from.0, name: name.clone(), node: NewNode::Regular, mode: 0o600, open: false };
        let file = match volume.ask(from.shard().0, create) {
            Ok(Reply::Node(file)) => file.inode,
            other => panic!("{other:?}"),
        };
        let rename = Call::Rename {
            parent: from.0,
            name: name.clone(),
            new_parent: to.0,
            new_name: name.clone(),
            flags: RenameFlags::Replace,
        };
        let renamed = volume.ask(from.shard().0, rename);
        assert!(renamed.is_ok(), "{renamed:?}");
        match volume.ask(to.shard().0, Call::Lookup { parent: to.0, name: name.clone() }) {
            Ok(Reply::Entry { entry: EntryReply::Node(found), .. }) => assert_eq!(found.inode, file),
            other => panic!("{other:?}"),
        }
        assert!(volume.ask(from.shard().0, Call::Lookup { parent: from.0, name }).is_err());
    }
    for (number, inode) in made.into_iter().enumerate().filter(|(_, inode)| *inode != here && *inode != there) {
        let remove = Call::RemoveDirectory { parent: ROOT, name: format!("d{number}").into() };
        let removed = volume.ask(0, remove);
        assert!(matches!(removed, Ok(Reply::Removed { .. })), "{inode}: {removed:?}");
    }
    volume.stop();
}

/// Promise: while the other server may not reply, calls that need its shards are to be sent again, and others go on.
#[test]
fn server_without_lease_stops_only_calls_of_its_shards() {
    let mut volume = TwoServers::start();
    let made: Vec<_> = (0..20).map(|number| volume.make_directory(&format!("d{number}"))).collect();
    let there = made.iter().position(|inode| inode.shard().0 % 2 == 1).expect("homes are spread over the servers");
    volume.leases[1].end();
    let begun = Instant::now();
    let remove = Call::RemoveDirectory { parent: ROOT, name: format!("d{there}").into() };
    let removed = volume.ask_for(Duration::ZERO, 0, remove);
    assert!(matches!(removed, Err(CallFailure::Busy)), "{removed:?}");
    assert!(begun.elapsed() < STOP);
    let file = Call::Create { parent: ROOT, name: b"f".into(), node: NewNode::Regular, mode: 0o600, open: false };
    assert!(volume.ask(0, file).is_ok());
}

/// Promise: a session that opens a file whose number is of a shard of another server is among that server's sessions, so
/// that its files are closed after its grace if it never connects there.
#[test]
fn file_opened_from_another_server_keeps_its_session() {
    let mut volume = TwoServers::start();
    let made: Vec<_> = (0..40).map(|number| volume.make_directory(&format!("d{number}"))).collect();
    let [here, there] = [0, 1].map(|parity| {
        *made.iter().find(|inode| inode.shard().0 % 2 == parity).expect("homes are spread over the servers")
    });
    let name = b"f".to_vec();
    let create = Call::Create { parent: there.0, name: name.clone(), node: NewNode::Regular, mode: 0o600, open: false };
    let file = match volume.ask(there.shard().0, create) {
        Ok(Reply::Node(file)) => file.inode,
        other => panic!("{other:?}"),
    };
    let rename = Call::Rename {
        parent: there.0,
        name: name.clone(),
        new_parent: here.0,
        new_name: name.clone(),
        flags: RenameFlags::Replace,
    };
    assert!(volume.ask(there.shard().0, rename).is_ok());
    assert_eq!(InodeId(file).shard().0 % 2, 1, "its number stays");
    // Session 6 knows the first server only.
    let mut client = TestClient::at(&volume.servers[0], &volume.sites[0], 0, 6, Purpose::Work);
    let at = Locator::Entry { parent: here.0, name, inode: file };
    let open = Call::Open { at, mode: OpenMode::ReadWrite, truncate: false };
    let opened = settled(&mut client, here.shard().0, &open);
    assert!(opened.is_ok(), "{opened:?}");
    assert!(volume.servers[1].shared.sessions.is_live(SessionId(6)));
}
