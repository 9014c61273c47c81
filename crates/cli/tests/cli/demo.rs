//! `scripts/demo.sh`: it ends with a table and leaves nothing behind, also after Ctrl-C.

use super::common::{scratch, until, varve, wait};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Its process group ends with it.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        // SIGTERM lets the script remove its mount and server, which are not in the group.
        for signal in [Signal::TERM, Signal::KILL] {
            if matches!(self.0.try_wait(), Ok(None)) {
                let _ = kill_process_group(Pid::from_child(&self.0), signal);
                wait(&mut self.0, CLEANUP);
            }
        }
    }
}

const WAIT: Duration = Duration::from_secs(240);
const CLEANUP: Duration = Duration::from_secs(60);

/// Starts the demo in its own process group, as a terminal does, with counts for an unoptimised program.
fn demo(directory: &Path, files: &str) -> Demo {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/demo.sh");
    let output = |name: &str| Stdio::from(fs::File::create(directory.join(name)).expect("a file"));
    fs::create_dir(directory.join("work")).expect("a directory");
    let mut command = Command::new("bash");
    command.arg(script).arg(varve().get_program()).args([directory.join("page.html"), directory.join("work")]);
    command.env("DEMO_FILES", files).env("DEMO_MODEL", "512x512xu16").process_group(0);
    Demo(command.stdout(output("out")).stderr(output("err")).spawn().expect("bash runs"))
}

fn expect_nothing_left(directory: &Path) {
    let work = directory.join("work");
    let left: Vec<_> = fs::read_dir(&work).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    assert!(!mounts.contains(work.to_str().expect("text")), "{mounts}");
}

#[test]
fn demo_ends_with_a_table_and_leaves_only_the_page() {
    let directory = scratch();
    let mut demo = demo(directory.path(), "400");
    let status = wait(&mut demo.0, WAIT);
    let [out, err] = ["out", "err"].map(|name| fs::read_to_string(directory.path().join(name)).expect("a file"));
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{out}\n{err}");
    for words in [
        "directory  mount",
        "library",
        "  create  ",
        "  stat ",
        "  delete  ",
        "one ended by kill -9",
        "none failed, all are there",
        "none dropped",
        "Plots and details: ",
    ] {
        assert!(out.contains(words), "{words} is missing:\n{out}");
    }
    assert!(!out.contains("warning") && out.lines().count() < 14, "{out}");
    assert!(out.lines().filter(|line| !line.contains('/')).all(|line| line.chars().count() <= 80), "{out}");
    assert!(fs::read_to_string(directory.path().join("page.html")).expect("the page").contains("</html>"));
    expect_nothing_left(directory.path());
}

#[test]
fn interrupted_demo_leaves_nothing_behind() {
    let directory = scratch();
    let mut demo = demo(directory.path(), "200000");
    let messages = directory.path().join("err");
    until("it measures", WAIT, || fs::read_to_string(&messages).is_ok_and(|text| text.contains("creating, reading")));
    std::thread::sleep(Duration::from_secs(1));
    let group = Pid::from_child(&demo.0);
    kill_process_group(group, Signal::INT).expect("it runs");
    let status = wait(&mut demo.0, WAIT);
    assert_eq!(status.and_then(|status| status.code()), Some(130), "{}", fs::read_to_string(&messages).expect("text"));
    expect_nothing_left(directory.path());
}
