//! Pure rules: whether a process must change its identity, and to which group.

use super::{IdentityError, NOBODY, Owner};

/// Ids that exist in this user namespace: `/proc/self/uid_map` or `gid_map`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// First id inside, and number of ids.
    ranges: Vec<(u32, u32)>,
}

impl IdMap {
    /// Parses lines `inside outside count`; skips others.
    pub fn parse(text: &str) -> IdMap {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(|word| word.parse::<u32>().ok());
            let (inside, _, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
            Some((inside, count))
        };
        IdMap { ranges: text.lines().filter_map(range).collect() }
    }

    pub fn has(&self, id: u32) -> bool {
        self.ranges.iter().any(|(first, count)| id >= *first && id - first < *count)
    }
}

/// The properties of a process that decide.
pub struct Process {
    pub effective_uid: u32,
    /// The process is root and has CAP_SETUID and CAP_SETGID.
    pub may_change: bool,
    pub users: IdMap,
    /// `/proc/sys/fs/overflowuid`.
    pub overflow_uid: u32,
}

/// Whether `process` must change its identity before it works in a store of `owner`.
pub fn must_change(owner: Owner, process: &Process) -> Result<bool, IdentityError> {
    let Owner { uid, .. } = owner;
    let is_nobody = uid == NOBODY || uid == process.overflow_uid || uid == u32::MAX || !process.users.has(uid);
    // Another user may still read the parts of the store that are readable for everyone: the kernel decides that.
    if is_nobody && (process.effective_uid == 0 || process.effective_uid == uid) {
        return Err(IdentityError::Nobody { uid });
    }
    Ok(uid != process.effective_uid && process.may_change)
}

/// A user's entry in the user database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub primary: u32,
    pub groups: Vec<u32>,
}

/// The group that the process takes, or `None` if it must keep its own: no candidate exists in this user namespace.
///
/// A directory's group is no proof of membership: below a set-group-id directory, every user creates directories with
/// its group. So the user database has precedence; a user without an entry gets the directory's group, but never
/// root's.
pub fn group_of(owner: Owner, account: Option<&Account>, groups: &IdMap) -> Option<u32> {
    let candidates = match account {
        Some(account) if account.groups.contains(&owner.gid) => [owner.gid, account.primary, NOBODY],
        Some(account) => [account.primary, NOBODY, NOBODY],
        None if owner.gid == owner.uid => [owner.gid, NOBODY, NOBODY],
        None if owner.gid == 0 => [NOBODY, owner.uid, NOBODY],
        // The directory's group may come from a set-group-id directory above it, so its owner need not be a member. It is
        // used where nothing else exists, as in small user namespaces.
        None => [NOBODY, owner.uid, owner.gid],
    };
    candidates.into_iter().find(|gid| groups.has(*gid))
}

/// Checks that a store whose root directory belongs to `uid` has the owner `expected`.
pub fn check_held(expected: Option<&Owner>, uid: u32) -> Result<(), IdentityError> {
    match expected {
        Some(expected) if expected.uid != uid => Err(IdentityError::Replaced { owner: uid, user: expected.uid }),
        _ => Ok(()),
    }
}
