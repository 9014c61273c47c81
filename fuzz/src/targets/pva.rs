//! The messages of an EPICS server.
//!
//! Input: `S` and all that a server sends in a subscription, `U` and a reply to a search.

use super::choice;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use varve_detector_pva::channel::{Credentials, Subscription, Update};
use varve_detector_pva::{nt_ndarray, search};

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'S', sent)) => subscribes(sent),
        Some((b'U', datagram)) => matches!(search::reply(datagram, Ipv4Addr::LOCALHOST.into(), 1), Ok(Some(_))),
        _ => false,
    }
}

fn subscribes(sent: &[u8]) -> bool {
    let mut server = ScriptedServer(sent);
    let credentials = Credentials { user: "user".into(), host: "host".into() };
    let Ok(mut subscription) = Subscription::open(&mut server, "PV", &credentials) else { return false };
    let mut frames = 0;
    while let Ok(Update::Changed) = subscription.next(&mut server, 1 << 20) {
        let structure = subscription.structure.clone();
        if let Ok(Some(frame)) = nt_ndarray::take(&structure, &mut subscription.value) {
            assert!((1..=10).contains(&frame.shape.len()) && !frame.bytes.is_empty(), "{frame:?}");
            frames += 1;
        }
    }
    frames > 0
}

/// Sends its bytes and ignores all it receives.
struct ScriptedServer<'b>(&'b [u8]);

impl Read for ScriptedServer<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for ScriptedServer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
