//! `mount -o remount`: changes the flags of a mount, such as `ro`. The kernel enforces them, so the process of the mount
//! takes no part. The other options of a mount cannot change.

use crate::attach::as_starter;
use crate::detach::MountPoint;
use crate::error::{Error, Result};
use crate::mounts::{MountEntry, flags_of};
use crate::options::MountOptions;
use crate::{unmount, virtual_xattrs};
use rustix::mount::MountFlags;
use std::io;
use std::path::Path;

/// Applies the flags that `options` names to the volume mounted at `target`, whose source `is_source` must accept. A
/// volume that becomes read-only is synced afterwards: everything is then on disk.
///
/// # Errors
/// If no volume is mounted there, or another one; [`Error::Remount`] if the kernel refuses, which it does while files are open for
/// writing (EBUSY), or if the mount was made read-only or with `nosuid` or `nodev`, which then last.
pub fn remount(target: &Path, is_source: impl Fn(&Path) -> bool, options: &MountOptions) -> Result<()> {
    let mount = unmount::find(target)?;
    if !is_source(&mount.source) {
        return Err(Error::OtherSource { target: mount.target, mounted: mount.source });
    }
    let before = flags_of(&mount);
    let MountEntry { target, id, .. } = mount;
    let failed = |source| Error::Remount { target: target.clone(), source };
    let after = flags_after(before, options).map_err(|why| failed(io::Error::other(why)))?;
    let point = MountPoint::open(&target, id).map_err(failed)?;
    if !after.contains(MountFlags::RDONLY) && virtual_xattrs::is_read_only(point.path()).map_err(failed)? {
        return Err(failed(io::Error::other("it was mounted read-only: unmount it and mount it anew")));
    }
    let changed = as_starter(|| rustix::mount::mount_remount(point.path(), after, c"").map_err(io::Error::from));
    changed.map_err(failed)?;
    match after.contains(MountFlags::RDONLY) {
        true => {
            virtual_xattrs::sync(point.path()).map_err(|source| Error::NotDurable { target: target.clone(), source })
        }
        false => Ok(()),
    }
}

/// The flags of a mount that has those of `before`.
fn flags_after(before: MountFlags, options: &MountOptions) -> std::result::Result<MountFlags, &'static str> {
    let mut after = before & !options.named | options.flags & options.named;
    // Another user's volume is mounted with them, so that its content gains no rights.
    if (before & !after).intersects(MountFlags::NOSUID | MountFlags::NODEV) {
        return Err("a remount cannot take back nosuid or nodev: unmount it and mount it anew");
    }
    let atime = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::RELATIME | MountFlags::STRICTATIME;
    if !after.intersects(atime) {
        // Without any of these flags the kernel keeps those that were set.
        after |= MountFlags::RELATIME;
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(before: MountFlags, list: &str) -> std::result::Result<MountFlags, &'static str> {
        let mut options = MountOptions::new("/store");
        options.parse(list).unwrap();
        flags_after(before, &options)
    }

    #[test]
    fn remount_changes_only_flags_that_are_named() {
        let (ro, noatime, noexec) = (MountFlags::RDONLY, MountFlags::NOATIME, MountFlags::NOEXEC);
        assert_eq!(after(noatime, "rw,remount,ro"), Ok(noatime | ro));
        assert_eq!(after(noatime | ro, "remount,rw,noexec"), Ok(noatime | noexec));
        assert_eq!(after(noatime, "remount,atime"), Ok(MountFlags::RELATIME));
    }

    #[test]
    fn remount_keeps_nosuid_and_nodev() {
        let kept = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME;
        assert_eq!(after(kept, "remount,ro"), Ok(kept | MountFlags::RDONLY));
        assert!(after(kept, "remount,suid").is_err());
        assert!(after(kept, "remount,rw,dev").is_err());
    }
}
