use super::*;

fn session() -> ClientSession {
    ClientSession::new(SessionId(7), ShardCount::new(4).unwrap())
}

/// Promise: slots are numbered from 1, carry one call at a time, and number their calls from 1.
#[test]
fn slots_are_lanes_of_one_call() {
    let session = session();
    let first = session.begin();
    let second = session.begin();
    assert_eq!(first.id(), CallId { session: 7, slot: 1, number: 1 });
    assert_eq!(second.id(), CallId { session: 7, slot: 2, number: 1 });
    drop(first);
    assert_eq!(session.begin().id(), CallId { session: 7, slot: 1, number: 2 });
    drop(second);
    assert_eq!(session.begin().id().slot, 2, "the slot used last is used next");
}

/// Promise: a file that is opened again while its release is pending is not released; if the release is in flight, the
/// open must wait.
#[test]
fn release_can_be_cancelled_until_sent() {
    let session = session();
    session.release(ShardId(2), InodeId(5));
    assert_eq!(session.take_back(InodeId(5)), TakenBack::Release(Instant(Duration::ZERO)));
    assert!(session.untold().is_empty());
    session.release(ShardId(2), InodeId(5));
    assert_eq!(session.untold(), [ShardId(2)]);
    let telling = session.releases_to_send(ShardId(2));
    assert_eq!(telling, [5]);
    assert_eq!(session.take_back(InodeId(5)), TakenBack::NotYet);
    session.releases_sent(ShardId(2), &telling, true);
    assert_eq!(session.take_back(InodeId(5)), TakenBack::Nothing);
}

/// Promise: the release of a file that the server may still open is sent when the open is over, and not if this client
/// opens the file before.
#[test]
fn a_release_waits_until_the_open_is_over() {
    let session = session();
    let at = |seconds| Instant(Duration::from_secs(seconds));
    session.release_from(at(6), ShardId(2), InodeId(5));
    session.release_due(at(5));
    assert!(session.untold().is_empty());
    assert_eq!(session.take_back(InodeId(5)), TakenBack::Release(at(6)));
    session.release_due(at(7));
    assert!(session.untold().is_empty(), "it was taken back");
    session.release_from(at(6), ShardId(2), InodeId(5));
    session.release_due(at(6));
    assert_eq!(session.releases_to_send(ShardId(2)), [5]);
}

/// Promise: a release in a request without a reply is sent again.
#[test]
fn unconfirmed_release_is_sent_again() {
    let session = session();
    session.release(ShardId(2), InodeId(5));
    let telling = session.releases_to_send(ShardId(2));
    session.releases_sent(ShardId(2), &telling, false);
    assert_eq!(session.releases_to_send(ShardId(2)), [5]);
}

/// Promise: a request carries a bounded number of releases, and the rest stays pending.
#[test]
fn releases_are_sent_in_batches() {
    let session = session();
    let count = RELEASES_PER_REQUEST_MAX + 3;
    (0..count).for_each(|i| session.release(ShardId(0), InodeId(i as u64)));
    assert_eq!(session.releases_to_send(ShardId(0)).len(), RELEASES_PER_REQUEST_MAX);
    assert_eq!(session.releases_to_send(ShardId(0)).len(), 3);
    assert!(session.releases_to_send(ShardId(0)).is_empty());
}
