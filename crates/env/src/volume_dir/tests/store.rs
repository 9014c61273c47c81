//! A volume records the primitive of its store, and a start removes temporary files of the dead alone.

use super::*;
use crate::disk::Exclusive;
use crate::posix_store::PosixStore;

/// The proven primitive is in the volume file unless it is the default, and every rewriting of the file keeps it.
#[test]
fn primitive_of_exclusive_creation_is_recorded() {
    let (_directory, volume) = formatted();
    assert_eq!(volume.exclusive(), Some(Exclusive::Link));
    let linked = std::fs::read_to_string(volume.volume_file()).unwrap();
    assert!(!linked.contains("exclusive_create"), "earlier programs open it: {linked}");
    let renamed = format!("{linked}exclusive_create = \"renameat2\"\n");
    for path in [volume.volume_file(), volume.volume_file_copy()] {
        std::fs::write(path, &renamed).unwrap();
    }
    let lock = volume.lock().unwrap();
    assert_eq!(volume.exclusive(), Some(Exclusive::RenameNoReplace));
    volume.raise_format(&lock, &settings()).unwrap();
    std::fs::remove_file(volume.volume_file()).unwrap();
    assert_eq!(volume.exclusive(), Some(Exclusive::RenameNoReplace), "by the copy");
    volume.make_volume_file(&settings()).unwrap();
    volume.copy_volume_file(&settings()).unwrap();
    for path in [volume.volume_file(), volume.volume_file_copy()] {
        assert_eq!(std::fs::read_to_string(path).unwrap(), renamed);
    }
    assert_eq!(volume.prove_exclusive(&lock, &settings()).unwrap(), Exclusive::Link);
    for path in [volume.volume_file(), volume.volume_file_copy()] {
        assert_eq!(std::fs::read_to_string(path).unwrap(), linked);
    }
    std::fs::write(volume.volume_file(), format!("{linked}exclusive_create = \"symlink\"\n")).unwrap();
    let refusal = volume.read_settings().unwrap_err().to_string();
    assert!(refusal.contains("exclusive_create"), "{refusal}");
}

/// A server uses the recorded primitive, and a store that lacks it is refused with the command that finds another one.
#[test]
fn store_of_a_volume_uses_the_recorded_primitive() {
    let (_directory, volume) = formatted();
    assert_eq!(PosixStore::of_volume(&volume).unwrap().exclusive(), Exclusive::Link);
    let text = std::fs::read_to_string(volume.volume_file()).unwrap();
    std::fs::write(volume.volume_file(), format!("{text}exclusive_create = \"renameat2\"\n")).unwrap();
    assert_eq!(PosixStore::of_volume(&volume).unwrap().exclusive(), Exclusive::RenameNoReplace);
    assert_eq!(hidden_in(&volume.shards()), 0);
}

fn hidden_in(directory: &StorePath) -> usize {
    let entries = directory.read_dir().unwrap().into_iter();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(disk::RESERVED_PREFIX)).count()
}

/// A start removes temporary files of servers that are dead, and leaves those of a server that may still run.
#[test]
fn temporary_files_of_a_running_server_stay() {
    let (_directory, volume) = formatted();
    let lock = volume.lock().unwrap();
    let name = ".~tmp.00000000000000ab.0000000000000001";
    let record = |pid, host: &str, boot_id: Option<&str>| {
        let own = ServerRecord::of_this_process(&volume, false, vec![]).unwrap();
        let boot_id = boot_id.map_or(own.boot_id.clone(), str::to_owned);
        ServerRecord { pid, host: host.to_owned(), boot_id, writer: Some("00000000000000ab".to_owned()), ..own }
    };
    let here = ServerRecord::of_this_process(&volume, false, vec![]).unwrap().host;
    for (record, stays) in [
        (record(std::process::id(), &here, None), true),
        (record(1, "another", Some("another")), true),
        (record(0, &here, None), false),
        (record(1, &here, Some("another")), false),
        (ServerRecord { writer: None, ..record(1, "another", Some("another")) }, false),
    ] {
        volume.write_server_record(&lock, &record).unwrap();
        std::fs::write(volume.inside(name), b"half").unwrap();
        let living = volume.remove_leftovers(&lock).unwrap();
        assert_eq!((living.len(), volume.inside(name).exists()), (usize::from(stays), stays), "{record:?}");
    }
}
