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
use varve_types::{Authority, Capability, Credentials, Errno};

/// The id of users that a namespace does not map.
const OVERFLOW_ID: u32 = 65534;

/// How the calls of a mount are authorised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// The server checks the ids of the caller. The volume or the mount is not root's, so a capability, which root
    /// gave, says nothing about the volume.
    Ids,
    /// root's mount of a volume of root's, beside a server. The server checks the ids of the caller, and its
    /// capabilities if the ids do not suffice. It does not rely on the kernel's check, because the attributes that the
    /// kernel has of an open file can be outdated: another mount may have changed the file's owner.
    Capabilities,
    /// root's mount of a volume of root's that serves the volume itself. No other client changes attributes, so the
    /// check of the kernel (`default_permissions`) is final.
    Kernel,
}

impl Callers {
    /// `trusted`: mount and volume are root's. `alone`: the mount serves the volume itself.
    pub fn of_mount(trusted: bool, alone: bool) -> Callers {
        match (trusted, alone) {
            (false, _) => Callers::Ids,
            (true, false) => Callers::Capabilities,
            (true, true) => Callers::Kernel,
        }
    }

    /// Credentials for calls whose permissions are checked.
    pub fn caller(self, request: &Request) -> Credentials {
        match self {
            Callers::Kernel => Credentials { authority: Authority::Checked, ..identity(request) },
            Callers::Ids | Callers::Capabilities => self.identified(request),
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
        if self != Callers::Capabilities || caller.is_root() || caller.authority != Authority::Ids {
            return None;
        }
        let capabilities = Process::of(pid)?.capabilities()?;
        Some(Credentials { authority: Authority::Capabilities(Box::new(capabilities)), ..caller.clone() })
    }
}

/// Credentials for calls that need no permission: calls on an open handle, and stat.
pub(crate) fn identity(request: &Request) -> Credentials {
    Credentials::user(request.uid(), request.gid(), Vec::new())
}
