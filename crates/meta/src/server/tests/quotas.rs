//! Limits for one peer and the capacity that remains for others; revoked keys of hosts.

use super::client::{Remote, dial, receive};
use super::*;
use varve_proto::handshake::Greeting;

fn site(change: impl FnOnce(&mut Limits)) -> Site {
    let mut site = Site::new(1);
    site.config.listen = Some("127.0.0.1:0".parse().unwrap());
    change(&mut site.config.limits);
    site
}

/// Promise: unauthenticated connections of one principal are limited, the next one gets the reason, and others still
/// connect.
#[test]
fn unauthenticated_connections_have_a_share() {
    let site = site(|limits| limits.strangers_of_one = 3);
    let server = site.start();
    let silent: Vec<_> = (0..3).map(|_| dial(&server, 0)).collect();
    // Each has received the greeting, and so is counted.
    let mut silent: Vec<_> = silent
        .into_iter()
        .map(|mut stream| {
            receive::<Greeting>(&mut stream);
            stream
        })
        .collect();
    let refusal = || Remote::connect(&server, &Claim::of(&site.key, 1, Purpose::Work)).err();
    let begun = Instant::now();
    // Until the oldest has had its time and is evicted.
    while let Some(reason) = refusal() {
        assert!(reason.contains("loopback has 3 unauthenticated connections"), "{reason}");
        assert!(begun.elapsed() < Duration::from_secs(60), "the oldest does not make room");
    }
    assert_serves(&server, &site);
    assert!(silent[0].read_to_end(&mut Vec::new()).is_ok(), "the oldest was sent away");
    assert!(refusal().is_none());
}

/// Promise: authenticated connections of one principal are limited, the next one gets the reason sealed with the key,
/// and others still connect.
#[test]
fn connections_have_a_share() {
    let site = site(|limits| limits.connections_of_one = 4);
    let server = site.start();
    let claim = Claim::of(&site.key, 9, Purpose::Work);
    let clients: Vec<_> = (0..4).map(|_| Remote::connect(&server, &claim).unwrap()).collect();
    let reason = Remote::connect(&server, &claim).err().unwrap();
    assert!(reason.contains("loopback has 4 connections to this worker already"), "{reason}");
    assert_serves(&server, &site);
    drop(clients);
    let begun = Instant::now();
    while Remote::connect(&server, &claim).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "there is no room again");
    }
}

/// Promise: all connections together are limited, too.
#[test]
fn connections_have_a_limit() {
    let site = site(|limits| limits.connections = 2);
    let server = site.start();
    let _clients = [1, 2].map(|session| TestClient::of(&server, &site, session, Purpose::Work));
    let reason = Remote::connect(&server, &Claim::of(&site.key, 9, Purpose::Work)).err().unwrap();
    assert!(reason.contains("the server has 2 client connections already"), "{reason}");
}

/// Promise: sessions of one principal are limited, the next one gets the reason, and others still connect.
#[test]
fn sessions_have_a_share() {
    let site = site(|limits| limits.sessions_of_one = 2);
    let server = site.start();
    let connect = |session| Remote::connect(&server, &Claim::of(&site.key, session, Purpose::Work));
    let _clients = [1, 2].map(|session| connect(session).unwrap());
    let reason = connect(3).err().unwrap();
    assert!(reason.contains("loopback has 2 sessions"), "{reason}");
    assert!(connect(2).is_ok(), "another connection of a session that is there");
    assert_serves(&server, &site);
}

/// Promise: a host's key admits the host until it is revoked. Then its connections and its session end, while the
/// volume's own key and other hosts' keys stay valid.
#[test]
fn a_revoked_key_ends_its_connections() {
    let site = site(|limits| limits.keys_checked_every = Duration::from_millis(10));
    let server = site.start();
    let volume = &site.config.volume;
    let [one, other] = ["one", "other"].map(|name| volume.add_host_key(name).unwrap());
    let claim = |key: &varve_env::volume_dir::HostKey, session| Claim {
        key: VolumeKey(key.secret),
        key_id: KeyId(key.id),
        ..Claim::of(&site.key, session, Purpose::Work)
    };
    let mut revoked = Remote::connect(&server, &claim(&one, 1)).unwrap().into_client(1);
    let mut local = UnixStream::connect(socket(&server, 0)).unwrap();
    claim(&one, 2).shake_hands(&mut local).unwrap();
    let mut kept = Remote::connect(&server, &claim(&other, 3)).unwrap().into_client(3);
    let ping = || Call::Ping { payload: vec![1] };
    assert!(revoked.call(0, ping()).is_ok());
    volume.revoke_host_key("one").unwrap();
    assert_closed(local);
    assert_eq!(revoked.into_stream().stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(kept.call(0, ping()).is_ok());
    let reason = Remote::connect(&server, &claim(&one, 1)).err().unwrap();
    assert!(reason.contains("was it revoked"), "{reason}");
    let begun = Instant::now();
    while server.sessions() > 1 {
        assert!(begun.elapsed() < SESSION_GRACE, "its sessions have a grace");
        std::thread::sleep(Duration::from_millis(20));
    }
}
