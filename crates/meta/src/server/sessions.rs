//! Sessions: which clients the server admits, and how long it keeps their open files.
//!
//! A session belongs to one client process and has many connections, to several workers. It ends when it has had no
//! connection for [`SESSION_GRACE`]. Until then its open files stay open, so that a client that lost its connections
//! (or whose host slept) finds them again.

use super::limits::{Counts, Limits, Principal, Source};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::identity::is_nobody;
use varve_proto::Request;
use varve_proto::handshake::{KeyId, Purpose};
use varve_types::{Credentials, SessionId};

/// The part of the table that sessions take which only other servers have registered: a user may have sessions at each of
/// them.
const REGISTERED_ONLY_SHARE: usize = 4;

/// How long a session without connections is kept.
pub const SESSION_GRACE: Duration = Duration::from_secs(60);

/// The peer of a connection, as identified by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process on the same host, connected through a Unix socket.
    Local { uid: u32, gid: u32, pid: Option<i32> },
    /// A TCP client, identified only by the key that it proves.
    Remote { source: Source },
}

impl Peer {
    /// The principal whose limits the peer counts against, whatever key it holds.
    pub fn principal(self) -> Principal {
        match self {
            Peer::Local { uid, .. } => Principal::User(uid),
            Peer::Remote { source } => Principal::Source(source),
        }
    }

    /// The principals of a peer that holds `key`. The volume's own key is no principal: all hosts that can read the
    /// store have it.
    pub fn principals(self, key: KeyId) -> impl Iterator<Item = Principal> {
        let own = (key != KeyId::VOLUME).then_some(Principal::Key(key));
        [Some(self.principal()), own].into_iter().flatten()
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Local { uid, pid: Some(pid), .. } => write!(f, "process {pid} of user {uid}"),
            Peer::Local { uid, pid: None, .. } => write!(f, "a process of user {uid}"),
            Peer::Remote { source } => write!(f, "a TCP client of {source}"),
        }
    }
}

/// Which clients the server admits.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    /// The user who owns the volume. A volume of root serves every user.
    pub owner_uid: u32,
    /// The user the server runs as.
    pub server_uid: u32,
    pub server_pid: i32,
    /// The server runs inside a mount: one session of this process may change the volume, all others only observe.
    pub embedded: bool,
}

/// A connection that may make calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub session: SessionId,
    pub observer: bool,
    /// It may move shards.
    pub administers: bool,
    /// The credentials that replace those in every call; `None` if the peer is trusted.
    pub forced: Option<Credentials>,
}

impl Admitted {
    /// Whether a request names this session.
    pub fn is_named_by(&self, request: &Request) -> bool {
        request.id.session == self.session.0
    }
}

/// Why a client that holds a key is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// A permanent refusal.
    Refused(String),
    /// A limit is reached; the client may succeed later.
    Crowded(String),
}

/// The owner of a session. Only the same holder may join the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    key: KeyId,
    /// `Some` for a user on this host.
    uid: Option<u32>,
}

impl Holder {
    fn of(peer: Peer, key: KeyId) -> Holder {
        match peer {
            Peer::Local { uid, .. } => Holder { key, uid: Some(uid) },
            // The address is not part of the holder: a host may connect from several addresses.
            Peer::Remote { .. } => Holder { key, uid: None },
        }
    }
}

struct ServerSession {
    /// `None`: it has not connected here, and has something registered by another server. Its first connection is the
    /// holder.
    holder: Option<Holder>,
    /// The principals whose limits the session counts against.
    principals: Vec<Principal>,
    /// The process or host of its last connection.
    peer: Option<Peer>,
    connections: u32,
    works: bool,
    /// The session's key was revoked: it has no grace period.
    revoked: bool,
    /// When the last connection closed.
    gone: Option<Instant>,
    /// Its files are being closed: no connection is admitted until that is done.
    ends: bool,
}

pub struct Sessions {
    admission: Admission,
    clock: Arc<dyn Clock>,
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    sessions: HashMap<SessionId, ServerSession>,
    /// Number of sessions of each principal.
    counts: Counts,
}

impl Table {
    fn remove(&mut self, session: SessionId) {
        let Some(removed) = self.sessions.remove(&session) else { return };
        removed.principals.into_iter().for_each(|principal| self.counts.take(principal));
    }

    /// Number of sessions that have only been registered by other servers. No limit of their users counts them.
    fn registered_only(&self) -> usize {
        self.sessions.values().filter(|state| state.holder.is_none()).count()
    }

    /// Enters a session that has not connected here.
    fn enter_gone(&mut self, session: SessionId, now: Instant) {
        self.sessions.insert(session, ServerSession { gone: Some(now), ..ServerSession::of(None) });
    }
}

