//! Promises of ranks in processes: they meet at barriers, their parts are merged, and a rank that dies or falls silent ends
//! the job with its figures.

use super::coordinator::Coordinator;
use super::hearing::Hearing;
use super::message::{Ending, FromRank, Hello, PROTOCOL, ToRank, Welcome, receive, send};
use super::rendezvous::{Published, Rendezvous};
use super::*;
use crate::progress::ProgressDisplay;
use crate::workloads::data::{DataOptions, DataPattern};
use crate::workloads::{Job, RankWork};
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;

/// Signals and the coordinator's interrupt flag belong to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn job(directory: &Path) -> Job {
    let options = DataOptions {
        pattern: DataPattern::Strided,
        bytes: 40_960,
        transfer_bytes: 4096,
        block_bytes: 4096,
        verify: true,
        ..DataOptions::default()
    };
    let via = format!("path:{}", directory.display());
    Job { via, directory: String::new(), seed: 1, work: RankWork::Data(options) }
}

fn secrets() -> Secrets {
    Secrets { token: "secret".to_owned(), answer: "reply".to_owned() }
}

struct Site {
    listener: TcpListener,
    address: String,
}

impl Site {
    fn new() -> Site {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        Site { listener, address }
    }

    fn gather(&self, ranks: usize, silence: Duration) -> Coordinator {
        Coordinator::gather(&self.listener, ranks, &secrets(), (Duration::from_secs(20), silence), || Ok(())).unwrap()
    }

    /// A rank that does what the test says.
    fn puppet(&self, rank: usize, token: &str) -> (TcpStream, BufReader<TcpStream>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let hello = Hello { protocol: PROTOCOL, token: token.to_owned(), rank, host: "puppet".to_owned() };
        send(&mut stream, &hello).unwrap();
        send(&mut stream, &FromRank::Alive(0)).unwrap();
        let input = BufReader::new(stream.try_clone().unwrap());
        (stream, input)
    }
}

#[test]
fn remote_ranks_run_jobs_and_their_parts_are_merged() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let site = Site::new();
    std::thread::scope(|scope| {
        let address = &site.address;
        let ranks: Vec<_> =
            (0..3).map(|rank| scope.spawn(move || serve::serve_at(address, &secrets(), rank).unwrap())).collect();
        let mut coordinator = site.gather(3, Duration::from_secs(20));
        for ranks in [3, 2] {
            let dir = tempfile::tempdir().unwrap();
            let (parts, error) = coordinator.run(&job(dir.path()), ranks, &ProgressDisplay::new(false, 0));
            assert!(error.is_none(), "{error:?}");
            let phases = PhaseRecord::merge(&parts, ranks, false);
            let write = phases.iter().find(|phase| phase.phase == "write").unwrap();
            assert_eq!((write.ranks, write.operations, write.bytes), (ranks, 10 * ranks as u64, 40_960 * ranks as u64));
            assert!(write.first_done <= write.last_done && !write.partial);
            assert_eq!(write.latencies.count(), write.operations);
        }
        coordinator.finish();
        drop(coordinator);
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}

#[test]
fn rank_that_dies_ends_the_job_with_a_clear_error() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (site, dir) = (Site::new(), tempfile::tempdir().unwrap());
    std::thread::scope(|scope| {
        let address = &site.address;
        let alive = scope.spawn(move || serve::serve_at(address, &secrets(), 0).unwrap());
        let (mut puppet, mut input) = site.puppet(1, "secret");
        let mut coordinator = site.gather(2, Duration::from_secs(20));
        let puppet = scope.spawn(move || {
            let welcome: Option<Welcome> = receive(&mut input, 1 << 20).unwrap();
            assert_eq!(welcome.unwrap().answer, "reply");
            let run: Option<ToRank> = receive(&mut input, 1 << 20).unwrap();
            assert!(matches!(run, Some(ToRank::Run { ranks: 2, .. })));
            send(&mut puppet, &FromRank::Arrived).unwrap();
            // It dies in the middle of the first phase.
        });
        let (parts, error) = coordinator.run(&job(dir.path()), 2, &ProgressDisplay::new(false, 0));
        puppet.join().unwrap();
        let text = error.unwrap().to_string();
        assert!(text.contains("rank 1 on puppet is lost: its process ended"), "{text}");
        assert!(PhaseRecord::merge(&parts, 2, true).iter().all(|phase| phase.partial), "all that is there is marked");
        let again = coordinator.run(&job(dir.path()), 2, &ProgressDisplay::new(false, 0)).1.unwrap().to_string();
        assert!(again.contains("an earlier job lost one"), "{again}");
        coordinator.finish();
        drop(coordinator);
        alive.join().unwrap();
    });
}

