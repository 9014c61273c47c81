//! The credentials of a request's caller.
//!
//! A request carries the file system uid and gid of its thread, but neither its supplementary groups nor its
//! capabilities. The frontend reads those from `/proc/<pid>` while the thread waits in its system call, so they are
//! those at the time of the call. [`Callers`] says what a mount needs to know. Groups cost about a quarter of a request.
//! The frontend skips them where they cannot matter: root needs none, and calls on an open handle, as well as stat, need
//! no permission. It reads capabilities only after the server has refused a call, or where the server would not refuse
//! it, but answer differently.

mod process;

use fuser::Request;
use process::Process;
use varve_client::Result;
use varve_types::{Authority, CallerCapabilities, Capability, Credentials, Errno, IdRange, MappedIds};

/// The id of users that a namespace does not map.
const OVERFLOW_ID: u32 = 65534;

/// How the calls of a mount are authorised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// The server checks the ids of the caller. The volume or the mount is not root's, so a capability, which root
    /// gave, says nothing about the volume. Only the owner of the volume has capabilities, for the owner's own files:
    /// the kernel has checked that the caller has them, or has the credentials of an overlay's mounter, which `/proc`
    /// does not show, and the owner could change the modes of these files anyway.
    Ids { owner: u32 },
    /// root's mount of a volume of root's, beside a server. The server checks the ids of the caller, and its
    /// capabilities if the ids do not suffice. It does not rely on the kernel's check, because the attributes that the
    /// kernel has of an open file can be outdated: another mount may have changed the file's owner.
    Capabilities,
    /// root's mount of a volume of root's that serves the volume itself. No other client changes attributes, so the
    /// check of the kernel (`default_permissions`) is final.
    Kernel,
}

impl Callers {
    /// `trusted`: mount and volume are root's. `alone`: the mount serves the volume itself. `owner`: of the volume.
    pub fn of_mount(trusted: bool, alone: bool, owner: u32) -> Callers {
        match (trusted, alone) {
            (false, _) => Callers::Ids { owner },
            (true, false) => Callers::Capabilities,
            (true, true) => Callers::Kernel,
        }
    }

    /// Credentials for calls whose permissions are checked.
    pub fn caller(self, request: &Request) -> Credentials {
        match self {
            Callers::Kernel => Credentials { authority: Authority::Checked, ..identity(request) },
            Callers::Ids { .. } | Callers::Capabilities => self.identified(request),
        }
    }

    /// [`Callers::caller`] for calls that depend on the ids of the caller even if the kernel has checked them.
    pub fn identified(self, request: &Request) -> Credentials {
        let known = request.uid() != Credentials::UNKNOWN_ID;
        let mut caller = match known && request.uid() == Credentials::ROOT_UID {
            true => identity(request),
            false => match (Process::of(request.pid()).and_then(|process| process.ids()), known) {
                (Some(ids), true) => Credentials { groups: ids.groups, ..identity(request) },
                (Some(ids), false) => ids,
                (None, true) => identity(request),
                // Nobody, so that its writes and changes of owner remove set-id bits.
                (None, false) => Credentials::user(OVERFLOW_ID, OVERFLOW_ID, Vec::new()),
            },
        };
        if self == Callers::Kernel {
            caller.authority = Authority::Checked;
        }
        caller
    }

    /// [`Callers::caller`] with its capabilities, for calls that the server does not refuse without them, but answers
    /// differently.
    pub fn with_capabilities(self, request: &Request) -> Credentials {
        let caller = self.caller(request);
        self.capable(request.pid(), &caller).unwrap_or(caller)
    }

    /// [`Callers::identified`] for a change of size, which takes set-id bits unless the caller has CAP_FSETID.
    pub fn resizer(self, request: &Request) -> Credentials {
        if self != Callers::Kernel {
            return self.with_capabilities(request);
        }
        let caller = self.identified(request);
        let capabilities = Process::of(request.pid()).and_then(|process| process.capabilities());
        let keeps = capabilities.is_some_and(|own| own.namespace.is_none() && own.has(Capability::Fsetid));
        if keeps { caller.with_fsetid() } else { caller }
    }

    /// The credentials to repeat a call with that the server refused, if the caller has capabilities.
    pub fn after_refusal<T>(self, pid: u32, caller: &Credentials, result: &Result<T>) -> Option<Credentials> {
        match result {
            Err(failure) if matches!(failure.errno, Errno::EACCES | Errno::EPERM) => self.capable(pid, caller),
            _ => None,
        }
    }

    /// Runs `call` for the caller of `request`, and again with its capabilities if the server refuses it.
    pub fn run<T>(self, request: &Request, call: impl Fn(&Credentials) -> Result<T>) -> Result<T> {
        let caller = self.caller(request);
        let result = call(&caller);
        match self.after_refusal(request.pid(), &caller, &result) {
            Some(capable) => call(&capable),
            None => result,
        }
    }

    fn capable(self, pid: u32, caller: &Credentials) -> Option<Credentials> {
        if caller.is_root() || caller.authority != Authority::Ids {
            return None;
        }
        let capabilities = match self {
            Callers::Kernel => return None,
            Callers::Capabilities => Process::of(pid)?.capabilities()?,
            Callers::Ids { owner } if caller.uid == owner => of_owner(owner),
            Callers::Ids { .. } => return None,
        };
        Some(Credentials { authority: Authority::Capabilities(Box::new(capabilities)), ..caller.clone() })
    }
}

/// The rights of a volume's owner over the owner's files, whatever their modes.
fn of_owner(owner: u32) -> CallerCapabilities {
    let of_files = [Capability::DacOverride, Capability::DacReadSearch, Capability::Fowner];
    let effective = of_files.into_iter().fold(0, |bits, capability| bits | 1 << capability as u32);
    let own = vec![IdRange { first: owner, count: 1 }];
    let any = vec![IdRange { first: 0, count: u32::MAX }];
    CallerCapabilities { effective, namespace: Some(MappedIds { uids: own, gids: any }) }
}

/// Credentials for calls that need no permission: calls on an open handle, and stat.
pub(crate) fn identity(request: &Request) -> Credentials {
    Credentials::user(request.uid(), request.gid(), Vec::new())
}
