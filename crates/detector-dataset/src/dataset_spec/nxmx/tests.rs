use super::{Goniometer, MaskRegion, Nxmx};

fn refusal(change: impl FnOnce(&mut Nxmx)) -> String {
    let mut nxmx = Nxmx::default();
    change(&mut nxmx);
    nxmx.check(&[100, 200]).expect_err("an impossible value").to_string()
}

#[test]
fn impossible_values_are_refused() {
    Nxmx::default().check(&[100, 200]).expect("nothing is possible");
    assert!(refusal(|nxmx| nxmx.distance = Some(-0.1)).contains("`distance` is -0.1"));
    assert!(refusal(|nxmx| nxmx.count_time = Some(f64::NAN)).contains("`count_time`"));
    assert!(refusal(|nxmx| nxmx.wavelength = Some(0.0)).contains("must be above 0"));
    assert!(refusal(|nxmx| nxmx.pixel_size = Some([1e-4, 0.0])).contains("must be above 0"));
    assert!(refusal(|nxmx| nxmx.beam_center = Some([f64::INFINITY, 0.0])).contains("`beam_center`"));
    assert!(refusal(|nxmx| nxmx.fast_direction = Some([0.0; 3])).contains("direction"));
    assert!(refusal(|nxmx| nxmx.title = Some("x".repeat(2000))).contains("a text"));
    let axis = |name: &str| Goniometer { name: name.into(), vector: Some([1.0, 0.0, 0.0]), start: 0.0, increment: 0.1 };
    assert!(refusal(|nxmx| nxmx.goniometer = vec![axis("a/b")]).contains("axis `a/b`"));
    assert!(refusal(|nxmx| nxmx.goniometer = vec![axis("a"), axis("a")]).contains("a name of its own"));
    let unknown = Goniometer { vector: None, ..axis("kappa") };
    assert!(refusal(|nxmx| nxmx.goniometer = vec![unknown]).contains("give its `vector`"));
    let region =
        |offset: [u64; 2], shape: [u64; 2]| MaskRegion { value: 1, offset: offset.into(), shape: shape.into() };
    for (offset, shape) in [([0, 0], [101, 1]), ([0, 199], [1, 2]), ([u64::MAX, 0], [1, 1])] {
        assert!(refusal(|nxmx| nxmx.pixel_mask = vec![region(offset, shape)]).contains("does not lie within"));
    }
    let mut nxmx = Nxmx { pixel_mask: vec![region([0, 0], [100, 200])], ..Nxmx::default() };
    nxmx.check(&[100, 200]).expect("a whole frame masked");
    assert!(nxmx.check(&[1 << 15, 1 << 15]).is_err());
    nxmx.pixel_mask = vec![region([0, 0], [1, 1]); 100_001];
    assert!(nxmx.check(&[100, 200]).is_err());
}

#[test]
fn unknown_fields_are_refused() {
    let refusal = serde_json::from_str::<Nxmx>(r#"{"wave_length": 1.0}"#).expect_err("misspelt").to_string();
    assert!(refusal.contains("unknown field `wave_length`"), "{refusal}");
}
