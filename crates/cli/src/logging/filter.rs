//! The log's filter: a level, or levels of single modules.

use crate::problem::{Problem, Result};
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
const NEXT: &str = "Give off, error, warn, info, debug or trace, or a level for a module, as in info,varve_meta=debug.";

/// The filter of this text. A word without `=` must be a level: `tracing` takes any other word for the name of a module,
/// so a misspelt level would silence the log.
pub fn parse(text: &str) -> Result<EnvFilter> {
    let refused = || Problem::usage(format!("--log {text}")).next(NEXT);
    let directives: Vec<&str> = text.split(',').map(str::trim).filter(|directive| !directive.is_empty()).collect();
    if directives.is_empty() {
        return Err(refused().because("it has no level"));
    }
    let unknown = directives.iter().find(|directive| {
        let level = directive.rsplit('=').next().unwrap_or_default();
        !LEVELS.iter().any(|known| level.eq_ignore_ascii_case(known))
    });
    if let Some(unknown) = unknown {
        let word = unknown.rsplit('=').next().unwrap_or_default();
        return Err(refused().because(format!("{word:?} is no level")));
    }
    EnvFilter::builder().parse(in_our_words(&directives.join(","))).map_err(|error| refused().caused_by(&error))
}

/// The database beneath the tables logs each failure in its own words, some of them several times. Varve logs the
/// consequences itself, so the database's log appears only on request, or when the filter enables everything.
fn in_our_words(filter: &str) -> String {
    match filter.to_ascii_lowercase().as_str() {
        level @ ("error" | "warn" | "info") => format!("{level},slatedb=off"),
        _ => filter.to_owned(),
    }
}
