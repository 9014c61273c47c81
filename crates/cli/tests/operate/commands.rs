//! Commands of an administrator: paths of inodes, errors for programs, figures for readers.

use super::common::{SHORT, Volume, must, run, varve};
use super::text;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Promise: `varve path` finds every name of an inode, in a volume that is served and in one that is not.
#[test]
fn path_finds_the_names_of_an_inode() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = volume.mount(&[]);
    let inside = mount.directory.join("a/b");
    std::fs::create_dir_all(&inside).expect("directories");
    std::fs::write(inside.join("one"), "content").expect("a file");
    std::fs::hard_link(inside.join("one"), mount.directory.join("two")).expect("a second name");
    let (file, directory) = [inside.join("one"), inside].map(|path| path.metadata().expect("it is there").ino()).into();
    let ask = |inode: &str| run(varve().arg("path").arg(volume.store()).arg(inode), SHORT);
    let expect = || {
        assert_eq!(ask(&file.to_string()).succeeded("varve path").stdout, "/a/b/one\n/two\n");
        assert_eq!(ask(&format!("{directory:016x}")).succeeded("varve path").stdout, "/a/b\n");
        assert_eq!(ask("1").succeeded("varve path").stdout, "/\n");
        assert_eq!(ask("123456789").code(), Some(1));
    };
    expect();
    mount.unmount();
    expect();
}

/// Promise: with `--json` errors are JSON too, those of the command line included.
#[test]
fn errors_are_json_when_asked_for() {
    for (arguments, code) in [(&["--json", "status", "/nonexistent"][..], 1), (&["--json", "status", "--bogus"], 2)] {
        let refused = run(varve().args(arguments), SHORT);
        assert_eq!((refused.code(), refused.stdout.as_str()), (Some(code), ""));
        let line: serde_json::Value = serde_json::from_str(&refused.stderr).expect("JSON");
        assert_eq!(line["error"]["exit_code"], code);
        assert!(line["error"]["what"].as_str().is_some_and(|what| !what.is_empty()), "{line}");
    }
}

/// Promise: `varve mount` makes its mount point where the parent belongs to the user, and `varve stats` has figures with
/// units and no empty table.
#[test]
fn mount_point_is_made_and_stats_are_readable() {
    let volume = Volume::format(&["--shards", "2"]);
    let (store, directory, log) = (volume.store(), volume.beside("made"), volume.beside("made.log"));
    let mounted = ["mount", text(&store), text(&directory), "--log-file", text(&log)];
    run(varve().args(mounted), SHORT).succeeded("varve mount");
    std::fs::write(directory.join("file"), vec![1; 10_000]).expect("a file");
    let stats = run(varve().args(["stats", text(&directory)]), SHORT).succeeded("varve stats").stdout;
    assert!(stats.contains("0 B read, 9.77 KiB written"), "{stats}");
    let with_unit = |line: &str| line.starts_with("write ") && (line.contains(" us") || line.contains(" ms"));
    assert!(stats.lines().any(with_unit), "{stats}");
    let idle = run(varve().args(["stats", "-i", "100ms", "-c", "1", text(&directory)]), SHORT).succeeded("varve stats");
    assert!(!idle.stdout.contains("rename"), "{}", idle.stdout);
    run(varve().args(["umount", text(&directory)]), SHORT).succeeded("varve umount");
    let elsewhere = run(varve().args(["mount", text(&store), "/nonexistent/made", "--log-file", text(&log)]), SHORT);
    assert_eq!(elsewhere.code(), Some(1));
}

/// Promise: man(1) shows every page without a warning.
#[test]
fn man_shows_every_page() {
    let pages = super::common::scratch();
    must(varve().arg("man").arg(pages.path()));
    for name in ["varve.1", "varve-serve.1", "varve-fsck.1", "mount.fuse.varve.8", "varve-config.5"] {
        let mut man = Command::new("man");
        man.args(["--warnings", "--local-file"])
            .arg(pages.path().join(name))
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8");
        let shown = run(&mut man, SHORT).succeeded("man");
        assert_eq!(shown.stderr, "", "{name}");
        assert!(["EXAMPLES", "EXIT STATUS", "FILES"].iter().any(|section| shown.stdout.contains(section)), "{name}");
    }
}
