//! The journal of a detector run, which a crash may have truncated anywhere.
//!
//! Input: `J` and a journal, or `E` and the payload of one of its records, because a mutated record would fail its
//! checksum.

use super::choice;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_file::journal::{decode, decode_entry, encode};
use varve_detector_hdf5::ElementType;

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'J', journal)) => decode(journal).is_ok(),
        Some((b'E', payload)) => {
            let Some(entry) = decode_entry(payload) else { return false };
            let mut record = Vec::new();
            encode(&entry, &mut record);
            let again = decode_entry(&record[4..record.len() - 8]);
            // NaNs are not equal to themselves.
            assert_eq!(format!("{:?}", again.expect("what was written is read")), format!("{entry:?}"));
            let mut description = DatasetSpec::new(ElementType::U16, vec![4, 4]);
            description.scalars = vec!["one".into(), "other".into()];
            let mut catalog = Catalog::new(description);
            if is_near(&entry) {
                catalog.apply(&entry, 1);
            }
            true
        }
        _ => false,
    }
}

/// A table extends to its highest frame, so a run accepts no frame far above all others.
fn is_near(entry: &JournalEntry) -> bool {
    const NEAR: u64 = 1000;
    match entry {
        JournalEntry::ChunkGroup(chunk_group) => {
            chunk_group.chunk_group < NEAR && chunk_group.frames.iter().all(|frame| frame.number < NEAR)
        }
        JournalEntry::Scalars { frame, .. } | JournalEntry::Duplicate { frame } | JournalEntry::Damaged { frame } => {
            *frame < NEAR
        }
        JournalEntry::Column { kind, .. } => kind.datatype().size() < 4096,
        JournalEntry::Durable { .. } | JournalEntry::Granted { .. } => true,
    }
}
