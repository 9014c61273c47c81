//! Extended attributes by table: namespaces, limits and storage locations.

use super::names::{create, mkdir, refused, root};
use super::table::{ReferenceTable, name, user};
use crate::{At, GetXattr, ListXattrs, Refusal, RemoveXattr, SetXattr, Unlink, XattrMode};
use bytes::Bytes;
use varve_schema::{EntryBody, Key};
use varve_types::{Credentials, Errno, FileKind, InodeId};

const ROOT: InodeId = InodeId::ROOT;

fn set(table: &mut ReferenceTable, at: &At, xattr: &str, value: &[u8], who: &Credentials) -> Result<(), Refusal> {
    let (name, value) = (Bytes::copy_from_slice(xattr.as_bytes()), Bytes::copy_from_slice(value));
    table.run(&SetXattr { at: at.clone(), name, value, mode: XattrMode::CreateOrReplace }, who)
}

fn get(table: &mut ReferenceTable, at: &At, xattr: &str, who: &Credentials) -> Result<Bytes, Refusal> {
    table.run(&GetXattr { at: at.clone(), name: Bytes::copy_from_slice(xattr.as_bytes()) }, who)
}

fn directory(table: &mut ReferenceTable, mode: u16, who: &Credentials) -> At {
    At::Inode(mkdir(table, ROOT, "d", mode, who).unwrap().inode)
}

#[test]
fn the_first_attribute_moves_a_file_into_an_inode_row() {
    let mut table = ReferenceTable::new();
    let inode = create(&mut table, ROOT, "f", 0o644, &root()).unwrap().inode;
    let entry = At::Entry { parent: ROOT, name: name("f"), inode };
    assert_eq!(get(&mut table, &entry, "user.a", &root()), refused(Errno::ENODATA));
    assert_eq!(table.run(&ListXattrs { at: entry.clone() }, &root()), Ok(Vec::new()));
    set(&mut table, &entry, "user.a", b"1", &root()).unwrap();
    assert_eq!(get(&mut table, &entry, "user.a", &root()), Err(Refusal::NotHere));
    assert_eq!(table.entry(ROOT, &name("f")).unwrap().body, EntryBody::Reference(FileKind::Regular));
    let at = At::Inode(inode);
    set(&mut table, &at, "user.b", b"2", &root()).unwrap();
    assert_eq!(get(&mut table, &at, "user.a", &root()), Ok(Bytes::from_static(b"1")));
    table.run(&Unlink { parent: ROOT, name: name("f") }, &root()).unwrap();
    assert_eq!(table.rows.len(), 2, "rows of attributes go with the file");
}

/// xattr(7): the permissions in each namespace; POSIX ACLs are not supported.
#[test]
fn xattr_namespaces_have_their_rules() {
    let mut table = ReferenceTable::new();
    let at = directory(&mut table, 0o755, &user(1000));
    let other = user(1001);
    set(&mut table, &at, "user.a", b"1", &user(1000)).unwrap();
    set(&mut table, &at, "trusted.a", b"2", &root()).unwrap();
    set(&mut table, &at, "security.a", b"3", &root()).unwrap();
    assert_eq!(set(&mut table, &at, "user.a", b"", &other), refused(Errno::EACCES));
    assert_eq!(set(&mut table, &at, "trusted.a", b"", &user(1000)), refused(Errno::EPERM));
    assert_eq!(set(&mut table, &at, "security.a", b"", &user(1000)), refused(Errno::EPERM));
    assert_eq!(get(&mut table, &at, "trusted.a", &user(1000)), refused(Errno::ENODATA));
    assert_eq!(get(&mut table, &at, "security.a", &other), Ok(Bytes::from_static(b"3")));
    for unknown in ["system.posix_acl_access", "system.posix_acl_default", "other.a", "nodot"] {
        assert_eq!(set(&mut table, &at, unknown, b"", &root()), refused(Errno::EOPNOTSUPP));
        assert_eq!(get(&mut table, &at, unknown, &root()), refused(Errno::EOPNOTSUPP));
    }
    let list = |table: &mut ReferenceTable, who: &Credentials| table.run(&ListXattrs { at: at.clone() }, who).unwrap();
    assert_eq!(list(&mut table, &root()), ["security.a", "trusted.a", "user.a"]);
    assert_eq!(list(&mut table, &other), ["security.a", "user.a"]);
}

#[test]
fn user_attributes_in_sticky_directories_are_the_owners() {
    let mut table = ReferenceTable::new();
    let at = directory(&mut table, 0o1777, &user(1000));
    assert_eq!(set(&mut table, &at, "user.a", b"", &user(1001)), refused(Errno::EPERM));
    assert!(set(&mut table, &at, "user.a", b"", &user(1000)).is_ok());
}

#[test]
fn setxattr_flags_control_existence() {
    let mut table = ReferenceTable::new();
    let at = directory(&mut table, 0o755, &root());
    let run = |table: &mut ReferenceTable, mode| {
        table.run(&SetXattr { at: at.clone(), name: "user.a".into(), value: "v".into(), mode }, &root())
    };
    assert_eq!(run(&mut table, XattrMode::Replace), refused(Errno::ENODATA));
    assert_eq!(run(&mut table, XattrMode::Create), Ok(()));
    assert_eq!(run(&mut table, XattrMode::Create), refused(Errno::EEXIST));
    assert_eq!(run(&mut table, XattrMode::Replace), Ok(()));
    let remove = RemoveXattr { at: at.clone(), name: "user.a".into() };
    assert_eq!(table.run(&remove, &root()), Ok(()));
    assert_eq!(table.run(&remove, &root()), refused(Errno::ENODATA));
    assert!(!table.rows.keys().any(|key| matches!(key, Key::Xattr(..))));
}

#[test]
fn names_values_and_lists_have_limits() {
    let mut table = ReferenceTable::new();
    let at = directory(&mut table, 0o755, &root());
    let long = |length: usize| format!("user.{}", "x".repeat(length - 5));
    assert_eq!(set(&mut table, &at, "", b"", &root()), refused(Errno::ERANGE));
    assert_eq!(set(&mut table, &at, &long(256), b"", &root()), refused(Errno::ERANGE));
    assert_eq!(set(&mut table, &at, "user.", b"", &root()), refused(Errno::EINVAL));
    assert_eq!(set(&mut table, &at, "user.a\0b", b"", &root()), refused(Errno::EINVAL));
    assert!(set(&mut table, &at, &long(255), &[0; 65_536], &root()).is_ok());
    assert_eq!(set(&mut table, &at, "user.a", &[0; 65_537], &root()), refused(Errno::E2BIG));
    let full = (0..300).find_map(|i| set(&mut table, &at, &format!("{}{i:03}", long(252)), b"", &root()).err());
    assert_eq!(full, Some(Refusal::Errno(Errno::ENOSPC)), "listxattr(2) can return 64 KiB");
}
