use super::*;

#[test]
fn escape_sequences_are_shown_and_layout_stays() {
    for (text, expected) in [
        ("name  value\n\tmore\n", "name  value\n\tmore\n"),
        ("\x1b]0;owned\x07", "\\u{1b}]0;owned\\u{7}"),
        ("a\rb", "a\\rb"),
        ("\u{9b}31m", "\\u{9b}31m"),
        ("\u{202e}txt.exe\n", "\\u{202e}txt.exe\n"),
        ("", ""),
        ("Grüße", "Grüße"),
    ] {
        assert_eq!(lines(text), expected);
        assert_eq!(lines(&lines(text)), expected, "once more changes nothing");
    }
}

#[test]
fn json_means_the_same_after_escaping() {
    for text in ["plain", "\u{9b}31m", "\u{202e}x", "\u{e0001}", "\x7f", "Grüße", "\x1b[2J"] {
        let escaped = json(&serde_json::to_string(text).unwrap());
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        assert_eq!(lines(&escaped), escaped, "nothing is left to escape");
    }
}

#[test]
fn only_colours_of_the_log_pass() {
    for (text, colours, expected) in [
        ("\x1b[2mgrey\x1b[0m\n", true, "\x1b[2mgrey\x1b[0m\n"),
        ("\x1b[2mgrey\x1b[0m\n", false, "\\u{1b}[2mgrey\\u{1b}[0m\n"),
        ("\x1b[2Jgone", true, "\\u{1b}[2Jgone"),
        ("\x1b[1;31mred\x1b]0;title\x07", true, "\x1b[1;31mred\\u{1b}]0;title\\u{7}"),
        ("\x1b[", true, "\\u{1b}["),
    ] {
        let mut written = Vec::new();
        Escaping::new(&mut written, colours).write_all(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }
}
