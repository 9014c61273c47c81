use super::{pages_of_commands, sections};

/// Promise: every page has examples, exit codes, files, and the variables of its flags.
#[test]
fn pages_have_their_sections() {
    let pages = pages_of_commands().expect("pages");
    for name in ["varve.1", "varve-mount.1", "varve-cluster-status.1", "varve-record-serve.1"] {
        assert!(pages.iter().any(|(page, _)| page == name), "{name}");
    }
    for (name, page) in &pages {
        let text = String::from_utf8_lossy(page);
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "\"EXIT STATUS\"", "FILES", "\"SEE ALSO\""] {
            let plain = section.trim_matches('"');
            let found =
                [format!(".SH {section}"), format!(".SH {plain}")].iter().any(|line| text.contains(line.as_str()));
            assert!(found, "{name} has no {section}");
        }
    }
    let (_, serve) = pages.iter().find(|(name, _)| name == "varve-serve.1").expect("a page");
    assert!(String::from_utf8_lossy(serve).contains("VARVE_SERVE_WORKERS"));
    for (name, text) in [sections::mount_helper(), sections::configuration()] {
        assert!(text.starts_with(".TH ") && text.contains(".SH EXAMPLES"), "{name}");
    }
}
