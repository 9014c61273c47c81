//! Tests with files of this user. Those with other users need root: `crates/cli/tests/trust_environment`.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn file(directory: &tempfile::TempDir, mode: u32) -> PathBuf {
    let path = directory.path().join("file");
    std::fs::write(&path, "text").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn text_that_others_can_write_is_refused() {
    for mode in [0o620, 0o602, 0o666] {
        let directory = scratch();
        let refused = read_text(&file(&directory, mode)).unwrap_err();
        assert!(matches!(&refused, PrivateFileError::Writable { mode: found, .. } if *found == mode), "{refused}");
    }
    let directory = scratch();
    assert_eq!(read_text(&file(&directory, 0o644)).unwrap(), "text");
}

#[test]
fn own_links_to_text_are_followed() {
    let directory = scratch();
    file(&directory, 0o600);
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    symlink("second", &first).unwrap();
    symlink(directory.path().join("file"), &second).unwrap();
    assert_eq!(read_text(&first).unwrap(), "text");
    symlink("circle", directory.path().join("circle")).unwrap();
    assert!(read_text(&directory.path().join("circle")).is_err());
}

#[test]
fn only_regular_files_are_text() {
    let directory = scratch();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for path in [fifo.as_path(), directory.path(), Path::new("/dev/null")] {
        assert!(matches!(read_text(path), Err(PrivateFileError::Kind { .. })), "{}", path.display());
    }
}

#[test]
fn text_has_a_limit() {
    let directory = scratch();
    let path = directory.path().join("long");
    std::fs::File::create(&path).unwrap().set_len(TEXT_BYTES_MAX + 1).unwrap();
    assert!(matches!(read_text(&path), Err(PrivateFileError::Long { .. })));
}

#[test]
fn log_is_made_closed_and_follows_no_link() {
    let directory = scratch();
    let path = directory.path().join("log");
    open_log(&path).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o777, LOG_MODE);
    open_log(&path).unwrap();
    let (link, dangling) = (directory.path().join("link"), directory.path().join("dangling"));
    symlink(&path, &link).unwrap();
    symlink("made", &dangling).unwrap();
    for path in [link, dangling] {
        assert!(matches!(open_log(&path), Err(PrivateFileError::Link { .. })), "{}", path.display());
    }
    assert!(!directory.path().join("made").exists());
    assert!(matches!(open_log(&file(&directory, 0o666)), Err(PrivateFileError::Writable { .. })));
    open_log(Path::new("/dev/null")).unwrap();
}

#[test]
fn directories_have_their_modes() {
    let directory = scratch();
    let nested = directory.path().join("a/b");
    make_directories(&nested, 0o700).unwrap();
    make_directories(&nested, 0o755).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    assert_eq!((mode(&nested), mode(nested.parent().unwrap())), (0o700, 0o755));
    assert_eq!(make_directory(&nested, 0o700).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
}

#[test]
fn open_directory_without_sticky_bit_is_refused() {
    let directory = scratch();
    for (mode, is_refused) in [(0o755, false), (0o1777, false), (0o777, true), (0o775, true)] {
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(check_directory(directory.path()).is_err(), is_refused, "{mode:o}");
    }
}
