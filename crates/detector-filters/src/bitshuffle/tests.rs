use super::*;

/// Reference implementation without vector instructions.
fn plainly(block: &[u8], element: usize) -> Vec<u8> {
    let row = block.len() / element / 8;
    let mut out = vec![0; block.len()];
    for number in 0..block.len() / element {
        for bit in 0..8 * element {
            let set = block[number * element + bit / 8] >> (bit % 8) & 1;
            out[bit * row + number / 8] |= set << (number % 8);
        }
    }
    out
}

#[test]
fn all_vector_widths_transpose_alike_and_invert() {
    for element in [1, 2, 4, 8] {
        for count in [8, 16, 24, 32, 40, 64, 72, 4096] {
            let block: Vec<u8> = (0..count * element).map(|at| (at * at * 31 + at * 7 + 5) as u8).collect();
            let expected = plainly(&block, element);
            let mut out = vec![0; block.len()];
            transpose(&block, element, &mut out);
            assert!(out == expected, "{count} elements of {element}");
            out.fill(0);
            let done = narrow(&block, element, &mut out);
            let row = count / 8;
            for at in 0..out.len() {
                // Elements beyond the processed ones stay unchanged.
                let wanted = if at % row < done / 8 { expected[at] } else { 0 };
                assert_eq!(out[at], wanted, "byte {at} of {count} elements of {element}");
            }
            transpose(&block, element, &mut out);
            let mut back = vec![0; block.len()];
            restore(&out, element, &mut back);
            assert!(back == block, "{count} elements of {element}");
        }
    }
}
