//! One suite for every registry.

mod common;

use common::{Etcd, SecuredEtcd, Store};
use std::sync::Arc;
use std::time::Duration;
use varve_cluster::map::{ClusterMap, Member, MemberState, ServerId};
use varve_cluster::probe;
use varve_cluster::registry::{Beat, KillReason, Pulse, Registry, RegistryError, Taken};
use varve_env::clock::{Clock, RealClock};
use varve_env::volume_dir::WorkerRecord;
use varve_types::ShardCount;

const SERVER: ServerId = ServerId(7);

fn member(pid: u32) -> Member {
    let (host, boot_id) = ("host".to_owned(), "boot".to_owned());
    let (workers, peers) = (vec![WorkerRecord::default()], WorkerRecord::default());
    Member { host, boot_id, pid, workers, peers, state: MemberState::Active, synced: false, store_id: None }
}

/// Two sides of one registry.
type Sides = (Arc<dyn Registry>, Arc<dyn Registry>);

/// Runs `test` on each kind of registry, with a fresh one.
fn on_each<F: Future<Output = ()>>(test: impl Fn(Sides) -> F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = Store::new();
    runtime.block_on(test((store.side(), store.side())));
    let etcd = Etcd::start();
    runtime.block_on(test((etcd.side(), etcd.side())));
}

fn first_map() -> ClusterMap {
    let empty = ClusterMap::first(ShardCount::new(4).expect("a power of two"), Duration::from_secs(2));
    ClusterMap { version: 0, ..empty }.joined(SERVER, member(1)).expect("it joins")
}

#[test]
fn newest_map_is_the_last_published_one() {
    on_each(|(one, other)| async move {
        assert_eq!(one.newest_map().await.unwrap(), None);
        let mut map = first_map();
        assert_eq!(one.publish(&map).await.unwrap(), Taken::Ours);
        // More than the old versions that are kept.
        for round in 0..120 {
            map = match round % 2 {
                0 => map.joined(ServerId(8), member(2)).unwrap(),
                _ => map.left(ServerId(8)).unwrap(),
            };
            assert_eq!(other.publish(&map).await.unwrap(), Taken::Ours);
        }
        assert_eq!(one.newest_map().await.unwrap(), Some(map));
    });
}

#[test]
fn one_of_two_changes_of_a_version_succeeds() {
    on_each(|(one, other)| async move {
        one.publish(&first_map()).await.unwrap();
        for version in 2..30 {
            let map = one.newest_map().await.unwrap().unwrap();
            let (ours, theirs) = (
                map.joined(ServerId(100 + version), member(1)).unwrap(),
                map.joined(ServerId(200 + version), member(2)).unwrap(),
            );
            let (first, second) = futures::join!(one.publish(&ours), other.publish(&theirs));
            let (first, second) = (first.unwrap(), second.unwrap());
            assert_ne!(first, second, "version {version}");
            let expected = if first == Taken::Ours { ours } else { theirs };
            assert_eq!(one.newest_map().await.unwrap(), Some(expected.clone()));
            assert_eq!(other.newest_map().await.unwrap(), Some(expected));
        }
    });
}

/// Its answer was lost, so the caller cannot know that it succeeded.
#[test]
fn repeated_change_succeeds_again() {
    on_each(|(one, other)| async move {
        let map = first_map();
        for side in [&one, &other, &one] {
            assert_eq!(side.publish(&map).await.unwrap(), Taken::Ours);
        }
        for _ in 0..2 {
            assert_eq!(one.renew(SERVER, Beat(1)).await.unwrap(), Taken::Ours);
        }
        for side in [&one, &other] {
            assert_eq!(side.kill(SERVER, Beat(2), KillReason::Silent).await.unwrap(), Taken::Ours);
        }
    });
}

#[test]
fn change_of_an_old_version_is_refused() {
    on_each(|(one, other)| async move {
        let first = first_map();
        one.publish(&first).await.unwrap();
        let mut map = first.clone();
        for round in 0..110 {
            map = if round % 2 == 0 {
                map.joined(ServerId(8), member(2)).unwrap()
            } else {
                map.left(ServerId(8)).unwrap()
            };
            one.publish(&map).await.unwrap();
        }
        // Version 2 is not there any more. A server that was stopped since version 1 must not get it.
        let late = first.joined(ServerId(9), member(9)).unwrap();
        assert_eq!(other.publish(&late).await.unwrap(), Taken::Others);
        assert_eq!(other.newest_map().await.unwrap(), Some(map));
    });
}

