//! The forms of a log line: text, JSON, and text for the journal.

use crate::escaping;
use serde_json::{Map, Value};
use std::fmt;
use std::fmt::Write;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Text {
        colours: bool,
    },
    /// One object a line: `time`, `level`, `target`, `message`, and the fields of the message.
    Json,
    /// Each line begins with its priority, as sd-daemon(3) has it. The journal adds the time.
    Journal,
}

/// Writes events in one layout.
pub struct EventForm(pub Layout);

impl<S, N> FormatEvent<S, N> for EventForm
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        match self.0 {
            Layout::Text { colours } => format::format().with_ansi(colours).format_event(context, writer, event),
            Layout::Json => writeln!(writer, "{}", json(event)?),
            Layout::Journal => {
                let mut text = String::new();
                let plain = format::format().with_ansi(false).without_time().with_level(false);
                plain.format_event(context, Writer::new(&mut text), event)?;
                let priority = priority(*event.metadata().level());
                text.lines().try_for_each(|line| writeln!(writer, "<{priority}>{line}"))
            }
        }
    }
}

/// The priority of a level, of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn json(event: &Event<'_>) -> Result<String, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let metadata = event.metadata();
    let mut fields = Fields(Map::new());
    // A field of the message cannot replace these, which are set last.
    event.record(&mut fields);
    let Fields(mut fields) = fields;
    fields.insert("time".into(), time.into());
    fields.insert("level".into(), metadata.level().as_str().to_ascii_lowercase().into());
    fields.insert("target".into(), metadata.target().into());
    Ok(escaping::json(&Value::Object(fields).to_string()))
}

struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.set(field, text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }
}
