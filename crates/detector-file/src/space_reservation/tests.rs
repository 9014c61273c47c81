use super::*;
use crate::commit::image;
use proptest::prelude::*;
use varve_detector_dataset::dataset_spec::{DatasetSpec, ScalarKind, Structure};
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry};
use varve_detector_dataset::layout::Layout;
use varve_detector_hdf5::ElementType;

const LAYOUT: &str = "<hdf5_layout><group name='entry'><dataset name='data' source='detector' det_default='true'/>\
                      <group name='performance'><dataset name='timestamp'/></group></group></hdf5_layout>";

fn descriptions() -> Vec<DatasetSpec> {
    let with = |change: &dyn Fn(&mut DatasetSpec)| {
        let mut description = DatasetSpec::new(ElementType::U16, vec![8, 6]);
        change(&mut description);
        description.check().expect("a description");
        description
    };
    vec![
        with(&|_| {}),
        with(&|run| run.scan = vec![Some(4000)]),
        with(&|run| (run.scan, run.chunk) = (vec![Some(4000)], Some(vec![4, 8, 6]))),
        with(&|run| run.scan = vec![Some(2000), Some(10)]),
        with(&|run| run.scan = vec![None, Some(7)]),
        with(&|run| run.chunk = Some(vec![2, 3])),
        with(&|run| run.chunk = Some(vec![4, 8, 6])),
        with(&|run| (run.scan, run.scan_max) = (vec![None, Some(5)], Some(vec![None, None]))),
        with(&|run| (run.scan, run.scan_max) = (vec![Some(4000), Some(5)], Some(vec![Some(5000), Some(30)]))),
        with(&|run| run.structure = Structure::Nexus),
        with(&|run| run.structure = Structure::Layout(Layout::parse(LAYOUT).expect("a layout"))),
    ]
}

fn entry(description: &DatasetSpec, frame: u64, what: u8) -> JournalEntry {
    match what {
        0..5 => {
            let chunk = ChunkEntry { address: 1 << 40, size: 96, mask: 0, checksum: 0 };
            let (chunk_group, _) = description.chunk_group_of(frame);
            let frames = vec![FrameEntry { number: frame, times: [1; 4], missing: Vec::new() }];
            let chunks = vec![chunk; description.chunks_per_frame() as usize];
            JournalEntry::ChunkGroup(ChunkGroupEntry { chunk_group, epoch: 0, again: true, frames, chunks })
        }
        5 => JournalEntry::Damaged { frame },
        6 => JournalEntry::Column { name: format!("column {frame}"), kind: ScalarKind::Float },
        _ => JournalEntry::Duplicate { frame },
    }
}

/// Promise: when a commit begins, the following commit keeps the space that was found for it, even if the pieces fit in
/// only one order.
#[test]
fn commit_reserves_space_for_the_next_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(1 << 20).expect("its length");
    let (length, allocator) = (Length::new(1 << 30), Allocator::new(1 << 20));
    let mut room = SpaceReservation::new(&mut Catalog::new(descriptions().swap_remove(0)));
    let space = Space { file: &file, length: &length, allocator: &allocator };
    room.expect(space, &[JournalEntry::Damaged { frame: 0 }]).expect("room");
    room.apply();
    room.expect(space, &[JournalEntry::Damaged { frame: 1 }]).expect("room");
    // Its tree, with which the next one begins, is a little smaller than that commit's columns.
    let tree_of = |room: &SpaceReservation, brought: &CommitInput, before: u64| {
        Shape { tree: before, ..room.shape }.tree_bytes(brought)
    };
    let next_columns = rounded(room.shape.after(&room.applied).data_bytes(&room.pending));
    let grown = tree_of(&room, &room.applied, 0) + tree_of(&room, &room.pending, 0);
    room.shape.tree = (next_columns - grown) / 8 * 8 - 64;
    let tree = room.shape.tree_bytes(&room.applied);
    let next_tree = rounded(tree_of(&room, &room.pending, tree));
    let tree = rounded(tree);
    let columns = next_tree + tree - next_columns - 8;
    assert!(columns < tree && tree < next_tree && next_tree < next_columns);
    let (small, large) = (next_columns + columns, next_tree + tree);
    room.free = vec![4096..4096 + small, 1 << 19..(1 << 19) + large];
    // Preallocation fails in a file that is open for reading.
    let full = std::fs::File::open(&path).expect("the file");
    let space = Space { file: &full, ..space };
    let place = room.begin(space, columns).expect("there is room for both");
    assert!(place.data.end <= place.tree.start || place.tree.end <= place.data.start, "{place:?}");
    room.apply();
    room.begin(space, next_columns).expect("as was found when the first began");
    assert_eq!(room.free, []);
}

#[test]
fn freed_pieces_merge_in_any_order() {
    let mut room = SpaceReservation::new(&mut Catalog::new(descriptions().swap_remove(0)));
    room.free = vec![100..108, 200..208];
    room.give_back_all(vec![208..216, 116..124, 300..300, 108..116, 96..100]);
    assert_eq!(room.free, [96..124, 200..216]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For any frames in any order, space is reserved for their commit before it begins.
    #[test]
    fn commit_stays_within_its_reservation(
        which in 0..11_usize,
        rounds in prop::collection::vec((prop::collection::vec((0..700_u64, 0..8_u8), 0..60), 0..4_u64, 0..60_usize), 1..6),
    ) {
        let description = descriptions().swap_remove(which);
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 20).expect("its length");
        let (length, allocator) = (Length::new(1 << 20), Allocator::new(1 << 20));
        let space = Space { file: &file, length: &length, allocator: &allocator };
        let mut catalog = Catalog::new(description.clone());
        let mut room = SpaceReservation::new(&mut catalog);
        room.shape.tree = image(&catalog, 0).expect("a tree").0.len() as u64;
        let mut known: Vec<String> = Vec::new();
        for (frames, far, early) in rounds {
            let entries: Vec<JournalEntry> = frames
                .iter()
                .map(|(frame, what)| entry(&description, frame + far * 900, *what))
                .filter(|entry| match entry {
                    JournalEntry::Column { name, .. } => !known.contains(name) && { known.push(name.clone()); true },
                    _ => true,
                })
                .collect();
            let (applied, pending) = entries.split_at(early.min(entries.len()));
            room.expect(space, applied).expect("room");
            room.apply();
            room.expect(space, pending).expect("room");
            applied.iter().for_each(|entry| catalog.apply(entry, 2));
            let columns = catalog.changed_bytes();
            let expected = room.shape.data_bytes(&room.applied);
            prop_assert!(columns <= expected, "{columns} bytes of columns with room for {expected}");
            let place = room.begin(space, columns).expect("room");
            let stored = catalog.store(place.data.start).block.len() as u64;
            prop_assert!(stored <= columns, "{stored} bytes of columns instead of {columns}");
            let bytes = image(&catalog, 0).expect("a tree").0.len() as u64;
            let tree = place.tree.end - place.tree.start;
            prop_assert!(bytes <= tree, "{bytes} bytes of a tree with room for {tree}");
            room.settle(space, place.tree, (bytes, catalog.index_bytes())).expect("room");
            room.apply();
            pending.iter().for_each(|entry| catalog.apply(entry, 2));
        }
    }
}
