//! The sections of a manual page beyond those of the definition, and the pages that belong to no command.

use crate::help;
use clap::Command;
use std::fmt::Write;

/// Files of commands, by the first word of the command; "" counts for all.
const FILES: &[(&str, &str, &str)] = &[
    ("", "~/.config/varve/config.toml", "settings of all commands: varve-config(5)"),
    ("mount", "/var/log/varve/mount-NAME-ID.log", "log of root's mounts in the background"),
    ("mount", "~/.local/state/varve/mount-NAME-ID.log", "log of a user's mounts in the background"),
    ("mount", "/etc/fuse.conf", "user_allow_other lets users give others access to their mounts"),
    ("mount", "/sbin/mount.fuse.varve", "the helper of mount(8): mount.fuse.varve(8)"),
    ("serve", "STORE/servers/", "where the servers of the volume listen"),
    ("serve", "STORE/key", "the volume's key, for its owner alone"),
    ("serve", "/run/varve, $XDG_RUNTIME_DIR/varve, /tmp/varve-UID", "sockets of servers"),
    ("fsck", "STORE/damaged/", "what --repair took out of tables"),
    ("record", "DIR/.varve-record/", "records of runs that are not finished"),
    ("format", "STORE/varve.toml", "the volume file"),
    ("key", "STORE/keys/", "keys of hosts"),
];

/// Exit codes, and those of fsck(8).
const EXITS: &[(&str, &str)] = &[
    ("0", "done"),
    ("1", "failed"),
    ("2", "wrong usage"),
    ("3", "done, but something that belongs to the result is missing; of status: the volume needs attention"),
    ("130", "interrupted by a signal"),
];
const EXITS_OF_FSCK: &[(&str, &str)] = &[
    ("0", "the volume is sound"),
    ("1", "damage was found and repaired"),
    ("4", "damage was found and left"),
    ("8", "the check failed"),
    ("16", "wrong usage"),
];

/// EXAMPLES, EXIT STATUS, ENVIRONMENT, FILES and SEE ALSO of a command.
pub fn of_command(command: &Command, path: &str) -> String {
    let mut page = Page(String::new());
    if let Some(examples) = help::examples(path) {
        page.section("EXAMPLES");
        examples.iter().for_each(|example| page.example(example));
    }
    page.section("EXIT STATUS");
    let exits = if path == "fsck" { EXITS_OF_FSCK } else { EXITS };
    exits.iter().for_each(|(code, meaning)| page.item(code, meaning));
    let settable = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let variables = settable.filter_map(|arg| Some((arg.get_env()?.to_string_lossy(), arg.get_long()?)));
    let variables: Vec<_> = variables.collect();
    if !variables.is_empty() {
        page.section("ENVIRONMENT");
        variables.iter().for_each(|(name, long)| page.item(name, &format!("sets --{long}")));
    }
    page.section("FILES");
    let first = path.split(' ').next().unwrap_or_default();
    let files = FILES.iter().filter(|(of, _, _)| of.is_empty() || *of == first);
    files.for_each(|(_, file, what)| page.item(file, what));
    page.section("SEE ALSO");
    page.text(if path.is_empty() {
        "varve-config(5), mount.fuse.varve(8)"
    } else {
        "varve(1), varve-config(5), mount.fuse.varve(8)"
    });
    page.0
}

