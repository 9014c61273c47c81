//! Selection of the configuration file. The file is not TOML, so a process that reads it reports an error.

use crate::cases::{Case, check};

const READ: &[&str] = &["is not TOML"];

const fn used(name: &'static str, script: &'static str) -> Case {
    Case { name, script, code: 2, says: READ, never: &[] }
}

/// The user did not name this file, so the command continues without it.
const fn passed_over(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 0, says, never: READ }
}

const fn refused(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 2, says, never: READ }
}

#[test]
fn config_of_another_user_is_not_used() {
    check(&[
        used("root takes its own", "put 0 644 $D/.config/varve/config.toml nonsense; as 0 HOME=$D $V completions bash"),
        used(
            "a user takes their own",
            "put $USER 600 $D/.config/varve/config.toml nonsense; as $USER HOME=$D $V completions bash",
        ),
        used(
            "a user takes roots",
            "put 0 644 $D/.config/varve/config.toml nonsense; as $USER HOME=$D $V completions bash",
        ),
        used(
            "xdg directory of its own",
            "put 0 644 $D/varve/config.toml nonsense; as 0 XDG_CONFIG_HOME=$D $V completions bash",
        ),
        passed_over(
            "root with a users home",
            "put $USER 644 $D/.config/varve/config.toml nonsense; as 0 HOME=$D $V completions bash",
            &["is not used", "belongs to user 47111", "this is user 0"],
        ),
        passed_over(
            "root with a users closed file",
            "put $USER 600 $D/.config/varve/config.toml nonsense; as 0 HOME=$D $V completions bash",
            &["belongs to user 47111"],
        ),
        passed_over(
            "root with a users xdg directory",
            "put $USER 644 $D/varve/config.toml nonsense; as 0 XDG_CONFIG_HOME=$D $V completions bash",
            &["belongs to user 47111"],
        ),
        passed_over(
            "a user with anothers home",
            "put $OTHER 644 $D/.config/varve/config.toml nonsense; as $USER HOME=$D $V completions bash",
            &["belongs to user 2", "this is user 47111"],
        ),
        passed_over(
            "a file that cannot be read",
            "put $OTHER 600 $D/.config/varve/config.toml nonsense; as $USER HOME=$D $V completions bash",
            &[],
        ),
        passed_over("no file", "as $USER HOME=$D $V completions bash", &[]),
        passed_over("no home", "as $USER $V completions bash", &[]),
        refused(
            "named file of another user",
            "put $USER 644 $D/c.toml nonsense; as 0 $V --config $D/c.toml completions bash",
            &["belongs to user 47111", "--config"],
        ),
        refused(
            "file of another user by variable",
            "put $USER 644 $D/c.toml nonsense; as 0 VARVE_CONFIG=$D/c.toml $V completions bash",
            &["belongs to user 47111"],
        ),
        refused(
            "a user names anothers file",
            "put $OTHER 644 $D/c.toml nonsense; as $USER $V --config=$D/c.toml completions bash",
            &["belongs to user 2"],
        ),
    ]);
}

#[test]
fn config_that_others_can_write_is_refused() {
    check(&[
        refused(
            "all may write",
            "put 0 666 $D/.config/varve/config.toml nonsense; as 0 HOME=$D $V completions bash",
            &["written by other users", "chmod go-w"],
        ),
        refused(
            "the group may write",
            "put 0 664 $D/c.toml nonsense; as 0 $V --config $D/c.toml completions bash",
            &["mode 664"],
        ),
        refused(
            "a users own that all may write",
            "put $USER 646 $D/.config/varve/config.toml nonsense; as $USER HOME=$D $V completions bash",
            &["mode 646"],
        ),
    ]);
}

#[test]
fn config_is_a_regular_file_of_trusted_links() {
    check(&[
        used(
            "roots own link",
            "put 0 644 $D/c.toml nonsense; ln -s c.toml $D/link; as 0 $V --config $D/link completions bash",
        ),
        refused(
            "a users link to roots file",
            "put 0 600 $D/c.toml nonsense; ln -s c.toml $D/link; give $USER $D/link; as 0 $V --config $D/link completions bash",
            &["symbolic link of user 47111"],
        ),
        passed_over(
            "a users link in a home",
            "put 0 600 $D/c.toml nonsense; mkdir -p $D/.config/varve; ln -s $D/c.toml $D/.config/varve/config.toml
             give $USER $D/.config/varve/config.toml; as 0 HOME=$D $V completions bash",
            &["symbolic link of user 47111"],
        ),
        refused(
            "a fifo",
            "mkfifo -m 600 $D/c.toml; as 0 $V --config $D/c.toml completions bash",
            &["not a regular file"],
        ),
        refused("a directory", "as 0 $V --config $D completions bash", &["not a regular file"]),
        refused("a device", "as 0 $V --config /dev/zero completions bash", &["not a regular file"]),
        refused(
            "a huge file",
            "truncate -s 1G $D/c.toml; as 0 $V --config $D/c.toml completions bash",
            &["has more than"],
        ),
        refused(
            "links in a circle",
            "ln -s c.toml $D/c.toml; as 0 $V --config $D/c.toml completions bash",
            &["cannot read"],
        ),
    ]);
}
