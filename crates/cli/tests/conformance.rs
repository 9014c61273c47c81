//! pjdfstest and fsx, two third-party suites, run against the mount.
//!
//! `pjdfstest-known.toml` lists the expected failures of pjdfstest, each with its reason. The suite fails if a test
//! fails that is not listed, or a listed test passes.

mod common;

use common::{LONG, Volume, run, soak, tool};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFailures {
    #[serde(default)]
    failure: Vec<KnownFailure>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFailure {
    test: String,
    reason: String,
}

/// Runs the whole of pjdfstest as root, because it changes users.
#[test]
fn pjdfstest_has_only_listed_failures() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: pjdfstest needs root to change users");
        return;
    }
    let known = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pjdfstest-known.toml"));
    let known: KnownFailures = toml::from_str(&known.expect("the list is there")).expect("the list is sound");
    for failure in &known.failure {
        assert!(!failure.reason.trim().is_empty(), "{} is listed without a reason", failure.test);
    }
    let volume = Volume::format(&[]);
    let place = volume.place();
    let (settings, other) = (volume.beside("pjdfstest.toml"), volume.beside("other"));
    std::fs::create_dir(&other).expect("a directory of another file system");
    std::fs::write(&settings, configuration(&known)).expect("a file");
    let mut pjdfstest = Command::new(tool("pjdfstest"));
    pjdfstest.arg("-c").arg(&settings).arg("-s").arg(&other).arg("-p").arg(&place.directory).env("NO_COLOR", "1");
    let outcome = run(&mut pjdfstest, LONG);
    let results = results(&outcome.stdout);
    let count = |word: &str| results.values().filter(|result| **result == word).count();
    println!(
        "pjdfstest: {} ok, {} failed as known, {} skipped",
        count("ok"),
        count("failed as expected"),
        count("skipped")
    );
    let fine = ["ok", "failed as expected", "skipped"];
    let wrong: Vec<String> = results
        .iter()
        .filter(|(_, result)| !fine.contains(*result))
        .map(|(name, result)| format!("{name}: {result}"))
        .collect();
    assert!(wrong.is_empty(), "{}\n\n{}", wrong.join("\n"), outcome.stdout);
    assert!(count("ok") > 300, "{}\n{}", outcome.stdout, outcome.stderr);
    place.end();
    volume.expect_sound();
}

/// The configuration: Varve's choices where POSIX leaves one, two users that every Debian has, and the expected
/// failures.
fn configuration(known: &KnownFailures) -> String {
    let expected: Vec<&str> = known.failure.iter().map(|failure| failure.test.as_str()).collect();
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\n\
         utimensat = {{}}\n[settings]\nnaptime = 0.01\nexpected_failures = {expected:?}\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    )
}

/// Test → result, from lines `name    result`.
fn results(stdout: &str) -> BTreeMap<&str, &str> {
    let lines = stdout.lines().filter(|line| line.contains("::") && !line.starts_with(['\t', ' ']));
    lines.filter_map(|line| line.split_once("  ").map(|(name, result)| (name, result.trim()))).collect()
}

/// Random reads, writes, mappings, truncates, holes and copies of one file, every byte checked: on files that stay
/// inline, that grow into backing files, and that are large from the start.
#[test]
fn fsx_finds_no_difference() {
    let operations = if soak() { 100_000 } else { 3_000 };
    let volume = Volume::format(&[]);
    let place = volume.place();
    for (name, length, size_max) in
        [("inline", 20_000, 6_000), ("grows", 100_000, 30_000), ("large", 4_000_000, 200_000)]
    {
        let settings = volume.beside(&format!("fsx-{name}.toml"));
        let text = format!(
            "flen = {length}\n[opsize]\nmax = {size_max}\n[weights]\nclose_open = 1\ninvalidate = 1\nmapread = 10\n\
             mapwrite = 10\nread = 10\nwrite = 10\ntruncate = 5\nfsync = 1\nfdatasync = 1\nposix_fallocate = 1\n\
             punch_hole = 3\nsendfile = 3\nposix_fadvise = 1\ncopy_file_range = 3\n"
        );
        std::fs::write(&settings, text).expect("a file");
        for seed in 1..=3 {
            let mut fsx = Command::new(tool("fsx"));
            fsx.arg("-f").arg(&settings).args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"]);
            fsx.arg(volume.beside("")).arg(place.directory.join(format!("fsx-{name}-{seed}")));
            run(&mut fsx, LONG).succeeded(&format!("fsx, {name}, seed {seed}"));
        }
    }
    place.end();
    volume.expect_sound();
}
