//! Independent readers read back files made from random shapes, chunks, filters and losses, with equal content.

mod common;
#[path = "common/third.rs"]
mod third;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::superblock::{self, Superblock};
use varve_detector_hdf5::{
    Attribute, ChunkMap, ChunkRecord, Dataset, Datatype, ElementType, FileImage, Grid, Group, IndexKind, Storage,
    TreeNode, Value, tree,
};

#[derive(Clone, Debug)]
struct Case {
    dims: Vec<u64>,
    unlimited: Vec<bool>,
    /// By how much a limited dimension may still grow.
    slack: u64,
    chunk: Vec<u64>,
    element: ElementType,
    filter: Filter,
    fill: bool,
    /// Chunks missing, in percent.
    dropped: u64,
    seed: u64,
}

fn filter() -> impl Strategy<Value = Filter> {
    let names = ["raw", "gzip:1", "shuffle+gzip:4", "lz4", "zstd:1", "shuffle+zstd:3", "bslz4", "bszstd:1"];
    prop::sample::select(names.to_vec()).prop_map(|name| name.parse().expect("a filter's name"))
}

fn case() -> impl Strategy<Value = Case> {
    let side = (1_u64..9, 1_u64..5, any::<bool>());
    let shape = prop::sample::select(vec![1_usize, 2, 3, 5])
        .prop_flat_map(move |rank| prop::collection::vec(side.clone(), rank));
    let rest =
        (0_u64..4, prop::sample::select(ElementType::ALL.to_vec()), filter(), any::<bool>(), 0_u64..100, any::<u64>());
    (shape, rest).prop_map(|(sides, (slack, element, filter, fill, dropped, seed))| Case {
        dims: sides.iter().map(|side| side.0).collect(),
        unlimited: sides.iter().map(|side| side.2).collect(),
        slack,
        // A chunk is not larger than the maximum size of the dataset: the library neither makes nor copies such a file.
        chunk: sides.iter().map(|side| if side.2 { side.1 } else { side.1.min(side.0 + slack) }).collect(),
        element,
        filter,
        fill,
        dropped,
        seed,
    })
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// All index tuples below `counts`, in row-major order.
fn tuples(counts: &[u64]) -> impl Iterator<Item = Vec<u64>> + '_ {
    (0..counts.iter().product::<u64>()).map(move |mut number| {
        let mut tuple = vec![0; counts.len()];
        for (place, count) in tuple.iter_mut().zip(counts).rev() {
            *place = number % count;
            number /= count;
        }
        tuple
    })
}

/// Copies the part of the chunk at `coordinates` that lies within the dataset into the plain elements.
fn place(plain: &mut [u8], case: &Case, coordinates: &[u64], chunk: &[u8]) {
    let size = case.element.size();
    for (number, inside) in tuples(&case.chunk).enumerate() {
        let at: Vec<u64> = (0..inside.len()).map(|d| coordinates[d] * case.chunk[d] + inside[d]).collect();
        if at.iter().zip(&case.dims).all(|(at, dim)| at < dim) {
            let offset = at.iter().zip(&case.dims).fold(0, |offset, (at, dim)| offset * dim + at) as usize * size;
            plain[offset..offset + size].copy_from_slice(&chunk[number * size..(number + 1) * size]);
        }
    }
}

fn write(directory: &Path, name: &str, case: &Case) {
    let size = case.element.size();
    let max = case.dims.iter().zip(&case.unlimited).map(|(dim, open)| (!open).then_some(dim + case.slack)).collect();
    let grid = Grid::new(case.dims.clone(), max, case.chunk.clone(), size);
    let mut chunks = ChunkMap::new(grid, !case.filter.is_raw());
    let fill: Option<Vec<u8>> = case.fill.then(|| (0..size as u8).map(|byte| byte + 7).collect());
    let elements = case.dims.iter().product::<u64>() as usize;
    let mut plain = fill.clone().unwrap_or_else(|| vec![0; size]).repeat(elements);
    let mut file = vec![0; superblock::LENGTH];
    let mut encoder = Encoder::new(case.filter, size).expect("an encoder");
    let mut state = case.seed;
    let counts: Vec<u64> = case.dims.iter().zip(&case.chunk).map(|(dim, chunk)| dim.div_ceil(*chunk)).collect();
    for coordinates in tuples(&counts) {
        if next(&mut state) % 100 < case.dropped {
            continue;
        }
        // Values below 60 avoid exponents of all ones: a NaN differs from itself.
        let chunk: Vec<u8> = (0..chunks.grid().chunk_bytes()).map(|_| (next(&mut state) % 60) as u8).collect();
        place(&mut plain, case, &coordinates, &chunk);
        let address = file.len() as u64;
        encoder.encode(&chunk, &mut file).expect("a chunk compressed");
        chunks.set(&coordinates, ChunkRecord { address, size: file.len() as u64 - address, mask: 0 });
    }
    let bytes = encode(&chunks, case, fill, file);
    std::fs::write(directory.join(format!("{name}.h5")), bytes).expect("the file written");
    std::fs::write(directory.join(format!("{name}.raw")), plain).expect("the plain elements written");
    let kind = ["u", "i", "f"].into_iter().find(|kind| case.element.name().starts_with(kind)).expect("a kind");
    let expected = json!({"shape": case.dims, "dtype": format!("<{kind}{size}"), "chunks": chunks.count(), "case": format!("{case:?}"),
        "third": third_reader_knows(case)});
    std::fs::write(directory.join(format!("{name}.json")), expected.to_string()).expect("the description written");
}

