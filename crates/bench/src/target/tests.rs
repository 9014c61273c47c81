//! Promises of the targets: `--via` is parsed, a directory performs its operations, and errors are distinguished.

use super::*;

#[test]
fn via_is_parsed_and_printed() {
    for text in ["library:/stores/v", "library:file:///stores/v", "mount:/mnt/v", "path:/tmp/a:b"] {
        assert_eq!(text.parse::<Via>().unwrap().to_string(), text);
    }
    for text in ["", "path", "path:", "/tmp", "nfs:/tmp"] {
        assert!(matches!(text.parse::<Via>(), Err(Error::Usage(_))), "{text:?}");
    }
}

#[test]
fn directory_target_performs_each_operation() {
    let root = tempfile::tempdir().unwrap();
    let target = DirectoryTarget::open("path", root.path()).unwrap();
    let mut client = target.connect().unwrap();
    client.make_directory("d").unwrap();
    client.enter("d").unwrap();
    client.create("f", b"content").unwrap();
    assert_eq!(client.create("f", b"").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(client.stat("f").unwrap(), 7);
    assert_eq!(client.read("f", &mut [0; 3]).unwrap(), 7);
    assert_eq!(std::fs::read(root.path().join("d/f")).unwrap(), b"content");
    client.unlink("f").unwrap();
    assert!(missing(&client.stat("f").unwrap_err()));
    client.make_directory("e").unwrap();
    client.remove_directory("e").unwrap();
    client.create("left", b"").unwrap();
    client.remove_tree("d").unwrap();
    client.remove_tree("d").unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn plain_directory_is_rejected_as_mount() {
    let root = tempfile::tempdir().unwrap();
    let error = open(&Via::Mount(root.path().to_owned())).err().unwrap();
    assert!(error.to_string().contains("is not on a FUSE mount"), "{error}");
    assert!(open(&Via::Path(root.path().join("missing"))).is_err());
}
