//! kill -9 of a writing process: the test runs itself as a child, which reports acknowledged batches on a pipe.

use super::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const CHILD: &str = "VARVE_TEST_TABLE_KILLED";
const BATCH: u32 = 7;

/// Writes batches after `first`, and prints the last number of each once it is acknowledged. Never ends by itself.
fn write_until_killed(root: &Path, first: u32) {
    let background = background();
    let worker = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    worker.block_on(async {
        // A short interval, so that kills hit syncs too; a small memtable, so that they hit flushes.
        let config = TableConfig { memtable_bytes: 20_000, ..config(root, &background, Duration::from_millis(3)) };
        let table = Table::open(config).await.unwrap();
        let mut acknowledged = std::io::stderr();
        for start in (first..).step_by(BATCH as usize) {
            put(&table, start..start + BATCH).await;
            writeln!(acknowledged, "{}", start + BATCH).unwrap();
            if start % 1001 == 0 {
                table.flush().await.unwrap();
            }
        }
    });
}

/// Acknowledged batches survive the death of the server process, at any time; and each batch is complete.
#[test]
fn acknowledged_writes_survive_kill_9() {
    if let Some(root) = std::env::var_os(CHILD) {
        let first = std::env::var("VARVE_TEST_TABLE_FIRST").unwrap().parse().unwrap();
        return write_until_killed(Path::new(&root), first);
    }
    let env = TestEnv::new();
    let rounds = if std::env::var_os("VARVE_SOAK").is_some() { 200 } else { 4 };
    let mut found = 0;
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--nocapture", "--exact", own_name()])
            .env(CHILD, env.directory.path())
            .env("VARVE_TEST_TABLE_FIRST", found.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut acknowledged = found;
        let kill_at = found + BATCH * (50 + round * 37 % 400);
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            let Ok(number) = line.unwrap().parse() else { continue };
            acknowledged = number;
            if acknowledged == kill_at {
                child.kill().unwrap();
            }
        }
        assert!(!child.wait().unwrap().success());
        assert!(acknowledged >= kill_at, "the child died by itself at {acknowledged} of {kill_at}");
        let numbers = env.worker(async || {
            let table = Table::open(env.config(LONG)).await.unwrap();
            numbers(&table).await
        });
        assert!(numbers.len() as u32 >= acknowledged, "{} of {acknowledged} acknowledged rows", numbers.len());
        assert_eq!(numbers.len() as u32 % BATCH, 0, "a batch is torn");
        found = numbers.len() as u32;
        assert_eq!(numbers, (0..found).collect::<Vec<_>>());
    }
}

/// The test's own name in the test runner.
fn own_name() -> &'static str {
    static PATH: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let module = module_path!().split_once("::").map_or("", |(_, module)| module);
        format!("{module}::acknowledged_writes_survive_kill_9")
    })
}
