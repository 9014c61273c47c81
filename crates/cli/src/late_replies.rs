//! Leaves a harmless error of `fuser` out of the log.
//!
//! The kernel refuses a reply with ENOENT if nobody waits for it any more. That is usual for the reply to
//! FUSE_INTERRUPT, which the kernel sends for each signal that a waiting program gets: the interrupted call may have
//! been answered before, or belong to another thread's queue of the device.

use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The beginning of the message.
const LOGGED: &str = "Failed to send FUSE reply: No such file or directory";

/// Drops events about replies that nobody waited for.
pub struct WithoutLateReplies;

impl<S: Subscriber> Layer<S> for WithoutLateReplies {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if *event.metadata().level() != Level::ERROR {
            return true;
        }
        let mut message = Message::default();
        event.record(&mut message);
        !message.0.starts_with(LOGGED)
    }
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Writing to a string does not fail.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
