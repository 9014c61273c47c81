//! A few shards of one volume in a temporary directory, with real tables and logs.

use super::watched::Watched;
use crate::shards::peers::FileCall;
use crate::shards::rows::ShardRows;
use crate::shards::{
    CacheBudget, CommitRound, Execution, Leases, Makes, OpenFiles, PageLimit, PeerCall, PeerReply, PeerRequest,
    PeerResponse, Peers, RequestAddress, SentRequest, Shard, ShardConfig, ShardRefusal,
};
use futures::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant as StdInstant};
use varve_cluster::lease::Lease;
use varve_env::clock::{Instant, RealClock};
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_posix::{Create, Entry, GetDirectory, Lookup, MakeDirectory, NewNode, Verb};
use varve_schema::peer::ShardTerm;
use varve_schema::{Change, DirectoryRow, EntryRow, Key, PartitionRow, PartitionState, Row};
use varve_store::{ConsistentSnapshots, MEMTABLE_BYTES_DEFAULT, Merges, SyncWrites, TableCache, TableConfig};
use varve_types::{
    Credentials, Errno, InodeId, Mode, Name, NameHash, PartitionIndex, PartitionMap, ShardCount, ShardId, Timestamp,
    VolumeId, VolumeSettings,
};

/// Time limit for any event, generous enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
pub struct LocalPeers {
    shards: RefCell<HashMap<ShardId, Rc<Shard>>>,
    /// Number of all calls.
    pub calls: Cell<usize>,
    /// Fetches in progress; `most_fetches` is their maximum.
    fetches: Cell<usize>,
    pub most_fetches: Cell<usize>,
    /// Whether one worker serves all shards, or each shard has its own worker.
    pub all_near: Cell<bool>,
    /// Action of another worker before the next cross-shard change is prepared.
    pub before_prepare: RefCell<Option<Box<dyn FnOnce()>>>,
    /// Runs when a question about open files is answered, before the answer arrives.
    pub before_answer: RefCell<Option<LocalBoxFuture<'static, ()>>>,
    /// Runs before the use of a file is registered at the shard in its number.
    pub before_register: RefCell<Option<LocalBoxFuture<'static, ()>>>,
    /// Decisions of cross-shard changes are neither delivered to other shards nor reported to shards that ask.
    pub keeps_decisions: Cell<bool>,
    /// Participants do not tell a coordinator that recovers whether they have prepared.
    pub keeps_preparations: Cell<bool>,
    /// Number of decisions held back that way.
    pub kept_decisions: Cell<usize>,
}

impl LocalPeers {
    /// Calls `shard` as the shard after it does.
    pub async fn call(&self, shard: ShardId, call: PeerCall) -> PeerReply {
        let after = (usize::from(shard.0) + 1) % self.shards.borrow().len();
        let caller = self.shards.borrow()[&ShardId(after as u16)].clone();
        caller.peers.call(shard, call).await
    }

    /// Whether the test holds a call back.
    fn is_kept(&self, call: &PeerCall) -> bool {
        let decides =
            matches!(call, PeerCall::Resolve { commit: true, .. } | PeerCall::Settle(_) | PeerCall::Outcome(_));
        if self.keeps_decisions.get() && decides {
            self.kept_decisions.set(self.kept_decisions.get() + 1);
            return true;
        }
        self.keeps_preparations.get() && matches!(call, PeerCall::IsPrepared(_))
    }
}

fn through_bytes(request: &PeerRequest) -> PeerRequest {
    let arrived = request.through_bytes().unwrap();
    assert_eq!(arrived, *request);
    arrived
}

