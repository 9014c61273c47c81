//! Issue 5: an invalid layout is refused with line and reason.

use super::Layout;
use crate::dataset_spec::{DatasetSpec, RunValue, Structure};
use varve_detector_hdf5::ElementType;

const DATA: &str = "<dataset name='data' source='detector'/>";

/// A layout with `line` as its third line.
fn with(line: &str) -> String {
    format!("<hdf5_layout>\n<group name='entry'>{DATA}\n{line}\n</group>\n</hdf5_layout>")
}

fn refusal(text: &str) -> String {
    Layout::parse(text).expect_err(text).to_string()
}

#[test]
fn layout_errors_name_their_line() {
    let cases = [
        ("<grp name='a'/>", "`grp` is not allowed"),
        ("<group/>", "`group` needs the attribute `name`"),
        ("<group name='a/b'/>", "name=\"a/b\" is not a valid name"),
        ("<group name='.'/>", "name=\".\" is not a valid name"),
        ("<group name='data'/>", "two members called `data`"),
        ("<group name='a' ndattr_deflt='true'/>", "no attribute `ndattr_deflt`"),
        ("<group name='a' ndattr_default='yes'/>", "neither `true` nor `false`"),
        ("words", "text between"),
        ("<dataset name='a'/>", "`source` is missing"),
        ("<dataset name='a' source='pv'/>", "source=\"pv\" is unknown"),
        ("<dataset name='a' source='detector'/>", "second dataset with source=\"detector\""),
        ("<dataset name='a' source='ndattribute'/>", "`dataset` needs the attribute `ndattribute`"),
        ("<dataset name='a' source='ndattribute' ndattribute='b' when='Never'/>", "when=\"Never\" is unknown"),
        ("<dataset name='a' source='constant' value='1,x' type='int'/>", "`x` is not a valid integer"),
        ("<dataset name='a' source='constant' value='' type='float'/>", "`` is not a valid number"),
        ("<dataset name='a' source='constant' value='1' type='double'/>", "type=\"double\" is unknown"),
        ("<dataset name='a' source='constant' det_default='true'/>", "det_default=\"true\" is for"),
        ("<dataset name='a' source='constant'><group name='b'/></dataset>", "is not allowed in a dataset"),
        ("<attribute name='a' source='detector'/>", "source=\"detector\" is unknown"),
        ("<attribute name='a' source='constant'><attribute/></attribute>", "cannot contain elements"),
        ("<hardlink name='a'/>", "`hardlink` needs the attribute `target`"),
        ("<hardlink name='a' target='/'/>", "`target` is empty or the root itself"),
        ("<global name='detector_data_destination' ndattribute='a'/>", "`global` is not allowed"),
        ("<group name='a'>", "cannot parse the XML"),
    ];
    for (line, why) in cases {
        let refusal = refusal(&with(line));
        assert!(refusal.contains(why), "{line}: {refusal}");
        // An unclosed element is detected only where another one closes.
        assert!(refusal.starts_with("layout, line 3") || why.contains("XML"), "{line}: {refusal}");
    }
    let twice = "<attribute name='a' source='constant'/><attribute name='a' source='constant'/>";
    assert!(refusal(&with(twice)).contains("given twice"));
    let defaults = "<group name='a' ndattr_default='1'/><group name='b' ndattr_default='1'/>";
    assert!(refusal(&with(defaults)).starts_with("layout, line 3, column 37"), "{}", refusal(&with(defaults)));
    let long = format!("<attribute name='a' source='constant' value='{}'/>", "x".repeat(60_001));
    assert!(refusal(&with(&long)).contains("make it a dataset"));
    assert!(refusal("<hdf5/>").contains("must be `hdf5_layout`"));
    assert!(refusal("<hdf5_layout/>").contains("no dataset has source=\"detector\""));
    assert!(refusal("").contains("line 1"));
}

/// Entities that double with each line, and endlessly nested groups: they would exhaust memory or the stack.
#[test]
fn unbounded_layout_is_refused() {
    let entities = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaa'><!ENTITY b '&a;&a;'>]>\n<hdf5_layout>&b;</hdf5_layout>";
    assert!(refusal(entities).contains("cannot parse the XML"));
    let deep = format!("<hdf5_layout>{}{}</hdf5_layout>", "<group name='g'>".repeat(65), "</group>".repeat(65));
    assert!(refusal(&deep).contains("nested more than"), "{}", refusal(&deep));
    let deeper = "<group name='g'>".repeat(50_000);
    assert!(refusal(&deeper).starts_with("layout, line"));
    assert!(refusal(&" ".repeat((1 << 20) + 1)).contains("more than"));
}

fn described(line: &str, scalars: &[&str]) -> Result<(), String> {
    let mut description = DatasetSpec::new(ElementType::U16, vec![4, 4]);
    description.structure = Structure::Layout(Layout::parse(&with(line)).expect("a layout"));
    description.scalars = scalars.iter().map(|name| (*name).into()).collect();
    description.values.insert("Model".into(), RunValue::Text("Eiger".into()));
    description.check().map_err(|error| error.to_string())
}

#[test]
fn unknown_layout_sources_are_refused_before_start() {
    let angle = "<dataset name='angle' source='ndattribute' ndattribute='Angle'/>";
    assert_eq!(described(angle, &["Angle"]), Ok(()));
    assert_eq!(described("<attribute name='m' source='ndattribute' ndattribute='Model'/>", &[]), Ok(()));
    let refusal = described(angle, &[]).expect_err("no such scalar");
    assert!(refusal.contains("line 3, column 1: the run has no `Angle`"), "{refusal}");

    let refusal = described("<hardlink name='a' target='/entry/date'/>", &[]).expect_err("no such object");
    assert!(
        refusal.contains("line 3, column 1: the hard link points to `/entry/date`, but the file has no"),
        "{refusal}"
    );
    let ring = "<hardlink name='a' target='/entry/b'/><hardlink name='b' target='/entry/a'/>";
    let refusal = described(ring, &[]).expect_err("a ring");
    assert!(refusal.contains("is part of a cycle"), "{refusal}");
    assert_eq!(described("<hardlink name='up' target='/entry'/>", &[]), Ok(()));

    let taken = "<group name='rest' ndattr_default='true'><group name='Angle'/></group>";
    let refusal = described(taken, &["Angle"]).expect_err("a name taken");
    assert!(refusal.contains("line 3, column 1: `Angle` belongs to no dataset"), "{refusal}");
}

#[test]
fn dataset_spec_with_layout_round_trips_json() {
    let mut description = DatasetSpec::new(ElementType::U16, vec![4, 4]);
    description.structure = Structure::Layout(Layout::parse(&with("")).expect("a layout"));
    description.values.insert("Gain".into(), RunValue::Float(0.5));
    let json = serde_json::to_string(&description).expect("JSON");
    assert_eq!(serde_json::from_str::<DatasetSpec>(&json).expect("the description"), description);
    let json = json.replace("source='detector'", "source='dtector'");
    let refusal = serde_json::from_str::<DatasetSpec>(&json).expect_err("a bad layout").to_string();
    assert!(refusal.contains("layout, line 2, column 21: source=\"dtector\" is unknown"), "{refusal}");
}
