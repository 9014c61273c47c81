//! Promises of ranks in processes: they meet at barriers, their parts are merged, and a rank that dies or falls silent ends
//! the job with its figures.

use super::coordinator::Coordinator;
use super::message::{Ending, FromRank, Hello, PROTOCOL, ToRank, receive, send};
use super::*;
use crate::progress::ProgressDisplay;
use crate::workloads::data::{DataOptions, DataPattern};
use crate::workloads::{Job, RankWork};
use std::io::BufReader;
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
        Coordinator::gather(&self.listener, ranks, "secret", (Duration::from_secs(20), silence), || Ok(())).unwrap()
    }

    /// A rank that does what the test says.
    fn puppet(&self, rank: usize, token: &str) -> (TcpStream, BufReader<TcpStream>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let hello = Hello { protocol: PROTOCOL, token: token.to_owned(), rank, host: "puppet".to_owned() };
        send(&mut stream, &hello).unwrap();
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
            (0..3).map(|rank| scope.spawn(move || serve::serve_at(address, "secret", rank).unwrap())).collect();
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
        let alive = scope.spawn(move || serve::serve_at(address, "secret", 0).unwrap());
        let (mut puppet, mut input) = site.puppet(1, "secret");
        let mut coordinator = site.gather(2, Duration::from_secs(20));
        let puppet = scope.spawn(move || {
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
    std::fs::write(&file, r#"{"addresses":["127.0.0.1:1"],"token":"x"}"#).unwrap();
    let permit = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    permit(0o600);
    assert_eq!(rendezvous::read(&file).unwrap().token, "x");
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
