//! Half-precision numbers.

/// The bits of a half-precision number, rounded towards zero. Too large values become infinite, too small ones zero.
pub fn half(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    if value.is_nan() {
        return sign | 0x7e00;
    }
    match (bits >> 23 & 0xff) as i32 - 112 {
        ..=0 => sign,
        31.. => sign | 0x7c00,
        exponent => sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16,
    }
}
