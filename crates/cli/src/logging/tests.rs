use super::filter;
use super::form::{EventForm, Layout};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing_subscriber::layer::SubscriberExt;

/// Promise: a misspelt level is an error that lists the levels.
#[test]
fn unknown_levels_are_refused() {
    for wrong in ["inof", "", ",", "varve_meta=inof", "info,varve_meta", "a=b=c"] {
        let refused = filter::parse(wrong).expect_err(wrong).to_string();
        assert!(refused.contains("off, error, warn, info, debug or trace"), "{wrong}: {refused}");
    }
    for right in ["off", "info", "WARN", "info,varve_meta=debug", "varve_meta::server=trace", " info , slatedb=warn"] {
        filter::parse(right).expect(right);
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn written(layout: Layout, log: impl FnOnce()) -> String {
    let lines = Lines::default();
    let target = lines.clone();
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .event_format(EventForm(layout))
        .with_writer(move || target.clone());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), log);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).expect("text")
}

/// Promise: every line of a message has its priority in the journal.
#[test]
fn journal_lines_have_priorities() {
    let text = written(Layout::Journal, || {
        tracing::warn!("the store is full\n  free space");
        tracing::error!(shard = 3, "lost");
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("<4>") && lines[0].ends_with("the store is full"), "{text}");
    assert_eq!(lines[1], "<4>  free space");
    assert!(lines[2].starts_with("<3>") && lines[2].contains("lost shard=3"), "{text}");
}

/// Promise: with --log-format json every line is an object, whatever the message contains.
#[test]
fn json_lines_are_objects() {
    let text = written(Layout::Json, || tracing::warn!(shard = 3_u64, time = "noon", "a \"b\"\n\u{1b}[2J c"));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(line["level"], "warn");
    assert_eq!(line["message"], "a \"b\"\n\u{1b}[2J c");
    assert_eq!(line["shard"], 3);
    assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{text}");
    assert!(line["target"].as_str().is_some_and(|target| target.starts_with("varve_cli")), "{text}");
}