fn encode(chunks: &ChunkMap, case: &Case, fill: Option<Vec<u8>>, mut file: Vec<u8>) -> Vec<u8> {
    let attribute = |name: &str, value| Attribute { name: name.into(), value };
    let storage = Storage::Chunked {
        datatype: Datatype::Number(case.element),
        chunks,
        kind: chunks.grid().index_kind(),
        filters: case.filter.messages(case.element.size(), chunks.grid().chunk_bytes()),
        fill,
    };
    let mut group = Group::default();
    group.attributes.push(attribute("text", Value::text("größer")));
    group.attributes.push(attribute("number", Value::integer(-7)));
    group.attributes.push(attribute("texts", Value::texts(&["", "ab", "c"])));
    // More attributes than the library itself would store in an object header, although it reads them there.
    group.attributes.extend((0..9).map(|number| attribute(&format!("more-{number}"), Value::integer(number))));
    group.members.push(("soft".into(), TreeNode::SoftLink("/data".into())));
    let mut root = Group::default();
    root.members.push(("data".into(), TreeNode::Dataset(Dataset { attributes: Vec::new(), storage })));
    root.members.push(("group".into(), TreeNode::Group(group)));
    root.members.push(("again".into(), TreeNode::HardLink("/data".into())));
    file.resize(file.len().next_multiple_of(8), 0);
    let mut image = FileImage::new(file.len() as u64);
    let root = tree::encode(&mut image, &root).expect("a tree without dead links");
    file.extend_from_slice(&image.into_bytes());
    let head = Superblock { root, end: file.len() as u64 }.encode();
    file[..superblock::LENGTH].copy_from_slice(&head);
    file
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(directory).expect("the directory read").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "h5")).collect()
}

fn reported(path: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(path.with_extension("json")).expect("the description");
    serde_json::from_str(&text).expect("JSON")
}

/// The third reader numbers the chunks of a fixed array by the dataset's present shape, not its maximum (HDF5 File
/// Format Specification 3.0, VII.C). It finds the wrong chunks if a side other than the slowest may grow. Runs have no
/// such side.
fn third_reader_knows(case: &Case) -> bool {
    let fixed = case.unlimited.iter().all(|unlimited| !unlimited);
    let grows = |side: usize| {
        let chunks = |dim: u64| dim.div_ceil(case.chunk[side]);
        chunks(case.dims[side]) != chunks(case.dims[side] + case.slack)
    };
    !fixed || !(1..case.dims.len()).any(grows)
}

/// The third reader finds the same elements, attributes and links. It runs before any other reader has opened the files
/// for appending.
fn third_reader(directory: &Path) {
    for path in files(directory) {
        let (case, reported) = (path.display(), reported(&path));
        if reported["third"] == false {
            continue;
        }
        let file = third::open(&path);
        for name in ["/data", "/again", "/group/soft"] {
            let data = file.dataset(name).unwrap_or_else(|error| panic!("{case}: {name}: {error}"));
            let read = data.read_raw_bytes().unwrap_or_else(|error| panic!("{case}: {name}: {error}"));
            let plain = std::fs::read(path.with_extension("raw")).expect("the plain elements");
            let differing: Vec<usize> = (0..plain.len()).filter(|at| read.get(*at) != Some(&plain[*at])).collect();
            assert!(
                read.len() == plain.len() && differing.is_empty(),
                "{case}: {name}: {} bytes differ from {:?} on: {reported}",
                differing.len(),
                differing.first()
            );
        }
        let group = file.group("/group").expect("the group");
        let text = group.attribute("text").and_then(|attribute| attribute.read_string()).expect("a text");
        assert_eq!(text, "größer", "{case}");
    }
}

