use super::*;

fn buffer(text: &[u8]) -> InlineBuffer {
    InlineBuffer::clean(text.to_vec())
}

/// Promise: reads stop at the end of the content, and return nothing beyond it.
#[test]
fn reads_stop_at_the_end() {
    let buffer = buffer(b"hello");
    let mut out = [9; 4];
    assert_eq!(buffer.read(3, &mut out), 2);
    assert_eq!(&out, b"lo\x09\x09");
    assert_eq!(buffer.read(5, &mut out), 0);
    assert_eq!(buffer.read(u64::MAX, &mut out), 0);
}

/// Promise: bytes between the old end and a write beyond it are zero.
#[test]
fn holes_read_as_zero() {
    let mut buffer = buffer(b"ab");
    buffer.write(4, b"x");
    assert_eq!(buffer.bytes(), b"ab\0\0x");
    buffer.resize(1);
    buffer.resize(3);
    assert_eq!(buffer.bytes(), b"a\0\0");
    buffer.written_back();
    buffer.zero(0..100);
    assert_eq!(buffer.bytes(), b"\0\0\0");
}

/// Promise: local changes survive on top of another writer's content, and alter only the bytes that were written or cut
/// locally.
#[test]
fn own_writes_merge_onto_newer_content() {
    let merged = |change: fn(&mut InlineBuffer), theirs: &str| {
        let mut mine = buffer(b"0123456789");
        change(&mut mine);
        let merged = mine.onto(theirs.as_bytes().to_vec());
        String::from_utf8(merged.bytes().to_vec()).unwrap().replace('\0', "_")
    };
    type Change = fn(&mut InlineBuffer);
    let cases: &[(Change, &str, &str)] = &[
        (|_| {}, "theirs", "theirs"),
        (|mine| mine.write(2, b"xy"), "ABCDEFGHIJ", "ABxyEFGHIJ"),
        // Bytes between two local writes, and bytes that the other writer appended, are the other writer's.
        (
            |mine| {
                mine.write(1, b"x");
                mine.write(8, b"y");
            },
            "ABCDEFGHIJKL",
            "AxCDEFGHyJKL",
        ),
        // Truncations are applied first, then writes; bytes that were written and then cut are gone.
        (
            |mine| {
                mine.write(4, b"vwxyz");
                mine.resize(6);
                mine.write(2, b"xy");
            },
            "ABCDEFGHIJ",
            "ABxyvw",
        ),
        (|mine| mine.resize(0), "ABC", ""),
        (|mine| mine.resize(12), "ABC", "ABC_________"),
        (|mine| mine.write(12, b"z"), "AB", "AB__________z"),
        (|mine| mine.write(12, b"z"), "ABCDEFGHIJKLMN", "ABCDEFGHIJKLzN"),
        (|mine| mine.zero(3..5), "ABCDEFGHIJ", "ABC__FGHIJ"),
        // Appended bytes go to the present end, however often that moves.
        (
            |mine| {
                mine.append(b"x");
                mine.append(b"y");
            },
            "ABCDEFGHIJKL",
            "ABCDEFGHIJKLxy",
        ),
        (|mine| mine.append(b"x"), "AB", "ABx"),
        (
            |mine| {
                mine.append(b"x");
                *mine = mine.onto(b"ABC".to_vec());
            },
            "ABCD",
            "ABCDx",
        ),
        (
            |mine| {
                mine.append(b"x");
                mine.write(0, b"y");
            },
            "ABCDEFGHIJKL",
            "yBCDEFGHIJKLx",
        ),
        // After another operation at their offset, appended bytes stay where they were put.
        (
            |mine| {
                mine.append(b"xx");
                mine.write(11, b"y");
            },
            "ABCDEFGHIJKLMN",
            "ABCDEFGHIJxyMN",
        ),
        // An explicit length is final, whether it truncated or extended the content here or there.
        (|mine| mine.resize(12), "ABCDEFGHIJKLMN", "ABCDEFGHIJKL"),
        (
            |mine| {
                mine.resize(4);
                mine.append(b"xy");
            },
            "ABCDEFGHIJKL",
            "ABCDxy",
        ),
        (
            |mine| {
                mine.resize(12);
                *mine = mine.onto(b"AB".to_vec());
            },
            "ABCDEFGHIJKLMN",
            "ABCDEFGHIJKL",
        ),
        // An extension removes nothing.
        (|mine| mine.reach(12), "ABCDEFGHIJKLMN", "ABCDEFGHIJKLMN"),
        (|mine| mine.reach(12), "ABC", "ABC_________"),
        (
            |mine| {
                mine.reach(12);
                mine.append(b"x");
            },
            "ABC",
            "ABC_________x",
        ),
    ];
    for (change, theirs, expected) in cases {
        assert_eq!(merged(*change, theirs), *expected, "onto {theirs}");
    }
}

/// Promise: content that was sent without a reply is applied to other clients' content together with later changes. If
/// the row has it, only the later changes remain to be written.
#[test]
fn sent_and_later_writes_are_distinguished() {
    let sent = |change: fn(&mut InlineBuffer)| {
        let mut mine = buffer(b"0123");
        mine.append(b"a");
        mine.mark_outcome_unknown(None, false);
        assert_eq!(mine.sent().unwrap().bytes, b"0123a");
        change(&mut mine);
        mine
    };
    let mut nothing = sent(|_| {});
    assert_eq!(nothing.onto(b"ABCDEF".to_vec()).bytes(), b"ABCDEFa");
    nothing.written_back();
    assert!(nothing.dirty().is_none() && nothing.sent().is_none());

    let mut appended = sent(|mine| mine.append(b"b"));
    assert_eq!(appended.onto(b"ABCDEF".to_vec()).bytes(), b"ABCDEFab");
    appended.written_back();
    assert_eq!(appended.bytes(), b"0123ab");
    assert_eq!(appended.onto(b"0123aX".to_vec()).bytes(), b"0123aXb");

    let mut written = sent(|mine| mine.write(0, b"x"));
    assert_eq!(written.onto(b"ABCDEF".to_vec()).bytes(), b"xBCDEFa");
    written.written_back();
    assert_eq!(written.onto(b"0123aX".to_vec()).bytes(), b"x123aX");

    let mut cut = sent(|mine| mine.resize(2));
    assert_eq!(cut.onto(b"ABCDEF".to_vec()).bytes(), b"AB");
    cut.written_back();
    assert_eq!(cut.onto(b"0123aX".to_vec()).bytes(), b"01");
}

/// Promise: appended bytes that are already at their final offset are not appended again.
#[test]
fn placed_append_is_not_repeated() {
    let mut mine = buffer(b"0123456789");
    mine.append(b"abc");
    mine.appended_is_placed(2);
    mine.append(b"d");
    assert_eq!(mine.bytes(), b"0123456789abcd");
    assert_eq!(mine.changes().unwrap().appended, b"cd");
}

/// Promise: random writes in any order are applied completely to other content.
#[test]
fn random_writes_stay_separate_and_complete() {
    let mut random = varve_env::random::Seeded::new(7);
    for _ in 0..500 {
        let mut mine = InlineBuffer::clean(vec![0; 60]);
        let mut written = [false; 80];
        for _ in 0..random.below(12) {
            let (at, len) = (random.below(60), 1 + random.below(20));
            mine.write(at, &vec![1; len]);
            written[at..at + len].fill(true);
        }
        let merged = mine.onto(vec![2; 80]);
        let expected: Vec<u8> = written.iter().map(|written| if *written { 1 } else { 2 }).collect();
        assert_eq!(merged.bytes(), expected);
    }
}
