use super::*;
use tokio::sync::Notify;

/// Performs one step after another, each of which may have to wait.
struct Bench {
    round: Rc<CommitRound>,
    work: CommitWork,
    left: Cell<u32>,
    done: RefCell<Vec<u32>>,
    slow: Cell<bool>,
    go_on: Notify,
    closed: Cell<bool>,
}

impl Bench {
    fn open() -> Rc<Bench> {
        let round = Rc::<CommitRound>::default();
        let (left, done, slow, go_on, closed) = Default::default();
        let work = CommitWork::new(Rc::clone(&round));
        let bench = Rc::new(Bench { round, work, left, done, slow, go_on, closed });
        tokio::task::spawn_local(bench.work.task(Rc::clone(&bench).send()));
        bench
    }

    async fn send(self: Rc<Self>) {
        loop {
            let left = self.left.take();
            if left == 0 {
                if self.closed.get() {
                    return;
                }
                self.work.notified().await;
                continue;
            }
            if self.slow.get() {
                self.go_on.notified().await;
            }
            self.done.borrow_mut().push(left);
            if left == 7 {
                // Like a waiter that has more to send.
                self.left.set(8);
                self.work.notify_one();
            }
        }
    }

    fn bring(&self, count: u32) {
        self.left.set(count);
    }

    fn commit_in_round(&self) {
        self.round.set_open(true);
        self.work.notify_one();
        self.round.send();
        self.round.set_open(false);
    }
}

fn at_bench<T: Future<Output = ()>>(test: impl FnOnce(Rc<Bench>) -> T) {
    let runtime = tokio::runtime::Builder::new_current_thread().build_local(Default::default()).unwrap();
    runtime.block_on(async { test(Bench::open()).await });
}

/// Promise: work to be done inline is done when the call returns, with the work that it causes; the task does the
/// work that it is notified of.
#[test]
fn commit_runs_inline_or_in_the_task() {
    at_bench(|bench| async move {
        bench.bring(1);
        bench.commit_in_round();
        assert!(bench.done.borrow().is_empty(), "the task has not begun");
        tokio::task::yield_now().await;
        assert_eq!(*bench.done.borrow(), [1]);
        for count in [2, 7] {
            bench.bring(count);
            bench.commit_in_round();
        }
        assert_eq!(*bench.done.borrow(), [1, 2, 7, 8]);
        assert!(bench.work.idle.borrow().is_some(), "it still waits");
        bench.bring(3);
        bench.work.notify_one();
        assert_eq!(bench.done.borrow().len(), 4);
        tokio::task::yield_now().await;
        assert_eq!(*bench.done.borrow(), [1, 2, 7, 8, 3]);
    });
}

/// Promise: the task finishes a commit that has to wait, whichever side began it, then does the work that came
/// meanwhile; and it ends.
#[test]
fn blocking_commit_moves_to_the_task() {
    at_bench(|bench| async move {
        tokio::task::yield_now().await;
        bench.slow.set(true);
        bench.bring(1);
        bench.commit_in_round();
        bench.bring(2);
        bench.commit_in_round();
        assert!(bench.done.borrow().is_empty());
        bench.slow.set(false);
        bench.go_on.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(*bench.done.borrow(), [1, 2]);
        bench.closed.set(true);
        bench.commit_in_round();
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&bench), 1, "nobody holds it any more");
        bench.commit_in_round();
        bench.work.notify_one();
    });
}
