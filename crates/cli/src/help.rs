//! The help screens. `--help` and `-h` print one short screen with an example. `varve help COMMAND` and the manual page
//! print every option with its whole text.
//!
//! The short text of an option is the first statement of its whole text, so each option is described once.

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

/// One screen: the command's words after `varve`, its examples, and options that the short screen leaves out.
struct Screen {
    command: &'static str,
    examples: &'static [&'static str],
    left_out: &'static [&'static str],
}

const fn screen(command: &'static str, examples: &'static [&'static str], left_out: &'static [&'static str]) -> Screen {
    Screen { command, examples, left_out }
}

const SCREENS: &[Screen] = &[
    screen("", &["varve format ~/volume", "varve mount ~/volume ~/mnt", "varve umount ~/mnt"], &[]),
    screen("format", &["varve format ~/volume"], &["split-threshold"]),
    screen("doctor", &["varve doctor /scratch", "varve doctor ~/volume"], &[]),
    screen(
        "serve",
        &["varve serve ~/volume", "varve serve ~/volume --listen 10.0.0.5:7400", "varve serve ~/volume --join"],
        &["lease", "log-file"],
    ),
    screen("mount", &["varve mount ~/volume ~/mnt", "varve mount -o ro ~/volume ~/mnt"], &["unix-dir", "metrics"]),
    screen("umount", &["varve umount ~/mnt", "varve umount --wait 30s ~/mnt"], &[]),
    screen("status", &["varve status ~/volume", "varve status --shards ~/mnt"], &[]),
    screen("info", &["varve info ~/mnt/file"], &[]),
    screen("path", &["varve path ~/volume 00010000000000a7"], &[]),
    screen("stats", &["varve stats ~/mnt", "varve stats ~/mnt --interval 1s"], &[]),
    screen("fsck", &["varve fsck ~/volume", "varve fsck --repair ~/volume"], &[]),
    screen("dump", &["varve dump ~/volume -o volume.dump"], &[]),
    screen("load", &["varve load volume.dump ~/copy", "varve load volume.dump ~/copy --data ~/volume/data"], &[]),
    screen("key", &["varve key add ~/volume node17 --out node17.key", "varve key list ~/volume"], &[]),
    screen("key list", &["varve key list ~/volume"], &[]),
    screen("key add", &["varve key add ~/volume node17 --out node17.key"], &[]),
    screen("key revoke", &["varve key revoke ~/volume node17"], &[]),
    screen("cluster", &["varve cluster status ~/volume", "varve cluster move ~/volume 3 1"], &[]),
    screen("cluster status", &["varve cluster status ~/volume"], &[]),
    screen("cluster move", &["varve cluster move ~/volume 3 1", "varve cluster move ~/volume 3 4f1c20a9b3d85e67"], &[]),
    screen("cluster drain", &["varve cluster drain ~/volume 4f1c20a9b3d85e67"], &[]),
    screen("cluster evict", &["varve cluster evict ~/volume 4f1c20a9b3d85e67"], &[]),
    screen("volume", &["varve volume set ~/volume --ack synced"], &[]),
    screen("volume set", &["varve volume set ~/volume --ack synced"], &[]),
    screen("bench", &["varve bench mdtest --via path:/scratch/dir --via mount:/mnt/v"], &[]),
    screen(
        "bench data",
        &["varve bench data --pattern n-1-strided --via path:/scratch/dir"],
        &["rendezvous", "rank-timeout", "keep-caches", "write-only", "operations"],
    ),
    screen(
        "bench detector",
        &["varve bench detector /scratch --rates 10,25"],
        &["connections", "compress-ratio", "rate-seconds", "python"],
    ),
    screen("bench failover", &["varve bench failover /scratch"], &[]),
    screen("bench files", &["varve bench files --via path:/scratch/dir"], &["rendezvous", "rank-timeout"]),
    screen(
        "bench images",
        &["varve bench images --rates 10,25 --via path:/scratch/dir"],
        &["rendezvous", "rank-timeout"],
    ),
    screen(
        "bench mdtest",
        &[
            "varve bench mdtest --via path:/scratch/dir --via mount:/mnt/v --page page.html",
            "varve bench mdtest -I 10 -z 5 -b 5 -i 5 -u -d /scratch/dir",
        ],
        &[
            "no-warm-up",
            "seed",
            "workers",
            "null-timeout",
            "store",
            "compare",
            "rendezvous",
            "rank-timeout",
            "processes",
            "csv",
            "leaf-only",
            "files-only",
            "only-create",
            "only-stat",
            "only-read",
            "only-remove",
            "read",
            "stride",
        ],
    ),
    screen("bench mixed", &["varve bench mixed --rate 10 --via path:/scratch/dir"], &["rendezvous", "rank-timeout"]),
    screen("bench overall", &["varve bench overall --via path:/scratch/dir"], &["rendezvous", "rank-timeout"]),
    screen(
        "bench saturate",
        &["varve bench saturate --measure create --via path:/scratch/dir"],
        &["rendezvous", "rank-timeout"],
    ),
    screen("bench compare", &["varve bench compare mdtest.json --recorded ratios.json"], &[]),
    screen("bench profile", &["varve bench profile /scratch"], &[]),
    screen("bench scale", &["varve bench scale /scratch --servers 1,2,4"], &[]),
    screen("bench stream", &["varve bench stream --via path:/scratch/dir --via mount:/mnt/v"], &["compare"]),
    screen("bench tree", &["varve bench tree /scratch/dir /mnt/v --repeat 10"], &[]),
    screen("bench suite", &["varve bench suite quick --target a=path:/scratch/dir --target b=mount:/mnt/v"], &[]),
    screen("report", &["varve report run.json -o report.html"], &[]),
    screen("report assert", &["varve report assert run.json 'create.ops>3.5*native.create.ops'"], &[]),
    screen("report compare", &["varve report compare before.json after.json"], &[]),
    screen("report import", &["varve report import mdtest.out --label lustre -o lustre.json"], &[]),
    screen("plan", &["varve plan run.json --detector eiger16m@100 --hours 24 --files per-frame"], &[]),
    screen("record", &["varve record serve /data", "varve record start scan-1 scan-1.h5 --frame 2527x2463"], &[]),
    screen(
        "record serve",
        &["varve record serve /data", "varve record serve /data --stream2 tcp://detector:31001"],
        &[
            "allow-host",
            "plugins",
            "threads",
            "stripe",
            "commit-interval",
            "runs-max",
            "connections-max",
            "idle",
            "pva-idle",
            "insecure",
            "tls-key",
            "log-file",
        ],
    ),
    screen(
        "record start",
        &["varve record start scan-1 scan-1.h5 --frame 2527x2463 --element i32"],
        &["scalar", "region", "keep", "absence", "http", "token-file", "tls-ca"],
    ),
    screen("record stop", &["varve record stop scan-1"], &[]),
    screen("record abort", &["varve record abort scan-1"], &[]),
    screen("record status", &["varve record status", "varve record status scan-1"], &[]),
    screen("record watch", &["varve record watch scan-1"], &[]),
    screen(
        "record join",
        &["varve record join 127.0.0.1:7420 scan-1 --directory /data"],
        &["tls-cert", "tls-key", "insecure", "tls-ca", "retry", "report-interval"],
    ),
    screen("record advise", &["varve record advise /data --model pilatus6m --rate 25"], &[]),
    screen("record recover", &["varve record recover /data/scan-1.h5"], &[]),
    screen("record report", &["varve record report /data/scan-1.h5"], &[]),
    screen("record weld", &["varve record weld /data/scan-1_vds.h5 /data/scan-1.h5"], &[]),
    screen("detector", &["varve detector simulate --model pilatus6m --rate 25 --out run.h5"], &[]),
    screen(
        "detector simulate",
        &[
            "varve detector simulate --model pilatus6m --rate 25 --out run.h5",
            "varve detector simulate --to tcp://127.0.0.1:7420 --run sim-1 --file sim-1.h5",
        ],
        &[
            "advice",
            "filter",
            "dataset",
            "compress-ratio",
            "drop",
            "seed",
            "metadata",
            "threads",
            "client",
            "sources",
            "level",
            "leave",
            "timeout",
            "token-file",
            "tls-ca",
        ],
    ),
    screen("completions", &["varve completions bash > ~/.local/share/bash-completion/completions/varve"], &[]),
    screen("man", &["varve man ~/.local/share/man/man1"], &[]),
];

const GLOBAL_ORDER: usize = 900;
/// A longer default is left to the whole text.
const DEFAULT_MAX: usize = 40;
/// Options of every command that only the screen of `varve` itself explains.
const GLOBAL: [&str; 3] = ["config", "log", "log-format"];

/// The examples of a command, by its words after `varve`.
pub fn examples(path: &str) -> Option<&'static [&'static str]> {
    SCREENS.iter().find(|screen| screen.command == path).map(|screen| screen.examples)
}

/// Gives the command and all beneath it their screens.
pub fn with_screens(command: Command) -> Command {
    with_screen(command, "")
}

fn with_screen(command: Command, path: &str) -> Command {
    let screen = SCREENS.iter().find(|screen| screen.command == path);
    let left_out = screen.map_or(&[][..], |screen| screen.left_out);
    let is_left_out = |long: &str| left_out.contains(&long) || GLOBAL.contains(&long);
    let command = command.mut_args(|arg| {
        let is_hidden = arg.get_long().is_some_and(is_left_out);
        // Options of every command come after those of this one.
        let arg = if arg.is_global_set() { arg.display_order(GLOBAL_ORDER) } else { arg };
        shortened(arg.hide_env(true)).hide_short_help(is_hidden)
    });
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .help("Print this help")
        .action(ArgAction::HelpShort)
        .display_order(GLOBAL_ORDER + 1);
    let command = command.disable_help_flag(true).arg(help.help_heading(None));
    let command = match command.get_about().map(StyledStr::to_string) {
        Some(whole) => {
            let long = command.get_long_about().map_or(whole.clone(), StyledStr::to_string);
            command.about(first_statement(&whole)).long_about(long)
        }
        None => command,
    };
    let command = match screen {
        Some(screen) => with_examples(command, screen),
        None => command,
    };
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        with_screen(sub, path.trim_start())
    })
}