#[test]
fn waiting_for_a_later_map_ends_with_the_change() {
    on_each(|(one, other)| async move {
        let map = first_map();
        one.publish(&map).await.unwrap();
        let soon = Duration::from_millis(50);
        assert_eq!(one.later_map(map.version, soon).await.unwrap(), None);
        assert_eq!(one.later_map(0, soon).await.unwrap(), Some(map.clone()));
        let next = map.joined(ServerId(8), member(2)).unwrap();
        let changes = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            other.publish(&next).await.unwrap();
        };
        let clock = RealClock::new();
        let begun = clock.monotonic();
        let (later, ()) = futures::join!(one.later_map(map.version, Duration::from_secs(20)), changes);
        assert_eq!(later.unwrap(), Some(next.clone()));
        assert!(clock.monotonic().since(begun) < Duration::from_secs(10));
    });
}

#[test]
fn killed_server_cannot_renew() {
    on_each(|(server, watcher)| async move {
        assert_eq!(watcher.pulse(SERVER).await.unwrap(), Pulse::Beats(Beat(0)));
        for beat in 1..=12 {
            assert_eq!(server.renew(SERVER, Beat(beat)).await.unwrap(), Taken::Ours);
        }
        assert_eq!(watcher.pulse(SERVER).await.unwrap(), Pulse::Beats(Beat(12)));
        assert_eq!(watcher.kill(SERVER, Beat(13), KillReason::Silent).await.unwrap(), Taken::Ours);
        assert_eq!(server.renew(SERVER, Beat(13)).await.unwrap(), Taken::Others);
        watcher.forget(SERVER).await.unwrap();
        assert_eq!(watcher.pulse(SERVER).await.unwrap(), Pulse::Killed(KillReason::Silent));
        assert_eq!(server.renew(SERVER, Beat(13)).await.unwrap(), Taken::Others);
    });
}

/// The watcher was stopped for long: the number that it wants to take is not there any more.
#[test]
fn server_that_renewed_cannot_be_killed() {
    on_each(|(server, watcher)| async move {
        for beat in 1..=30 {
            server.renew(SERVER, Beat(beat)).await.unwrap();
        }
        for late in [2, 30] {
            assert_eq!(watcher.kill(SERVER, Beat(late), KillReason::Silent).await.unwrap(), Taken::Others);
        }
        assert_eq!(watcher.pulse(SERVER).await.unwrap(), Pulse::Beats(Beat(30)));
        assert_eq!(server.renew(SERVER, Beat(31)).await.unwrap(), Taken::Ours);
    });
}

#[test]
fn server_that_left_is_forgotten() {
    on_each(|(one, other)| async move {
        for beat in 1..=3 {
            one.renew(SERVER, Beat(beat)).await.unwrap();
        }
        other.forget(SERVER).await.unwrap();
        assert_eq!(one.pulse(SERVER).await.unwrap(), Pulse::Beats(Beat(0)));
        other.forget(SERVER).await.unwrap();
    });
}

/// Removes the content of a registry.
type Lose<'a> = &'a dyn Fn();

/// Promise: the loss of a registry is noticed, and no number after a lost one is given.
#[test]
fn lost_content_is_noticed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (store, etcd) = (Store::new(), Etcd::start());
    let registries: [(Arc<dyn Registry>, Lose<'_>); 2] =
        [(store.side(), &|| store.lose()), (etcd.side(), &|| etcd.lose())];
    for (registry, lose) in registries {
        runtime.block_on(async {
            let (first, soon) = (first_map(), Duration::from_millis(50));
            let second = first.joined(ServerId(8), member(2)).unwrap();
            for map in [&first, &second] {
                registry.publish(map).await.unwrap();
            }
            for beat in 1..=3 {
                registry.renew(SERVER, Beat(beat)).await.unwrap();
            }
            assert_eq!(registry.later_map(second.version, soon).await.unwrap(), None);
            lose();
            let lost = registry.later_map(second.version, soon).await.unwrap_err();
            assert!(
                lost.to_string().ends_with(
                    "version 2 was there, and now there is none; stop all servers of the volume, then \
                start them again"
                ),
                "{lost}"
            );
            assert_eq!(registry.renew(SERVER, Beat(4)).await.unwrap(), Taken::Others);
            registry.publish(&first).await.unwrap();
            let earlier = registry.later_map(second.version, soon).await.unwrap_err();
            assert!(earlier.to_string().contains("now the newest is 1"), "{earlier}");
        });
    }
}

/// Promise: a server that leaves, and one whose registry is too slow to join, leave no files.
#[test]
fn chain_of_a_server_that_left_is_removed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let store = Store::new();
    let registry = store.side();
    runtime.block_on(async {
        for beat in 1..=12 {
            registry.renew(SERVER, Beat(beat)).await.unwrap();
        }
        assert_eq!(store.chains(), 1);
        registry.forget(SERVER).await.unwrap();
        assert_eq!(store.chains(), 0);
        probe::measure(&*registry, &RealClock::new(), Duration::from_nanos(60)).await.unwrap_err();
        assert_eq!(store.chains(), 0);
        registry.renew(SERVER, Beat(1)).await.unwrap();
        registry.kill(SERVER, Beat(2), KillReason::Silent).await.unwrap();
        registry.forget(SERVER).await.unwrap();
        assert_eq!(store.chains(), 1, "a kill stays");
    });
}

