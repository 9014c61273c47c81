//! Tests of a real server on a temporary volume, with a client that uses only the protocol.

pub mod client;
mod failing;
mod handshakes;
mod joined;
mod memory;
mod moves;
mod moving_files;
mod opening;
mod quotas;
mod records;
mod retries;
mod serving;
mod shm_slots;
mod two_servers;
mod unreachable;

use super::*;
use client::{Claim, Remote, TestClient, connect};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use varve_env::volume_dir::FormatOver;
use varve_proto::frame;
use varve_proto::handshake::{Answer, KeyId, Purpose, VolumeKey, Welcome};
use varve_proto::{Call, CallFailure, Reply};
use varve_types::{ShardCount, VolumeId, WorkerPlace};

/// Long enough for a busy machine: a stop opens, syncs and closes the shards, each with a few fsyncs.
const STOP: Duration = Duration::from_secs(120);

/// A volume, the configuration of its server and its key.
pub struct Site {
    directory: tempfile::TempDir,
    config: ServerConfig,
    key: VolumeKey,
}

impl Site {
    fn new(shards: u16) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        Site::in_directory(directory, volume, shards)
    }

    /// A volume that fsyncs before every reply.
    fn syncing_at_once(shards: u16) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        Site::of(directory, volume, shards, Duration::ZERO)
    }

    fn in_directory(directory: tempfile::TempDir, volume: PathBuf, shards: u16) -> Site {
        Site::of(directory, volume, shards, Duration::from_millis(50))
    }

    fn of(directory: tempfile::TempDir, volume: PathBuf, shards: u16, sync_interval: Duration) -> Site {
        let volume = VolumeDir::new(volume);
        let settings = VolumeSettings {
            id: VolumeId(varve_env::random::bytes()),
            name: "test".into(),
            shards: ShardCount::new(shards).unwrap(),
            split_threshold: 64,
            inline_limit: VolumeSettings::INLINE_LIMIT_DEFAULT,
            sync_interval,
            owner_uid: rustix::process::geteuid().as_raw(),
        };
        varve_admin::format::format(&volume, &settings, FormatOver::Nothing).unwrap();
        let key = VolumeKey(volume.read_key().unwrap());
        let mut config = ServerConfig::new(volume);
        config.workers = 2;
        config.unix_directory = Some(directory.path().join("sockets"));
        Site { directory, config, key }
    }

    fn start(&self) -> Server {
        Server::start(self.config.clone()).unwrap()
    }
}

/// A mount that lasts as long as this lives.
struct MountGuard(PathBuf);

impl MountGuard {
    /// `None` if this user may not mount.
    fn mount(what: &[&str], at: &Path) -> Option<MountGuard> {
        let mounted = Command::new("mount").args(what).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| MountGuard(at.to_owned()))
    }

    /// From here on the mount refuses writes, while the file system below still takes them.
    fn turn_read_only(&self) {
        let turned = Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&self.0).status();
        assert!(turned.is_ok_and(|status| status.success()), "{} takes writes", self.0.display());
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

fn socket(server: &Server, worker: usize) -> String {
    server.addresses()[worker].unix.clone().expect("the server listens on Unix sockets")
}

/// Asserts that the server closes the connection and sends nothing more.
fn assert_closed(mut stream: UnixStream) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
    }
}

fn assert_serves(server: &Server, site: &Site) {
    let mut client = TestClient::of(server, site, 77, Purpose::Work);
    assert_eq!(
        client.call(0, Call::Ping { payload: b"well?".to_vec() }),
        Ok(Reply::Pong { payload: b"well?".to_vec() })
    );
}

/// A client that holds the key gets a Welcome with the server's own proof and the addresses of the shards.
#[test]
fn a_client_with_the_key_is_welcomed() {
    let site = Site::new(4);
    let server = site.start();
    let (mut stream, greeting) = connect(&socket(&server, 0));
    let (initiator, hello) = Claim::of(&site.key, 5, Purpose::Work).hello(&greeting);
    client::send(&mut stream, &hello);
    let (welcome, _) = client::opened(initiator, client::receive(&mut stream)).unwrap();
    let Welcome::Accepted { server: number, shards, map, embedded, .. } = welcome else { panic!("refused") };
    assert_eq!((shards, embedded), (4, false));
    let map = map.to_map(server.settings().shards).unwrap();
    let owners: Vec<_> = (0..4).map(|shard| map.owner(ShardId(shard)).unwrap()).collect();
    assert_eq!(owners, [0, 1, 0, 1].map(|worker| WorkerPlace { server: number, worker }));
    assert_eq!(map.server(number).unwrap().workers, server.addresses());
    assert_eq!((map.version(), map.servers().len()), (1, 1));
    assert_eq!(greeting.volume, server.settings().id.0);
    let record = site.config.volume.read_server_record().unwrap().unwrap();
    assert_eq!(record.pid, std::process::id());
    assert_eq!(record.workers[1].unix.as_deref(), Some(socket(&server, 1).as_str()));
}

