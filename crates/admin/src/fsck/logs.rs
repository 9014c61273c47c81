//! Logs that end with incomplete bytes.

use super::fix::Fix;
use super::{FindingKind, FsckReport};
use std::collections::BTreeSet;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{Key, codec};
use varve_store::{TornEnd, torn_end};
use varve_types::{ShardId, VolumeSettings};

/// Names of lost changes that are reported: enough to know what to look for.
const NAMES_MAX: usize = 20;

/// Reports the part of each shard's log that the next owner will truncate. Other damage of a log is found when it is
/// read.
pub fn compare(volume: &VolumeDir, settings: &VolumeSettings, report: &mut FsckReport) {
    for shard in settings.shards.all() {
        if let Ok(Some(torn)) = torn_end(shard, &volume.shard_log(shard)) {
            note(shard, &torn, report);
            report.fix(Fix::EndLog { shard });
        }
    }
}

fn note(shard: ShardId, torn: &TornEnd, report: &mut FsckReport) {
    let TornEnd { path, offset, reason, lost } = torn;
    let names: BTreeSet<_> = lost
        .iter()
        .filter_map(|key| match codec::decode_key(key) {
            Ok(Key::Entry(directory, name)) => Some((directory, name)),
            _ => None,
        })
        .collect();
    let reported: Vec<_> =
        names.iter().take(NAMES_MAX).map(|(directory, name)| format!("{name} in directory {directory}")).collect();
    let lost = match (lost.len(), names.len()) {
        (0, _) => "no change behind it can be read".to_owned(),
        (rows, 0) => format!("acknowledged changes of {rows} rows behind it are lost, none of them names"),
        (rows, count) => {
            let reported = reported.join(", ");
            let more = if count > NAMES_MAX { format!(" and {} more", count - NAMES_MAX) } else { String::new() };
            format!("acknowledged changes of {rows} rows behind it are lost, of the names {reported}{more}")
        }
    };
    let at = format_args!("shard {shard} {}", path.display());
    report.add(FindingKind::TornLog, at, format_args!("at byte {offset}: {reason}; it ends there, and {lost}"));
}
