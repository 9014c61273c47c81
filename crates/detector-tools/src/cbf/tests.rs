use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn images_of_every_type_round_trip(
        (width, height) in (1_u64..40, 1_u64..40),
        kind in 0..TYPES.len(),
        noise in prop::collection::vec(any::<u8>(), 6400),
        small in any::<bool>(),
    ) {
        let element = TYPES[kind].0;
        let bytes = (width * height) as usize * element.size();
        let mut pixels = noise[..bytes].to_vec();
        if small {
            for (at, byte) in pixels.iter_mut().enumerate() {
                *byte = if at % element.size() == 0 { *byte & 7 } else { 0 };
            }
        }
        let image = CbfImage { width, height, element, pixels };
        let file = image.encode("test", &["Exposure_time 1 s".into()]).unwrap();
        prop_assert_eq!(decode(&file).unwrap(), image);
    }

    #[test]
    fn damaged_files_never_panic(at in 0_usize..800, byte in any::<u8>(), cut in 0_usize..600) {
        let image = CbfImage { width: 9, height: 7, element: ElementType::U16, pixels: (0..126).collect() };
        let mut file = image.encode("test", &[]).unwrap();
        file[at] = byte;
        let _ = decode(&file);
        file.truncate(cut);
        prop_assert!(decode(&file).is_err());
    }
}

/// The example of the International Tables, with steps at the limits of each width.
#[test]
fn steps_have_their_golden_bytes() {
    let values = [1_i32, 128, 0, 32767, -1, i32::MAX, i32::MIN];
    let pixels: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut bytes = Vec::new();
    byte_offset::encode(&pixels, ElementType::I32, &mut bytes);
    let golden = [
        &[0x01, 0x7f, 0x80, 0x80, 0xff, 0x80, 0xff, 0x7f, 0x80, 0x00, 0x80, 0x00, 0x80, 0xff, 0xff][..],
        &[0x80, 0x00, 0x80, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x80, 0x00, 0x80, 0x00, 0x00, 0x00, 0x80, 0x01, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    assert_eq!(bytes, golden);
}

#[test]
fn unsupported_cbf_is_named() {
    let image = CbfImage { width: 2, height: 2, element: ElementType::I32, pixels: vec![0; 16] };
    let file = String::from_utf8_lossy(&image.encode("test", &[]).unwrap()).into_owned();
    for (from, to, words) in [
        ("###CBF", "###CIF", "does not begin"),
        ("x-CBF_BYTE_OFFSET", "x-CBF_PACKED", "not compressed by byte offsets"),
        ("LITTLE_ENDIAN", "BIG_ENDIAN", "byte order"),
        ("signed 32-bit integer", "signed 32-bit real IEEE", "elements of type"),
        ("X-Binary-Size-Second-Dimension: 2", "X-Binary-Size-Second-Dimension: 999999999", "pixels; up to"),
    ] {
        // The bytes before the pixels are not UTF-8 and are restored.
        let mut bytes = file.replace(from, to).into_bytes();
        let at = bytes.windows(3).position(|bytes| bytes == [0x0c, 0x1a, 0x04]).unwrap();
        bytes.splice(at..at + 6, START_OF_BINARY);
        let error = decode(&bytes).expect_err(to).to_string();
        assert!(error.contains(words), "{error}");
    }
    let wide = CbfImage { width: 1, height: 1, element: ElementType::U64, pixels: vec![0; 8] };
    assert!(wide.encode("test", &[]).unwrap_err().to_string().contains("not u64"));
}
