use super::*;
use crate::shards::buckets::NUMBER_BYTES;
use bytes::Bytes;
use varve_types::InodeId;

fn key(n: u64) -> Key {
    Key::Xattr(InodeId(n), Bytes::from_static(b"user.x"))
}

fn row(len: usize) -> Option<Box<Row>> {
    Some(Box::new(Row::Xattr(Bytes::from(vec![0; len]))))
}

/// Like a worker does for its shards.
fn give_back(resident: &mut Resident) {
    let (bytes_max, steps) = resident.begin_give_back();
    for _ in 0..steps {
        if !resident.shrink_to(bytes_max, BatchNumber(1), |_| false) {
            break;
        }
    }
    resident.give_up_places();
}

#[test]
fn cache_respects_limit_and_keeps_unappended_rows() {
    let mut resident = Resident::new(Arc::new(CacheBudget::new(100_000, 1)));
    for n in 0..1000 {
        resident.set(key(n), row(1000), BatchNumber(if n < 10 { 2 } else { 1 }));
        resident.shrink(BatchNumber(1), |_| false);
    }
    assert!(resident.bytes() <= 106_250, "{} bytes", resident.bytes());
    give_back(&mut resident);
    assert!(resident.bytes() <= 100_000, "{} bytes", resident.bytes());
    assert!((0..10).all(|n| resident.seen(&key(n)).0 != KeyState::Unknown), "rows of batch 2 are not appended");
    assert!((10..1000).filter(|n| resident.seen(&key(*n)).0 != KeyState::Unknown).count() < 100);
}

#[test]
fn a_fetch_does_not_overwrite_a_decision() {
    let mut resident = Resident::new(Arc::new(CacheBudget::new(1000, 1)));
    assert!(resident.begin_fetch(&key(1)));
    assert!(!resident.begin_fetch(&key(1)));
    resident.set(key(1), None, BatchNumber(1));
    resident.end_fetch(&key(1), row(5).map(|row| *row));
    assert_eq!(resident.seen(&key(1)), (KeyState::Absent, BatchNumber(1)));
}

fn fill(resident: &mut Resident, rows: u64) {
    for n in 0..rows {
        resident.set(key(n), row(1000), BatchNumber(1));
        resident.shrink(BatchNumber(1), |_| false);
    }
}

/// Promise: one busy shard can use the memory that others leave unused, and gives it back when they need it, even
/// without further requests to it.
#[test]
fn unused_budget_is_shared() {
    let budget = Arc::new(CacheBudget::new(1_000_000, 10));
    let mut before = Resident::new(Arc::clone(&budget));
    fill(&mut before, 10_000);
    assert!((900_000..=1_062_500).contains(&before.bytes()), "{} bytes", before.bytes());
    let mut now = Resident::new(Arc::clone(&budget));
    for _ in 0..40 {
        let rows = now.len() as u64;
        fill(&mut now, rows + 10);
        give_back(&mut before);
        give_back(&mut now);
    }
    let (before_bytes, now_bytes) = (before.bytes(), now.bytes());
    assert!(before_bytes + now_bytes <= 1_010_000, "{before_bytes} and {now_bytes} bytes");
    assert!(now_bytes >= 400_000, "it has {now_bytes} bytes, beside {before_bytes} that nobody uses");
    // One shard of ten may always keep its equal part.
    now.forget(|_| false);
    fill(&mut before, 2_000);
    let mut others: Vec<Resident> = (0..9).map(|_| Resident::new(Arc::clone(&budget))).collect();
    others.iter_mut().for_each(|other| fill(other, 1_000));
    for _ in 0..20 {
        others.iter_mut().chain([&mut before]).for_each(give_back);
    }
    assert!(before.bytes() >= 98_000, "{} bytes", before.bytes());
}

/// Promise: dropped rows leave no slots behind.
#[test]
fn slots_are_released() {
    let budget = Arc::new(CacheBudget::new(usize::MAX / 2, 1));
    let mut resident = Resident::new(budget);
    fill(&mut resident, 10_000);
    resident.forget(|key| matches!(key, Key::Xattr(InodeId(0..100), _)));
    resident.give_up_places();
    assert!(resident.slots.capacity() < 1000);
    assert!((0..100).all(|n| resident.seen(&key(n)).0 != KeyState::Unknown));
}

/// Promise: a slot takes no more memory than is counted for it, even after many removals: rows are boxed, and absent
/// names are dropped first.
#[test]
fn absent_rows_are_small_and_evicted_first() {
    // A slot, one third of them empty on average, its index entry, an entry in the list of empty slots, and the name's
    // bytes.
    let places = size_of::<Option<(Key, CachedRow)>>() * 3 / 2 + NUMBER_BYTES + 4;
    assert!(places + 64 <= SLOT_BYTES, "{places} bytes");
    let mut resident = Resident::new(Arc::new(CacheBudget::new(100 * (SLOT_BYTES + size_of::<Row>()), 1)));
    for n in 0..100 {
        resident.set(key(n), if n % 2 == 0 { row(0) } else { None }, BatchNumber(1));
    }
    for n in 100..125 {
        resident.set(key(n), row(0), BatchNumber(1));
        give_back(&mut resident);
    }
    let there = (0..125).filter(|n| matches!(resident.seen(&key(*n)).0, KeyState::Present(_))).count();
    assert_eq!(there, 75);
}

/// Promise: a slot map holds the same as a map, whatever is inserted, removed and compacted in between.
#[test]
fn slot_map_matches_a_reference_map() {
    let mut places = SlotMap::new();
    let mut map = std::collections::HashMap::new();
    let mut random = 1_u64;
    for step in 0..50_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // More inserts than removals at first, and fewer later.
        let (n, takes_out) = ((random >> 33) % 2_000, (random >> 50) % 10 < if step < 25_000 { 3 } else { 7 });
        if takes_out {
            let removed = places.find(&key(n)).and_then(|place| places.remove(place));
            assert_eq!(removed, map.remove(&n));
        } else {
            assert_eq!(places.insert(key(n), step).1, map.insert(n, step));
        }
        if step % 5_000 == 0 {
            places.shrink();
        }
        assert_eq!(places.len(), map.len());
    }
    for n in 0..2_000 {
        let found = places.find(&key(n)).and_then(|place| places.at(place)).map(|(_, entry)| entry);
        assert_eq!(found, map.get(&n));
    }
    assert_eq!(places.iter().count(), map.len());
    assert!(places.end() < 2_000, "empty places are used again");
}

/// Promise: a removed row is dropped once its batch is appended, if it is known without it that the row is absent. A
/// row that is set again, or requested in the meantime, stays.
#[test]
fn absent_rows_are_dropped() {
    let mut resident = Resident::new(Arc::new(CacheBudget::new(1_000_000, 1)));
    for n in 0..4 {
        resident.set(key(n), row(10), BatchNumber(1));
        assert!(resident.set(key(n), None, BatchNumber(2)), "there was a row");
    }
    resident.set(key(3), row(10), BatchNumber(3));
    resident.forget_absent(BatchNumber(1), |_| true);
    assert_eq!(resident.len(), 4, "batch 2 is not appended");
    resident.forget_absent(BatchNumber(2), |asked| *asked != key(1));
    assert_eq!([0, 1, 2].map(|n| resident.seen(&key(n)).0), [KeyState::Unknown, KeyState::Absent, KeyState::Unknown]);
    assert!(matches!(resident.seen(&key(3)).0, KeyState::Present(_)));
    let bytes = resident.bytes();
    resident.forget(|_| false);
    assert!(bytes > 0 && resident.bytes() == 0, "what was dropped is not counted");
}
