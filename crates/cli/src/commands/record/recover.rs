//! `varve record recover FILE`: makes a valid file with every acknowledged frame, after a crash of its writer.

use crate::identity::{self, Work};
use crate::output::{Output, columns as columns_of};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use varve_detector_file::journal::Damage;
use varve_detector_file::recover::{Headless, RecoverError, Recovered, recover};

/// Recover a run's file after its writer died; the journal beside it is removed, or kept if it is damaged
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run's HDF5 file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct RecoverOutput {
    file: PathBuf,
    /// Whether its run had not ended in order.
    recovered: bool,
    #[serde(flatten)]
    found: Option<Recovered>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let file = arguments.file.clone();
    // Root has the rights of the user whose directory the file is in, who could put a link in the file's place.
    let absolute =
        std::path::absolute(&file).map_err(|error| Problem::new("cannot find the file").caused_by(&error))?;
    let failed = || Problem::new(format!("cannot recover {}", file.display()));
    identity::take(absolute.parent().unwrap_or(&absolute), Work::Detector, failed)?;
    let found = match recover(&file) {
        Ok(found) => Some(found),
        Err(RecoverError::NothingToDo { .. }) => None,
        Err(error) => {
            let problem = Problem::new(format!("cannot recover {}", file.display())).caused_by(&error);
            return Err(match error.is_full_store() {
                true => problem.next("Free space in the store, then run it again: nothing is lost meanwhile."),
                false => problem,
            });
        }
    };
    // The exit code reports damaged frames, and a damaged journal even if nothing is lost with it.
    let lost = found.as_ref().is_some_and(|found| found.counts.damaged > 0 || found.damaged_journal.is_some());
    let reported = RecoverOutput { file, recovered: found.is_some(), found };
    output.result("record recover", &reported, lines)?;
    Ok(if lost { Exit::Degraded } else { Exit::Done })
}

const WHOLE_COPY: &str =
    "an intact copy of the journal, put back beside the file, still recovers the rest: the file lost nothing";

fn lines(reported: &RecoverOutput) -> String {
    let Some(Recovered { counts, journal_damage, restored, damaged_journal, journal_head, .. }) = &reported.found
    else {
        return format!("{} needs no recovery: it is finished\n", reported.file.display());
    };
    let mut rows = vec![
        ("file", reported.file.display().to_string()),
        ("frames", (counts.received + counts.late + counts.duplicate).to_string()),
        ("partial", counts.partial.to_string()),
        ("missing", counts.missing.to_string()),
        ("damaged", counts.damaged.to_string()),
    ];
    if let (Some(kept), Some(Headless { why, frames })) = (damaged_journal, journal_head) {
        rows.push(("journal", format!("its head is unreadable: {why}; it is kept as {}", kept.display())));
        rows.push(("restored", format!("{restored} frames, all of the file's last commit")));
        let more = "everything after that commit: no other record of it exists";
        rows.push((
            "lost",
            match frames {
                0 => more.to_owned(),
                frames => format!("at least {frames} frames: {more}"),
            },
        ));
        rows.push(("", WHOLE_COPY.to_owned()));
    } else if let Some(kept) = damaged_journal {
        let Damage { places, first, bytes, frames_max, end, columns } = journal_damage;
        let unread = (*places > 0)
            .then(|| format!("{bytes} bytes at {places} places, the first at byte {first}, could not be read"));
        let gone = end.then(|| "its end is missing".to_owned());
        let what: Vec<String> = unread.into_iter().chain(gone).collect();
        let what = what.join(", and ");
        rows.push(("journal", format!("{what}; it is kept as {}", kept.display())));
        rows.push(("restored", format!("{restored} frames that the journal lacked, from the file itself")));
        if *places > 0 {
            rows.push(("lost", format!("at most {frames_max} frames, and scalars, recorded only in those bytes")));
        }
        if *end {
            rows.push(("lost", "everything after the file's last commit: the number of frames is unknown".to_owned()));
            rows.push(("", WHOLE_COPY.to_owned()));
        }
        if *columns > 0 {
            rows.push(("", format!("{columns} scalar columns added after the damage")));
        }
    }
    columns_of(&rows)
}
