//! Real mounts, asked by system calls: what every program that uses a volume relies on.

mod attributes;
mod directories;
mod files;
mod fixture;
mod names;
mod null;
mod process;
mod races;
mod space;