impl ServerSession {
    /// A session without connections.
    fn of(holder: Option<Holder>) -> ServerSession {
        let (principals, peer, connections, gone) = (Vec::new(), None, 0, None);
        ServerSession { holder, principals, peer, connections, works: false, revoked: false, gone, ends: false }
    }
}

impl Sessions {
    pub fn new(admission: Admission, clock: Arc<dyn Clock>, limits: Limits) -> Sessions {
        Sessions { admission, clock, limits, table: Mutex::default() }
    }

    /// Admits one more connection of `session`, which has proved that it holds `key`. The error is the reason to send
    /// to the peer.
    pub fn admit(
        self: &Arc<Sessions>,
        session: SessionId,
        purpose: Purpose,
        peer: Peer,
        key: KeyId,
    ) -> Result<(Admitted, SessionGuard), NotAdmitted> {
        if session.0 == 0 {
            return Err(NotAdmitted::Refused("invalid session id 0".into()));
        }
        if let Purpose::Peer { .. } = purpose {
            let reason = "a worker serves clients: a server calls another one at its address for servers";
            return Err(NotAdmitted::Refused(reason.into()));
        }
        let forced = self.credentials_of(peer).map_err(NotAdmitted::Refused)?;
        let works = purpose == Purpose::Work;
        let administers = purpose == Purpose::Administer;
        if administers && key != KeyId::VOLUME {
            let reason = "only the volume's own key administers it, not that of a host: run the command where the store \
                          can be read";
            return Err(NotAdmitted::Refused(reason.into()));
        }
        let holder = Holder::of(peer, key);
        let mut table = self.table.lock();
        self.check_alone(&table, session, peer, works)?;
        match table.sessions.get(&session) {
            Some(state) if state.holder.is_some_and(|known| known != holder) => {
                let reason = format!("session {:016x} is another client's", session.0);
                return Err(NotAdmitted::Refused(reason));
            }
            Some(state) if state.ends => {
                let reason = format!("session {:016x} is being ended; try again", session.0);
                return Err(NotAdmitted::Crowded(reason));
            }
            Some(ServerSession { holder: Some(_), .. }) => {}
            Some(_) | None => self.make(&mut table, session, holder, peer.principals(key).collect())?,
        }
        let state = table.sessions.get_mut(&session).expect("it is there, or was made");
        state.connections += 1;
        state.works |= works;
        state.gone = None;
        state.peer = Some(peer);
        if state.connections == 1 && self.logs(state) {
            let (id, protocol) = (session.0, varve_proto::VERSION);
            tracing::info!("client connected: {peer}, session {id:016x}, {}, protocol {protocol}", named(key));
        }
        let guard = SessionGuard { sessions: Arc::clone(self), session };
        Ok((Admitted { session, observer: !works, administers, forced }, guard))
    }

    /// Whether the connections of a session are logged: not those that only observe, nor those of a mount's own process.
    fn logs(&self, state: &ServerSession) -> bool {
        state.works && !self.admission.embedded
    }

    /// Enforces that an embedded server works for one session of its own process.
    fn check_alone(&self, table: &Table, session: SessionId, peer: Peer, works: bool) -> Result<(), NotAdmitted> {
        if self.admission.embedded && works {
            let own = matches!(peer, Peer::Local { pid: Some(pid), .. } if pid == self.admission.server_pid);
            let taken = table.sessions.iter().any(|(other, state)| state.works && *other != session);
            if !own || taken {
                return Err(NotAdmitted::Refused(format!(
                    "this volume is served from inside the mount of process {}, which admits no other client: use that \
                     mount, or unmount it and start `varve serve`",
                    self.admission.server_pid
                )));
            }
        }
        Ok(())
    }

    /// Creates a session without connections.
    fn make(
        &self,
        table: &mut Table,
        id: SessionId,
        holder: Holder,
        principals: Vec<Principal>,
    ) -> Result<(), NotAdmitted> {
        let Limits { sessions, sessions_of_one, .. } = self.limits;
        if let Some(full) = principals.iter().find(|principal| table.counts.of(**principal) >= sessions_of_one) {
            return Err(NotAdmitted::Crowded(format!(
                "{full} has {sessions_of_one} sessions already, including those that ended in the last {} s: end \
                 mounts or programs that use the volume, and try again",
                SESSION_GRACE.as_secs()
            )));
        }
        if table.sessions.len() - table.registered_only() >= sessions {
            let reason = format!("the server has {sessions} sessions already; close some and try again");
            return Err(NotAdmitted::Crowded(reason));
        }
        principals.iter().for_each(|principal| table.counts.add(*principal));
        table.sessions.insert(id, ServerSession { principals, ..ServerSession::of(Some(holder)) });
        Ok(())
    }

