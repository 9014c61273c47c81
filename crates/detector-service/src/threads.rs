//! Threads with names.

use std::io;
use std::thread::JoinHandle;

pub fn named(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work)
}
