//! Rows hold user data, which may look like records of the log that contains them.

use super::super::format::{BatchRows, GroupHeader, encode_batch};
use super::super::salvage::read_intact;
use super::*;
use bytes::BytesMut;

/// A row whose value is `content`.
fn holding(sequence: u64, content: Bytes) -> Vec<RowEntry> {
    vec![RowEntry { value: ValueDeletable::Value(content), ..batch(sequence)[0].clone() }]
}

/// For many positions, a group that claims that everything was synced, and a batch of one row.
fn forged() -> Bytes {
    let mut bytes = BytesMut::new();
    for position in (0..10_000_000).step_by(10_000) {
        GroupHeader { id: 99, synced: u64::MAX }.encode(1, position, &mut bytes);
        let row = RowEntry { key: Bytes::from_static(b"forged"), ..batch(1)[0].clone() };
        encode_batch(&BatchRows::of(&[row]), u64::MAX, 1, position, &mut bytes).unwrap();
    }
    bytes.freeze()
}

/// Promise: user data that looks like a log is not taken for one: a log torn after it opens like a log without it.
#[test]
fn torn_log_with_embedded_log_bytes_is_truncated() {
    let env = TestEnv::new();
    let owner = env.open(1, 0).unwrap();
    write(&owner.log, &holding(1, forged())).unwrap();
    owner.log.state.lock().close_group();
    write(&owner.log, &holding(2, forged())).unwrap();
    drop(owner);
    let file = file_path(env.path(), 1, 0);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    std::fs::write(begun_path(env.path(), 1), []).unwrap();
    let (mut replay, _log) = take_over(&env.config(), Claim { epoch: 2, replay_after: 0, flushed: 0 }).unwrap();
    let rows = env.runtime.block_on(replay.next()).unwrap().unwrap().rows;
    assert_eq!(rows, holding(1, forged()));
    assert!(env.runtime.block_on(replay.next()).unwrap().is_none());
}

/// Promise: a repair saves the logged rows of a damaged log, and no rows that a user has forged; even if the header of
/// the file is lost.
#[test]
fn row_like_content_is_not_salvaged() {
    for headless in [false, true] {
        let env = TestEnv::new();
        let mut owner = env.open(1, 0).unwrap();
        env.append(&mut owner, 1..4);
        let start = owner.log.appended();
        write(&owner.log, &holding(4, forged())).unwrap();
        env.hand_over(&mut owner, &holding(4, forged()));
        env.append(&mut owner, 5..8);
        env.sync(&owner);
        drop(owner);
        let file = file_path(env.path(), 1, 0);
        // The checksum of the record after the group's.
        env.damage(&file, 64 + start + 48 + 25);
        if headless {
            env.damage(&file, 3);
        }
        let mut saved = BTreeSet::new();
        let damaged = read_intact(ShardId(9), env.path(), Some(0), &mut |row| {
            assert_ne!(row.key, &b"forged"[..]);
            saved.insert(row.seq);
        })
        .unwrap();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert_eq!(saved, BTreeSet::from([1, 2, 3, 5, 6, 7]));
    }
}
