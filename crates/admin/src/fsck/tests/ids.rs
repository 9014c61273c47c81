//! No inode id is assigned twice, whatever information a repair lacks.

use super::repairs::{NOTHING, repaired};
use super::salvage::files_that_end;
use super::*;
use crate::snapshot::offline;

impl Site {
    /// Reserves ids as a shard does before it assigns ids of a block.
    fn take_ids(&self, shard: ShardId, inodes_end: u64) {
        let runtime = offline::runtime().unwrap();
        let store = PosixStore::open(self.volume.shards()).unwrap();
        let config = offline::table_config(&self.volume, &self.settings, store, runtime.handle().clone());
        runtime.block_on(async {
            let table = Table::open(TableConfig { shard, ..config }).await.unwrap();
            let mut batch = TableBatch::default();
            let row = codec::encode_row(&Row::Counter(CounterRow { inodes_end }));
            batch.put(codec::encode_key(&Key::Counter), row);
            table.write(&batch).await.unwrap();
            table.sync().await.unwrap();
        });
    }

    /// The counter value of the next id of `shard`.
    fn ids_begin_with(&self, shard: ShardId) -> u64 {
        let counters = self.rows(Kind::Counter).into_iter().filter_map(|(_, row)| match row {
            Row::Counter(counter) => Some(counter.inodes_end),
            _ => None,
        });
        counters.collect::<Vec<_>>()[usize::from(shard.0)]
    }
}

#[test]
fn counters_are_raised() {
    let counter = Row::Counter(CounterRow { inodes_end: 4 });
    repaired(|site| site.put(SHARD_0, Key::Counter, counter), FindingKind::CounterTooLow, &NOTHING);
}

/// A damaged counter: new ids begin beyond every value that it can have had, so none of them is in use.
#[test]
fn damaged_counter_is_raised_above_used_ids() {
    let damage = |site: &Site| {
        site.edit(SHARD_0, |batch| batch.put(codec::encode_key(&Key::Counter), b"\x01garbage"));
    };
    let site = repaired(damage, FindingKind::DamagedRow, &NOTHING);
    assert!(site.ids_begin_with(SHARD_0) >= 1_000_000);
}

/// Blocks of ids that only the lost log recorded are not assigned again.
#[test]
fn ids_from_a_lost_log_are_not_reused() {
    // Remains of the log: an empty directory in a shard without tables, no file at all, only its marks, or files that
    // are truncated to this many bytes.
    for left in ["no shard", "nothing", "marks", "0", "64"] {
        // In the case "nothing" the tables are empty too.
        let site = if left == "nothing" { Site::new() } else { Site::flushed() };
        let taken = site.ids_begin_with(SHARD_0) + 40 * 65_536;
        site.take_ids(SHARD_0, taken);
        if left == "no shard" {
            std::fs::remove_dir_all(site.volume.shard(SHARD_0)).unwrap();
            std::fs::create_dir_all(site.volume.shard_log(SHARD_0)).unwrap();
        }
        let ending = if left == "nothing" { "" } else { ".log" };
        for log in files_that_end(&site.volume.shard_log(SHARD_0), ending) {
            match left.parse() {
                Err(_) => std::fs::remove_file(&log).unwrap(),
                Ok(bytes) => std::fs::File::options().write(true).open(&log).unwrap().set_len(bytes).unwrap(),
            }
        }
        assert!(!site.check().is_sound(), "{left}: its loss is not seen");
        let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.findings, [], "{left}: {:#?}", repaired.repairs);
        let begin = site.ids_begin_with(SHARD_0);
        assert!(begin >= taken, "{left}: ids begin again with {begin}, and those below {taken} were given");
    }
}
