use super::*;

fn metadata() -> RunMetadata {
    let nxmx = r#"{"source": "ring", "wavelength": 1.5, "goniometer": [{"name": "kappa", "vector": [0, 1, 0]}]}"#;
    let mask = StaticArray::named(PIXEL_MASK, ElementType::U32, vec![4, 6], vec![1; 96]);
    let values = BTreeMap::from([("proposal".to_owned(), RunValue::Text("p7".into()))]);
    RunMetadata { values, nxmx: Some(serde_json::from_str(nxmx).expect("fields")), arrays: vec![mask] }
}

#[test]
fn metadata_of_the_service_fill_gaps_only() {
    let mut own = DatasetSpec::new(ElementType::U16, vec![4, 6]);
    own.structure = Structure::Nexus;
    own.nxmx = Some(Nxmx { wavelength: Some(1.0), ..Nxmx::default() });
    let whole = metadata().complete(&own).expect("fits");
    let nxmx = whole.nxmx.expect("given");
    assert_eq!((nxmx.wavelength, nxmx.source.as_deref(), nxmx.goniometer.len()), (Some(1.0), Some("ring"), 1));
    assert_eq!((whole.arrays.len(), whole.values.len()), (1, 1));
    let axis = |name: &str| Goniometer { name: name.into(), vector: None, start: 7.0, increment: 0.5 };
    own.nxmx.as_mut().expect("given").goniometer = vec![axis("omega"), axis("kappa")];
    let axes = metadata().complete(&own).expect("fits").nxmx.expect("given").goniometer;
    let found: Vec<_> = axes.iter().map(|axis| (axis.name.as_str(), axis.vector, axis.start)).collect();
    assert_eq!(found, [("kappa", Some([0.0, 1.0, 0.0]), 7.0), ("omega", None, 7.0)]);
    own.frame = vec![4, 7];
    let refused = metadata().complete(&own).expect_err("a mask of another shape");
    assert!(refused.contains("the images have [4, 7]"), "{refused}");
    own.structure = Structure::Raw;
    own.nxmx = None;
    let whole = metadata().complete(&own).expect("values only");
    assert_eq!((whole.nxmx, whole.arrays.len(), whole.values.len()), (None, 0, 1));
}

#[test]
fn masks_get_32_bits() {
    assert_eq!(as_mask(ElementType::U8, &[1, 2]), Some(vec![1, 0, 0, 0, 2, 0, 0, 0]));
    assert_eq!(as_mask(ElementType::U64, &[1, 2, 3, 4, 5, 6, 7, 8]), Some(vec![1, 2, 3, 4]));
    assert_eq!(as_mask(ElementType::F32, &[0; 4]), None);
}