/// Debian's tools list every file, copy it with other filters, and find the copy equal.
fn hdf5_tools(directory: &Path) {
    let copy = directory.join("copy");
    // HDF5 1.10 needs a long time for a hundred thousand chunks.
    for path in files(directory).iter().filter(|path| reported(path)["chunks"].as_u64() < Some(50_000)) {
        common::printed(Command::new("h5ls").arg("-rv").arg(path));
        common::printed(Command::new("h5dump").arg("-H").arg("-p").arg(path));
        for filter in ["NONE", "GZIP=1"] {
            let mut repack = Command::new("h5repack");
            common::printed(common::with_plugins(&mut repack).args(["-f", filter]).arg(path).arg(&copy));
            common::printed(common::with_plugins(&mut Command::new("h5diff")).arg(path).arg(&copy));
        }
    }
}

#[test]
fn random_shapes_drops_and_filters_are_read_back_equal() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let count = if std::env::var_os("VARVE_SOAK").is_some() { 5000 } else { 100 };
    for number in 0..count {
        let case = case().new_tree(&mut runner).expect("a case").current();
        write(directory.path(), &format!("case-{number:04}"), &case);
    }
    third_reader(directory.path());
    let checked = common::python("equal.py", &[directory.path()]);
    assert_eq!(checked.trim(), count.to_string());
    hdf5_tools(directory.path());
}

/// Covers the pages and levels of every index, where hand-written indexes fail.
#[test]
fn thousands_of_chunks_are_read_back_equal() {
    let directory = tempfile::tempdir().expect("a directory");
    // A hundred thousand chunks take minutes in an unoptimised build.
    let rows: &[(u64, u64)] = match std::env::var_os("VARVE_SOAK") {
        Some(_) => &[(1, 0), (1024, 0), (1025, 10), (4000, 97), (100_001, 3)],
        None => &[(1, 0), (1024, 0), (1025, 10), (4000, 97)],
    };
    for (name, unlimited) in [("fixed", [false, false]), ("extensible", [true, false]), ("tree", [true, true])] {
        for (rows, dropped) in rows {
            let filter = if *rows % 2 == 0 { "raw" } else { "lz4" }.parse().expect("a filter's name");
            let case = Case {
                dims: vec![*rows, 3],
                unlimited: unlimited.to_vec(),
                slack: if rows % 2 == 0 { 2000 } else { 0 },
                chunk: vec![1, 3],
                element: ElementType::U16,
                filter,
                fill: true,
                dropped: *dropped,
                seed: *rows,
            };
            write(directory.path(), &format!("{name}-{rows}"), &case);
        }
    }
    third_reader(directory.path());
    assert_eq!(common::python("equal.py", &[directory.path()]).trim(), (3 * rows.len()).to_string());
    hdf5_tools(directory.path());
}

/// A whole block of unfiltered chunks needs no index.
#[test]
fn implicit_index_is_read_back_equal() {
    let directory = tempfile::tempdir().expect("a directory");
    let case = Case {
        dims: vec![50, 4],
        unlimited: vec![false, false],
        slack: 0,
        chunk: vec![1, 4],
        element: ElementType::F32,
        filter: Filter::RAW,
        fill: false,
        dropped: 0,
        seed: 1,
    };
    write(directory.path(), "implicit", &case);
    // The same elements, located by the rule "base + number × bytes of a chunk".
    let plain = std::fs::read(directory.path().join("implicit.raw")).expect("the plain elements");
    let mut file = vec![0; 512];
    file.extend_from_slice(&plain);
    let grid = Grid::new(case.dims.clone(), vec![Some(50), Some(4)], case.chunk.clone(), 4);
    let chunks = ChunkMap::new(grid, false);
    let mut root = Group::default();
    let storage = Storage::Chunked {
        datatype: Datatype::Number(ElementType::F32),
        chunks: &chunks,
        kind: IndexKind::Implicit { base: 512 },
        filters: Vec::new(),
        fill: None,
    };
    let text = |name: &str, value| Attribute { name: name.into(), value };
    let attributes = vec![
        text("text", Value::text("größer")),
        text("number", Value::integer(-7)),
        text("texts", Value::texts(&["", "ab", "c"])),
    ];
    let group = Group { attributes, members: vec![("soft".into(), TreeNode::SoftLink("/data".into()))] };
    root.members.push(("data".into(), TreeNode::Dataset(Dataset { attributes: Vec::new(), storage })));
    root.members.push(("group".into(), TreeNode::Group(group)));
    root.members.push(("again".into(), TreeNode::HardLink("/data".into())));
    let mut image = FileImage::new(file.len() as u64);
    let root = tree::encode(&mut image, &root).expect("a tree without dead links");
    file.extend_from_slice(&image.into_bytes());
    let head = Superblock { root, end: file.len() as u64 }.encode();
    file[..superblock::LENGTH].copy_from_slice(&head);
    std::fs::write(directory.path().join("implicit.h5"), file).expect("the file written");
    third_reader(directory.path());
    assert_eq!(common::python("equal.py", &[directory.path()]).trim(), "1");
    hdf5_tools(directory.path());
}
