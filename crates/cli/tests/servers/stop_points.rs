//! A server stops between two steps of a change, as SIGSTOP at an unlucky time would, until another server has its shards
//! and a client has gone on there. Then it goes on where it stopped: it answers nothing that its successor contradicts,
//! and ends.

use super::common::{Server, Volume, until};
use super::{SHARDS, TAKEOVER, await_open, await_shares, make_directories, volume};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// More than a row holds, so that the content is in a backing file.
const LARGE: usize = 300_000;
const CUT: usize = 1000;

/// Starts a server that stops at its next pass of `point` once there is the file that is returned.
fn join_to_stop(volume: &Volume, point: &str) -> (Server, std::path::PathBuf) {
    let armed = volume.beside("armed");
    let at = format!("{point}:{}", armed.display());
    (volume.join_with("stopped.log", &[], &[("VARVE_TEST_STOP_AT", &at)]), armed)
}

/// Makes large files, cuts each and appends to it. Counts those that are complete.
fn cut_files(root: &Path, stop: &AtomicBool, count: &AtomicUsize) {
    while !stop.load(SeqCst) {
        let number = count.load(SeqCst);
        let directory = root.join(format!("large{number}"));
        std::fs::create_dir(&directory).expect("a directory");
        std::fs::write(directory.join("file"), vec![b'x'; LARGE]).expect("a large file");
        let mut file = OpenOptions::new().append(true).open(directory.join("file")).expect("it is there");
        file.set_len(CUT as u64).expect("it is cut");
        file.write_all(format!("after {number}").as_bytes()).expect("it grows");
        file.sync_all().expect("it is synced");
        count.store(number + 1, SeqCst);
    }
}

fn expect_directories(root: &Path, count: usize) {
    for number in 0..count {
        let content = std::fs::read(root.join(format!("d{number}/renamed"))).expect("it was acknowledged");
        assert_eq!(content, format!("content {number}").into_bytes());
        assert_eq!(std::fs::read_dir(root.join(format!("d{number}"))).expect("a directory").count(), 1);
    }
}

fn expect_cut_files(root: &Path, count: usize) {
    for number in 0..count {
        let content = std::fs::read(root.join(format!("large{number}/file"))).expect("it was acknowledged");
        let expected = [vec![b'x'; CUT], format!("after {number}").into_bytes()].concat();
        assert!(content == expected, "file {number} has {} bytes, not {}", content.len(), expected.len());
    }
}

/// A server stops at `point`, while it serves or while it opens its first shard.
fn stops_at(point: &str, while_it_opens: bool) {
    let volume = volume();
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(other.pid(), SHARDS)]);
    await_open(&volume);
    let mount = volume.mount(&["-o", "noembedded"]);
    if while_it_opens {
        std::fs::write(volume.beside("armed"), b"").expect("a file");
    }
    let (stop, made, cut) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let goes_on = |what: &str| {
        let before = (made.load(SeqCst), cut.load(SeqCst));
        until(&format!("the workload goes on {what}"), TAKEOVER, || {
            made.load(SeqCst) > before.0 + 20 && cut.load(SeqCst) > before.1 + 5
        });
    };
    std::thread::scope(|scope| {
        let work = [
            scope.spawn(|| make_directories(&mount.directory, &stop, &made)),
            scope.spawn(|| cut_files(&mount.directory, &stop, &cut)),
        ];
        let (mut stopped, armed) = join_to_stop(&volume, point);
        if !while_it_opens {
            await_shares(&volume, &[(other.pid(), SHARDS / 2), (stopped.pid(), SHARDS / 2)]);
            goes_on("with both servers");
            std::fs::write(&armed, b"").expect("a file");
        }
        stopped.await_stopped(TAKEOVER);
        assert!(!armed.exists(), "it stopped at the point");
        await_shares(&volume, &[(other.pid(), SHARDS)]);
        goes_on("at the other server");
        stopped.go_on();
        assert_eq!(stopped.expect_failure(), 1, "{}", stopped.log());
        assert!(stopped.log().contains("was taken for dead by another server"), "{}", stopped.log());
        goes_on("after the other one has gone on and ended");
        stop.store(true, SeqCst);
        work.into_iter().for_each(|work| work.join().expect("the workload saw no error"));
    });
    expect_directories(&mount.directory, made.load(SeqCst));
    expect_cut_files(&mount.directory, cut.load(SeqCst));
    mount.unmount();
    other.stop();
    volume.expect_sound();
}

#[test]
fn server_stopped_before_append_answers_nothing() {
    stops_at("AppendDue", false);
}

#[test]
fn server_stopped_after_append_answers_nothing() {
    stops_at("Appended", false);
}

#[test]
fn server_stopped_after_fsync_answers_nothing() {
    stops_at("Fsynced", false);
}

#[test]
fn server_stopped_before_reply_contradicts_nothing() {
    stops_at("ReplyAllowed", false);
}

#[test]
fn server_stopped_before_truncate_cuts_nothing() {
    stops_at("BackingFileOpened", false);
}

#[test]
fn server_stopped_before_claim_claims_nothing() {
    stops_at("ClaimAllowed", true);
}
