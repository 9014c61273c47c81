//! Limits of a connection.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls of one connection that a client has sent, or a server has received, and that are not answered. A client
    /// keeps further calls back; a server does not read them. A group commit rarely covers more than 64; the rest is
    /// for calls that wait for a recall, a store or another server.
    pub in_flight: usize,
    /// Callers that wait on the client until a call may be sent. The next one gets an error.
    pub waiting: usize,
    /// Bytes of bodies that are queued to be sent. Above it, a client lets no further call in and a server reads none.
    /// The largest message fits, whatever the limit.
    pub queued_bytes: usize,
    /// A peer that owes something and sends nothing for this long is gone: an answer on the client's side, the rest of a
    /// message or the reading of its replies on the server's. A client asks by a `Ping` at half of the time.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { in_flight: 256, waiting: 4096, queued_bytes: 4 << 20, silence: Duration::from_secs(60) }
    }
}
