//! Links in a volume, which its owner may have made.

use super::*;

/// Promise: where a directory of a volume is a link of some user, nothing is done to the directory of another one that it leads to; root's
/// links, and those to one's own, are followed.
#[test]
fn links_to_what_is_anothers_are_not_followed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (directory, volume) = formatted();
    let elsewhere = directory.path().join("elsewhere");
    let mode = || elsewhere.metadata().unwrap().permissions().mode() & 0o777;
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, volume.damaged()).unwrap();
    std::os::unix::fs::lchown(volume.damaged(), Some(4711), Some(4711)).unwrap();
    let refused = volume.close_to_others().unwrap_err().to_string();
    assert!(refused.contains("a link of user 4711"), "{refused}");
    assert_eq!(mode(), 0o755);
    std::os::unix::fs::chown(&elsewhere, Some(4711), Some(4711)).unwrap();
    volume.close_to_others().unwrap();
    assert_eq!(mode(), 0o700);
    std::fs::set_permissions(&elsewhere, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::lchown(volume.damaged(), Some(0), Some(0)).unwrap();
    volume.close_to_others().unwrap();
    assert_eq!(mode(), 0o700);
}

/// Promise: what takes a volume away takes a link away, and not what it leads to.
#[test]
fn a_format_over_a_volume_leaves_what_links_lead_to() {
    let (directory, volume) = formatted();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("kept"), b"kept").unwrap();
    disk::remove_tree(&volume.servers()).unwrap();
    std::os::unix::fs::symlink(&elsewhere, volume.servers()).unwrap();
    volume.format(&settings(), FormatOver::Volume).unwrap();
    assert_eq!(std::fs::read(elsewhere.join("kept")).unwrap(), b"kept");
    assert!(volume.servers().symlink_metadata().unwrap().is_dir());
}
