//! Real programs give the same results on a mounted volume as on a plain directory: the same bytes, modes and times.
//!
//! With `VARVE_SOAK=1` the source tree has 20,000 files. In CI it is smaller, and git works on a part of it.

mod common;

use common::tree::{self, TreeManifest};
use common::{LONG, Volume, must, run, soak};
use std::path::{Path, PathBuf};
use std::process::Command;

fn tree_files() -> usize {
    if soak() { 20_000 } else { 6_000 }
}

/// git reads and writes everything several times over.
fn git_files() -> usize {
    if soak() { 20_000 } else { 1_500 }
}

/// An archive of real sources on the plain file system, with its manifest.
struct Sources {
    archive: PathBuf,
    plain: PathBuf,
    manifest: TreeManifest,
}

impl Sources {
    fn pack(volume: &Volume, files: usize) -> Sources {
        let (archive, plain) = (volume.beside("sources.tar"), volume.beside("plain"));
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&archive).args(["--sort=name", "--numeric-owner"]);
        for directory in tree::sources(files) {
            let parent = directory.parent().expect("sources have a parent");
            tar.arg("-C").arg(parent).arg(directory.file_name().expect("sources have a name"));
        }
        must(&mut tar);
        unpack(&archive, &plain);
        let manifest = tree::manifest(&plain, true);
        Sources { archive, plain, manifest }
    }
}

fn unpack(archive: &Path, into: &Path) {
    std::fs::create_dir(into).expect("an empty directory");
    must(Command::new("tar").arg("-xpf").arg(archive).arg("-C").arg(into));
}

/// Unpacking, copying, packing again and synchronising a source tree gives the same tree every time.
#[test]
fn a_source_tree_survives_tar_cp_and_rsync() {
    let volume = Volume::format(&[]);
    let sources = Sources::pack(&volume, tree_files());
    assert!(sources.manifest.len() >= tree_files(), "{} files are too few", sources.manifest.len());
    let place = volume.place();
    let (unpacked, copy) = (place.directory.join("unpacked"), place.directory.join("copy"));

    unpack(&sources.archive, &unpacked);
    tree::assert_equal("tar -x onto the volume", &sources.manifest, &tree::manifest(&unpacked, true));

    must(Command::new("cp").arg("-a").arg(&unpacked).arg(&copy));
    tree::assert_equal("cp -a within the volume", &sources.manifest, &tree::manifest(&copy, true));

    let (packed, again) = (volume.beside("again.tar"), volume.beside("again"));
    must(Command::new("tar").arg("-cf").arg(&packed).arg("-C").arg(&unpacked).arg("."));
    unpack(&packed, &again);
    tree::assert_equal("tar -c from the volume", &sources.manifest, &tree::manifest(&again, true));

    synchronise(&sources, &copy);
    must(Command::new("rm").arg("-rf").arg(&unpacked));
    assert!(!unpacked.exists(), "rm -rf leaves nothing");
    place.end();
    volume.expect_sound();
}

/// rsync restores a damaged copy, and finds nothing to do the second time.
fn synchronise(sources: &Sources, copy: &Path) {
    let names: Vec<&Vec<u8>> =
        sources.manifest.iter().filter(|(_, entry)| entry.size > 0).map(|(name, _)| name).collect();
    for name in names.iter().step_by(names.len() / 200 + 1) {
        let path = copy.join(String::from_utf8_lossy(name).as_ref());
        std::fs::remove_file(&path).unwrap_or_else(|error| panic!("cannot remove {}: {error}", path.display()));
    }
    let rsync = || {
        let mut command = Command::new("rsync");
        command.args(["-a", "--checksum", "--delete", "--itemize-changes"]);
        command.arg(format!("{}/", sources.plain.display())).arg(format!("{}/", copy.display()));
        must(&mut command).stdout
    };
    let moved = rsync();
    let files = moved.lines().filter(|line| line.starts_with(">f")).count();
    assert!(files >= 100, "rsync brings back what was removed, but moved only {files} files");
    let second = rsync();
    assert!(second.is_empty(), "the second rsync must move nothing, but:\n{second}");
    tree::assert_equal("rsync onto the volume", &sources.manifest, &tree::manifest(copy, true));
}

