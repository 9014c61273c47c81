//! The system calls that change the identity, and the read-back.

use super::decide::{self, Account, IdMap, Process};
use super::{IdentityError, Keep, NOBODY, Owner};
use rustix::fs::{Gid, Uid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Capabilities that override file permissions. `CAP_SYS_ADMIN` is not among them: a mount needs it.
const OF_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    // It overrides quotas and reserved blocks.
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Buffer for one entry of the user database; the largest entries, with long comments, have a few hundred bytes.
const ACCOUNT_BYTES: usize = 64 * 1024;
/// `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65536;

/// Whether [`take`] would change this process.
///
/// # Errors
/// If the owner is nobody.
pub fn must_take(owner: Owner) -> Result<bool, IdentityError> {
    decide::must_change(owner, &this_process()?)
}

/// The owner whose rights this process has decided to use, whether or not it had to change its identity.
static EXPECTED: OnceLock<Owner> = OnceLock::new();

/// Records that this process works in stores of `owner` from now on. Later calls change nothing.
pub fn expect(owner: Owner) {
    EXPECTED.get_or_init(|| owner);
}

/// Refuses a store's root directory, already open and owned by `uid`, that replaced the expected owner's directory
/// between [`Owner::of_store`] and its opening. A process without a recorded owner, such as a test, accepts any.
///
/// # Errors
/// If another user owns it.
pub fn check_held(uid: u32) -> Result<(), IdentityError> {
    decide::check_held(EXPECTED.get(), uid)
}

/// Gives this process the rights of a store's `owner`, if it is root and the owner is another user. Returns whether it
/// changed its identity.
///
/// `final_program`: the process starts no program that needs rights of its own (fusermount3), so `no_new_privs` is set
/// too. Only [`Keep::Nothing`] uses it.
///
/// # Errors
/// If the owner is nobody, a second thread exists, or the kernel refuses. The process then has an incomplete identity
/// and must not access the store. It aborts if the kernel reports an identity other than the one that was set.
pub fn take(owner: Owner, keep: Keep, final_program: bool) -> Result<bool, IdentityError> {
    if !must_take(owner)? {
        return Ok(false);
    }
    let uid = owner.uid;
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(|source| IdentityError::Proc { path: "/proc/self/task", source })?
        .count();
    if threads != 1 {
        return Err(IdentityError::Threads { uid, threads });
    }
    let wanted = Wanted::of(owner)?;
    match keep {
        Keep::Nothing => become_owner(&wanted, final_program)?,
        Keep::AllButFiles => take_files(&wanted)?,
    }
    // Independent of fs.suid_dumpable: the memory may hold data that root read before, so the owner must not trace this
    // process.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(refused(uid, "prctl(PR_SET_DUMPABLE)"))?;
    let found = read("/proc/self/status")?;
    if let Err(difference) = wanted.check(keep, &found) {
        eprintln!("varve: the kernel did not set the identity of user {uid}: {difference}; nothing was done");
        std::process::abort();
    }
    Ok(true)
}

/// The identity that a process is to take.
struct Wanted {
    uid: u32,
    gid: u32,
    /// `None`: the user namespace denies setgroups(2), so the groups stay.
    groups: Option<Vec<u32>>,
    /// Effective uid and gid before the change.
    effective: (u32, u32),
}

impl Wanted {
    fn of(owner: Owner) -> Result<Wanted, IdentityError> {
        let map = IdMap::parse(&read("/proc/self/gid_map")?);
        let account = account(owner.uid);
        let own = rustix::process::getegid().as_raw();
        // The file is missing before Linux 3.19, which denies nothing.
        let denied = read("/proc/self/setgroups").is_ok_and(|word| word.trim() == "deny");
        let gid = match decide::group_of(owner, account.as_ref(), &map) {
            Some(gid) => gid,
            // Only a namespace maps so few groups; its root group is a group of the user who created it.
            None if denied => own,
            None => return Err(IdentityError::Group { uid: owner.uid, gid: owner.gid }),
        };
        let mut groups = account.map(|account| account.groups).unwrap_or_default();
        groups.retain(|group| map.has(*group));
        groups.sort_unstable();
        groups.dedup();
        let effective = (rustix::process::geteuid().as_raw(), own);
        Ok(Wanted { uid: owner.uid, gid, groups: (!denied).then_some(groups), effective })
    }

    fn set_groups(&self) -> Result<(), IdentityError> {
        let Some(groups) = &self.groups else { return Ok(()) };
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups).map_err(refused(self.uid, "setgroups"))
    }

    /// Compares the identity with `/proc/self/status`, see proc_pid_status(5).
    fn check(&self, keep: Keep, status: &str) -> Result<(), String> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).ok_or_else(|| format!("/proc/self/status has no {name}"))
        };
        let numbers = |name: &str| -> Result<Vec<u32>, String> {
            Ok(field(name)?.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect())
        };
        let (user, group) = self.effective;
        let (uids, gids) = match keep {
            Keep::Nothing => ([self.uid; 4], [self.gid; 4]),
            Keep::AllButFiles => ([user, user, user, self.uid], [group, group, group, self.gid]),
        };
        same("Uid", &numbers("Uid:")?, &uids)?;
        same("Gid", &numbers("Gid:")?, &gids)?;
        if let Some(groups) = &self.groups {
            let mut found = numbers("Groups:")?;
            found.sort_unstable();
            same("Groups", &found, groups)?;
        }
        let forbidden = match keep {
            Keep::Nothing => u64::MAX,
            Keep::AllButFiles => OF_FILES.bits(),
        };
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            let set = u64::from_str_radix(field(name)?, 16).map_err(|error| format!("{name} {error}"))?;
            if set & forbidden != 0 {
                return Err(format!("{name} {set:x} still has {:x}", set & forbidden));
            }
        }
        Ok(())
    }
}

