use super::*;
use crate::disk::{self, File};
use std::collections::BTreeSet;

fn states(history: &History, point: usize, order: CrashOrder, count: u64) -> BTreeSet<Vec<(String, Vec<u8>)>> {
    (0..count)
        .map(|seed| {
            let state = history.lose_power(point, Fate::Chance { order, seed });
            let directory = tempfile::tempdir().unwrap();
            state.write_to(directory.path()).unwrap();
            assert_eq!(DiskState::read_from(directory.path()).unwrap(), state, "what is made is what was chosen");
            let mut files: Vec<_> = std::fs::read_dir(directory.path())
                .unwrap()
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.path().is_file())
                .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
                .collect();
            files.sort();
            files
        })
        .collect()
}

fn named(name: &str, content: &[u8]) -> (String, Vec<u8>) {
    (name.to_owned(), content.to_vec())
}

/// Fsynced data is in every state; other data may be kept or lost, page by page.
#[test]
fn unsynced_pages_are_kept_lost_or_torn() {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    let path = directory.path().join("f");
    disk::create_if_absent(disk::Exclusive::RenameNoReplace, &path, &[1; 8192]).unwrap();
    let file = File::open_to_write(&path).unwrap();
    file.write_all_at(&[2; 8192], 0).unwrap();
    let history = recording.history();
    assert_eq!(recording.check().unwrap(), [""; 0].map(PathBuf::from));
    let found = states(&history, history.points(), CrashOrder::Anyhow, 200);
    let pages: BTreeSet<_> = found.iter().map(|files| (files[0].1[0], files[0].1[4096])).collect();
    assert_eq!(pages.len(), 4, "each page by itself");
    assert!(found.iter().any(|files| files[0].1[..4096].windows(2).any(|pair| pair[0] != pair[1])), "torn pages");
    assert!(found.iter().all(|files| files[0].1.len() == 8192
        && files[0].1.chunks(512).all(|sector| { sector.iter().all(|byte| *byte == sector[0]) })));
    file.sync_data().unwrap();
    let history = recording.history();
    assert_eq!(
        states(&history, history.points(), CrashOrder::Anyhow, 20),
        BTreeSet::from([vec![named("f", &[2; 8192])]])
    );
}

/// A file that is replaced as in [`disk::replace`] has the old or the new content, never a torn one.
#[test]
fn replacing_is_atomic_at_every_point() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f"), b"old").unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    disk::replace(&directory.path().join("f"), b"newer").unwrap();
    let history = recording.history();
    for point in 0..=history.points() {
        for order in [CrashOrder::Journaled, CrashOrder::Anyhow] {
            for mut files in states(&history, point, order, 10) {
                files.retain(|(name, _)| !name.starts_with(disk::TEMPORARY_PREFIX));
                let whole = files == [named("f", b"old")] || files == [named("f", b"newer")];
                assert!(whole, "{files:?} after\n{}", history.describe(point, 20));
            }
        }
    }
    let last = history.lose_power(history.points(), Fate::Lost);
    assert_eq!(last, history.lose_power(history.points(), Fate::Kept), "all was synced");
}

/// The model is as unreliable as a disk: a file that is renamed before it is fsynced may be found empty, and a name
/// whose directory was not fsynced may be lost, though with a journal the file's own fsync keeps it.
#[test]
fn unsynced_changes_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    let (temporary, path) = (directory.path().join("t"), directory.path().join("f"));
    let file = File::options().write(true).create_new().open(&temporary).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    disk::rename(&temporary, &path).unwrap();
    let history = recording.history();
    let found = states(&history, history.points(), CrashOrder::Anyhow, 100);
    assert!(
        found.contains(&vec![named("f", b"")]) && found.contains(&vec![]) && found.contains(&vec![named("t", b"")])
    );
    assert!(found.contains(&vec![named("f", &[0; 7])]), "a length without its bytes");
    let found = states(&history, history.points(), CrashOrder::Journaled, 100);
    assert!(found.contains(&vec![named("f", b"")]) && !found.contains(&vec![named("f", &[0; 7])]));
    file.sync_all().unwrap();
    let history = recording.history();
    assert!(states(&history, history.points(), CrashOrder::Anyhow, 100).contains(&vec![]));
    let only = BTreeSet::from([vec![named("f", b"content")]]);
    assert_eq!(states(&history, history.points(), CrashOrder::Journaled, 50), only);
}

/// Truncating and extending: every length that the file had may result, and no content that it never had.
#[test]
fn recorded_lengths_are_restored() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f"), [1; 5000]).unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    let file = File::open_to_write(&directory.path().join("f")).unwrap();
    file.set_len(4100).unwrap();
    file.set_len(6000).unwrap();
    file.allocate(rustix::fs::FallocateFlags::empty(), 0, 9000).unwrap();
    assert!(recording.check().unwrap().is_empty());
    let history = recording.history();
    let found = states(&history, history.points(), CrashOrder::Anyhow, 200);
    let lengths: BTreeSet<_> = found.iter().map(|files| files[0].1.len()).collect();
    assert_eq!(lengths, BTreeSet::from([4100, 5000, 6000, 9000]));
    for files in &found {
        assert!(files[0].1[..4096].iter().all(|byte| *byte == 1));
        assert!(files[0].1.iter().skip(5000).all(|byte| *byte == 0));
    }
}

/// Changes that bypass [`disk`] are found.
#[test]
fn unrecorded_changes_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    std::fs::write(directory.path().join("past"), b"").unwrap();
    assert_eq!(recording.check().unwrap(), [PathBuf::from("past")]);
    drop(recording);
    disk::replace(&directory.path().join("after"), b"").unwrap();
}
