//! The configuration file names flags and is checked, and the command line overrides it.

use super::{apply, check_variables, with_environment};
use crate::definition::definition;
use std::path::Path;

fn workers(file: &str, arguments: &[&str]) -> Option<u16> {
    let command = apply(definition(), file, Path::new("config.toml")).expect("the file is sound");
    let words = ["varve"].iter().chain(arguments);
    let matches = command.try_get_matches_from(words).expect("the command line is sound");
    matches.subcommand_matches("serve").and_then(|serve| serve.get_one::<u16>("workers").copied())
}

fn complaint(file: &str) -> String {
    apply(definition(), file, Path::new("config.toml")).expect_err("the file is not sound").to_string()
}

#[test]
fn the_file_gives_a_flag_its_value() {
    assert_eq!(workers("[serve]\nworkers = 3\n", &["serve", "/s"]), Some(3));
}

#[test]
fn command_line_overrides_file() {
    assert_eq!(workers("[serve]\nworkers = 3\n", &["serve", "/s", "--workers", "5"]), Some(5));
}

#[test]
fn an_unknown_key_is_refused_with_a_suggestion() {
    let text = complaint("[serve]\nworker = 3\n");
    assert!(text.contains("`serve.worker`") && text.contains("`workers`"), "{text}");
}

#[test]
fn an_unknown_table_is_refused_with_a_suggestion() {
    assert!(complaint("[server]\nworkers = 3\n").contains("Did you mean `serve`?"));
}

#[test]
fn unknown_key_without_near_match_lists_known_keys() {
    assert!(complaint("colour = \"blue\"\n").contains("Known here:"));
}

#[test]
fn invalid_toml_is_refused() {
    assert!(complaint("workers 3").contains("is not TOML"));
}

#[test]
fn config_file_cannot_include_another() {
    assert!(complaint("config = \"elsewhere.toml\"\n").contains("no such key"));
}

#[test]
fn invalid_value_is_reported_for_its_flag() {
    for (file, printed) in [
        ("[serve]\nworkers = \"many\"\n", ["sets `serve.workers`", "invalid value 'many' for '--workers"]),
        ("[serve]\nworkers = 1.5\n", ["sets `serve.workers`", "invalid value '1.5' for '--workers"]),
        ("json = 5\n", ["sets `json`", "invalid value '5' for '--json"]),
        ("[serve]\nworkers 3\n", ["is not TOML", "line 2, `workers 3`"]),
    ] {
        let text = complaint(file);
        assert!(text.contains("config.toml") && printed.iter().all(|words| text.contains(words)), "{text}");
        assert!(!text.contains('\n'), "{text}");
    }
}

#[test]
fn every_flag_has_its_own_environment_variable() {
    fn collect(command: &clap::Command, into: &mut Vec<String>) {
        into.extend(command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())));
        command.get_subcommands().for_each(|sub| collect(sub, into));
    }
    let mut variables = Vec::new();
    collect(&with_environment(definition()), &mut variables);
    for expected in ["VARVE_CONFIG", "VARVE_JSON", "VARVE_SERVE_WORKERS", "VARVE_FORMAT_SYNC_INTERVAL"] {
        assert!(variables.iter().any(|name| name == expected), "{expected} is not among {variables:?}");
    }
    let count = variables.len();
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), count, "two flags share a variable");
}

#[test]
fn destructive_flags_are_no_keys() {
    for file in ["[format]\nforce = 2\n", "[fsck]\nrepair = false\n", "[umount]\nforce = true\n"] {
        assert!(complaint(file).contains("command line alone"), "{file}");
    }
}

#[test]
fn variables_of_destructive_flags_are_refused() {
    for (words, variable, is_refused) in [
        (["varve", "format", "/s"], "VARVE_FORMAT_FORCE", true),
        (["varve", "fsck", "/s"], "VARVE_FSCK_REPAIR", true),
        (["varve", "fsck", "/s"], "VARVE_FSCK_WITHOUT_DATA", true),
        (["varve", "umount", "/m"], "VARVE_UMOUNT_FORCE", true),
        (["varve", "status", "/s"], "VARVE_FORMAT_FORCE", false),
        (["varve", "serve", "/s"], "VARVE_SERVE_WORKERS", false),
    ] {
        let mut command = definition();
        let matches = command.try_get_matches_from_mut(words).expect("the command line is sound");
        let checked = check_variables(&command, &matches, "VARVE", &|name| name == variable);
        assert_eq!(checked.is_err(), is_refused, "{words:?} with {variable}");
    }
}
