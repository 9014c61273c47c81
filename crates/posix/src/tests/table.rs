//! All rows of a small volume in memory, and a minimal driver: it fetches only the rows that the verb requests,
//! decides, and applies the changes.

use crate::reference::INLINE_LIMIT;
use crate::{At, Context, Decision, Effect, FindTruncate, FinishTruncate, KeyState, MissingKeys, Refusal, Verb, View};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use varve_schema::{
    BackingSize, Change, Content, DirectoryRow, EntryBody, EntryRow, Key, NodeRow, PartitionRow, PartitionState, Row,
    codec,
};
use varve_types::{
    Attributes, Credentials, HashRange, InodeId, Mode, Name, NameHash, PartitionIndex, PartitionMap, ShardCount,
    ShardId, Timestamp,
};

const SHARDS: u16 = 8;
/// Maximum rounds of fetching, after which a verb is taken not to terminate: more than any path here needs.
const ROUNDS_MAX: usize = 200;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn user(uid: u32) -> Credentials {
    Credentials::user(uid, uid, vec![3000])
}

pub fn at_second(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

pub struct ReferenceTable {
    pub rows: HashMap<Key, Row>,
    pub now: Timestamp,
    pub open: BTreeSet<InodeId>,
    /// Size and mtime of each backing file.
    pub backing: BTreeMap<InodeId, (u64, Timestamp)>,
    /// All effects that the verbs requested, in order.
    pub effects: Vec<Effect>,
    inodes: u64,
}

/// The rows that one verb has fetched.
struct Fetched<'a> {
    table: &'a ReferenceTable,
    keys: HashSet<Key>,
}

impl View for Fetched<'_> {
    fn row(&self, key: &Key) -> KeyState<'_> {
        match self.table.rows.get(key) {
            _ if !self.keys.contains(key) => KeyState::Unknown,
            None => KeyState::Absent,
            Some(row) => KeyState::Present(row),
        }
    }

    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex {
        self.table.map(directory).partition_of(hash)
    }
}

impl ReferenceTable {
    /// A volume with a root directory that all users may write.
    pub fn new() -> ReferenceTable {
        let mut table = ReferenceTable {
            rows: HashMap::new(),
            now: at_second(1_000),
            open: BTreeSet::new(),
            backing: BTreeMap::new(),
            effects: Vec::new(),
            inodes: 1,
        };
        let (mode, now, map) = (Mode(0o777), table.now, PartitionMap::whole(shards()));
        let partition = PartitionRow {
            index: PartitionIndex::FIRST,
            depth: 0,
            state: PartitionState::Live,
            mode,
            uid: 0,
            gid: 0,
            entries: 0,
            subdirectories: 0,
            mtime: now,
            map: map.clone(),
        };
        let directory = DirectoryRow {
            parent: InodeId::ROOT,
            mode,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            map,
            xattrs: Vec::new(),
        };
        table.rows.insert(Key::Directory(InodeId::ROOT), Row::Directory(directory));
        table.rows.insert(Key::Partition(InodeId::ROOT, PartitionIndex::FIRST), Row::Partition(partition));
        table
    }

    /// The inode id for the next verb.
    pub fn fresh(&self) -> InodeId {
        InodeId::new(ShardId((self.inodes % u64::from(SHARDS)) as u16), self.inodes + 1)
    }

    /// Runs one verb, one second after the previous one.
    pub fn run<V: Verb>(&mut self, verb: &V, caller: &Credentials) -> Result<V::Outcome, Refusal> {
        self.now.seconds += 1;
        let decision = self.decide(verb, caller);
        self.inodes += 1;
        match decision {
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Answer(outcome) => Ok(outcome),
            Decision::Commit { changes, effects, outcome } => {
                changes.into_iter().for_each(|change| self.apply(change));
                effects.into_iter().for_each(|effect| self.carry_out(effect));
                Ok(outcome)
            }
        }
    }

