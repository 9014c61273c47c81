//! Requests that come twice, late, or from a former owner.

use super::cluster::{Cluster, empty_directory, name};
use crate::shards::peers::{CALL_MAX, FileCall, PeerChannels};
use crate::shards::transaction_state::ASK_AFTER;
use crate::shards::{PeerCall, PeerReply, PeerRequest, PeerResponse, Peers, SentRequest};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use varve_schema::peer::ShardTerm;
use varve_schema::{Change, EntryBody, EntryRow, IntentRow, Key, Row, TransactionId};
use varve_types::{Epoch, Errno, FileKind, InodeId, PartitionMap, ShardCount, ShardId};

const CALLER: ShardId = ShardId(1);
const CALLED: ShardId = ShardId(2);

fn term(cluster: &Cluster, shard: ShardId) -> Epoch {
    cluster.shard(shard).epoch()
}

/// A request whose id no channel reaches in these tests.
fn request(cluster: &Cluster, id: u64, call: PeerCall) -> PeerRequest {
    PeerRequest {
        from: ShardTerm { shard: CALLER, term: term(cluster, CALLER) },
        to: CALLED,
        term: Some(term(cluster, CALLED)),
        id: 1_000_000 + id,
        deadline: Duration::from_secs(60),
        call,
    }
}

async fn serve(cluster: &Cluster, request: &PeerRequest) -> PeerResponse {
    cluster.shard(CALLED).serve(request.clone()).await
}

async fn fresh_inodes(cluster: &Cluster) -> PeerReply {
    cluster.shard(CALLER).peers.call(CALLED, PeerCall::FreshInodes(1)).await
}

#[test]
fn repeated_request_is_carried_out_once() {
    Cluster::run(4, 1000, |cluster| async move {
        let first = request(&cluster, 1, PeerCall::FreshInodes(1));
        let second = request(&cluster, 2, PeerCall::FreshInodes(1));
        for request in [&second, &first] {
            assert!(matches!(serve(&cluster, request).await.reply, PeerReply::InodesFrom(_)));
            assert_eq!(serve(&cluster, request).await.reply, PeerReply::Repeated);
        }
    });
}

#[test]
fn request_to_another_term_is_not_carried_out() {
    Cluster::run(4, 1000, |cluster| async move {
        let now = term(&cluster, CALLED);
        let fetch = PeerCall::Fetch(Vec::new());
        for (about, asked) in [Some(Epoch(now.0 - 1)), Some(Epoch(now.0 + 1)), None].into_iter().enumerate() {
            for call in [PeerCall::FreshInodes(1), fetch.clone()] {
                let reads = call.only_reads() && asked.is_none();
                let asks = PeerRequest { term: asked, ..request(&cluster, about as u64, call) };
                let response = serve(&cluster, &asks).await;
                assert_eq!(response.from, ShardTerm { shard: CALLED, term: now });
                assert_eq!(response.reply == PeerReply::WrongTerm, !reads, "{asks:?}: {response:?}");
            }
        }
    });
}

#[test]
fn request_that_went_astray_is_refused() {
    Cluster::run(4, 1000, |cluster| async move {
        let good = request(&cluster, 1, PeerCall::FreshInodes(1));
        let from = ShardTerm { shard: ShardId(4), ..good.from };
        let map = PartitionMap::whole(ShardCount::new(8).unwrap());
        let of_another_volume = request(&cluster, 2, PeerCall::LearnMap { directory: InodeId::ROOT, map });
        let astray = [PeerRequest { to: ShardId(3), ..good.clone() }, PeerRequest { from, ..good }, of_another_volume];
        for astray in astray {
            assert!(matches!(serve(&cluster, &astray).await.reply, PeerReply::Failed(_)), "{astray:?}");
        }
    });
}

