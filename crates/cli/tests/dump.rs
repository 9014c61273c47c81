//! A dump taken while the volume is in use is a consistent snapshot, and loads to a sound volume.

mod common;

use common::{LONG, Volume, expect_bounded, must, run, scratch, soak, varve};
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const WORKERS: usize = 3;

/// Small directories that split, small and large files, names that move between directories and hard links.
fn work(root: &Path, worker: usize, stop: &AtomicBool) {
    let directories: Vec<PathBuf> = (0..4).map(|number| root.join(format!("w{worker}-d{number}"))).collect();
    directories.iter().for_each(|directory| fs::create_dir(directory).expect("a directory"));
    let mut number = 0;
    while !stop.load(Relaxed) {
        let here = &directories[number % 4];
        let there = &directories[(number + 1) % 4];
        let path = here.join(format!("f{number}"));
        fs::write(&path, vec![b'x'; if number % 7 == 0 { 9000 } else { 100 }]).expect("a file");
        match number % 5 {
            0 => fs::rename(&path, there.join(format!("r{number}"))).expect("a rename"),
            1 => fs::hard_link(&path, there.join(format!("l{number}"))).expect("a link"),
            2 => fs::remove_file(&path).expect("its removal"),
            3 => {
                let made = here.join(format!("s{number}"));
                fs::create_dir(&made).expect("a directory");
                fs::rename(&made, there.join(format!("s{number}"))).expect("its rename");
            }
            _ => {}
        }
        number += 1;
    }
}

/// Loads `dump` beside the volume and expects the check to find nothing.
fn load(dump: &Path, store: &Path, data: &Path) -> serde_json::Value {
    let loaded =
        run(varve().args(["--json", "load"]).arg(dump).arg(store).arg("--data").arg(data), LONG).bounded("varve load");
    let left_out = loaded.json()["files_left_out"].as_u64().expect("a number");
    assert_eq!(loaded.code(), Some(if left_out == 0 { 0 } else { 3 }), "{}", loaded.stdout);
    let checked = must(varve().arg("fsck").arg("--json").arg(store)).json();
    assert_eq!(checked["findings"].as_array().map(Vec::len), Some(0), "{checked:#}");
    checked
}

#[test]
fn dump_under_load_restores_to_a_consistent_volume() {
    let volume = Volume::format(&["--shards", "8", "--split-threshold", "4", "--inline-limit", "4KiB"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    let root = volume.mount_point();
    fs::create_dir(root.join("kept")).expect("a directory");
    for number in 0..100 {
        fs::write(root.join(format!("kept/{number}")), format!("content {number}")).expect("a file");
    }
    let stop = AtomicBool::new(false);
    let dumps: Vec<PathBuf> =
        (0..if soak() { 60 } else { 3 }).map(|number| volume.beside(&format!("dump{number}"))).collect();
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (root, stop) = (&root, &stop);
            scope.spawn(move || work(root, worker, stop));
        }
        for dump in &dumps {
            std::thread::sleep(std::time::Duration::from_millis(700));
            must(varve().arg("dump").arg(volume.store()).arg("-o").arg(dump)).bounded("varve dump");
        }
        stop.store(true, Relaxed);
    });
    for (number, dump) in dumps.iter().enumerate() {
        let store = volume.beside(&format!("loaded{number}"));
        let checked = load(dump, &store, &volume.store().join("data"));
        assert!(checked["counts"]["entries"].as_u64() > Some(100), "{checked:#}");
        fs::remove_dir_all(&store).expect("removed");
    }
    expect_bounded("the server of dumps", server.pid());
    mount.unmount();
    server.stop();
    volume.expect_sound();
}

#[test]
fn offline_dump_restores_the_volume() {
    let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
    {
        let mount = volume.mount(&[]);
        let root = volume.mount_point();
        fs::create_dir(root.join("directory")).expect("a directory");
        fs::write(root.join("directory/small"), "small").expect("a file");
        fs::write(root.join("large"), vec![7; 100_000]).expect("a file");
        fs::hard_link(root.join("large"), root.join("directory/twice")).expect("a link");
        mount.unmount();
    }
    let dump = volume.beside("dump");
    let counts = |store: &Path| must(varve().arg("fsck").arg("--json").arg(store)).json()["counts"].clone();
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump));
    let store = volume.beside("loaded");
    load(&dump, &store, &volume.store().join("data"));
    let (before, after) = (counts(&volume.store()), counts(&store));
    for what in ["directories", "entries", "inodes", "files_inline", "files_backing", "bytes_backing"] {
        assert_eq!(before[what], after[what], "{what}");
    }
    let refused = run(varve().arg("load").arg(&dump).arg(&store), LONG);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("holds a Varve volume already"), "{}", refused.stderr);
}

