//! `varve bench suite`: runs several workloads at several targets, and prints one run file.

use super::{command_line, explain, write};
use crate::definition;
use crate::escaping;
use crate::identity::{self, Work};
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use varve_bench::run_file::RunFile;
use varve_bench::run_report::MergedRuns;
use varve_bench::run_report::answer;
use varve_bench::suite::{self, PlannedStep, SHIPPED, Suite, SuiteConfig, SuiteTarget};
use varve_bench::target::Via;

/// Run a suite of workloads at several targets; `varve report` shows the result
///
/// A suite is a name (quick, paper, d82, ceft, acceptance, io500), or a TOML file of your own; `--print` shows one as a
/// start. A step that fails leaves the others alone, and the exit code is 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// quick, paper, d82, ceft, acceptance, io500, or a file such as mine.toml
    #[arg(value_name = "SUITE")]
    suite: String,
    /// A target with a name for the report: native=path:DIR, varve=mount:DIR or lib=library:STORE; others are compared
    /// with the first
    #[arg(long = "target", value_name = "LABEL=VIA", value_parser = clap::value_parser!(SuiteTarget))]
    targets: Vec<SuiteTarget>,
    /// Turns of each step that gives no other number [default: that of the suite]
    #[arg(long, value_name = "COUNT")]
    repeat: Option<u32>,
    /// Keep the run file, as --json prints it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print the suite as TOML, and run nothing
    #[arg(long, conflicts_with = "targets")]
    print: bool,
    /// Print the commands of the suite, and run nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if arguments.print {
        let (_, text) = load_text(&arguments.suite)?;
        output::print_line(&escaping::lines(&text))?;
        return Ok(Exit::Done);
    }
    let suite = load(&arguments.suite)?;
    let steps = suite.plan(&arguments.targets, arguments.repeat).map_err(|error| explain(&error))?;
    steps.iter().try_for_each(check_words)?;
    if arguments.dry_run {
        let lines: Vec<String> = steps.iter().map(|step| format!("varve {}", step.words.join(" "))).collect();
        output::print_line(&escaping::lines(&lines.join("\n")))?;
        return Ok(Exit::Done);
    }
    let libraries = arguments.targets.iter().filter(|target| matches!(target.via, Via::Library(_)));
    identity::take_all(&libraries.map(|target| target.via.directory()).collect::<Vec<_>>(), Work::Bench)?;
    let program =
        std::env::current_exe().map_err(|error| Problem::new("cannot find this program").caused_by(&error))?;
    let config = SuiteConfig {
        suite,
        targets: arguments.targets.clone(),
        steps,
        program,
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    config.check().map_err(|error| explain(&error))?;
    // A run of an afternoon must not end with a file that cannot be written.
    if let Some(path) = &arguments.save {
        let opened = std::fs::File::options().create(true).append(true).open(path);
        opened.map_err(|error| Problem::new(format!("cannot write {}", path.display())).caused_by(&error))?;
    }
    let run = suite::run(&config).map_err(|error| explain(&error))?;
    deliver(run, arguments.save.as_deref(), output)
}

fn deliver(run: RunFile, save: Option<&Path>, output: &Output) -> Result<Exit> {
    let json = run.to_json().map_err(|error| explain(&error))?;
    let saved = save.map(|path| write(&path.to_owned(), &format!("{json}\n"))).transpose();
    let failed: Vec<String> = run.steps.iter().filter(|step| !step.failure.is_empty()).map(failure).collect();
    let interrupted = run.steps.iter().any(|step| step.failure.contains("interrupted"));
    if output.is_json() {
        output::print_line(&escaping::json(&json))?;
    } else {
        output::print_line(&escaping::lines(&text(run)?))?;
    }
    saved?;
    for step in &failed {
        eprintln!("{}", escaping::lines(step));
    }
    Ok(match (interrupted, failed.is_empty()) {
        (true, _) => Exit::BrokenOff,
        (false, true) => Exit::Done,
        (false, false) => Exit::Degraded,
    })
}

fn failure(step: &varve_bench::run_file::RunStep) -> String {
    format!("step {:?} failed: {}", step.name, step.failure)
}

/// The answer in words.
fn text(run: RunFile) -> Result<String> {
    if run.entries.is_empty() {
        return Ok("No step has a result.".to_owned());
    }
    let merged = MergedRuns::of(vec![("run".to_owned(), run)]).map_err(|error| explain(&error))?;
    let statements = answer::statements(&merged);
    let lines: Vec<String> = match statements.is_empty() {
        true => answer::alone(&merged),
        false => statements.into_iter().map(|statement| statement.text).collect(),
    };
    Ok(lines.join("\n"))
}

/// Checks a command of the suite before the first one runs: a mistake in the last step must not cost an afternoon.
fn check_words(step: &PlannedStep) -> Result<()> {
    let words = ["varve".to_owned()].into_iter().chain(step.words.iter().cloned());
    match definition::definition().try_get_matches_from(words) {
        // A step without a target is left out, so it may lack one.
        Err(error) if !step.targets.is_empty() => {
            let text = error.render().to_string();
            let text = text.trim().trim_start_matches("error: ").to_owned();
            Err(Problem::usage(format!("step {:?} of the suite is wrong", step.name)).because(text))
        }
        _ => Ok(()),
    }
}

fn load(name: &str) -> Result<Suite> {
    let (shown, text) = load_text(name)?;
    Suite::from_toml(&shown, &text).map_err(|error| explain(&error))
}

/// A file if the name has a suffix or a slash, else a suite of this program.
fn load_text(name: &str) -> Result<(String, String)> {
    if let Some((shipped, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        return Ok(((*shipped).to_owned(), (*text).to_owned()));
    }
    let path = Path::new(name);
    if path.extension().is_none() && path.components().count() < 2 {
        let known = SHIPPED.map(|(shipped, _)| shipped).join(", ");
        return Err(Problem::usage(format!("there is no suite {name}"))
            .next(format!("Use {known}, or a file such as mine.toml.")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Problem::new(format!("cannot read the suite {}", path.display())).caused_by(&error))?;
    let stem = path.file_stem().map_or(name.to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok((stem, text))
}
