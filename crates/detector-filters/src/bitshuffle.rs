//! The bit transpose of bitshuffle (K. Masui et al., Astronomy and Computing 12, 2015): within a block, first bit 0 of
//! byte 0 of every element, then bit 1 of byte 0, and so on.

#[cfg(target_arch = "x86_64")]
mod avx2;

/// Default number of elements in a block: 8 KiB, rounded down to groups of 8, and at least 128.
pub fn block_elements(element: usize) -> usize {
    const TARGET_BYTES: usize = 8192;
    const ELEMENTS_MIN: usize = 128;
    (TARGET_BYTES / element / 8 * 8).max(ELEMENTS_MIN)
}

/// Transposes the bits of `block` into `out`. The number of elements in `block` is a multiple of 8, and `out` has the
/// same length.
pub fn transpose(block: &[u8], element: usize, out: &mut [u8]) {
    let count = block.len() / element;
    debug_assert!(count.is_multiple_of(8) && block.len() == count * element && out.len() == block.len());
    let done = wide(block, element, out);
    let row = count / 8;
    for byte in 0..element {
        for group in done / 8..row {
            let mut word = 0;
            for number in 0..8 {
                word |= u64::from(block[(group * 8 + number) * element + byte]) << (8 * number);
            }
            for (bit, value) in transpose_8x8(word).to_le_bytes().into_iter().enumerate() {
                out[(byte * 8 + bit) * row + group] = value;
            }
        }
    }
}

/// Undoes [`transpose`].
pub fn restore(block: &[u8], element: usize, out: &mut [u8]) {
    let row = block.len() / element / 8;
    for byte in 0..element {
        for group in 0..row {
            let mut word = 0;
            for bit in 0..8 {
                word |= u64::from(block[(byte * 8 + bit) * row + group]) << (8 * bit);
            }
            for (number, value) in transpose_8x8(word).to_le_bytes().into_iter().enumerate() {
                out[(group * 8 + number) * element + byte] = value;
            }
        }
    }
}

/// Bit `i` of byte `j` becomes bit `j` of byte `i` (Hacker's Delight, 7-3).
fn transpose_8x8(mut word: u64) -> u64 {
    for (mask, shift) in [(0x00aa_00aa_00aa_00aa, 7), (0x0000_cccc_0000_cccc, 14), (0x0000_0000_f0f0_f0f0, 28)] {
        let changed = (word ^ (word >> shift)) & mask;
        word ^= changed ^ (changed << shift);
    }
    word
}

/// Transposes leading elements with vector instructions and returns their number.
#[cfg(not(target_arch = "x86_64"))]
fn wide(_block: &[u8], _element: usize, _out: &mut [u8]) -> usize {
    0
}

/// Transposes leading elements with vector instructions and returns their number.
#[cfg(target_arch = "x86_64")]
fn wide(block: &[u8], element: usize, out: &mut [u8]) -> usize {
    if is_x86_feature_detected!("avx2") {
        // SAFETY: this processor supports AVX2.
        return unsafe { avx2::wide(block, element, out) };
    }
    narrow(block, element, out)
}

/// Same as [`wide`], with SSE2, which every x86-64 processor has.
#[cfg(target_arch = "x86_64")]
fn narrow(block: &[u8], element: usize, out: &mut [u8]) -> usize {
    let count = block.len() / element;
    let vectors = count / 16;
    let row = count / 8;
    match element {
        // SAFETY: each closure reads, for vector `v`, the 16 elements from `16 v` on; all lie within `block` for `v <
        // count / 16`.
        1 => planes::<1>(block, out, vectors, row, |at| unsafe { [load(at)] }),
        2 => planes::<2>(block, out, vectors, row, |at| unsafe { split(load(at), load(at.add(16))) }),
        4 => planes::<4>(block, out, vectors, row, |at| unsafe {
            let [even_low, odd_low] = split(load(at), load(at.add(16)));
            let [even_high, odd_high] = split(load(at.add(32)), load(at.add(48)));
            let [byte_0, byte_2] = split(even_low, even_high);
            let [byte_1, byte_3] = split(odd_low, odd_high);
            [byte_0, byte_1, byte_2, byte_3]
        }),
        _ => return 0,
    }
    vectors * 16
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _mm_add_epi8, _mm_and_si128, _mm_loadu_si128, _mm_movemask_epi8, _mm_packus_epi16, _mm_set1_epi16,
    _mm_srli_epi16,
};

#[cfg(target_arch = "x86_64")]
unsafe fn load(at: *const u8) -> __m128i {
    // SAFETY: the caller guarantees 16 readable bytes at `at`.
    unsafe { _mm_loadu_si128(at.cast()) }
}

/// Separates the even and odd bytes of two vectors.
#[cfg(target_arch = "x86_64")]
unsafe fn split(low: __m128i, high: __m128i) -> [__m128i; 2] {
    // SAFETY: x86-64 always has SSE2.
    unsafe {
        let mask = _mm_set1_epi16(0x00ff);
        let even = _mm_packus_epi16(_mm_and_si128(low, mask), _mm_and_si128(high, mask));
        let odd = _mm_packus_epi16(_mm_srli_epi16(low, 8), _mm_srli_epi16(high, 8));
        [even, odd]
    }
}

/// For each vector of 16 elements, stores the bits of its byte planes, highest bit first.
#[cfg(target_arch = "x86_64")]
fn planes<const ELEMENT: usize>(
    block: &[u8],
    out: &mut [u8],
    vectors: usize,
    row: usize,
    gather: impl Fn(*const u8) -> [__m128i; ELEMENT],
) {
    assert!(vectors * 16 * ELEMENT <= block.len() && row * 8 * ELEMENT <= out.len() && vectors * 2 <= row);
    for vector in 0..vectors {
        // SAFETY: asserted above.
        let planes = gather(unsafe { block.as_ptr().add(vector * 16 * ELEMENT) });
        for (byte, mut plane) in planes.into_iter().enumerate() {
            for bit in (0..8).rev() {
                // SAFETY: x86-64 always has SSE2; the two bytes at `2 vector` lie in row `8 byte + bit`, asserted
                // above.
                unsafe {
                    let bits = _mm_movemask_epi8(plane) as u16;
                    out.as_mut_ptr()
                        .add((byte * 8 + bit) * row + vector * 2)
                        .cast::<u16>()
                        .write_unaligned(bits.to_le());
                    plane = _mm_add_epi8(plane, plane);
                }
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
