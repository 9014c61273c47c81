//! Mount options, as `-o` takes them, with the names of mount(8), fuse(8) and fstab(5).

use rustix::mount::MountFlags;
use std::fmt::Write;

/// Users who may use the mount. The kernel refuses everyone else before it makes a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The user who mounted, and nobody else (not even root).
    #[default]
    Owner,
    /// The user who mounted, and root.
    OwnerAndRoot,
    Everyone,
}

/// How a volume is mounted. [`MountOptions::new`] has the defaults; [`MountOptions::parse`] applies a `-o` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The device that the mount table shows: the store.
    pub source: String,
    /// `ro`, `nosuid`, `noatime` and the like, as mount(2) takes them.
    pub flags: MountFlags,
    /// Those of `flags` that were named, set or cleared.
    pub named: MountFlags,
    /// Change the flags of the mount that is there ([`crate::remount`]).
    pub remount: bool,
    pub access: Access,
    /// fusermount3 unmounts when this process ends for any reason.
    pub auto_unmount: bool,
    /// Maximum bytes of one read request; `None` uses the kernel's default.
    pub max_read: Option<u32>,
    /// Inode numbers of 32 bits as far as possible, for 32-bit programs.
    pub inode32: bool,
    /// Threads that serve requests.
    pub threads: usize,
    /// Whether the kernel may read and write backing files itself, where it supports this.
    pub passthrough: bool,
    /// Whether I/O on large files that are not passed through bypasses the mount's page cache, where the kernel keeps
    /// the cache coherent with such I/O. `None`: the client chooses by speed and safety
    /// ([`varve_client::ClientConfig`]).
    pub direct_io: Option<bool>,
}

/// A thread waits while its call is with a server or the store. With fewer threads, some calls to a server that hangs would
/// delay every other call.
const THREADS_MIN: usize = 8;
/// By default. Each thread has a connection to each worker that it calls, and servers limit connections.
const THREADS_DEFAULT_MAX: usize = 32;
/// More threads only add memory (each has a request buffer) and contention on /dev/fuse.
pub const THREADS_MAX: usize = 256;
/// The kernel never reads less than a page.
const MAX_READ_MIN: u32 = 4096;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown mount option {name:?}{}", suggestion.map(|s| format!("; did you mean {s:?}?")).unwrap_or_default())]
    Unknown { name: String, suggestion: Option<&'static str> },
    #[error("mount option {name}={value:?}: {expected}")]
    Value { name: &'static str, value: String, expected: &'static str },
    #[error("mount option {0:?} takes no value")]
    NoValue(String),
}

/// Options that set or clear a flag of mount(2).
pub(crate) const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
];

/// Options that fstab(5) and mount(8) pass on although they are meant for mount(8) alone, or that describe what always
/// holds (`default_permissions`: the kernel checks every access against the attributes it has).
const ACCEPTED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "nofail",
    "loud",
    "silent",
    "lazytime",
    "nolazytime",
    "default_permissions",
];

/// Options that the kernel shows for a running mount. For a remount, mount(8) passes them on.
const IN_KERNEL_TABLE: &[&str] = &["user_id", "group_id", "rootmode", "blksize"];

const OWN: &[&str] = &[
    "remount",
    "allow_other",
    "allow_root",
    "auto_unmount",
    "inode32",
    "inode64",
    "passthrough",
    "nopassthrough",
    "direct_io",
    "nodirect_io",
    "fsname=",
    "subtype=",
    "max_read=",
    "threads=",
];

/// Whether a remount can change, or ignore, what `option` says: `name` or `name=value`.
pub fn is_remountable(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    FLAGS.iter().any(|(flag, _, _)| *flag == option)
        || ["", "remount", "comment"].contains(&name)
        || ACCEPTED.contains(&name)
        || IN_KERNEL_TABLE.contains(&name)
        || name.starts_with("x-")
}

impl MountOptions {
    /// The defaults. Root mounts for everyone, with set-user-id programs and devices, as mount(8) does. Another user
    /// mounts for themselves alone, without either, because fusermount3 allows nothing else.
    pub fn new(source: impl Into<String>) -> MountOptions {
        let root = rustix::process::geteuid().is_root();
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        MountOptions {
            source: source.into(),
            flags: if root { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV },
            named: MountFlags::empty(),
            remount: false,
            access: if root { Access::Everyone } else { Access::Owner },
            auto_unmount: false,
            max_read: None,
            inode32: false,
            threads: (2 * processors).clamp(THREADS_MIN, THREADS_DEFAULT_MAX),
            passthrough: true,
            direct_io: None,
        }
    }

    pub fn read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// Applies a list of options as after `-o`: separated by commas; `\,` is a comma inside a value.
    pub fn parse(&mut self, list: &str) -> Result<(), OptionError> {
        split(list).iter().try_for_each(|option| self.parse_one(option))
    }

