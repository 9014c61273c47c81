//! A disk that fills up at any point of a commit.

use super::common::{self, frames};
use super::shares::Direct;
use super::{WAIT, settings};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector_dataset::dataset_spec::{DatasetSpec, ScalarColumn, ScalarKind};
use varve_detector_dataset::frame::{AckLevel, Frame, Payload};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::join::{Coordinator, Joined};
use varve_detector_writer::{Settings, WriteError, Writer, WriterProgress};

/// A file system of a few MiB, mounted until this is dropped.
pub(super) struct SmallStore<'a>(&'a Path);

impl SmallStore<'_> {
    /// `None` if this user may not mount.
    fn mount(at: &Path, kib: u64) -> Option<SmallStore<'_>> {
        std::fs::create_dir_all(at).expect("a mount point");
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "varve-test"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(SmallStore(at))
    }

    /// An ext4 file system in a file.
    pub(super) fn mount_image<'a>(at: &'a Path, image: &Path, mib: u64) -> Option<SmallStore<'a>> {
        std::fs::create_dir_all(at).expect("a mount point");
        std::fs::File::create(image).and_then(|file| file.set_len(mib << 20)).expect("an image");
        let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let mounted = succeeds(Command::new("mkfs.ext4").arg("-q").arg(image))
            && succeeds(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        mounted.then_some(SmallStore(at))
    }
}

impl Drop for SmallStore<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} stays mounted", self.0.display());
    }
}

/// The seed of this test run; `VARVE_SEED` repeats another one.
fn seed() -> u64 {
    let given = std::env::var("VARVE_SEED").map(|seed| seed.parse().expect("VARVE_SEED is a number"));
    let seed = given.unwrap_or_else(|_| u64::from(std::process::id()));
    println!("VARVE_SEED={seed}");
    seed
}

/// Issue 5: a full disk gives a clear error, and a valid file with all frames so far, wherever in a commit, a stripe or
/// the journal the disk fills up.
#[test]
fn a_full_disk_keeps_every_frame_so_far() {
    let seed = seed();
    let (sizes, seldom) = ([3000, 4500, 6000, 12_000], Duration::from_secs(3600));
    for (kib, commit_interval) in sizes.into_iter().flat_map(|kib| [(kib, seldom), (kib, Duration::from_millis(2))]) {
        let settings = Settings { commit_interval, stripe_bytes: 256 << 10, ..settings() };
        // The seed changes the point at which the disk fills up.
        if !fills_a_disk(kib + seed % 64 * 4, settings) {
            return;
        }
    }
}

/// The disk has space for a frame's bytes, but not for its index entry. This does not prevent the publication of frames
/// acknowledged before. Here it is frame 257, with which the index is expected to grow.
#[test]
fn frame_without_space_does_not_affect_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = directory.path().join("small");
    let Some(_store) = SmallStore::mount(&small, 1024) else { return };
    let (path, frames) = (small.join("full.h5"), 0..256_u64);
    let mut description = DatasetSpec::new(ElementType::U16, vec![8, 8]);
    (description.filter, description.fill) = ("raw".parse().expect("a filter's name"), Some(2.0.into()));
    let settings = Settings { threads: 1, commit_interval: Duration::from_secs(3600), ..settings() };
    let writer = Writer::create(&path, description.clone(), settings, super::quiet()).expect("a run started");
    let submit = |number| {
        let payload = Payload::Plain(frames::frame(number, 8 * 8));
        writer.submit(Frame { number, taken: 0, payload }, WAIT)
    };
    // Frames are written one by one, because the remaining space depends on how many are entered at once.
    for number in frames.clone() {
        submit(number).expect("there is room");
        until(&writer, |progress| {
            assert_eq!(progress.failure, None);
            progress.written == number + 1
        });
    }
    // The remaining space suffices for the frame and its journal record, and for nothing else.
    let mut stuffing = std::fs::File::create(small.join("stuffing")).expect("a file");
    let full = (0..1024).find_map(|_| stuffing.write_all(&[1; 4096]).err()).expect("it is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    stuffing.set_len(stuffing.metadata().expect("its length").len() - 8192).expect("cut");
    submit(frames.end).expect("it is taken");
    until(&writer, |progress| progress.failure.is_some());
    let column = ScalarColumn { name: "late".into(), kind: ScalarKind::Float };
    assert!(matches!(writer.column(column), Err(WriteError::Failed(_))), "a failed run has new columns");
    let error = writer.finish().expect_err("the run has failed").to_string();
    assert!(error.contains("No space left"), "{error}");
    has_all(directory.path(), &path, &description.frame, frames.clone().collect());
    // Its own bytes and its journal record had space. Recovery takes it from the journal once there is space for
    // everything.
    stuffing.set_len(0).expect("room");
    let recovered = varve_detector_file::recover::recover(&path).expect("recovered");
    assert_eq!(recovered.counts.received, frames.end + 1);
}

/// A run without space at its very start leaves no files, and starts when there is space.
#[test]
fn failed_start_leaves_no_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = directory.path().join("small");
    let Some(_store) = SmallStore::mount(&small, 64) else { return };
    let stuffing = small.join("stuffing");
    let _full = std::fs::write(&stuffing, vec![1; 1 << 20]).expect_err("it is full");
    let path = small.join("run.h5");
    let description = DatasetSpec::new(ElementType::U16, vec![4, 4]);
    let refused = Writer::create(&path, description.clone(), settings(), super::quiet()).err().expect("no room");
    assert!(refused.is_full_store() && refused.to_string().contains("No space left"), "{refused}");
    let left: Vec<_> =
        std::fs::read_dir(&small).expect("the store").map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(left, std::slice::from_ref(&stuffing));
    std::fs::remove_file(&stuffing).expect("room");
    Writer::create(&path, description, settings(), super::quiet()).expect("started").finish().expect("finished");
}

