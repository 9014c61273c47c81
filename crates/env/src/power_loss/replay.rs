//! Computes from changes the states in which they may leave a disk.

use super::disk_state::{DiskItem, DiskState};
use super::{CrashOrder, Fate, PAGE_BYTES, SECTOR_BYTES};
use crate::disk::journal::{DirectoryName, DiskChange, DiskRecord, NodeId, NodeKind, ROOT, SyncTarget};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The durable state, and the changes since.
pub(super) struct PowerLossReplay<'a> {
    record: &'a DiskRecord,
    files: Vec<FileData<'a>>,
    entries: BTreeMap<DirectoryName, NodeId>,
    pending_names: Vec<(usize, NameChange)>,
    /// Start of that finished fsync which began last. With a journal, it has kept all names that were changed before
    /// it.
    synced_until: usize,
}

#[derive(Clone, Default)]
struct FileData<'a> {
    durable: Arc<Vec<u8>>,
    pending: Vec<(usize, &'a DiskChange)>,
}

/// A change of names, with the nodes that they referred to at the time.
#[derive(Clone)]
struct NameChange {
    from: Option<DirectoryName>,
    to: Option<(DirectoryName, NodeId)>,
}

impl<'a> PowerLossReplay<'a> {
    pub(super) fn begin(before: &DiskState, record: &'a DiskRecord) -> PowerLossReplay<'a> {
        let mut replay = PowerLossReplay {
            record,
            files: vec![FileData::default(); record.nodes.len()],
            entries: BTreeMap::new(),
            pending_names: Vec::new(),
            synced_until: 0,
        };
        // In the order in which `enter` added them to the record.
        let mut directories = BTreeMap::from([(PathBuf::new(), ROOT)]);
        for (at, (path, item)) in before.items.iter().enumerate() {
            let node = NodeId(at + 1);
            let name = path.file_name().unwrap_or_default().to_owned();
            let parent = directories[path.parent().unwrap_or(Path::new(""))];
            replay.entries.insert((parent, name), node);
            match item {
                DiskItem::Directory => drop(directories.insert(path.clone(), node)),
                DiskItem::File { content, .. } => replay.files[node.0].durable = content.clone(),
                DiskItem::Symlink { .. } => {}
            }
        }
        replay
    }

    pub(super) fn change(&mut self, at: usize, change: &'a DiskChange) {
        match change {
            DiskChange::Enter { place, node } => {
                self.name_change(at, NameChange { from: None, to: Some((place.clone(), *node)) });
            }
            DiskChange::Remove { place } => self.name_change(at, NameChange { from: Some(place.clone()), to: None }),
            DiskChange::Rename { from, to } => {
                let to = self.meaning(from).map(|node| (to.clone(), node));
                self.name_change(at, NameChange { from: Some(from.clone()), to });
            }
            DiskChange::Write { node, .. }
            | DiskChange::Resize { node, .. }
            | DiskChange::Extend { node, .. }
            | DiskChange::Zero { node, .. } => self.files[node.0].pending.push((at, change)),
            DiskChange::SyncEnd { begin } => {
                if let DiskChange::SyncBegin { target } = &self.record.changes[*begin] {
                    self.synced(*target, *begin);
                }
            }
            DiskChange::SyncBegin { .. } | DiskChange::Mark(_) => {}
        }
    }

    fn name_change(&mut self, at: usize, change: NameChange) {
        self.pending_names.push((at, change));
    }

    /// The node that a name refers to for processes: its last change counts.
    fn meaning(&self, place: &DirectoryName) -> Option<NodeId> {
        for (_, change) in self.pending_names.iter().rev() {
            match change {
                NameChange { to: Some((to, node)), .. } if to == place => return Some(*node),
                NameChange { from: Some(from), .. } if from == place => return None,
                _ => {}
            }
        }
        self.entries.get(place).copied()
    }

    fn synced(&mut self, target: SyncTarget, begin: usize) {
        self.synced_until = self.synced_until.max(begin);
        match target {
            SyncTarget::Everything => {
                self.files.iter_mut().for_each(|file| file.settle(begin));
                self.settle_names(|at, _| at < begin);
            }
            SyncTarget::Node(node) if self.record.nodes[node.0] == NodeKind::Directory => {
                self.settle_names(|at, change| at < begin && change.is_in(node));
            }
            SyncTarget::Node(node) => self.files[node.0].settle(begin),
        }
    }

    fn settle_names(&mut self, durable: impl Fn(usize, &NameChange) -> bool) {
        let (settled, pending) =
            std::mem::take(&mut self.pending_names).into_iter().partition(|(at, change)| durable(*at, change));
        self.pending_names = pending;
        let settled: Vec<_> = settled;
        settled.into_iter().for_each(|(_, change)| change.apply(&mut self.entries));
    }

    pub(super) fn lose_power(mut self, fate: Fate) -> DiskState {
        let mut chance = FateRandom { seed: 0, drawn: 0 };
        if let Fate::Chance { seed, .. } = fate {
            chance.seed = seed;
        }
        let pending = std::mem::take(&mut self.pending_names);
        // With a journal, all changes of names after some point in time are lost.
        let end = pending.len();
        let cut = match fate {
            Fate::Kept => end,
            Fate::Lost => 0,
            Fate::Chance { order: CrashOrder::Journaled, .. } => {
                let kept = pending.iter().filter(|(at, _)| *at < self.synced_until).count();
                kept + chance.below(end - kept + 1)
            }
            Fate::Chance { order: CrashOrder::Anyhow, .. } => end,
        };
        for (number, (_, change)) in pending.into_iter().enumerate() {
            let anyhow = matches!(fate, Fate::Chance { order: CrashOrder::Anyhow, .. });
            if number < cut && !(anyhow && chance.below(2) == 0) {
                change.apply(&mut self.entries);
            }
        }
        let mut state = DiskState::default();
        self.collect(ROOT, Path::new(""), fate, &mut chance, &mut state);
        state
    }

    fn collect(&self, directory: NodeId, path: &Path, fate: Fate, chance: &mut FateRandom, state: &mut DiskState) {
        let first = (directory, OsString::new());
        let inside = self.entries.range(first..).take_while(|((parent, _), _)| *parent == directory);
        for ((_, name), node) in inside {
            let path = path.join(name);
            let item = match &self.record.nodes[node.0] {
                NodeKind::Directory => {
                    self.collect(*node, &path, fate, chance, state);
                    DiskItem::Directory
                }
                NodeKind::Symlink { target } => DiskItem::Symlink { target: target.clone() },
                NodeKind::File { mode } => {
                    DiskItem::File { mode: *mode, content: self.files[node.0].lose_power(fate, chance) }
                }
            };
            state.items.insert(path, item);
        }
    }
}

impl NameChange {
    fn is_in(&self, directory: NodeId) -> bool {
        let from = self.from.as_ref().map(|(parent, _)| *parent);
        let to = self.to.as_ref().map(|((parent, _), _)| *parent);
        from == Some(directory) || to == Some(directory)
    }

