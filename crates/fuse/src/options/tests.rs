//! `-o` takes the options of mount(8), fstab(5) and fuse(8), and suggests the closest option for a misspelled one.

use super::*;

fn parsed(list: &str) -> Result<MountOptions, OptionError> {
    let mut options = MountOptions::new("/store");
    options.parse(list).map(|()| options)
}

#[test]
fn flags_and_values_are_taken_and_later_ones_win() {
    let options =
        parsed("ro,noatime,suid,rw,ro,max_read=131072,threads=3,allow_root,auto_unmount,nopassthrough,direct_io")
            .unwrap();
    assert!(options.read_only() && options.flags.contains(MountFlags::NOATIME));
    assert!(!options.flags.contains(MountFlags::NOSUID));
    assert_eq!((options.max_read, options.threads), (Some(131072), 3));
    assert_eq!(options.access, Access::OwnerAndRoot);
    assert!(options.auto_unmount && !options.passthrough && options.direct_io == Some(true));
    assert_eq!(parsed("direct_io,nodirect_io").unwrap().direct_io, Some(false));
    assert!(!parsed("ro,rw").unwrap().read_only());
}

#[test]
fn fstab_only_options_are_ignored() {
    let plain = MountOptions::new("/store");
    assert_eq!(parsed("defaults,_netdev,nofail,noauto,users,x-systemd.automount,comment=why,,").unwrap(), plain);
}

#[test]
fn options_that_the_kernel_shows_are_ignored() {
    let shown = parsed("ro,relatime,remount,user_id=0,group_id=0,default_permissions,allow_other").unwrap();
    assert!(shown.remount && shown.read_only() && shown.access == Access::Everyone);
}

#[test]
fn unknown_option_is_refused_with_a_suggestion() {
    let unknown = |list, suggestion| {
        assert!(matches!(parsed(list), Err(OptionError::Unknown { suggestion: s, .. }) if s == suggestion), "{list}");
    };
    unknown("alow_other", Some("allow_other"));
    unknown("maxread=4096", Some("max_read="));
    unknown("noatme", Some("noatime"));
    unknown("grandmother", None);
    let text = parsed("noexc").unwrap_err().to_string();
    assert_eq!(text, "unknown mount option \"noexc\"; did you mean \"noexec\"?");
}

#[test]
fn values_out_of_range_are_refused() {
    for list in ["threads=0", "threads=257", "threads=many", "threads", "max_read=1", "max_read", "subtype=ext4"] {
        assert!(matches!(parsed(list), Err(OptionError::Value { .. })), "{list}");
    }
    assert_eq!(parsed("ro=1"), Err(OptionError::NoValue("ro".into())));
    assert_eq!(parsed("remount=now"), Err(OptionError::NoValue("remount".into())));
}

#[test]
fn commas_in_the_store_path_round_trip() {
    let options = parsed(r"fsname=/a\,b\\c,ro").unwrap();
    assert_eq!(options.source, r"/a,b\c");
    assert!(options.read_only());
    assert!(options.helper_list().ends_with(r"fsname=/a\,b\\c"), "{}", options.helper_list());
}