fn same(name: &str, found: &[u32], wanted: &[u32]) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{name} is {found:?} and not {wanted:?}")) }
}

/// Keeps descriptors that root's shell passed on from programs that this process starts: the owner can trace those.
fn close_on_exec() -> Result<(), IdentityError> {
    /// The first descriptor after standard error.
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call changes flags of descriptors alone and touches no memory.
    match unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => {
            let source = io::Error::last_os_error();
            Err(IdentityError::Refused { uid: file_user(), doing: "close_range", source })
        }
    }
}

fn become_owner(wanted: &Wanted, final_program: bool) -> Result<(), IdentityError> {
    let Wanted { uid, gid, .. } = *wanted;
    wanted.set_groups()?;
    let group = Gid::from_raw(gid);
    set_thread_res_gid(group, group, group).map_err(refused(uid, "setresgid"))?;
    let user = Uid::from_raw(uid);
    set_thread_res_uid(user, user, user).map_err(refused(uid, "setresuid"))?;
    // The last call cleared them, unless the process's securebits say otherwise (capabilities(7)).
    clear_ambient_capability_set().map_err(refused(uid, "prctl(PR_CAP_AMBIENT)"))?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).map_err(refused(uid, "capset"))?;
    close_on_exec()?;
    if final_program {
        set_no_new_privs(true).map_err(refused(uid, "prctl(PR_SET_NO_NEW_PRIVS)"))?;
    }
    Ok(())
}

fn take_files(wanted: &Wanted) -> Result<(), IdentityError> {
    let Wanted { uid, gid, .. } = *wanted;
    wanted.set_groups()?;
    clear_ambient_capability_set().map_err(refused(uid, "prctl(PR_CAP_AMBIENT)"))?;
    set_file_ids(uid, gid);
    for capability in OF_FILES.iter() {
        // Without CAP_SETPCAP the bounding set stays. It affects only programs that this process starts.
        if let Err(error) = remove_capability_from_bounding_set(capability) {
            tracing::debug!("{capability:?} stays in the bounding set: {error}");
        }
    }
    let mut sets = capabilities(None).map_err(refused(uid, "capget"))?;
    sets.effective.remove(OF_FILES);
    sets.permitted.remove(OF_FILES);
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets).map_err(refused(uid, "capset"))
}

/// setfsuid(2) and setfsgid(2) report no error: the caller checks [`file_user`].
fn set_file_ids(uid: u32, gid: u32) {
    // SAFETY: both take a number and change only this thread's credentials.
    unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    }
}

/// The owner of files that this thread creates: its file system uid.
pub fn file_user() -> u32 {
    // SAFETY: no user has this id, so the call changes nothing and returns the current one.
    unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) as u32 }
}

/// The group of files that this thread creates: its file system gid.
pub fn file_group() -> u32 {
    // SAFETY: as in `file_user`.
    unsafe { libc::syscall(libc::SYS_setfsgid, u32::MAX) as u32 }
}

/// Runs `work` with the file system identity of the process's effective user, in this thread only: for paths that
/// belong to root and not to the store's owner (`/dev/fuse`, a mount point, a log). The file capabilities stay dropped.
pub fn as_process_user<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(u32, u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_file_ids(self.0, self.1);
            if file_user() != self.0 || file_group() != self.1 {
                eprintln!("varve: the kernel did not set the identity of user {} again", self.0);
                std::process::abort();
            }
        }
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let before = (file_user(), file_group());
    if before == (uid, gid) {
        return work();
    }
    let _restore = Restore(before.0, before.1);
    set_file_ids(uid, gid);
    work()
}

fn this_process() -> Result<Process, IdentityError> {
    let effective_uid = rustix::process::geteuid().as_raw();
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let may_change = effective_uid == 0 && capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let overflow_uid = read("/proc/sys/fs/overflowuid").ok().and_then(|text| text.trim().parse().ok());
    Ok(Process {
        effective_uid,
        may_change,
        users: IdMap::parse(&read("/proc/self/uid_map")?),
        overflow_uid: overflow_uid.unwrap_or(NOBODY),
    })
}

/// The user database's entry for `uid`; `None` without an entry.
fn account(uid: u32) -> Option<Account> {
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut buffer = vec![0u8; ACCOUNT_BYTES];
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers refer to live values, and the length is that of the buffer.
    let status =
        unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr().cast(), buffer.len(), &mut found) };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the call initialized the entry, because `found` is not null, and its name points into `buffer`.
    let (name, primary) = unsafe {
        let entry = entry.assume_init();
        (CString::from(std::ffi::CStr::from_ptr(entry.pw_name)), entry.pw_gid)
    };
    let mut groups: Vec<libc::gid_t> = vec![0; GROUPS_MAX];
    let mut count = GROUPS_MAX as libc::c_int;
    // SAFETY: the buffer has space for `count` groups.
    if unsafe { libc::getgrouplist(name.as_ptr(), primary, groups.as_mut_ptr(), &mut count) } < 0 {
        return None;
    }
    groups.truncate(usize::try_from(count).unwrap_or(0));
    Some(Account { primary, groups })
}

fn read(path: &'static str) -> Result<String, IdentityError> {
    std::fs::read_to_string(path).map_err(|source| IdentityError::Proc { path, source })
}

fn refused(uid: u32, doing: &'static str) -> impl Fn(rustix::io::Errno) -> IdentityError {
    move |errno| IdentityError::Refused { uid, doing, source: io::Error::from(errno) }
}
