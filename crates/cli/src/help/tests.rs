//! Each command has a help screen that fits a terminal and shows an example that parses.

use crate::definition::definition;
use clap::Command;

/// Lines of a screen that a reader takes in at once, and of a small terminal.
const LINES_MAX: usize = 40;
const COLUMNS: usize = 80;

/// Every visible command with its words.
fn commands(command: &Command, words: &str, into: &mut Vec<(String, Command)>) {
    into.push((words.to_owned(), command.clone()));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        commands(sub, &format!("{words} {}", sub.get_name()), into);
    }
}

fn all() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut definition = definition().term_width(COLUMNS);
    definition.build();
    commands(&definition, "varve", &mut found);
    found.into_iter().map(|(words, mut command)| (words, command.render_help().to_string())).collect()
}

#[test]
fn every_help_fits_a_screen() {
    for (words, text) in all() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{words} --help has {lines} lines:\n{text}");
        let wide = text.lines().find(|line| line.chars().count() > COLUMNS);
        assert_eq!(wide, None, "{words} --help has a line of more than {COLUMNS} columns");
    }
}

#[test]
fn short_text_is_the_first_statement() {
    for (whole, short) in [
        ("Name of the volume", "Name of the volume"),
        ("Accept it (others stay; none is new); twice: destroy it", "Accept it (others stay; none is new)"),
        ("Threads. One each [default: one per processor]", "Threads [default: one per processor]"),
        ("Directory [default: a very long way to say where the directory is]", "Directory"),
    ] {
        assert_eq!(super::first_statement(whole), short);
    }
}

#[test]
fn every_help_has_an_example_that_parses() {
    for (words, text) in all() {
        let examples: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("Example")).skip(1).collect();
        let examples: Vec<&str> = examples.into_iter().take_while(|line| !line.is_empty()).map(str::trim).collect();
        assert!(!examples.is_empty(), "{words} --help has no example");
        for example in examples {
            assert!(example.starts_with(&words), "`{example}` is an example of {words}");
            let given = example.split_whitespace().take_while(|word| *word != ">");
            if let Err(error) = definition().try_get_matches_from(given) {
                panic!("{words} --help shows `{example}`, but:\n{error}");
            }
        }
    }
}

#[test]
fn help_and_short_help_are_the_same_screen() {
    for words in [&["varve"][..], &["varve", "bench", "mdtest"]] {
        let [short, long] = ["-h", "--help"].map(|flag| {
            let given = words.iter().copied().chain([flag]);
            definition().try_get_matches_from(given).expect_err("help is printed").to_string()
        });
        assert_eq!(short, long);
    }
}

#[test]
fn help_command_prints_options_left_out_of_the_screen() {
    let print = |words: &[&str]| definition().try_get_matches_from(words).expect_err("help is printed").to_string();
    assert!(!print(&["varve", "bench", "mdtest", "--help"]).contains("--null-timeout"));
    assert!(print(&["varve", "help", "bench", "mdtest"]).contains("--null-timeout"));
    assert!(print(&["varve", "help"]).contains("Exit codes"));
}
