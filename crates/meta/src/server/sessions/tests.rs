use super::*;
use varve_env::identity::NOBODY;
use varve_types::Timestamp;

struct StillClock(Mutex<Duration>);

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Instant {
        Instant(*self.0.lock())
    }
}

const SERVER_PID: i32 = 4242;

fn sessions(owner_uid: u32, embedded: bool) -> (Arc<Sessions>, Arc<StillClock>) {
    let clock = Arc::new(StillClock(Mutex::default()));
    let admission = Admission { owner_uid, server_uid: owner_uid, server_pid: SERVER_PID, embedded };
    (
        Arc::new(Sessions::new(
            admission,
            clock.clone(),
            Limits { sessions: 6, sessions_of_one: 4, ..Limits::default() },
        )),
        clock,
    )
}

fn local(uid: u32, pid: i32) -> Peer {
    Peer::Local { uid, gid: uid + 1, pid: Some(pid) }
}

fn remote() -> Peer {
    Peer::Remote { source: Source::of("10.0.0.1".parse().unwrap()) }
}

/// A volume of one user refuses other users, and the reason names its owner.
#[test]
fn user_volume_admits_only_its_user() {
    let (sessions, _) = sessions(1000, false);
    let refused = sessions.admit(SessionId(1), Purpose::Work, local(1001, 1), KeyId::VOLUME).map(|_| ());
    let Err(NotAdmitted::Refused(refused)) = refused else { panic!("admitted") };
    assert!(refused.contains("user 1000") && refused.contains("1001"), "{refused}");
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(1000, 1), KeyId::VOLUME).is_ok());
    assert!(sessions.admit(SessionId(2), Purpose::Work, local(0, 1), KeyId::VOLUME).is_ok());
}

/// On root's volume a user's calls are made with that user's credentials; root, who acts for others, is trusted.
#[test]
fn credentials_are_forced_to_the_peer() {
    let (sessions, _) = sessions(0, false);
    let (admitted, _guard) = sessions.admit(SessionId(1), Purpose::Work, local(1000, 1), KeyId::VOLUME).unwrap();
    assert_eq!(admitted.forced, Some(Credentials::user(1000, 1001, vec![])));
    let (admitted, _guard) = sessions.admit(SessionId(2), Purpose::Work, local(0, 1), KeyId::VOLUME).unwrap();
    assert_eq!(admitted.forced, None);
}

/// An embedded server works for one session of its own process; all other sessions observe.
#[test]
fn an_embedded_server_works_for_its_own_mount() {
    let (sessions, _) = sessions(0, true);
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(0, 1), KeyId::VOLUME).is_err());
    assert!(sessions.admit(SessionId(1), Purpose::Work, remote(), KeyId::VOLUME).is_err());
    let own = sessions.admit(SessionId(1), Purpose::Work, local(0, SERVER_PID), KeyId::VOLUME).unwrap();
    assert!(!own.0.observer);
    assert!(
        sessions.admit(SessionId(1), Purpose::Work, local(0, SERVER_PID), KeyId::VOLUME).is_ok(),
        "its next connection"
    );
    assert!(sessions.admit(SessionId(2), Purpose::Work, local(0, SERVER_PID), KeyId::VOLUME).is_err());
    assert!(sessions.admit(SessionId(2), Purpose::Observe, local(0, 1), KeyId::VOLUME).unwrap().0.observer);
}

/// A session outlives its connections by the grace period and no longer.
#[test]
fn a_session_ends_after_its_grace() {
    let (sessions, clock) = sessions(0, false);
    let ended = || sessions.begin_end();
    let (_, first) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1), KeyId::VOLUME).unwrap();
    let (_, second) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1), KeyId::VOLUME).unwrap();
    drop(first);
    *clock.0.lock() = SESSION_GRACE * 2;
    assert!(ended().is_none(), "one connection is left");
    drop(second);
    assert!(ended().is_none());
    let (_, again) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1), KeyId::VOLUME).unwrap();
    *clock.0.lock() = SESSION_GRACE * 4;
    assert!(ended().is_none(), "it came back in time");
    drop(again);
    *clock.0.lock() = SESSION_GRACE * 5;
    assert_eq!(ended(), Some(SessionId(7)));
    assert!(ended().is_none());
    let admit = || sessions.admit(SessionId(7), Purpose::Work, local(0, 1), KeyId::VOLUME);
    assert!(matches!(admit(), Err(NotAdmitted::Crowded(_))), "its files are still being closed");
    sessions.end(SessionId(7));
    assert_eq!(sessions.count(), 0);
    assert!(admit().is_ok());
}

/// Promise: the overflow user is refused on every volume, even on its own.
#[test]
fn the_overflow_user_is_nobody() {
    for owner in [0, 1000, NOBODY] {
        let (sessions, _) = sessions(owner, false);
        let refused = sessions.check_peer(local(NOBODY, 1)).unwrap_err();
        assert!(refused.contains("--listen"), "{refused}");
    }
}

