//! A share of a run, written by a pipeline of its own and reported to the writer that commits the file.

use super::common::{self, frames};
use super::{WAIT, quiet, settings, tell};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use varve_detector::description::Description;
use varve_detector::frame::{Frame, Payload};
use varve_detector::hdf5::ElementType;
use varve_detector::journal::{self, Entry};
use varve_detector::writer::join::{Coordinator, Joined};
use varve_detector::writer::{Settings, Writer};

/// Without a network between them.
struct Direct(Arc<Writer>);

impl Coordinator for Direct {
    fn extent(&self, bytes: u64) -> io::Result<Range<u64>> {
        self.0.grant(bytes)
    }

    fn report(&self, entries: Vec<Entry>) -> io::Result<()> {
        self.0.report(entries).map_err(io::Error::other)
    }
}

/// A slab that went to the file before it was whole is reported twice, and its frames are counted once.
#[test]
fn frames_of_a_share_are_counted_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("run.h5");
    let mut description = Description::new(ElementType::U16, vec![6, 5]);
    description.chunk = Some(vec![4, 6, 5]);
    description.fill = Some(9.0.into());
    description.scalars = vec!["energy".into()];
    let writer = Arc::new(Writer::create(&path, description.clone(), settings(), quiet()).expect("a run started"));
    // Without room for a second frame a slab is given out as it is.
    let settings = Settings { queue_bytes: 1, ..settings() };
    let coordinator = Arc::new(Direct(Arc::clone(&writer)));
    let joined = Joined::join(&path, description.clone(), settings, (1, coordinator), quiet()).expect("joined");
    let numbers: Vec<u64> = (0..16).collect();
    let each = |numbers: &mut dyn Iterator<Item = u64>| {
        for number in numbers {
            let payload = Payload::Plain(frames::frame(number, 30));
            joined.submit(Frame { number, taken: 0, payload }, WAIT).expect("a frame taken");
        }
        let deadline = std::time::Instant::now() + WAIT;
        while joined.progress().written < joined.progress().taken.saturating_sub(1) {
            assert!(std::time::Instant::now() < deadline, "{:?}", joined.progress());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    for offset in 0..4 {
        each(&mut numbers.iter().copied().filter(|number| number % 4 == offset));
    }
    joined.scalars(3, vec![(0, 30.0)]).expect("a value of a column");
    joined.keep_scalars().expect("reported");
    let read = journal::read(&journal::path_beside(&path)).expect("a journal");
    assert!(read.entries.iter().any(|entry| matches!(entry, Entry::Scalars { frame: 3, .. })));
    let observed = joined.observer();
    joined.leave().expect("all is reported");
    assert_eq!((observed().taken, observed().written), (16, 16));
    assert_eq!((writer.progress().taken, writer.progress().written), (16, 16));
    let writer = Arc::into_inner(writer).expect("nobody else has it");
    let counts = writer.finish().expect("a run finished").counts;
    assert_eq!((counts.received + counts.late, counts.missing), (16, 0), "{counts:?}");
    description.scalars.clear();
    tell(directory.path(), "run", &description, &numbers, true);
    assert_eq!(common::python("frames.py", &[directory.path()]).trim(), "1");
}
