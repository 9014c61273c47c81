//! Who may talk to this server, and for how long what they hold open is kept.
//!
//! A session is a client process's stay; it has many connections, to several workers. It ends when it has had no
//! connection for [`SESSION_GRACE`]: until then its open files stay open, so that a client which lost its connections
//! (or whose host slept) comes back to what it had.

use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use varve_types::{Credentials, SessionId};
use varve_wire::Request;
use varve_wire::handshake::Purpose;
use varve_world::clock::{Clock, Moment};

/// How long a session without connections is kept.
pub const SESSION_GRACE: Duration = Duration::from_secs(60);

/// Sessions at a time, those in their grace included: far above the mounts of one host, and it bounds the memory that
/// clients which come and go can take.
const SESSIONS_MAX: usize = 4096;

/// The other end of a connection, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Of the same host, by a Unix socket.
    Local { uid: u32, gid: u32, pid: Option<i32> },
    /// By TCP: known only by its proof of the key.
    Remote,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Local { uid, pid: Some(pid), .. } => write!(f, "process {pid} of user {uid}"),
            Peer::Local { uid, pid: None, .. } => write!(f, "a process of user {uid}"),
            Peer::Remote => write!(f, "a TCP client"),
        }
    }
}

/// Whom a server admits.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The user whose volume it is; root's volumes serve everyone.
    pub owner_uid: u32,
    /// The user the server runs as.
    pub server_uid: u32,
    pub server_pid: i32,
    /// Inside a mount: one session of this very process works, all others only observe.
    pub embedded: bool,
}

/// A connection that may make calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub session: SessionId,
    pub observer: bool,
    /// Whose name every call is made in, whatever it says; `None` where the peer is believed.
    pub forced: Option<Credentials>,
}

impl Admitted {
    /// Whether a request is of this session.
    pub fn is_named_by(&self, request: &Request) -> bool {
        request.id.session == self.session.0
    }
}

struct Session {
    connections: u32,
    works: bool,
    /// When the last connection went.
    gone: Option<Moment>,
}

pub struct Sessions {
    admission: Admission,
    clock: Arc<dyn Clock>,
    table: Mutex<HashMap<SessionId, Session>>,
}

impl Sessions {
    pub fn new(admission: Admission, clock: Arc<dyn Clock>) -> Sessions {
        Sessions { admission, clock, table: Mutex::default() }
    }

    /// Admits one more connection of `session`, which has proved the key; the error is the reason for the peer.
    pub fn admit(
        self: &Arc<Sessions>,
        session: SessionId,
        purpose: Purpose,
        peer: Peer,
    ) -> Result<(Admitted, Stay), String> {
        if session.0 == 0 {
            return Err("0 is not a session".into());
        }
        let forced = self.credentials_of(peer)?;
        let works = purpose == Purpose::Work;
        let mut table = self.table.lock();
        if self.admission.embedded && works {
            let own = matches!(peer, Peer::Local { pid: Some(pid), .. } if pid == self.admission.server_pid);
            let taken = table.iter().any(|(other, state)| state.works && *other != session);
            if !own || taken {
                return Err(format!(
                    "this volume is served from inside the mount of process {}, which works on it alone: \
                     use that mount, or unmount it and start `varve serve`",
                    self.admission.server_pid
                ));
            }
        }
        if !table.contains_key(&session) && table.len() >= SESSIONS_MAX {
            return Err(format!("the server has {SESSIONS_MAX} sessions already; close some and try again"));
        }
        let state = table.entry(session).or_insert(Session { connections: 0, works, gone: None });
        state.connections += 1;
        state.works |= works;
        state.gone = None;
        let stay = Stay { sessions: Arc::clone(self), session };
        Ok((Admitted { session, observer: !works, forced }, stay))
    }

    /// Who a peer's calls must be made for. The server's own user is believed (a mount speaks for its users), and so is
    /// whoever comes by TCP, having proved that it can read the key and with it the volume.
    fn credentials_of(&self, peer: Peer) -> Result<Option<Credentials>, String> {
        let Peer::Local { uid, gid, .. } = peer else {
            return Ok(None);
        };
        let Admission { owner_uid, server_uid, .. } = self.admission;
        if uid == Credentials::ROOT_UID {
            return Ok(None);
        }
        if owner_uid != Credentials::ROOT_UID && uid != owner_uid {
            return Err(format!("this volume belongs to user {owner_uid} alone, and you are user {uid}"));
        }
        if uid == server_uid {
            return Ok(None);
        }
        Ok(Some(Credentials { uid, gid, groups: Vec::new() }))
    }

    /// Ends a session whose grace is over, if there is one: answers it, and what `end` made of it. Meanwhile nobody is admitted: who
    /// comes back after that begins anew, and keeps what it opens from then on.
    pub fn end_one<T>(&self, end: impl FnOnce(SessionId) -> T) -> Option<(SessionId, T)> {
        let now = self.clock.monotonic();
        let mut table = self.table.lock();
        let over = |state: &Session| state.gone.is_some_and(|gone| now.since(gone) >= SESSION_GRACE);
        let session = table.iter().find(|(_, state)| over(state)).map(|(id, _)| *id)?;
        table.remove(&session);
        Some((session, end(session)))
    }

    /// Those that change something.
    pub fn working(&self) -> HashSet<SessionId> {
        self.table.lock().iter().filter(|(_, state)| state.works).map(|(id, _)| *id).collect()
    }

    /// Sessions with a connection or in their grace.
    pub fn count(&self) -> usize {
        self.table.lock().len()
    }
}

/// One connection of a session; dropped when it closes.
pub struct Stay {
    sessions: Arc<Sessions>,
    session: SessionId,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let now = self.sessions.clock.monotonic();
        if let Some(state) = self.sessions.table.lock().get_mut(&self.session) {
            state.connections -= 1;
            if state.connections == 0 {
                state.gone = Some(now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
