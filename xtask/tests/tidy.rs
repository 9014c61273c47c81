//! The rules hold in this tree, and each rule detects its violation.

use std::path::Path;
use xtask::tidy;

#[test]
fn this_tree_passes_tidy() {
    let violations = tidy::check(&xtask::root()).expect("the tree can be read");
    let listed: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(listed.is_empty(), "\n{}", listed.join("\n"));
}

const SEMANTICS: &str = "# Semantics\n\nText.\n\n## Names\n\n| Are found | [names-found] |\n";
const PROMISES: &str = "[names-found]\nstatement = \"Names are found.\"\ntests = [\n    \"crates/client/tests/names.rs::a_name_is_found\",\n]\n";

/// A tree without violations.
fn sound() -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a temporary directory");
    let files = [
        ("LICENSE", "Apache License\n"),
        ("Cargo.toml", "[workspace.package]\nlicense = \"Apache-2.0\"\n"),
        (
            "docs/internals/architecture.md",
            "| Crate | Holds | Knows |\n|---|---|---|\n| `crates/client` | x | types, wire |\n",
        ),
        ("crates/client/Cargo.toml", "[package]\nlicense.workspace = true\n[dependencies]\nvarve-types = 1\n"),
        ("crates/client/tests/names.rs", "/// Found.\n#[test]\nfn a_name_is_found() {}\nfn helper() {}\n"),
        ("README.md", "```\nmake test\n```\n"),
        ("Makefile", "test: ; cargo test\n"),
        ("docs/semantics.md", SEMANTICS),
        ("tests/promises.toml", PROMISES),
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

fn violation_of(path: &str, text: &str) -> String {
    let tree = sound();
    write(tree.path(), path, text);
    let violations = tidy::check(tree.path()).expect("the tree can be read");
    assert_eq!(violations.len(), 1, "{violations:?}");
    violations[0].to_string()
}

#[test]
fn clean_tree_has_no_violations() {
    assert_eq!(tidy::check(sound().path()).expect("the tree can be read"), []);
}

#[test]
fn forbidden_dependency_is_reported() {
    let manifest = "license.workspace = true\n[dependencies]\nvarve-meta = 1\n";
    assert!(violation_of("crates/client/Cargo.toml", manifest).contains("`client` must not know `meta`"));
}

#[test]
fn library_outside_its_crate_is_reported() {
    assert!(violation_of("crates/client/src/lib.rs", "use slatedb::Db;\n").contains("may know `slatedb`"));
}

#[test]
fn missing_licence_is_reported() {
    assert!(violation_of("crates/client/Cargo.toml", "[package]\n").contains("license.workspace"));
}

#[test]
fn overlong_file_is_reported() {
    assert!(violation_of("crates/client/src/lib.rs", &"//\n".repeat(801)).contains("has 801 lines"));
}

#[test]
fn todo_markers_are_reported() {
    let text = concat!("// TO", "DO\n");
    assert!(violation_of("crates/client/src/lib.rs", text).starts_with("crates/client/src/lib.rs:1:"));
}

#[test]
fn trailing_blanks_are_reported() {
    assert!(violation_of("crates/client/src/lib.rs", "fn a() {} \n").contains("trailing blanks"));
}

#[test]
fn promise_without_entry_is_reported() {
    let text = format!("{SEMANTICS}Names are kept [names-kept].\n");
    assert!(violation_of("docs/semantics.md", &text).contains("[names-kept] has no entry"));
}

#[test]
fn entry_without_promise_is_reported() {
    let text = format!("{PROMISES}{}", PROMISES.replace("names-found", "names-kept"));
    assert!(violation_of("tests/promises.toml", &text).contains("does not name the promise [names-kept]"));
}

#[test]
fn link_text_and_code_are_not_promise_ids() {
    let text = format!("{SEMANTICS}See [here](semantics.md), `[a]` and\n```\n[section]\n```\n");
    let tree = sound();
    write(tree.path(), "docs/semantics.md", &text);
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn section_without_promise_is_reported() {
    let text = format!("{SEMANTICS}\n## Times\n\nAre kept.\n");
    assert!(violation_of("docs/semantics.md", &text).contains("\"Times\" names no promise"));
}

#[test]
fn overlong_semantics_page_is_reported() {
    let text = format!("{SEMANTICS}{}", "Names are found.\n".repeat(2_000));
    assert!(violation_of("docs/semantics.md", &text).contains("cut it below 25600"));
}

#[test]
fn faulty_promise_entries_are_reported() {
    let test = "    \"crates/client/tests/names.rs::a_name_is_found\",\n";
    for (from, to, violation) in [
        ("a_name_is_found", "gone", "toml:4: `crates/client/tests/names.rs` has no test `gone`"),
        ("a_name_is_found", "helper", "neither #[test] nor #[tokio::test]"),
        ("tests/names.rs", "tests/gone.rs", "`crates/client/tests/gone.rs` does not exist"),
        ("names.rs::", "names.rs/", "not of the form path::name"),
        (test, "", "[names-found] has no test"),
        (test, &test.repeat(2), "twice"),
        ("Names are found.", "", "`statement` of one line"),
        ("statement", "says", "`statement` of one line"),
    ] {
        let tree = sound();
        write(tree.path(), "tests/promises.toml", &PROMISES.replace(from, to));
        let violations = tidy::check(tree.path()).expect("the tree can be read");
        assert!(violations.iter().any(|each| each.to_string().contains(violation)), "{violation}: {violations:?}");
    }
}

#[test]
fn missing_promise_file_is_reported() {
    let tree = sound();
    std::fs::remove_file(tree.path().join("tests/promises.toml")).expect("removed");
    let violations = tidy::check(tree.path()).expect("the tree can be read");
    assert_eq!(violations.iter().map(ToString::to_string).collect::<Vec<_>>(), ["tests/promises.toml: is missing"]);
}

#[test]
fn log_message_missing_from_the_page_is_reported() {
    for (code, part) in [
        ("fn a() {\n    warn!(\"cannot sync the log: {error}\");\n}\n", "a.rs:2: docs/operate/log-messages.md lacks"),
        (
            "fn a() { tracing::error!(call = \"b\", %error, \"shard {id}: the store is \\\n    gone\"); }\n",
            "the store is gone",
        ),
    ] {
        let reported = violation_of("crates/client/src/a.rs", code);
        assert!(reported.contains(part), "{part}: {reported}");
    }
}

#[test]
fn documented_log_messages_pass() {
    let tree = sound();
    let page = "| Level | Message | Meaning |\n|---|---|---|\n| WARN | cannot sync `a` of N files: … | x |\n";
    write(tree.path(), "docs/operate/log-messages.md", page);
    let code = "fn a() {\n    warn!(\"cannot sync `a` of {} files: {error}\", 1);\n    warn!(\"{error}\");\n    \
                info!(\"the server has stopped\");\n}\n#[cfg(test)]\nmod tests {\n    fn b() { warn!(\"in a test only\") }\n}\n";
    write(tree.path(), "crates/client/src/a.rs", code);
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn dangling_links_are_reported() {
    for (link, violation) in [
        ("gone.md", "`docs/gone.md`, which does not exist"),
        ("../../a.md", "leads out of the tree"),
        ("semantics.md#gone", "a heading that `docs/semantics.md` does not have"),
        ("#gone", "a heading that `docs/guide.md` does not have"),
    ] {
        let text = format!("# Guide\n\n[it]({link})\n");
        assert!(violation_of("docs/guide.md", &text).contains(violation), "{link}");
    }
}

#[test]
fn sound_links_pass() {
    let tree = sound();
    let text = "# A guide, short\n\n[a](semantics.md#names) [b](../crates/client) [c](#a-guide-short) [d](https://e.org/)\n`[e](x)`\n";
    write(tree.path(), "docs/guide.md", text);
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn retired_words_are_reported() {
    for (path, text, violation) in [
        ("docs/guide.md", "# Guide\n\nA call posts an Errand.\n", "docs/guide.md:3: `errand` is retired"),
        ("docs/guide.md", "A volume at rest.\n", "`at rest` is retired"),
        ("docs/guide.md", "Pass `shared_mailbox`.\n", "`mailbox` is retired"),
        (
            "crates/client/src/a.rs",
            "fn a() {\n    b(); // in doubt\n}\n",
            "crates/client/src/a.rs:2: `doubt` is retired",
        ),
        ("crates/client/src/a.rs", "/* A\n * slab. */\n", "crates/client/src/a.rs:2: `slab` is retired"),
        ("crates/client/src/a.rs", "/// A stranger.\nfn a() {}\n", "`stranger` is retired"),
        ("crates/client/src/a.rs", "struct SharedMailbox;\n", "`mailbox` is retired"),
        ("crates/client/src/a.rs", "fn read_at_rest() {}\n", "`at rest` is retired"),
        ("crates/client/src/a.rs", "const A: &str = r#\"\"\"#; const VIGIL: u8 = b'\\'';\n", "`vigil` is retired"),
    ] {
        let reported = violation_of(path, text);
        assert!(reported.contains(violation), "{violation}: {reported}");
    }
}

#[test]
fn hash_comments_are_checked() {
    for (path, text, violation) in [
        ("scripts/a.sh", "#!/bin/bash\n# What is left is removed.\n", "scripts/a.sh:2: a statement begins with `What`"),
        ("scripts/a.py", "a = 1  # an errand\n", "scripts/a.py:1: `errand` is retired"),
        ("deny.toml", "[a]\n# It ends. Who\n# asks waits.\n", "deny.toml:2: a statement begins with `Who`"),
        (".ci/run", "if a; then\n  # A mailbox.\nfi\n", ".ci/run:2: `mailbox` is retired"),
        ("Makefile", "test: ; cargo test\n# a desk\n", "Makefile:2: `desk` is retired"),
    ] {
        let reported = violation_of(path, text);
        assert!(reported.contains(violation), "{violation}: {reported}");
    }
}

#[test]
fn hash_signs_outside_comments_pass() {
    let tree = sound();
    let script = "echo \"a # What is\" 'a # desk' $# ${a#Who} https://a/#mailbox\n# Why?\n";
    write(tree.path(), "scripts/a.sh", script);
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn retired_words_elsewhere_pass() {
    let tree = sound();
    let code = "fn f<'a>(at: &'a str, rest: char) {\n    g(at, rest, '\"', \"a mailbox // desk\");\n    \
                h(r#\"slab \" // doubt\"#, \"\\\" errand\");\n}\n/// A hyperslab of a desktop.\nconst STRANGERS: u8 = 1;\n";
    write(tree.path(), "crates/client/src/a.rs", code);
    write(tree.path(), "crates/meta/src/server/local_session.rs", "// What an errand is.\n");
    write(tree.path(), "STYLE.md", "An errand.\n");
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn relative_clauses_as_subjects_are_reported() {
    for (path, text, violation) in [
        ("docs/guide.md", "# Guide\n\nA line.\nWho waits is told.\n", "docs/guide.md:4: a statement begins with `Who`"),
        ("docs/guide.md", "Read `a.rs`. Whoever\nasks waits.\n", "docs/guide.md:1: a statement begins with `Whoever`"),
        ("docs/guide.md", "- One.\n- What is sent is lost.\n", "docs/guide.md:2: a statement begins with `What`"),
        ("docs/guide.md", "| What | Why |\n|---|---|\n| a | What is left. |\n", "docs/guide.md:3: "),
        ("docs/guide.md", "**That which is sent** is lost.\n", "begins with `That which`"),
        ("docs/guide.md", "Note: What is sent is lost.\n", "begins with `What`"),
        ("crates/client/src/a.rs", "/// One. What\n/// a call does.\nfn a() {}\n", "crates/client/src/a.rs:1: "),
        ("crates/client/src/a.rs", "fn a() {} // What a call does.\n", "crates/client/src/a.rs:1: "),
    ] {
        let reported = violation_of(path, text);
        assert!(reported.contains(violation), "{violation}: {reported}");
    }
}

#[test]
fn questions_and_headings_may_begin_with_what() {
    let tree = sound();
    let text = "# What it is\n\n| What | Why |\n|---|---|\n| What is it? | x |\n\nWhat is lost? (Who asks\nfor it?) Whatever.\n\n\
                ```\nWhat is printed.\n```\n";
    write(tree.path(), "docs/guide.md", text);
    let code = "// # What it is\n// ```\n// Who\n// ```\nconst A: &str = \"// What\";\nfn what() {}\n";
    write(tree.path(), "crates/client/src/a.rs", code);
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}

#[test]
fn files_exempt_from_language_rules_exist() {
    for (path, reason) in tidy::language::EXEMPT {
        assert!(xtask::root().join(path).exists(), "{path} ({reason}) is gone: remove the exemption");
    }
}

#[test]
fn format_without_golden_bytes_is_reported() {
    assert!(violation_of("formats/log.md", "# Log\n").contains("names no golden test"));
}

#[test]
fn missing_make_target_is_reported() {
    assert!(violation_of("README.md", "```\n$ make coffee\n```\n").contains("no target `coffee`"));
}

#[test]
fn a_store_file_opened_by_path_is_seen() {
    let code = "fn key(path: &Path) -> Vec<u8> {\n    std::fs::read(path).unwrap()\n}\n";
    assert!(violation_of("crates/client/src/key.rs", code).contains("varve_env::store_path"));
    let tree = sound();
    let tests = "#[cfg(test)]\nmod tests {\n    fn read() { std::fs::read(\"key\").unwrap(); }\n}\n";
    for (path, text) in [("crates/client/src/key/tests.rs", code), ("crates/client/src/key.rs", tests)] {
        write(tree.path(), path, text);
    }
    assert_eq!(tidy::check(tree.path()).expect("the tree can be read"), []);
}