#[test]
fn silent_host_is_lost_after_its_time() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (site, dir) = (Site::new(), tempfile::tempdir().unwrap());
    let puppet = site.puppet(0, "secret");
    let mut coordinator = site.gather(1, Duration::from_millis(300));
    let (_, error) = coordinator.run(&job(dir.path()), 1, &ProgressDisplay::new(false, 0));
    assert!(error.unwrap().to_string().contains("rank 0 on puppet is lost: it has not answered"));
    drop(puppet);
}

#[test]
fn strangers_and_damaged_reports_are_refused() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (site, dir) = (Site::new(), tempfile::tempdir().unwrap());
    let stranger = site.puppet(0, "guess");
    let outside = site.puppet(7, "secret");
    let (mut puppet, _input) = site.puppet(0, "secret");
    let mut coordinator = site.gather(1, Duration::from_secs(20));
    let mut part: serde_json::Value = serde_json::json!({
        "phase": "write", "rank": 5, "elapsed_ns": 1, "operations": 1, "bytes": 1, "missed": 0, "partial": false,
        "latencies": [[1, 1]], "lateness": [], "timeline": { "width_ms": 50, "counts": [] },
    });
    part = serde_json::json!({ "Part": part });
    send(&mut puppet, &part).unwrap();
    let (parts, error) = coordinator.run(&job(dir.path()), 1, &ProgressDisplay::new(false, 0));
    assert!(parts.is_empty() && error.unwrap().to_string().contains("report of write is damaged"));
    let _ = send(&mut puppet, &FromRank::Ended(Ending::Done));
    drop((stranger, outside));
}

/// Promise: an unauthenticated connection that sends a byte now and then does not keep a run from its end.
#[test]
fn slow_stranger_does_not_hold_the_start() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let site = Site::new();
    let mut stranger = TcpStream::connect(&site.address).unwrap();
    std::thread::scope(|scope| {
        // It ends when the coordinator closes the connection, or at its last byte.
        scope.spawn(move || {
            for _ in 0..600 {
                if stranger.write_all(b" ").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let times = (Duration::from_millis(300), Duration::from_secs(20));
        let gathered = Coordinator::gather(&site.listener, 1, &secrets(), times, || Ok(()));
        assert!(gathered.err().unwrap().to_string().contains("ranks 0 did not start"));
    });
}

/// Promise: a rank takes jobs only from the coordinator that its user named.
#[test]
fn rank_passes_over_impostors() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (liar, mute, site) = (Site::new(), Site::new(), Site::new());
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = liar.listener.accept().unwrap();
            send(&mut stream, &Welcome { answer: "secret".to_owned() }).unwrap();
            // The rank closes the connection.
            send(&mut stream, &ToRank::Run { job: job(dir.path()), ranks: 1 }).unwrap_or_default();
        });
        let addresses = [&liar, &mute, &site].map(|site| site.address.clone()).to_vec();
        let found = Rendezvous { addresses, secrets: secrets() };
        // The third address answers while it gathers. Its connection is closed, as it gets no sign of life.
        let gathering = scope.spawn(|| {
            let times = (Duration::from_secs(20), Duration::from_secs(20));
            Coordinator::gather(&site.listener, 1, &secrets(), times, || Ok(())).map(drop)
        });
        let (mut stream, _input) = serve::connect(&found, 0, Duration::from_secs(2)).unwrap();
        assert_eq!(stream.peer_addr().unwrap().to_string(), site.address);
        send(&mut stream, &FromRank::Alive(0)).unwrap();
        gathering.join().unwrap().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the impostor's job does not run");
    });
}

