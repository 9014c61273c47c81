//! Tests of the POSIX rules: tables of cases (one file per verb), and random sequences against a reference file system.

mod capabilities;
mod names;
mod nodes;
mod renames;
mod sequences;
mod steps;
mod table;
mod xattrs;
