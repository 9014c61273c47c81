use super::*;
use varve_proto::WireKind;

fn child(hash: u64, name: &str) -> ListingEntry {
    let entry = EntryReply::Elsewhere { inode: hash, kind: WireKind::Directory };
    ListingEntry { name: name.as_bytes().to_vec(), hash, entry }
}

/// Reads a whole batch with a reader that takes `room` names at a time.
fn read_in_portions(batch: &ListingBatch<ListingEntry>, room: usize, width: CookieWidth) -> Vec<String> {
    let mut cookies = Cookies::new(width);
    let mut cookie = AFTER_DOT_DOT;
    let mut names = Vec::new();
    loop {
        let mut left = room;
        let position = cookies.position(cookie);
        let all = show_batch(batch, &mut cookies, &position, &mut |_, entry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
            true
        });
        if all.unwrap() {
            return names;
        }
    }
}

/// Promise: for every size of the reader's buffer, no name is lost or repeated, even among names with the same hash.
#[test]
fn listing_has_each_name_once() {
    let names = [(20, "a"), (30, "b"), (30, "c"), (30, "d"), (31, "e"), (40 << 32, "f"), ((40 << 32) + 1, "g")];
    let children = names.iter().map(|(hash, name)| child(*hash, name)).collect();
    let batch = ListingBatch { from: 0, children, next: None, partition: None };
    for width in [CookieWidth::Long, CookieWidth::Short] {
        for room in 1..8 {
            let read = read_in_portions(&batch, room, width);
            assert_eq!(read, ["a", "b", "c", "d", "e", "f", "g"], "{room} at a time, {width:?}");
        }
    }
}

/// Promise: a listing is cached only if its cookies mean the same in every handle: no name shares its cookie with a
/// later one, which the next batch may have.
#[test]
fn shared_cookies_are_not_plain() {
    let (hash, next) = (40 << 32, Some((40 << 32) + 9));
    let batch = |second, next| {
        let children = vec![child(hash, "a"), child(second, "b")];
        ListingBatch { from: 0, children, next, partition: None }
    };
    let plain = |second, next, width| batch(second, next).has_plain_cookies(width);
    assert!(plain(hash + 1, next, CookieWidth::Long));
    assert!(!plain(hash, next, CookieWidth::Long));
    assert!(!plain(hash + 1, None, CookieWidth::Short));
    assert!(plain(41 << 32, None, CookieWidth::Short));
    assert!(!plain(41 << 32, Some((41 << 32) + 1), CookieWidth::Short));
}

/// Promise: a batch covers positions within the range of hashes that it was fetched for, and no others.
#[test]
fn a_batch_covers_its_range() {
    let batch = ListingBatch { from: 20, children: vec![child(25, "a")], next: Some(50), partition: None };
    assert!(batch.covers(&ListingPosition::From(20)));
    assert!(batch.covers(&ListingPosition::After(49, b"x".to_vec())));
    assert!(!batch.covers(&ListingPosition::From(19)));
    assert!(!batch.covers(&ListingPosition::From(50)));
    assert_eq!(batch.find(&ListingPosition::From(26)), 1);
}
