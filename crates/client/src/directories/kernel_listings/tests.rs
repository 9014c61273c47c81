use super::*;
use varve_types::NameHash;

const D: InodeId = InodeId(7);
const MIDDLE: u64 = 1 << 62;

fn partition(first: u64, last: u64, batch: u64) -> ListedPartition {
    ListedPartition { first, last, version: Some(NamesVersion { loaded: 1, batch }) }
}

/// Both halves of a directory, at these versions.
fn note_halves(listings: &KernelListings, low: u64, high: u64) {
    listings.note(D, &partition(0, MIDDLE - 1, low), true);
    listings.note(D, &partition(MIDDLE, NameHash::LAST.0, high), true);
}

#[test]
fn listing_of_current_versions_is_kept() {
    let listings = KernelListings::default();
    assert_eq!(listings.cached(D), None);
    assert_eq!(listings.open(D, None), KernelListing::Refill);
    assert_eq!(listings.open(D, None), KernelListing::Refill, "the other handle returned nothing");
    listings.begin(D);
    listings.note(D, &partition(0, MIDDLE - 1, 3), true);
    let half = listings.cached(D).unwrap();
    assert_eq!(listings.open(D, Some(&half)), KernelListing::Keep, "the rest is added to it");
    listings.note(D, &partition(MIDDLE, NameHash::LAST.0, 4), true);
    assert_eq!(listings.open(D, Some(&half)), KernelListing::Bypass, "the other half was not compared");
    let parts = listings.cached(D).unwrap();
    assert_eq!(listings.open(D, Some(&parts)), KernelListing::Keep, "also beside the handle that filled the cache");
    listings.end(D);
    assert_eq!(listings.open(D, None), KernelListing::Refill, "the server has other versions");
    assert_eq!(listings.cached(D), None, "and the kernel drops its pages");
}

#[test]
fn names_of_two_versions_are_never_kept() {
    let listings = KernelListings::default();
    listings.open(D, None);
    listings.begin(D);
    note_halves(&listings, 3, 4);
    let parts = listings.cached(D).unwrap();
    note_halves(&listings, 3, 5);
    assert_eq!(listings.cached(D), None);
    assert_eq!(listings.open(D, Some(&parts)), KernelListing::Bypass, "another handle may still fill the cache");
    listings.end(D);
    assert_eq!(listings.open(D, Some(&parts)), KernelListing::Refill);
    note_halves(&listings, 3, 5);
    assert!(listings.cached(D).is_some());
}

#[test]
fn split_partition_is_another_version() {
    let listings = KernelListings::default();
    listings.open(D, None);
    listings.begin(D);
    listings.note(D, &partition(0, NameHash::LAST.0, 3), true);
    assert!(listings.cached(D).is_some());
    listings.note(D, &partition(0, MIDDLE - 1, 3), true);
    assert_eq!(listings.cached(D), None);
}

#[test]
fn unknown_versions_and_drawn_cookies_are_never_kept() {
    for (version, repeatable) in [(None, true), (Some(NamesVersion { loaded: 1, batch: 1 }), false)] {
        let listings = KernelListings::default();
        listings.open(D, None);
        listings.begin(D);
        listings.note(D, &ListedPartition { first: 0, last: NameHash::LAST.0, version }, repeatable);
        assert_eq!(listings.cached(D), None);
    }
}

#[test]
fn records_and_their_partitions_are_limited() {
    let listings = KernelListings::default();
    listings.open(D, None);
    listings.begin(D);
    let width = (NameHash::LAST.0 + 1) / 32;
    for at in 0..32 {
        listings.note(D, &partition(at * width, (at + 1) * width - 1, 1), true);
    }
    assert_eq!(listings.cached(D), None, "an open would have to ask for 32 versions");
    for number in 1..DIRECTORIES_MAX as u64 {
        assert_eq!(listings.open(InodeId(1000 + number), None), KernelListing::Refill);
        listings.begin(InodeId(1000 + number));
    }
    assert_eq!(listings.open(InodeId(1), None), KernelListing::Bypass);
    listings.end(InodeId(1001));
    assert_eq!(listings.open(InodeId(1), None), KernelListing::Refill);
    assert_eq!(listings.0.lock().len(), DIRECTORIES_MAX);
    listings.begin(InodeId(1001));
    listings.note(InodeId(1001), &partition(0, NameHash::LAST.0, 1), true);
    assert_eq!(listings.cached(InodeId(1001)), None, "its record was forgotten");
}