/// Promise: a session can be joined only with the same key and, on this host, by the same user.
#[test]
fn a_session_is_joined_by_its_holder() {
    let (sessions, _) = sessions(0, false);
    let admit = |peer, key| sessions.admit(SessionId(1), Purpose::Work, peer, key).map(|(_, guard)| guard);
    let _guard = admit(remote(), KeyId(7)).unwrap();
    assert!(admit(remote(), KeyId(7)).is_ok());
    for (peer, key) in
        [(remote(), KeyId::VOLUME), (remote(), KeyId(8)), (local(0, 1), KeyId(7)), (local(0, 1), KeyId::VOLUME)]
    {
        let Err(NotAdmitted::Refused(reason)) = admit(peer, key).map(drop) else { panic!("{peer} joined with {key}") };
        assert!(reason.contains("another client's"), "{reason}");
    }
    let of_user =
        |uid| sessions.admit(SessionId(2), Purpose::Work, local(uid, 1), KeyId::VOLUME).map(|(_, guard)| guard);
    let _guard = of_user(1000).unwrap();
    assert!(of_user(1001).is_err() && of_user(0).is_err());
}

/// Promise: the sessions of one user, address or key are limited, the next one gets the reason, and others still
/// connect.
#[test]
fn a_full_share_leaves_room_to_others() {
    let (sessions, clock) = sessions(0, false);
    let number = std::cell::Cell::new(0);
    let admit = |peer, key| {
        number.set(number.get() + 1);
        sessions.admit(SessionId(number.get()), Purpose::Work, peer, key).map(|(_, guard)| guard)
    };
    let crowded = |peer, key, part: &str| {
        let Err(NotAdmitted::Crowded(reason)) = admit(peer, key).map(drop) else { panic!("{peer} came in") };
        assert!(reason.contains(part), "{reason}");
    };
    let stays: Vec<_> = (0..4).map(|_| admit(local(0, 1), KeyId::VOLUME).unwrap()).collect();
    crowded(local(0, 2), KeyId::VOLUME, "user 0 has 4 sessions");
    let _one = admit(local(1000, 1), KeyId::VOLUME).unwrap();
    let _other = admit(remote(), KeyId(7)).unwrap();
    crowded(local(1000, 1), KeyId::VOLUME, "the server has 6 sessions");
    drop(stays);
    crowded(local(0, 2), KeyId::VOLUME, "user 0 has 4 sessions");
    *clock.0.lock() = SESSION_GRACE;
    while let Some(session) = sessions.begin_end() {
        sessions.end(session);
    }
    let elsewhere = |last: u8| Peer::Remote { source: Source::of(std::net::Ipv4Addr::new(10, 0, 0, last).into()) };
    let _stays: Vec<_> = (2..5).map(|last| admit(elsewhere(last), KeyId(7)).unwrap()).collect();
    crowded(elsewhere(5), KeyId(7), "the key 0000000000000007 has 4 sessions");
}

/// Promise: the sessions of a revoked key end with their connections, without a grace period, and others do not.
#[test]
fn a_revoked_key_has_no_grace() {
    let (sessions, _) = sessions(0, false);
    let (_, of_key) = sessions.admit(SessionId(1), Purpose::Work, remote(), KeyId(7)).unwrap();
    let (_, of_other) = sessions.admit(SessionId(2), Purpose::Work, remote(), KeyId(8)).unwrap();
    sessions.revoke(KeyId(7));
    assert!(sessions.begin_end().is_none(), "it still has a connection");
    drop((of_key, of_other));
    assert_eq!(sessions.begin_end(), Some(SessionId(1)));
    assert!(sessions.begin_end().is_none());
}

/// Promise: a session of which another server has registered something here ends after its grace, if it never connects.
#[test]
fn session_that_never_connects_ends_after_its_grace() {
    let (sessions, clock) = sessions(1000, false);
    assert!(sessions.enter_registered(SessionId(1)));
    assert!(sessions.enter_registered(SessionId(2)));
    assert!(sessions.is_live(SessionId(1)));
    *clock.0.lock() += SESSION_GRACE / 2;
    let (_, guard) = sessions.admit(SessionId(2), Purpose::Work, local(1000, 1), KeyId::VOLUME).unwrap();
    let of_another = sessions.admit(SessionId(2), Purpose::Work, local(0, 1), KeyId::VOLUME).map(drop);
    assert!(matches!(of_another, Err(NotAdmitted::Refused(_))), "{of_another:?}");
    *clock.0.lock() += SESSION_GRACE / 2;
    assert_eq!(sessions.begin_end(), Some(SessionId(1)));
    assert!(!sessions.enter_registered(SessionId(1)), "it would be lost");
    sessions.end(SessionId(1));
    assert!(!sessions.is_live(SessionId(1)));
    assert_eq!(sessions.count(), 1);
    drop(guard);
}

/// A user may have as many sessions at each other server as here.
#[test]
fn sessions_of_other_servers_leave_room() {
    let (sessions, _clock) = sessions(1000, false);
    let limit = sessions.limits.sessions as u64;
    assert!((1..=limit * 2).all(|session| sessions.enter_registered(SessionId(session))));
    assert!(sessions.count() < limit as usize);
    let own = sessions.admit(SessionId(limit * 3), Purpose::Work, local(1000, 1), KeyId::VOLUME);
    own.expect("the user has no other session here");
}
