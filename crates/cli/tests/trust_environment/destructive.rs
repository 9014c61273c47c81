//! Only the command line can set flags that destroy something.

use crate::cases::{Case, check};

const SAID: &[&str] = &["command line alone", "still a volume"];

const fn refused(name: &'static str, code: i32, script: &'static str) -> Case {
    assert!(code == 2 || code == 16);
    Case { name, script, code, says: SAID, never: &[] }
}

#[test]
fn destructive_flags_come_from_the_command_line_alone() {
    check(&[
        refused(
            "format by variable",
            2,
            "store 0; as 0 VARVE_FORMAT_FORCE=2 $V format $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "format by a variable of no",
            2,
            "store 0; as 0 VARVE_FORMAT_FORCE=0 $V format $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "load by variable",
            2,
            "store 0; as 0 VARVE_LOAD_FORCE=1 $V load - $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "umount by variable",
            2,
            "store 0; as 0 VARVE_UMOUNT_FORCE=true $V umount $D; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "repair by variable",
            16,
            "store 0; as 0 VARVE_FSCK_REPAIR=1 $V fsck $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "repair without data by variable",
            16,
            "store 0; as 0 VARVE_FSCK_WITHOUT_DATA=1 $V fsck --repair $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "format by file",
            2,
            "store 0; put 0 600 $D/c.toml '[format]\\nforce = 2\\n'; as 0 $V --config $D/c.toml format $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "format by a file of the home",
            2,
            "store 0; put 0 600 $D/.config/varve/config.toml '[format]\\nforce = 2\\n'; as 0 HOME=$D $V format $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "load by file",
            2,
            "store 0; put 0 600 $D/c.toml '[load]\\nforce = true\\n'; as 0 VARVE_CONFIG=$D/c.toml $V load - $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "umount by file",
            2,
            "store 0; put 0 600 $D/c.toml '[umount]\\nforce = false\\n'; as 0 $V --config $D/c.toml umount $D; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "repair by file",
            16,
            "store 0; put 0 600 $D/c.toml '[fsck]\\nrepair = true\\n'; as 0 $V --config $D/c.toml fsck $S; CODE=$?; [ $CODE = 2 ] && CODE=16; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        refused(
            "without data by file",
            2,
            "store 0; put 0 600 $D/c.toml '[fsck]\\nwithout-data = true\\n'; as 0 $V --config $D/c.toml status $S; CODE=$?; as 0 $V fsck $S >/dev/null && echo still a volume; exit $CODE",
        ),
        Case {
            name: "another commands variable",
            script: "store 0; as 0 VARVE_FORMAT_FORCE=2 $V status $S",
            code: 0,
            says: &["volume"],
            never: &["command line alone"],
        },
        Case {
            name: "the command line",
            script: "store 0; as 0 $V format --force --force $S && as 0 $V fsck $S",
            code: 0,
            says: &["is sound"],
            never: &[],
        },
    ]);
}
