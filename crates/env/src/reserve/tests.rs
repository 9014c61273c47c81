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

/// The reserve follows its file, which another server of the volume may take or release.
#[test]
fn reserve_taken_or_released_elsewhere_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("reserve");
    let [here, elsewhere] = [(); 2].map(|()| Reserve::of(file.clone()).unwrap());
    here.tend().unwrap();
    assert!(!here.is_short());
    here.tight.store(true, Relaxed);
    here.tend().unwrap();
    assert!(!here.is_tight(), "there is space");
    let length = file.metadata().unwrap().len();
    assert_eq!(length, here.bytes);
    assert!(elsewhere.release(), "it was opened before the file was there");
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert!(!here.release(), "the other one has released it");
    assert!(here.is_short());
    here.tend().unwrap();
    assert_eq!(file.metadata().unwrap().len(), length, "taken again once there is space");
    assert!(!here.is_short());
    std::fs::remove_file(&file).unwrap();
    here.tend().unwrap();
    assert_eq!(file.metadata().unwrap().len(), length, "and after somebody removed it");
}