/// A repository made, filled, packed, checked and cloned on the volume is sound.
#[test]
fn git_works_on_the_volume() {
    let volume = Volume::format(&[]);
    let sources = Sources::pack(&volume, git_files());
    let place = volume.place();
    let (repository, clone) = (place.directory.join("repository"), place.directory.join("clone"));
    unpack(&sources.archive, &repository);
    let git = |directory: &Path, arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(directory).args(["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]);
        // Nothing may run after the command, because the volume is unmounted at the end.
        command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "core.autocrlf=false"]);
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
        run(command.args(arguments), LONG).succeeded(&format!("git {arguments:?}"))
    };
    git(&repository, &["init", "--quiet", "--initial-branch=main"]);
    git(&repository, &["add", "--all", "--force"]);
    git(&repository, &["commit", "--quiet", "--message=All of it"]);
    git(&repository, &["gc", "--quiet", "--prune=now"]);
    git(&repository, &["fsck", "--full", "--strict"]);
    let status = git(&repository, &["status", "--porcelain"]);
    assert_eq!(status.stdout, "", "a committed tree is clean");
    let clone_name = clone.to_str().expect("a plain name");
    git(&place.directory, &["clone", "--quiet", "--no-local", "repository", clone_name]);
    std::fs::remove_dir_all(clone.join(".git")).expect("the clone's own files go");
    // git preserves contents and the executable bit, not times, other permission bits or empty directories.
    let content = |manifest: &TreeManifest| -> TreeManifest {
        let files = manifest.iter().filter(|(_, entry)| entry.mode & 0o170_000 != 0o040_000);
        let kept = files.filter(|(name, _)| !name.starts_with(b".git/"));
        kept.map(|(name, entry)| {
            let mut entry = entry.clone();
            (entry.mode, entry.mtime) = (entry.mode & 0o170_100, 0);
            (name.clone(), entry)
        })
        .collect()
    };
    tree::assert_equal("git clone", &content(&sources.manifest), &content(&tree::manifest(&clone, false)));
    place.end();
    volume.expect_sound();
}

/// cargo builds a crate whose sources and target directory lie on the volume; a second build finds nothing to do.
#[test]
fn cargo_builds_on_the_volume() {
    let volume = Volume::format(&[]);
    let place = volume.place();
    let package = place.directory.join("package");
    std::fs::create_dir_all(package.join("src")).expect("a directory");
    let manifest = "[package]\nname = \"varve-built-here\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    std::fs::write(package.join("Cargo.toml"), manifest).expect("a file");
    std::fs::write(package.join("src/lib.rs"), "pub fn answer() -> u32 {\n    42\n}\n").expect("a file");
    let main = "fn main() {\n    println!(\"{}\", varve_built_here::answer());\n}\n#[test]\nfn holds() {\n    assert_eq!(varve_built_here::answer(), 42);\n}\n";
    std::fs::write(package.join("src/main.rs"), main).expect("a file");
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(arguments).arg("--offline").current_dir(&package);
        command.env("CARGO_TARGET_DIR", place.directory.join("target")).env_remove("RUSTFLAGS");
        must(&mut command)
    };
    cargo(&["build"]);
    assert_eq!(cargo(&["run", "--quiet"]).stdout, "42\n");
    let again = cargo(&["build", "--verbose"]).stderr;
    assert!(again.contains("Fresh"), "a second build finds all fresh, but:\n{again}");
    cargo(&["test", "--quiet"]);
    cargo(&["clean"]);
    place.end();
    volume.expect_sound();
}

/// Two processes write one SQLite database in WAL mode (shared memory, byte-range locks); no row is lost.
#[test]
fn two_processes_write_one_sqlite_database() {
    const WRITER: &str = r#"
import sqlite3, sys
path, writer, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path, timeout=60, isolation_level=None)
mode = db.execute("PRAGMA journal_mode").fetchone()[0]
assert mode == "wal", mode
for row in range(rows):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (?, ?, ?)", (writer, row, "x" * (row % 700)))
    db.execute("COMMIT")
db.close()
"#;
    const ROWS: u32 = 500;
    let volume = Volume::format(&[]);
    let place = volume.place();
    let database = place.directory.join("data.sqlite");
    let python = |script: &str, arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).arg(&database).args(arguments);
        command
    };
    // Made by one process: switching a database to WAL needs exclusive access, and SQLite does not wait for it.
    let make = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode=WAL'); \
                db.execute('CREATE TABLE t (w, r, x)')";
    must(&mut python(make, &[]));
    let rows = ROWS.to_string();
    std::thread::scope(|scope| {
        for writer in ["1", "2"] {
            let mut command = python(WRITER, &[writer, &rows]);
            scope.spawn(move || must(&mut command));
        }
    });
    let check = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
                 print(db.execute('PRAGMA integrity_check').fetchone()[0], \
                 db.execute('SELECT count(*), count(DISTINCT w * 100000 + r), sum(length(x)) FROM t').fetchone())";
    let found = must(&mut python(check, &[])).stdout;
    let bytes: u32 = (0..ROWS).map(|row| 2 * (row % 700)).sum();
    assert_eq!(found.trim(), format!("ok ({}, {}, {bytes})", 2 * ROWS, 2 * ROWS));
    place.end();
    volume.expect_sound();
}
