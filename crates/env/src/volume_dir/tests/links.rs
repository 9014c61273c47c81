//! Links in a volume, which its owner may have created.

use super::*;
use std::os::unix::fs::{chown, lchown, symlink};

const USER: u32 = 47111;
const OTHER: u32 = 47112;

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: it makes files of other users, which takes root");
    }
    is_root
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A volume of [`USER`], and a directory of that user beside it.
fn of_user() -> (tempfile::TempDir, VolumeDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let volume = VolumeDir::new(directory.path().join("volume"));
    let settings = VolumeSettings { owner_uid: USER, ..settings() };
    volume.format(&settings, FormatOver::Nothing).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    mode(&elsewhere, 0o755);
    give(directory.path());
    (directory, volume, elsewhere)
}

fn give(path: &Path) {
    lchown(path, Some(USER), Some(USER)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        std::fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

/// Promise: `data` and `shards` may be links of the owner or of root to a directory of theirs that other users cannot
/// write.
#[test]
fn data_may_be_a_link_to_a_directory_of_its_owner() {
    if !is_root() {
        return;
    }
    let (_directory, volume, elsewhere) = of_user();
    std::fs::remove_dir_all(volume.data()).unwrap();
    symlink(&elsewhere, volume.data()).unwrap();
    for (of_link, of_target, followed) in [
        (USER, USER, true),
        (0, USER, true),
        (0, 0, true),
        (USER, 0, true),
        (OTHER, USER, false),
        (USER, OTHER, false),
        (0, OTHER, false),
    ] {
        lchown(volume.data(), Some(of_link), Some(of_link)).unwrap();
        chown(&elsewhere, Some(of_target), Some(of_target)).unwrap();
        let held = volume.clone().held();
        let case = format!("a link of {of_link} to a directory of {of_target}");
        assert_eq!(held.is_ok(), followed, "{case}: {held:?}");
        match held {
            Ok(held) => {
                let file = held.backing_file(InodeId(2));
                disk::create_directories(&file.parent()).unwrap();
                disk::replace(&file, b"content").unwrap();
                assert_eq!(std::fs::read(elsewhere.join("02/0000000000000002")).unwrap(), b"content");
            }
            Err(refused) => {
                let refused = refused.to_string();
                assert!(refused.contains("is a link to") && refused.contains(&format!("user {OTHER}")), "{refused}");
            }
        }
    }
    lchown(volume.data(), Some(USER), Some(USER)).unwrap();
    chown(&elsewhere, Some(USER), Some(USER)).unwrap();
    for bits in [0o777, 0o775, 0o757] {
        mode(&elsewhere, bits);
        let refused = volume.clone().held().unwrap_err().to_string();
        assert!(refused.contains("chmod go-w"), "{refused}");
    }
}

/// Promise: a link in place of any other directory or file of a volume is not followed, and its target stays as it is.
#[test]
fn links_elsewhere_are_not_followed() {
    let names = ["servers", "damaged", "shards/0001", "shards/0001/log", "data/02"];
    for name in names {
        let (directory, volume) = formatted();
        let elsewhere = directory.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        mode(&elsewhere, 0o755);
        let place = volume.root().join(name);
        let _ = std::fs::remove_dir_all(&place);
        symlink(&elsewhere, &place).unwrap();
        let refused = match name {
            "servers" => volume.clone().held().map(drop).unwrap_err(),
            "damaged" => volume.close_to_others().unwrap_err(),
            "data/02" => disk::replace(&volume.backing_file(InodeId(2)), b"planted").unwrap_err(),
            "shards/0001" => disk::replace(&volume.shard_marks(ShardId(1))[0], b"planted").unwrap_err(),
            _ => disk::replace(&volume.shard_log(ShardId(1)).join("planted"), b"planted").unwrap_err(),
        };
        assert!(refused.to_string().contains("symlink"), "{name}: {refused}");
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "{name}");
        assert_eq!(elsewhere.metadata().unwrap().permissions().mode() & 0o777, 0o755, "{name}");
    }
}

/// Promise: no file of a volume may be a link, a FIFO, a socket or a device; the open does not block, and the error
/// names the file.
#[test]
fn files_of_a_volume_are_regular() {
    type Read = fn(&VolumeDir) -> io::Result<()>;
    let reads: [(&str, Read); 5] = [
        ("varve.toml", |volume| volume.read_settings().map(drop).map_err(io::Error::other)),
        ("key", |volume| volume.read_key().map(drop)),
        ("lock", |volume| volume.lock().map(drop).map_err(io::Error::other)),
        ("servers/current.toml", |volume| volume.read_server_record().map(drop)),
        ("reserve", |volume| {
            let reserve = crate::reserve::Reserve::of(volume.reserve())?;
            reserve.tend()
        }),
    ];
    for (name, read) in reads {
        for kind in ["symlink", "dangling", "FIFO", "socket", "device"] {
            let (directory, volume) = formatted();
            let (place, victim) = (volume.root().join(name), directory.path().join("victim"));
            std::fs::write(&victim, [7; 100]).unwrap();
            let _ = std::fs::remove_file(&place);
            match kind {
                "symlink" => symlink(&victim, &place).unwrap(),
                "dangling" => symlink(directory.path().join("made"), &place).unwrap(),
                "socket" => drop(std::os::unix::net::UnixListener::bind(&place).unwrap()),
                "FIFO" => make_node(&place, rustix::fs::FileType::Fifo),
                _ if is_root() => make_node(&place, rustix::fs::FileType::CharacterDevice),
                _ => continue,
            }
            let refused = read(&volume).expect_err(&format!("{name} is a {kind}")).to_string();
            let shown = if kind == "dangling" { "symlink" } else { kind };
            assert!(refused.contains(shown) && refused.contains(name), "{name} is a {kind}: {refused}");
            assert_eq!(std::fs::read(&victim).unwrap(), [7; 100], "{name} is a {kind}");
            assert!(!directory.path().join("made").exists(), "{name} is a {kind}");
        }
    }
}

fn make_node(place: &Path, kind: rustix::fs::FileType) {
    // The null device, if the node is a device.
    let device = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(rustix::fs::CWD, place, kind, rustix::fs::Mode::from_raw_mode(0o644), device).unwrap();
}

/// Promise: an operation that removes a volume removes a link, and not its target.
#[test]
fn format_does_not_follow_links() {
    let (directory, volume) = formatted();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("kept"), b"kept").unwrap();
    disk::remove_tree(&volume.servers()).unwrap();
    symlink(&elsewhere, volume.servers()).unwrap();
    symlink(&elsewhere, volume.data().join("planted")).unwrap();
    volume.format(&settings(), FormatOver::Volume).unwrap();
    assert_eq!(std::fs::read(elsewhere.join("kept")).unwrap(), b"kept");
    assert!(volume.servers().symlink_metadata().unwrap().is_dir());
}
