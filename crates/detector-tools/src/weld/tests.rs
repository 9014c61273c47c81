use super::mapping::VirtualDataset;

#[test]
fn file_without_virtual_dataset_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("master.h5");
    for content in [&b""[..], b"GCOL", b"GCOL\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", &[7; 4096]] {
        std::fs::write(&path, content).expect("written");
        let refused = VirtualDataset::read(&path, None).expect_err("nothing to weld");
        assert!(refused.to_string().ends_with("it has no virtual dataset of frames"), "{refused}");
    }
}

/// A master with one mapping: all of `a.h5` to a regular hyperslab, in numbers of four bytes.
fn master_of(frames: [u32; 4]) -> Vec<u8> {
    let mut object = vec![0];
    object.extend(1_u64.to_le_bytes());
    object.extend(b"a.h5\0data\0");
    object.extend([3_u32, 1, 0, 0].map(u32::to_le_bytes).concat());
    object.extend([2_u32, 3].map(u32::to_le_bytes).concat());
    object.extend([1, 4]);
    object.extend(3_u32.to_le_bytes());
    object.extend([frames, [0, 1, 1, 8], [0, 1, 1, 12]].concat().iter().flat_map(|number| number.to_le_bytes()));
    object.extend(varve_detector_hdf5::checksum::lookup3(&object).to_le_bytes());
    let mut collection = b"GCOL\x01\0\0\0".to_vec();
    collection.extend((32 + object.len() as u64).to_le_bytes());
    collection.extend([1, 0, 1, 0, 0, 0, 0, 0]);
    collection.extend((object.len() as u64).to_le_bytes());
    collection.extend(object);
    collection
}

#[test]
fn unlimited_selection_is_refused_in_any_width() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("master.h5");
    let read = |frames| {
        std::fs::write(&path, master_of(frames)).expect("written");
        VirtualDataset::read(&path, None).map(|read| read.frames).map_err(|error| error.to_string())
    };
    assert_eq!(read([0, 1, 7, 1]), Ok(7));
    for frames in [[0, 1, u32::MAX, 1], [0, 1, 1, u32::MAX]] {
        let refused = read(frames).expect_err("unlimited");
        assert!(refused.contains("is unlimited"), "{refused}");
    }
    let refused = read([0, 1, (1 << 26) + 1, 1]).expect_err("too many for memory");
    assert!(refused.contains("more than 67108864 frames"), "{refused}");
}
