//! Effects on backing files that a server had not done when it died are done when its client retries.

use super::client::request;
use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varve_env::posix_store::PosixStore;
use varve_proto::{FileContent, Locator, NewNode, OpenMode, SizeState};
use varve_schema::{BackingSize, Content, EntryBody, EntryRow, Key, Row, codec};
use varve_store::{MEMTABLE_BYTES_DEFAULT, Merges, Table, TableBatch, TableCache, TableConfig};
use varve_types::{InodeId, Mode, Name, SetAttributes, SetTime, ShardId, Timestamp};

const SET: u64 = 1_000_000_000;

/// Makes a large file, and returns its location and the path of its content.
fn large_file(site: &Site, client: &mut TestClient<UnixStream>) -> (Locator, PathBuf) {
    let root = InodeId::ROOT.0;
    let name = b"large".to_vec();
    let create = Call::Create { parent: root, name: name.clone(), node: NewNode::Regular, mode: 0o644, open: true };
    let Ok(Reply::Node(made)) = client.call(0, create) else { panic!("not made") };
    let path = site.config.volume.backing_file(InodeId(made.inode));
    std::fs::write(&path, b"content").unwrap();
    let at = Locator::Entry { parent: root, name, inode: made.inode };
    let promote = Call::Promote { at: at.clone(), generation: made.generation, size: 7 };
    assert!(matches!(client.call(0, promote), Ok(Reply::Node(_))));
    (at, path.into())
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

/// The requested time reaches the backing file, whose time counts while the file is being written.
#[test]
fn retry_sets_the_requested_time() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (at, path) = large_file(&site, &mut client);
    let mtime = Some(SetTime::To(Timestamp { seconds: SET as i64, nanoseconds: 0 }));
    let set = SetAttributes { mtime, ..SetAttributes::default() };
    let first = request(1, 3, 1, 0, Call::SetAttributes { at, set: set.into() });
    let answer = client.exchange(first.clone()).unwrap();
    server.stop(STOP).unwrap();
    // As if the server had died between the commit of the row and the effect on the file.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(SystemTime::now()).unwrap();
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    assert_eq!(client.exchange(first).unwrap(), answer);
    assert_eq!(modified(&path), UNIX_EPOCH + Duration::from_secs(SET));
    server.stop(STOP).unwrap();
}

/// Promise: a repeated promotion makes its session a writer of the file at a server that did not decide it: another
/// session's measured size does not count then.
#[test]
fn retry_registers_the_writer() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (parent, name) = (InodeId::ROOT.0, b"large".to_vec());
    let create = Call::Create { parent, name: name.clone(), node: NewNode::Regular, mode: 0o644, open: true };
    let Ok(Reply::Node(made)) = client.call(0, create) else { panic!("not made") };
    std::fs::write(site.config.volume.backing_file(InodeId(made.inode)), b"content").unwrap();
    let at = Locator::Entry { parent, name, inode: made.inode };
    let promote = Call::Promote { at: at.clone(), generation: made.generation, size: 7 };
    let first = request(1, 3, 1, 0, promote);
    let answer = client.exchange(first.clone()).unwrap();
    let Ok(Reply::Node(node)) = &answer else { panic!("{answer:?}") };
    let (generation, mtime) = (node.generation, node.attributes.mtime);
    let record = Call::RecordSize { at: at.clone(), generation, size: 7, mtime };
    let is_stale = |answer: Result<Reply, CallFailure>| match answer {
        Ok(Reply::Node(node)) => match node.content {
            FileContent::Backing(SizeState::Authoritative) => false,
            FileContent::Backing(_) => true,
            FileContent::Inline { .. } | FileContent::None => panic!("it is large"),
        },
        other => panic!("{other:?}"),
    };
    assert!(!is_stale(client.call(0, record.clone())));
    let mut released = request(1, 4, 1, 0, Call::Sync);
    released.released.push(made.inode);
    assert_eq!(client.exchange(released).unwrap(), Ok(Reply::Done));
    server.stop(STOP).unwrap();

    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    // The recorded reply has the time of the row.
    assert!(matches!(client.exchange(first).unwrap(), Ok(Reply::Node(again)) if again.inode == made.inode));
    let mut other = TestClient::of(&server, &site, 2, Purpose::Work);
    let open = Call::Open { at: at.clone(), mode: OpenMode::ReadWrite, truncate: false };
    assert!(matches!(other.call(0, open), Ok(Reply::Node(_))));
    assert!(is_stale(other.call(0, Call::MarkSizeStale { at, generation, at_least: 7 })));
    assert!(is_stale(other.call(0, record)), "the first session writes the file");
    server.stop(STOP).unwrap();
}

