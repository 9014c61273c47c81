//! Mount options that change what programs see: `remount`, `ro`, `inode32`.

use crate::common::{Outcome, SHORT, Volume, run, varve};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirEntryExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The helper as mount(8) calls it for a line of fstab.
fn helper(volume: &Volume, options: &str) -> Outcome {
    let helper = volume.beside("mount.fuse.varve");
    if !helper.exists() {
        symlink(env!("CARGO_BIN_EXE_varve"), &helper).expect("a link");
    }
    let mut command = Command::new(&helper);
    command.arg(volume.store()).arg(volume.mount_point()).args(["-o", options]);
    run(&mut command, SHORT)
}

fn expect_read_only(root: &Path) {
    let refused = fs::write(root.join("new"), "").expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    let refused = File::options().append(true).open(root.join("large")).expect_err("read-only");
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(root.join("large")).expect("it can be read").len(), 100_000);
}

/// `mount -o remount,ro` makes a mount refuse changes, with and without the helper, and `rw` takes that back. While a
/// file is open for writing, it is refused.
#[test]
fn remount_changes_read_only() {
    if !rustix::process::geteuid().is_root() {
        // mount(2) needs root.
        return;
    }
    let volume = Volume::format(&["--shards", "4"]);
    let root = volume.mount_point();
    let mount = volume.mount(&["-o", "noatime"]);
    fs::write(root.join("large"), vec![1; 100_000]).expect("a file");
    let open = File::options().append(true).open(root.join("large")).expect("a file");
    let refused = helper(&volume, "rw,remount,ro,memory=512MiB");
    assert_eq!(refused.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot remount") && refused.stderr.contains("open for writing"));
    drop(open);
    let remounted = helper(&volume, "rw,remount,ro,memory=512MiB").succeeded("remount,ro");
    assert!(remounted.stderr.contains("these stay as they were: memory=512MiB"), "{}", remounted.stderr);
    expect_read_only(&root);
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let line = table.lines().find(|line| line.contains(root.to_str().expect("plain"))).expect("mounted").to_owned();
    assert!(line.contains("ro,noatime"), "{line}");
    helper(&volume, "remount,rw").succeeded("remount,rw");
    fs::write(root.join("new"), "").expect("it can be changed");
    fs::remove_file(root.join("new")).expect("it can be changed");
    // Without the helper.
    run(Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(&root), SHORT).succeeded("mount");
    expect_read_only(&root);
    mount.unmount();
    volume.expect_sound();
}

/// A remount refuses options that it cannot change, by name, and a store that is not the one mounted there.
#[test]
fn remount_refuses_other_options_and_stores() {
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&[]);
    let remount = |store: &Path, options: &str| {
        let mut command = varve();
        run(command.arg("mount").args(["-o", options]).arg(store).arg(&mount.directory), SHORT)
    };
    let refused = remount(&volume.store(), "remount,rw,memory=512MiB,noatime,allow_other");
    assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("cannot change memory=512MiB, allow_other"), "{}", refused.stderr);
    let refused = remount(&volume.beside("other"), "remount,ro");
    let store = volume.store();
    let mounted = format!("what is mounted there is {}", store.display());
    assert!(refused.code() == Some(1) && refused.stderr.contains(&mounted), "{}", refused.stderr);
    fs::write(mount.directory.join("file"), "x").expect("it was not remounted");
    mount.unmount();
}

/// A mount that was made read-only stays so, and a directory without a mount cannot be remounted.
#[test]
fn remount_to_writable_needs_a_writable_mount() {
    let volume = Volume::format(&["--shards", "4"]);
    let refused = helper(&volume, "remount,ro");
    assert!(refused.code() == Some(1) && refused.stderr.contains("nothing is mounted"), "{}", refused.stderr);
    let mount = volume.mount(&["-o", "ro"]);
    let refused = helper(&volume, "remount,rw");
    assert!(refused.code() == Some(1) && refused.stderr.contains("mounted read-only"), "{}", refused.stderr);
    mount.unmount();
}

/// With `inode32`, numbers fit into 32 bits, a listing and stat agree, and two names of a file have one number. They
/// are the same in the next mount.
#[test]
fn inode32_numbers_fit_into_32_bits() {
    let volume = Volume::format(&["--shards", "64"]);
    let root = volume.mount_point();
    let mut before = None;
    for round in 0..2 {
        let mount = volume.mount(&["-o", "inode32"]);
        if round == 0 {
            for number in 0..100 {
                fs::create_dir(root.join(format!("{number}"))).expect("a directory");
                fs::write(root.join(format!("{number}/file")), "x").expect("a file");
            }
            fs::hard_link(root.join("1/file"), root.join("2/link")).expect("a second name");
        }
        let numbers = numbers_below(&root);
        let number_of = |name: &str| numbers.iter().find(|(path, _)| path.ends_with(name)).expect("listed").1;
        assert_eq!(number_of("1/file"), number_of("2/link"));
        let distinct: std::collections::HashSet<u64> = numbers.iter().map(|(_, number)| *number).collect();
        assert_eq!(distinct.len(), 200, "100 directories and 100 files");
        assert!(distinct.iter().all(|number| *number <= u64::from(u32::MAX)));
        assert_eq!(fs::metadata(&root).expect("the root").ino(), 1);
        assert!(before.replace(numbers.clone()).is_none_or(|before| before == numbers));
        fs::rename(root.join("3/file"), root.join("4/other")).expect("renamed");
        fs::rename(root.join("4/other"), root.join("3/file")).expect("renamed");
        mount.unmount();
    }
    volume.expect_sound();
}

/// With `inode32`, offsets in listings fit into a signed 32-bit number, which such a program's `readdir` requires. A
/// listing in small pieces has each name once, and continues after the entry whose offset is sought.
#[test]
fn inode32_offsets_fit_into_31_bits() {
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&["-o", "inode32"]);
    let directory = mount.directory.join("directory");
    fs::create_dir(&directory).expect("a directory");
    let mut made: Vec<String> = (0..500).map(|number| format!("{number:0100}")).collect();
    made.iter().for_each(|name| fs::write(directory.join(name), "x").expect("a file"));
    made.sort();
    let opened = fs::File::open(&directory).expect("it can be opened");
    let mut listed = offsets(&opened);
    let (_, middle) = listed[250].clone();
    rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(middle)).expect("an offset of the listing");
    assert_eq!(offsets(&opened), listed[251..]);
    drop(opened);
    assert!(listed.iter().all(|(_, offset)| *offset <= i32::MAX as u64), "{listed:?}");
    listed.retain(|(name, _)| name != "." && name != "..");
    let mut names: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();
    names.sort();
    assert_eq!(names, made);
    mount.unmount();
}

/// Each entry from the current position on, with the offset after it.
fn offsets(directory: &fs::File) -> Vec<(String, u64)> {
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("an entry");
        found.push((entry.file_name().to_str().expect("digits").to_owned(), entry.next_entry_cookie()));
    }
    found
}

/// Path and number of everything below, sorted.
fn numbers_below(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        assert_eq!(entry.ino(), entry.metadata().expect("attributes").ino(), "{:?}", entry.path());
        found.push((entry.path(), entry.ino()));
        if entry.file_type().expect("a type").is_dir() {
            found.extend(numbers_below(&entry.path()));
        }
    }
    found.sort();
    found
}
