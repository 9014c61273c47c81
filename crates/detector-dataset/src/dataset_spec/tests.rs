use super::*;

#[test]
fn invalid_dataset_specs_are_refused_with_advice() {
    let good = DatasetSpec::new(ElementType::U16, vec![4, 6]);
    good.check().expect("a plain description");
    let bad = |change: fn(&mut DatasetSpec)| {
        let mut description = good.clone();
        change(&mut description);
        description.check().expect_err("refused").to_string()
    };
    assert!(bad(|d| d.frame = vec![]).contains("one to three sides"));
    assert!(bad(|d| d.frame = vec![4, 0]).contains("one to three sides"));
    assert!(bad(|d| d.scan = vec![None, None]).contains("only the first"));
    assert!(bad(|d| d.scan = vec![]).contains("give 1 to"));
    assert!(bad(|d| d.scan = vec![Some(0)]).contains("none 0"));
    assert!(bad(|d| d.chunk = Some(vec![5, 6])).contains("from 1 to the frame's"));
    assert!(bad(|d| d.frame = vec![1 << 20, 1 << 20]).contains("more than"));
    assert!(bad(|d| d.scan = vec![Some(1 << 20), Some(1 << 20)]).contains("2^32"));
    assert!(bad(|d| d.scalars = vec!["a".into(), "a".into()]).contains("given twice"));
    assert!(bad(|d| d.scalars = vec!["a/b".into()]).contains("contains `/`"));
}

