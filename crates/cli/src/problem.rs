//! The failure of a command: what failed, why, what to do next, and the exit code.

use crate::escaping;
use crate::output::SCHEMA_VERSION;
use serde::Serialize;
use std::error::Error;
use std::fmt;
use std::process::ExitCode;

/// How a command ended. (`fsck` alone uses fsck(8)'s codes instead: [`Exit::Fsck`].)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    Usage,
    /// The command succeeded, but something that belongs to its result is missing: a result with a warning.
    Degraded,
    /// `report assert`: the run does not fulfil the assertion.
    Refuted,
    /// A signal interrupted the command, which ended in good order. The code is that of a shell for a program that
    /// SIGINT has killed.
    BrokenOff,
    Fsck(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Degraded => 3,
            Exit::Refuted => 10,
            Exit::BrokenOff => 130,
            Exit::Fsck(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// A command's failure in the form for its user.
#[derive(Debug)]
pub struct Problem {
    what: String,
    why: Option<String>,
    next: Option<String>,
    exit: Exit,
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub fn new(what: impl Into<String>) -> Problem {
        Problem { what: what.into(), why: None, next: None, exit: Exit::Failed }
    }

    /// The command line or configuration is wrong; nothing was tried.
    pub fn usage(what: impl Into<String>) -> Problem {
        Problem { exit: Exit::Usage, ..Problem::new(what) }
    }

    pub fn because(self, why: impl fmt::Display) -> Problem {
        Problem { why: Some(why.to_string()), ..self }
    }

    /// Adds the error and all its causes, each once: some texts already end with that of their cause.
    pub fn caused_by(self, error: &dyn Error) -> Problem {
        let mut why = error.to_string();
        let mut cause = error.source();
        while let Some(deeper) = cause {
            let text = deeper.to_string();
            if !why.contains(&text) {
                why = format!("{why}: {text}");
            }
            cause = deeper.source();
        }
        Problem { why: Some(why), ..self }
    }

    pub fn next(self, next: impl Into<String>) -> Problem {
        Problem { next: Some(next.into()), ..self }
    }

    pub fn exits(self, exit: Exit) -> Problem {
        Problem { exit, ..self }
    }

    pub fn exit(&self) -> Exit {
        self.exit
    }
}

/// A failure for programs (`--json`), on one line of stderr.
#[derive(Serialize)]
struct FailureOutput<'a> {
    schema_version: u32,
    error: FailureParts<'a>,
}

#[derive(Serialize)]
struct FailureParts<'a> {
    what: &'a str,
    why: Option<&'a str>,
    next: Option<&'a str>,
    exit_code: u8,
}

impl Problem {
    /// The failure as JSON.
    pub fn json(&self) -> String {
        let Problem { what, why, next, exit } = self;
        let error = FailureParts { what, why: why.as_deref(), next: next.as_deref(), exit_code: exit.code() };
        let output = FailureOutput { schema_version: SCHEMA_VERSION, error };
        // Text and numbers are always JSON.
        escaping::json(&serde_json::to_string(&output).unwrap_or_default())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.what.clone();
        if let Some(why) = &self.why {
            text += &format!(": {why}");
        }
        if let Some(next) = &self.next {
            text += &format!("\n  {next}");
        }
        // Paths, and texts from stores and other processes, may contain escape sequences.
        f.write_str(&escaping::lines(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::Problem;

    /// Promise: a failure has the same parts as JSON.
    #[test]
    fn failure_is_json() {
        let problem = Problem::usage("cannot \"do\" it").because("a\u{1b}[2J\nb").next("Try again.");
        let line = problem.json();
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
        let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(parsed["error"]["what"], "cannot \"do\" it");
        assert_eq!(parsed["error"]["why"], "a\u{1b}[2J\nb");
        assert_eq!(parsed["error"]["exit_code"], 2);
    }
}
