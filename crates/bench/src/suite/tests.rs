//! Promises of suites: the shipped ones can be planned, options become words, and mistakes are named.

use super::*;

fn targets(texts: &[&str]) -> Vec<SuiteTarget> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn every_shipped_suite_has_a_plan() {
    for (name, _) in SHIPPED {
        let suite = Suite::shipped(name).unwrap().unwrap();
        let plan = suite.plan(&targets(&["native=path:/x", "varve=mount:/m"]), None).unwrap();
        assert!(!plan.is_empty() && !suite.about.is_empty(), "{name}");
        assert!(plan.iter().all(|step| !step.targets.is_empty()), "{name}");
    }
    assert!(Suite::shipped("unknown").is_none());
}

#[test]
fn options_become_words_and_each_value_a_command() {
    let text = "title='t'\nabout='a'\nrepeat=6\n[[step]]\nname='s'\nrun='mdtest'\n\
        options={files=10, clients=[1,2], unique-dirs=true, directories=false}\neach={write=['0','4KiB']}\n\
        [[step]]\nrun='tree'\noptions={repeat=2}\n[[step]]\nrun='scale'";
    let suite = Suite::from_toml("mine", text).unwrap();
    let plan = suite.plan(&targets(&["a=path:/x", "library:/store", "b=path:/y=z"]), None).unwrap();
    let words: Vec<String> = plan.iter().map(|step| step.words.join(" ")).collect();
    assert_eq!(
        words,
        [
            "--json bench mdtest --clients=1,2 --files=10 --repeat=6 --unique-dirs --write=0 --via path:/x --via \
             library:/store --via path:/y=z",
            "--json bench mdtest --clients=1,2 --files=10 --repeat=6 --unique-dirs --write=4KiB --via path:/x --via \
             library:/store --via path:/y=z",
            "--json bench tree --repeat=2 -- /x /y=z",
            "--json bench scale -- /x",
            "--json bench scale -- /y=z",
        ]
    );
    assert_eq!((plan[1].name.as_str(), plan[2].name.as_str()), ("s, write 4KiB", "tree"));
    assert_eq!(plan[0].targets[1].label, "library:/store");
}

#[test]
fn mistakes_in_suites_are_named() {
    let refused = |text: &str, reason: &str| {
        let made = Suite::from_toml("mine", text).and_then(|suite| suite.plan(&targets(&["a=path:/x"]), None));
        let error = made.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    let head = "title='t'\nabout='a'\n";
    refused("title='t'", "missing field");
    refused(&format!("{head}step=[]"), "no [[step]]");
    refused(&format!("{head}[[step]]\nrun='sleep'"), "cannot run \"sleep\": use one of mdtest");
    refused(&format!("{head}[[step]]\nrun='mdtest'\ncount=1"), "unknown field");
    refused(&format!("{head}[[step]]\nrun='mdtest'\noptions={{'--x'=1}}"), "without its dashes");
    refused(&format!("{head}[[step]]\nrun='mdtest'\noptions={{x={{y=1}}}}"), "a text, a number");
    refused(&format!("{head}[[step]]\nrun='mdtest'\neach={{x=[]}}"), "no values");
}

/// Promise: a suite of other people writes no file of its choice and measures nothing but the targets.
#[test]
fn suite_cannot_name_files_or_targets() {
    for option in REFUSED_OPTIONS {
        for place in ["options", "each"] {
            let value = if place == "each" { "['/x']" } else { "'/x'" };
            let text = format!("title='t'\nabout='a'\n[[step]]\nrun='mdtest'\n{place}={{{option}={value}}}");
            let planned = Suite::from_toml("mine", &text).unwrap().plan(&targets(&["a=path:/x"]), None);
            let error = planned.unwrap_err().to_string();
            assert!(error.contains(&format!("option {option:?} is not for suites")), "{error}");
        }
    }
}

#[test]
fn targets_have_plain_and_different_labels() {
    for bad in ["=path:/x", "a b=path:/x", "<b>=path:/x", "a=/x", "a=path:"] {
        assert!(bad.parse::<SuiteTarget>().is_err(), "{bad}");
    }
    let suite = Suite::shipped("quick").unwrap().unwrap();
    for twice in [["a=path:/x", "a=path:/y"], ["a=path:/x", "b=path:/x"]] {
        assert!(suite.plan(&targets(&twice), None).is_err(), "{twice:?}");
    }
    assert!(suite.plan(&[], None).is_err());
}
