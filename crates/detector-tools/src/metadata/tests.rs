use super::*;

/// An npy file of version 1 as NumPy writes it.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

fn tiff() -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let mut encoder = tiff::encoder::TiffEncoder::new(&mut file).expect("a file");
    encoder.write_image::<tiff::encoder::colortype::Gray32Float>(3, 2, &[0.5; 6]).expect("an image");
    file.into_inner()
}

use std::io::Cursor;

#[test]
fn arrays_come_from_npy_and_tiff() {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).expect("written");
    write("mask.npy", &npy("|u1", "(2, 3)", &[0, 1, 0, 2, 0, 0]));
    write("big.npy", &npy(">u2", "(2,)", &[1, 2, 3, 4]));
    write("flat.tif", &tiff());
    let text = "[values]\nproposal = 7\n[nxmx]\nsource = \"ring\"\n[arrays]\npixel_mask = \"mask.npy\"\n\
                \"threshold_1/flatfield\" = \"flat.tif\"\nlut = \"big.npy\"\n";
    write("beamline.toml", text.as_bytes());
    let read = read(&directory.path().join("beamline.toml")).expect("metadata");
    let of = |path: &str| read.arrays.iter().find(|array| array.path == path).expect(path).clone();
    let data = |path: &str| of(path).data.expect("elements").to_vec();
    assert_eq!((of("pixel_mask").shape, of("pixel_mask").element), (vec![2, 3], ElementType::U32));
    assert_eq!(data("pixel_mask")[4..8], [1, 0, 0, 0]);
    assert_eq!(data("detectorSpecific/lut"), [2, 1, 4, 3]);
    assert_eq!(data("threshold_1_channel/flatfield"), 0.5_f32.to_le_bytes().repeat(6));
    assert_eq!(read.values["proposal"], RunValue::Integer(7));
}

#[test]
fn unreadable_arrays_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    for (bytes, words) in [
        (npy("<c16", "(1,)", &[0; 16]), "type `<c16`"),
        (npy("<u2", "(2,)", &[0; 3]), "truncated"),
        (b"\x89HDF\r\n\x1a\n".to_vec(), "needs its dataset"),
        (b"GIF89a..".to_vec(), "neither HDF5"),
    ] {
        std::fs::write(directory.path().join("a"), bytes).expect("written");
        std::fs::write(directory.path().join("m.toml"), "[arrays]\nmask = \"a\"\n").expect("written");
        let error = read(&directory.path().join("m.toml")).expect_err(words).to_string();
        assert!(error.contains(words) && error.contains("`mask`"), "{error}");
    }
}
