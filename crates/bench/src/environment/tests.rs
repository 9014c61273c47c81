//! Promises of the environment: it reads the kernel's tables as they are written.

use super::machine::{CpuTimes, is_reporting_balloon, rfc3339};
use super::{Environment, TargetEnvironment, mount_of, mounts};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use varve_env::mount_table;

const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
31 22 7:0 / /mnt/a\\040b rw,noatime shared:5 - xfs /dev/loop0 rw,attr2\n\
32 22 0:50 / /mnt/v rw,nosuid - fuse.varve /stores/v rw,user_id=0\n\
33 32 0:51 / /mnt/v rw - tmpfs tmpfs rw\n";

#[test]
fn deepest_latest_mount_contains_path() {
    let table = mount_table::parse(TABLE);
    let find = |path: &str| mounts::find(&table, Path::new(path)).unwrap();
    let ab = find("/mnt/a b/c");
    assert_eq!(
        (ab.mount_point.as_str(), ab.filesystem.as_str(), ab.source.as_str()),
        ("/mnt/a b", "xfs", "/dev/loop0")
    );
    assert_eq!(ab.options, "rw,noatime,attr2");
    assert_eq!(find("/mnt/v").filesystem, "tmpfs");
    assert_eq!(find("/mnt/vv").filesystem, "ext4");
    assert_eq!(find("/").filesystem, "ext4");
    assert_eq!(mounts::find(&[], Path::new("/")), None);
}

#[test]
fn machine_description_is_complete() {
    assert_eq!(mount_of(Path::new("/proc/self")).unwrap().filesystem, "proc");
    let environment = Environment::gather(&[]).unwrap().finished();
    assert!(environment.cpus > 0 && environment.memory_bytes > 1 << 20);
    assert!(environment.kernel.starts_with("Linux "), "{}", environment.kernel);
}

#[test]
fn cpu_times_become_shares() {
    let before = CpuTimes::parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
    let after = CpuTimes::parse("cpu  40 0 20 130 0 0 0 10 0 0\n").unwrap();
    assert!((after.busy_since(&before) - 0.5).abs() < 1e-9);
    assert!((after.stolen_since(&before) - 0.1).abs() < 1e-9);
    assert_eq!(before.busy_since(&before), 0.0);
    assert_eq!(CpuTimes::parse("intr 5"), None);
}

#[test]
fn days_convert_to_civil_dates() {
    let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!(at(0), "1970-01-01T00:00:00Z");
    assert_eq!(at(951_827_696), "2000-02-29T12:34:56Z");
    assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
}

#[test]
fn ext4_without_journal_is_warned_about() {
    let target =
        TargetEnvironment { via: "path".into(), target: "/x".into(), journal: Some(false), ..Default::default() };
    let environment = Environment { targets: vec![target], ..Environment::default() };
    assert!(environment.warnings().iter().any(|w| w.contains("path:/x is on an ext4 without a journal")));
    let good = Environment::default();
    assert!(good.warnings().iter().all(|w| !w.contains("ext4")));
}

#[test]
fn memory_ballooning_is_warned_about() {
    assert!(is_reporting_balloon("0x0005", "0110010100000000"));
    assert!(!is_reporting_balloon("0x0005", "0110000100000000"));
    assert!(!is_reporting_balloon("0x0005", ""));
    assert!(!is_reporting_balloon("0x0002", "0110010100000000"));
    let environment = Environment { memory_taken_back: true, ..Environment::default() };
    assert!(environment.warnings().iter().any(|warning| warning.contains("reclaims free memory")));
}
