//! Several servers on a store without free space.

use super::common::disk::Disk;
use super::common::{SHORT, Volume, until};
use super::{TAKEOVER, await_shares};
use std::time::Duration;

/// Longer than the lease of 2 s: renewals that need space would have failed by then.
const OUTLASTS_LEASE: Duration = Duration::from_secs(4);

/// Promise: on a full store several servers keep their leases, and a removal through a mount frees space.
#[test]
fn removal_frees_space_of_a_full_store() {
    let Some(disk) = Disk::make("64M") else { return };
    let volume = Volume::format_in(&disk.path(), &["--shards", "4", "--inline-limit", "4KiB"]);
    let one = volume.join("one.log", &[]);
    let other = volume.join("other.log", &[]);
    await_shares(&volume, &[(one.pid(), 2), (other.pid(), 2)]);
    let mount = volume.mount(&["-o", "noembedded"]);
    let file = |number: u32| mount.directory.join(format!("file-{number}"));
    let write = |number: u32| std::fs::write(file(number), vec![1; 300_000]);
    (0..20).for_each(|number| write(number).expect("there is room"));
    disk.fill();
    std::thread::sleep(OUTLASTS_LEASE);
    // Only the volume fills what merges freed meanwhile: others would take the reserve, once a server has released it.
    let full = (100..1000).find_map(|number| write(number).err()).expect("the store is full");
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    let free = || rustix::fs::statvfs(disk.path()).expect("a disk answers").f_bavail;
    (0..20).for_each(|number| std::fs::remove_file(file(number)).expect("a removal needs no space"));
    until("the removals free space", SHORT, || free() > 0);
    for server in [&one, &other] {
        let log = server.log();
        // A busy machine makes a renewal late; only a failed one is the full store's fault.
        assert!(!log.contains("cannot renew its lease"), "{log}");
    }
    disk.give_room();
    until("the store takes writes again", TAKEOVER, || write(1000).is_ok());
    mount.unmount();
    one.stop();
    other.stop();
    volume.expect_sound();
}