/// Promise: frames that joined processes wrote before the disk filled up are reported after that, and the file has
/// them.
#[test]
fn written_frames_are_reported_on_a_full_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let small = directory.path().join("small");
    let Some(_store) = SmallStore::mount(&small, 6000) else { return };
    let (path, reserve) = (small.join("run.h5"), small.join("reserve"));
    std::fs::write(&reserve, vec![1; 256 << 10]).expect("what the service keeps back");
    let mut description = DatasetSpec::new(ElementType::U16, vec![128, 128]);
    description.fill = Some(2.0.into());
    let settings = Settings { commit_interval: Duration::from_secs(3600), pressing_bytes: u64::MAX, ..settings() };
    let writer = Writer::create(&path, description.clone(), settings.clone(), super::quiet()).expect("a run started");
    let writer = Arc::new(writer);
    let joined = [1, 2].map(|epoch| {
        let coordinator = Arc::new(Direct(Arc::clone(&writer)));
        let joined = (epoch, coordinator as Arc<dyn Coordinator>);
        Joined::join(&path, description.clone(), settings.clone(), joined, super::quiet()).expect("joined")
    });
    let mut frames = 0..10_000;
    let failed = frames.find_map(|number| {
        let payload = Payload::Plain(frames::frame(number, 128 * 128));
        joined[number as usize % 2].submit(Frame { number, taken: 0, payload }, WAIT).err()
    });
    assert!(matches!(failed, Some(WriteError::Failed(_))), "{failed:?}");
    assert_eq!(writer.progress().written, 0, "nothing was told of before");
    // At least one of them cannot write, and reports it. Both report the frames they have written.
    let left =
        joined.map(|joined| (joined.progress().stored_bytes, joined.leave().err().map(|error| error.to_string())));
    let reported = |reported: &str| left.iter().flat_map(|(_, error)| error).any(|error| error.contains(reported));
    assert!(reported("free space there"), "{left:?}");
    drop(Arc::into_inner(writer).expect("nobody else has it"));
    std::fs::remove_file(&reserve).expect("given up");
    let recovered = varve_detector_file::recover::recover(&path).expect("recovered");
    let frames = recovered.counts.received + recovered.counts.late;
    assert!(frames > 60, "{frames} frames of {left:?}");
}

fn until(writer: &Writer, done: impl Fn(&WriterProgress) -> bool) {
    let deadline = Instant::now() + WAIT;
    while !done(&writer.progress()) {
        assert!(Instant::now() < deadline, "{:?}", writer.progress());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes frames until a disk of `kib` KiB is full, and reads them; `false` if this user may not mount.
fn fills_a_disk(kib: u64, settings: Settings) -> bool {
    let directory = tempfile::tempdir().expect("a directory");
    let small = directory.path().join("small");
    let Some(_store) = SmallStore::mount(&small, kib) else { return false };
    let path = small.join("full.h5");
    let mut description = DatasetSpec::new(ElementType::U16, vec![128, 128]);
    description.filter = "raw".parse().expect("a filter's name");
    description.fill = Some(2.0.into());
    // A frame of 32 KiB may get a commit of its own, which takes at least the same space again.
    let often = settings.commit_interval < Duration::from_secs(1);
    let least = kib / if often { 128 } else { 64 };
    let written = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&written);
    let acknowledge = Arc::new(move |level: AckLevel, numbers: &[u64]| {
        if level == AckLevel::Written {
            noted.lock().expect("not poisoned").extend_from_slice(numbers);
        }
    });
    let writer = Writer::create(&path, description.clone(), settings, acknowledge).expect("a run started");
    let failure = (0..10_000).find_map(|number| {
        let payload = Payload::Plain(frames::frame(number, 128 * 128));
        writer.submit(Frame { number, taken: 0, payload }, WAIT).err()
    });
    assert!(matches!(failure, Some(WriteError::Failed(_))), "{failure:?}");
    let error = writer.finish().expect_err("the run has failed").to_string();
    assert!(error.contains("No space left") && error.contains("free space there"), "{error}");
    let acknowledged = written.lock().expect("not poisoned").clone();
    assert!(acknowledged.len() as u64 > least, "{} frames were written on {kib} KiB", acknowledged.len());
    has_all(directory.path(), &path, &description.frame, acknowledged);
    true
}

/// Checks that the file opens as it is, with the disk still full, and has all frames written before.
fn has_all(directory: &Path, path: &Path, frame: &[u64], mut acknowledged: Vec<u64>) {
    acknowledged.sort_unstable();
    let reported = json!({"frame": frame, "fill": 2, "acknowledged": acknowledged, "exact": false});
    let full = directory.join("read");
    std::fs::create_dir(&full).expect("a directory");
    std::os::unix::fs::symlink(path, full.join("full.h5")).expect("a link");
    std::fs::write(full.join("full.json"), reported.to_string()).expect("the description written");
    assert_eq!(common::python("frames.py", &[&full]).trim(), "1");
}
