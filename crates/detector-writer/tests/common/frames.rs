//! Frames whose content follows from their number. `frames.py` and `live.py` compute the same.

/// Elements of u16, little-endian.
pub fn frame(number: u64, elements: usize) -> Vec<u8> {
    let element = |i: u64| (7 * i + 13 * number + (i >> 3) * number) & 0x3ff;
    (0..elements as u64).flat_map(|i| (element(i) as u16).to_le_bytes()).collect()
}
