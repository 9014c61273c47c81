use super::*;

fn counting() -> impl FnMut() -> u64 {
    let mut next = 99;
    move || {
        next += 1;
        next
    }
}

/// Promise: the cookie after a name is its hash, and the listing continues from it with the next hash.
#[test]
fn hash_serves_as_cookie() {
    let mut cookies = Cookies::default();
    assert_eq!(cookies.after(500, b"a", true, counting()), Ok(500));
    assert_eq!(cookies.position(500), ListingPosition::From(501));
    assert_eq!(cookies.position(2), ListingPosition::From(0));
    assert_eq!(cookies.position(NameHash::LAST.0), ListingPosition::From(1 << 63));
}

/// Promise: a listing that is interrupted between names of one hash continues exactly there, also after a rewind.
#[test]
fn listing_resumes_within_equal_hashes() {
    let mut cookies = Cookies::default();
    let mut draw = counting();
    let first = cookies.after(500, b"a", false, &mut draw).unwrap();
    let second = cookies.after(500, b"b", false, &mut draw).unwrap();
    assert_eq!(cookies.after(500, b"c", true, &mut draw), Ok(500));
    assert_ne!(first, second);
    assert_eq!(cookies.after(500, b"a", false, &mut draw), Ok(first), "the same name keeps its cookie");
    let position = cookies.position(first);
    assert!(!position.precedes(500, b"a"));
    assert!(position.precedes(500, b"b"));
    assert!(position.precedes(501, b"a"));
    assert_eq!(position.hash(), 500);
}

/// Promise: a name whose hash equals a drawn number does not change the meaning of that number.
#[test]
fn allocated_cookies_stay_valid() {
    let mut cookies = Cookies::default();
    let mut draw = counting();
    let drawn = cookies.after(500, b"a", false, &mut draw).unwrap();
    let other = cookies.after(drawn, b"x", true, &mut draw).unwrap();
    assert_ne!(other, drawn);
    assert_eq!(cookies.position(drawn), ListingPosition::After(500, b"a".to_vec()));
    assert_eq!(cookies.position(other), ListingPosition::After(drawn, b"x".to_vec()));
}

/// Promise: short cookies fit into 31 bits and keep the order, and none means the start, `.` or `..`.
#[test]
fn short_cookies_fit_into_31_bits() {
    let mut cookies = Cookies::new(CookieWidth::Short);
    for (hash, cookie) in [(NameHash::FIRST.0, 16), (99 << 32 | 5, 99), (NameHash::LAST.0, (1 << 31) - 1)] {
        assert_eq!(cookies.after(hash, b"a", true, counting()), Ok(cookie));
        let position = cookies.position(cookie);
        assert!(!position.precedes(hash, b"a") && position.precedes((cookie + 1) << 32, b"a"), "{hash}");
    }
    let drawn = cookies.after(500 << 32, b"a", false, || u64::MAX).unwrap();
    assert_eq!(drawn, (1 << 31) - 1);
    assert_eq!(cookies.position(u64::MAX), ListingPosition::From(u64::MAX));
}
