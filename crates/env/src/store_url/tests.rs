use super::*;

/// A store is a path or a `file://` URL.
#[test]
fn paths_and_file_urls_are_directories() {
    for (text, directory) in [
        ("/data/volume", "/data/volume"),
        ("volume", "volume"),
        ("file:///data/volume", "/data/volume"),
        ("FILE:///data/a%20b", "/data/a b"),
        ("file://localhost/data", "/data"),
    ] {
        assert_eq!(StoreUrl::parse(text).unwrap().directory(), Path::new(directory), "{text}");
    }
}

/// Other schemes fail with an error that says whether they will be supported.
#[test]
fn other_urls_are_refused_with_the_reason() {
    let message = |text: &str| StoreUrl::parse(text).unwrap_err().to_string();
    assert!(message("s3://bucket/volume").contains("not supported yet"));
    assert!(message("ftp://host/volume").contains("unknown scheme"));
    assert!(message("file://host/volume").contains("three slashes"));
    assert!(message("file:///a%2").contains("escape"));
    assert!(message("").contains("missing"));
}
