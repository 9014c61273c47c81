mod format;
mod links;
mod lock;
mod rights;
mod store;

use super::*;
use crate::power_loss::{CrashOrder, Fate, Recording};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use varve_types::{AckLevel, ShardCount, VolumeId, VolumeSettings};

fn settings() -> VolumeSettings {
    VolumeSettings {
        id: VolumeId([7; 16]),
        name: "scratch".into(),
        shards: ShardCount::new(4).unwrap(),
        split_threshold: 8_000,
        inline_limit: 65_536,
        sync_interval: Duration::from_millis(1_500),
        owner_uid: owner(),
    }
}

/// Root's stores may contain volumes of other users.
fn owner() -> u32 {
    match rustix::process::geteuid().as_raw() {
        0 => 1000,
        own => own,
    }
}

fn formatted() -> (tempfile::TempDir, VolumeDir) {
    let directory = tempfile::tempdir().unwrap();
    let volume = VolumeDir::new(directory.path().join("volume"));
    volume.format(&settings(), FormatOver::Nothing).unwrap();
    (directory, volume)
}

/// docs/internals/architecture.md, "a volume is a directory": every part has the documented path.
#[test]
fn a_formatted_volume_has_its_parts() {
    let (_directory, volume) = formatted();
    assert_eq!(volume.read_settings().unwrap(), settings());
    assert_ne!(volume.read_key().unwrap(), [0; KEY_BYTES]);
    assert_eq!(volume.key_file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for closed in [volume.shards(), volume.data()] {
        assert_eq!(closed.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert!(volume.root().join("shards/0003/log").is_dir());
    assert!(volume.root().join("data/ff").is_dir());
    assert_eq!(
        volume.backing_file(InodeId::new(ShardId(2), 0x1ab)).path(),
        volume.root().join("data/ab/00020000000001ab")
    );
}

/// A directory that has lost its volume file and the copy still counts as a volume: the error names the missing files,
/// and no format overwrites it without confirmation. The remains of a killed format do not count as a volume.
#[test]
fn volume_without_file_and_copy_is_recognised() {
    for with_tables in [true, false] {
        let (_directory, volume) = formatted();
        std::fs::remove_file(volume.volume_file()).unwrap();
        match with_tables {
            true => {
                std::fs::remove_file(volume.volume_file_copy()).unwrap();
                std::fs::remove_file(volume.key_file()).unwrap();
            }
            false => std::fs::remove_dir_all(volume.shards()).unwrap(),
        }
        let refusal = volume.read_settings().unwrap_err().to_string();
        let known = if with_tables { "shards = 4" } else { "shards = as before" };
        assert!(refusal.contains("is gone") && refusal.contains(known), "{refusal}");
        assert!(!refusal.contains("varve format"), "{refusal}");
        for over in [FormatOver::Nothing, FormatOver::OtherFiles] {
            assert!(matches!(volume.format(&settings(), over), Err(VolumeFormatError::VolumeExists { .. })));
        }
        assert_eq!(volume.shard_log(ShardId(3)).is_dir(), with_tables);
        // A server of the volume would have removed this mark.
        let mark = volume.root().join(".~tmp.format");
        std::fs::write(&mark, b"").unwrap();
        assert!(matches!(volume.read_settings(), Err(VolumeFileError::NoVolume { .. })));
        if with_tables {
            std::fs::remove_file(&mark).unwrap();
        }
        let over = if with_tables { FormatOver::Volume } else { FormatOver::OtherFiles };
        volume.format(&settings(), over).unwrap();
        assert!(volume.read_settings().is_ok() && !mark.exists());
    }
}

/// Promise: a new server learns whether clients may have files open, however its predecessor ended, and the answer
/// stays the same until it publishes its record.
#[test]
fn next_server_reads_the_shutdown_record() {
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    let left = || volume.left_by_server(&lock).unwrap();
    assert_eq!(left(), ShutdownState::Nothing, "nobody has served it");
    let record =
        |embedded, pid| ServerRecord { pid, ..ServerRecord::of_this_process(&volume, embedded, Vec::new()).unwrap() };
    let announce = |record: ServerRecord| volume.write_server_record(&lock, &record).unwrap();
    const NOBODY: u32 = i32::MAX as u32;
    announce(record(false, NOBODY));
    assert_eq!(left(), ShutdownState::OpenFiles, "it was killed");
    announce(record(true, NOBODY));
    assert_eq!(left(), ShutdownState::Nothing, "a mount was killed, with the server that only it used");
    announce(record(true, std::process::id()));
    assert_eq!(left(), ShutdownState::Nothing, "the lock is had: whatever has its number now, that mount has ended");
    announce(ServerRecord { after_open_files: true, ..record(true, NOBODY) });
    assert_eq!(left(), ShutdownState::OpenFiles, "clients of the server before the mount's may come back");
    for at_its_end in [ShutdownState::OpenFiles, ShutdownState::Nothing] {
        announce(record(false, std::process::id()));
        volume.withdraw_server_record(&lock, at_its_end).unwrap();
        assert_eq!(volume.read_server_record().unwrap(), None);
        assert_eq!((left(), left()), (at_its_end, at_its_end));
    }
}

/// A record matches its store under every name, but no copy of it. A record of another host, another boot or an older
/// version is accepted as it is.
#[test]
fn server_record_is_bound_to_its_store() {
    let (directory, volume) = formatted();
    let record = ServerRecord::of_this_process(&volume, false, vec![]).unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(volume.root(), &link).unwrap();
    record.check_store(&volume).unwrap();
    record.check_store(&VolumeDir::new(&link)).unwrap();
    let (copy, moved) = (VolumeDir::new(directory.path().join("copy")), VolumeDir::new(directory.path().join("moved")));
    std::fs::create_dir(copy.root()).unwrap();
    let refusal = record.check_store(&copy).unwrap_err().to_string();
    for word in ["copy/servers/current.toml", "the server of /", "volume, which", "varve fsck"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    ServerRecord { boot_id: "another".into(), ..record.clone() }.check_store(&copy).unwrap();
    ServerRecord { store_id: None, ..record.clone() }.check_store(&copy).unwrap();
    std::fs::rename(volume.root(), moved.root()).unwrap();
    record.check_store(&moved).unwrap();
    record.check_store(&volume).unwrap();
}

/// A newer format is refused by its version; unknown keys, missing keys and bad values are reported by name.
#[test]
fn foreign_volume_files_are_refused() {
    let (directory, volume) = formatted();
    let good = std::fs::read_to_string(volume.volume_file()).unwrap();
    let refusal = |text: String| {
        std::fs::write(volume.volume_file(), text).unwrap();
        volume.read_settings().unwrap_err().to_string()
    };
    let newer = good.replace("format_version = 4", "format_version = 5") + "more = 1\n";
    assert!(refusal(newer).contains("use a newer varve"));
    assert!(refusal(good.clone() + "colour = 1\n").contains("colour"));
    assert!(refusal(good.replace("shards = 4", "shards = 5")).contains("shards = 5"));
    assert!(refusal(good.replace("shards = 4\n", "")).contains("shards"));
    let of_type = refusal(good.replace("shards = 4", "shards = \"4\""));
    assert!(of_type.contains("varve.toml is not a volume file: line 5, `shards = \"4\"`"), "{of_type}");
    assert!(
        refusal(good.replace(&format!("owner_uid = {}", owner()), "owner_uid = -1"))
            .contains("line 9, `owner_uid = -1`")
    );
    assert!(refusal(good.replace("id = \"07", "id = \"x7")).contains("`id`: a volume id is"));
    assert!(refusal(good.replace("name = \"scratch\"", "name = \"\"")).contains("volume name"));
    std::fs::remove_file(volume.volume_file_copy()).unwrap();
    assert!(refusal("not toml".into()).contains("not a volume file"));
    let none = VolumeDir::new(directory.path().join("none"));
    assert!(none.read_settings().unwrap_err().to_string().contains("not a Varve volume"));
}

/// A damaged or missing volume file is read from its copy and restored from it; the error says how. No format
/// overwrites the volume meanwhile.
#[test]
fn a_volume_file_has_a_copy() {
    let (_directory, volume) = formatted();
    let sound = std::fs::read_to_string(volume.volume_file()).unwrap();
    assert_eq!(std::fs::read_to_string(volume.volume_file_copy()).unwrap(), sound);
    for damaged in [Some(&sound[..40]), Some(""), None] {
        match damaged {
            Some(text) => std::fs::write(volume.volume_file(), text).unwrap(),
            None => std::fs::remove_file(volume.volume_file()).unwrap(),
        }
        let refusal = volume.read_settings().unwrap_err().to_string();
        assert!(refusal.contains("varve fsck --repair") && refusal.contains("shards/varve.toml"), "{refusal}");
        for over in [FormatOver::Nothing, FormatOver::OtherFiles] {
            assert!(matches!(volume.format(&settings(), over), Err(VolumeFormatError::VolumeExists { .. })));
        }
        let (known, Some(_)) = volume.read_settings_or_copy().unwrap() else { panic!("it is damaged") };
        assert_eq!(known, settings());
        volume.make_volume_file(&known).unwrap();
        assert_eq!(std::fs::read_to_string(volume.volume_file()).unwrap(), sound);
    }
    // Both files are damaged.
    for path in [volume.volume_file(), volume.volume_file_copy()] {
        std::fs::write(path, &sound[..40]).unwrap();
    }
    let refusal = volume.read_settings_or_copy().unwrap_err().to_string();
    assert!(refusal.contains("restore it from a copy of the store"), "{refusal}");
    volume.format(&settings(), FormatOver::Volume).unwrap();
    assert_eq!(volume.read_settings().unwrap(), settings());
}

/// A server restores the copy of the volume file if the copy is missing, because the format or an older version wrote
/// none, or differs, because an upgrade was interrupted.
#[test]
fn next_server_restores_the_volume_file_copy() {
    let (_directory, volume) = formatted();
    let sound = std::fs::read_to_string(volume.volume_file()).unwrap();
    let lock = volume.lock().unwrap();
    for other in [None, Some("format_version = 1\n")] {
        match other {
            Some(text) => std::fs::write(volume.volume_file_copy(), text).unwrap(),
            None => std::fs::remove_file(volume.volume_file_copy()).unwrap(),
        }
        assert_eq!(volume.read_settings().unwrap(), settings());
        volume.raise_format(&lock, &settings()).unwrap();
        assert_eq!(std::fs::read_to_string(volume.volume_file_copy()).unwrap(), sound);
    }
}

/// Varve does not remove the content of such a directory.
#[test]
fn directory_in_place_of_the_key_is_reported() {
    let (_directory, volume) = formatted();
    std::fs::remove_file(volume.key_file()).unwrap();
    std::fs::create_dir(volume.key_file()).unwrap();
    let refusal = volume.make_key().unwrap_err().to_string();
    assert!(refusal.contains("/key is a directory: remove it"), "{refusal}");
    std::fs::remove_dir(volume.key_file()).unwrap();
    volume.make_key().unwrap();
    volume.read_key().unwrap();
}

/// If both volume files are valid and contradict each other, the volume cannot be opened, whichever was edited. Only
/// the format version may differ, because it changes in one file after the other.
#[test]
fn contradictory_volume_file_copy_is_refused() {
    let (_directory, volume) = formatted();
    let sound = std::fs::read_to_string(volume.volume_file()).unwrap();
    let edits = [
        ("id", "\"07", "\"17"),
        ("name", "scratch", "other"),
        ("shards", "shards = 4", "shards = 2"),
        ("split_threshold", "8000", "9000"),
        ("inline_limit_bytes", "65536", "4096"),
        ("sync_interval_ms", "1500", "2500"),
        ("owner_uid", "owner_uid = ", "owner_uid = 1"),
    ];
    for (field, from, to) in edits {
        for edited in [volume.volume_file(), volume.volume_file_copy()] {
            std::fs::write(&edited, sound.replace(from, to)).unwrap();
            for refusal in [volume.read_settings().unwrap_err(), volume.read_settings_or_copy().unwrap_err()] {
                let VolumeFileError::Differs(difference) = &refusal else { panic!("{refusal}") };
                assert_eq!(difference.field, field);
                let text = refusal.to_string();
                let files = [volume.volume_file(), volume.volume_file_copy()].map(|path| path.display().to_string());
                assert!(files.iter().all(|file| text.contains(file.as_str())), "{text}");
                assert_eq!(text.contains("has directories of 4 shards"), field == "shards", "{text}");
            }
            std::fs::write(&edited, &sound).unwrap();
        }
    }
    let older = sound.replace("format_version = 4", "format_version = 1");
    std::fs::write(volume.volume_file_copy(), older).unwrap();
    assert_eq!(volume.read_settings().unwrap(), settings());
}

/// If the copy is missing, damaged or equally edited, the shard directories decide. Other entries there do not matter,
/// and a missing directory is a lost shard if file and copy agree.
#[test]
fn shard_count_must_match_shard_directories() {
    let (_directory, volume) = formatted();
    let sound = std::fs::read_to_string(volume.volume_file()).unwrap();
    let (file, copy) = (volume.volume_file(), volume.volume_file_copy());
    let read = || volume.read_settings_or_copy().map(|(settings, _)| settings.shards.get());
    let refusal = |of: &StorePath, value: &str| {
        for refused in [volume.read_settings().map(drop), read().map(drop)] {
            let text = refused.unwrap_err().to_string();
            let (of, shards) = (of.display().to_string(), volume.shards().display().to_string());
            let words = [of.as_str(), value, &shards, "directories of 4", "set the file right"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    };
    for shards in ["shards = 1", "shards = 2", "shards = 8", "shards = 4096"] {
        let edited = sound.replace("shards = 4", shards);
        std::fs::write(&file, &edited).unwrap();
        for damaged in [None, Some("not toml")] {
            let _ = std::fs::remove_file(&copy);
            damaged.map_or(Ok(()), |text| std::fs::write(&copy, text)).unwrap();
            refusal(&file, shards);
        }
        // Shard directories may be lost, but there cannot be more than the files state.
        std::fs::write(&copy, &edited).unwrap();
        match shards {
            "shards = 1" | "shards = 2" => refusal(&file, shards),
            _ => assert!(read().is_ok()),
        }
        std::fs::remove_file(&file).unwrap();
        refusal(&copy, shards);
    }
    std::fs::write(&file, &sound).unwrap();
    std::fs::remove_file(&copy).unwrap();
    for lost in [0, 1, 2] {
        std::fs::remove_dir_all(volume.shard(ShardId(lost))).unwrap();
    }
    std::fs::create_dir(volume.shards().join("0009")).unwrap();
    std::fs::write(volume.shards().join("1234"), "no directory").unwrap();
    assert_eq!(read().unwrap(), 4);
    std::fs::remove_dir_all(volume.shard(ShardId(3))).unwrap();
    assert_eq!(read().unwrap(), 4, "nothing is there that says otherwise");
}

/// Simulates a power loss at every point of `work` around a change of the volume file or its copy, on a volume of one
/// shard that `prepare` has created, and passes the remains to `look`.
fn at_every_point(prepare: impl Fn(&VolumeDir), work: impl Fn(&VolumeDir), look: impl Fn(&VolumeDir)) {
    let directory = tempfile::tempdir().unwrap();
    let volume = VolumeDir::new(directory.path());
    prepare(&volume);
    let recording = Recording::begin(directory.path()).unwrap();
    work(&volume);
    let history = recording.history();
    // A format creates hundreds of directories in between.
    let is_near = |point: &usize| history.describe(*point, 3).contains("varve.toml");
    let points: Vec<_> = (0..=history.points()).filter(|point| history.is_change(*point)).filter(is_near).collect();
    assert!((3..100).contains(&points.len()), "{points:?}");
    for point in points {
        let chance = |order| Fate::Chance { order, seed: point as u64 };
        for fate in [Fate::Kept, Fate::Lost, chance(CrashOrder::Journaled), chance(CrashOrder::Anyhow)] {
            let left = tempfile::tempdir().unwrap();
            history.lose_power(point, fate).write_to(left.path()).unwrap();
            let volume = VolumeDir::new(left.path());
            let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(&volume)));
            assert!(looked.is_ok(), "{fate:?} after\n{}", history.describe(point, 10));
        }
    }
}

fn settings_of(id: u8) -> VolumeSettings {
    VolumeSettings { id: VolumeId([id; 16]), shards: ShardCount::new(1).unwrap(), ..settings() }
}

fn make(volume: &VolumeDir, id: u8) {
    volume.format(&settings_of(id), FormatOver::Volume).unwrap();
}

/// If a format over a volume is killed at any point, the directory holds the old volume, the new one, or none, and
/// never a volume file or copy without its tables.
#[test]
fn killed_format_leaves_no_lone_volume_file_copy() {
    let look = |volume: &VolumeDir| match volume.read_settings() {
        Ok(found) => {
            assert!([settings_of(1), settings_of(2)].contains(&found));
            assert!(volume.shard_log(ShardId(0)).is_dir());
            // The copy belongs to the same volume.
            std::fs::remove_file(volume.volume_file()).unwrap();
            match volume.read_settings_or_copy() {
                Ok((copied, _)) => assert_eq!(copied, found),
                Err(error) => {
                    let known = matches!(error, VolumeFileError::NoVolume { .. } | VolumeFileError::Lost(_));
                    assert!(known, "{error}");
                }
            }
        }
        Err(error) => assert!(matches!(error, VolumeFileError::NoVolume { .. }), "{error}"),
    };
    at_every_point(|volume| make(volume, 1), |volume| make(volume, 2), look);
}

/// If an upgrade or a repair is killed at any point, the settings are still readable; a copy never has an older format
/// than its volume.
#[test]
fn volume_file_or_copy_exists_at_every_point() {
    let older = |path: StorePath| {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("format_version = 4", "format_version = 1")).unwrap();
    };
    let raise = |volume: &VolumeDir| volume.raise_format(&volume.lock().unwrap(), &settings_of(1)).unwrap();
    let of_older = |volume: &VolumeDir| {
        make(volume, 1);
        older(volume.volume_file());
        older(volume.volume_file_copy());
    };
    let version = |path: StorePath| {
        let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        table["format_version"].as_integer().unwrap()
    };
    at_every_point(of_older, raise, |volume| {
        assert_eq!(volume.read_settings().unwrap(), settings_of(1));
        assert!(version(volume.volume_file_copy()) >= version(volume.volume_file()));
    });
    let damaged = |volume: &VolumeDir| {
        make(volume, 1);
        std::fs::write(volume.volume_file(), "format_v").unwrap();
    };
    let repair = |volume: &VolumeDir| volume.make_volume_file(&settings_of(1)).unwrap();
    at_every_point(damaged, repair, |volume| assert_eq!(volume.read_settings_or_copy().unwrap().0, settings_of(1)));
}

/// A volume of an older format is upgraded and keeps its settings.
#[test]
fn older_volume_format_is_upgraded() {
    let (_directory, volume) = formatted();
    let now = std::fs::read_to_string(volume.volume_file()).unwrap();
    std::fs::write(volume.volume_file(), now.replace("format_version = 4", "format_version = 1")).unwrap();
    let older = volume.read_settings().unwrap();
    let lock = volume.lock().unwrap();
    for _ in 0..2 {
        volume.raise_format(&lock, &older).unwrap();
        assert_eq!(std::fs::read_to_string(volume.volume_file()).unwrap(), now);
    }
    assert_eq!(volume.read_settings().unwrap(), older);
}

/// formats/volume.md: every later version reads these texts.
#[test]
fn golden_files() {
    let (_directory, volume) = formatted();
    let golden = "# A Varve volume. Written by `varve format`; do not edit.\n\
                  format_version = 4\n\
                  id = \"07070707070707070707070707070707\"\n\
                  name = \"scratch\"\n\
                  shards = 4\n\
                  split_threshold = 8000\n\
                  inline_limit_bytes = 65536\n\
                  sync_interval_ms = 1500\n\
                  owner_uid = ";
    assert_eq!(std::fs::read_to_string(volume.volume_file()).unwrap(), format!("{golden}{}\n", owner()));
    let lock = volume.lock().unwrap();
    let record = ServerRecord {
        host: "node1".into(),
        boot_id: "b".into(),
        pid: 42,
        pid_namespace: None,
        embedded: false,
        store: Some("/srv/volume".into()),
        store_id: Some("fe01-2a".into()),
        mount_point: None,
        after_open_files: false,
        writer: Some("00000000000000ab".into()),
        number: None,
        ack: Some("synced".into()),
        workers: vec![
            WorkerRecord { unix: Some("/run/0".into()), tcp: Some("127.0.0.1:4000".into()) },
            WorkerRecord { unix: None, tcp: Some("127.0.0.1:4001".into()) },
        ],
    };
    volume.write_server_record(&lock, &record).unwrap();
    let golden = "host = \"node1\"\nboot_id = \"b\"\npid = 42\nembedded = false\n\
                  store = \"/srv/volume\"\nstore_id = \"fe01-2a\"\nwriter = \"00000000000000ab\"\nack = \"synced\"\n\n\
                  [[worker]]\nunix = \"/run/0\"\ntcp = \"127.0.0.1:4000\"\n\n\
                  [[worker]]\ntcp = \"127.0.0.1:4001\"\n";
    assert_eq!(std::fs::read_to_string(volume.server_file()).unwrap(), golden);
    assert_eq!(volume.read_server_record().unwrap().as_ref(), Some(&record));
    let mount_point = Some("/mnt".into());
    volume.write_server_record(&lock, &ServerRecord { mount_point, after_open_files: true, ..record }).unwrap();
    let golden = golden.replace("\nwriter", "\nmount_point = \"/mnt\"\nafter_open_files = true\nwriter");
    assert_eq!(std::fs::read_to_string(volume.server_file()).unwrap(), golden);
    // The record as it was before it contained the store's directory.
    let older = "host = \"node1\"\nboot_id = \"b\"\npid = 42\nembedded = true\n";
    std::fs::write(volume.server_file(), older).unwrap();
    let read = volume.read_server_record().unwrap().unwrap();
    assert_eq!((read.store.as_ref(), read.store_id.as_ref(), read.workers.len()), (None, None, 0));
}
