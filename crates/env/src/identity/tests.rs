//! Tests of the identity rules. The system calls need a process of their own: `crates/cli/tests/trust_environment`.

use super::decide::{Account, IdMap, Process, group_of, must_change};
use super::{IdentityError, NOBODY, Owner, as_process_user, file_group, file_user};
use std::os::unix::fs::{MetadataExt, lchown, symlink};

const ALL: &str = "         0          0 4294967295\n";

fn process(effective_uid: u32, may_change: bool, users: &str) -> Process {
    Process { effective_uid, may_change, users: IdMap::parse(users), overflow_uid: NOBODY }
}

fn owner(uid: u32) -> Owner {
    Owner { uid, gid: 100 }
}

#[test]
fn id_map_has_the_ranges_of_its_lines() {
    let map = IdMap::parse("0 1000 1\n1 100000 65536\nnonsense\n");
    for (id, is_mapped) in [(0, true), (1, true), (65536, true), (65537, false), (u32::MAX, false)] {
        assert_eq!(map.has(id), is_mapped, "{id}");
    }
    assert!(!IdMap::parse("").has(0));
    assert!(IdMap::parse("4294967294 0 9\n").has(u32::MAX));
}

#[test]
fn only_root_on_another_users_store_changes() {
    for (uid, may_change, of, changes) in [
        (0, true, 47111, true),
        (0, true, 0, false),
        (0, false, 47111, false),
        (47111, false, 47111, false),
        (1000, false, 47111, false),
        (1000, false, 0, false),
    ] {
        let decided = must_change(owner(of), &process(uid, may_change, ALL));
        assert_eq!(decided.unwrap(), changes, "user {uid} on a store of {of}");
    }
}

#[test]
fn nobody_is_refused_and_equals_nobody() {
    let few = "0 1000 1\n";
    for (uid, of, users) in
        [(0, NOBODY, ALL), (NOBODY, NOBODY, ALL), (0, u32::MAX, ALL), (0, 47111, few), (0, 99, "0 0 99\n")]
    {
        let decided = must_change(owner(of), &process(uid, uid == 0, users));
        assert!(matches!(decided, Err(IdentityError::Nobody { uid }) if uid == of), "user {uid} on a store of {of}");
    }
    let process = Process { overflow_uid: 4711, ..process(0, true, ALL) };
    assert!(matches!(must_change(owner(4711), &process), Err(IdentityError::Nobody { .. })));
}

#[test]
fn another_user_gets_what_the_kernel_gives() {
    assert!(!must_change(owner(NOBODY), &process(1000, false, ALL)).unwrap());
}

#[test]
fn group_is_one_the_user_is_a_member_of() {
    let account = Account { primary: 1000, groups: vec![1000, 50] };
    let all = IdMap::parse(ALL);
    let of = |gid| Owner { uid: 47111, gid };
    for (gid, account, expected) in [
        (50, Some(&account), 50),
        (1000, Some(&account), 1000),
        (0, Some(&account), 1000),
        (42, Some(&account), 1000),
        (42, None, NOBODY),
        (47111, None, 47111),
        (0, None, NOBODY),
    ] {
        assert_eq!(group_of(of(gid), account, &all), Some(expected), "group {gid}, {account:?}");
    }
    assert_eq!(group_of(of(0), None, &IdMap::parse("0 1000 1\n")), None);
    assert_eq!(group_of(of(42), None, &IdMap::parse("0 0 50\n")), Some(42));
}

#[test]
fn owner_is_that_of_the_directory_itself() {
    let directory = tempfile::tempdir().unwrap();
    let uid = directory.path().metadata().unwrap().uid();
    assert_eq!(Owner::of_store(directory.path()).unwrap().uid, uid);
    let link = directory.path().join("link");
    symlink("/", &link).unwrap();
    assert_eq!(Owner::of_store(&link).unwrap().uid, 0, "a trusted link is followed");
    if lchown(&link, Some(47111), None).is_ok() {
        for path in [link.clone(), link.join(""), link.join(".")] {
            assert!(matches!(Owner::of_store(&path), Err(IdentityError::Link { .. })), "{}", path.display());
        }
    }
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(Owner::of_store(&file), Err(IdentityError::NotADirectory { .. })));
    assert!(matches!(Owner::of_store(&directory.path().join("absent")), Err(IdentityError::Look { .. })));
}

#[test]
fn store_to_be_gets_the_owner_of_what_is_above() {
    let directory = tempfile::tempdir().unwrap();
    let uid = directory.path().metadata().unwrap().uid();
    assert_eq!(Owner::of_store_to_be(&directory.path().join("a/b")).unwrap().uid, uid);
    let dangling = directory.path().join("dangling");
    symlink("nowhere", &dangling).unwrap();
    assert!(matches!(Owner::of_store_to_be(&dangling), Err(IdentityError::Look { .. })));
    assert!(matches!(Owner::of_store_to_be(&dangling.join("x")), Err(IdentityError::Look { .. })));
}

#[test]
fn without_a_change_files_are_the_effective_users() {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    assert_eq!((file_user(), file_group()), own);
    assert_eq!(as_process_user(|| (file_user(), file_group())), own);
}

#[test]
fn held_store_of_another_owner_is_refused() {
    let check = |expected: Option<u32>, uid| super::decide::check_held(expected.map(owner).as_ref(), uid);
    check(None, 47111).unwrap();
    check(Some(47111), 47111).unwrap();
    check(Some(0), 0).unwrap();
    for (expected, uid) in [(0, 47111), (47111, 0), (47111, 47112)] {
        let refused = check(Some(expected), uid);
        assert!(matches!(refused, Err(IdentityError::Replaced { owner, user }) if (owner, user) == (uid, expected)));
    }
}
