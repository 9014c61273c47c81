//! Changes that fail with unknown outcome, and the state that the kernel shows afterwards.

use crate::fixture::{Volume, can_mount};
use crate::late::{ChangeTiming, Late};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Shorter than the time for which the kernel caches state that was not invalidated.
const RECOVERY: Duration = Duration::from_secs(60);

/// Inode, permissions and link count of each existing name, as stat(2) returns them.
type ObservedNames = BTreeMap<&'static str, (u64, u32, u64)>;

const NAMES: [&str; 4] = ["a", "b", "d", "e"];

fn stat(directory: &Path) -> ObservedNames {
    let of = |name: &'static str| match fs::symlink_metadata(directory.join(name)) {
        Ok(found) => Some((name, (found.ino(), found.mode() & 0o777, found.nlink()))),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{name}: {error}");
            None
        }
    };
    NAMES.into_iter().filter_map(of).collect()
}

/// The entries of a listing, with their inodes.
fn list(directory: &Path) -> BTreeMap<String, u64> {
    use std::os::unix::fs::DirEntryExt;
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.ino())).collect()
}

type Change = fn(&Path) -> io::Result<()>;

/// Changes of a directory with the file `a`, the empty directory `d`, and none of the other names.
const CHANGES: [(&str, Change); 9] = [
    ("create", |at| File::create_new(at.join("b")).map(drop)),
    ("mkdir", |at| fs::create_dir(at.join("e"))),
    ("symlink", |at| std::os::unix::fs::symlink("a", at.join("b"))),
    ("link", |at| fs::hard_link(at.join("a"), at.join("b"))),
    ("unlink", |at| fs::remove_file(at.join("a"))),
    ("rmdir", |at| fs::remove_dir(at.join("d"))),
    ("rename", |at| fs::rename(at.join("a"), at.join("b"))),
    ("exchange", |at| Ok(renameat_with(CWD, at.join("a"), CWD, at.join("d"), RenameFlags::EXCHANGE)?)),
    ("chmod", |at| fs::set_permissions(at.join("a"), fs::Permissions::from_mode(0o600))),
];

fn prepare(directory: &Path) -> File {
    fs::create_dir(directory).unwrap();
    let mut file = File::options().read(true).write(true).create_new(true).open(directory.join("a")).unwrap();
    file.write_all(b"before").unwrap();
    fs::create_dir(directory.join("d")).unwrap();
    file
}

/// A failed change, and the state before it.
struct Failed {
    what: &'static str,
    directory: PathBuf,
    before: ObservedNames,
    file: File,
}

/// Makes the kernel cache existing and missing names; then requests the change, which fails.
fn fail(late: &Late, directory: PathBuf, what: &'static str, change: Change, made: ChangeTiming) -> Failed {
    let file = prepare(&directory);
    let before = stat(&directory);
    assert_eq!(before.len(), 2, "{what}: {before:?}");
    late.set(made);
    let failed = change(&directory).expect_err(what);
    late.set(ChangeTiming::Truly);
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{what}: {failed}");
    if made == ChangeTiming::Later {
        assert_eq!(stat(&directory), before, "{what} is not made yet");
    }
    Failed { what, directory, before, file }
}

impl Failed {
    /// The change is made by now, and becomes visible soon.
    fn shows(self) {
        let Failed { what, directory, before, file } = self;
        let begun = Instant::now();
        let after = loop {
            let after = stat(&directory);
            let shown: BTreeMap<String, u64> = after.iter().map(|(name, seen)| ((*name).to_owned(), seen.0)).collect();
            let listed = list(&directory);
            if after != before && shown == listed {
                break after;
            }
            assert!(begun.elapsed() < RECOVERY, "{what}: {after:?} are still shown, {listed:?} listed");
            std::thread::sleep(Duration::from_millis(20));
        };
        let (inode, mode, links) = before["a"];
        let expected = match what {
            "create" | "mkdir" | "symlink" => after.get("a") == Some(&before["a"]) && after.len() == 3,
            "link" => after["a"] == (inode, mode, links + 1) && after["b"] == after["a"],
            "unlink" => !after.contains_key("a") && after.len() == 1,
            "rmdir" => !after.contains_key("d") && after.len() == 1,
            "rename" => after.get("b") == Some(&before["a"]) && after.len() == 2,
            "exchange" => after["a"].0 == before["d"].0 && after["d"].0 == inode && after.len() == 2,
            _ => after["a"] == (inode, 0o600, links) && after.len() == 2,
        };
        assert!(expected, "{what}: {before:?} became {after:?}");
        // It was open all the time.
        file.write_all_at(b" and after", 6).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), inode, "{what}");
        let mut content = [0; 16];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"before and after", "{what}");
        file.sync_all().unwrap();
    }
}

/// Promise: whenever such a change is made, the mount shows the actual state: names, listings, attributes; open files
/// stay usable.
#[test]
fn kernel_entries_with_unknown_outcome_are_invalidated() {
    if !can_mount() {
        return;
    }
    let (volume, late) = Volume::late();
    for made in [ChangeTiming::AtOnce, ChangeTiming::Later] {
        let begun = CHANGES
            .into_iter()
            .enumerate()
            .map(|(number, (what, change))| fail(&late, volume.join(format!("{number} {made:?}")), what, change, made));
        let begun: Vec<_> = begun.collect();
        assert_eq!(late.make(), if made == ChangeTiming::Later { begun.len() } else { 0 });
        begun.into_iter().for_each(Failed::shows);
    }
    volume.close();
}