#[test]
fn unknown_keys_are_refused() {
    let error = serde_json::from_str::<DatasetSpec>(r#"{"element":"u16","frame":[2,2],"filtre":"raw"}"#);
    assert!(error.expect_err("refused").to_string().contains("filtre"));
}

/// Error messages use the words of the user's input.
#[test]
fn messages_expose_no_internal_names() {
    let said = |more: serde_json::Value| {
        let mut body = serde_json::json!({"element": "u16", "frame": [4, 6]});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        match serde_json::from_value::<DatasetSpec>(body) {
            Ok(description) => description.check().expect_err("refused").to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (more, words) in [
        (serde_json::json!({"values": {"a": {"b": 1}}}), "a number, a text, true or false, or a list"),
        (serde_json::json!({"plugin": "bzip2"}), "an object with `library`"),
        (serde_json::json!({"structure": "nexsus"}), "`raw`, `nexus`"),
        (serde_json::json!({"allocate": "spare"}), "`packed`, `sparse`, `implicit`"),
        (serde_json::json!({"scalars": [{"name": "a"}]}), "its name, or an object with `name`, `type`"),
        (serde_json::json!({"sources": [{"offset": [3, 0], "shape": [2, 6]}]}), "a region at [3, 0] of [2, 6]"),
        (serde_json::json!({"sources": ["all"]}), "an object with `offset`"),
        (
            serde_json::json!({"scan": [null, 3], "scan_max": [7, 2]}),
            "`scan_max` is [7, 2]; give for each side of `scan` [null, 3]",
        ),
        (serde_json::json!({"scan": [3], "scan_max": [2]}), "`scan_max` is [2]; give for each side of `scan` [3] null"),
        (serde_json::json!({"structure": "nexus", "nxmx": {"distance": -2.5}}), "`distance` is -2.5;"),
    ] {
        let said = said(more);
        assert!(said.contains(words), "{said}");
        for internal in ["Some(", "struct ", "enum ", "Region {", "RunValue", "untagged"] {
            assert!(!said.contains(internal), "{said}");
        }
    }
    let refused = ScalarKind::Float.element(&"x".into()).expect_err("refused");
    assert_eq!(refused, "\"x\" is not a value of a column of type f64");
}

#[test]
fn frames_lie_row_major_in_a_scan() {
    let mut description = DatasetSpec::new(ElementType::U8, vec![2, 2]);
    description.scan = vec![None, Some(3), Some(5)];
    assert_eq!(description.place(0), [0, 0, 0]);
    assert_eq!(description.place(16), [1, 0, 1]);
    assert_eq!(description.grid(16).dims(), [2, 3, 5, 2, 2]);
}

#[test]
fn fill_values_are_elements_or_refused() {
    let fill = |element, value: &str| {
        let mut description = DatasetSpec::new(element, vec![1]);
        description.fill = Some(serde_json::from_str(value).expect("a number"));
        let again: DatasetSpec =
            serde_json::from_value(serde_json::to_value(&description).expect("JSON")).expect("a description");
        assert_eq!(again.fill_element(), description.fill_element());
        description.check().map(|()| description.fill_element()).map_err(|bad| bad.0)
    };
    for (element, value, bytes) in [
        (ElementType::I16, "-1", vec![0xff, 0xff]),
        (ElementType::U8, "255.0", vec![0xff]),
        (ElementType::U64, "18446744073709551615", vec![0xff; 8]),
        (ElementType::I64, "-9223372036854775808", i64::MIN.to_le_bytes().to_vec()),
        (ElementType::F16, "1.5", 0x3e00_u16.to_le_bytes().to_vec()),
        (ElementType::F16, "-2.0", 0xc000_u16.to_le_bytes().to_vec()),
        (ElementType::F16, "\"inf\"", 0x7c00_u16.to_le_bytes().to_vec()),
        (ElementType::F32, "0.5", 0.5_f32.to_le_bytes().to_vec()),
        (ElementType::F64, "\"nan\"", f64::NAN.to_le_bytes().to_vec()),
    ] {
        assert_eq!(fill(element, value), Ok(bytes), "{value}");
    }
    for (element, value, why) in [
        (ElementType::U8, "300", "`fill` is 300, which is not a value of type u8; give a whole number from 0 to 255"),
        (ElementType::U16, "-1", "from 0 to 65535"),
        (ElementType::I32, "1.5", "give a whole number from -2147483648 to 2147483647"),
        (ElementType::I64, "9223372036854775808", "to 9223372036854775807"),
        (ElementType::U64, "1e30", "to 18446744073709551615"),
        (ElementType::U8, "\"nan\"", "`fill` is NaN"),
        (ElementType::F16, "1e9", "give a number from -6.5504e4 to 6.5504e4"),
        (ElementType::F32, "-1e39", "which is not a value of type f32"),
    ] {
        let refused = fill(element, value).expect_err("refused");
        assert!(refused.contains(why), "{value}: {refused}");
    }
    assert!(serde_json::from_str::<Fill>("\"none\"").is_err());
}

/// Promise: a scan whose index no commit could hold is refused before the run begins, and an unbounded one is not.
#[test]
fn scan_index_size_is_bounded() {
    let refused = |scan: Vec<Option<u64>>| {
        let description = DatasetSpec { scan, ..DatasetSpec::new(ElementType::U16, vec![6, 5]) };
        description.check().expect("as journals of other runs may have it");
        description.check_begin().err().map(|error| error.0)
    };
    assert_eq!(refused(vec![Some(1 << 24)]), None);
    assert_eq!(refused(vec![None, Some(1 << 30)]), None);
    let why = refused(vec![Some(2_000_000_000)]).expect("it cannot be held");
    assert!(why.contains("give null as the first side"), "{why}");
}

/// Promise: a run that could leave far more index elements unused than frames arrive is refused before it begins, and
/// one whose inner sides may grow is not.
#[test]
fn gaps_in_an_index_are_bounded() {
    let begun = |scan: Vec<Option<u64>>, scan_max: Vec<Option<u64>>| {
        let description = DatasetSpec { scan, scan_max: Some(scan_max), ..DatasetSpec::new(ElementType::U8, vec![8]) };
        description.check().expect("as journals of other runs may have it");
        description.check_begin().map_err(|error| error.0)
    };
    for (scan, max) in [
        (vec![None, Some(10)], vec![None, Some(10_240)]),
        (vec![None, Some(10)], vec![None, None]),
        (vec![None, Some(1 << 20), Some(3)], vec![None, Some(1 << 30), Some(3)]),
        // The whole index is within its limit.
        (vec![Some(67), Some(10)], vec![None, Some(1_000_000)]),
        (vec![Some(1 << 20), Some(10)], vec![Some(1 << 20), None]),
        (vec![Some(u32::MAX.into())], vec![None]),
    ] {
        begun(scan, max).expect("what is kept of it is bounded");
    }
    for (scan, max) in [
        (vec![None, Some(10)], vec![None, Some(1_000_000)]),
        (vec![Some(69), Some(10)], vec![None, Some(1_000_000)]),
        (vec![Some(1 << 24), Some(10)], vec![Some(1 << 24), None]),
    ] {
        let why = begun(scan, max).expect_err("refused");
        assert!(why.contains("give null for two sides of `scan_max`"), "{why}");
    }
}

/// Promise: a run with a layout is refused if its end could add more missing frames than may be numbered.
#[test]
fn layout_frame_numbers_are_bounded() {
    let text = "<hdf5_layout><group name='entry'><dataset name='data' source='detector'/></group></hdf5_layout>";
    let begun = |scan: Vec<Option<u64>>| {
        let layout = crate::layout::Layout::parse(text).expect("a layout");
        let scan_max = Some(vec![None; scan.len()]);
        let structure = Structure::Layout(layout);
        let description = DatasetSpec { scan, scan_max, structure, ..DatasetSpec::new(ElementType::U8, vec![8]) };
        description.check_begin().map_err(|error| error.0)
    };
    begun(vec![Some(1 << 24)]).expect("its numbers can be held");
    begun(vec![None]).expect("it has those that come");
    for scan in [vec![Some(u32::MAX.into())], vec![None, Some(u32::MAX.into())], vec![Some(1 << 12), Some(1 << 13)]] {
        let why = begun(scan).expect_err("refused");
        assert!(why.contains("give null as the first side of `scan`"), "{why}");
    }
}