fn with_examples(command: Command, screen: &Screen) -> Command {
    let title = if screen.examples.len() == 1 { "Example" } else { "Examples" };
    let mut examples = format!("{title}:\n");
    screen.examples.iter().for_each(|example| examples.push_str(&format!("  {example}\n")));
    let whole = match command.get_after_help() {
        Some(after) => format!("{examples}\n{after}"),
        None => examples.trim_end().to_owned(),
    };
    let more = match screen.command {
        "" => "All options: varve help COMMAND. Messages, settings, exit codes: varve help".to_owned(),
        command => format!("Every option, with details: varve help {command}"),
    };
    command.after_help(format!("{examples}\n{more}")).after_long_help(whole)
}

/// Divides the text of an option: the short screen shows its first statement, the long one all of it.
fn shortened(arg: Arg) -> Arg {
    let Some(whole) = arg.get_help().map(StyledStr::to_string) else { return arg };
    let short = first_statement(&whole);
    let long = arg.get_long_help().map_or(whole, StyledStr::to_string);
    arg.help(short).long_help(long)
}

/// The text before the first `. ` or `; ` outside parentheses, and a short default at the end of the text.
fn first_statement(text: &str) -> String {
    let (whole, default) = match text.split_once(" [default: ") {
        Some((whole, default)) => (whole, Some(default).filter(|default| default.chars().count() <= DEFAULT_MAX)),
        None => (text, None),
    };
    let is_outside = |end: &usize| whole[..*end].matches('(').count() == whole[..*end].matches(')').count();
    let ends = [". ", "; "].into_iter().flat_map(|mark| whole.match_indices(mark).map(|(end, _)| end));
    let short = ends.filter(is_outside).min().map_or(whole, |end| &whole[..end]);
    default.map_or(short.to_owned(), |default| format!("{short} [default: {default}"))
}

#[cfg(test)]
mod tests;