impl Peers for LocalPeers {
    fn send(&self, request: PeerRequest) -> SentRequest<'_> {
        Box::pin(async move {
            let request = through_bytes(&request);
            self.calls.set(self.calls.get() + 1);
            let shard = self.shards.borrow().get(&request.to).cloned();
            if let PeerCall::Prepare(..) = request.call
                && let Some(first) = self.before_prepare.take()
            {
                first();
            }
            let Some(shard) = shard.filter(|_| !self.is_kept(&request.call)) else {
                let from = ShardTerm { shard: request.to, term: ShardTerm::NONE };
                return Ok(PeerResponse { id: request.id, from, reply: PeerReply::Busy });
            };
            if let PeerCall::Files(FileCall::Register(_)) = request.call
                && let Some(first) = self.before_register.take()
            {
                first.await;
            }
            let asks = matches!(request.call, PeerCall::Files(FileCall::AreOpen(_) | FileCall::Judge(_)));
            let fetches = matches!(request.call, PeerCall::Fetch(_));
            if fetches {
                self.fetches.set(self.fetches.get() + 1);
                self.most_fetches.set(self.most_fetches.get().max(self.fetches.get()));
                // A message to another worker gets no reply before the caller has continued.
                if !self.all_near.get() {
                    tokio::task::yield_now().await;
                }
            }
            let response = shard.serve(request).await;
            self.fetches.set(self.fetches.get() - usize::from(fetches));
            if asks && let Some(meanwhile) = self.before_answer.take() {
                meanwhile.await;
            }
            assert_eq!(response.through_bytes().as_ref(), Ok(&response));
            Ok(response)
        })
    }
}

pub struct Cluster {
    pub settings: VolumeSettings,
    pub volume: VolumeDir,
    pub peers: Rc<LocalPeers>,
    open_files: HashMap<ShardId, OpenFiles>,
    leases: HashMap<ShardId, Leases>,
    /// Of the worker that serves all shards.
    pub commits: Rc<CommitRound>,
    store: PosixStore,
    /// Of the latest opening of each shard.
    caches: RefCell<HashMap<ShardId, TableCache>>,
    background: tokio::runtime::Handle,
    /// Of the server.
    pub lease: Arc<Lease>,
    /// Of all shards.
    pub sync_writes: SyncWrites,
}

fn kill(shard: &Shard) {
    let mut state = shard.state.borrow_mut();
    state.closing = true;
    state.failed = Some("the process is dead".into());
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// The rows of an empty root directory.
pub fn root_rows(shards: ShardCount) -> Vec<Change> {
    empty_directory(InodeId::ROOT, shards)
}

/// The rows of an empty directory in the root.
pub fn empty_directory(directory: InodeId, shards: ShardCount) -> Vec<Change> {
    let map = PartitionMap::whole(shards);
    let now = Timestamp { seconds: 1, nanoseconds: 0 };
    let mode = Mode::new(0o755);
    let home = DirectoryRow {
        parent: InodeId::ROOT,
        mode,
        uid: 0,
        gid: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        map: map.clone(),
        xattrs: Vec::new(),
    };
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
        map,
    };
    vec![
        Change::put(Key::Directory(directory), Row::Directory(home)),
        Change::put(Key::Partition(directory, PartitionIndex::FIRST), Row::Partition(partition)),
    ]
}

impl Cluster {
    /// Runs `test` on a volume with this many shards.
    pub fn run<F: Future<Output = ()>>(shards: u16, split_threshold: u64, test: impl FnOnce(Rc<Cluster>) -> F) {
        let directory = tempfile::tempdir().unwrap();
        let settings = VolumeSettings {
            id: VolumeId([7; 16]),
            name: "test".into(),
            shards: ShardCount::new(shards).unwrap(),
            split_threshold,
            inline_limit: 4096,
            sync_interval: Duration::from_secs(5),
            owner_uid: 0,
        };
        VolumeDir::new(directory.path()).format(&settings, FormatOver::Nothing).unwrap();
        Cluster::run_in(directory.path(), async move |cluster| {
            cluster.make_root().await;
            test(cluster.clone()).await;
            cluster.close().await;
        });
    }

