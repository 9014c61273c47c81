use super::*;
use varve_types::Timestamp;

struct StillClock(Mutex<Duration>);

impl Clock for StillClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Moment {
        Moment(*self.0.lock())
    }
}

const SERVER_PID: i32 = 4242;

fn sessions(owner_uid: u32, embedded: bool) -> (Arc<Sessions>, Arc<StillClock>) {
    let clock = Arc::new(StillClock(Mutex::default()));
    let admission = Admission { owner_uid, server_uid: owner_uid, server_pid: SERVER_PID, embedded };
    (Arc::new(Sessions::new(admission, clock.clone())), clock)
}

fn local(uid: u32, pid: i32) -> Peer {
    Peer::Local { uid, gid: uid + 1, pid: Some(pid) }
}

/// A volume of one user refuses others and says whose it is.
#[test]
fn a_users_volume_is_theirs_alone() {
    let (sessions, _) = sessions(1000, false);
    let refused = sessions.admit(SessionId(1), Purpose::Work, local(1001, 1)).map(|_| ()).unwrap_err();
    assert!(refused.contains("user 1000") && refused.contains("1001"), "{refused}");
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(1000, 1)).is_ok());
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(0, 1)).is_ok());
}

/// On root's volume a user's calls are made in that user's name; root, who speaks for others, is believed.
#[test]
fn credentials_are_forced_to_the_peer() {
    let (sessions, _) = sessions(0, false);
    let (admitted, _stay) = sessions.admit(SessionId(1), Purpose::Work, local(1000, 1)).unwrap();
    assert_eq!(admitted.forced, Some(Credentials { uid: 1000, gid: 1001, groups: vec![] }));
    let (admitted, _stay) = sessions.admit(SessionId(1), Purpose::Work, local(0, 1)).unwrap();
    assert_eq!(admitted.forced, None);
}

/// An embedded server works for one session of its own process; everyone else observes.
#[test]
fn an_embedded_server_works_for_its_own_mount() {
    let (sessions, _) = sessions(0, true);
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(0, 1)).is_err());
    assert!(sessions.admit(SessionId(1), Purpose::Work, Peer::Remote).is_err());
    let own = sessions.admit(SessionId(1), Purpose::Work, local(0, SERVER_PID)).unwrap();
    assert!(!own.0.observer);
    assert!(sessions.admit(SessionId(1), Purpose::Work, local(0, SERVER_PID)).is_ok(), "its next connection");
    assert!(sessions.admit(SessionId(2), Purpose::Work, local(0, SERVER_PID)).is_err());
    assert!(sessions.admit(SessionId(2), Purpose::Observe, local(0, 1)).unwrap().0.observer);
}

/// A session outlives its connections by the grace and no longer.
#[test]
fn a_session_ends_after_its_grace() {
    let (sessions, clock) = sessions(0, false);
    let ended = || sessions.end_one(|_| ());
    let (_, first) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1)).unwrap();
    let (_, second) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1)).unwrap();
    drop(first);
    *clock.0.lock() = SESSION_GRACE * 2;
    assert!(ended().is_none(), "one connection is left");
    drop(second);
    assert!(ended().is_none());
    let (_, again) = sessions.admit(SessionId(7), Purpose::Work, local(0, 1)).unwrap();
    *clock.0.lock() = SESSION_GRACE * 4;
    assert!(ended().is_none(), "it came back in time");
    drop(again);
    *clock.0.lock() = SESSION_GRACE * 5;
    // Nobody is admitted in the midst of that.
    let end = |session| (session, sessions.table.try_lock().is_some());
    assert_eq!(sessions.end_one(end), Some((SessionId(7), (SessionId(7), false))));
    assert!(ended().is_none());
    assert_eq!(sessions.count(), 0);
}
