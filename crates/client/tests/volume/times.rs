//! Times of directories, of one partition and of several, as a client that is alone and one beside others see them.

use crate::site::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_client::{FileSystem, now};
use varve_meta::server::Server;
use varve_types::{Attributes, InodeId, Mode, SetAttributes, SetTime, Timestamp};

const PAST: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };
const FUTURE: Timestamp = Timestamp { seconds: 8_000_000_000, nanoseconds: 7 };

/// A server and a client of it, anew.
struct Stay {
    server: Server,
    fs: Arc<FileSystem>,
}

impl Stay {
    fn begin(site: &Site, embedded: bool) -> Stay {
        Stay { server: site.serve_as(embedded), fs: site.connect() }
    }

    /// Of a directory `d` that is there, and has been looked up.
    fn begin_again(site: &Site, embedded: bool) -> Stay {
        let stay = Stay::begin(site, embedded);
        now(stay.fs.lookup(&root(), ROOT, &name("d"))).unwrap();
        stay
    }

    fn end(self) {
        now(self.fs.shutdown()).unwrap();
        self.server.stop(STOP).unwrap();
    }

    fn shown(&self, directory: InodeId) -> Attributes {
        now(self.fs.attributes(&root(), directory)).unwrap().attributes
    }

    fn set(&self, directory: InodeId, set: SetAttributes) {
        now(self.fs.set_attributes(&root(), directory, set, None)).unwrap();
    }

    fn set_mtime(&self, directory: InodeId, to: Timestamp) {
        self.set(directory, SetAttributes { mtime: Some(SetTime::To(to)), ..SetAttributes::default() });
    }

    /// The time of the server's clock, as a new file tells it.
    fn clock(&self, text: &str) -> Timestamp {
        make_file(&self.fs, ROOT, text).attributes.ctime
    }
}

fn wait_until_split(fs: &FileSystem, directory: InodeId, partitions: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !now(fs.describe(&root(), directory)).is_ok_and(|found| found.partitions.len() == partitions) {
        assert!(Instant::now() < deadline, "the directory is split");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Promise: the mtime that was set of a directory stays, back and ahead of now, until a name in it changes, and is the time
/// of that change then; its ctime is that of the call.
#[test]
fn an_mtime_of_a_directory_stays_until_names_change() {
    for (embedded, split) in [(false, false), (false, true), (true, false), (true, true)] {
        let site = Site::new(4);
        let stay = Stay::begin(&site, embedded);
        let d = make_directory(&stay.fs, ROOT, "d").inode;
        let files = if split { 150 } else { 3 };
        for n in 0..files {
            make_file(&stay.fs, d, &format!("f{n}"));
        }
        wait_until_split(&stay.fs, d, if split { 4 } else { 1 });
        let mut stay = stay;
        for (turn, to) in [PAST, FUTURE].into_iter().enumerate() {
            let what = format!("embedded {embedded}, split {split}, turn {turn}");
            let before = stay.clock(&format!("{turn} before"));
            stay.set_mtime(d, to);
            let after = stay.clock(&format!("{turn} after"));
            let shown = stay.shown(d);
            assert_eq!(shown.mtime, to, "{what}");
            assert!((before..=after).contains(&shown.ctime), "{what}: {shown:?} of {before:?} to {after:?}");
            stay.set(d, SetAttributes { mode: Some(Mode::new(0o700 + turn as u32)), ..SetAttributes::default() });
            assert_eq!(stay.shown(d).mtime, to, "{what}: a mode changes no name");
            let changed = stay.shown(d).ctime;
            assert!(changed > after && changed < FUTURE, "{what}: {changed:?}");
            stay.end();
            stay = Stay::begin_again(&site, embedded);
            assert_eq!((stay.shown(d).mtime, stay.shown(d).ctime), (to, changed), "{what}: after a restart");
            expect_changes_to_show(&stay, d, to, &what);
            let shown = stay.shown(d);
            stay.end();
            stay = Stay::begin_again(&site, embedded);
            assert_eq!(
                (stay.shown(d).mtime, stay.shown(d).ctime),
                (shown.mtime, shown.ctime),
                "{what}: restarted again"
            );
        }
        stay.end();
    }
}

fn expect_changes_to_show(stay: &Stay, d: InodeId, set: Timestamp, what: &str) {
    let expect = |before: Timestamp, how: &str| {
        let shown = stay.shown(d);
        assert!(shown.mtime > before && shown.mtime < FUTURE, "{what}, {how}: {shown:?}");
        assert_eq!(shown.mtime, shown.ctime, "{what}, {how}");
    };
    let before = stay.clock(&format!("{what}, make"));
    make_file(&stay.fs, d, "made");
    expect(before, "made");
    stay.set_mtime(d, set);
    let before = stay.clock(&format!("{what}, rename"));
    let (old, new) = (name("made"), name("renamed"));
    now(stay.fs.rename(&root(), d, &old, d, &new, varve_client::RenameFlags::Replace)).unwrap();
    expect(before, "renamed");
    stay.set_mtime(d, set);
    let before = stay.clock(&format!("{what}, remove"));
    now(stay.fs.unlink(&root(), d, &new)).unwrap();
    expect(before, "removed");
    // Asked of the server, and not followed by the client: the next one set is as good.
    stay.set_mtime(d, set);
    assert_eq!(stay.shown(d).mtime, set, "{what}");
    let before = stay.clock(&format!("{what}, mkdir"));
    make_directory(&stay.fs, d, &format!("dir {}", set.seconds));
    expect(before, "mkdir");
}
