//! The memory limit of this process's control group.

use std::fs;
use std::path::{Path, PathBuf};

const UNIFIED: &str = "/sys/fs/cgroup";
const LEGACY: &str = "/sys/fs/cgroup/memory";

/// The smallest memory limit of the control groups of this process, in bytes. `None`: there is none, or it cannot be
/// read.
pub fn memory_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_in(&groups, &|path| fs::read_to_string(path).ok())
}

/// `groups`: the text of `/proc/self/cgroup`. `read`: reads a file.
fn limit_in(groups: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    groups.lines().filter_map(|line| limit_of(line, read)).min()
}

/// The smallest limit of one group and those around it. A line is `NUMBER:CONTROLLERS:PATH`; without controllers it is
/// that of the unified hierarchy.
fn limit_of(line: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => (UNIFIED, "memory.max"),
        some if some.split(',').any(|controller| controller == "memory") => (LEGACY, "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = PathBuf::from(root).join(path.trim_start_matches('/'));
    let around = group.ancestors().take_while(|directory| directory.starts_with(root));
    // "max" is no number, and neither hierarchy has a file at a root without a limit.
    around.filter_map(|directory| read(&directory.join(file))?.trim().parse::<u64>().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::limit_in;
    use std::path::Path;

    /// Promise: the smallest limit of a group and those around it counts, in both hierarchies.
    #[test]
    fn smallest_limit_of_the_groups_counts() {
        let read = |path: &Path| {
            let text = match path.to_str()? {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/a/memory.max" => "209715200\n",
                "/sys/fs/cgroup/memory.max" => "1073741824\n",
                "/sys/fs/cgroup/memory/job/memory.limit_in_bytes" => "104857600\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        assert_eq!(limit_in("0::/a/b\n", &read), Some(209_715_200));
        assert_eq!(limit_in("4:cpu,memory:/job\n1:name=systemd:/x\n", &read), Some(104_857_600));
        assert_eq!(limit_in("2:cpu:/a\n", &read), None);
        assert_eq!(limit_in("", &read), None);
    }
}
