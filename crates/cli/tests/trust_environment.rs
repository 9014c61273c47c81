//! Files, directories and variables of another user cannot direct this user's processes, and a process in another
//! user's store has that user's rights. The tests need root, to play several users.

mod common;

#[path = "trust_environment/cases.rs"]
mod cases;
#[path = "trust_environment/config.rs"]
mod config;
#[path = "trust_environment/destructive.rs"]
mod destructive;
#[path = "trust_environment/identity.rs"]
mod identity;
#[path = "trust_environment/logs.rs"]
mod logs;
#[path = "trust_environment/printing.rs"]
mod printing;
#[path = "trust_environment/runtime.rs"]
mod runtime;
