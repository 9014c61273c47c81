//! A volume whose settings were changed while it had no server: formats/volume.md says which may be changed.

use crate::site::*;
use varve_client::{FileSystem, Handle, block_on};
use varve_types::{InodeId, SetAttributes};

/// Edits the volume file and its copy.
fn edit(site: &Site, edits: &[(&str, &str)]) {
    for path in [site.volume.volume_file(), site.volume.volume_file_copy()] {
        let mut text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in edits {
            assert!(text.contains(from), "{text}");
            text = text.replace(from, to);
        }
        std::fs::write(path, text).unwrap();
    }
}

fn resized(fs: &FileSystem, inode: InodeId, size: u64, handle: Option<Handle>) -> u64 {
    let set = SetAttributes { size: Some(size), ..Default::default() };
    block_on(fs.set_attributes(&root(), inode, set, handle)).unwrap().attributes.size
}

/// Promise: `inline_limit_bytes` may be changed between two servers. A file in a row that is larger than the new limit
/// can be read, and written by any client, and content that no longer fits a row moves completely to a backing file.
#[test]
fn files_above_a_lowered_inline_limit_are_read_and_written() {
    let site = Site::new(4);
    let names = ["read", "written", "cut", "cut by path", "zeroed", "appended"];
    let old = vec![7; INLINE_LIMIT as usize - 10];
    let server = site.serve();
    let fs = site.connect();
    for text in names {
        let (_, handle) = create(&fs, text);
        write(&fs, handle, 0, &old);
        close(&fs, handle);
    }
    drop(fs);
    server.stop(STOP).unwrap();
    edit(&site, &[("inline_limit_bytes = 4096", "inline_limit_bytes = 100")]);
    let _server = site.serve();
    let (one, other) = (site.connect(), site.connect());
    let opened = |text: &str| {
        let inode = block_on(one.lookup(&root(), ROOT, &name(text))).unwrap().inode;
        (inode, open(&one, inode))
    };
    let expect = |text: &str, expected: &[u8], in_row: bool| {
        let inode = block_on(other.lookup(&root(), ROOT, &name(text))).unwrap().inode;
        assert_eq!(content(&other, text), expected, "{text}");
        assert_eq!(site.volume.backing_file(inode).exists(), !in_row, "{text}");
    };
    expect("read", &old, true);

    let (_, handle) = opened("written");
    write(&one, handle, 5, b"new");
    close(&one, handle);
    expect("written", &[&old[..5], b"new", &old[8..]].concat(), false);

    let (inode, handle) = opened("cut");
    assert_eq!(resized(&one, inode, 50, Some(handle)), 50);
    close(&one, handle);
    expect("cut", &old[..50], true);

    let (inode, handle) = opened("cut by path");
    close(&one, handle);
    assert_eq!(resized(&one, inode, 200, None), 200);
    expect("cut by path", &old[..200], false);

    let (_, handle) = opened("zeroed");
    block_on(one.allocate(handle, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 10, 20)).unwrap();
    close(&one, handle);
    expect("zeroed", &[&old[..10], &[0; 20], &old[30..]].concat(), false);

    let (_, handle) = opened("appended");
    write(&one, handle, old.len() as u64, b"more");
    close(&one, handle);
    expect("appended", &[&old[..], b"more"].concat(), false);
}

/// Promise: `id`, `name`, `split_threshold` and `sync_interval_ms` may be changed between two servers.
#[test]
fn a_volume_is_served_under_another_name_and_id() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    let (_, handle) = create(&fs, "kept");
    write(&fs, handle, 0, b"bytes");
    close(&fs, handle);
    drop(fs);
    server.stop(STOP).unwrap();
    let settings = site.volume.read_settings().unwrap();
    let (id, other) = (settings.id.to_string(), varve_types::VolumeId([5; 16]).to_string());
    let edits: [(&str, &str); 4] = [
        (id.as_str(), other.as_str()),
        ("name = \"test\"", "name = \"renamed\""),
        ("split_threshold = 4", "split_threshold = 64"),
        ("sync_interval_ms = 5000", "sync_interval_ms = 1000"),
    ];
    edit(&site, &edits);
    let _server = site.serve();
    assert_eq!(content(&site.connect(), "kept"), b"bytes");
}
