//! Promises of the import: the outputs of each program give its figures under its name, and other texts are refused.

use super::*;
use crate::run_file::{marks, parameters};

const SAMPLES: [(&str, &str); 9] = [
    ("mdtest", include_str!("samples/mdtest-4.txt")),
    ("mdtest", include_str!("samples/mdtest-1.8.txt")),
    ("ior", include_str!("samples/ior-4.txt")),
    ("fio", include_str!("samples/fio.json")),
    ("elbencho", include_str!("samples/elbencho.csv")),
    ("elbencho", include_str!("samples/elbencho.json")),
    ("io500", include_str!("samples/io500-summary.txt")),
    ("iozone", include_str!("samples/iozone.txt")),
    ("h5perf", include_str!("samples/h5perf.txt")),
];

fn read(at: usize) -> Vec<RunEntry> {
    let (name, text) = SAMPLES[at];
    let format: ForeignFormat = name.parse().unwrap();
    assert_eq!(ForeignFormat::detect(text), Some(format));
    format.read(text, "lustre").unwrap()
}

fn named(entries: &[RunEntry]) -> Vec<(&str, Vec<f64>)> {
    entries.iter().map(|entry| (entry.metric.as_str(), entry.samples.clone())).collect()
}

#[test]
fn mdtest_summaries_of_old_and_new_versions_are_read() {
    let new = read(0);
    let wanted = [
        ("mkdir", vec![9000.0, 7000.0, 8000.0]),
        ("create", vec![1200.0, 1000.0, 1070.0]),
        ("stat", vec![50000.0, 40000.0, 45000.0]),
        ("delete", vec![3000.0, 2000.0, 2500.0]),
        ("tree creation", vec![100.0, 90.0, 95.0]),
    ];
    assert_eq!(named(&new), wanted);
    assert_eq!((new[1].clients(), new[1].number(parameters::FILE_BYTES)), (Some(4.0), Some(4096.0)));
    assert_eq!((new[1].tool.as_str(), new[1].target.as_str()), ("mdtest-4.1.0+dev", "lustre"));
    assert_eq!(new[1].parameters[parameters::LAYOUT], "unique");

    let old = read(1);
    assert_eq!(named(&old)[2], ("create", vec![151.5, 612.5, 1338.4]));
    assert!(old[2].is_marked(SUMMARY_ONLY) && old[2].number(parameters::FILES) == Some(39060.0));
}

#[test]
fn ior_iterations_are_turns() {
    let entries = read(2);
    assert_eq!(named(&entries), [("write", vec![580.0, 600.0]), ("read", vec![1201.51, 1101.51])]);
    assert_eq!(entries[0].number(parameters::FILE_BYTES), Some(f64::from(32 << 20)));
    assert_eq!((entries[0].clients(), entries[0].tool.as_str()), (Some(4.0), "ior-4.0.0"));
}

#[test]
fn fio_and_elbencho_results_are_read() {
    let fio = read(3);
    assert_eq!(named(&fio), [("write", vec![2000.0])]);
    assert_eq!(fio[0].latency_us.unwrap().p99, 74.24);
    assert_eq!((fio[0].clients(), fio[0].number(parameters::TRANSFER_BYTES)), (Some(2.0), Some(65536.0)));

    let csv = read(4);
    assert_eq!(named(&csv), [("mkdir", vec![1466.0]), ("write", vec![2941.0]), ("create", vec![10.0])]);
    assert_eq!((csv[0].clients(), csv[0].tool.as_str()), (Some(16.0), "elbencho-3.0-1"));
    assert_eq!(named(&read(5)), [("write", vec![10.0]), ("create", vec![10.0]), ("delete", vec![5000.0])]);
}

#[test]
fn io500_iozone_and_h5perf_results_are_read() {
    let io500 = read(6);
    let rates: Vec<f64> = io500.iter().map(RunEntry::median).collect();
    assert_eq!(rates, [2560.0, 15_300.0, 3_100.0, 900_100.0]);
    assert!(io500[2].is_marked(marks::PARTIAL) && !io500[0].is_marked(marks::PARTIAL));
    let iozone = [("write", vec![100.0]), ("rewrite", vec![200.0]), ("read", vec![400.0]), ("reread", vec![800.0])];
    assert_eq!(named(&read(7)), iozone);
    let h5perf = read(8);
    assert_eq!(h5perf.len(), 3);
    assert_eq!(named(&h5perf)[0], ("hdf5 write", vec![1180.5, 1604.86, 2505.56]));
    assert_eq!(named(&h5perf)[2], ("hdf5 read", vec![2273.34]));
}

#[test]
fn several_files_and_a_result_directory_are_imported() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("a.txt"), directory.path().join("b.txt"));
    std::fs::write(&first, SAMPLES[2].1).unwrap();
    std::fs::write(&second, SAMPLES[2].1).unwrap();
    let run = import(&[&first, &second], None, "lustre", Vec::new()).unwrap();
    assert_eq!(run.entries[0].samples, [580.0, 600.0, 580.0, 600.0]);

    let missing = import(&[directory.path()], None, "lustre", Vec::new()).unwrap_err().to_string();
    assert!(missing.contains("result_summary.txt"), "{missing}");
    std::fs::write(directory.path().join("result_summary.txt"), SAMPLES[6].1).unwrap();
    assert_eq!(import(&[directory.path()], None, "lustre", Vec::new()).unwrap().entries.len(), 4);
}

#[test]
fn other_texts_are_refused_with_the_reason() {
    for format in ForeignFormat::ALL {
        for text in
            ["", "nothing", "{}", "{\"jobs\":3}", "[RESULT] x", "SUMMARY rate\nFile creation x", "a,operation\n1"]
        {
            assert!(format.read(text, "x").is_err(), "{format}: {text}");
        }
        for (_, sample) in SAMPLES {
            // Cut off anywhere, it is read in part or refused.
            for end in (0..sample.len()).step_by(37).filter(|end| sample.is_char_boundary(*end)) {
                let _ = format.read(&sample[..end], "x");
            }
        }
    }
    assert_eq!(ForeignFormat::detect("hello"), None);
    assert!("dd".parse::<ForeignFormat>().is_err());
}