    /// The decision of the verb; nothing is changed.
    pub fn decide<V: Verb>(&self, verb: &V, caller: &Credentials) -> Decision<V::Outcome> {
        let mut fetched = Fetched { table: self, keys: HashSet::new() };
        for _ in 0..ROUNDS_MAX {
            let is_open = |inode| self.open.contains(&inode);
            let context = Context {
                caller,
                now: self.now,
                fresh: self.fresh(),
                shards: shards(),
                inline_limit: INLINE_LIMIT,
                is_open: &is_open,
                may_be_open: &is_open,
            };
            let MissingKeys(keys) = match verb.decide(&fetched, &context) {
                Ok(decision) => return decision,
                Err(missing) => missing,
            };
            assert!(!keys.is_empty(), "a verb says that something is missing, but not what");
            for key in keys {
                assert!(fetched.keys.insert(key.clone()), "asked twice for {key:?}");
            }
        }
        panic!("a verb goes on asking");
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Put(key, row) => {
                // Each row must survive encoding and decoding, or the codec is wrong.
                let bytes = codec::encode_row(&row);
                assert_eq!(codec::decode_row(key.kind(), &bytes).as_ref(), Ok(&*row));
                self.rows.insert(key, *row);
            }
            Change::Delete(key) => {
                assert!(self.rows.remove(&key).is_some(), "deletes {key:?}, which is not there");
            }
            Change::Tally { directory, name, entries, subdirectories, at } => {
                let index = self.map(directory).partition_of(name.hash());
                let partition = self.partition_mut(directory, index);
                partition.entries = partition.entries.checked_add_signed(entries).expect("fewer than no entries");
                partition.subdirectories =
                    partition.subdirectories.checked_add_signed(subdirectories).expect("fewer than no subdirectories");
                partition.mtime = partition.mtime.max(at);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        self.effects.push(effect.clone());
        match effect {
            Effect::Reap(inode) => {
                assert!(!self.open.contains(&inode), "reaps {inode}, which is open");
                self.backing.remove(&inode).expect("reaps a backing file that exists");
            }
            Effect::Own { .. } | Effect::SizeStale(_) => {}
            Effect::Truncate { at, .. } => {
                let found = self.decide(&FindTruncate { at: at.clone() }, &Credentials::root());
                let Decision::Answer(Some(begun)) = found else { panic!("nothing is to be cut: {found:?}") };
                self.backing.insert(at.inode(), (begun.size, self.now));
                self.try_run(&FinishTruncate { at, begun });
            }
            Effect::Touch { inode, mtime } => {
                self.backing.get_mut(&inode).expect("a backing file to touch").1 = mtime;
            }
        }
    }

    fn try_run(&mut self, verb: &FinishTruncate) {
        match self.decide(verb, &Credentials::root()) {
            Decision::Commit { changes, .. } => changes.into_iter().for_each(|change| self.apply(change)),
            other => panic!("a truncate is not finished: {other:?}"),
        }
    }

    /// The last session closes the file: if it has no name, its rows are deleted too.
    pub fn release(&mut self, inode: InodeId) {
        self.open.remove(&inode);
        if self.rows.remove(&Key::Orphan(inode)).is_some() {
            self.rows.remove(&Key::Inode(inode)).expect("an orphan has an inode row");
            self.rows.retain(|key, _| !matches!(key, Key::Xattr(of, _) if *of == inode));
            self.backing.remove(&inode);
        }
    }

    /// Splits the partition that holds `hash`, if it can be split.
    pub fn split(&mut self, directory: InodeId, hash: NameHash) {
        let mut map = self.map(directory);
        let index = map.partition_of(hash);
        let lower = self.partition_mut(directory, index).clone();
        if lower.depth == shards().depth_max() {
            return;
        }
        let upper_index = index.upper_half(lower.depth);
        map.add(upper_index);
        for (index, part) in [(index, index), (upper_index, upper_index)] {
            let depth = lower.depth + 1;
            let (entries, subdirectories) = self.count(directory, part.range(depth));
            let row = PartitionRow { index, depth, entries, subdirectories, map: map.clone(), ..lower.clone() };
            self.rows.insert(Key::Partition(directory, index), Row::Partition(row));
        }
    }

    /// Number of entries and subdirectories of `directory` whose hashes are in `range`.
    pub fn count(&self, directory: InodeId, range: HashRange) -> (u64, u64) {
        let entries = self.entries(directory);
        let within = || entries.iter().filter(|(name, _)| range.contains(name.hash()));
        let directories = within().filter(|(_, entry)| matches!(entry.body, EntryBody::Directory(_)));
        (within().count() as u64, directories.count() as u64)
    }

    /// The actual map of a directory, from its partition rows; a single partition if there are none.
    pub fn map(&self, directory: InodeId) -> PartitionMap {
        let mut map = PartitionMap::whole(shards());
        for index in (0..SHARDS).map(PartitionIndex) {
            if self.rows.contains_key(&Key::Partition(directory, index)) {
                map.add(index);
            }
        }
        map
    }

    pub fn partitions(&self, directory: InodeId) -> Vec<&PartitionRow> {
        self.map(directory)
            .iter()
            .filter_map(|index| match self.rows.get(&Key::Partition(directory, index)) {
                Some(Row::Partition(row)) => Some(row),
                _ => None,
            })
            .collect()
    }

    fn partition_mut(&mut self, directory: InodeId, index: PartitionIndex) -> &mut PartitionRow {
        match self.rows.get_mut(&Key::Partition(directory, index)) {
            Some(Row::Partition(row)) => row,
            other => panic!("partition {} of {directory} is {other:?}", index.0),
        }
    }

    pub fn entries(&self, directory: InodeId) -> BTreeMap<&Name, &EntryRow> {
        self.rows
            .iter()
            .filter_map(|(key, row)| match (key, row) {
                (Key::Entry(parent, name), Row::Entry(row)) if *parent == directory => Some((name, row)),
                _ => None,
            })
            .collect()
    }

    pub fn entry(&self, directory: InodeId, name: &Name) -> Option<&EntryRow> {
        match self.rows.get(&Key::Entry(directory, name.clone())) {
            Some(Row::Entry(row)) => Some(row),
            _ => None,
        }
    }

    pub fn inode_row(&self, inode: InodeId) -> Option<&NodeRow> {
        match self.rows.get(&Key::Inode(inode)) {
            Some(Row::Inode(row)) => Some(row),
            _ => None,
        }
    }

    pub fn directory_row(&self, inode: InodeId) -> Option<&DirectoryRow> {
        match self.rows.get(&Key::Directory(inode)) {
            Some(Row::Directory(row)) => Some(row),
            _ => None,
        }
    }

    /// The location of the row of the file that `name` refers to.
    pub fn at(&self, parent: InodeId, name: &Name) -> Option<At> {
        let entry = self.entry(parent, name)?;
        Some(match entry.body {
            EntryBody::Node(_) => At::Entry { parent, name: name.clone(), inode: entry.inode },
            EntryBody::Directory(_) | EntryBody::Reference(_) => At::Inode(entry.inode),
        })
    }

    /// The attributes that stat(2) shows: a stale size and mtime are replaced by the backing file's.
    pub fn stat(&self, inode: InodeId, row: &NodeRow) -> Attributes {
        let mut attributes = row.attributes;
        if let Content::Backing(BackingSize::Stale { at_least }) = row.content {
            assert!(self.backing[&inode].0 >= at_least, "the row says that it has {at_least} bytes");
            (attributes.size, attributes.mtime) = self.backing[&inode];
        }
        attributes
    }
}

pub fn shards() -> ShardCount {
    ShardCount::new(SHARDS).unwrap()
}