/// Bytes after a dump's end would be lost silently. The error does not claim that the load removed files which it
/// leaves alone.
#[test]
fn load_refuses_trailing_bytes() {
    let volume = Volume::format(&["--shards", "2"]);
    let dump = volume.beside("dump");
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump));
    let mut twice = fs::read(&dump).expect("a dump");
    let end = twice.len();
    twice.extend_from_within(..);
    fs::write(&dump, &twice).expect("two dumps");
    let store = volume.beside("loaded");
    let refused = run(varve().arg("load").arg(&dump).arg(&store), LONG);
    assert_eq!(refused.code(), Some(1));
    assert!(
        refused.stderr.contains(&format!("at byte {end}: it ends here, but more bytes follow")),
        "{}",
        refused.stderr
    );
    assert!(!store.exists());
    fs::write(&dump, "no dump").expect("a file");
    let refused = run(varve().arg("load").arg(&dump).arg(volume.store()), LONG);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("Nothing was made or changed"), "{}", refused.stderr);
}

/// A dump follows links. It writes into a target that is not a regular file, and replaces one that is. The links stay.
#[test]
fn dump_does_not_replace_devices_or_links() {
    let volume = Volume::format(&["--shards", "2"]);
    let dump_to = |path: &Path| must(varve().arg("dump").arg(volume.store()).arg("-o").arg(path));
    let plain = volume.beside("plain");
    dump_to(&plain);
    let content = fs::read(&plain).expect("a dump");

    let fifo = volume.beside("fifo");
    must(Command::new("mkfifo").arg(&fifo));
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).expect("what is written")
    });
    dump_to(&fifo);
    assert_eq!(reader.join().expect("a reader"), content);
    assert!(fs::symlink_metadata(&fifo).expect("it is there").file_type().is_fifo());

    if rustix::process::geteuid().is_root() {
        // A device like /dev/null. If this test fails, the machine's own /dev/null stays.
        let device = volume.beside("null");
        let made = run(Command::new("mknod").arg(&device).args(["c", "1", "3"]), LONG);
        if made.code() == Some(0) && File::options().write(true).open(&device).is_ok() {
            dump_to(&device);
            assert!(fs::symlink_metadata(&device).expect("it is there").file_type().is_char_device());
        } else {
            eprintln!("SKIPPED: no devices can be made here: {}", made.stderr);
        }
    }

    for (link, target) in [("to-old", "old"), ("to-new", "new")] {
        symlink(target, volume.beside(link)).expect("a link");
    }
    fs::write(volume.beside("old"), "old").expect("a file");
    for (link, target) in [("to-old", "old"), ("to-new", "new")] {
        dump_to(&volume.beside(link));
        assert_eq!(fs::read_link(volume.beside(link)).expect("still a link"), Path::new(target));
        assert_eq!(fs::read(volume.beside(target)).expect("a dump"), content);
    }
    let refused = run(varve().arg("dump").arg(volume.store()).arg("-o").arg(volume.beside("")), LONG);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("is a directory"), "{}", refused.stderr);
}

/// A load does not copy the content of a volume's large files over itself. Existing files with names that the volume
/// needs stay unchanged.
#[test]
fn load_ignores_existing_target_data() {
    let volume = Volume::format(&["--shards", "2"]);
    let dump = volume.beside("dump");
    let mount = volume.mount(&[]);
    fs::write(mount.directory.join("large"), vec![7; 300_000]).expect("a large file");
    mount.unmount();
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump));
    let store = volume.beside("copy");
    fs::create_dir(&store).expect("a directory");
    must(Command::new("cp").arg("-a").arg(volume.store().join("data")).arg(&store));
    let loads =
        |data: &Path| run(varve().arg("load").arg("--force").arg(&dump).arg(&store).arg("--data").arg(data), LONG);
    let linked = volume.beside("linked");
    std::os::unix::fs::symlink(store.join("data"), &linked).expect("a link");
    for own in [store.join("data"), linked] {
        let refused = loads(&own);
        assert!(!refused.status.success(), "{own:?}");
        assert!(refused.stderr.contains("leave out --data"), "{}", refused.stderr);
    }
    fs::create_dir(store.join("servers")).expect("a directory of somebody's own");
    fs::write(store.join("servers/list"), "mine").expect("a file");
    let refused = loads(&volume.store().join("data"));
    assert!(refused.stderr.contains("has a name that the volume needs"), "{}", refused.stderr);
    assert_eq!(fs::read(store.join("servers/list")).expect("it is there"), b"mine");
    fs::remove_dir_all(store.join("servers")).expect("moved away");
    must(varve().arg("load").arg("--force").arg(&dump).arg(&store));
    let size = |root: &Path| must(Command::new("du").arg("-sb").arg(root.join("data"))).stdout;
    let length = |text: &str| text.split_whitespace().next().map(str::to_owned);
    assert_eq!(length(&size(&store)), length(&size(&volume.store())));
}

