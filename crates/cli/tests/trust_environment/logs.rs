//! The log file of a mount. The mount point does not exist, so the mount fails once it has made its log.

use crate::cases::{Case, check};

const fn refused(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 0, says, never: &[] }
}

const fn logs(name: &'static str, script: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, script, code: 0, says, never: &["cannot write the log", "cannot make"] }
}

#[test]
fn log_is_a_closed_file_of_the_user() {
    check(&[
        logs(
            "roots log under an open umask",
            "store 0; umask 000; as 0 $V mount $S /nonexistent/absent --log-file $D/log; access $D/log",
            &["no such directory", "access 600 of 0"],
        ),
        logs(
            "roots log of a users store",
            "store $USER; mkdir -m 700 $D/logs; as 0 $V mount $S /nonexistent/absent --log-file $D/logs/log; access $D/logs/log",
            &["no such directory", "access 600 of 0"],
        ),
        logs(
            "no home",
            "store $USER; umask 000; as $USER $V mount $S /nonexistent/absent; access /tmp/varve-47111; access /tmp/varve-47111/mount*.log",
            &["access 700 of 47111", "access 600 of 47111"],
        ),
        logs(
            "the users home",
            "store $USER; install -d -o $USER $D/home; umask 000; as $USER HOME=$D/home $V mount $S /nonexistent/absent
             access $D/home/.local/state/varve; access $D/home/.local/state/varve/mount*.log",
            &["access 700 of 47111", "access 600 of 47111"],
        ),
        logs(
            "anothers home",
            "store $USER; install -d -m 777 -o $OTHER $D/home; as $USER HOME=$D/home $V mount $S /nonexistent/absent
             ls $D/home; access /tmp/varve-47111/mount*.log",
            &["access 600 of 47111"],
        ),
        logs(
            "a hostile TMPDIR",
            "store $USER; install -d -m 777 -o $OTHER $D/tmp; as $USER TMPDIR=$D/tmp $V mount $S /nonexistent/absent
             ls -A $D/tmp | grep . && echo cannot make; access /tmp/varve-47111/mount*.log",
            &["access 600 of 47111"],
        ),
        logs("a null device", "store 0; as 0 $V mount $S /nonexistent/absent --log-file /dev/null", &[]),
    ].map(|case| if case.name == "a null device" { Case { code: 1, ..case } } else { case }));
}

#[test]
fn log_follows_no_link_and_is_nobody_elses() {
    check(&[
        refused(
            "a planted link",
            "store 0; put 0 600 $D/precious precious; ln -s precious $D/log; give $USER $D/log
             as 0 $V mount $S /nonexistent/absent --log-file $D/log; cat $D/precious; ! [ -s $D/made ]",
            &["symbolic link of user 47111", "--log-file", "precious"],
        ),
        refused(
            "a planted link to nothing",
            "store 0; ln -s made $D/log; give $USER $D/log; as 0 $V mount $S /nonexistent/absent --log-file $D/log; ! [ -e $D/made ]",
            &["symbolic link of user 47111"],
        ),
        refused(
            "anothers file",
            "store 0; put $USER 666 $D/log old; as 0 $V mount $S /nonexistent/absent --log-file $D/log; [ $(cat $D/log) = old ]",
            &["belongs to user 47111", "--log-file"],
        ),
        refused(
            "a file that others can write",
            "store 0; put 0 666 $D/log old; as 0 $V mount $S /nonexistent/absent --log-file $D/log; [ $(cat $D/log) = old ]",
            &["written by other users"],
        ),
        refused(
            "a fifo",
            "store 0; mkfifo $D/log; as 0 $V mount $S /nonexistent/absent --log-file $D/log; true",
            &["cannot write the log"],
        ),
        refused(
            "no home and a planted directory",
            "store $USER; install -d -m 777 -o $OTHER /tmp/varve-47111; as $USER $V mount $S /nonexistent/absent; ! ls /tmp/varve-47111/*",
            &["belongs to user 2", "--log-file"],
        ),
        refused(
            "no home and a planted link",
            "store $USER; install -d -o $USER $D/mine; ln -s $D/mine /tmp/varve-47111; give $OTHER /tmp/varve-47111
             as $USER $V mount $S /nonexistent/absent; ! ls $D/mine/*",
            &["symbolic link of user 2", "--log-file"],
        ),
        refused(
            "a state directory of another",
            "store $USER; install -d -m 777 -o $OTHER $D/state $D/state/varve
             as $USER XDG_STATE_HOME=$D/state $V mount $S /nonexistent/absent; ! ls $D/state/varve/*",
            &["belongs to user 2", "--log-file"],
        ),
    ]);
}
