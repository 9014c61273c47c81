//! How `varve stats` and `varve umount` talk to the process behind a mount: an abstract Unix socket named after the
//! mount's device number, so that nothing is left behind in any directory. The same user and root are answered.
//!
//! One line each way, then the connection ends:
//!
//! ```text
//! stats  →  {"pid":…,"operations":[…],…}     counts since the mount began
//! watch  →  {"pid":…}                        at once, and when the process is about to end:
//!           {"clean":true,"error":null}      all is durable; or what went wrong
//! ```

use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use varve_client::{FileSystem, LATENCY_BUCKETS};

/// A request is one short word; whoever sends more is not one of ours.
const REQUEST_BYTES_MAX: u64 = 64;
/// A peer that does not say what it wants within this is dropped, for requests are served one by one.
const REQUEST_WAIT: Duration = Duration::from_secs(1);
/// `umount` commands that wait for the end at once.
const WATCHERS_MAX: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stats {
    pub pid: u32,
    pub store: PathBuf,
    pub embedded: bool,
    pub uptime_s: f64,
    pub requests: u64,
    pub retries: u64,
    pub reconnects: u64,
    pub operations: Vec<OperationStats>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperationStats {
    pub operation: String,
    pub calls: u64,
    pub errors: u64,
    pub total_ns: u64,
    /// Bucket `i` counts latencies below `2^i` microseconds that are not in an earlier one.
    pub latency_log2_us: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watched {
    pub pid: u32,
}

/// How the mount process ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ended {
    pub clean: bool,
    pub error: Option<String>,
}

/// What the serving side knows of itself.
pub struct Subject {
    pub file_system: Arc<FileSystem>,
    pub store: PathBuf,
    pub since: Instant,
}

/// The serving side: answers until the process ends.
pub struct Control {
    watchers: Arc<Mutex<Vec<UnixStream>>>,
}

impl Control {
    /// Listens for the mount of this device number.
    pub fn serve(device: u64, subject: Subject) -> io::Result<Control> {
        let listener = UnixListener::bind_addr(&address(device)?)?;
        let watchers = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&watchers);
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream.and_then(|stream| answer(stream, &subject, &shared)) {
                    Ok(()) => {}
                    Err(error) => tracing::debug!("a control connection failed: {error}"),
                }
            }
        })?;
        Ok(Control { watchers })
    }

    /// Tells everyone who waits how the mount ended.
    pub fn end(self, ended: &Ended) {
        let line = serde_json::to_string(ended).expect("plain fields are always JSON");
        let watchers = std::mem::take(&mut *self.watchers.lock().expect("nobody panics with this lock"));
        for mut watcher in watchers {
            if let Err(error) = writeln!(watcher, "{line}") {
                tracing::debug!("a waiting umount went away: {error}");
            }
        }
    }
}

fn answer(mut stream: UnixStream, subject: &Subject, watchers: &Mutex<Vec<UnixStream>>) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Ok(());
    }
    stream.set_read_timeout(Some(REQUEST_WAIT))?;
    stream.set_write_timeout(Some(REQUEST_WAIT))?;
    let mut request = String::new();
    BufReader::new(Read::take(&stream, REQUEST_BYTES_MAX)).read_line(&mut request)?;
    match request.trim_end() {
        "stats" => writeln!(stream, "{}", serde_json::to_string(&stats(subject))?),
        "watch" => {
            let watched = Watched { pid: std::process::id() };
            writeln!(stream, "{}", serde_json::to_string(&watched)?)?;
            let mut watchers = watchers.lock().expect("nobody panics with this lock");
            if watchers.len() < WATCHERS_MAX {
                watchers.push(stream);
            }
            Ok(())
        }
        other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("unknown request {other:?}"))),
    }
}

fn stats(subject: &Subject) -> Stats {
    let counters = subject.file_system.counters();
    let operations = counters.all().into_iter().map(|count| OperationStats {
        operation: count.operation.name().to_owned(),
        calls: count.calls,
        errors: count.errors,
        total_ns: count.total.as_nanos() as u64,
        latency_log2_us: count.latency.to_vec(),
    });
    Stats {
        pid: std::process::id(),
        store: subject.store.clone(),
        embedded: subject.file_system.embedded(),
        uptime_s: subject.since.elapsed().as_secs_f64(),
        requests: counters.requests(),
        retries: counters.retries(),
        reconnects: counters.reconnects(),
        operations: operations.collect(),
    }
}

/// Asks the mount process for its counts, waiting `deadline` at most.
pub fn ask_stats(device: u64, deadline: Duration) -> io::Result<Stats> {
    let mut stream = connect(device)?;
    stream.set_read_timeout(Some(deadline))?;
    stream.write_all(b"stats\n")?;
    read_answer(&mut BufReader::new(stream))
}

/// A wait for the end of a mount process.
pub struct Watch {
    pub pid: u32,
    reader: BufReader<UnixStream>,
}

impl Watch {
    pub fn begin(device: u64, deadline: Duration) -> io::Result<Watch> {
        let mut stream = connect(device)?;
        stream.set_read_timeout(Some(deadline))?;
        stream.write_all(b"watch\n")?;
        let mut reader = BufReader::new(stream);
        let watched: Watched = read_answer(&mut reader)?;
        Ok(Watch { pid: watched.pid, reader })
    }

    /// Waits until the process says how it ended; an error of kind `UnexpectedEof` where it died without a word.
    pub fn wait(mut self, deadline: Duration) -> io::Result<Ended> {
        self.reader.get_ref().set_read_timeout(Some(deadline))?;
        read_answer(&mut self.reader)
    }
}

fn read_answer<T: serde::de::DeserializeOwned>(reader: &mut BufReader<UnixStream>) -> io::Result<T> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&line)?)
}

fn connect(device: u64) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&address(device)?)
}

fn address(device: u64) -> io::Result<SocketAddr> {
    let name = format!("varve-mount-{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    SocketAddr::from_abstract_name(name)
}

/// The latency in microseconds below which `share` of the counted calls were; `None` where none were.
pub fn quantile_us(latency_log2_us: &[u64], share: f64) -> Option<u64> {
    let total: u64 = latency_log2_us.iter().sum();
    let wanted = (total as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let bucket = latency_log2_us.iter().position(|count| {
        seen += count;
        total > 0 && seen >= wanted
    })?;
    Some(1 << bucket.min(LATENCY_BUCKETS))
}

#[cfg(test)]
mod tests {
    use super::quantile_us;

    /// A quantile is the upper end of the bucket it falls into.
    #[test]
    fn quantiles_are_read_from_powers_of_two() {
        let latency = [0, 50, 0, 49, 0, 1];
        assert_eq!(quantile_us(&latency, 0.5), Some(2));
        assert_eq!(quantile_us(&latency, 0.99), Some(8));
        assert_eq!(quantile_us(&latency, 1.0), Some(32));
        assert_eq!(quantile_us(&[0, 0], 0.5), None);
    }
}
