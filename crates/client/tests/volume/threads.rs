//! Calls of many threads, each of which has its own loop and connections.

use crate::site::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use varve_client::{ClientConfig, Failure, FileSystem, block_on};
use varve_types::Errno;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

const THREADS: usize = 8;

/// A thread that looks a file up as often as it is asked, and then ends.
struct Caller {
    ask: Sender<()>,
    found: Receiver<Result<(), Failure>>,
    thread: JoinHandle<()>,
}

impl Caller {
    fn of(fs: &Arc<FileSystem>) -> Caller {
        let (fs, (ask, asked), (tell, found)) = (Arc::clone(fs), channel(), channel());
        let thread = std::thread::spawn(move || {
            while asked.recv().is_ok() {
                tell.send(block_on(fs.lookup(&root(), ROOT, &name("f"))).map(drop)).unwrap();
            }
        });
        Caller { ask, found, thread }
    }

    fn looks_up(&self) {
        self.ask.send(()).unwrap();
    }

    fn found(&self) -> Result<(), Failure> {
        self.found.recv_timeout(LONG).unwrap()
    }

    fn ends(self) {
        drop(self.ask);
        self.thread.join().unwrap();
    }
}

fn callers(fs: &Arc<FileSystem>) -> Vec<Caller> {
    let callers: Vec<_> = (0..THREADS).map(|_| Caller::of(fs)).collect();
    callers.iter().for_each(Caller::looks_up);
    callers.iter().for_each(|caller| caller.found().unwrap());
    callers
}

/// Promise: threads that call, and threads that have called, go on at the next server.
#[test]
fn all_threads_find_the_next_server() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = site.connect();
    make_file(&fs, ROOT, "f");
    let (before, after) = (callers(&fs), callers(&fs));
    server.stop(STOP).unwrap();
    before.iter().for_each(Caller::looks_up);
    let server = site.serve();
    before.iter().for_each(|caller| caller.found().unwrap());
    after.iter().for_each(Caller::looks_up);
    after.iter().for_each(|caller| caller.found().unwrap());
    block_on(fs.shutdown()).unwrap();
    drop(server);
    before.into_iter().chain(after).for_each(Caller::ends);
}

/// Promise: calls end at their deadline where there is no server.
#[test]
fn calls_of_all_threads_end_at_their_deadline() {
    let site = Site::new(4);
    let server = site.serve();
    let fs = FileSystem::connect(ClientConfig { deadline: Duration::from_secs(5), ..site.config() }).unwrap();
    make_file(&fs, ROOT, "f");
    let callers = callers(&fs);
    server.stop(STOP).unwrap();
    callers.iter().for_each(Caller::looks_up);
    for caller in &callers {
        assert_eq!(caller.found().unwrap_err().errno, Errno::ETIMEDOUT);
    }
    callers.into_iter().for_each(Caller::ends);
    let _ = block_on(fs.shutdown());
}
