//! The detector's connection.

use super::SILENCE;
use crate::shared::ServiceShared;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A stream whose reads wait without limit between messages, until the service stops.
pub struct Patient<'s> {
    pub stream: TcpStream,
    pub shared: &'s ServiceShared,
    /// When bytes of the current message last arrived.
    pub heard: Option<Instant>,
}

impl Patient<'_> {
    /// Waits a moment for the next message. `true`: it has begun, or the connection has ended.
    pub fn has_data(&mut self) -> io::Result<bool> {
        if self.shared.is_stopping() {
            return Err(io::Error::other("the service is stopping"));
        }
        match self.stream.peek(&mut [0]) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(buffer) {
                Ok(count) => {
                    self.heard = Some(Instant::now());
                    return Ok(count);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if self.shared.is_stopping() {
                        return Err(io::Error::other("the service is stopping"));
                    }
                    if self.heard.is_some_and(|heard| heard.elapsed() > SILENCE) {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "a message ended early"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