/// An incomplete load has its own exit code, and a failed one leaves its directory unchanged.
#[test]
fn incomplete_load_is_reported() {
    let volume = Volume::format(&["--shards", "2", "--inline-limit", "4KiB"]);
    let mount = volume.mount(&[]);
    fs::write(volume.mount_point().join("large"), vec![7; 10_000]).expect("a file");
    mount.unmount();
    let dump = volume.beside("dump");
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump));
    let nothing = volume.beside("nothing");
    fs::create_dir(&nothing).expect("a directory");
    let store = volume.beside("loaded");
    let loaded = run(varve().arg("load").arg(&dump).arg(&store).arg("--data").arg(&nothing), LONG);
    assert_eq!(loaded.code(), Some(3), "{}", loaded.stdout);
    assert!(loaded.stdout.contains("1 files were left out"), "{}", loaded.stdout);
    let not_made = volume.beside("not-made");
    for (wrong, why) in [
        (volume.beside("nowhere"), "No such file or directory"),
        (dump.clone(), "it is no directory"),
        (volume.store(), "it is a store; the content of its large files is in"),
    ] {
        let refused = run(varve().arg("load").arg(&dump).arg(&not_made).arg("--data").arg(&wrong), LONG);
        assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
        assert!(refused.stderr.contains(why) && !not_made.exists(), "{}", refused.stderr);
    }
    let cut = volume.beside("cut");
    let bytes = fs::read(&dump).expect("the dump");
    fs::write(&cut, &bytes[..bytes.len() - 20]).expect("a file");
    let (absent, empty, other) = (volume.beside("absent"), volume.beside("empty"), volume.beside("other"));
    fs::create_dir(&empty).expect("a directory");
    fs::create_dir_all(other.join("data")).expect("a directory");
    fs::write(other.join("data/kept"), "kept").expect("a file");
    for store in [&absent, &empty, &other] {
        let refused = run(varve().args(["load", "--force"]).arg(&cut).arg(store), LONG);
        assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    }
    let names = |directory: &Path| {
        let entries = fs::read_dir(directory).expect("a directory");
        entries.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>()
    };
    assert!(!absent.exists());
    assert_eq!(names(&empty), [""; 0]);
    assert_eq!(names(&other), ["data"]);
    assert_eq!(fs::read_to_string(other.join("data/kept")).expect("it is there"), "kept");
    load(&dump, &empty, &volume.store().join("data"));
}

#[test]
fn load_refuses_other_files() {
    let directory = scratch();
    let file = directory.path().join("file");
    fs::write(&file, "no dump at all").expect("a file");
    let refused = run(varve().arg("load").arg(&file).arg(directory.path().join("store")), LONG);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("not a dump of a Varve volume"), "{}", refused.stderr);
}

#[test]
fn a_dump_to_a_hyphen_goes_to_stdout() {
    let volume = Volume::format(&["--shards", "1"]);
    let directory = scratch();
    let dumped = |arguments: &[&str]| {
        let mut command = varve();
        command.arg("dump").arg(volume.store()).args(arguments).current_dir(directory.path());
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let to_stdout = dumped(&[]);
    assert!(!to_stdout.is_empty());
    assert!(dumped(&["-o", "-"]) == to_stdout, "another dump");
    assert_eq!(fs::read_dir(directory.path()).expect("a listing").count(), 0, "a file was made");
}

/// A dump contains the owners that its maker wrote. A load by root grants nothing based on them, unless root requests
/// it.
#[test]
fn a_load_by_root_drops_set_id_bits() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root drops them");
    }
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&[]);
    let root = volume.mount_point();
    let modes = [("set-uid", 0o4755), ("set-gid", 0o2755), ("both", 0o6755), ("plain", 0o755)];
    for (name, mode) in modes {
        fs::write(root.join(name), "#!/bin/sh").expect("a file");
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("set");
    }
    fs::create_dir(root.join("group")).expect("a directory");
    fs::set_permissions(root.join("group"), fs::Permissions::from_mode(0o2775)).expect("set");
    mount.unmount();
    let dump = volume.beside("dump");
    must(varve().arg("dump").arg(volume.store()).arg("-o").arg(&dump));
    for (flags, count) in [(&[][..], 3), (&["--keep-set-id"][..], 0)] {
        let loaded = Volume::format(&["--shards", "2"]);
        fs::remove_dir_all(loaded.store()).expect("removed");
        let mut command = varve();
        let reported = must(command.args(["--json", "load"]).args(flags).arg(&dump).arg(loaded.store())).json();
        assert_eq!(reported["set_ids_dropped"], count, "{reported}");
        let mount = loaded.mount(&[]);
        for (name, mode) in modes {
            let found = fs::metadata(loaded.mount_point().join(name)).expect("there").mode() & 0o7777;
            assert_eq!(found, if count == 0 { mode } else { mode & 0o777 }, "{name} {flags:?}");
        }
        let group = fs::metadata(loaded.mount_point().join("group")).expect("there").mode() & 0o7777;
        assert_eq!(group, 0o2775, "of a directory it grants nothing");
        mount.unmount();
    }
    let mut command = varve();
    let shown = must(command.arg("load").arg(&dump).arg(volume.beside("shown")));
    assert!(shown.stdout.contains("set-user-id and set-group-id bits of 3 files"), "{}", shown.stdout);
}
