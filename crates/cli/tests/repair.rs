//! `varve fsck --repair` on a volume that lost a whole shard and some large files, and on one with damaged tables and
//! logs. The remaining data is consistent afterwards, also if the repair is killed again and again.

mod common;

use common::{Volume, must, run, soak, varve};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

const FILES: usize = 400;

/// Files in directories that are spread over the shards; then shard 2 is emptied and some content is removed.
fn damaged() -> Volume {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "4", "--inline-limit", "1KiB"]);
    {
        let mount = volume.mount(&[]);
        let root = volume.mount_point();
        for directory in 0..8 {
            fs::create_dir(root.join(format!("d{directory}"))).expect("a directory");
        }
        for number in 0..FILES {
            let path = root.join(format!("d{}/f{number}", number % 8));
            fs::write(&path, vec![b'x'; if number % 10 == 0 { 3000 } else { 50 }]).expect("a file");
            if number % 9 == 0 {
                fs::hard_link(&path, root.join(format!("d{}/l{number}", (number + 3) % 8))).expect("a link");
            }
        }
        mount.unmount();
    }
    let shard = volume.store().join("shards/0002");
    fs::remove_dir_all(&shard).expect("a shard's tables");
    fs::create_dir_all(shard.join("log")).expect("as if it had never been opened");
    let mut removed = 0;
    for directory in fs::read_dir(volume.store().join("data")).expect("data") {
        for file in fs::read_dir(directory.expect("a directory").path()).expect("a directory") {
            if removed < 5 {
                fs::remove_file(file.expect("a file").path()).expect("removed");
                removed += 1;
            }
        }
    }
    volume
}

/// The counts of the volume in the end.
fn counts(store: &Path) -> Vec<(String, u64)> {
    let checked = must(varve().arg("fsck").arg("--json").arg(store)).json();
    assert_eq!(checked["findings"].as_array().map(Vec::len), Some(0), "{checked:#}");
    let of = ["directories", "entries", "inodes", "files_inline", "bytes_inline", "files_backing", "bytes_backing"];
    of.iter().map(|name| ((*name).to_owned(), checked["counts"][name].as_u64().expect("a number"))).collect()
}

/// A copy of the volume, damage and all.
fn copy(volume: &Volume, name: &str) -> PathBuf {
    let store = volume.beside(name);
    must(Command::new("cp").arg("-a").arg(volume.store()).arg(&store));
    store
}

/// Repairs copies of `volume`, killed at random times, and expects the same result as from an uninterrupted repair.
/// `look` runs further checks on each.
fn survives_kills(volume: &Volume, look: &dyn Fn(&Path)) {
    let found = run(varve().arg("fsck").arg(volume.store()), common::LONG);
    assert_eq!(found.code(), Some(4), "{}", found.stderr);
    let at_once = copy(volume, "at-once");
    let begun = Instant::now();
    let repaired = run(varve().arg("fsck").arg("--repair").arg(&at_once), common::LONG);
    let took = begun.elapsed();
    assert_eq!(repaired.code(), Some(1), "{}\n{}", repaired.stdout, repaired.stderr);
    let expected = counts(&at_once);
    look(&at_once);

    let mut random = Seeded::new(11);
    for round in 0..if soak() { 60 } else { 2 } {
        let store = copy(volume, &format!("killed{round}"));
        for _ in 0..4 {
            let mut command = varve();
            command.arg("fsck").arg("--repair").arg(&store).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("the program starts");
            std::thread::sleep(Duration::from_micros(random.below(took.as_micros() as usize) as u64));
            child.kill().expect("it is a child");
            child.wait().expect("it is a child");
        }
        let repaired = run(varve().arg("fsck").arg("--repair").arg(&store), common::LONG);
        assert!(matches!(repaired.code(), Some(0 | 1)), "{}\n{}", repaired.stdout, repaired.stderr);
        assert_eq!(counts(&store), expected, "round {round}");
        look(&store);
        fs::remove_dir_all(&store).expect("removed");
    }
}

