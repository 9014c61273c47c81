//! What machines say to each other: calls and replies, their bytes, the handshake. Sans-I/O: nothing here reads a
//! socket. `formats/wire.md` shows the bytes.
//!
//! A connection begins with [`handshake`], then carries frames ([`frame`]), over TCP in records ([`record`]): requests one way,
//! responses the other, matched by the request's number, answered in any order.

mod append;
pub mod calls;
pub mod frame;
pub mod handshake;
mod nouns;
mod octets;
pub mod record;

pub use append::append;
pub use calls::{
    Call, CallFailure, CallId, EntryReply, FileContent, Listing, ListingEntry, Locator, NewNode, NodeReply, OpenMode,
    RenameFlags, Reply, Request, Response, ShardStatus, SizeState, XattrMode,
};
pub use nouns::{WireAttributes, WireCredentials, WireKind, WireMap, WireSetAttributes, WireSetTime, WireTime};

/// Raised whenever bytes on the wire change their meaning; a server refuses other versions in the handshake.
pub const VERSION: u16 = 8;
