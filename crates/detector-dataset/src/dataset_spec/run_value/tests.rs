use super::*;

fn of(json: &str) -> RunValue {
    serde_json::from_str(json).expect("a value")
}

#[test]
fn large_integers_stay_exact() {
    for (json, bytes) in [("9223372036854775809", 9_223_372_036_854_775_809_u64), ("18446744073709551615", u64::MAX)] {
        let value = of(json);
        assert_eq!(value.value().data, bytes.to_le_bytes(), "{json}");
        assert_eq!(serde_json::to_string(&value).expect("JSON"), json);
    }
    assert_eq!(of("-5"), RunValue::Integer(-5));
    assert_eq!(of("[1, 18446744073709551615]").value().datatype, Datatype::Number(ElementType::U64));
}

#[test]
fn bools_and_lists_are_stored() {
    assert_eq!(of("true").value().datatype, Datatype::Enumeration(TRUTH.to_vec()));
    assert_eq!(of("[1, 2.5]").value(), Value::floats(&[1.0, 2.5]));
    assert_eq!(of(r#"["a", "bc"]"#).value(), Value::texts(&["a", "bc"]));
    assert_eq!(of("[true, false]").value().data, [1, 0]);
    for (json, words) in [
        ("[]", "empty"),
        ("[[1]]", "list of lists"),
        (r#"[1, "a"]"#, "different kinds"),
        ("[0.5, 9007199254740993]", "different kinds"),
        ("[-1, 18446744073709551615]", "different kinds"),
    ] {
        let refused = of(json).check().expect_err(json);
        assert!(refused.contains(words), "{json}: {refused}");
    }
    assert!(serde_json::from_str::<RunValue>("{}").is_err());
}
