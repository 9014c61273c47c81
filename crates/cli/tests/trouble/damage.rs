//! Damaged files of a volume, and volumes of a newer format.

use super::common::{SHORT, Volume, expect_bounded, run, varve};
use super::{DEADLINE_OPTION, Kept, expect_no_panic, refuses_to_serve, says};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A damaged file. It is restored when this is dropped.
struct Damaged {
    path: PathBuf,
    sound: Vec<u8>,
}

impl Damaged {
    fn by(path: &Path, damage: impl FnOnce(&mut Vec<u8>)) -> Damaged {
        let sound = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut bytes = sound.clone();
        damage(&mut bytes);
        assert!(bytes != sound, "{} is not damaged", path.display());
        std::fs::write(path, bytes).expect("the file can be damaged");
        Damaged { path: path.to_owned(), sound }
    }
}

impl Drop for Damaged {
    fn drop(&mut self) {
        std::fs::write(&self.path, &self.sound).expect("the file can be restored");
    }
}

/// A volume that has been used and is not served.
fn worked_on(stop: bool) -> (Volume, Kept) {
    let (volume, kept, _) = worked_on_files(stop);
    (volume, kept)
}

/// Like [`worked_on`], with the inode numbers of the files.
fn worked_on_files(stop: bool) -> (Volume, Kept, BTreeSet<u64>) {
    let volume = Volume::format(&["--shards", "1", "--inline-limit", "4KiB"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    let mut kept = Kept::default();
    kept.write(&mount.directory, "first");
    // A second fsync records that everything before it was fsynced.
    kept.write(&mount.directory, "second");
    let ids = ids_of(&files_below(&mount.directory, &|_| true));
    mount.unmount();
    if stop {
        server.stop()
    } else {
        server.kill()
    }
    (volume, kept, ids)
}

fn ids_of(files: &[PathBuf]) -> BTreeSet<u64> {
    files.iter().map(|path| path.metadata().expect("a file").ino()).collect()
}

fn works_again(volume: &Volume, kept: &Kept) {
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    kept.expect(&mount.directory);
    expect_no_panic("the server", &server.log());
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

fn files_below(directory: &Path, wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory of the store") {
        let path = entry.expect("a listing goes on").path();
        if path.is_dir() {
            found.extend(files_below(&path, wanted));
        } else if wanted(&path.to_string_lossy()) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_damaged_volume_file_or_key_is_named() {
    let (volume, kept) = worked_on(true);
    let file = volume.store().join("varve.toml");
    type Damage = fn(&mut Vec<u8>);
    let damages: [(Damage, &str); 6] = [
        (|bytes| bytes.truncate(40), "varve.toml"),
        (|bytes| bytes.clear(), "varve.toml"),
        (|bytes| bytes.fill(0xff), "varve.toml"),
        (|bytes| bytes.extend_from_slice(b"unheard_of = 1\n"), "unheard_of"),
        (
            |bytes| *bytes = String::from_utf8_lossy(bytes).replace("shards = 1", "shards = 3").into_bytes(),
            "shards = 3",
        ),
        (|bytes| bytes.resize(2 << 20, b'#'), "more than"),
    ];
    for (damage, word) in damages {
        let _damaged = Damaged::by(&file, damage);
        refuses_to_serve(&volume, &["varve.toml", word, "varve fsck --repair"]);
        let status = run(varve().arg("status").arg(volume.store()), SHORT);
        says("varve status", &status, &["varve.toml"]);
    }
    {
        let _damaged = Damaged::by(&volume.store().join("key"), |bytes| bytes.truncate(31));
        refuses_to_serve(&volume, &["key", "31"]);
    }
    // The file is removed, then truncated. A repair restores it from its copy, and nothing of the volume's content is
    // lost.
    let sound = std::fs::read(&file).expect("it can be read");
    for left in [None, Some(40)] {
        match left {
            None => std::fs::remove_file(&file).expect("it can be removed"),
            Some(length) => std::fs::write(&file, &sound[..length]).expect("it can be damaged"),
        }
        refuses_to_serve(&volume, &["varve.toml", "varve fsck --repair"]);
        let formatted = run(varve().args(["format", "--force"]).arg(volume.store()), SHORT);
        says("varve format", &formatted, &["holds a Varve volume already"]);
        let checked = run(varve().arg("fsck").arg(volume.store()), SHORT);
        assert_eq!(checked.code(), Some(4), "{}{}", checked.stdout, checked.stderr);
        assert!(checked.stdout.contains("damaged-volume-file"), "{}", checked.stdout);
        let repaired = run(varve().args(["fsck", "--repair"]).arg(volume.store()), SHORT);
        assert_eq!(repaired.code(), Some(1), "{}{}", repaired.stdout, repaired.stderr);
        assert_eq!(std::fs::read(&file).expect("it is there again"), sound);
    }
    works_again(&volume, &kept);
}

#[test]
fn a_volume_of_a_newer_format_is_refused_with_advice() {
    let (volume, kept) = worked_on(true);
    {
        let _newer = Damaged::by(&volume.store().join("varve.toml"), |bytes| {
            let text = String::from_utf8_lossy(bytes).replace("format_version = 4", "format_version = 5");
            *bytes = format!("{text}something_new = true\n").into_bytes();
        });
        let advice = ["format version 5", "use a newer varve"];
        refuses_to_serve(&volume, &advice);
        let store = volume.store();
        for command in ["status", "fsck"] {
            says(command, &run(varve().arg(command).arg(&store), SHORT), &advice);
        }
        let mounted = run(varve().arg("mount").arg(&store).arg(volume.mount_point()).arg("-f"), SHORT);
        says("mount", &mounted, &advice);
        let formatted = run(varve().args(["format", "--force"]).arg(&store), SHORT);
        assert_ne!(formatted.code(), Some(0), "a newer volume is not formatted over: {}", formatted.stdout);
    }
    works_again(&volume, &kept);
}

#[test]
fn damaged_log_is_refused_until_restored() {
    let (volume, kept) = worked_on(false);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    let log = logs.last().expect("a server that was killed leaves its log");
    {
        // Damage near the beginning: everything there was fsynced.
        let _damaged = Damaged::by(log, |bytes| bytes[200] ^= 0xff);
        refuses_to_serve(&volume, &[".log", "damaged at byte", "copy of the store"]);
    }
    {
        let _damaged = Damaged::by(log, |bytes| bytes[9] ^= 0xff);
        refuses_to_serve(&volume, &[".log"]);
    }
    works_again(&volume, &kept);
}

/// All files of the log are gone. The shard does not treat this as a log that was empty.
#[test]
fn missing_log_is_refused_until_repaired() {
    let (volume, kept) = worked_on(false);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    let sound: Vec<_> = logs.iter().map(|path| std::fs::read(path).expect("a log")).collect();
    logs.iter().for_each(|path| std::fs::remove_file(path).expect("it can be removed"));
    refuses_to_serve(&volume, &["is gone", ".begun", "copy of the store", "varve fsck --repair"]);
    let checked = run(varve().arg("fsck").arg(volume.store()), SHORT);
    assert_eq!(checked.code(), Some(4), "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains("missing-log"), "{}", checked.stdout);
    logs.iter().zip(&sound).for_each(|(path, bytes)| std::fs::write(path, bytes).expect("it can be restored"));
    works_again(&volume, &kept);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    logs.iter().for_each(|path| std::fs::remove_file(path).expect("it can be removed"));
    let repaired = run(varve().args(["fsck", "--repair"]).arg(volume.store()), SHORT);
    assert_eq!(repaired.code(), Some(1), "{}{}", repaired.stdout, repaired.stderr);
    // The last server had stopped cleanly, so all rows were in tables.
    works_again(&volume, &kept);
}

/// The log is truncated to a part, to its header, and to nothing. The rest is valid, but is not taken for everything
/// that was synced.
#[test]
fn truncated_log_is_refused_until_repaired() {
    let (volume, kept) = worked_on(false);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    let log = logs.last().expect("a server that was killed leaves its log");
    let bytes = std::fs::read(log).expect("a log");
    let groups: Vec<_> = (64..bytes.len() - 4).filter(|at| bytes[*at..].starts_with(b"VGRP")).collect();
    let last = *groups.last().expect("a group");
    for length in [bytes.len() * 3 / 10, bytes.len() * 6 / 10, last, 64, 0] {
        let _cut = Damaged::by(log, |bytes| bytes.truncate(length));
        refuses_to_serve(&volume, &[".log", "damaged at byte", "copy of the store", "varve fsck --repair"]);
        let checked = run(varve().arg("fsck").arg(volume.store()), SHORT);
        assert_eq!(checked.code(), Some(4), "cut to {length}: {}{}", checked.stdout, checked.stderr);
        assert!(checked.stdout.contains("damaged-log"), "cut to {length}: {}", checked.stdout);
    }
    works_again(&volume, &kept);
    // The same without a copy: a repair continues with the rest, and no new file takes the place or number of another.
    let (volume, _, given) = worked_on_files(false);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    std::fs::write(logs.last().expect("a log"), []).expect("it can be emptied");
    let repaired = run(varve().args(["fsck", "--repair"]).arg(volume.store()), SHORT);
    assert_eq!(repaired.code(), Some(1), "{}{}", repaired.stdout, repaired.stderr);
    // Its counts describe the present state.
    assert!(!repaired.stdout.contains("Reading ended at damage"), "{}", repaired.stdout);
    volume.expect_sound();
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    let left = |path: &PathBuf| (path.clone(), std::fs::read(path).expect("what is left can be read"));
    let before: Vec<_> = files_below(&mount.directory, &|_| true).iter().map(left).collect();
    let mut new = Kept::default();
    new.write(&mount.directory, "new");
    new.expect(&mount.directory);
    for (path, bytes) in &before {
        assert!(std::fs::read(path).expect("it is still there") == *bytes, "{} is another", path.display());
    }
    let files = files_below(&mount.directory, &|_| true);
    let ids = ids_of(&files);
    assert_eq!(ids.len(), files.len(), "no id twice: {files:?}");
    let made = files.into_iter().filter(|path| before.iter().all(|(old, _)| old != path)).collect::<Vec<_>>();
    assert!(!made.is_empty() && given.is_disjoint(&ids_of(&made)), "numbers of lost files are given again: {given:?}");
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

#[test]
fn torn_log_tail_is_not_damage() {
    let (volume, kept) = worked_on(false);
    let logs = files_below(&volume.store().join("shards"), &|path| path.ends_with(".log"));
    // Bytes as a power cut leaves them behind the last fsync.
    let torn = Damaged::by(logs.last().expect("a log"), |bytes| bytes.extend_from_slice(&[0xab; 777]));
    works_again(&volume, &kept);
    // The log was sealed at its right length; bytes beyond it are ignored from now on.
    std::mem::forget(torn);
}

#[test]
fn damaged_table_is_refused_until_restored() {
    let (volume, kept) = worked_on(true);
    let tables = files_below(&volume.store().join("shards"), &|path| path.ends_with(".sst"));
    let table = tables.iter().max_by_key(|path| path.metadata().map_or(0, |found| found.len())).expect("a table");
    {
        let _damaged = Damaged::by(table, |bytes| {
            let length = bytes.len();
            bytes[length / 3..length / 3 + 40].fill(0x5a);
        });
        let checked = run(varve().arg("fsck").arg(volume.store()), SHORT);
        // The code of fsck(8) for damage that was left.
        assert_eq!(checked.code(), Some(4), "{}{}", checked.stdout, checked.stderr);
        assert!(checked.stdout.contains("checksum mismatch") && checked.stdout.contains(".sst"), "{}", checked.stdout);
        // The output says that the counts are incomplete.
        assert!(checked.stdout.contains("Reading ended at damage"), "{}", checked.stdout);
        expect_no_panic("varve fsck", &checked.stderr);
    }
    works_again(&volume, &kept);
}

/// If the content of a file is removed from the store, that file gives an I/O error, and the rest of the volume works.
#[test]
fn missing_content_is_an_error_of_its_file() {
    let volume = Volume::format(&["--shards", "1", "--inline-limit", "4KiB"]);
    let mount = volume.mount(&[]);
    let large = mount.directory.join("large");
    std::fs::write(&large, vec![7; 10_000]).expect("a large file");
    mount.unmount();
    for file in files_below(&volume.store().join("data"), &|_| true) {
        std::fs::remove_file(file).expect("it can be removed");
    }
    let mount = volume.mount(&[]);
    let errors = [
        std::fs::read(&large).map(drop).expect_err("its content is gone"),
        std::fs::write(&large, "new").expect_err("its content is gone"),
    ];
    assert_eq!(errors.map(|error| error.raw_os_error()), [Some(libc::EIO); 2]);
    std::fs::write(mount.directory.join("other"), "other").expect("another file");
    std::fs::remove_file(&large).expect("it can be removed");
    mount.unmount();
    volume.expect_sound();
}

/// If the content of a file is truncated in the store, that file gives an I/O error, which the log reports with the
/// file. The truncated content never passes for the whole file. A repair keeps the rest.
#[test]
fn truncated_content_is_an_error_of_its_file() {
    let volume = Volume::format(&["--shards", "1", "--inline-limit", "4KiB"]);
    let mount = volume.mount(&[]);
    std::fs::write(mount.directory.join("cut"), vec![7; 100_000]).expect("a large file");
    mount.unmount();
    for file in files_below(&volume.store().join("data"), &|_| true) {
        std::fs::File::options().write(true).open(file).and_then(|file| file.set_len(30_000)).expect("it can be cut");
    }
    for flags in [&[][..], &["-o", "nopassthrough"]] {
        let mount = volume.mount(flags);
        let cut = mount.directory.join("cut");
        std::fs::write(mount.directory.join("other"), vec![8; 50_000]).expect("another file");
        let refused = [
            std::fs::read(&cut).map(drop).expect_err("it is not whole"),
            std::fs::File::options().append(true).open(&cut).map(drop).expect_err("it is not whole"),
        ];
        assert_eq!(refused.map(|error| error.raw_os_error()), [Some(libc::EIO); 2]);
        let log = mount.log();
        for word in ["\"cut\"", "100000 bytes", "30000 are left", "varve fsck"] {
            assert!(log.contains(word), "the log does not say {word}:\n{log}");
        }
        assert_eq!(std::fs::read(mount.directory.join("other")).expect("it is whole").len(), 50_000);
        expect_no_panic("the mount", &log);
        mount.unmount();
    }
    let repaired = run(varve().args(["fsck", "--repair"]).arg(volume.store()), SHORT);
    assert_eq!(repaired.code(), Some(1), "{}{}", repaired.stdout, repaired.stderr);
    let mount = volume.mount(&[]);
    let cut = mount.directory.join("cut");
    assert_eq!(std::fs::read(&cut).expect("it was repaired"), [7; 30_000]);
    std::fs::write(&cut, "new").expect("it can be written anew");
    mount.unmount();
    volume.expect_sound();
}

/// A large file was fsynced, and was closed just before the mount died or not at all. The check, the next mount and the
/// repair all know that it was longer; the repair records it.
#[test]
fn truncated_synced_content_is_an_error_after_a_crash() {
    let volume = Volume::format(&["--shards", "2", "--inline-limit", "4KiB"]);
    let mut mount = volume.mount(&[]);
    let directory = mount.directory.join("directory");
    std::fs::create_dir(&directory).expect("a directory");
    let synced = |name: &str| {
        let file = std::fs::File::create_new(directory.join(name)).expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 100_000], 0).expect("it can be written");
        file.sync_all().expect("it can be synced");
        file
    };
    drop(synced("closed"));
    let open = synced("open");
    mount.kill_process();
    drop(open);
    mount.bury();
    for file in files_below(&volume.store().join("data"), &|_| true) {
        std::fs::File::options().write(true).open(file).and_then(|file| file.set_len(30_000)).expect("it can be cut");
    }
    let checked = run(varve().arg("fsck").arg(volume.store()), SHORT);
    assert_eq!(checked.code(), Some(4), "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains("at least 100000 bytes, the store 30000"), "{}", checked.stdout);
    let mount = volume.mount(&[]);
    for name in ["closed", "open"] {
        let refused = std::fs::read(mount.directory.join("directory").join(name)).expect_err("it is not whole");
        assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{name}");
    }
    for word in ["100000 bytes", "30000 are left", "varve fsck"] {
        assert!(mount.log().contains(word), "the log does not say {word}:\n{}", mount.log());
    }
    mount.unmount();
    let repaired = run(varve().args(["fsck", "--repair"]).arg(volume.store()), SHORT);
    assert_eq!(repaired.code(), Some(1), "{}{}", repaired.stdout, repaired.stderr);
    let noted = std::fs::read_to_string(volume.store().join("damaged/cut.txt")).expect("files that were cut are noted");
    let mut noted: Vec<&str> = noted.lines().collect();
    noted.sort_unstable();
    assert_eq!(noted, ["/directory/closed\t100000\t30000", "/directory/open\t100000\t30000"]);
    let mount = volume.mount(&[]);
    assert_eq!(std::fs::read(mount.directory.join("directory/open")).expect("it was repaired"), [7; 30_000]);
    mount.unmount();
    volume.expect_sound();
}

/// Directories, whose homes are spread over the shards, and the number of files in each.
const DIRECTORIES: usize = 12;
const FILES: usize = 30;

fn directory_name(number: usize) -> String {
    format!("d{number}")
}

/// Names in a directory, and the error that ended the listing, if any.
fn listed(directory: &Path) -> (BTreeSet<String>, Option<io::Error>) {
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return (names, Some(error)),
    };
    for entry in entries {
        match entry {
            Ok(entry) => names.insert(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => return (names, Some(error)),
        };
    }
    (names, None)
}

/// Everything in the tree is present or answers EIO; nothing is missing without an error. Returns the number of replies
/// of either kind.
fn complete_or_eio(root: &Path) -> (usize, usize) {
    let (mut complete, mut failed) = (0, 0);
    let mut count = |what: &Path, error: Option<&io::Error>| match error {
        None => complete += 1,
        Some(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}: {error}", what.display());
            failed += 1;
        }
    };
    let of_root: BTreeSet<String> = (0..DIRECTORIES).map(directory_name).collect();
    let of_directory: BTreeSet<String> = (0..FILES).map(|file| format!("f{file}")).collect();
    let directories = of_root.iter().map(|name| (root.join(name), &of_directory));
    for (directory, expected) in std::iter::once((root.to_owned(), &of_root)).chain(directories) {
        let (names, error) = listed(&directory);
        count(&directory, error.as_ref());
        if error.is_none() {
            assert_eq!(names, *expected, "{} is listed short", directory.display());
        }
        for name in expected {
            let path = directory.join(name);
            count(&path, std::fs::metadata(&path).err().as_ref());
        }
    }
    (complete, failed)
}

/// One shard's table or log is damaged. Its names answer EIO. All others are present, in listings too. The log names
/// the file, and `varve status` the shard.
#[test]
fn a_damaged_shard_fails_alone() {
    for served in [false, true] {
        let volume = Volume::format(&["--shards", "4"]);
        let mount = volume.mount(&[]);
        for directory in (0..DIRECTORIES).map(|number| mount.directory.join(directory_name(number))) {
            std::fs::create_dir(&directory).expect("a directory");
            (0..FILES).for_each(|file| std::fs::write(directory.join(format!("f{file}")), b"x").expect("a file"));
        }
        mount.unmount();
        let shard = volume.store().join("shards/0002");
        let tables = files_below(&shard, &|path| path.ends_with(".sst"));
        let logs = files_below(&shard, &|path| path.ends_with(".log"));
        let table = tables.iter().max_by_key(|path| path.metadata().map_or(0, |found| found.len())).expect("a table");
        let log = logs.last().expect("a log");
        type Damage = fn(&mut Vec<u8>);
        let flips: [Damage; 4] = [
            |bytes| {
                let at = bytes.len() / 2;
                bytes[at] ^= 1;
            },
            // The first block is needed to open a shard.
            |bytes| bytes[20] ^= 1,
            |bytes| {
                let at = bytes.len() - 300;
                bytes[at] ^= 1;
            },
            |bytes| bytes.truncate(bytes.len() / 2),
        ];
        // The log comes first: it is not read again once its rows are known to be in tables.
        let of_table = flips.map(|flip| (table, flip));
        let damages = std::iter::once((log, (|bytes| bytes[10] ^= 1) as Damage)).chain(of_table);
        for (number, (file, damage)) in damages.enumerate() {
            let what = format!("served: {served}, damage {number} of {}", file.display());
            let damaged = Damaged::by(file, damage);
            let server = served.then(|| volume.serve(&[]));
            let mount = volume.mount(&["-o", DEADLINE_OPTION]);
            let (complete, failed) = complete_or_eio(&mount.directory);
            assert!(complete > FILES, "{what}: {complete} answers");
            assert!(failed > 0, "{what}: nothing fails");
            let log = server.as_ref().map_or_else(|| mount.log(), |server| server.log());
            let name = file.file_name().expect("a file has a name").to_string_lossy();
            assert!(log.contains(&*name) && log.contains("varve fsck"), "{what}: the log does not say so\n{log}");
            expect_no_panic(&what, &log);
            expect_bounded(&what, server.as_ref().map_or_else(|| mount.pid(), |server| server.pid()));
            let status = run(varve().arg("status").arg(volume.store()), SHORT);
            if number == 0 {
                assert_eq!(status.code(), Some(3), "{what}: {}{}", status.stdout, status.stderr);
                assert!(status.stdout.contains("shard 2 cannot be opened"), "{what}: {}", status.stdout);
            }
            // The mount of a server does not know which unsynced changes an earlier server left there.
            if served {
                drop(mount)
            } else {
                mount.unmount()
            }
            if let Some(server) = server {
                server.kill();
            }
            drop(damaged);
        }
        let mount = volume.mount(&[]);
        let (_, failed) = complete_or_eio(&mount.directory);
        assert_eq!(failed, 0, "restored");
        mount.unmount();
        volume.expect_sound();
    }
}
