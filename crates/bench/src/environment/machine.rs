//! The machine, from /proc and /sys. Values that the machine does not report are left empty: they only describe the
//! run.

use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

pub fn host() -> String {
    line("/proc/sys/kernel/hostname").unwrap_or_default()
}

pub fn kernel() -> String {
    let name = line("/proc/sys/kernel/ostype").unwrap_or_default();
    format!("{name} {}", line("/proc/sys/kernel/osrelease").unwrap_or_default())
}

pub fn governor() -> Option<String> {
    line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

/// Whether this is a virtual machine whose host reclaims memory after it has been free for some seconds (free page
/// reporting of the balloon device, virtio 1.2, 5.5.6.7). Writing to a page that the host must provide again costs
/// several times a normal write.
pub fn is_memory_taken_back() -> bool {
    /// The largest free blocks on x86 and most other architectures: the kernel never reports a higher order.
    const ORDER_MAX: u32 = 10;
    let order = line("/sys/module/page_reporting/parameters/page_reporting_order").and_then(|order| order.parse().ok());
    let devices = std::fs::read_dir("/sys/bus/virtio/devices").into_iter().flatten().flatten();
    order.is_some_and(|order: u32| order <= ORDER_MAX)
        && devices.map(|device| device.path()).any(|device| {
            let reported = |name: &str| line(&device.join(name).to_string_lossy()).unwrap_or_default();
            is_reporting_balloon(&reported("device"), &reported("features"))
        })
}

/// Parses a virtio device as /sys shows it: its kind in hexadecimal, and the negotiated features, a digit each from the
/// lowest on.
pub(super) fn is_reporting_balloon(kind: &str, features: &str) -> bool {
    const BALLOON: &str = "0x0005";
    const REPORTING: usize = 5;
    kind == BALLOON && features.as_bytes().get(REPORTING) == Some(&b'1')
}

fn field(file: &str, names: &[&str]) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = |name: &&str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == *name)
            .map(|(_, value)| value)
    };
    names.iter().find_map(value).map(|value| value.trim().to_owned())
}

pub fn cpu_model() -> String {
    // x86 says "model name"; ARM kernels name the part by number only.
    field("/proc/cpuinfo", &["model name", "Model", "Processor", "CPU part"]).unwrap_or_default()
}

pub fn memory_bytes() -> u64 {
    let text = field("/proc/meminfo", &["MemTotal"]).unwrap_or_default();
    text.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// Times of all processors since the machine started, in ticks (proc_stat(5)).
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTimes {
    idle: u64,
    stolen: u64,
    total: u64,
    /// Processors of the machine, of which this process may use only some.
    processors: usize,
}

impl CpuTimes {
    pub fn now() -> io::Result<CpuTimes> {
        let text = std::fs::read_to_string("/proc/stat")?;
        CpuTimes::parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no cpu line in /proc/stat"))
    }

    /// Parses `cpu  user nice system idle iowait irq softirq steal guest guest_nice`. The kernel counts guest times in
    /// user and nice too.
    pub(super) fn parse(text: &str) -> Option<CpuTimes> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let processors = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|tick| tick.parse().ok()).take(8).collect();
        let at = |i: usize| ticks.get(i).copied().unwrap_or(0);
        (ticks.len() >= 4).then(|| CpuTimes {
            idle: at(3) + at(4),
            stolen: at(7),
            total: ticks.iter().sum(),
            processors,
        })
    }

    fn share(&self, earlier: &CpuTimes, part: impl Fn(&CpuTimes) -> u64) -> f64 {
        let total = self.total.saturating_sub(earlier.total).max(1);
        part(self).saturating_sub(part(earlier)) as f64 / total as f64
    }

    pub fn stolen_since(&self, earlier: &CpuTimes) -> f64 {
        (self.share(earlier, |times| times.stolen) * 1e4).round() / 1e4
    }

    pub(super) fn busy_since(&self, earlier: &CpuTimes) -> f64 {
        if self.total <= earlier.total {
            return 0.0;
        }
        (1.0 - self.share(earlier, |times| times.idle)).clamp(0.0, 1.0)
    }
}

/// Processor time that other processes and the hypervisor take during a measurement.
pub struct Watch {
    begun: Instant,
    times: Option<CpuTimes>,
}

impl Watch {
    pub fn start() -> Watch {
        Watch { begun: Instant::now(), times: CpuTimes::now().ok() }
    }

    /// Share of all processors' time that others took since the start, where the measured code has used `cpu_s`
    /// seconds. 0 if the kernel reports nothing.
    pub fn others(&self, cpu_s: f64) -> f64 {
        let (Some(times), Ok(now)) = (&self.times, CpuTimes::now()) else { return 0.0 };
        let own = cpu_s / (self.begun.elapsed().as_secs_f64() * now.processors.max(1) as f64);
        (now.busy_since(times) - own).clamp(0.0, 1.0)
    }
}

/// Long enough for 25 ticks per processor, short enough to go unnoticed.
const LOOK: Duration = Duration::from_millis(250);

/// The share of the processors' time in use while this process does nothing.
pub fn load_now() -> io::Result<f64> {
    let before = CpuTimes::now()?;
    std::thread::sleep(LOOK);
    Ok((CpuTimes::now()?.busy_since(&before) * 100.0).round() / 100.0)
}

/// In UTC, to the second.
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_from_days(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// Days since 1970-01-01 as year, month, day (Hinnant, chrono-Compatible Low-Level Date Algorithms).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}