#[test]
fn killed_repair_can_be_resumed() {
    survives_kills(&damaged(), &|_| {});
}

/// Files in tables, and files in the logs of a killed server; then two shards' tables and another shard's log are
/// damaged. Returns the content of the damaged files.
fn torn() -> (Volume, Vec<(OsString, Vec<u8>)>) {
    let volume = Volume::format(&["--shards", "4", "--split-threshold", "4", "--inline-limit", "1KiB"]);
    let root = volume.mount_point();
    let fill = |from: usize| {
        for number in from..from + FILES {
            fs::write(root.join(format!("f{number}")), vec![b'x'; if number % 10 == 0 { 3000 } else { 50 }])
                .expect("a file");
        }
    };
    let mount = volume.mount(&[]);
    fill(0);
    mount.unmount();
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    fill(FILES);
    fs::File::open(root.join("f0")).and_then(|file| file.sync_all()).expect("synced");
    fill(2 * FILES);
    mount.unmount();
    server.kill();
    let damage = |shard: &str, below: &str, extension: &str| {
        let directory = volume.store().join("shards").join(shard).join(below);
        let files = fs::read_dir(&directory).expect("files of a shard").map(|entry| entry.expect("an entry").path());
        let file = files
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .max_by_key(|path| path.metadata().map_or(0, |found| found.len()))
            .unwrap_or_else(|| panic!("{} has no {extension}", directory.display()));
        let mut bytes = fs::read(&file).expect("it can be read");
        let at = bytes.len() / 3;
        bytes[at..at + 40].fill(0x5a);
        fs::write(&file, &bytes).expect("it can be damaged");
        (file.file_name().expect("a name").to_owned(), bytes)
    };
    let damaged =
        vec![damage("0000", "compacted", "sst"), damage("0001", "log", "log"), damage("0002", "compacted", "sst")];
    (volume, damaged)
}

/// Whether a file of that name and content exists somewhere below `directory`.
fn is_kept(directory: &Path, name: &OsStr, content: &[u8]) -> bool {
    fs::read_dir(directory).into_iter().flatten().any(|entry| {
        let path = entry.expect("a listing goes on").path();
        if path.is_dir() {
            return is_kept(&path, name, content);
        }
        path.file_name() == Some(name) && fs::read(&path).is_ok_and(|found| found == content)
    })
}

#[test]
fn killed_salvage_resumes_and_keeps_damaged_files() {
    let (volume, damaged) = torn();
    survives_kills(&volume, &|store| {
        for (name, content) in &damaged {
            let kept = is_kept(&store.join("damaged"), name, content);
            assert!(kept, "{} is not kept in {}", name.display(), store.join("damaged").display());
        }
    });
}

/// Every file of the store with its content, except the lock's, which may have been made.
fn contents(store: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut directories) = (Vec::new(), vec![store.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory of the store") {
            let path = entry.expect("a listing goes on").path();
            match path.is_dir() {
                true => directories.push(path),
                false => found.push((path.clone(), fs::read(&path).expect("a file of the store"))),
            }
        }
    }
    found.sort();
    found
}

