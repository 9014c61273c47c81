//! The answer of a run in one small table: each operation's rate at each target with the largest number of clients, and
//! how many times as fast as the plain directory it is.

use super::{BenchReport, numbers};
use crate::workloads::mdtest::Phase;
use std::fmt::Write;

pub struct Answer<'a> {
    clients: usize,
    /// The targets: plain directories first, because the others are compared with them.
    pub ways: Vec<String>,
    pub rows: Vec<AnswerRow<'a>>,
}

pub struct AnswerRow<'a> {
    pub operation: &'a str,
    /// One for each way.
    pub cells: Vec<AnswerCell>,
}

pub struct AnswerCell {
    pub rate: f64,
    /// To the plain directory; none for the directory itself.
    pub ratio: Option<f64>,
}

/// The ratio's name of the plain directory.
const PLAIN: &str = "path";

impl<'a> Answer<'a> {
    /// `None` if the report has no results.
    pub fn of(report: &'a BenchReport) -> Option<Answer<'a>> {
        let clients = report.clients().last().copied()?;
        let mut targets = report.targets();
        targets.sort_by_key(|(via, _)| *via != PLAIN);
        let row = |phase: &'a str| {
            let cells = targets.iter().map(|(via, target)| {
                let result = report.results.iter().find(|result| {
                    (result.via.as_str(), result.target.as_str(), result.phase.as_str(), result.clients)
                        == (*via, *target, phase, clients)
                })?;
                let ratio = report.ratio(result, PLAIN).map(|ratio| ratio.median);
                Some(AnswerCell { rate: result.rate().median, ratio })
            });
            Some(AnswerRow { operation: operation(phase), cells: cells.collect::<Option<_>>()? })
        };
        let rows: Vec<AnswerRow> = report.phases().into_iter().filter_map(row).collect();
        let ways = targets.iter().map(|(via, target)| way(&report.label(via, target))).collect();
        (!rows.is_empty()).then_some(Answer { clients, ways, rows })
    }

    pub fn title(&self, report: &BenchReport) -> String {
        let clients = numbers::clients(self.clients);
        let compared = if self.rows.iter().any(|row| row.cells.iter().any(|cell| cell.ratio.is_some())) {
            ", compared with the plain directory"
        } else {
            ""
        };
        let unit = if report.unit() == "MiB/s" { "MiB a second" } else { "Operations a second" };
        format!("{unit} with {clients}{compared}")
    }

    /// A table for a terminal of 80 columns; no trailing newline.
    pub fn to_text(&self, report: &BenchReport) -> String {
        let texts = self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(|cell| {
                let ratio = cell.ratio.map_or(String::new(), |ratio| format!(" ({})", numbers::times_as_fast(ratio)));
                format!("{}{ratio}", numbers::with_commas(cell.rate))
            });
            [row.operation.to_owned()].into_iter().chain(cells).collect()
        });
        let heading = [String::new()].into_iter().chain(self.ways.iter().cloned()).collect();
        let rows: Vec<Vec<String>> = [heading].into_iter().chain(texts).collect();
        let mut text = self.title(report);
        for row in &rows {
            text.push_str("\n ");
            for (column, cell) in row.iter().enumerate() {
                let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
                let _ = write!(text, " {cell:<width$} ");
            }
            text.truncate(text.trim_end().len());
        }
        text
    }
}

/// The verb of a phase.
fn operation(phase: &str) -> &str {
    match phase {
        "create" | "stat" | "delete" | "read" | "write" => phase,
        other => Phase::title(other),
    }
}

fn way(label: &str) -> String {
    if label == PLAIN { "directory".to_owned() } else { label.to_owned() }
}
