use super::*;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use std::sync::atomic::AtomicUsize;
use varve_env::volume_dir::VolumeDir;
use varve_proto::Response;
use varve_types::{SessionId, ShardCount, Timestamp, VolumeId};

/// A clock that advances only when the test moves it.
struct ManualClock(Mutex<Instant>);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 0, nanoseconds: 0 }
    }

    fn monotonic(&self) -> Instant {
        *self.0.lock()
    }
}

/// A server that is lost at its first call, followed by one that is still opening a shard.
struct OpeningServer {
    clock: Arc<ManualClock>,
    shard: ShardId,
    /// Number of calls that it answered with busy.
    busy: Arc<AtomicUsize>,
}

/// As long as a server delays a call for its shard.
const ANSWERED_BUSY: Duration = Duration::from_secs(5);

impl Transport for OpeningServer {
    fn find(&self, found: u64) -> BoxFuture<'_, std::result::Result<Arc<FoundServer>, FindError>> {
        ready(Ok(Arc::new(FoundServer { found, owners: vec![0; 4], workers: 1, embedded: false }))).boxed()
    }

    fn call<'a>(
        &'a self,
        server: &'a FoundServer,
        _worker: usize,
        request: &'a Request,
        deadline: Instant,
    ) -> BoxFuture<'a, std::result::Result<Response, CallError>> {
        let answer = |result| Ok(Response { id: request.id, result });
        let mut now = self.clock.0.lock();
        let answered = if server.found == 1 {
            Err(CallError::Lost("for the test".into()))
        } else if request.shard != self.shard.0 {
            answer(Ok(Reply::Done))
        } else if now.after(ANSWERED_BUSY) > deadline {
            *now = deadline;
            Err(CallError::Deadline)
        } else {
            *now = now.after(ANSWERED_BUSY);
            self.busy.fetch_add(1, Relaxed);
            answer(Err(wire::CallFailure::Busy))
        };
        ready(answered).boxed()
    }

    fn pause(&self, wait: Duration) -> BoxFuture<'_, ()> {
        let mut now = self.clock.0.lock();
        *now = now.after(wait);
        ready(()).boxed()
    }

    fn close(&self) {}
}

/// Promise: a shard that the next server is still opening does not delay the use of that server: files of other shards
/// are registered there, and the shard's own files later. Each attempt sends one request for all its files, and waits
/// for the reply.
#[test]
fn opening_shard_does_not_block_other_shards() {
    let clock = Arc::new(ManualClock(Mutex::new(Instant(Duration::ZERO))));
    let (opening, busy) = (ShardId(2), Arc::<AtomicUsize>::default());
    let transport = OpeningServer { clock: Arc::clone(&clock), shard: opening, busy: Arc::clone(&busy) };
    let settings = VolumeSettings {
        id: VolumeId([0; 16]),
        name: "test".into(),
        shards: ShardCount::new(4).unwrap(),
        split_threshold: 8,
        inline_limit: 4096,
        sync_interval: Duration::from_secs(5),
        owner_uid: 0,
    };
    let session = ClientSession::new(SessionId(7), settings.shards);
    let config = ClientConfig::new(VolumeDir::new("/nowhere"));
    let core = Core::start(config, settings, clock.clone(), session, Arc::default(), Box::new(transport));
    let core = crate::block_on(core).unwrap();
    let files: Vec<InodeId> = (0..40).map(|number| InodeId::new(ShardId(number % 4), number.into())).collect();
    files.iter().for_each(|inode| core.register(*inode, OpenMode::Read, None));
    let asked = crate::block_on(core.ask_shard(ShardId(0), Call::Sync)).map_err(|failure| failure.to_string());
    assert!(matches!(asked, Ok(Reply::Done)), "{asked:?}");
    assert_eq!(core.server().found, 2);
    let mut late = core.unregistered();
    late.sort();
    let theirs: Vec<InodeId> = files.iter().copied().filter(|inode| inode.shard() == opening).collect();
    assert_eq!(late, theirs);
    assert_eq!(busy.load(Relaxed), 1);
    assert!(matches!(crate::block_on(core.register_late(late[0])), Err(CallError::Deadline)));
    assert_eq!(busy.load(Relaxed), 2);
    // Closed before the server has replied: its release is sent when the reply is due.
    core.unregister(late[0]);
    assert_eq!(core.session.untold(), []);
    core.session.release_due(clock.monotonic().after(OPENED_MAX));
    assert_eq!(core.session.untold(), [opening]);
    assert_eq!(clock.monotonic().0.as_secs(), 2 * REGISTERED_MAX.as_secs());
}