#[test]
fn caller_learns_a_new_term_and_calls_again() {
    Cluster::run(4, 1000, |cluster| async move {
        assert!(matches!(fresh_inodes(&cluster).await, PeerReply::InodesFrom(_)));
        cluster.reopen(CALLED).await;
        let calls = cluster.peers.calls.get();
        assert!(matches!(fresh_inodes(&cluster).await, PeerReply::InodesFrom(_)));
        assert_eq!(cluster.peers.calls.get() - calls, 2);
        cluster.reopen(CALLED).await;
        let calls = cluster.peers.calls.get();
        let files = PeerCall::Files(FileCall::AreOpen(vec![InodeId::new(CALLED, 900)]));
        assert!(matches!(cluster.shard(CALLER).peers.call(CALLED, files).await, PeerReply::Files(_)));
        assert_eq!(cluster.peers.calls.get() - calls, 2);
        // A large call is not kept for that: the caller decides again.
        cluster.reopen(CALLED).await;
        let apply = PeerCall::Apply(empty_directory(InodeId::new(CALLED, 900), cluster.settings.shards));
        assert_eq!(cluster.shard(CALLER).peers.call(CALLED, apply).await, PeerReply::Busy);
    });
}

/// Promise: a shard that was opened elsewhere in the meantime changes nothing in other shards, and finds that it has
/// another owner.
#[test]
fn former_owner_is_refused_and_fails() {
    Cluster::run(4, 1000, |cluster| async move {
        let former = cluster.shard(CALLER);
        assert!(matches!(fresh_inodes(&cluster).await, PeerReply::InodesFrom(_)));
        cluster.open_beside(CALLER).await;
        assert!(matches!(fresh_inodes(&cluster).await, PeerReply::InodesFrom(_)));
        let refused = former.peers.call(CALLED, PeerCall::FreshInodes(1)).await;
        assert!(matches!(refused, PeerReply::Failed(_)), "{refused:?}");
        assert!(former.peers.superseded().is_some() && former.has_failed() && former.stopping());
        assert!(!cluster.shard(CALLER).has_failed());
    });
}

/// Promise: the rows of a new directory that arrive again after names were made in it change nothing.
#[test]
fn repeated_apply_does_not_empty_a_directory() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", CALLED).await;
        cluster.create(made, "f").await.unwrap();
        let apply = request(&cluster, 1, PeerCall::Apply(empty_directory(made, cluster.settings.shards)));
        assert!(matches!(serve(&cluster, &apply).await.reply, PeerReply::Failed(_)), "its rows are known");
        assert_eq!(serve(&cluster, &apply).await.reply, PeerReply::Repeated);
        cluster.reopen(CALLED).await;
        for asked in [apply.term, None] {
            let late = PeerRequest { term: asked, ..apply.clone() };
            assert_eq!(serve(&cluster, &late).await.reply, PeerReply::WrongTerm);
        }
        assert_eq!(cluster.list(made).await, [name("f")]);
        assert_eq!(cluster.counted(made).await, 1);
    });
}

#[test]
fn apply_takes_only_the_rows_of_one_inode_here() {
    Cluster::run(4, 1000, |cluster| async move {
        let own = InodeId::new(CALLED, 900);
        let entry = EntryRow { inode: own, body: EntryBody::Reference(FileKind::Regular) };
        let bad = [
            Vec::new(),
            vec![Change::put(Key::Entry(own, name("f")), Row::Entry(entry))],
            empty_directory(InodeId::new(ShardId(3), 900), cluster.settings.shards),
            [
                empty_directory(own, cluster.settings.shards),
                empty_directory(InodeId::new(CALLED, 901), cluster.settings.shards),
            ]
            .concat(),
        ];
        for (id, changes) in bad.into_iter().enumerate() {
            let apply = request(&cluster, id as u64, PeerCall::Apply(changes));
            assert!(matches!(serve(&cluster, &apply).await.reply, PeerReply::Failed(_)), "{apply:?}");
        }
        let good = request(&cluster, 9, PeerCall::Apply(empty_directory(own, cluster.settings.shards)));
        assert_eq!(serve(&cluster, &good).await.reply, PeerReply::Done);
    });
}

