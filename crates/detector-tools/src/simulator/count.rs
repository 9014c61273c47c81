//! Encoding of counts as elements of a frame.

use varve_detector_dataset::half::half;
use varve_detector_hdf5::ElementType;

/// The bytes of a count; the first `element.size()` of them are the element. "No pixel" is all ones, which is NaN in
/// floats.
pub fn bytes(element: ElementType, count: Option<u64>) -> [u8; 8] {
    let Some(count) = count else { return [0xff; 8] };
    let bits = match element {
        ElementType::F16 => half(count as f64).into(),
        ElementType::F32 => (count as f32).to_bits().into(),
        ElementType::F64 => (count as f64).to_bits(),
        _ => count,
    };
    bits.to_le_bytes()
}

/// The count of an element; `None`: no pixel.
pub fn of(element: ElementType, bytes: &[u8]) -> Option<u64> {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    let float = |value: f64| (!value.is_nan()).then_some(value as u64);
    match element {
        // Counts are integers, so subnormal values do not occur.
        ElementType::F16 if bits & 0x7c00 == 0x7c00 => None,
        ElementType::F16 if bits == 0 => Some(0),
        ElementType::F16 => {
            float(f64::from((bits & 0x3ff | 0x400) as u32) * 2_f64.powi((bits >> 10 & 0x1f) as i32 - 25))
        }
        ElementType::F32 => float(f32::from_bits(bits as u32).into()),
        ElementType::F64 => float(f64::from_bits(bits)),
        _ => (bits <= largest(element)).then_some(bits),
    }
}

/// The largest count. For floats it is the limit up to which every integer is exact.
pub fn largest(element: ElementType) -> u64 {
    let bits = 8 * element.size() as u32;
    match element {
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64 => (1 << (bits - 1)) - 1,
        ElementType::F16 => 1 << 11,
        ElementType::F32 => 1 << 24,
        ElementType::F64 => 1 << 53,
        _ => (u64::MAX >> (64 - bits)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a count survives encoding in every element type that can represent it.
    #[test]
    fn counts_round_trip() {
        for element in ElementType::ALL {
            let of_bytes = |count| of(element, &bytes(element, count)[..element.size()]);
            for count in
                [0, 1, 2, 3, 100, 1023, 1025, 2047, 65_533, 1 << 23].into_iter().filter(|c| *c <= largest(element))
            {
                assert_eq!(of_bytes(Some(count)), Some(count), "{element}");
            }
            assert_eq!(of_bytes(Some(largest(element))), Some(largest(element)), "{element}");
            assert_eq!(of_bytes(None), None, "{element}");
        }
    }
}
