use super::*;
use varve_detector_filters::Encoder;

fn ratio(simulator: &Simulator) -> f64 {
    let frame = simulator.frame(7);
    let mut encoded = Vec::new();
    Encoder::new(Filter::BSLZ4, simulator.model().element.size()).unwrap().encode(&frame, &mut encoded).unwrap();
    frame.len() as f64 / encoded.len() as f64
}

#[test]
fn frames_compress_as_asked() {
    for (model, asked) in [
        ("400x300xu16", 3.0),
        ("400x300xu16", 8.0),
        ("300x200xi32", 6.0),
        ("500x400xu8", 3.0),
        ("300x200xf32", 6.0),
        ("300x200xf16", 3.0),
    ] {
        let simulator = Simulator::new(model.parse().unwrap(), asked, 1).unwrap();
        let got = ratio(&simulator);
        assert!((got / asked - 1.0).abs() < 0.15, "{model}: asked for {asked}, got {got}");
    }
}

#[test]
fn frames_depend_on_the_seed_only() {
    let simulator = |seed| Simulator::new("64x48xu16".parse().unwrap(), 3.0, seed).unwrap();
    assert_eq!(simulator(5).frame(3), simulator(5).frame(3));
    assert_ne!(simulator(5).frame(3), simulator(5).frame(4));
    assert_ne!(simulator(5).frame(3), simulator(6).frame(3));
}

#[test]
fn gaps_hold_no_counts_and_impossible_ratios_are_refused() {
    let model: DetectorModel = "pilatus6m".parse().unwrap();
    assert!(model.is_dead(487, 0) && !model.is_dead(494, 0) && model.is_dead(0, 195) && !model.is_dead(0, 212));
    let error = Simulator::new("64x48xu16".parse().unwrap(), 1e9, 1).err().expect("refused").to_string();
    assert!(error.contains("give a ratio from"), "{error}");
    for name in ["pilatus", "0x5xu16", "5x5xf31", "5x5", "99999x1xu8"] {
        assert!(name.parse::<DetectorModel>().is_err(), "{name}");
    }
}

/// If the filter's headers outweigh the pixels, ratios above 1 are refused, and a ratio of 1 is accepted.
#[test]
fn too_small_frames_are_refused() {
    for model in ["4x4xu8", "1x1xu16"] {
        let simulator = |ratio| Simulator::new(model.parse().unwrap(), ratio, 1);
        let error = simulator(6.0).err().expect("refused").to_string();
        assert!(error.contains("too small to compress 6:1") && error.contains("a ratio of 1"), "{error}");
        assert_eq!(simulator(1.0).expect("as they are").frame(0).len(), if model == "4x4xu8" { 16 } else { 2 });
    }
    let OutOfReach::Ratio { least, most, .. } = Simulator::new("64x48xu16".parse().unwrap(), 1e9, 1).err().unwrap()
    else {
        panic!("they compress")
    };
    for ratio in [least, most] {
        let said = format!("{ratio:.2}").parse().unwrap();
        assert!(Simulator::new("64x48xu16".parse().unwrap(), said, 1).is_ok(), "{said}");
    }
}
