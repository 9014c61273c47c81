//! Calls between processes: connections that carry many calls at a time, and the loop that runs them. It does not know
//! what a request means: clients call servers with it, and servers each other. [RFC 0011](../../../rfcs/0011-request-path.md)
//! has the reasons, `formats/rpc.md` the bytes.
//!
//! | Layer | Modules |
//! |---|---|
//! | bytes of messages, state of both halves; sans-I/O | [`wire`], [`mux`] |
//! | carriers of messages | [`link`]: a socket with or without records and shared memory, or a pair of queues |
//! | a half on its link | `port` |
//! | entry points | [`Connection::call`], [`serve`], [`Peer::call`], [`Dialer::dial`], [`Listener::accept`] |
//! | one thread's executor | [`EventLoop`]; [`BlockingPool`] for work that blocks |

pub mod client;
pub mod error;
pub mod event_loop;
mod handshake;
pub mod limits;
pub mod link;
pub mod mux;
pub mod peers;
pub mod pool;
mod port;
pub mod server;
pub mod wire;

pub use self::client::{Call, Connection, Severer};
pub use self::error::{CallError, Cause};
pub use self::event_loop::{EventLoop, LoopHandle, Timer, Watched, default_spin, yield_now};
pub use self::handshake::accept::{Admission, AdmitError, Listener, PeerOrigin, UnauthenticatedConnection};
pub use self::handshake::dial::{DialError, Dialer, Identity, ServerAddress};
pub use self::limits::Limits;
pub use self::link::LinkError;
pub use self::link::in_process::InProcessLink;
pub use self::link::stream::StreamLink;
pub use self::mux::server::CancelToken;
pub use self::peers::{Dial, Peer, Peers};
pub use self::pool::{BlockingPool, PoolError};
pub use self::server::{Answer, Handler, IncomingCall, serve};
pub use self::wire::{BODY_BYTES_MAX, NotBegun};