/// mount.fuse.varve(8): file name and text.
pub fn mount_helper() -> (&'static str, String) {
    let mut page = Page::begin("mount.fuse.varve", "8", "mount a Varve volume by mount(8) and fstab(5)");
    page.section("SYNOPSIS");
    page.text("mount -t fuse.varve STORE DIR [-o OPTIONS]");
    page.section("DESCRIPTION");
    page.text(
        "mount(8) calls this program for the file system type fuse.varve. It is varve itself under another name, and mounts \
         the volume in the directory STORE on DIR as varve-mount(1) does. -o takes the options of mount(8) and those of \
         varve-mount(1).",
    );
    page.section("OPTIONS");
    for (option, meaning) in [
        ("_netdev", "systemd mounts it after the network is up: for stores on network file systems"),
        ("nofail", "a failed mount does not stop the boot"),
        ("x-systemd.requires-mounts-for=PATH", "systemd mounts the store before"),
        ("noembedded", "waits for a server instead of serving the volume in the mount's own process"),
        ("deadline=DURATION", "timeout for one request to the server"),
        ("memory=SIZE, workers=COUNT", "of the server inside the mount"),
        ("ro, noatime, nosuid, nodev, noexec", "as for other file systems"),
    ] {
        page.item(option, meaning);
    }
    page.section("EXAMPLES");
    page.text("A line of /etc/fstab:");
    page.example("/scratch/volume  /mnt/volume  fuse.varve  noatime,_netdev,nofail  0  0");
    page.section("EXIT STATUS");
    EXITS[..3].iter().for_each(|(code, meaning)| page.item(code, meaning));
    page.section("FILES");
    page.item("/var/log/varve/mount-NAME-ID.log", "the log");
    page.item("/etc/fstab", "mounts at boot");
    page.section("SEE ALSO");
    page.text("varve-mount(1), varve-umount(1), mount(8), fstab(5)");
    ("mount.fuse.varve.8", page.0)
}

/// varve-config(5): file name and text.
pub fn configuration() -> (&'static str, String) {
    let mut page = Page::begin("varve-config", "5", "the configuration file of varve");
    page.section("DESCRIPTION");
    page.text(
        "A TOML file with defaults for the flags of all commands. A key is the long name of a flag, in the table of its \
         command. The command line counts before the environment (VARVE_SERVE_WORKERS for serve --workers), and the \
         environment before the file.",
    );
    page.text(
        "The file must belong to the user who runs varve or to root, and no other user may be able to write it. Flags that \
         destroy something are taken from the command line alone: --force, --repair, --without-data.",
    );
    page.text("A server, a mount and the detector service read the key log anew when they get SIGHUP.");
    page.section("EXAMPLES");
    page.example("log = \"info\"");
    page.example("[serve]");
    page.example("workers = 4");
    page.example("memory = \"4GiB\"");
    page.example("[mount]");
    page.example("options = [\"noatime\"]");
    page.section("FILES");
    page.item("~/.config/varve/config.toml", "the file, unless --config or VARVE_CONFIG names another");
    page.section("ENVIRONMENT");
    page.item("VARVE_CONFIG", "another configuration file");
    page.item("XDG_CONFIG_HOME", "the directory in place of ~/.config");
    page.section("SEE ALSO");
    page.text("varve(1)");
    ("varve-config.5", page.0)
}

/// A page in roff.
struct Page(String);

impl Page {
    // Writing to a string does not fail.

    fn begin(name: &str, section: &str, what: &str) -> Page {
        let (title, version) = (escaped(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
        let mut page = Page(format!(".TH \"{title}\" \"{section}\" \"\" \"varve {version}\"\n"));
        page.section("NAME");
        page.text(&format!("{name} - {what}"));
        page
    }

    fn section(&mut self, name: &str) {
        let _ = writeln!(self.0, ".SH {name}");
    }

    fn text(&mut self, text: &str) {
        let _ = writeln!(self.0, ".PP\n{}", escaped(text));
    }

    fn item(&mut self, term: &str, text: &str) {
        let _ = writeln!(self.0, ".TP\n\\fB{}\\fR\n{}", escaped(term), escaped(text));
    }

    /// A line as it is typed.
    fn example(&mut self, line: &str) {
        let _ = writeln!(self.0, ".PP\n.EX\n{}\n.EE", escaped(line));
    }
}

/// Text in which roff sees no escapes, no minus signs and, at the begin of a line, no requests.
fn escaped(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    match escaped.starts_with(['.', '\'']) {
        true => format!("\\&{escaped}"),
        false => escaped,
    }
}
