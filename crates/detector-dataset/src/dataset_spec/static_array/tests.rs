use super::*;

fn spec() -> DatasetSpec {
    let mut spec = DatasetSpec::new(ElementType::U16, vec![6, 8]);
    spec.structure = super::super::Structure::Nexus;
    let mask = StaticArray::named("pixel_mask", ElementType::U32, vec![6, 8], vec![1; 4 * 48]);
    let table = StaticArray::named("table", ElementType::F32, vec![5], vec![0; 20]);
    spec.arrays = vec![mask, table];
    spec
}

#[test]
fn arrays_lie_before_the_chunks() {
    let mut spec = spec();
    spec.check().expect("valid");
    assert_eq!(spec.array_addresses(), [4096, 8192]);
    assert_eq!(spec.first_address(), 12288);
    let data = spec.take_array_data();
    assert_eq!(data[0].as_ref().map(|data| data.len()), Some(192));
    assert_eq!((spec.array_addresses(), spec.first_address()), (vec![4096, 8192], 12288));
    spec.arrays.clear();
    assert_eq!(spec.first_address(), superblock::LENGTH as u64);
}

#[test]
fn arrays_travel_in_json() {
    let spec = spec();
    let json = serde_json::to_string(&spec).expect("JSON");
    assert_eq!(serde_json::from_str::<DatasetSpec>(&json).expect("a spec"), spec);
    let short = json.replace("[6,8],\"data\"", "[6,9],\"data\"");
    let refused = serde_json::from_str::<DatasetSpec>(&short).expect_err("another length").to_string();
    assert!(refused.contains("another length"), "{refused}");
}

#[test]
fn impossible_arrays_are_refused() {
    let refusal = |change: fn(&mut DatasetSpec)| {
        let mut spec = spec();
        change(&mut spec);
        spec.check().expect_err("impossible").to_string()
    };
    assert!(refusal(|spec| spec.arrays[0].element = ElementType::I32).contains("a mask has u32"));
    assert!(refusal(|spec| spec.arrays[0].shape = vec![8, 6]).contains("the images have [6, 8]"));
    assert!(refusal(|spec| spec.arrays[1].shape = vec![6]).contains("does not have 24 bytes"));
    assert!(refusal(|spec| spec.arrays[1].path = "a/b/c".into()).contains("has no place"));
    for name in ["data", "times", "frame_status", "values", "distance", "table"] {
        let mut spec = spec();
        spec.arrays[1].path = name.into();
        let refused = spec.check().expect_err(name).to_string();
        assert!(refused.contains("give `detectorSpecific/NAME`"), "{refused}");
    }
    assert!(refusal(|spec| spec.arrays[1].path = "a_channel/threshold_energy".into()).contains("the channel's energy"));
    assert!(refusal(|spec| spec.arrays[1] = spec.arrays[0].clone()).contains("given twice"));
    assert!(refusal(|spec| spec.structure = Default::default()).contains("the structure `nexus`"));
}
