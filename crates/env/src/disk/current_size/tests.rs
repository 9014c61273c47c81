use super::*;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

#[test]
fn size_and_time_are_those_of_stat() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"content").unwrap();
    let found = path.metadata().unwrap();
    let (mtime_seconds, mtime_nanoseconds) = (found.mtime(), found.mtime_nsec() as u32);
    let expected = CurrentSize { length: 7, mtime_seconds, mtime_nanoseconds };
    for query in [SizeQuery::of(directory.path()).unwrap(), SizeQuery::Stat, SizeQuery::Sync] {
        assert_eq!(query.ask(path.as_path()).unwrap(), expected, "{query:?}");
        let absent = query.ask(directory.path().join("absent").as_path()).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}

/// A GlusterFS volume with its caches, until it is dropped.
struct GlusterFs<'a>(&'a Path);

impl GlusterFs<'_> {
    fn script(&self, verb: &str) -> bool {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/glusterfs.sh");
        let mut command = Command::new("bash");
        command.arg(script).arg(verb).arg(self.0).env("CACHES", "on");
        command.status().expect("bash starts").success()
    }
}

impl Drop for GlusterFs<'_> {
    fn drop(&mut self) {
        self.script("stop");
    }
}

/// Promise: on GlusterFS with its caches, the size is that of the last write of another host.
#[test]
fn size_is_current_on_glusterfs() {
    if std::env::var_os("VARVE_SOAK").is_none() {
        return println!("SKIPPED: GlusterFS takes long to start (VARVE_SOAK=1)");
    }
    let directory = tempfile::Builder::new().prefix("varve-size-").tempdir().unwrap();
    let gluster = GlusterFs(directory.path());
    assert!(gluster.script("start"));
    let [here, there] = ["mnt1", "mnt2"].map(|mount| directory.path().join(mount));
    let query = SizeQuery::of(here.as_path()).unwrap();
    assert_eq!(query, SizeQuery::Sync);
    for number in 0..50 {
        let name = format!("file{number}");
        let mut file = File::create(there.join(&name)).unwrap();
        file.write_all(&[1; 5000]).and_then(|()| file.sync_all()).unwrap();
        let path = here.join(&name);
        assert_eq!(query.ask(path.as_path()).unwrap().length, 5000);
        path.metadata().unwrap();
        file.write_all(&[2; 5000]).and_then(|()| file.sync_all()).unwrap();
        assert_eq!(query.ask(path.as_path()).unwrap().length, 10_000, "file {number}");
    }
}
