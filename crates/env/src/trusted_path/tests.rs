use super::*;
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