/// Promise: a promotion or a change of the mode that is repeated gives the backing file the mode that the row has now.
#[test]
fn retry_restricts_the_mode() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (parent, name) = (InodeId::ROOT.0, b"large".to_vec());
    let create = Call::Create { parent, name: name.clone(), node: NewNode::Regular, mode: 0o644, open: true };
    let Ok(Reply::Node(made)) = client.call(0, create) else { panic!("not made") };
    let path = std::path::PathBuf::from(site.config.volume.backing_file(InodeId(made.inode)));
    std::fs::write(&path, b"content").unwrap();
    let at = Locator::Entry { parent, name, inode: made.inode };
    let promote = request(1, 3, 1, 0, Call::Promote { at: at.clone(), generation: made.generation, size: 7 });
    assert!(client.exchange(promote.clone()).unwrap().is_ok());
    let set = |mode| Call::SetAttributes {
        at: at.clone(),
        set: SetAttributes { mode: Some(Mode(mode)), ..SetAttributes::default() }.into(),
    };
    let widened = request(1, 4, 1, 0, set(0o666));
    assert!(client.exchange(widened.clone()).unwrap().is_ok());
    assert!(client.call(0, set(0o600)).is_ok());
    for repeated in [promote, widened] {
        // As if the server's lease had been late when it decided.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(client.exchange(repeated).unwrap().is_ok());
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        // Only root's volumes give their files to users.
        let expected = if rustix::process::geteuid().is_root() { 0o600 } else { 0o666 };
        assert_eq!(mode, expected);
    }
    assert!(client.call(0, Call::Unlink { parent, name: b"large".to_vec() }).is_ok());
    server.stop(STOP).unwrap();
}

/// Leaves the state of a server that died between the commit of the truncate and the effect on the file.
fn leave_to_be_cut(site: &Site, path: &Path) {
    std::fs::write(path, b"content").unwrap();
    edit(site, &Key::Entry(InodeId::ROOT, Name::new(b"large").unwrap()), |row| {
        let Row::Entry(EntryRow { body: EntryBody::Node(node), .. }) = row else { panic!("{row:?}") };
        node.content = Content::Backing(BackingSize::Truncating(0));
        node.attributes.size = 0;
    });
}

/// A retry finishes the truncate; otherwise a later open would truncate data that was written since.
#[test]
fn retry_truncates_the_file() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (at, path) = large_file(&site, &mut client);
    let Locator::Entry { inode, .. } = at else { panic!("it has one name") };
    let first = request(1, 3, 1, 0, Call::Open { at: at.clone(), mode: OpenMode::ReadWrite, truncate: true });
    let answer = client.exchange(first.clone()).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    server.stop(STOP).unwrap();
    leave_to_be_cut(&site, &path);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    assert_eq!(client.exchange(first).unwrap(), answer);
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    std::fs::write(&path, b"written since").unwrap();
    let again = Call::Open {
        at: Locator::Entry { parent: InodeId::ROOT.0, name: b"large".to_vec(), inode },
        mode: OpenMode::Read,
        truncate: false,
    };
    assert!(matches!(client.call(0, again), Ok(Reply::Node(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"written since");
    server.stop(STOP).unwrap();
}

/// Promise: a retry that cannot truncate the file either does not report the truncate as done; a further retry does it.
#[test]
fn failed_retry_does_not_report_truncation() {
    let site = Site::new(1);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let (at, path) = large_file(&site, &mut client);
    let first = request(1, 3, 1, 0, Call::Open { at, mode: OpenMode::ReadWrite, truncate: true });
    assert!(client.exchange(first.clone()).unwrap().is_ok());
    server.stop(STOP).unwrap();
    leave_to_be_cut(&site, &path);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    let aside = site.directory.path().join("aside");
    std::fs::rename(&path, &aside).unwrap();
    let refused = client.exchange(first.clone()).unwrap();
    assert!(matches!(refused, Err(CallFailure::Server { .. })), "{refused:?}");
    std::fs::rename(&aside, &path).unwrap();
    assert!(client.exchange(first).unwrap().is_ok());
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    server.stop(STOP).unwrap();
}

/// Changes a row of a volume without a server.
fn edit(site: &Site, key: &Key, change: impl FnOnce(&mut Row)) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let volume = site.config.volume.clone();
    let config = TableConfig {
        shard: ShardId(0),
        store: PosixStore::open(volume.shards()).unwrap(),
        volume,
        sync_interval: Duration::ZERO,
        cache: TableCache::new(1024 * 1024),
        background: runtime.handle().clone(),
        merges: Merges::on(runtime.handle().clone()),
        memtable_bytes: MEMTABLE_BYTES_DEFAULT,
        sync_writes: Default::default(),
        may_claim: None,
    };
    runtime.block_on(async {
        let table = Table::open(config).await.unwrap();
        let bytes = codec::encode_key(key);
        let stored = table.get(&bytes).await.unwrap().unwrap();
        let mut row = codec::decode_row(key.kind(), &stored).unwrap();
        change(&mut row);
        let mut batch = TableBatch::default();
        batch.put(bytes, codec::encode_row(&row));
        table.write(&batch).await.unwrap();
        table.close().await.unwrap();
    });
}
