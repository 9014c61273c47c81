//! Processor time of processes.

use crate::{Error, Result};

/// The kernel's `USER_HZ` on every Linux except on the oldest processors.
const TICKS_PER_S: f64 = 100.0;

/// CPU seconds of this process so far, in all its threads.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Processor seconds of a process, user and system, all its threads.
pub(crate) fn cpu_seconds_of(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/stat");
    let stat = std::fs::read_to_string(&path).map_err(Error::io(path))?;
    Ok(ticks(&stat) / TICKS_PER_S)
}

fn ticks(stat: &str) -> f64 {
    // Skips the name, which may contain anything. The 12th and 13th fields after it are the ticks of user and system.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_the_process_name() {
        assert_eq!(ticks("7 (a) b 1 2) S 1 7 7 0 -1 4194304 95 0 0 0 12 30 0 0 20 0 1 0"), 42.0);
        assert_eq!(ticks(""), 0.0);
    }
}
