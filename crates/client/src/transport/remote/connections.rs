//! The connections of the calling thread. A connection belongs to the loop of its thread; other threads can only end it
//! ([`varve_rpc::Severer`]).

use super::servers::KnownServer;
use futures::lock::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use varve_env::key_hash::KeyHashing;
use varve_rpc::{Connection, Severer};

/// A connection to one worker.
pub(super) struct Connected {
    pub connection: Connection,
    /// Its server can end it as long as this is here.
    pub _severer: Option<Arc<Severer>>,
}

/// The place of the thread's connection to one worker. One caller connects; others of the thread wait for it.
pub(super) struct Line {
    known: Weak<KnownServer>,
    pub connected: Mutex<Option<Rc<Connected>>>,
}

/// By the identities of servers, and the numbers of their workers.
type Lines = HashMap<(u64, usize), Rc<Line>, KeyHashing>;

thread_local! {
    static LINES: RefCell<Lines> = RefCell::default();
}

/// The thread's line to a worker.
pub(super) fn line(known: &Arc<KnownServer>, worker: usize) -> Rc<Line> {
    let key = (known.identity, worker);
    LINES.with(|lines| {
        if let Some(line) = lines.borrow().get(&key) {
            return Rc::clone(line);
        }
        // The number of lines is bounded by the servers that clients of this process know.
        let unknown: Vec<_> = lines.borrow_mut().extract_if(|_, line| line.known.strong_count() == 0).collect();
        drop(unknown);
        let line = Rc::new(Line { known: Arc::downgrade(known), connected: Mutex::default() });
        lines.borrow_mut().insert(key, Rc::clone(&line));
        line
    })
}
