use super::*;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

fn scene() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("real/below")).unwrap();
    symlink("real", base.join("link")).unwrap();
    symlink(base.join("link/below"), base.join("absolute")).unwrap();
    symlink("loop", base.join("loop")).unwrap();
    (directory, base)
}

#[test]
fn trusted_links_are_followed_everywhere() {
    let (_directory, base) = scene();
    for (path, expected) in [
        ("real/below", "real/below"),
        ("link/below", "real/below"),
        ("absolute", "real/below"),
        ("absolute/../below/.", "real/below"),
        ("link/absent/more", "real/absent/more"),
        ("absent", "absent"),
    ] {
        assert_eq!(resolve_if(&base.join(path), |_| true).unwrap(), base.join(expected), "{path}");
    }
    let looping = resolve_if(&base.join("loop"), |_| true);
    assert!(matches!(looping, Err(TrustedPathError::Io(error)) if error.raw_os_error() == Some(libc::ELOOP)));
}

#[test]
fn links_of_others_are_refused_at_every_component() {
    let (_directory, base) = scene();
    let own = base.metadata().unwrap().uid();
    for path in ["link", "link/below", "absolute", "link/absent"] {
        let refused = resolve_if(&base.join(path), |owner| owner != own);
        let Err(TrustedPathError::Link { link, owner }) = refused else { panic!("{path}: {refused:?}") };
        assert_eq!((link.parent(), owner), (Some(base.as_path()), own), "{path}");
    }
    assert_eq!(resolve_if(&base.join("real/below"), |owner| owner != own).unwrap(), base.join("real/below"));
}

/// Promise: what replaces the directory while a file is written gets nothing.
#[test]
fn place_stays_in_its_directory_when_the_path_changes() {
    let (_directory, base) = scene();
    let place = TrustedPlace::find(&base.join("link/file")).unwrap();
    assert_eq!(place.file_type().unwrap(), None);
    let mut file = place.create_beside(OsStr::new("unfinished"), 0o600).unwrap();
    file.write_all(b"content").unwrap();
    std::fs::rename(base.join("real"), base.join("moved")).unwrap();
    std::fs::create_dir(base.join("elsewhere")).unwrap();
    symlink("elsewhere", base.join("real")).unwrap();
    place.publish(OsStr::new("unfinished")).unwrap();
    assert_eq!(std::fs::read(base.join("moved/file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(base.join("elsewhere")).unwrap().count(), 0);
    assert_eq!(place.file_type().unwrap(), Some(FileType::RegularFile));

    std::fs::remove_file(base.join("moved/file")).unwrap();
    symlink(base.join("elsewhere/target"), base.join("moved/file")).unwrap();
    assert_eq!(place.open().unwrap_err().raw_os_error(), Some(libc::ELOOP), "a link that came later");
    assert!(TrustedPlace::find(Path::new("/")).is_err());
}
