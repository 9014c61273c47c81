//! Properties that a file system reports: type, block size and, where it has one, stripe.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use varve_detector_dataset::advice::Store;

/// `f_type` of statfs(2), from `linux/magic.h` and the file systems' own headers.
const NAMES: [(u64, &str); 21] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (LUSTRE, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x00c3_6400, "ceph"),
    (BEEGFS, "beegfs"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
];
const LUSTRE: u64 = 0x0bd0_0bd0;
const BEEGFS: u64 = 0x1983_0326;

/// Queries the file system of an open file.
///
/// # Errors
/// If `fstatfs` or `fstat` fails.
pub fn look(file: &File) -> io::Result<Store> {
    let reported = rustix::fs::fstatfs(file)?;
    let kind = reported.f_type as u64 & 0xffff_ffff;
    let name = NAMES.iter().find(|(magic, _)| *magic == kind).map(|(_, name)| (*name).to_owned());
    let (stripe_bytes, stripe_count) = match kind {
        LUSTRE => lustre(file),
        BEEGFS => beegfs(file),
        _ => ceph(file),
    }
    .unzip();
    Ok(Store {
        file_system: name.unwrap_or_else(|| format!("{kind:#x}")),
        // GPFS reports its block size here, which is also its stripe size.
        block_bytes: file.metadata()?.blksize().max(1),
        stripe_bytes: stripe_bytes.filter(|bytes| *bytes > 0),
        stripe_count,
    })
}

/// Free bytes in a directory's file system.
pub fn room(directory: &Path) -> io::Result<u64> {
    let reported = rustix::fs::statvfs(directory)?;
    Ok(reported.f_bavail.saturating_mul(reported.f_frsize))
}

fn attribute(file: &File, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    let length = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

fn lustre(file: &File) -> Option<(u64, u64)> {
    lustre_layout(&attribute(file, "lustre.lov")?)
}

/// Parses `struct lov_user_md` of `lustre_user.h`: magic (4), pattern (4), object (16), stripe size (4), stripe count
/// (2). A composite layout instead has entries (48 bytes each from byte 32 on), with the offset of such a structure at
/// byte 24 of the entry.
pub(super) fn lustre_layout(bytes: &[u8]) -> Option<(u64, u64)> {
    const PLAIN: [u32; 2] = [0x0bd1_0bd0, 0x0bd3_0bd0];
    const COMPOSITE: u32 = 0x0bd6_0bd0;
    const ENTRIES_AT: usize = 32;
    const ENTRY_BYTES: usize = 48;
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?));
    let at = match word(0)? {
        magic if PLAIN.contains(&magic) => 0,
        COMPOSITE => {
            // The last component is the one of large files.
            let last = usize::from(half(14)?).checked_sub(1)?;
            word(ENTRIES_AT + last * ENTRY_BYTES + 24)? as usize
        }
        _ => return None,
    };
    PLAIN.contains(&word(at)?).then_some(())?;
    Some((word(at + 24)?.into(), half(at + 28)?.into()))
}

/// CephFS, mounted by its kernel client or by FUSE. Other file systems do not have these attributes.
fn ceph(file: &File) -> Option<(u64, u64)> {
    let number = |name| String::from_utf8(attribute(file, name)?).ok()?.trim().parse().ok();
    Some((number("ceph.file.layout.stripe_unit")?, number("ceph.file.layout.stripe_count")?))
}

/// `BEEGFS_IOC_GET_STRIPEINFO` of BeeGFS's client headers.
fn beegfs(file: &File) -> Option<(u64, u64)> {
    #[repr(C)]
    struct Striping {
        pattern: u32,
        chunk_bytes: u32,
        targets: u16,
    }
    const OPCODE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<Striping>(b'f', 25);
    // SAFETY: the ioctl fills a structure of this layout, and the caller has checked that the file system is BeeGFS.
    let asked = unsafe { rustix::ioctl::ioctl(file.as_fd(), rustix::ioctl::Getter::<OPCODE, Striping>::new()) };
    let striping: Striping = asked.ok()?;
    Some((striping.chunk_bytes.into(), striping.targets.into()))
}
