//! A server in this process that answers changes with an error which does not say that nothing was changed, and makes them all
//! the same, at once or later: what a client sees of a store that is in trouble.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use varve_client::transport::neighbour::{Neighbour, Seat};
use varve_meta::server::{Guest, Server};
use varve_types::SessionId;
use varve_wire::handshake::Purpose;
use varve_wire::{Call, Failure, Request, Response};

/// An answer that has not come by then never will.
const LONG: Duration = Duration::from_secs(60);

/// When a change is made that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// And is answered as it is.
    Truly,
    /// And is answered with an error. So are changes of content.
    AtOnce,
    /// With [`Late::make`]; until then with an error. Changes of content never are.
    Later,
    /// Opens are, and with [`Late::make`] the files are open; all else is done as it is asked for.
    #[allow(dead_code, reason = "tests of mounts have no use for it")]
    OpenLater,
}

#[derive(Clone)]
pub struct Late(Arc<Shared>);

struct Shared {
    server: Arc<Server>,
    made: Mutex<Made>,
    guest: Mutex<Option<Arc<Guest>>>,
    kept: Mutex<Vec<(usize, Request)>>,
}

struct Place(Arc<Guest>, Late);

impl Late {
    pub fn of(server: Arc<Server>) -> Late {
        let (made, guest, kept) = (Mutex::new(Made::Truly), Mutex::default(), Mutex::default());
        Late(Arc::new(Shared { server, made, guest, kept }))
    }

    /// From now on, changes are made so.
    pub fn set(&self, made: Made) {
        *self.0.made.lock().unwrap() = made;
    }

    /// Makes the changes that were asked for, and answers how many.
    pub fn make(&self) -> usize {
        let kept = std::mem::take(&mut *self.0.kept.lock().unwrap());
        let guest = self.0.guest.lock().unwrap().clone().expect("somebody has joined");
        for (number, (worker, mut request)) in kept.iter().cloned().enumerate() {
            // The client's own slot has had other calls since.
            request.id.slot += 1_000 + number as u32;
            let (tell, told) = channel();
            guest.ask(worker, request, Box::new(move |response| tell.send(response.result).unwrap()));
            told.recv_timeout(LONG).expect("an answer").expect("it is made");
        }
        kept.len()
    }
}

impl Neighbour for Late {
    fn join(&self, session: SessionId, purpose: Purpose) -> Result<Box<dyn Seat>, String> {
        let guest = Arc::new(self.0.server.admit(session, purpose)?);
        *self.0.guest.lock().unwrap() = Some(Arc::clone(&guest));
        Ok(Box::new(Place(guest, self.clone())))
    }
}

impl Seat for Place {
    fn owners(&self) -> Vec<u16> {
        self.0.owners()
    }

    fn workers(&self) -> usize {
        self.0.workers()
    }

    fn embedded(&self) -> bool {
        self.0.embedded()
    }

    fn rouse(&self, worker: usize) {
        self.0.rouse(worker);
    }

    fn ask(&self, worker: usize, request: Request, answered: Box<dyn FnOnce(Response) + Send>) {
        let id = request.id;
        let failed = Err(Failure::Server { errno: libc::EIO, message: "the store is in trouble".into() });
        let failed = Response { id, result: failed };
        let made = *self.1.0.made.lock().unwrap();
        match made {
            Made::AtOnce if changes(&request.call) || changes_content(&request.call) => {
                let fail = move |response: Response| answered(if response.result.is_ok() { failed } else { response });
                self.0.ask(worker, request, Box::new(fail));
            }
            Made::Later if changes(&request.call) || changes_content(&request.call) => {
                if changes(&request.call) {
                    self.1.0.kept.lock().unwrap().push((worker, request));
                }
                std::thread::spawn(move || answered(failed));
            }
            Made::OpenLater if matches!(request.call, Call::Open { .. }) => {
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
    matches!(call, Call::WriteInline { .. } | Call::Promote { .. } | Call::UnsettleSize { .. })
}
