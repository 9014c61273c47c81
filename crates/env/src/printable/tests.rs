use super::*;

#[test]
fn plain_text_stays_as_it_is() {
    for text in ["", "/scratch/volume-1", "Zürich", "日本語 \\ \"quoted\"", "e\u{301}", "�"] {
        assert_eq!(printable(text), text);
    }
}

#[test]
fn controls_are_escaped() {
    let cases = [
        ("\u{1b}[2J", "\\u{1b}[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\0\u{7f}", "\\u{0}\\u{7f}"),
        ("\u{9b}31m", "\\u{9b}31m"),
        ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
        ("\u{2028}", "\\u{2028}"),
        ("\u{200b}\u{feff}", "\\u{200b}\\u{feff}"),
        ("\u{e0041}", "\\u{e0041}"),
        ("\u{fffe}", "\\u{fffe}"),
    ];
    for (text, shown) in cases {
        assert_eq!(printable(text), shown);
    }
}

#[test]
fn long_text_is_cut() {
    let shown = printable(&"x".repeat(3 * CHARACTERS_MAX));
    assert_eq!(shown.chars().count(), CHARACTERS_MAX + 1);
    assert!(shown.ends_with('…'));
    assert!(printable(&"\u{1b}".repeat(CHARACTERS_MAX)).chars().count() <= CHARACTERS_MAX + 1);
}

#[test]
fn a_path_that_is_not_utf8_is_shown() {
    use std::os::unix::ffi::OsStrExt;
    let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\xff\x1b"));
    assert_eq!(printable_path(path), "/a�\\u{1b}");
}
