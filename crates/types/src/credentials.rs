//! The user and groups on whose behalf a call is made.

/// A caller's effective user, group and supplementary groups, as the permission rules of POSIX.1-2024 4.7 use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Credentials {
    pub const ROOT_UID: u32 = 0;
    /// Linux's NGROUPS_MAX is 65,536. A list of 1,024 groups already adds 4 KiB to each call.
    pub const GROUPS_MAX: usize = 1024;

    pub fn root() -> Credentials {
        Credentials { uid: 0, gid: 0, groups: Vec::new() }
    }

    pub fn is_root(&self) -> bool {
        self.uid == Self::ROOT_UID
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
