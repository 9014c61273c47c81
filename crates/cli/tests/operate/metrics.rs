//! Metrics of a server and a mount, as Prometheus reads them, and the rules and dashboard for them.

use super::common::{SHORT, Server, Volume, run, until};
use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// An address of the loopback that no other process uses, so that nobody takes the port before the program listens.
fn free_address() -> String {
    static ADDRESSES: AtomicU8 = AtomicU8::new(1);
    let [.., second, first] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 64 | (second & 63), first, ADDRESSES.fetch_add(1, Relaxed));
    let free = TcpListener::bind((own, 0)).and_then(|free| free.local_addr()).expect("a free port");
    free.to_string()
}

/// The status code and the body.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the endpoint listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// The names of all samples, without the suffixes of histograms. Checks that each has a help text and a type.
fn families(page: &str) -> BTreeSet<String> {
    let mut types = HashMap::new();
    let mut helps = BTreeSet::new();
    let mut names = BTreeSet::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] if !help.is_empty() => drop(helps.insert(name.to_owned())),
            ["#", "TYPE", name, kind] => drop(types.insert(name.to_owned(), kind.to_owned())),
            _ => {
                let name = line.split(['{', ' ']).next().expect("a name");
                let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
                    name.strip_suffix(end).filter(|base| types.get(*base).is_some_and(|kind| kind == "histogram"))
                });
                names.insert(of_histogram.unwrap_or(name).to_owned());
            }
        }
    }
    for name in &names {
        let kind = types.get(name).unwrap_or_else(|| panic!("{name} has no type"));
        assert!(helps.contains(name), "{name} has no help text");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
    }
    names
}

/// The value of the first sample that begins so.
fn value(page: &str, sample: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(sample)).unwrap_or_else(|| panic!("no {sample} in:\n{page}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// The sum of all samples of a metric with these labels.
fn sum(page: &str, metric: &str, labels: &str) -> f64 {
    let samples = page.lines().filter(|line| line.starts_with(metric) && line.contains(labels));
    samples.map(|line| value(line, metric)).sum()
}

fn check_by_promtool(page: &str) {
    let mut promtool = Command::new("promtool");
    let started = promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.expect("`make setup` installs promtool");
    child.stdin.take().expect("piped").write_all(page.as_bytes()).expect("it reads");
    let checked = child.wait_with_output().expect("it ends");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

fn ready(address: &str) {
    until("it is ready", SHORT, || get(address, "/readyz").0 == 200);
}

/// A server and a mount with metrics, after some work. Returns both pages.
fn pages() -> (String, String) {
    let volume = Volume::format(&["--shards", "4"]);
    let (of_server, of_mount) = (free_address(), free_address());
    let server: Server = volume.serve(&["--metrics", &of_server]);
    let mount = volume.mount(&["-o", "noembedded", "--metrics", &of_mount]);
    ready(&of_server);
    ready(&of_mount);
    assert_eq!(get(&of_server, "/healthz"), (200, "ok\n".to_owned()));
    for name in 0..20 {
        std::fs::write(mount.directory.join(name.to_string()), "content").expect("a file");
    }
    assert!(std::fs::metadata(mount.directory.join("absent")).is_err());
    std::fs::create_dir(mount.directory.join("directory")).expect("a directory");
    until("the gauges are set", SHORT, || {
        let page = get(&of_server, "/metrics").1;
        let synced = page.contains("varve_store_free_bytes") && page.contains("varve_log_sync_seconds_count");
        synced && sum(&page, "varve_shards{", "state=\"open\"") == 4.0 && value(&page, "varve_sessions ") >= 1.0
    });
    let pages = (get(&of_server, "/metrics").1, get(&of_mount, "/metrics").1);
    mount.unmount();
    server.stop();
    pages
}

/// Promise: metrics follow Prometheus' conventions, ENOENT of a lookup is no failure, and every metric of the rules and
/// the dashboard exists.
#[test]
fn metrics_follow_conventions() {
    let (server, mount) = pages();
    for page in [&server, &mount] {
        check_by_promtool(page);
        assert!(value(page, "process_resident_memory_bytes ") > 1e6);
        assert_eq!(value(page, &format!("varve_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))), 1.0);
    }
    assert!(sum(&server, "varve_calls_total{", "call=\"lookup\",outcome=\"refused\"") >= 1.0, "{server}");
    assert!(!mount.lines().any(|line| line.contains("outcome=\"failed\"") && !line.ends_with(" 0")), "{mount}");
    assert_eq!(value(&mount, "varve_operations_total{operation=\"mkdir\",outcome=\"done\"}"), 1.0);
    assert_eq!(value(&mount, "varve_written_bytes_total "), 20.0 * 7.0);
    assert!(value(&server, "varve_log_appended_bytes_total ") > 0.0);
    let known: BTreeSet<String> = families(&server).union(&families(&mount)).cloned().collect();
    // Counted when it happens.
    let later = ["varve_splits_total", "varve_transactions_total"];
    for file in ["prometheus/varve.rules.yml", "grafana/varve.json"] {
        let text = std::fs::read_to_string(contrib(file)).expect("it is part of the source");
        let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
        for word in words.filter(|word| word.starts_with("varve_") && !word.starts_with("varve_record_")) {
            let base = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(known.contains(base) || later.contains(&base), "{file} uses {word}, which is not served");
        }
    }
}

/// Promise: the alert rules are valid, and the dashboard is JSON.
#[test]
fn rules_and_dashboard_are_valid() {
    let mut promtool = Command::new("promtool");
    run(promtool.args(["check", "rules"]).arg(contrib("prometheus/varve.rules.yml")), SHORT).succeeded("promtool");
    let dashboard = std::fs::read_to_string(contrib("grafana/varve.json")).expect("it is part of the source");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 10));
}
