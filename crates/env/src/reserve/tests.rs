use super::*;

#[test]
fn full_store_is_logged_once_the_server_has_started() {
    let directory = tempfile::tempdir().unwrap();
    let reserve = Reserve::of(directory.path().join("reserve")).unwrap().while_starting();
    reserve.tell("full".to_owned());
    reserve.tell("fuller".to_owned());
    assert!(matches!(&*reserve.telling.lock(), Telling::Later(Some(text)) if text == "fuller"));
    reserve.has_started();
    assert!(matches!(*reserve.telling.lock(), Telling::Now));
}