/// Both transports carry the same protocol.
#[test]
fn tcp_clients_are_served() {
    let mut site = Site::new(2);
    site.config.listen = Some("127.0.0.1:0".parse().unwrap());
    let server = site.start();
    let claim = Claim { worker: 1, ..Claim::of(&site.key, 5, Purpose::Work) };
    let mut client = Remote::connect(&server, &claim).unwrap().into_client(5);
    assert_eq!(client.call(1, Call::Ping { payload: vec![1] }), Ok(Reply::Pong { payload: vec![1] }));
    let refused = client.call(0, Call::Sync);
    assert!(matches!(refused, Err(CallFailure::NotOwner { .. })), "shard 0 is worker 0's: {refused:?}");
}

/// A client without the key is refused, and gets the reason.
#[test]
fn a_wrong_key_is_refused() {
    let site = Site::new(1);
    let server = site.start();
    let wrong = VolumeKey([7; 32]);
    let refused =
        TestClient::new(UnixStream::connect(socket(&server, 0)).unwrap(), &wrong, 5, Purpose::Work).err().unwrap();
    assert!(refused.contains("key of volume test"), "{refused}");
    assert_serves(&server, &site);
}

/// A client with another protocol version is refused, and the reason names both versions.
#[test]
fn another_version_is_refused() {
    let site = Site::new(1);
    let server = site.start();
    let (mut stream, greeting) = connect(&socket(&server, 0));
    let (_, mut hello) = Claim::of(&site.key, 5, Purpose::Work).hello(&greeting);
    hello.version = 99;
    client::send(&mut stream, &hello);
    let Answer::Refused { reason } = client::receive(&mut stream) else { panic!("welcomed") };
    assert!(reason.contains(&format!("version {}", varve_proto::VERSION)) && reason.contains("version 99"), "{reason}");

    // The version can be read from a Hello whose later fields have changed.
    let (mut stream, _) = connect(&socket(&server, 0));
    client::send(&mut stream, &(98u16, "fields of a later time".to_owned()));
    let Answer::Refused { reason } = client::receive(&mut stream) else { panic!("welcomed") };
    assert!(reason.contains("version 98"), "{reason}");
}

/// Garbage, an oversized frame, a broken checksum and an incomplete frame each end their own connection and affect
/// nothing else.
#[test]
fn malformed_bytes_end_the_connection_alone() {
    let site = Site::new(1);
    let server = site.start();
    let path = socket(&server, 0);
    for garbage in [&b"GET / HTTP/1.1\r\nHost: varve\r\n\r\n"[..], &[0xff; 64], &[0; 64]] {
        let (mut stream, _) = connect(&path);
        stream.write_all(garbage).unwrap();
        assert_closed(stream);
    }
    let authenticated = |bytes: &[u8]| {
        let client = TestClient::of(&server, &site, 9, Purpose::Work);
        let mut stream = client.into_stream();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_closed(stream);
    };
    authenticated(&[0xff; 32]);
    authenticated(&((frame::FRAME_BYTES_MAX as u32 + 1).to_le_bytes()));
    let mut request = client::call_bytes(&client::request(9, 0, 1, 0, Call::Sync));
    authenticated(&request[..request.len() - 1]);
    let last = request.len() - 1;
    request[last] ^= 1;
    authenticated(&request);
    assert_serves(&server, &site);
}

/// A call in another session's name ends the connection: a session's recorded replies are its own.
#[test]
fn a_foreign_session_ends_the_connection() {
    let site = Site::new(1);
    let server = site.start();
    let mut stream = TestClient::of(&server, &site, 9, Purpose::Work).into_stream();
    stream.write_all(&client::call_bytes(&client::request(10, 0, 1, 0, Call::Sync))).unwrap();
    assert_closed(stream);
}

/// Requests that arrive in one read are all answered, including those that wait.
#[test]
fn requests_are_pipelined() {
    let site = Site::new(1);
    let server = site.start();
    let mut stream = TestClient::of(&server, &site, 9, Purpose::Work).into_stream();
    let mut sent = Vec::new();
    let count = 500;
    for number in 1..=count {
        let call = match number % 3 {
            0 => Call::Sync,
            1 => create(format!("file{number}")),
            _ => Call::Ping { payload: vec![0; number as usize] },
        };
        sent.extend(client::call_bytes(&client::request(9, number as u32, 1, 0, call)));
    }
    stream.write_all(&sent).unwrap();
    let mut slots: Vec<u32> = (0..count).map(|_| client::reply(&mut stream).id.slot).collect();
    slots.sort();
    assert_eq!(slots, (1..=count as u32).collect::<Vec<_>>());
}

