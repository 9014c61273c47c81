//! Reads the results of other benchmark programs into run entries: mdtest, IOR, fio, elbencho, iozone, h5perf and
//! directories of IO500.
//!
//! Each reader takes the program's own output, as a file keeps it. The entries carry the program's name and version
//! ([`RunEntry::tool`]), so that they stand beside Varve's own and are never mixed with them.

mod elbencho;
mod fio;
mod io500;
mod ior;
mod mdtest;
mod tables;
#[cfg(test)]
mod tests;

use crate::run_file::{RUN_SCHEMA_VERSION, RunEntry, RunFile, RunTarget};
use crate::{Error, Result};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A result file of these programs has some KiB; one of fio with logs some MiB.
pub const RESULT_BYTES_MAX: u64 = 64 << 20;

/// The mark of a summary that names only the extremes and the mean of its iterations.
const SUMMARY_ONLY: &str = "minimum, mean and maximum only";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignFormat {
    Mdtest,
    Ior,
    Fio,
    Elbencho,
    Io500,
    Iozone,
    H5perf,
}

impl ForeignFormat {
    pub const ALL: [ForeignFormat; 7] = [
        ForeignFormat::Mdtest,
        ForeignFormat::Ior,
        ForeignFormat::Fio,
        ForeignFormat::Elbencho,
        ForeignFormat::Io500,
        ForeignFormat::Iozone,
        ForeignFormat::H5perf,
    ];

    pub fn name(self) -> &'static str {
        match self {
            ForeignFormat::Mdtest => "mdtest",
            ForeignFormat::Ior => "ior",
            ForeignFormat::Fio => "fio",
            ForeignFormat::Elbencho => "elbencho",
            ForeignFormat::Io500 => "io500",
            ForeignFormat::Iozone => "iozone",
            ForeignFormat::H5perf => "h5perf",
        }
    }

    /// The program whose output this text is.
    pub fn detect(text: &str) -> Option<ForeignFormat> {
        let has = |words: &str| text.contains(words);
        match () {
            () if has("\"fio version\"") => Some(ForeignFormat::Fio),
            () if has("[RESULT]") || has("IO500 version") => Some(ForeignFormat::Io500),
            () if has("IOR-") || has("access    bw(MiB/s)") => Some(ForeignFormat::Ior),
            () if has("mdtest") || has("SUMMARY rate") || has("SUMMARY:") => Some(ForeignFormat::Mdtest),
            () if has("time ms [last]") || has("\"phase_type\"") => Some(ForeignFormat::Elbencho),
            () if has("Iozone:") => Some(ForeignFormat::Iozone),
            () if has("HDF5 Library") || has("Starting HDF5") || has("IO API = ") => Some(ForeignFormat::H5perf),
            () => None,
        }
    }

    /// The figures of one output, at the target `label`.
    ///
    /// # Errors
    /// [`Error::Usage`] if the text is not of this program, or has no result.
    pub fn read(self, text: &str, label: &str) -> Result<Vec<RunEntry>> {
        let read = match self {
            ForeignFormat::Mdtest => mdtest::read(text),
            ForeignFormat::Ior => ior::read(text),
            ForeignFormat::Fio => fio::read(text),
            ForeignFormat::Elbencho => elbencho::read(text),
            ForeignFormat::Io500 => io500::read(text),
            ForeignFormat::Iozone => tables::read_iozone(text),
            ForeignFormat::H5perf => tables::read_h5perf(text),
        };
        let mut entries = read.map_err(|why| Error::Usage(format!("this is no output of {self}: {why}")))?;
        entries.retain(|entry| entry.samples.iter().all(|sample| sample.is_finite()));
        if entries.is_empty() {
            return Err(Error::Usage(format!("this output of {self} has no results")));
        }
        entries.iter_mut().for_each(|entry| entry.target = label.to_owned());
        Ok(entries)
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ForeignFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<ForeignFormat> {
        ForeignFormat::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names = ForeignFormat::ALL.map(ForeignFormat::name).join(", ");
            Error::Usage(format!("there is no format {text:?}: use one of {names}"))
        })
    }
}

/// Reads files, and directories of IO500, into one run file with one target.
///
/// # Errors
/// If a file cannot be read, or is of no known program.
pub fn import(paths: &[&Path], format: Option<ForeignFormat>, label: &str, arguments: Vec<String>) -> Result<RunFile> {
    let mut run = RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        command: "report import".to_owned(),
        title: "Imported results".to_owned(),
        arguments,
        targets: vec![RunTarget { label: label.to_owned(), ..RunTarget::default() }],
        ..RunFile::default()
    };
    for path in paths {
        let entries = if path.is_dir() { io500::read_directory(path, label)? } else { read_file(path, format, label)? };
        for entry in entries {
            collect(&mut run.entries, entry);
        }
    }
    run.check()?;
    Ok(run)
}

/// Results of the same measurement in several files are samples of one entry.
pub(crate) fn collect(entries: &mut Vec<RunEntry>, entry: RunEntry) {
    let known = entries.iter_mut().find(|known| known.target == entry.target && known.is_like(&entry));
    match known {
        Some(known) => known.samples.extend(entry.samples),
        None => entries.push(entry),
    }
}

fn read_file(path: &Path, format: Option<ForeignFormat>, label: &str) -> Result<Vec<RunEntry>> {
    let text = read_text(path)?;
    let format = format.or_else(|| ForeignFormat::detect(&text)).ok_or_else(|| {
        let names = ForeignFormat::ALL.map(ForeignFormat::name).join(", ");
        Error::Usage(format!("cannot tell which program wrote {}: give --format, one of {names}", path.display()))
    })?;
    let named = |error| match error {
        Error::Usage(why) => Error::Usage(format!("cannot import {}: {why}", path.display())),
        other => other,
    };
    format.read(&text, label).map_err(named)
}

fn read_text(path: &Path) -> Result<String> {
    let fail = || Error::io(format!("cannot read {}", path.display()));
    let length = std::fs::metadata(path).map_err(fail())?.len();
    if length > RESULT_BYTES_MAX {
        let what = format!("cannot import {}: {length} bytes are no result file", path.display());
        return Err(Error::Usage(what));
    }
    Ok(String::from_utf8_lossy(&std::fs::read(path).map_err(fail())?).into_owned())
}

/// A reader's failure: why the text is not of its program.
type Read<T> = std::result::Result<T, String>;

/// An entry in the making.
fn entry(workload: &str, metric: &str, unit: &str, tool: &str, samples: Vec<f64>) -> RunEntry {
    RunEntry {
        workload: workload.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        tool: tool.to_owned(),
        higher_is_better: true,
        samples,
        ..RunEntry::default()
    }
}

/// Sets a parameter, if it is known.
fn set(entry: &mut RunEntry, parameter: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        entry.parameters.insert(parameter.to_owned(), value.into());
    }
}

/// `1 MiB`, `262144 bytes`, `1m`, `4k`: bytes, in binary units.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let scale = match text[end..].trim().to_ascii_lowercase().as_str() {
        "" | "b" | "byte" | "bytes" => 1.0,
        "k" | "kib" | "kb" => 1024.0,
        "m" | "mib" | "mb" => 1048576.0,
        "g" | "gib" | "gb" => 1073741824.0,
        "t" | "tib" | "tb" => 1099511627776.0,
        _ => return None,
    };
    Some((number * scale) as u64)
}