/// With a wrong number of shards, half of the shards would count as missing, and a repair would remove everything that
/// leads to them.
#[test]
fn repair_refuses_an_edited_volume_file_before_writing() {
    let volume = Volume::format(&["--shards", "4"]);
    let root = volume.mount_point();
    let mount = volume.mount(&[]);
    for number in 0..8 {
        fs::create_dir(root.join(format!("d{number}"))).expect("a directory");
        fs::write(root.join(format!("d{number}/f")), b"content").expect("a file");
    }
    mount.unmount();
    let file = volume.store().join("varve.toml");
    let sound = fs::read_to_string(&file).expect("it can be read");
    let copy = volume.store().join("shards/varve.toml");
    let by_copy = ["shards/varve.toml", "copy the right one over the other"];
    let by_directories = ["has the directories of 4", "set the file right"];
    let edits = [
        ("shards = 4", "shards = 2", Some(&sound), by_copy),
        ("owner_uid = ", "owner_uid = 1", Some(&sound), by_copy),
        ("shards = 4", "shards = 2", None, by_directories),
        ("shards = 4", "shards = 8", None, by_directories),
    ];
    for (from, to, copied, words) in edits {
        fs::write(&file, sound.replace(from, to)).expect("it can be edited");
        match copied {
            Some(text) => fs::write(&copy, text).expect("the copy"),
            None => fs::remove_file(&copy).unwrap_or_default(),
        }
        let before = contents(&volume.store());
        let (store, root) = (volume.store(), volume.mount_point());
        let commands: [(&[&str], i32); 6] = [
            (&["fsck"], 8),
            (&["fsck", "--repair"], 8),
            (&["status"], 1),
            (&["serve"], 1),
            (&["dump", "-o", "/dev/null"], 1),
            (&["mount", "-f"], 1),
        ];
        for (arguments, code) in commands {
            let mut command = varve();
            command.args(arguments).arg(&store);
            if arguments[0] == "mount" {
                command.arg(&root);
            }
            let refused = run(&mut command, common::LONG);
            assert_eq!(refused.code(), Some(code), "{arguments:?}: {}{}", refused.stdout, refused.stderr);
            for word in [[to].as_slice(), &words].concat() {
                assert!(refused.stderr.contains(word), "{arguments:?}: {}", refused.stderr);
            }
        }
        assert!(contents(&store) == before, "something was written");
    }
    fs::write(&file, &sound).expect("the right one");
    volume.expect_sound();
    let mount = volume.mount(&[]);
    assert_eq!(fs::read_dir(volume.mount_point()).expect("a listing").count(), 8);
    mount.unmount();
}

/// Promise: a repair exits as fsck(8) does. It exits with 0 if it only removed leftovers, and with 4 if it leaves
/// damage. A missing data directory is such damage: the names stay until it is restored or is given up, which exits
/// with 1.
#[test]
fn repair_exit_code_reflects_findings() {
    let volume = Volume::format(&["--shards", "1", "--inline-limit", "1KiB"]);
    let large = volume.mount_point().join("large");
    let mount = volume.mount(&[]);
    fs::write(&large, [b'x'; 3000]).expect("a large file");
    mount.unmount();
    let fsck = |flags: &[&str]| {
        let outcome = run(varve().arg("fsck").args(flags).arg(volume.store()), Duration::from_secs(60));
        (outcome.code(), outcome.stdout)
    };
    let (data, away) = (volume.store().join("data"), volume.beside("away"));
    let stray = data.join("aa/00000000000000aa");
    fs::write(&stray, b"of a client that was killed").expect("a backing file without a row");
    assert_eq!(fsck(&[]).0, Some(0));
    let (code, printed) = fsck(&["--repair"]);
    assert!(code == Some(0) && printed.contains("Leftovers were removed"), "{code:?} {printed}");
    assert!(fsck(&["--repair"]).1.ends_with("The volume is sound.\n"));

    fs::rename(&data, &away).expect("moved away");
    for _ in 0..2 {
        let (code, printed) = fsck(&["--repair"]);
        assert!(
            code == Some(4) && printed.contains("missing-data") && printed.contains("--without-data"),
            "{code:?} {printed}"
        );
    }
    fs::rename(&away, &data).expect("moved back");
    assert_eq!(fsck(&[]).0, Some(0));
    let mount = volume.mount(&[]);
    assert_eq!(fs::read(&large).expect("it is whole"), [b'x'; 3000]);
    mount.unmount();
    fs::rename(&data, &away).expect("moved away");
    assert_eq!(fsck(&["--without-data"]).0, Some(16), "it is of a repair");
    assert_eq!(fsck(&["--repair", "--without-data"]).0, Some(1));
    assert_eq!(fsck(&[]).0, Some(0));
}
