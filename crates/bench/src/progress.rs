//! Progress on stderr, only where stderr is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Operations of a client between two progress reports. A report costs an atomic addition and, ten times a second, a
/// line on the terminal. This must not affect the rates.
pub(crate) const STRIDE: u64 = 256;

const REDRAWS_PER_SECOND: u8 = 5;

pub(crate) struct ProgressDisplay {
    bar: ProgressBar,
}

impl ProgressDisplay {
    /// `steps` is the number of operations (or bytes) of the whole run; 0: it is not known, and the display counts.
    pub(crate) fn new(wanted: bool, steps: u64) -> ProgressDisplay {
        let bar = if wanted && std::io::stderr().is_terminal() {
            ProgressBar::with_draw_target(
                (steps > 0).then_some(steps),
                ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND),
            )
        } else {
            ProgressBar::hidden()
        };
        let form = match steps {
            0 => "{spinner} {elapsed} {human_pos} operations, {per_sec} {msg}",
            _ => "{bar:30.cyan/dim} {percent:>3}% {elapsed} (left {eta}) {msg}",
        };
        let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        ProgressDisplay { bar }
    }

    pub(crate) fn show_line(&self, text: String) {
        self.bar.set_message(text);
    }

    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
