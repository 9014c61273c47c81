//! Starts writeback of large files that are written sequentially while they are being written, instead of all at once
//! at the sync or when the kernel is short of memory: writer and disk then work in parallel. Data in writeback is no
//! more durable than other data: only fsync waits for it.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use varve_env::disk::File;

/// Sequentially written bytes per window: enough for the disk to take them in large pieces. Smaller files, which may
/// not live long, are left to the kernel.
const WINDOW: u64 = 8 * 1024 * 1024;

/// Windows in the queue. If the disk is slower than the writers, the kernel writes the rest back.
const WINDOWS_MAX: usize = 16;

/// The extent of a file that was written without a gap.
#[derive(Debug, Default)]
pub(crate) struct SequentialRun {
    /// Start of the bytes whose writeback was not started.
    from: u64,
    end: u64,
}

impl SequentialRun {
    /// Records a write of `len` bytes at `offset`. Returns a full window as offset and length.
    pub fn wrote(&mut self, offset: u64, len: u64) -> Option<(u64, u64)> {
        if offset != self.end {
            self.from = offset;
        }
        self.end = offset + len;
        let window = (self.from, self.end - self.from);
        (window.1 >= WINDOW).then(|| {
            self.from = self.end;
            window
        })
    }
}

#[derive(Default)]
struct WriteBehindQueue {
    windows: VecDeque<(Arc<File>, u64, u64)>,
    /// A thread serves the queue.
    attended: bool,
    stopped: bool,
}

#[derive(Default)]
struct WriteBehindShared {
    queue: Mutex<WriteBehindQueue>,
    changed: Condvar,
}

/// Starts writeback of windows, on a thread that is spawned for the first one.
#[derive(Default)]
pub(crate) struct WriteBehind(Arc<WriteBehindShared>);

impl WriteBehind {
    pub fn hand_over(&self, file: &Arc<File>, (offset, len): (u64, u64)) {
        let mut queue = self.0.queue.lock();
        if queue.stopped || queue.windows.len() >= WINDOWS_MAX {
            return;
        }
        if !queue.attended {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("varve-write-behind".into());
            if let Err(error) = thread.spawn(move || attend(&shared)) {
                return tracing::debug!(%error, "nothing is written behind");
            }
            queue.attended = true;
        }
        queue.windows.push_back((Arc::clone(file), offset, len));
        self.0.changed.notify_one();
    }
}

impl Drop for WriteBehind {
    fn drop(&mut self) {
        self.0.queue.lock().stopped = true;
        self.0.changed.notify_one();
    }
}

fn attend(shared: &WriteBehindShared) {
    loop {
        let (file, offset, len) = {
            let mut queue = shared.queue.lock();
            loop {
                if queue.stopped {
                    return;
                }
                if let Some(window) = queue.windows.pop_front() {
                    break window;
                }
                shared.changed.wait(&mut queue);
            }
        };
        // The kernel reports the error to the caller that syncs the file.
        if let Err(error) = file.begin_writing(offset, len) {
            tracing::debug!(%error, "cannot start writeback of a window");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// Promise: windows follow each other without gap or overlap while the writes do; a jump starts a new window.
    #[test]
    fn write_back_windows_follow_sequential_writes() {
        let mut stream = SequentialRun::default();
        let full: Vec<_> = (0..20).filter_map(|at| stream.wrote(at * MIB, MIB)).collect();
        assert_eq!(full, [(0, 8 * MIB), (8 * MIB, 8 * MIB)]);
        assert_eq!(stream.wrote(100 * MIB, MIB), None);
        let full: Vec<_> = (101..110).filter_map(|at| stream.wrote(at * MIB, MIB)).collect();
        assert_eq!(full, [(100 * MIB, 8 * MIB)]);
        assert_eq!(stream.wrote(0, 4096), None);
    }
}