    /// Applies one option, `name` or `name=value`.
    pub fn parse_one(&mut self, option: &str) -> Result<(), OptionError> {
        if let Some((_, flag, on)) = FLAGS.iter().find(|(name, _, _)| *name == option) {
            self.flags.set(*flag, *on);
            self.named |= *flag;
            return Ok(());
        }
        if option.is_empty() || ACCEPTED.contains(&option) || option.starts_with("x-") {
            return Ok(());
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("comment", _) => {}
            (name, Some(_)) if IN_KERNEL_TABLE.contains(&name) => {}
            ("remount", None) => self.remount = true,
            ("inode32", None) => self.inode32 = true,
            ("inode64", None) => self.inode32 = false,
            ("allow_other", None) => self.access = Access::Everyone,
            ("allow_root", None) => self.access = Access::OwnerAndRoot,
            ("auto_unmount", None) => self.auto_unmount = true,
            ("passthrough", None) => self.passthrough = true,
            ("nopassthrough", None) => self.passthrough = false,
            ("direct_io", None) => self.direct_io = Some(true),
            ("nodirect_io", None) => self.direct_io = Some(false),
            ("fsname", Some(value)) => self.source = value.to_owned(),
            ("subtype", Some("varve")) => {}
            ("subtype", Some(value)) => return Err(wrong("subtype", value, "is always \"varve\"")),
            ("max_read", Some(value)) => self.max_read = Some(max_read(value)?),
            ("threads", Some(value)) => self.threads = threads(value)?,
            ("fsname" | "subtype" | "max_read" | "threads", None) => {
                let name = OWN.iter().find(|own| own.trim_end_matches('=') == name).expect("listed in OWN");
                return Err(wrong(name.trim_end_matches('='), "", "needs a value"));
            }
            (name, Some(_)) if OWN.contains(&name) || FLAGS.iter().any(|(flag, _, _)| *flag == name) => {
                return Err(OptionError::NoValue(name.to_owned()));
            }
            (name, _) => return Err(OptionError::Unknown { name: name.to_owned(), suggestion: nearest(name) }),
        }
        Ok(())
    }

    /// The options for the kernel's file system: the last argument of mount(2), without the parts that name the device.
    pub(crate) fn kernel_data(&self) -> String {
        let mut data = String::from("default_permissions");
        if self.access != Access::Owner {
            // The kernel has no `allow_root`: it admits everyone, and the session refuses the others.
            data.push_str(",allow_other");
        }
        if let Some(bytes) = self.max_read {
            write!(data, ",max_read={bytes}").expect("writing to a string");
        }
        data
    }

    /// All options as fusermount3 takes them after `-o`.
    pub(crate) fn helper_list(&self) -> String {
        let mut list = self.kernel_data();
        for (name, flag, on) in FLAGS {
            // fusermount3 accepts the options for relative and strict access times on no file system.
            let known = !flag.intersects(MountFlags::RELATIME | MountFlags::STRICTATIME | MountFlags::NODIRATIME);
            if known && *on && self.flags.contains(*flag) {
                write!(list, ",{name}").expect("writing to a string");
            }
        }
        if self.auto_unmount {
            list.push_str(",auto_unmount");
        }
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        write!(list, ",subtype=varve,fsname={source}").expect("writing to a string");
        list
    }
}

fn wrong(name: &'static str, value: &str, expected: &'static str) -> OptionError {
    OptionError::Value { name, value: value.to_owned(), expected }
}

fn max_read(value: &str) -> Result<u32, OptionError> {
    value
        .parse()
        .ok()
        .filter(|bytes| *bytes >= MAX_READ_MIN)
        .ok_or_else(|| wrong("max_read", value, "give a number of bytes, 4096 or more"))
}

fn threads(value: &str) -> Result<usize, OptionError> {
    value
        .parse()
        .ok()
        .filter(|threads| (1..=THREADS_MAX).contains(threads))
        .ok_or_else(|| wrong("threads", value, "give a number from 1 to 256"))
}

fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut characters = list.chars();
    while let Some(character) = characters.next() {
        let last = options.last_mut().expect("never empty");
        match character {
            ',' => options.push(String::new()),
            '\\' => match characters.next() {
                Some(escaped @ (',' | '\\')) => last.push(escaped),
                Some(other) => last.extend(['\\', other]),
                None => last.push('\\'),
            },
            other => last.push(other),
        }
    }
    options
}

/// The known option that is closest to `name`, if a typing error could explain the difference.
fn nearest(name: &str) -> Option<&'static str> {
    let known = FLAGS.iter().map(|(flag, _, _)| *flag).chain(ACCEPTED.iter().copied()).chain(OWN.iter().copied());
    let allowed = name.len().div_ceil(3);
    known
        .map(|candidate| (strsim::levenshtein(name, candidate.trim_end_matches('=')), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests;
