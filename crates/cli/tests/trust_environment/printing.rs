//! Escape sequences from a store, a path or a record do not reach the terminal.

use crate::cases::{Case, check};

/// ESC, and the 8-bit introducer of sequences in UTF-8.
const SEQUENCES: &[&str] = &["\u{1b}", "\u{9b}", "\u{7}", "\u{202e}"];

const fn shown(name: &'static str, code: i32, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code, says, never: SEQUENCES }
}

/// A server record whose host and addresses contain sequences; the server no longer runs.
const RECORD: &str = r#"host = "\\u001B]0;owned\\u0007\\u009B31m\\u202Ehost"
boot_id = "none"
pid = 1
embedded = false
[[worker]]
unix = "/\\u001B[2J"
"#;

#[test]
fn escape_sequences_are_escaped_wherever_they_are_printed() {
    let record = |command: &str| -> &'static str {
        let script = format!("store 0; put 0 600 $S/servers/current.toml '{RECORD}'; as 0 {command}");
        Box::leak(script.into_boxed_str())
    };
    check(&[
        shown("status of a record", 3, record("$V status $S"), &["\\u{1b}]0;owned\\u{7}\\u{9b}31m\\u{202e}host"]),
        shown(
            "status of a record as json",
            3,
            record("$V --json status $S"),
            &["\\u001b]0;owned", "\\u009b31m\\u202e"],
        ),
        shown("a path in an error", 1, "as 0 $V status \"$D/$(printf '\\033[2J')\"", &["\\u{1b}[2J"]),
        shown(
            "a path in an error of wrong usage",
            2,
            "as 0 $V --config \"$D/$(printf '\\033[2J')\" completions bash",
            &["\\u{1b}[2J"],
        ),
        shown("a word of the command line", 2, "as 0 $V \"$(printf '\\033[2J')\"", &["unrecognized subcommand"]),
        shown("a variable", 2, "as 0 VARVE_SERVE_WORKERS=\"$(printf '\\033[2J')\" $V serve $S", &["invalid value"]),
        shown(
            "a key of a configuration",
            2,
            "put 0 600 $D/c.toml '[serve]\\n\"\\\\u001B[2J\" = 1\\n'; as 0 $V --config $D/c.toml completions bash",
            &["\\u{1b}[2J"],
        ),
        shown(
            "a log line",
            1,
            "store 0; printf '\\033[2J' >>$S/varve.toml; as 0 $V --log debug serve $S",
            &["cannot serve"],
        ),
    ]);
}
