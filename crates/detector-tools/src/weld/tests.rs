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