    /// Another server registers something of `session` here. A session that this server does not know may be of a client
    /// that dies before it connects: it is kept as one whose last connection has just closed. `false`: the session is being
    /// ended, and what is registered now would be lost.
    pub fn enter_registered(&self, session: SessionId) -> bool {
        let now = self.clock.monotonic();
        let mut table = self.table.lock();
        match table.sessions.get(&session) {
            Some(state) => return !state.ends,
            // Nobody's limit counts them.
            None if table.registered_only() >= self.limits.sessions / REGISTERED_ONLY_SHARE => {
                tracing::debug!("session {:016x} is not kept: the server has too many", session.0);
            }
            None => table.enter_gone(session, now),
        }
        true
    }

    /// Marks the sessions of a revoked key: they end as soon as their connections have ended.
    pub fn revoke(&self, key: KeyId) {
        let mut table = self.table.lock();
        table
            .sessions
            .values_mut()
            .filter(|state| state.holder.is_some_and(|holder| holder.key == key))
            .for_each(|state| state.revoked = true);
    }

    /// Whether the peer may connect at all, whatever key it holds. The error is the reason to send to the peer.
    pub fn check_peer(&self, peer: Peer) -> Result<(), String> {
        self.credentials_of(peer).map(drop)
    }

    /// The credentials that the peer's calls must be made with. The server's own user is trusted (a mount acts for its
    /// users), and so is a TCP client that has proved a key.
    fn credentials_of(&self, peer: Peer) -> Result<Option<Credentials>, String> {
        let Peer::Local { uid, gid, .. } = peer else {
            return Ok(None);
        };
        let Admission { owner_uid, server_uid, .. } = self.admission;
        if uid == Credentials::ROOT_UID {
            return Ok(None);
        }
        if is_nobody(uid) {
            return Err(format!(
                "the client runs as user {uid}, the id of users without a mapping in this user namespace: serve the \
                 volume with --listen and connect by TCP (--tcp), or run the client as a user of this host"
            ));
        }
        if owner_uid != Credentials::ROOT_UID && uid != owner_uid {
            return Err(format!("the volume belongs to user {owner_uid}, and the client runs as user {uid}"));
        }
        if uid == server_uid {
            return Ok(None);
        }
        Ok(Some(Credentials::user(uid, gid, Vec::new())))
    }

    /// Returns a session whose grace period is over, if there is one. It is not admitted again until [`Sessions::end`]:
    /// a client that returns after that starts a new session and keeps the files that it opens from then on.
    pub fn begin_end(&self) -> Option<SessionId> {
        let now = self.clock.monotonic();
        let mut table = self.table.lock();
        let over = |state: &ServerSession| {
            !state.ends && state.gone.is_some_and(|gone| state.revoked || now.since(gone) >= SESSION_GRACE)
        };
        let (session, state) = table.sessions.iter_mut().find(|(_, state)| over(state))?;
        state.ends = true;
        Some(*session)
    }

    /// Whether the session is admitted and its end has not begun.
    pub fn is_live(&self, session: SessionId) -> bool {
        self.table.lock().sessions.get(&session).is_some_and(|state| !state.ends)
    }

    /// All shards have dropped what they had registered of the session.
    pub fn end(&self, session: SessionId) {
        self.table.lock().remove(session);
    }

    /// Sessions that may change the volume.
    pub fn working(&self) -> HashSet<SessionId> {
        self.table.lock().sessions.iter().filter(|(_, state)| state.works).map(|(id, _)| *id).collect()
    }

    /// Number of sessions with a connection or within their grace period.
    pub fn count(&self) -> usize {
        self.table.lock().sessions.len()
    }
}

fn named(key: KeyId) -> String {
    match key {
        KeyId::VOLUME => "the volume's key".to_owned(),
        key => format!("key {key}"),
    }
}

/// Counts one connection of a session until dropped, when the connection closes.
pub struct SessionGuard {
    sessions: Arc<Sessions>,
    session: SessionId,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let now = self.sessions.clock.monotonic();
        if let Some(state) = self.sessions.table.lock().sessions.get_mut(&self.session) {
            state.connections -= 1;
            if state.connections == 0 {
                state.gone = Some(now);
                if let Some(peer) = state.peer.filter(|_| self.sessions.logs(state)) {
                    let (id, grace) = (self.session.0, SESSION_GRACE.as_secs());
                    tracing::info!("client gone: {peer}, session {id:016x}; its open files are kept for {grace} s");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
