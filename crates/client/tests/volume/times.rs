//! Times of directories, with one partition and with several, as seen by a volume's only client and by one of several
//! clients.

use crate::site::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_client::{FileSystem, block_on};
use varve_meta::server::Server;
use varve_types::{Attributes, InodeId, Mode, SetAttributes, SetTime, Timestamp};

const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };
const FUTURE: Timestamp = Timestamp { seconds: 8_000_000_000, nanoseconds: 7 };

/// A new server with a client.
struct ServedClient {
    server: Server,
    fs: Arc<FileSystem>,
}

impl ServedClient {
    fn begin(site: &Site, embedded: bool) -> ServedClient {
        ServedClient { server: site.serve_as(embedded), fs: site.connect() }
    }

    /// For a volume with an existing directory `d`, which is looked up.
    fn begin_again(site: &Site, embedded: bool) -> ServedClient {
        let served = ServedClient::begin(site, embedded);
        block_on(served.fs.lookup(&root(), ROOT, &name("d"))).unwrap();
        served
    }

    fn end(self) {
        block_on(self.fs.shutdown()).unwrap();
        self.server.stop(STOP).unwrap();
    }

    fn shown(&self, directory: InodeId) -> Attributes {
        block_on(self.fs.attributes(&root(), directory)).unwrap().attributes
    }

    fn set(&self, directory: InodeId, set: SetAttributes) {
        block_on(self.fs.set_attributes(&root(), directory, set, None)).unwrap();
    }

    fn set_mtime(&self, directory: InodeId, to: Timestamp) {
        self.set(directory, SetAttributes { mtime: Some(SetTime::To(to)), ..SetAttributes::default() });
    }

    /// The time of the server's clock, taken from a new file.
    fn clock(&self, text: &str) -> Timestamp {
        make_file(&self.fs, ROOT, text).attributes.ctime
    }
}

fn wait_until_split(fs: &FileSystem, directory: InodeId, partitions: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !block_on(fs.describe(&root(), directory)).is_ok_and(|found| found.partitions.len() == partitions) {
        assert!(Instant::now() < deadline, "the directory is split");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Promise: an explicitly set mtime of a directory, in the past or in the future, stays until a name in it changes, and
/// is then the time of that change; its ctime is that of the call.
#[test]
fn explicit_directory_mtime_stays_until_names_change() {
    for (embedded, split) in [(false, false), (false, true), (true, false), (true, true)] {
        let site = Site::new(4);
        let served = ServedClient::begin(&site, embedded);
        let d = make_directory(&served.fs, ROOT, "d").inode;
        let files = if split { 150 } else { 3 };
        for n in 0..files {
            make_file(&served.fs, d, &format!("f{n}"));
        }
        wait_until_split(&served.fs, d, if split { 4 } else { 1 });
        let mut served = served;
        for (turn, to) in [PAST, FUTURE].into_iter().enumerate() {
            let what = format!("embedded {embedded}, split {split}, turn {turn}");
            let before = served.clock(&format!("{turn} before"));
            served.set_mtime(d, to);
            let after = served.clock(&format!("{turn} after"));
            let shown = served.shown(d);
            assert_eq!(shown.mtime, to, "{what}");
            assert!((before..=after).contains(&shown.ctime), "{what}: {shown:?} of {before:?} to {after:?}");
            served.set(d, SetAttributes { mode: Some(Mode::new(0o700 + turn as u32)), ..SetAttributes::default() });
            assert_eq!(served.shown(d).mtime, to, "{what}: a mode changes no name");
            let changed = served.shown(d).ctime;
            assert!(changed > after && changed < FUTURE, "{what}: {changed:?}");
            served.end();
            served = ServedClient::begin_again(&site, embedded);
            assert_eq!((served.shown(d).mtime, served.shown(d).ctime), (to, changed), "{what}: after a restart");
            expect_changes_to_show(&served, d, to, &what);
            let shown = served.shown(d);
            served.end();
            served = ServedClient::begin_again(&site, embedded);
            assert_eq!(
                (served.shown(d).mtime, served.shown(d).ctime),
                (shown.mtime, shown.ctime),
                "{what}: restarted again"
            );
        }
        served.end();
    }
}

fn expect_changes_to_show(served: &ServedClient, d: InodeId, set: Timestamp, what: &str) {
    let expect = |before: Timestamp, how: &str| {
        let shown = served.shown(d);
        assert!(shown.mtime > before && shown.mtime < FUTURE, "{what}, {how}: {shown:?}");
        assert_eq!(shown.mtime, shown.ctime, "{what}, {how}");
    };
    let before = served.clock(&format!("{what}, make"));
    make_file(&served.fs, d, "made");
    expect(before, "made");
    served.set_mtime(d, set);
    let before = served.clock(&format!("{what}, rename"));
    let (old, new) = (name("made"), name("renamed"));
    block_on(served.fs.rename(&root(), d, &old, d, &new, varve_client::RenameFlags::Replace)).unwrap();
    expect(before, "renamed");
    served.set_mtime(d, set);
    let before = served.clock(&format!("{what}, remove"));
    block_on(served.fs.unlink(&root(), d, &new)).unwrap();
    expect(before, "removed");
    // Fetched from the server, rather than followed by the client: the next explicit mtime is kept as well.
    served.set_mtime(d, set);
    assert_eq!(served.shown(d).mtime, set, "{what}");
    let before = served.clock(&format!("{what}, mkdir"));
    make_directory(&served.fs, d, &format!("dir {}", set.seconds));
    expect(before, "mkdir");
}
