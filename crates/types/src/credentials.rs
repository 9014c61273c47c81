//! The user, groups and capabilities on whose behalf a call is made.

/// A caller's effective user, group and supplementary groups, as the permission rules of POSIX.1-2024 4.7 use them, and
/// its rights beyond them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub authority: Authority,
}

/// The rights of a caller beyond those of its ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authority {
    #[default]
    Ids,
    /// Boxed, because few callers have any.
    Capabilities(Box<CallerCapabilities>),
    /// The kernel has checked all permissions of the call, against attributes that nobody else can have changed. It
    /// also decided which set-id bits a new mode keeps.
    Checked,
}

/// The effective capabilities of a caller whose uid is not 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerCapabilities {
    /// Bit n is the capability with number n.
    pub effective: u64,
    /// `None`: the caller is in the initial user namespace, where capabilities count for every file.
    pub namespace: Option<MappedIds>,
}

/// The ids that a user namespace maps. Capabilities in it count only for files whose owner and group are among them
/// (Linux's `capable_wrt_inode_uidgid`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappedIds {
    pub uids: Vec<IdRange>,
    pub gids: Vec<IdRange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

/// The capabilities that concern files, with their numbers in capabilities(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Chown = 0,
    DacOverride = 1,
    DacReadSearch = 2,
    Fowner = 3,
    Fsetid = 4,
    SysAdmin = 21,
    Mknod = 27,
    Setfcap = 31,
}

impl Credentials {
    pub const ROOT_UID: u32 = 0;
    /// The uid and gid of a caller that the kernel does not name, because it has checked the call itself and the mount
    /// may be id-mapped (FUSE_ALLOW_IDMAP). No user has this id.
    pub const UNKNOWN_ID: u32 = u32::MAX;
    /// Linux's NGROUPS_MAX is 65,536. A list of 1,024 groups already adds 4 KiB to each call.
    pub const GROUPS_MAX: usize = 1024;

    pub fn root() -> Credentials {
        Credentials::user(0, 0, Vec::new())
    }

    /// A user with no rights beyond those of its ids.
    pub fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Credentials {
        Credentials { uid, gid, groups, authority: Authority::Ids }
    }

    pub fn is_root(&self) -> bool {
        self.uid == Self::ROOT_UID
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the kernel has checked the call ([`Authority::Checked`]).
    pub fn is_checked(&self) -> bool {
        self.authority == Authority::Checked
    }

    /// Whether the caller has `capability` in the initial user namespace, as root has.
    pub fn capable(&self, capability: Capability) -> bool {
        match &self.authority {
            _ if self.is_root() => true,
            Authority::Ids => false,
            Authority::Capabilities(own) => own.has(capability) && own.namespace.is_none(),
            Authority::Checked => true,
        }
    }

    /// Whether the set-id bits of a file stay when the caller writes it (Linux's `setattr_should_drop_suidgid`). For a
    /// caller that the kernel does not name, the mount removes the bits before the write, when the kernel demands it. The
    /// ids of other callers decide, also if the kernel has checked the call.
    pub fn keeps_set_id(&self) -> bool {
        let known = !self.is_checked() && self.capable(Capability::Fsetid);
        self.is_root() || self.uid == Self::UNKNOWN_ID || known
    }

    /// The caller with CAP_FSETID, which root has.
    pub fn with_fsetid(mut self) -> Credentials {
        let fsetid = 1 << Capability::Fsetid as u32;
        match &mut self.authority {
            _ if self.uid == Self::ROOT_UID => {}
            Authority::Ids => {
                let own = CallerCapabilities { effective: fsetid, namespace: None };
                self.authority = Authority::Capabilities(Box::new(own));
            }
            Authority::Capabilities(own) => own.effective |= fsetid,
            Authority::Checked => self.uid = Self::UNKNOWN_ID,
        }
        self
    }

    /// Whether the caller has `capability` for a file with this owner and group.
    pub fn capable_for(&self, capability: Capability, uid: u32, gid: u32) -> bool {
        match &self.authority {
            Authority::Capabilities(own) if !self.is_root() => own.has(capability) && own.maps(uid, gid),
            _ => self.capable(capability),
        }
    }
}

impl CallerCapabilities {
    pub fn has(&self, capability: Capability) -> bool {
        self.effective & (1 << capability as u32) != 0
    }

    fn maps(&self, uid: u32, gid: u32) -> bool {
        self.namespace.as_ref().is_none_or(|ids| holds(&ids.uids, uid) && holds(&ids.gids, gid))
    }
}

impl MappedIds {
    /// Linux's UID_GID_MAP_MAX_EXTENTS.
    pub const RANGES_MAX: usize = 340;
}

fn holds(ranges: &[IdRange], id: u32) -> bool {
    ranges.iter().any(|range| id.checked_sub(range.first).is_some_and(|above| above < range.count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup(namespace: Option<MappedIds>) -> Credentials {
        let own = CallerCapabilities { effective: 1 << Capability::DacReadSearch as u32, namespace };
        Credentials { authority: Authority::Capabilities(Box::new(own)), ..Credentials::user(1000, 1000, Vec::new()) }
    }

    #[test]
    fn capability_counts_everywhere_in_the_first_namespace() {
        assert!(backup(None).capable(Capability::DacReadSearch));
        assert!(backup(None).capable_for(Capability::DacReadSearch, 0, 0));
        assert!(!backup(None).capable(Capability::DacOverride));
    }

    #[test]
    fn fsetid_keeps_set_id_bits_in_the_first_namespace() {
        let user = Credentials::user(1000, 1000, Vec::new());
        assert!(Credentials::root().keeps_set_id());
        assert!(!user.keeps_set_id());
        assert!(user.clone().with_fsetid().keeps_set_id());
        assert!(backup(None).with_fsetid().keeps_set_id());
        assert!(!backup(Some(MappedIds::default())).with_fsetid().keeps_set_id());
        let checked = Credentials { authority: Authority::Checked, ..user };
        assert!(!checked.keeps_set_id());
        assert!(checked.with_fsetid().keeps_set_id());
    }

    #[test]
    fn capability_in_a_namespace_needs_mapped_owner_and_group() {
        let range = |first| vec![IdRange { first, count: 10 }];
        let container = backup(Some(MappedIds { uids: range(100), gids: range(200) }));
        assert!(!container.capable(Capability::DacReadSearch));
        for (uid, gid, counts) in [(100, 209, true), (99, 200, false), (110, 200, false), (100, 210, false)] {
            assert_eq!(container.capable_for(Capability::DacReadSearch, uid, gid), counts, "{uid} {gid}");
        }
        let last = vec![IdRange { first: u32::MAX, count: 1 }];
        let at_the_end = backup(Some(MappedIds { uids: last.clone(), gids: last }));
        assert!(at_the_end.capable_for(Capability::DacReadSearch, u32::MAX, u32::MAX));
    }
}