fn create(name: String) -> Call {
    Call::Create { parent: 1, name: name.into(), node: varve_proto::NewNode::Regular, mode: 0o644, open: false }
}

/// A call that is sent again is executed once: it gets Busy while the first attempt is in progress, and then the first
/// reply.
#[test]
fn retried_change_is_applied_once() {
    let site = Site::new(1);
    let server = site.start();
    let mut stream = TestClient::of(&server, &site, 9, Purpose::Work).into_stream();
    let mut sent = Vec::new();
    let request = client::request(9, 1, 1, 0, create("file".into()));
    for _ in 0..2 {
        sent.extend(client::call_bytes(&request));
    }
    stream.write_all(&sent).unwrap();
    let mut answer = || client::reply(&mut stream).result;
    let answers = [answer(), answer()];
    let made: Vec<_> = answers.iter().filter(|answer| **answer != Err(CallFailure::Busy)).collect();
    assert!(!made.is_empty() && made.iter().all(|made| matches!(made, Ok(Reply::Node(_)))), "{answers:?}");
    stream.write_all(&client::call_bytes(&request)).unwrap();
    assert_eq!(client::reply(&mut stream).result, *made[0]);
    stream.write_all(&client::call_bytes(&client::request(9, 1, 2, 0, create("file".into())))).unwrap();
    let another = client::reply(&mut stream).result;
    assert_eq!(another, Err(CallFailure::Errno(varve_types::Errno::EEXIST.number())));
}

/// A volume has one server. A second one gets an error that names the first, and can start after the first has stopped.
#[test]
fn a_second_server_is_refused() {
    let site = Site::new(1);
    let server = site.start();
    let refused = Server::start(site.config.clone()).err().unwrap().to_string();
    assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
    server.stop(STOP).unwrap();
    assert!(site.config.volume.read_server_record().unwrap().is_none(), "the announcement is withdrawn");
    assert_eq!(std::fs::read_dir(site.directory.path().join("sockets")).unwrap().count(), 0, "the sockets are gone");
    assert_serves(&site.start(), &site);
}

/// A server that is stopped under load answers the requests in progress, or closes the connection, and stops in time.
#[test]
fn a_stop_under_load_ends_in_time() {
    let site = Site::new(4);
    let server = site.start();
    let answered = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        // All clients connect before the first call: one that came after the stop would find no socket.
        let clients: Vec<_> = (1..=4).map(|session| TestClient::of(&server, &site, session, Purpose::Work)).collect();
        for mut client in clients {
            let answered = &answered;
            scope.spawn(move || {
                while client.try_call(0, Call::Sync).is_ok() {
                    answered.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        while answered.load(std::sync::atomic::Ordering::Relaxed) < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        server.stop(STOP).unwrap();
        assert!(begin.elapsed() < STOP / 2, "{:?}", begin.elapsed());
    });
    assert!(server.wait().is_ok());
    assert!(server.stop(STOP).is_ok(), "a second stop does nothing");
}

/// A client that reads no replies does not keep the server from stopping.
#[test]
fn client_that_does_not_read_cannot_delay_a_stop() {
    let site = Site::new(1);
    let server = site.start();
    let mut deaf = TestClient::of(&server, &site, 9, Purpose::Work).into_stream();
    let mut sent = Vec::new();
    for slot in 0..20 {
        let call = Call::Ping { payload: vec![0; 1024 * 1024] };
        sent.extend(client::call_bytes(&client::request(9, slot, 1, 0, call)));
    }
    deaf.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(deaf.write_all(&sent).is_err(), "the server stops reading once its answers pile up");
    server.stop(Duration::from_secs(2)).unwrap();
}

/// Invalid configurations are refused with the reason.
#[test]
fn impossible_configurations_are_refused() {
    let site = Site::new(1);
    let refused = |change: &dyn Fn(&mut ServerConfig)| {
        let mut config = site.config.clone();
        change(&mut config);
        Server::start(config).err().unwrap().to_string()
    };
    assert!(refused(&|config| config.workers = 0).contains("0 workers"));
    assert!(refused(&|config| config.unix_directory = None).contains("no address to listen on"));
    let long = site.directory.path().join("x".repeat(100));
    assert!(refused(&|config| config.unix_directory = Some(long.clone())).contains("too long"));
    assert!(refused(&|config| config.volume = VolumeDir::new("/nonexistent")).contains("not a Varve volume"));
    let (shards, aside) = (site.config.volume.shards(), site.directory.path().join("aside"));
    std::fs::rename(&shards, &aside).unwrap();
    let gone = refused(&|_| {});
    assert!(gone.contains(&shards.to_string()) && gone.contains("varve fsck --repair"), "{gone}");
    assert!(!shards.exists(), "something was made in its place");
    std::fs::rename(&aside, &shards).unwrap();
    assert!(site.config.volume.lock().is_ok(), "a start that failed lets go of the lock");
}