    fn apply(self, entries: &mut BTreeMap<DirectoryName, NodeId>) {
        if let Some(from) = self.from {
            entries.remove(&from);
        }
        if let Some((to, node)) = self.to {
            entries.insert(to, node);
        }
    }
}

impl FileData<'_> {
    /// Makes all changes before `begin` durable.
    fn settle(&mut self, begin: usize) {
        let settled = self.pending.iter().take_while(|(at, _)| *at < begin).count();
        if settled == 0 {
            return;
        }
        let content = Arc::make_mut(&mut self.durable);
        for (_, change) in self.pending.drain(..settled) {
            let length = length_after(change, content.len() as u64);
            content.resize(length as usize, 0);
            change_range(change, 0, content);
        }
    }

    fn lose_power(&self, fate: Fate, chance: &mut FateRandom) -> Arc<Vec<u8>> {
        let all = self.pending.len();
        let (order, length_version) = match fate {
            Fate::Lost => return self.durable.clone(),
            _ if all == 0 => return self.durable.clone(),
            Fate::Kept => (CrashOrder::Journaled, all),
            Fate::Chance { order, .. } => (order, chance.below(all + 1)),
        };
        let mut lengths = vec![self.durable.len() as u64];
        for (_, change) in &self.pending {
            lengths.push(length_after(change, *lengths.last().expect("begins with one")));
        }
        let length = lengths[length_version];
        let mut content = vec![0; length as usize];
        for (number, page) in content.chunks_mut(PAGE_BYTES as usize).enumerate() {
            let begin = number as u64 * PAGE_BYTES;
            // A journaled length is written after the bytes that it newly covers.
            let anew = begin + page.len() as u64 > lengths[0];
            let least = if order == CrashOrder::Journaled && anew { length_version } else { 0 };
            let mut pick = || match fate {
                Fate::Kept => all,
                _ => least + chance.below(all - least + 1),
            };
            self.page_after(pick(), begin, &lengths, page);
            let torn = fate != Fate::Kept && chance.below(3) == 0;
            if torn {
                let mut other = vec![0; page.len()];
                let version = least + chance.below(all - least + 1);
                self.page_after(version, begin, &lengths, &mut other);
                for (sector, other) in page.chunks_mut(SECTOR_BYTES).zip(other.chunks(SECTOR_BYTES)) {
                    if chance.below(2) == 0 {
                        sector.copy_from_slice(other);
                    }
                }
            }
        }
        Arc::new(content)
    }

