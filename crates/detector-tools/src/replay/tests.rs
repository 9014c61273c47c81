use super::*;
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Structure};
use varve_detector_dataset::frame::{Frame, Payload};
use varve_detector_writer::{Settings, Writer};

fn pixels(number: u64) -> Vec<u8> {
    (0..30 * 20_u64).flat_map(|at| ((at * number) as u16 % 50).to_le_bytes()).collect()
}

#[test]
fn own_files_replay_with_any_filter() {
    let directory = tempfile::tempdir().unwrap();
    for (filter, structure) in [
        ("bslz4", Structure::Nexus),
        ("bszstd:1", Structure::Raw),
        ("lz4", Structure::Raw),
        ("zstd:1", Structure::Raw),
        ("shuffle+gzip:1", Structure::Raw),
        ("raw", Structure::Nexus),
    ] {
        let path = directory.path().join(filter);
        let mut description = DatasetSpec::new(ElementType::U16, vec![30, 20]);
        description.scan = vec![Some(2), Some(3)];
        description.filter = filter.parse().unwrap();
        description.structure = structure;
        let writer = Writer::create(&path, description, Settings::default(), Arc::new(())).unwrap();
        for number in 0..6 {
            let payload = Payload::Plain(pixels(number));
            writer.submit(Frame { number, taken: 0, payload }, Duration::from_secs(60)).unwrap();
        }
        writer.finish().unwrap();
        let replay = FrameReplay::open(&path, None).unwrap_or_else(|error| panic!("{filter}: {error}"));
        assert_eq!(
            (replay.element, &replay.frame[..], replay.frames),
            (ElementType::U16, &[30, 20][..], 6),
            "{filter}"
        );
        let mut bytes = Vec::new();
        for number in [0, 5, 3, 7] {
            replay.frame_into(number, &mut bytes).unwrap();
            assert_eq!(bytes, pixels(number % 6), "{filter}: frame {number}");
        }
    }
}

#[test]
fn a_directory_of_cbf_files_is_replayed_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let empty = FrameReplay::open(directory.path(), None).err().unwrap().to_string();
    assert!(empty.contains("no .cbf files"), "{empty}");
    for number in [2, 0, 1] {
        let image = cbf::CbfImage { width: 20, height: 30, element: ElementType::U16, pixels: pixels(number) };
        let file = image.encode("run", &[]).unwrap();
        std::fs::write(directory.path().join(format!("run_{number:05}.cbf")), file).unwrap();
    }
    let replay = FrameReplay::open(directory.path(), None).unwrap();
    assert_eq!((replay.frames, &replay.frame[..]), (3, &[30, 20][..]));
    let mut bytes = Vec::new();
    replay.frame_into(4, &mut bytes).unwrap();
    assert_eq!(bytes, pixels(1));
    std::fs::write(directory.path().join("run_00001.cbf"), "###CBF: nothing").unwrap();
    let error = replay.frame_into(1, &mut bytes).unwrap_err().to_string();
    assert!(error.contains("run_00001.cbf") && error.contains("no pixels follow"), "{error}");
}

#[test]
fn file_without_frames_is_refused_with_advice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("text");
    std::fs::write(&path, "no HDF5").unwrap();
    assert!(FrameReplay::open(&path, None).is_err());
    assert!(FrameReplay::open(&directory.path().join("absent"), None).is_err());
}
