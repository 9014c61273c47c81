//! Figures of this process in Prometheus' text format, with the names that Prometheus' client libraries give them.

use rustix::process::{Resource, getrlimit};
use std::fmt::Write;
use std::fs;

/// Of `/proc`: kernels count in these ticks everywhere (`sysconf(_SC_CLK_TCK)`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Fields of `/proc/self/stat`, counted from the state, which follows the name in parentheses.
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const START_TICKS: usize = 19;
const VIRTUAL_BYTES: usize = 20;

/// The text about this process, and about the build of this `version`. A figure that the system refuses is left out.
pub fn text(version: &str) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let field = |index: usize| fields.get(index)?.parse::<f64>().ok();
    let ticks = |index| Some(field(index)? / TICKS_PER_SECOND);
    let cpu = ticks(USER_TICKS).zip(ticks(SYSTEM_TICKS)).map(|(user, system)| user + system);
    add("process_cpu_seconds_total", "counter", "Processor time, user and system", cpu);
    add("process_resident_memory_bytes", "gauge", "Resident memory", resident_bytes());
    add("process_virtual_memory_bytes", "gauge", "Virtual memory", field(VIRTUAL_BYTES));
    add("process_threads", "gauge", "Threads", field(THREADS));
    let open = fs::read_dir("/proc/self/fd").map(|entries| entries.count() as f64).ok();
    add("process_open_fds", "gauge", "Open file descriptors", open);
    let limit = getrlimit(Resource::Nofile).current.map(|limit| limit as f64);
    add("process_max_fds", "gauge", "Limit of open file descriptors", limit);
    let start = ticks(START_TICKS).zip(boot_time()).map(|(since_boot, boot)| boot + since_boot);
    add("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970", start);
    let build = format!("varve_build_info{{version=\"{version}\"}} 1");
    let _ =
        writeln!(text, "# HELP varve_build_info The version of this program\n# TYPE varve_build_info gauge\n{build}");
    text
}

fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<f64>().ok());
    Some(kib? * 1024.0)
}

fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::text;

    /// Promise: the figures have Prometheus' names and are those of this process.
    #[test]
    fn process_figures_are_plausible() {
        let text = text("1.2.3");
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert!((since_1970 - value("process_start_time_seconds")).abs() < 3600.0 * 24.0);
        assert!(text.contains("varve_build_info{version=\"1.2.3\"} 1"));
    }
}