#[test]
fn end_of_the_coordinator_fails_its_ranks() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let site = Site::new();
    std::thread::scope(|scope| {
        let rank = scope.spawn(|| serve::serve_at(&site.address, &secrets(), 0));
        drop(site.gather(1, Duration::from_secs(20)));
        let error = rank.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("rank 0 is lost: it closed the connection"), "{error}");
    });
}

#[test]
fn own_pause_is_no_silence_of_the_ranks() {
    let begun = Instant::now();
    let after = |ms| begun + Duration::from_millis(ms);
    let silence_max = Duration::from_secs(5);
    let mut hearing = Hearing::new(2, begun);
    for ms in (0..=4000).step_by(200) {
        assert!(hearing.silent(after(ms), silence_max).is_empty());
    }
    // The process stands still for a minute. Rank 0 is heard soon after that, and rank 1 is not.
    assert!(hearing.silent(after(64_000), silence_max).is_empty());
    hearing.hears(0, after(64_500));
    let silent: Vec<_> = (64_200..66_000).step_by(200).map(|ms| hearing.silent(after(ms), silence_max)).collect();
    assert_eq!(silent.iter().flatten().copied().collect::<std::collections::BTreeSet<_>>(), [1].into());
}

#[test]
fn jobs_in_one_directory_do_not_share_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let publish = |job: &str| {
        let rendezvous = Rendezvous { addresses: vec![format!("of {job}")], secrets: secrets() };
        Published::publish(&rendezvous::file_of(dir.path(), job), &rendezvous).unwrap()
    };
    let published = ["new", "7", "8"].map(publish);
    for job in ["new", "7", "8"] {
        assert_eq!(rendezvous::read(&rendezvous::file_of(dir.path(), job)).unwrap().addresses, [format!("of {job}")]);
    }
    drop(published);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn ranks_find_the_coordinator_through_a_shared_directory() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (shared, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let job_name = "prte/7.0";
    std::fs::write(rendezvous::file_of(shared.path(), job_name), b"{ of a dead run").unwrap();
    let launched = Launched { launcher: "Open MPI", rank: 0, ranks: 3, job: job_name.to_owned() };
    let config = LauncherConfig {
        processes: false,
        launched: Some(launched),
        rendezvous: shared.path().to_owned(),
        program: ("/bin/false".into(), Vec::new()),
        silence_max: Duration::from_secs(20),
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..3)
            .map(|rank| {
                scope.spawn({
                    let shared = shared.path();
                    move || serve_rank(shared, job_name, rank)
                })
            })
            .collect();
        let mut launcher = Launcher::start(&config, 1).unwrap();
        assert_eq!(launcher.ranks(), Some(3));
        let outcome = launcher.run(&job(dir.path()), 3, &ProgressDisplay::new(false, 0));
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        drop(launcher);
        others.into_iter().for_each(|rank| rank.join().unwrap().unwrap());
    });
    assert_eq!(std::fs::read_dir(shared.path()).unwrap().count(), 0, "the file is removed");
}

/// Promise: ranks follow only a coordinator that their own user named.
#[test]
fn rendezvous_that_others_could_have_written_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = rendezvous::file_of(dir.path(), "7");
    std::fs::write(&file, r#"{"addresses":["127.0.0.1:1"],"token":"x","answer":"y"}"#).unwrap();
    let permit = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    permit(0o600);
    assert_eq!(rendezvous::read(&file).unwrap().secrets.token, "x");
    permit(0o666);
    assert!(rendezvous::read(&file).unwrap_err().to_string().contains("belong to this user alone"));
    permit(0o600);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert!(rendezvous::read(&link).is_err(), "a link may lead anywhere");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        assert!(rendezvous::read(&file).is_err(), "another user's");
    }
}

#[test]
fn process_that_cannot_start_is_named() {
    let config = LauncherConfig {
        processes: true,
        launched: None,
        rendezvous: "/".into(),
        program: ("/bin/false".into(), Vec::new()),
        silence_max: Duration::from_secs(20),
    };
    let error = Launcher::start(&config, 2).err().unwrap().to_string();
    assert!(error.contains("before it connected"), "{error}");
}
