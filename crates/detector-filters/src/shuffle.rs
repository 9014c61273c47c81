//! HDF5's shuffle: the first bytes of all elements, then the second bytes, and so on. Remaining bytes stay at the end.

pub fn shuffle(input: &[u8], element: usize, out: &mut Vec<u8>) {
    let count = input.len() / element;
    out.clear();
    out.reserve(input.len());
    for byte in 0..element {
        out.extend(input[..count * element].iter().skip(byte).step_by(element));
    }
    out.extend_from_slice(&input[count * element..]);
}

pub fn unshuffle(input: &[u8], element: usize, out: &mut Vec<u8>) {
    let count = input.len() / element;
    out.clear();
    out.resize(input.len(), 0);
    for byte in 0..element {
        for (number, value) in input[byte * count..(byte + 1) * count].iter().enumerate() {
            out[number * element + byte] = *value;
        }
    }
    out[count * element..].copy_from_slice(&input[count * element..]);
}
