//! Existing content in the directory of a format.

use super::*;

/// `varve format` refuses a non-empty directory and an existing volume, unless the caller allows it.
#[test]
fn format_refuses_existing_files() {
    let (_directory, volume) = formatted();
    for over in [FormatOver::Nothing, FormatOver::OtherFiles] {
        assert!(matches!(volume.format(&settings(), over), Err(VolumeFormatError::VolumeExists { .. })));
    }
    let key = volume.read_key().unwrap();
    volume.format(&settings(), FormatOver::Volume).unwrap();
    assert_ne!(volume.read_key().unwrap(), key);

    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("mine"), b"").unwrap();
    let volume = VolumeDir::new(other.path());
    assert!(matches!(volume.format(&settings(), FormatOver::Nothing), Err(VolumeFormatError::NotEmpty { .. })));
    volume.format(&settings(), FormatOver::OtherFiles).unwrap();
    assert!(other.path().join("mine").exists());
}

/// A foreign file with a name that a volume needs is neither taken for a volume's nor removed, whether the format fails
/// or not.
#[test]
fn format_recognises_only_its_own_leftovers() {
    for (name, is_directory) in
        [("shards", true), ("servers", true), ("key", false), ("reserve", false), ("lock", false), ("lock", true)]
    {
        let directory = tempfile::tempdir().unwrap();
        let (mine, volume) = (directory.path().join(name), VolumeDir::new(directory.path()));
        let content = if is_directory { mine.join("thesis") } else { mine.clone() };
        std::fs::create_dir_all(content.parent().unwrap()).unwrap();
        std::fs::write(&content, b"mine").unwrap();
        for over in [FormatOver::OtherFiles, FormatOver::Volume] {
            let failing = || Err(std::io::ErrorKind::StorageFull.into());
            let refused = volume.format_with((&settings(), AckLevel::default()), over, failing).unwrap_err();
            assert!(matches!(&refused, VolumeFormatError::Taken { path } if *path == mine), "{refused}");
            assert_eq!(std::fs::read(&content).unwrap(), b"mine");
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        }
    }
    // The state that a format leaves if it is killed immediately after its first file.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("lock"), b"").unwrap();
    VolumeDir::new(directory.path()).format(&settings(), FormatOver::OtherFiles).unwrap();
}

/// A volume whose `data` is a link to another disk can be formatted over, and the link stays.
#[test]
fn linked_data_directory_is_emptied_and_kept() {
    let (_directory, volume) = formatted();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::remove_dir_all(volume.data()).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), volume.data()).unwrap();
    std::fs::write(volume.data().join("old"), b"").unwrap();
    volume.format(&settings(), FormatOver::Volume).unwrap();
    assert!(volume.data().path().is_symlink() && elsewhere.path().join("ff").is_dir());
    assert!(!elsewhere.path().join("old").exists() && volume.read_settings().is_ok());
}
