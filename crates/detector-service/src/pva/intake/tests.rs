use super::*;

#[test]
fn incompressible_lz4_frame_is_unpacked() {
    // A block of literals alone: their number is 15 and 5.
    let plain: Vec<u8> = (0..20).map(|byte: u8| byte.wrapping_mul(97)).collect();
    let block = [&[0xf0, 5][..], &plain].concat();
    assert!(chunk_of_lz4(&block, plain.len()).is_err(), "the filter cannot store it");
    assert_eq!(unpack_lz4(&block, plain.len()), Ok(plain));
    assert!(unpack_lz4(&block, 21).is_err() && unpack_lz4(&block, block.len()).is_err());
}
