//! The program from its administrator's view: signals, logs, metrics, the service manager, and the installed form.

#[path = "operate/commands.rs"]
mod commands;
mod common;
#[path = "operate/logs.rs"]
mod logs;
#[path = "operate/metrics.rs"]
mod metrics;
#[path = "operate/packages.rs"]
mod packages;
#[path = "operate/signals.rs"]
mod signals;

use std::path::Path;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
