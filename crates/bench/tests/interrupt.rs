//! SIGINT in the middle of a run: the run ends as interrupted and leaves nothing behind. This test has a process of its
//! own, because the signal goes to the whole process.

use std::time::Duration;
use varve_bench::Error;
use varve_bench::target::Via;
use varve_bench::workloads::mdtest::{self, MdtestConfig};

#[test]
fn interrupted_run_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let config = MdtestConfig {
        via: vec![Via::Path(dir.path().to_owned())],
        files: 4_000_000,
        clients: vec![2],
        repeat: 1000,
        progress: false,
        ..MdtestConfig::default()
    };
    let made = || std::fs::read_dir(dir.path()).unwrap().count() > 0;
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| mdtest::run(&config));
        while !made() && !run.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: sends this process a signal that the run handles.
        assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGINT) }, 0);
        run.join().unwrap()
    });
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
    assert!(!made(), "something was left behind");
}
