//! `mount.fuse.varve STORE DIR [-o OPTIONS]`: the name by which mount(8) calls this program for a line of fstab(5) of
//! type `fuse.varve`, if /sbin contains a link of that name to it. The module translates mount(8)'s flags into those of
//! `varve mount`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

const NAMES: [&str; 2] = ["mount.fuse.varve", "mount.varve"];

/// The arguments of `varve mount`, if the program was called by the helper's name.
pub fn translate(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let name = Path::new(arguments.first()?).file_name()?;
    if !NAMES.iter().any(|known| name == OsStr::new(known)) {
        return None;
    }
    let mut words: Vec<OsString> = vec!["varve".into(), "mount".into(), "--by-mount8".into()];
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            // Flags of mount(8): be lenient, do not write mtab, be verbose. None has a meaning here.
            Some("-s" | "-n" | "-v") => {}
            // The type, which is known already.
            Some("-t") => {
                rest.next();
            }
            _ => words.push(argument.clone()),
        }
    }
    Some(words)
}

/// Whether mount(8) requests everything except the mount itself (`-f`).
pub fn is_fake(arguments: &[OsString]) -> bool {
    translate(arguments).is_some() && arguments[1..].iter().any(|argument| argument == "-f")
}

#[cfg(test)]
mod tests {
    use super::{is_fake, translate};
    use std::ffi::OsString;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    /// The helper turns a line of fstab, as mount(8) passes it, into a mount.
    #[test]
    fn flags_of_mount8_are_dropped() {
        let translated = translate(&words("/sbin/mount.fuse.varve /store /mnt -n -o rw,noatime -s -t fuse.varve"));
        assert_eq!(translated, Some(words("varve mount --by-mount8 /store /mnt -o rw,noatime")));
    }

    /// Promise: a fake mount (`-f`) does not mount.
    #[test]
    fn fake_flag_mounts_nothing() {
        assert!(is_fake(&words("/sbin/mount.fuse.varve /store /mnt -f -o rw")));
        assert!(!is_fake(&words("/sbin/mount.fuse.varve /store /mnt -o rw")));
        assert!(!is_fake(&words("/usr/bin/varve mount -f /store /mnt")));
    }

    #[test]
    fn helper_runs_only_under_its_names() {
        assert_eq!(translate(&words("/usr/bin/varve mount /store /mnt")), None);
    }
}