    /// Opens the volume in `directory`, runs `test`, and drops everything, as the death of the process does. When this
    /// returns, nothing in the volume changes any more: it waits for system calls in progress.
    pub fn run_in<T>(directory: &Path, test: impl AsyncFnOnce(Rc<Cluster>) -> T) -> T {
        let what = format!("a cluster in {}, of {:?}", directory.display(), std::thread::current().name());
        let _watched = Watched::begin(what);
        let volume = VolumeDir::new(directory);
        let settings = volume.read_settings().unwrap();
        let store = PosixStore::open(volume.shards()).unwrap();
        let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let cluster = Rc::new(Cluster {
            open_files: settings.shards.all().map(|shard| (shard, OpenFiles::default())).collect(),
            // Earlier owners have granted none.
            leases: settings.shards.all().map(|shard| (shard, Leases::new(Some(Instant(Duration::ZERO))))).collect(),
            settings,
            volume,
            peers: Rc::default(),
            commits: Rc::default(),
            store,
            caches: RefCell::default(),
            background: background.handle().clone(),
            lease: Arc::new(Lease::unlimited(Arc::new(RealClock::new()))),
            sync_writes: SyncWrites::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let result = tokio::task::LocalSet::new().block_on(&runtime, async {
            cluster.open().await;
            let result = test(cluster.clone()).await;
            cluster.die();
            result
        });
        let waited = Watched::begin("calls of the system that a cluster which has ended left under way");
        let begun = StdInstant::now();
        background.shutdown_timeout(PATIENCE);
        drop(waited);
        assert!(begun.elapsed() < PATIENCE, "a call of the system was still under way when its cluster had ended");
        result
    }

    pub async fn open(&self) {
        for id in self.settings.shards.all() {
            let shard = Shard::open(self.config(id)).await.unwrap();
            self.peers.shards.borrow_mut().insert(id, shard);
        }
    }

    fn config(&self, id: ShardId) -> ShardConfig {
        let cache = TableCache::new(16 << 20);
        self.caches.borrow_mut().insert(id, cache.clone());
        ShardConfig {
            id,
            settings: self.settings.clone(),
            volume: self.volume.clone(),
            table: TableConfig {
                shard: id,
                volume: self.volume.clone(),
                store: self.store.clone(),
                sync_interval: self.settings.sync_interval,
                cache,
                background: self.background.clone(),
                merges: Merges::on(self.background.clone()),
                memtable_bytes: MEMTABLE_BYTES_DEFAULT,
                sync_writes: self.sync_writes.clone(),
                may_claim: None,
            },
            peers: self.peers.clone(),
            clock: Arc::new(RealClock::new()),
            lease: Arc::clone(&self.lease),
            commits: Rc::clone(&self.commits),
            open_files: self.open_files[&id].clone(),
            leases: self.leases[&id].clone(),
            cache: Arc::new(CacheBudget::new(4 << 20, 1)),
            names: Arc::new(CacheBudget::new(4 << 20, 1)),
        }
    }

    /// The open files of the shard in the number of `inode`. They survive a crash, as those of a failed shard do.
    pub fn open_files(&self, inode: InodeId) -> &OpenFiles {
        &self.open_files[&inode.shard()]
    }

    pub async fn close(&self) {
        for id in self.settings.shards.all() {
            self.shard(id).end_transactions().await;
        }
        let shards = std::mem::take(&mut *self.peers.shards.borrow_mut());
        for shard in shards.into_values() {
            shard.close().await.unwrap();
        }
    }

    /// Opens every shard anew without closing it, as after the death of the process: the old ones are only dropped.
    pub async fn reopen_after_crash(&self) {
        self.die();
        self.open().await;
    }

    /// Opens one shard anew, as after the death of its process.
    pub async fn reopen(&self, id: ShardId) {
        kill(&self.shard(id));
        self.open_beside(id).await;
    }

    /// Opens a shard whose owner goes on.
    pub async fn open_beside(&self, id: ShardId) {
        let shard = Shard::open(self.config(id)).await.unwrap();
        self.peers.shards.borrow_mut().insert(id, shard);
    }

    /// Opens every shard read-only, as after the death of the process on a store that accepts no writes.
    pub async fn rest_after_crash(&self) {
        self.die();
        for id in self.settings.shards.all() {
            let shard = Shard::open_read_only(self.config(id), Errno::EROFS).await.unwrap();
            self.peers.shards.borrow_mut().insert(id, shard);
        }
    }

    fn die(&self) {
        let dead = std::mem::take(&mut *self.peers.shards.borrow_mut());
        dead.values().for_each(|shard| kill(shard));
    }

    pub async fn make_root(&self) {
        let changes = root_rows(self.settings.shards);
        assert!(matches!(self.peers.call(ShardId(0), PeerCall::Apply(changes)).await, PeerReply::Done));
    }

    pub fn shard(&self, id: ShardId) -> Rc<Shard> {
        self.peers.shards.borrow()[&id].clone()
    }

    /// Runs a verb on a name in the shard that holds it, as a client does: starts at the home and follows `Moved`.
    pub async fn at_name<V: Verb>(
        &self,
        directory: InodeId,
        at: &Name,
        makes: Makes,
        verb: &V,
    ) -> Result<V::Outcome, ShardRefusal> {
        let mut map = PartitionMap::whole(self.settings.shards);
        let caller = &Credentials::root();
        let begun = StdInstant::now();
        while begun.elapsed() < PATIENCE {
            let shard = self.shard(map.shard_of(directory.shard(), at.hash()));
            let address = RequestAddress::Name(directory, at.hash());
            let run = Execution { caller, address, makes, record: None, registrar: None };
            match shard.run(verb, run).await {
                Err(ShardRefusal::Moved { map: newer, .. }) => map.merge(&newer),
                Err(ShardRefusal::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
                result => return result,
            }
        }
        panic!("no shard holds {at} of {directory}");
    }

    /// Runs a verb on an inode at its home.
    pub async fn at_home<V: Verb>(&self, inode: InodeId, verb: &V) -> Result<V::Outcome, ShardRefusal> {
        let (shard, caller) = (self.shard(inode.shard()), &Credentials::root());
        loop {
            let run = Execution {
                caller,
                address: RequestAddress::Inode(inode),
                makes: Makes::Nothing,
                record: None,
                registrar: None,
            };
            match shard.run(verb, run).await {
                Err(ShardRefusal::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
                result => return result,
            }
        }
    }

    pub async fn create(&self, directory: InodeId, at: &str) -> Result<varve_posix::Node, ShardRefusal> {
        let at = name(at);
        let verb = Create { parent: directory, name: at.clone(), node: NewNode::Regular, mode: Mode::new(0o644) };
        self.at_name(directory, &at, Makes::File, &verb).await
    }

    pub async fn mkdir(&self, directory: InodeId, at: &str, home: ShardId) -> InodeId {
        let at = name(at);
        let verb = MakeDirectory { parent: directory, name: at.clone(), mode: Mode::new(0o755) };
        self.at_name(directory, &at, Makes::Directory { home }, &verb).await.unwrap().inode
    }

    /// The inode of a name, and whether its attributes are elsewhere.
    pub async fn lookup(&self, directory: InodeId, at: &str) -> Option<(InodeId, bool)> {
        let at = name(at);
        let verb = Lookup { parent: directory, name: at.clone() };
        match self.at_name(directory, &at, Makes::Nothing, &verb).await {
            Ok(Entry::Node(node)) => Some((node.inode, false)),
            Ok(Entry::Elsewhere { inode, .. }) => Some((inode, true)),
            Err(refusal) if refusal == Errno::ENOENT.into() => None,
            Err(refusal) => panic!("lookup of {at}: {refusal}"),
        }
    }

    pub async fn map(&self, directory: InodeId) -> PartitionMap {
        match self.peers.call(directory.shard(), PeerCall::Map(directory)).await {
            PeerReply::Map(map) => map,
            other => panic!("{other:?}"),
        }
    }

    /// Fsyncs everything acknowledged before.
    pub async fn sync(&self) {
        for id in self.settings.shards.all() {
            let shard = self.shard(id);
            // Changes that no caller waits for may not be in the log yet.
            let batch = shard.state.borrow().open.number;
            shard.durable(batch).await.unwrap();
        }
    }

    /// Used to make the store of a shard hang.
    pub fn snapshots(&self, id: ShardId) -> Arc<ConsistentSnapshots> {
        self.caches.borrow()[&id].snapshots()
    }

    /// Blocks all fsyncs of logs until the returned value is dropped, as on a hung store, by occupying the thread that
    /// starts them.
    pub fn hang_fsyncs(&self) -> mpsc::Sender<()> {
        let (begun, begins) = mpsc::channel();
        let (hung, ends) = mpsc::channel::<()>();
        self.background.spawn(async move {
            begun.send(()).unwrap();
            // Nothing is ever sent.
            ends.recv().unwrap_err();
        });
        begins.recv().unwrap();
        hung
    }

    /// Moves everything in memory into tables.
    pub async fn flush(&self) {
        for id in self.settings.shards.all() {
            match &self.shard(id).table {
                ShardRows::Own(table) => table.flush().await.unwrap(),
                ShardRows::ReadOnly(..) => panic!("shard {id} is open read-only"),
            }
        }
    }

    pub async fn list(&self, directory: InodeId) -> Vec<Name> {
        self.entries(directory).await.into_iter().map(|(name, _)| name).collect()
    }

    /// All entries of a directory, listed page by page.
    pub async fn entries(&self, directory: InodeId) -> Vec<(Name, EntryRow)> {
        let mut map = PartitionMap::whole(self.settings.shards);
        let (mut names, mut from) = (Vec::new(), NameHash(0));
        loop {
            match self
                .shard(map.shard_of(directory.shard(), from))
                .list(directory, from, PageLimit { bytes_max: 2000, entry_bytes: 80 })
                .await
            {
                Ok(page) => {
                    names.extend(page.entries);
                    match page.next {
                        Some(next) => from = next,
                        None => return names,
                    }
                }
                Err(ShardRefusal::Moved { map: newer, .. }) => map.merge(&newer),
                Err(ShardRefusal::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(refusal) => panic!("{refusal}"),
            }
        }
    }

    pub async fn check_lists(&self, directory: InodeId, expected: impl Iterator<Item = String>) {
        let listed = self.list(directory).await;
        let distinct: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(listed.len(), distinct.len(), "a name is listed twice");
        let expected: BTreeSet<_> = expected.map(|text| name(&text)).collect();
        let missing: Vec<_> = expected.difference(&distinct).collect();
        let extra: Vec<_> = distinct.difference(&expected).collect();
        assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, too many {extra:?}");
    }

    /// The sum of the entry counts of the directory's partitions, taken while no split moves them.
    pub async fn counted(&self, directory: InodeId) -> u64 {
        loop {
            let (map, sum) = (self.map(directory).await, self.counted_once(directory).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
            if map == self.map(directory).await && sum == self.counted_once(directory).await {
                return sum;
            }
        }
    }

    /// [`Cluster::counted`] without a wait: nothing may change.
    pub async fn counted_once(&self, directory: InodeId) -> u64 {
        let mut sum = 0;
        for index in self.map(directory).await.iter() {
            let shard = index.shard(directory.shard(), self.settings.shards);
            loop {
                match self.peers.call(shard, PeerCall::Fetch(vec![Key::Partition(directory, index)])).await {
                    PeerReply::Rows(rows) => match rows[0].clone() {
                        Some(Row::Partition(row)) => sum += row.entries,
                        other => panic!("{other:?}"),
                    },
                    PeerReply::Busy => {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    other => panic!("{other:?}"),
                }
                break;
            }
        }
        sum
    }

    /// Whether a partition of the directory is being split now.
    pub fn is_splitting(&self, directory: InodeId) -> bool {
        self.peers.shards.borrow().values().any(|shard| {
            let state = shard.state.borrow();
            state.partitions.get(directory).is_some_and(|partition| partition.split.is_some())
        })
    }

    pub async fn parent_of(&self, directory: InodeId) -> InodeId {
        let verb = GetDirectory { directory };
        let run = Execution {
            caller: &Credentials::root(),
            address: RequestAddress::Inode(directory),
            makes: Makes::Nothing,
            record: None,
            registrar: None,
        };
        self.shard(directory.shard()).run(&verb, run).await.unwrap().row.parent
    }
}
