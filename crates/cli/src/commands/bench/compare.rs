//! `varve bench compare`: compares the ratios of saved reports with recorded ones.

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use varve_bench::report::{BenchReport, ComparedRatio, Ratios, Recorded, render_all};
use varve_env::disk;

/// Compare saved reports with recorded ratios; exit code 3 if one fell by more than a tenth
#[derive(Debug, Args)]
pub struct Arguments {
    /// Reports made by --save; the name of each file names its ratios
    #[arg(value_name = "REPORT", required = true)]
    reports: Vec<PathBuf>,
    /// The recorded ratios; if this machine has none, those of another machine are used, with a note
    #[arg(long, value_name = "FILE")]
    recorded: Option<PathBuf>,
    /// Record these ratios here for later runs; ratios of other machines, from --recorded or else from this file, stay
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write one HTML page of all reports
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

#[derive(Serialize)]
struct ComparisonOutput {
    /// The machine of the ratios. `recorded_of` is the machine of the recorded ones.
    machine: String,
    recorded_of: Option<String>,
    ratios: Vec<ComparedRatio>,
    fallen: usize,
    /// Ratios that are recorded for these reports but missing now.
    lost: Vec<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let reports = arguments.reports.iter().map(|path| Ok((name(path), super::read(path)?)));
    let reports: Vec<(String, BenchReport)> = reports.collect::<Result<_>>()?;
    let ratios = Ratios::of(&reports).map_err(|error| super::explain(&error))?;
    let recorded = arguments.recorded.as_deref().map(read).transpose()?;
    let comparison = compare(&reports, &ratios, &recorded.clone().unwrap_or_default());
    if let Some(path) = &arguments.record {
        // Ratios of other machines stay in the file.
        let mut recorded = match recorded {
            None if path.exists() => read(path)?,
            recorded => recorded.unwrap_or_default(),
        };
        recorded.record(&ratios);
        let json = serde_json::to_string_pretty(&recorded)
            .map_err(|error| Problem::new("cannot write the ratios as JSON").caused_by(&error))?;
        disk::replace(path, format!("{json}\n").as_bytes())
            .map_err(|error| Problem::new(format!("cannot write {}", path.display())).caused_by(&error))?;
    }
    if let Some(path) = &arguments.page {
        super::write(path, &render_all(&reports, &text(&comparison)))?;
    }
    output.result("bench compare", &comparison, text)?;
    Ok(if comparison.fallen == 0 { Exit::Done } else { Exit::Degraded })
}

fn compare(reports: &[(String, BenchReport)], ratios: &Ratios, recorded: &Recorded) -> ComparisonOutput {
    let machine = ratios.machine.clone();
    let of = recorded.of(&machine);
    let nothing = BTreeMap::new();
    let beside = of.map_or(&nothing, |(_, recorded)| recorded);
    let lost = ratios.lost(reports, beside);
    let ratios = ratios.beside(beside);
    let fallen = ratios.iter().filter(|ratio| ratio.fell).count();
    ComparisonOutput { machine, recorded_of: of.map(|(machine, _)| machine.to_owned()), ratios, fallen, lost }
}

fn name(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn read(path: &Path) -> Result<Recorded> {
    let failed = || Problem::new(format!("cannot compare with {}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed().caused_by(&error))?;
    serde_json::from_str(&text).map_err(|error| failed().caused_by(&error))
}

fn text(comparison: &ComparisonOutput) -> String {
    let width = comparison.ratios.iter().map(|ratio| ratio.name.chars().count()).max().unwrap_or(0);
    let mut text = format!("{:width$}  recorded       now\n", "ratio");
    for ComparedRatio { name, recorded, now, fell } in &comparison.ratios {
        let recorded = recorded.map_or_else(|| "-".to_owned(), |recorded| format!("{recorded:.3}"));
        let fell = if *fell { "  slower" } else { "" };
        text.push_str(&format!("{name:width$}  {recorded:>8}  {now:>8.3}{fell}\n"));
    }
    if !comparison.lost.is_empty() {
        text.push_str("\nRecorded, and not measured now:\n");
        comparison.lost.iter().for_each(|name| text.push_str(&format!("  {name}\n")));
    }
    match comparison.fallen {
        0 => {}
        1 => text.push_str("\nOne ratio fell by more than a tenth.\n"),
        fallen => text.push_str(&format!("\n{fallen} ratios fell by more than a tenth.\n")),
    }
    if let Some(other) = comparison.recorded_of.as_ref().filter(|of| **of != comparison.machine) {
        text.push_str(&format!(
            "\nRecorded on {other}; this is {}, which has no record: the machine may be the cause of a fall. --record \
             adds it.\n",
            comparison.machine
        ));
    }
    text
}
