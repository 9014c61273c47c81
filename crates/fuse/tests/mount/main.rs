//! Tests of real mounts by system calls: the behaviour that every program on a volume relies on.

mod appends;
mod attributes;
mod concurrency;
mod directories;
mod files;
mod fixture;
mod invalidation;
mod io_modes;
#[path = "../../../client/tests/volume/late.rs"]
mod late;
mod listings;
mod names;
mod null;
mod overlay;
mod permissions;
mod process;
mod races;
mod shared;
mod space;
