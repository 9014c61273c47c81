//! The detector service without I/O: frames of a run, its specification, the layout of groups and datasets, and the
//! state of the file, built from entries of the journal.
//!
//! - [`dataset_spec`]: the specification of a run, given before it starts; [`advice`] may be a part of it. [`layout`]
//!   parses a layout file. `spec_check` refuses specs that no file can be written from.
//! - [`frame`], [`frame_numbers`], [`ranges`], [`geometry`], [`time`], [`half`]: frames, the numbers that a run accepts,
//!   sets of numbers, and arithmetic.
//! - [`run_metadata`]: metadata that a user gives for a run, or for all runs of a service.
//! - [`journal_entry`]: the events of a run.
//! - [`catalog`]: the state of a run's frames, built from those events, in [`column`]s; [`structure`] arranges it in
//!   groups and datasets. [`commit_data`]: the bytes by which a commit differs from the one before.
//!
//! Dependencies point from the structure to the catalog to the entries to the spec. Entry:
//! [`dataset_spec::DatasetSpec`], [`catalog::Catalog::apply`].

pub mod advice;
pub mod catalog;
pub mod column;
pub mod commit_data;
pub mod dataset_spec;
pub mod frame;
pub mod frame_numbers;
pub mod geometry;
pub mod half;
pub mod journal_entry;
pub mod layout;
mod layout_columns;
pub mod limits;
mod mask;
pub mod ranges;
pub mod run_metadata;
mod spec_check;
pub mod structure;
pub mod time;
