//! The transpose with AVX2. It handles 32 elements at a time, so that half as many rows are written as with SSE2.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi8, _mm256_and_si256, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_packus_epi16,
    _mm256_permute4x64_epi64, _mm256_set1_epi16, _mm256_srli_epi16,
};

const LANES: usize = 32;

/// Same as [`super::wide`].
#[target_feature(enable = "avx2")]
pub fn wide(block: &[u8], element: usize, out: &mut [u8]) -> usize {
    match element {
        1 => planes::<1>(block, out, |[plane]| [plane]),
        2 => planes::<2>(block, out, |[low, high]| split(low, high)),
        4 => planes::<4>(block, out, |[first, second, third, fourth]| {
            let [even_low, odd_low] = split(first, second);
            let [even_high, odd_high] = split(third, fourth);
            let [byte_0, byte_2] = split(even_low, even_high);
            let [byte_1, byte_3] = split(odd_low, odd_high);
            [byte_0, byte_1, byte_2, byte_3]
        }),
        _ => return 0,
    }
    block.len() / element / LANES * LANES
}

/// Separates the even and odd bytes of two vectors.
#[target_feature(enable = "avx2")]
#[inline]
fn split(low: __m256i, high: __m256i) -> [__m256i; 2] {
    let mask = _mm256_set1_epi16(0x00ff);
    let even = _mm256_packus_epi16(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
    let odd = _mm256_packus_epi16(_mm256_srli_epi16(low, 8), _mm256_srli_epi16(high, 8));
    // The pack instructions interleave the halves of both inputs; the permutation restores their order.
    [_mm256_permute4x64_epi64(even, 0b11_01_10_00), _mm256_permute4x64_epi64(odd, 0b11_01_10_00)]
}

/// For each 32 elements, stores the bits of their byte planes, highest bit first.
#[target_feature(enable = "avx2")]
#[inline]
fn planes<const ELEMENT: usize>(
    block: &[u8],
    out: &mut [u8],
    gather: impl Fn([__m256i; ELEMENT]) -> [__m256i; ELEMENT],
) {
    let row = block.len() / ELEMENT / 8;
    let vectors = block.len() / ELEMENT / LANES;
    assert!(vectors * LANES * ELEMENT <= block.len() && row * 8 * ELEMENT <= out.len() && vectors * 4 <= row);
    for vector in 0..vectors {
        let elements = std::array::from_fn(|number| {
            let at = (vector * ELEMENT + number) * LANES;
            // SAFETY: the assertion above guarantees that 32 bytes from there lie in the block.
            unsafe { _mm256_loadu_si256(block.as_ptr().add(at).cast()) }
        });
        for (byte, mut plane) in gather(elements).into_iter().enumerate() {
            for bit in (0..8).rev() {
                let bits = _mm256_movemask_epi8(plane) as u32;
                // SAFETY: the assertion above guarantees that the four bytes at `4 vector` lie in row `8 byte + bit`.
                unsafe {
                    out.as_mut_ptr()
                        .add((byte * 8 + bit) * row + vector * 4)
                        .cast::<u32>()
                        .write_unaligned(bits.to_le());
                }
                plane = _mm256_add_epi8(plane, plane);
            }
        }
    }
}
