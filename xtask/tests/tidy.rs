//! The house rules hold in this tree, and each rule sees the fault it is there for.

use std::path::Path;
use xtask::tidy;

#[test]
fn this_tree_keeps_the_house_rules() {
    let complaints = tidy::check(&xtask::root()).expect("the tree can be read");
    let listed: Vec<String> = complaints.iter().map(ToString::to_string).collect();
    assert!(listed.is_empty(), "\n{}", listed.join("\n"));
}

/// A tree that keeps every rule.
fn sound() -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let files = [
        ("LICENSE", "Apache License\n"),
        ("Cargo.toml", "[workspace.package]\nlicense = \"Apache-2.0\"\n"),
        ("ARCHITECTURE.md", "| Crate | Holds | Knows |\n|---|---|---|\n| `crates/client` | x | types, wire |\n"),
        ("crates/client/Cargo.toml", "[package]\nlicense.workspace = true\n[dependencies]\nvarve-types = 1\n"),
        ("crates/client/tests/names.rs", "fn a_name_is_found() {}\n"),
        ("README.md", "```\nmake test\n```\n"),
        ("Makefile", "test: ; cargo test\n"),
        (
            "SEMANTICS.md",
            "# Semantics\n\n## Names\n\nAre found.\n\nTest: `crates/client/tests/names.rs::a_name_is_found`\n",
        ),
        ("formats/wire.md", "# Wire\n\nGolden: `crates/client/tests/names.rs::a_name_is_found`\n"),
    ];
    files.iter().for_each(|(path, text)| write(tree.path(), path, text));
    tree
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    std::fs::write(path, text).expect("a file");
}

fn complaint_about(path: &str, text: &str) -> String {
    let tree = sound();
    write(tree.path(), path, text);
    let complaints = tidy::check(tree.path()).expect("the tree can be read");
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    complaints[0].to_string()
}

#[test]
fn a_sound_tree_has_no_complaints() {
    assert_eq!(tidy::check(sound().path()).expect("the tree can be read"), []);
}

#[test]
fn a_forbidden_arrow_is_seen() {
    let manifest = "license.workspace = true\n[dependencies]\nvarve-meta = 1\n";
    assert!(complaint_about("crates/client/Cargo.toml", manifest).contains("`client` must not know `meta`"));
}

#[test]
fn a_library_outside_its_room_is_seen() {
    assert!(complaint_about("crates/client/src/lib.rs", "use slatedb::Db;\n").contains("may know `slatedb`"));
}

#[test]
fn a_missing_licence_is_seen() {
    assert!(complaint_about("crates/client/Cargo.toml", "[package]\n").contains("license.workspace"));
}

#[test]
fn an_overlong_file_is_seen() {
    assert!(complaint_about("crates/client/src/lib.rs", &"//\n".repeat(801)).contains("has 801 lines"));
}

#[test]
fn unfinished_business_is_seen() {
    let text = concat!("// TO", "DO\n");
    assert!(complaint_about("crates/client/src/lib.rs", text).starts_with("crates/client/src/lib.rs:1:"));
}

#[test]
fn trailing_blanks_are_seen() {
    assert!(complaint_about("crates/client/src/lib.rs", "fn a() {} \n").contains("trailing blanks"));
}

#[test]
fn a_promise_without_a_test_is_seen() {
    assert!(complaint_about("SEMANTICS.md", "## Names\n\nAre found.\n").contains("names no test"));
}

#[test]
fn a_promise_with_a_test_that_is_gone_is_seen() {
    let text = "## Names\n\nAre found.\n\nTest: `crates/client/tests/names.rs::gone`\n";
    assert!(complaint_about("SEMANTICS.md", text).contains("has no test `gone`"));
}

#[test]
fn a_format_without_golden_bytes_is_seen() {
    assert!(complaint_about("formats/log.md", "# Log\n").contains("names no golden test"));
}

#[test]
fn a_chore_that_is_gone_is_seen() {
    assert!(complaint_about("README.md", "```\n$ make coffee\n```\n").contains("no target `coffee`"));
}

#[test]
fn a_store_file_opened_by_path_is_seen() {
    let code = "fn key(path: &Path) -> Vec<u8> {\n    std::fs::read(path).unwrap()\n}\n";
    assert!(complaint_about("crates/client/src/key.rs", code).contains("varve_world::store_path"));
    let tree = sound();
    let tests = "#[cfg(test)]\nmod tests {\n    fn read() { std::fs::read(\"key\").unwrap(); }\n}\n";
    for (path, text) in [("crates/client/src/key/tests.rs", code), ("crates/client/src/key.rs", tests)] {
        write(tree.path(), path, text);
    }
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}