/// Promise: a server learns why it was killed.
#[test]
fn kill_has_a_reason() {
    on_each(|(server, other)| async move {
        server.renew(SERVER, Beat(1)).await.unwrap();
        assert_eq!(other.kill(SERVER, Beat(2), KillReason::Evicted).await.unwrap(), Taken::Ours);
        assert_eq!(other.kill(SERVER, Beat(2), KillReason::Silent).await.unwrap(), Taken::Others);
        assert_eq!(server.renew(SERVER, Beat(2)).await.unwrap(), Taken::Others);
        assert_eq!(server.pulse(SERVER).await.unwrap(), Pulse::Killed(KillReason::Evicted));
        other.forget(SERVER).await.unwrap();
        assert_eq!(server.pulse(SERVER).await.unwrap(), Pulse::Killed(KillReason::Evicted));
    });
}

#[test]
fn races_have_one_winner() {
    on_each(|(one, other)| async move {
        probe::race(&*one, &*other, 200).await.unwrap();
        probe::measure(&*one, &RealClock::new(), Duration::from_secs(60)).await.unwrap();
    });
}

#[test]
fn registry_that_is_too_slow_for_the_lease_is_refused() {
    on_each(|(one, _)| async move {
        let refused = probe::measure(&*one, &RealClock::new(), Duration::from_nanos(60)).await.unwrap_err();
        assert!(refused.to_string().contains("--lease"), "{refused}");
    });
}

#[test]
fn etcd_with_client_certificates_needs_one() {
    let secured = SecuredEtcd::with_certificates();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let side = secured.side(&[("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key")]).unwrap();
        assert_eq!(side.renew(SERVER, Beat(1)).await.unwrap(), Taken::Ours);
        let without = secured.side(&[("ca", "ca.pem")]).unwrap();
        assert!(without.pulse(SERVER).await.is_err());
        // An authority that has not signed etcd's certificate.
        let stranger = secured.side(&[("ca", "client.pem")]).unwrap();
        let refused = stranger.pulse(SERVER).await.unwrap_err().to_string();
        assert!(refused.contains("certificate"), "{refused}");
        let absent = secured.side(&[("ca", "absent.pem")]).unwrap_err().to_string();
        assert!(absent.contains("absent.pem"), "{absent}");
    });
}

#[test]
fn etcd_with_users_needs_the_password() {
    let secured = SecuredEtcd::with_password();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let user = |file| [("ca", "ca.pem"), ("user", "root"), ("password-file", file)];
        let side = secured.side(&user("password")).unwrap();
        for beat in 1..4 {
            assert_eq!(side.renew(SERVER, Beat(beat)).await.unwrap(), Taken::Ours);
        }
        assert_eq!(side.later_map(0, Duration::from_millis(100)).await.unwrap(), None);
        for (options, name) in [(&user("wrong")[..], "wrong password"), (&[("ca", "ca.pem")], "no user")] {
            let refused = secured.side(options).unwrap().pulse(SERVER).await.unwrap_err();
            assert!(matches!(refused, RegistryError::Refused { .. }), "{name}: {refused}");
        }
    });
}

#[test]
fn registry_that_does_not_answer_is_unavailable() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let etcd = Etcd::start();
    let side = etcd.side();
    runtime.block_on(async { assert_eq!(side.renew(SERVER, Beat(1)).await.unwrap(), Taken::Ours) });
    etcd.stop();
    let clock = RealClock::new();
    let begun = clock.monotonic();
    let hung = runtime.block_on(side.renew(SERVER, Beat(2))).unwrap_err();
    assert!(matches!(hung, RegistryError::Unavailable { .. }), "{hung}");
    assert!(clock.monotonic().since(begun) < Duration::from_secs(10));
    etcd.signal(libc::SIGCONT);
    // The renewal may have been carried out after all.
    assert_eq!(runtime.block_on(side.renew(SERVER, Beat(2))).unwrap(), Taken::Ours);
    drop(etcd);
    let gone = runtime.block_on(side.pulse(SERVER)).unwrap_err();
    assert!(matches!(gone, RegistryError::Unavailable { .. }), "{gone}");
}
