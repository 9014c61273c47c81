//! The protocol between machines: calls and replies, their encoding, and the handshake. Sans-I/O: this crate reads and
//! writes no socket. `formats/wire.md` documents the bytes.
//!
//! A connection begins with [`handshake`] and then carries frames ([`frame`]), over TCP inside records ([`record`]).
//! Requests go one way and responses the other. Responses carry the number of their request and come in any order.

mod append;
pub mod calls;
pub mod frame;
pub mod handshake;
mod nouns;
pub mod record;

pub use append::append;
pub use calls::{
    Call, CallFailure, CallId, EntryReply, FOUND_RANGE, FileContent, FoundName, ListedPartition, Listing, ListingEntry,
    Locator, NameEntry, NameListing, NamesVersion, NewNode, NodeReply, OpenMode, OpenedBefore, REGISTERED_FILES_MAX,
    RenameFlags, Reply, Request, Response, ShardLocation, ShardPhase, ShardStatus, SizeState, XattrMode,
};
pub use nouns::{
    WireAttributes, WireAuthority, WireCredentials, WireKind, WireMap, WireOwner, WireServer, WireSetAttributes,
    WireSetTime, WireShardMap, WireTime, WireWorker,
};

/// Incremented whenever bytes on the wire change their meaning. A server refuses other versions in the handshake.
pub const VERSION: u16 = 13;
