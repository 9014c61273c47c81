//! A server in this process that answers changes with errors of unknown outcome, and makes the changes all the same, at
//! once or later: a client's view of a failing store.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use varve_client::transport::in_process::{InProcessServer, InProcessSession};
use varve_meta::server::{LocalSession, Server};
use varve_proto::handshake::Purpose;
use varve_proto::{Call, CallFailure, Request, Response, WireShardMap};
use varve_types::SessionId;

/// A reply that has not arrived within this time never will.
const LONG: Duration = Duration::from_secs(60);

/// When a requested change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeTiming {
    /// At once, with the true reply.
    Truly,
    /// At once, but with an error as the reply. The same holds for changes of content.
    AtOnce,
    /// With [`Late::make`]; the reply is an error. Changes of content are never made.
    Later,
    /// Like `Later`, but only for opens: with [`Late::make`] the files are open. Everything else is done normally.
    #[allow(dead_code, reason = "tests of mounts have no use for it")]
    OpenLater,
}

#[derive(Clone)]
pub struct Late(Arc<LateShared>);

struct LateShared {
    server: Arc<Server>,
    made: Mutex<ChangeTiming>,
    local_session: Mutex<Option<Arc<LocalSession>>>,
    kept: Mutex<Vec<(usize, Request)>>,
}

struct LateSession(Arc<LocalSession>, Late);

impl Late {
    pub fn of(server: Arc<Server>) -> Late {
        let (made, local_session, kept) = (Mutex::new(ChangeTiming::Truly), Mutex::default(), Mutex::default());
        Late(Arc::new(LateShared { server, made, local_session, kept }))
    }

    /// Sets the timing of changes from now on.
    pub fn set(&self, made: ChangeTiming) {
        *self.0.made.lock().unwrap() = made;
    }

    /// Makes the pending changes, and returns their number.
    pub fn make(&self) -> usize {
        let kept = std::mem::take(&mut *self.0.kept.lock().unwrap());
        let local_session = self.0.local_session.lock().unwrap().clone().expect("somebody has joined");
        for (number, (worker, mut request)) in kept.iter().cloned().enumerate() {
            // The client's own slot has had other calls since.
            request.id.slot += 1_000 + number as u32;
            let (tell, reported) = channel();
            local_session.ask(worker, request, Box::new(move |response| tell.send(response.result).unwrap()));
            reported.recv_timeout(LONG).expect("an answer").expect("it is made");
        }
        kept.len()
    }
}

impl InProcessServer for Late {
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn InProcessSession>, String> {
        let local_session = Arc::new(self.0.server.admit(session, purpose)?);
        *self.0.local_session.lock().unwrap() = Some(Arc::clone(&local_session));
        Ok(Box::new(LateSession(local_session, self.clone())))
    }
}

impl InProcessSession for LateSession {
    fn map(&self) -> WireShardMap {
        self.0.map()
    }

    fn embedded(&self) -> bool {
        self.0.embedded()
    }

    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>) {
        let id = request.id;
        let failed = Err(CallFailure::Server { errno: libc::EIO, message: "the store is in trouble".into() });
        let failed = Response { id, result: failed };
        let made = *self.1.0.made.lock().unwrap();
        match made {
            ChangeTiming::AtOnce if changes(&request.call) || changes_content(&request.call) => {
                let fail = move |response: Response| answered(if response.result.is_ok() { failed } else { response });
                self.0.ask(worker, request, Box::new(fail));
            }
            ChangeTiming::Later if changes(&request.call) || changes_content(&request.call) => {
                if changes(&request.call) {
                    self.1.0.kept.lock().unwrap().push((worker, request));
                }
                std::thread::spawn(move || answered(failed));
            }
            ChangeTiming::OpenLater if matches!(request.call, Call::Open { .. }) => {
                self.1.0.kept.lock().unwrap().push((worker, request));
                std::thread::spawn(move || answered(failed));
            }
            _ => self.0.ask(worker, request, answered),
        }
    }
}

fn changes(call: &Call) -> bool {
    matches!(
        call,
        Call::Create { .. }
            | Call::MakeDirectory { .. }
            | Call::Unlink { .. }
            | Call::RemoveDirectory { .. }
            | Call::Rename { .. }
            | Call::Link { .. }
            | Call::SetAttributes { .. }
            | Call::SetXattr { .. }
            | Call::RemoveXattr { .. }
    )
}

fn changes_content(call: &Call) -> bool {
    matches!(call, Call::WriteInline { .. } | Call::Promote { .. } | Call::MarkSizeStale { .. })
}
