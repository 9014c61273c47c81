use super::*;

/// Promise: errors that mean lost data are recognised, and all other errors are not taken for data loss.
#[test]
fn only_media_errors_count_as_lost_frames() {
    // Nothing is mapped at the first page of a process: the kernel returns EIO, as for a bad block.
    let memory = File::open("/proc/self/mem").expect("this process");
    assert_eq!(memory.read_at(&mut [0; 16], 0).expect_err("nothing").raw_os_error(), Some(5));
    assert_eq!(read_stored(&memory, 0..16).expect("an answer"), None);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    std::fs::write(&path, [7; 16]).expect("written");
    let file = File::open(&path).expect("the file");
    assert_eq!(read_stored(&file, 8..16).expect("an answer"), Some(vec![7; 8]));
    assert_eq!(read_stored(&file, 8..17).expect("an answer"), None);
    let unreadable = File::options().write(true).open(&path).expect("the file");
    read_stored(&unreadable, 0..8).expect_err("nothing is known of what lies there");
}
