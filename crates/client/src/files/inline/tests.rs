use super::*;

fn buffer(text: &[u8]) -> InlineBuffer {
    InlineBuffer::clean(text.to_vec())
}

/// Promise: reads stop at the end, and beyond it read nothing.
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
    assert_eq!(buffer.dirty(), Some(&Dirty { written: 2..5, kept: 2 }));
    buffer.resize(1);
    buffer.resize(3);
    assert_eq!(buffer.bytes(), b"a\0\0");
    assert_eq!(buffer.dirty().unwrap().kept, 1);
    buffer.written_back();
    buffer.zero(0..100);
    assert_eq!(buffer.bytes(), b"\0\0\0");
}

/// Promise: what was written here survives another writer's content beneath: cuts first, then bytes.
#[test]
fn own_writes_go_onto_newer_content() {
    let mut mine = buffer(b"0123456789");
    mine.resize(6);
    mine.write(2, b"xy");
    assert_eq!(mine.onto(b"ABCDEFGHIJ".to_vec()).bytes(), b"ABxyEF");
    let mut longer = buffer(b"01");
    longer.write(4, b"z");
    assert_eq!(longer.onto(b"AB".to_vec()).bytes(), b"AB\0\0z");
    assert_eq!(buffer(b"clean").onto(b"theirs".to_vec()).bytes(), b"theirs");
}
