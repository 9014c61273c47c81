//! The rules of POSIX by table (a file a verb) and by property against a reference file system.

mod names;
mod nodes;
mod reference;
mod renames;
mod sequences;
mod steps;
mod table;
mod xattrs;
