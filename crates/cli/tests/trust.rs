//! Attacks of a local user on root and on another user, each run against real servers, mounts and commands.
//!
//! The attacker is the user `bin`, the victim is root or another unprivileged user. Each test states one defence of
//! `docs/internals/security.md`. The tests need root, to play several users; without root they pass with a message.

#[path = "common/mod.rs"]
mod common;

#[path = "trust/fixture.rs"]
mod fixture;
#[path = "trust/identity.rs"]
mod identity;
#[path = "trust/impostors.rs"]
mod impostors;
#[path = "trust/paths.rs"]
mod paths;
#[path = "trust/traps.rs"]
mod traps;
