//! The benchmark kit from its user's view: a suite over several file systems, the page in a browser, assertions,
//! comparisons, plans, imports, and runs that go wrong.

#[path = "report/browser.rs"]
mod browser;
mod common;

use browser::Browser;
use common::{LONG, Outcome, SHORT, Volume, run, scratch, varve};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Stdio;

fn outcome(arguments: &[&str]) -> Outcome {
    run(varve().args(arguments), SHORT)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

/// A suite that takes a second.
const TINY: &str = "title = 'Tiny'\nabout = 'a test'\nrepeat = 6\n[[step]]\nname = 'operations'\nrun = 'mdtest'\n\
                    options = { files = 40, clients = [1, 2], no-warm-up = true }\n";

/// Runs a suite of [`TINY`] steps over one directory twice, which are two targets, and returns its run file.
fn tiny_run(directory: &Path) -> Value {
    let suite = directory.join("tiny.toml");
    std::fs::write(&suite, TINY).expect("a suite");
    let targets = ["native", "varve"].map(|label| {
        let place = directory.join(label);
        std::fs::create_dir(&place).expect("a directory");
        format!("{label}=path:{}", text(&place))
    });
    let saved = directory.join("run.json");
    let words =
        ["bench", "suite", text(&suite), "--target", &targets[0], "--target", &targets[1], "--save", text(&saved)];
    let printed = outcome(&words).succeeded("bench suite");
    assert!(printed.stdout.contains("varve creates files"), "{}", printed.stdout);
    serde_json::from_str(&std::fs::read_to_string(saved).expect("it is saved")).expect("JSON")
}

/// Promise: `bench suite quick` runs over a plain directory, tmpfs and a mount, and the page of its report shows every
/// figure in a browser, without an error or a request to the network.
#[test]
fn quick_suite_becomes_a_page_that_a_browser_shows() {
    let volume = Volume::format(&[]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    let disk = volume.beside("plain");
    std::fs::create_dir(&disk).expect("a directory");
    let memory = tempfile::Builder::new().prefix("varve-e2e-").tempdir_in("/dev/shm").expect("tmpfs");
    let targets = [
        format!("disk=path:{}", text(&disk)),
        format!("shm=path:{}", text(memory.path())),
        format!("varve=mount:{}", text(&volume.mount_point())),
    ];
    let mut suite = varve();
    suite.args(["--json", "bench", "suite", "quick"]);
    suite.args(targets.iter().flat_map(|target| ["--target", target]));
    let ran = run(&mut suite, LONG).succeeded("bench suite quick");
    let run_file = ran.json();
    assert_eq!((&run_file["schema_version"], &run_file["command"]), (&1.into(), &"bench suite".into()));
    let measured = |target: &str, workload: &str, metric: &str| {
        let entries = run_file["entries"].as_array().expect("entries");
        entries.iter().any(|entry| {
            (&entry["target"], &entry["workload"], &entry["metric"])
                == (&target.into(), &workload.into(), &metric.into())
                && entry["samples"].as_array().is_some_and(|samples| samples.len() == 6)
        })
    };
    for target in ["disk", "shm", "varve"] {
        for (workload, metric) in [("mdtest", "create"), ("mdtest", "stat"), ("stream", "write"), ("tree", "tar")] {
            assert!(measured(target, workload, metric), "{target}: {workload} {metric}");
        }
    }
    for left in [&disk, memory.path(), &volume.mount_point()] {
        assert_eq!(std::fs::read_dir(left).expect("a directory").count(), 0, "{} is not empty", left.display());
    }
    mount.unmount();
    server.stop();

    let run_path = volume.beside("run.json");
    std::fs::write(&run_path, &ran.stdout).expect("a run file");
    let (page, figures) = (volume.beside("report.html"), volume.beside("figures"));
    let words = ["--json", "report", text(&run_path), "-o", text(&page), "--csv", text(&figures)];
    let written = outcome(&[&words[..], &["--published", "io500"]].concat()).succeeded("report").json();
    let count = written["figures"].as_u64().expect("a count");
    assert!(count >= 7, "{written}");
    assert_eq!(written["csv_files"], count + 1);
    let shown = Browser::find().show(&page, &volume.beside("browser"));
    assert_eq!(shown.document.matches("class=\"card figure\"").count() as u64, count);
    assert!(shown.document.contains("IBM Storage Scale"));
    assert_eq!((shown.console.as_slice(), shown.requests), (&[][..], 0));
    if let Some(keep) = std::env::var_os("VARVE_KEEP_REPORT") {
        let copied = std::process::Command::new("cp").arg("-r").arg(page).arg(figures).arg(run_path).arg(keep).status();
        assert!(copied.is_ok_and(|copied| copied.success()));
    }
}

/// Promise: the exit code of an assertion is 0 if it holds, 10 if it does not, 2 if it makes no sense.
#[test]
fn assertions_comparisons_and_plans_read_a_run() {
    let directory = scratch();
    tiny_run(directory.path());
    let saved = directory.path().join("run.json");
    let check = |assertion: &str| outcome(&["report", "assert", text(&saved), assertion]);
    assert_eq!(check("create.ops > 0.0001 * native.create.ops").code(), Some(0));
    let refuted = check("varve.create[clients=2].ops > 1000 * native.create.ops");
    assert_eq!(refuted.code(), Some(10));
    assert!(refuted.stdout.contains("fails") && refuted.stderr.contains("does not hold"), "{}", refuted.stderr);
    for wrong in ["create.ops >", "create.opps > 1", "create.ops > 1"] {
        let refused = check(wrong);
        assert_eq!(refused.code(), Some(2), "{wrong}: {}", refused.stderr);
    }

    let compared = outcome(&["--json", "report", "compare", text(&saved), text(&saved)]).succeeded("compare").json();
    assert_eq!((&compared["worse"], &compared["lost"]), (&0.into(), &Value::from(Vec::<Value>::new())));

    let detector = ["--detector", "64x64xu8@0.01", "--hours", "0.1", "--files", "per-frame"];
    let planned = outcome(&[&["plan", text(&saved)][..], &detector].concat());
    assert_eq!(planned.code(), Some(3), "{}", planned.stdout);
    assert!(planned.stdout.contains("no write throughput"), "{}", planned.stdout);
    let hostile = outcome(&["plan", text(&saved), "--detector", "eiger16m@x", "--hours", "1"]);
    assert_eq!(hostile.code(), Some(2));
}

#[test]
fn imported_results_stand_beside_a_run() {
    let directory = scratch();
    tiny_run(directory.path());
    let foreign = directory.path().join("mdtest.out");
    let sample = include_str!("../../bench/src/import/samples/mdtest-4.txt");
    std::fs::write(&foreign, sample).expect("a file");
    let (run, imported) = (directory.path().join("run.json"), directory.path().join("lustre.json"));
    let words = ["report", "import", text(&foreign), "--label", "lustre", "-o", text(&imported)];
    outcome(&words).succeeded("report import");
    let page = directory.path().join("both.html");
    outcome(&["report", text(&run), text(&imported), "-o", text(&page)]).succeeded("report");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("lustre (mdtest-4.1.0+dev)"), "the figure of creates has the imported rate too");

    let unknown = directory.path().join("notes.txt");
    std::fs::write(&unknown, "hello").expect("a file");
    let refused = outcome(&["report", "import", text(&unknown)]);
    assert!(refused.code() == Some(1) && refused.stderr.contains("--format"), "{}", refused.stderr);
    let no_run = outcome(&["report", text(&unknown)]);
    assert!(no_run.code() == Some(1) && no_run.stderr.contains("bench suite"), "{}", no_run.stderr);
}

#[test]
fn suite_refuses_mistakes_before_the_first_step() {
    let directory = scratch();
    let target = format!("a=path:{}", text(directory.path()));
    let file = directory.path().join("wrong.toml");
    std::fs::write(&file, format!("{TINY}[[step]]\nrun = 'mdtest'\noptions = {{ fils = 3 }}\n")).expect("a suite");
    for (words, reason) in [
        (&["bench", "suite", text(&file), "--target", &target][..], "fils"),
        (&["bench", "suite", "quick", "--target", "a=path:/"], "root directory"),
        (&["bench", "suite", "quick", "--target", "a=path:/nonexistent"], "no directory"),
        (&["bench", "suite", "unknown", "--target", &target], "paper"),
        (&["bench", "suite", "quick"], "--target"),
    ] {
        let refused = outcome(words);
        assert_eq!(refused.code(), Some(2), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 1);
}

/// Promise: a step that fails leaves the others alone, and the run file keeps its reason.
#[test]
fn failed_step_keeps_the_results_of_the_others() {
    let directory = scratch();
    let place = directory.path().join("place");
    std::fs::create_dir(&place).expect("a directory");
    let file = directory.path().join("part.toml");
    // More names than the workload accepts, so that the second step fails.
    std::fs::write(
        &file,
        format!("{TINY}[[step]]\nrun = 'tree'\noptions = {{ programs = ['ls-l'], names = 9000000 }}\n"),
    )
    .expect("a suite");
    let target = format!("a=path:{}", text(&place));
    let ran = outcome(&["--json", "bench", "suite", text(&file), "--target", &target]);
    assert_eq!(ran.code(), Some(3), "{}", ran.stderr);
    let run = ran.json();
    assert!(run["entries"].as_array().is_some_and(|entries| !entries.is_empty()));
    assert!(run["steps"][1]["failure"].as_str().is_some_and(|why| why.contains("numbers of names")), "{run}");
    assert_eq!(std::fs::read_dir(&place).expect("a directory").count(), 0);
}

/// Promise: SIGINT ends a suite in good order: finished steps stay, and no test file is left.
#[test]
fn interrupted_suite_keeps_what_it_has() {
    let directory = scratch();
    let place = directory.path().join("place");
    std::fs::create_dir(&place).expect("a directory");
    let file = directory.path().join("long.toml");
    std::fs::write(&file, format!("{TINY}[[step]]\nrun = 'mdtest'\noptions = {{ files = 300000, clients = [1], repeat = 50, no-warm-up = true }}\n"))
        .expect("a suite");
    let mut command = varve();
    command.args(["--json", "bench", "suite", text(&file), "--target", &format!("a=path:{}", text(&place))]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    // Only the second step makes so many files.
    common::until("the second step works", SHORT, || has_many_files(&place, 4));
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).expect("a run file");
    assert!(run["entries"].as_array().is_some_and(|entries| entries.len() == 6), "{run}");
    assert!(run["steps"][1]["failure"].as_str().is_some_and(|why| why.contains("interrupted")), "{run}");
    assert_eq!(std::fs::read_dir(&place).expect("a directory").count(), 0);
}

/// Whether a directory within so many levels has more files than the first step makes.
fn has_many_files(directory: &Path, levels: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let paths: Vec<_> = entries.flatten().take(200).map(|entry| entry.path()).collect();
    paths.len() == 200 || levels > 0 && paths.iter().any(|path| has_many_files(path, levels - 1))
}

#[test]
fn shipped_suites_name_commands_that_exist() {
    for suite in ["quick", "paper", "d82", "ceft", "acceptance", "io500"] {
        let dry = outcome(&["bench", "suite", suite, "--dry-run", "--target", "a=path:/x", "--target", "b=mount:/y"]);
        assert!(dry.succeeded(suite).stdout.contains("varve --json bench mdtest"), "{suite}");
        assert!(outcome(&["bench", "suite", suite, "--print"]).succeeded(suite).stdout.contains("[[step]]"));
    }
}
