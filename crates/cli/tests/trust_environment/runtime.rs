//! The directories for servers' sockets, and directories that are refused.

use crate::cases::{Case, check};

const fn serves(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 0, says, never: &[] }
}

const fn refused(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 1, says, never: &["\"pid\""] }
}

#[test]
fn sockets_are_in_a_directory_of_the_user() {
    check(&[
        serves(
            "xdg directory of the user",
            "store $USER; install -d -m 700 -o $USER $D/run; begin $USER XDG_RUNTIME_DIR=$D/run $V --json serve $S
             access $D/run/varve; finish",
            &["/run/varve/", "access 700 of 47111"],
        ),
        serves(
            "xdg directory under an open umask",
            "store $USER; install -d -m 700 -o $USER $D/run; umask 000
             begin $USER XDG_RUNTIME_DIR=$D/run $V --json serve $S; access $D/run/varve; finish",
            &["access 700 of 47111"],
        ),
        serves(
            "no xdg directory",
            "store $USER; umask 000; begin $USER $V --json serve $S; access /tmp/varve-47111; finish",
            &["\"/tmp/varve-47111/", "access 700 of 47111"],
        ),
        serves(
            "no xdg directory and a closed umask",
            "store $USER; umask 077; begin $USER $V --json serve $S; access /tmp/varve-47111; finish",
            &["\"/tmp/varve-47111/", "access 700 of 47111"],
        ),
        serves(
            "xdg directory that others may enter",
            "store $USER; install -d -m 755 -o $USER $D/run; begin $USER XDG_RUNTIME_DIR=$D/run $V --json serve $S; finish",
            &["\"/tmp/varve-47111/"],
        ),
        serves(
            "xdg directory of another",
            "store $USER; install -d -m 700 -o $OTHER $D/run; begin $USER XDG_RUNTIME_DIR=$D/run $V --json serve $S; finish",
            &["\"/tmp/varve-47111/"],
        ),
        serves(
            "xdg directory of another that is open",
            "store $USER; install -d -m 777 -o $OTHER $D/run; begin $USER XDG_RUNTIME_DIR=$D/run $V --json serve $S; finish",
            &["\"/tmp/varve-47111/"],
        ),
        serves(
            "xdg directory by a link",
            "store $USER; install -d -m 700 -o $USER $D/run; ln -s run $D/link; give $OTHER $D/link
             begin $USER XDG_RUNTIME_DIR=$D/link $V --json serve $S; finish",
            &["\"/tmp/varve-47111/"],
        ),
        serves(
            "xdg directory that is missing",
            "store $USER; begin $USER XDG_RUNTIME_DIR=$D/absent $V --json serve $S; finish",
            &["\"/tmp/varve-47111/"],
        ),
        serves(
            "own directory that was left open",
            "store $USER; install -d -m 777 -o $USER /tmp/varve-47111; begin $USER $V --json serve $S
             access /tmp/varve-47111; finish",
            &["access 700 of 47111"],
        ),
        serves(
            "chosen directory of the user",
            "store $USER; install -d -m 700 -o $USER $D/chosen; begin $USER $V --json serve $S --unix-dir $D/chosen; finish",
            &["/chosen/"],
        ),
    ]);
}

#[test]
fn sockets_do_not_go_to_another_users_directory() {
    check(&[
        refused(
            "planted directory",
            "store $USER; install -d -m 777 -o $OTHER /tmp/varve-47111; begin $USER $V --json serve $S; finish",
            &["/tmp/varve-47111", "belongs to user 2", "--unix-dir", "XDG_RUNTIME_DIR"],
        ),
        refused(
            "planted closed directory",
            "store $USER; install -d -m 700 -o $OTHER /tmp/varve-47111; begin $USER $V --json serve $S; finish",
            &["belongs to user 2", "--unix-dir"],
        ),
        refused(
            "planted directory of root",
            "store $USER; install -d -m 755 /tmp/varve-47111; begin $USER $V --json serve $S; finish",
            &["belongs to user 0", "--unix-dir"],
        ),
        refused(
            "planted link",
            "store $USER; install -d -m 700 -o $USER $D/mine; ln -s $D/mine /tmp/varve-47111; give $OTHER /tmp/varve-47111
             begin $USER $V --json serve $S; finish",
            &["link or file of user 2", "--unix-dir"],
        ),
        refused(
            "planted file",
            "store $USER; put $OTHER 666 /tmp/varve-47111 x; begin $USER $V --json serve $S; finish",
            &["link or file of user 2", "--unix-dir"],
        ),
        refused(
            "chosen directory of another",
            "store $USER; install -d -m 777 -o $OTHER $D/chosen; begin $USER $V --json serve $S --unix-dir $D/chosen; finish",
            &["belongs to user 2"],
        ),
        refused(
            "chosen directory that all may write",
            "store $USER; install -d -m 777 -o $USER $D/chosen; begin $USER $V --json serve $S --unix-dir $D/chosen; finish",
            &["other users can write it", "chmod go-w"],
        ),
    ]);
}

#[test]
fn sockets_of_roots_servers_lie_in_run() {
    check(&[
        serves(
            "root on its own store",
            "store 0; umask 077; begin 0 $V --json serve $S; access /run/varve; finish",
            &["\"/run/varve/", "access 755 of 0"],
        ),
        serves(
            "root with a users xdg directory",
            "store 0; install -d -m 700 -o $USER $D/run; begin 0 XDG_RUNTIME_DIR=$D/run $V --json serve $S; finish",
            &["\"/run/varve/"],
        ),
        serves(
            "root on a users store",
            "store $USER; umask 000; begin 0 $V --json serve $S; access /run/varve; access /run/varve/47111; finish",
            &["\"/run/varve/47111/", "access 755 of 0", "access 700 of 47111"],
        ),
        serves(
            "root on a users store where run is read only",
            "store $USER; mount -o remount,ro /run; begin 0 $V --json serve $S; access /tmp/varve-47111; finish",
            &["\"/tmp/varve-47111/", "access 700 of 47111"],
        ),
        serves(
            "the user finds roots server",
            "store $USER; begin 0 $V --json serve $S; as $USER $V status $S; finish",
            &["/run/varve/47111/", "open files"],
        ),
        serves(
            "root finds the users server",
            "store $USER; begin $USER $V --json serve $S; as 0 $V status $S; finish",
            &["/tmp/varve-47111/", "open files"],
        ),
    ]);
}
