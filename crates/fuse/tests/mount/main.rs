//! Real mounts, asked by system calls: what every program that uses a volume relies on.

mod appends;
mod attributes;
mod crowds;
mod directories;
mod doubts;
mod files;
mod fixture;
#[path = "../../../client/tests/volume/late.rs"]
mod late;
mod names;
mod null;
mod process;
mod races;
mod space;
mod ways;