    /// The bytes of a page after this many of the pending changes; zeros beyond the file's end at that time.
    fn page_after(&self, version: usize, begin: u64, lengths: &[u64], page: &mut [u8]) {
        page.fill(0);
        let durable = self.durable.get(begin as usize..).unwrap_or_default();
        let known = durable.len().min(page.len());
        page[..known].copy_from_slice(&durable[..known]);
        for ((_, change), length) in self.pending[..version].iter().zip(&lengths[1..]) {
            change_range(change, begin, page);
            let inside = length.saturating_sub(begin).min(page.len() as u64) as usize;
            page[inside..].fill(0);
        }
    }
}

fn length_after(change: &DiskChange, length: u64) -> u64 {
    match change {
        DiskChange::Write { offset, bytes, .. } => length.max(offset + bytes.len() as u64),
        DiskChange::Resize { length, .. } => *length,
        DiskChange::Extend { length: least, .. } => length.max(*least),
        _ => length,
    }
}

/// Applies the change to `range`, which begins at `begin`.
fn change_range(change: &DiskChange, begin: u64, range: &mut [u8]) {
    let end = begin + range.len() as u64;
    match change {
        DiskChange::Write { offset, bytes, .. } => {
            let (from, to) = (begin.max(*offset), end.min(offset + bytes.len() as u64));
            if from < to {
                let source = &bytes[(from - offset) as usize..(to - offset) as usize];
                range[(from - begin) as usize..(to - begin) as usize].copy_from_slice(source);
            }
        }
        DiskChange::Zero { offset, length, .. } => {
            let (from, to) = (begin.max(*offset), end.min(offset.saturating_add(*length)));
            if from < to {
                range[(from - begin) as usize..(to - begin) as usize].fill(0);
            }
        }
        _ => {}
    }
}

/// Pseudo-random numbers, the same for the same seed.
struct FateRandom {
    seed: u64,
    drawn: u64,
}

impl FateRandom {
    fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        (xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed) % end as u64) as usize
    }
}

pub(super) fn describe(record: &DiskRecord, at: usize) -> String {
    let name = |node: &NodeId| {
        let place = record.name_of(*node);
        place.map_or_else(|| format!("{node:?}"), |path| path.display().to_string())
    };
    let of_place = |(directory, entry): &DirectoryName| format!("{}/{}", name(directory), entry.display());
    match &record.changes[at] {
        DiskChange::Enter { place, node } => format!("make {} ({node:?})", of_place(place)),
        DiskChange::Remove { place } => format!("remove {}", of_place(place)),
        DiskChange::Rename { from, to } => format!("rename {} to {}", of_place(from), of_place(to)),
        DiskChange::Write { node, offset, bytes } => {
            format!("write {} bytes at {offset} of {}", bytes.len(), name(node))
        }
        DiskChange::Resize { node, length } => format!("cut {} to {length} bytes", name(node)),
        DiskChange::Extend { node, length } => format!("extend {} to {length} bytes", name(node)),
        DiskChange::Zero { node, offset, length } => format!("zero {length} bytes at {offset} of {}", name(node)),
        DiskChange::SyncBegin { target: SyncTarget::Node(node) } => format!("begin to sync {}", name(node)),
        DiskChange::SyncBegin { target: SyncTarget::Everything } => "begin to sync everything".to_owned(),
        DiskChange::SyncEnd { begin } => format!("synced what was begun at {begin}"),
        DiskChange::Mark(what) => format!("mark {what}"),
    }
}