/// Promise: participants of a former owner's undecided transactions ask for the outcome as soon as they hear of the new
/// owner, and do not wait for the time that a living coordinator has. That holds for removals too.
#[test]
fn participant_asks_at_once_after_a_change_of_owner() {
    Cluster::run(4, 1000, |cluster| async move {
        let made = cluster.mkdir(InodeId::ROOT, "d", CALLED).await;
        let empty = cluster.mkdir(InodeId::ROOT, "e", CALLED).await;
        let id = |counter| TransactionId { coordinator: CALLER, epoch: term(&cluster, CALLER), counter };
        let entry = EntryRow { inode: InodeId::new(CALLER, 900), body: EntryBody::Reference(FileKind::Regular) };
        let change = Change::put(Key::Entry(made, name("f")), Row::Entry(entry));
        let intent = |participants, changes| IntentRow { participants, changes, reads: Vec::new(), reply: None };
        let prepare = PeerCall::Prepare(id(1_001), intent(vec![CALLED], vec![change]), Vec::new(), None);
        let removes = intent(Vec::new(), vec![Change::Delete(Key::Directory(empty))]);
        let prepare_removal = PeerCall::Prepare(id(1_002), removes, Vec::new(), None);
        let caller = cluster.shard(CALLER);
        for call in [prepare, prepare_removal] {
            assert_eq!(caller.peers.call(CALLED, call).await, PeerReply::Vote(true));
        }
        assert_eq!(cluster.shard(CALLED).status().transactions_open, 2);
        cluster.reopen(CALLER).await;
        let begun = Instant::now();
        assert!(matches!(fresh_inodes(&cluster).await, PeerReply::InodesFrom(_)));
        while cluster.shard(CALLED).status().transactions_open > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(begun.elapsed() < ASK_AFTER / 2);
        cluster.create(made, "f").await.unwrap();
        cluster.create(empty, "f").await.unwrap();
    });
}

/// A network that answers each request with the next response, and no request after the last.
struct Scripted(RefCell<Vec<PeerResponse>>);

impl Peers for Scripted {
    fn send(&self, _: PeerRequest) -> SentRequest<'_> {
        let response = self.0.borrow_mut().pop();
        Box::pin(async move {
            match response {
                Some(response) => Ok(response),
                None => std::future::pending().await,
            }
        })
    }
}

/// The replies to two fetches of shard 1 at shard 2, if the network answers with `responses` and then not at all.
fn fetch_twice(responses: [PeerResponse; 2]) -> [PeerReply; 2] {
    let script = responses.into_iter().rev().collect();
    let own = ShardTerm { shard: CALLER, term: Epoch(1) };
    let shards = ShardCount::new(4).unwrap();
    let channels = PeerChannels::new(Rc::new(Scripted(RefCell::new(script))), own, shards, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let first = channels.call(CALLED, PeerCall::Fetch(Vec::new())).await;
        let second = channels.call(CALLED, PeerCall::Fetch(Vec::new())).await;
        let begun = tokio::time::Instant::now();
        match channels.call(CALLED, PeerCall::Fetch(Vec::new())).await {
            PeerReply::Failed(cause) => assert_eq!(cause.errno, Errno::ETIMEDOUT),
            other => panic!("{other:?}"),
        }
        assert!((CALL_MAX..CALL_MAX * 2).contains(&begun.elapsed()));
        [first, second]
    })
}

/// Promise: a response that does not match its request, or none within the deadline, is an unknown outcome.
#[test]
fn unmatched_response_is_an_unknown_outcome() {
    let response = |id, shard, term| {
        let from = ShardTerm { shard: ShardId(shard), term: Epoch(term) };
        PeerResponse { id, from, reply: PeerReply::Done }
    };
    let [first, second] = fetch_twice([response(1, 2, 7), response(2, 2, 7)]);
    assert_eq!([first, second], [PeerReply::Done, PeerReply::Done]);
    let [of_another_request, from_another_shard] = fetch_twice([response(2, 2, 7), response(2, 3, 7)]);
    let [unasked, of_another_term] = fetch_twice([response(1, 2, 7), response(2, 2, 8)]);
    assert_eq!(unasked, PeerReply::Done, "the first response tells the term");
    for reply in [of_another_request, from_another_shard, of_another_term] {
        assert!(matches!(reply, PeerReply::Failed(_)), "{reply:?}");
    }
}
