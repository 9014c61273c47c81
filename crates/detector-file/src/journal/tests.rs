use super::*;
use proptest::prelude::*;
use std::fs::OpenOptions;
use varve_detector_dataset::dataset_spec::{Region, ScalarKind};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry};
use varve_detector_hdf5::ElementType;

fn frame() -> JournalEntry {
    let chunk = ChunkEntry { address: 4096, size: 300, mask: 0, checksum: 7 };
    let frame = FrameEntry { number: 5, times: [1, 2, 3, 4], missing: vec![6] };
    JournalEntry::ChunkGroup(ChunkGroupEntry {
        chunk_group: 2,
        epoch: 1,
        again: true,
        frames: vec![frame],
        chunks: vec![chunk],
    })
}

fn column() -> JournalEntry {
    JournalEntry::Column { name: "a".into(), kind: ScalarKind::Text(4) }
}

#[test]
fn records_have_their_golden_bytes() {
    let mut bytes = Vec::new();
    encode(&frame(), &mut bytes);
    let payload = b"\x00\x02\x01\x01\x01\x05\x01\x02\x03\x04\x01\x06\x01\x80\x20\xac\x02\x00\x07";
    assert_eq!(&bytes[..4], (payload.len() as u32).to_le_bytes());
    assert_eq!(&bytes[4..4 + payload.len()], payload);
    assert_eq!(bytes[4 + payload.len()..], xxh3_64(payload).to_le_bytes());
    let mut durable = Vec::new();
    encode(&JournalEntry::Durable { entries: 9, time: 300 }, &mut durable);
    assert_eq!(&durable[..7], b"\x04\0\0\0\x01\x09\xac");
    let mut added = Vec::new();
    encode(&column(), &mut added);
    assert_eq!(&added[4..9], b"\x05\x01a\x02\x04");
    assert_eq!(decode_entry(&added[4..9]), Some(column()));
    let mut granted = Vec::new();
    encode(&JournalEntry::Granted { end: 300 }, &mut granted);
    assert_eq!(&granted[..7], b"\x03\0\0\0\x06\xac\x02");
    let head = encode_head(&DatasetSpec::new(ElementType::U16, vec![2, 3]));
    assert_eq!(&head[..8], b"VARVEDJ1");
}

/// Promise: a full journal reports its error to every caller, not only to the first.
#[test]
fn a_full_journal_says_so_each_time() {
    let full = OpenOptions::new().append(true).open("/dev/full").expect("a device");
    let mut journal = Journal::lock(full).expect("nobody has it");
    for _ in 0..2 {
        let error = journal.append(&[column()]).expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("No space left"), "{error}");
    }
}

/// Promise: a record that readers would take for damage is not written, and later records are.
#[test]
fn overlong_record_is_not_written() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let mut journal = Journal::lock(file.reopen().expect("open")).expect("nobody has it");
    journal.write_head(&DatasetSpec::new(ElementType::U16, vec![2, 3])).expect("a head");
    let long = JournalEntry::Column { name: "a".repeat(RECORD_BYTES_MAX), kind: ScalarKind::Float };
    let error = journal.append(&[column(), long]).expect_err("it is too long").to_string();
    assert!(error.contains("exceeds the limit"), "{error}");
    journal.append(&[frame()]).expect("a record");
    let contents = read(file.path()).expect("a journal");
    assert_eq!((contents.entries, contents.torn_bytes), (vec![frame()], 0));
}

proptest! {
    /// Wherever a crash cuts the journal or a bit flips, all intact records are read, and the damage is known before
    /// later marks, whose entry counts do not apply.
    #[test]
    fn intact_records_of_a_damaged_journal_are_read(cut in 0_usize..2000, turned in prop::collection::vec(0_usize..2000, 0..3)) {
        let description = DatasetSpec::new(ElementType::U16, vec![2, 3]);
        let mut bytes = encode_head(&description);
        let head = bytes.len();
        let entries: Vec<JournalEntry> = (0..20).map(|number| JournalEntry::Duplicate { frame: number }).chain([column(), frame()]).collect();
        let ends: Vec<usize> = entries.iter().map(|entry| {
            encode(entry, &mut bytes);
            bytes.len()
        }).collect();
        let all = bytes.len() - head;
        let turned: Vec<usize> = turned.into_iter().map(|turned| head + turned % all).collect();
        bytes.truncate(head + cut % (all + 1));
        for turned in &turned {
            if let Some(byte) = bytes.get_mut(*turned) {
                *byte ^= 1 << (turned % 8);
            }
        }
        let mut intact = encode_head(&description);
        let whole: Vec<bool> = entries.iter().zip(&ends).map(|(entry, end)| {
            let begin = intact.len();
            encode(entry, &mut intact);
            *end <= bytes.len() && bytes[begin..*end] == intact[begin..*end]
        }).collect();
        let contents = decode(&bytes).expect("the head is whole");
        let damaged = whole.iter().position(|whole| !whole).unwrap_or(whole.len());
        let later = whole[damaged..].iter().any(|whole| *whole);
        let counted = |number: usize| number < damaged || entries[number] != column();
        let read: Vec<JournalEntry> = (0..entries.len()).filter(|at| whole[*at] && counted(*at)).map(|at| entries[at].clone()).collect();
        prop_assert_eq!(contents.entries, read);
        prop_assert_eq!(contents.damage.is_none(), !later);
        prop_assert_eq!(contents.intact, damaged);
        prop_assert_eq!(contents.damage.columns, u64::from(whole[20] && damaged < 20));
        prop_assert_eq!(contents.description, description);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err());
    }
}

/// Promise: a run whose journal could have records too long to be read is refused before it begins.
#[test]
fn chunk_group_record_size_is_checked() {
    let begun = |chunk: Vec<u64>, frame: u64, sources: u64| {
        let mut description = DatasetSpec::new(ElementType::U8, vec![frame]);
        description.chunk = Some(chunk);
        description.sources = (0..sources).map(|at| Region { offset: vec![at], shape: vec![1] }).collect();
        description.check().expect("as journals of other runs may have it");
        let worst = ChunkGroupEntry {
            chunk_group: u64::MAX,
            epoch: u32::MAX,
            again: true,
            frames: (0..description.chunk_group_frames())
                .map(|at| FrameEntry {
                    number: u64::MAX - at,
                    times: [u64::MAX; 4],
                    missing: (0..sources as u32).filter(|_| sources > 1).collect(),
                })
                .collect(),
            chunks: (0..description.chunks_per_frame())
                .map(|_| ChunkEntry { address: u64::MAX, size: u64::MAX, mask: u32::MAX, checksum: u64::MAX })
                .collect(),
        };
        let mut record = Vec::new();
        encode(&JournalEntry::ChunkGroup(worst), &mut record);
        let begun = description.check_begin().map_err(|error| error.0);
        assert!(begun.is_err() || decode_records(&record).is_some(), "it could not be read back");
        begun
    };
    begun(vec![1_300_000, 1], 1, 0).expect("a record that is read back");
    begun(vec![30_000, 1], 1024, 1000).expect("a record that is read back");
    begun(vec![1], 1_900_000, 0).expect("a record that is read back");
    for (chunk, frame, sources) in [(vec![2_000_000, 1], 1, 0), (vec![40_000, 1], 1024, 1000), (vec![1], 2_000_000, 0)]
    {
        let why = begun(chunk, frame, sources).expect_err("refused");
        assert!(why.contains("give smaller sides of the scan in `chunk`"), "{why}");
    }
}
