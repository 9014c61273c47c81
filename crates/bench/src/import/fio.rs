//! fio's JSON (`--output-format=json`).

use super::{Read, bytes_of, entry, set};
use crate::measure::Percentiles;
use crate::run_file::{RunEntry, parameters, units};
use serde_json::Value;

const MIB: f64 = 1048576.0;

pub(super) fn read(text: &str) -> Read<Vec<RunEntry>> {
    // fio prints its notes before the document.
    let begin = text.find('{').ok_or("it has no JSON")?;
    let mut documents = serde_json::Deserializer::from_str(&text[begin..]).into_iter::<Value>();
    let document = documents.next().ok_or("it has no JSON")?.map_err(|error| error.to_string())?;
    let version = document["fio version"].as_str().unwrap_or("fio");
    let jobs = document["jobs"].as_array().ok_or("it has no jobs")?;
    let global = &document["global options"];
    let mut entries = Vec::new();
    for job in jobs {
        let option = |name: &str| {
            let own = job["job options"][name].as_str().or_else(|| global[name].as_str());
            own.map(str::to_owned)
        };
        for direction in ["write", "read"] {
            let side = &job[direction];
            let rate = side["bw_bytes"].as_f64().or_else(|| side["bw"].as_f64().map(|kib| kib * 1024.0)).unwrap_or(0.0);
            if rate <= 0.0 {
                continue;
            }
            let pattern = option("rw").or_else(|| option("readwrite")).unwrap_or_default();
            let is_random = pattern.starts_with("rand");
            let metric = if is_random { format!("random {direction}") } else { direction.to_owned() };
            let latency = percentiles(side);
            let parameters = |entry: &mut RunEntry| {
                set(entry, parameters::CLIENTS, option("numjobs").map_or(Some(1), |jobs| jobs.parse::<u64>().ok()));
                set(entry, parameters::TRANSFER_BYTES, option("bs").and_then(|bytes| bytes_of(&bytes)));
                set(entry, parameters::FILE_BYTES, option("size").and_then(|bytes| bytes_of(&bytes)));
                set(entry, "job", job["jobname"].as_str());
                set(entry, "direct", option("direct"));
                entry.latency_us = latency;
            };
            let mut bandwidth = entry("fio", &metric, units::MIB_PER_S, version, vec![rate / MIB]);
            parameters(&mut bandwidth);
            super::collect(&mut entries, bandwidth);
            if let Some(iops) = side["iops"].as_f64().filter(|_| is_random) {
                let mut rate = entry("fio", &format!("{metric} operations"), units::OPS_PER_S, version, vec![iops]);
                parameters(&mut rate);
                super::collect(&mut entries, rate);
            }
        }
    }
    if entries.is_empty() { Err("no job wrote or read anything".to_owned()) } else { Ok(entries) }
}

/// Of completion latencies, in nanoseconds in the document.
fn percentiles(side: &Value) -> Option<Percentiles> {
    let latency = [&side["clat_ns"], &side["lat_ns"]].into_iter().find(|latency| latency["percentile"].is_object())?;
    let at = |percent: &str| latency["percentile"][percent].as_f64().unwrap_or(0.0) / 1e3;
    Some(Percentiles {
        p50: at("50.000000"),
        p99: at("99.000000"),
        p999: at("99.900000"),
        max: latency["max"].as_f64().unwrap_or(0.0) / 1e3,
        mean: latency["mean"].as_f64().unwrap_or(0.0) / 1e3,
    })
}
