//! Capabilities of callers whose uid is not 0.

use super::names::{create, refused, root};
use super::table::{ReferenceTable, name, user};
use crate::{
    At, ChangeAttributes, GetXattr, Granted, ListXattrs, NodeContent, Open, OpenMode, Refusal, SetXattr, Unlink,
    WriteInline, XattrMode,
};
use bytes::Bytes;
use varve_types::{
    Authority, CallerCapabilities, Capability, Credentials, Errno, IdRange, InodeId, LayoutGeneration, MappedIds, Mode,
    SetAttributes,
};

const ROOT: InodeId = InodeId::ROOT;
const FILE_CAPABILITIES: &[u8] = b"security.capability";

fn with(capability: Capability, namespace: Option<MappedIds>) -> Credentials {
    let own = CallerCapabilities { effective: 1 << capability as u32, namespace };
    Credentials { authority: Authority::Capabilities(Box::new(own)), ..user(1001) }
}

/// Of a namespace that maps ids from 1000 on.
fn in_container(capability: Capability) -> Credentials {
    let range = || vec![IdRange { first: 1000, count: 100 }];
    with(capability, Some(MappedIds { uids: range(), gids: range() }))
}

fn checked() -> Credentials {
    let unknown = Credentials::UNKNOWN_ID;
    Credentials { authority: Authority::Checked, ..Credentials::user(unknown, unknown, Vec::new()) }
}

fn file(table: &mut ReferenceTable, text: &str, mode: u16, owner: &Credentials) -> At {
    let inode = create(table, ROOT, text, mode, owner).unwrap().inode;
    At::Entry { parent: ROOT, name: name(text), inode }
}

fn open(table: &mut ReferenceTable, at: &At, mode: OpenMode, who: &Credentials) -> Result<(), Refusal> {
    table.run(&Open { at: at.clone(), mode, truncate: false, granted: Granted::Nothing }, who).map(drop)
}

fn set(table: &mut ReferenceTable, at: &At, set: SetAttributes, who: &Credentials) -> Result<Mode, Refusal> {
    table.run(&ChangeAttributes { at: at.clone(), set }, who).map(|node| node.attributes.mode)
}

fn owner(uid: u32, gid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), gid: Some(gid), ..Default::default() }
}

fn mode(mode: u16) -> SetAttributes {
    SetAttributes { mode: Some(Mode(mode)), ..Default::default() }
}

#[test]
fn access_capabilities_grant_what_linux_grants() {
    let mut table = ReferenceTable::new();
    set(&mut table, &At::Inode(ROOT), mode(0o777), &root()).unwrap();
    let at = file(&mut table, "f", 0o600, &user(1000));
    let (search, all) = (with(Capability::DacReadSearch, None), with(Capability::DacOverride, None));
    assert_eq!(open(&mut table, &at, OpenMode::Read, &search), Ok(()));
    for refused_mode in [OpenMode::Write, OpenMode::ReadWrite, OpenMode::Execute] {
        assert_eq!(open(&mut table, &at, refused_mode, &search), refused(Errno::EACCES));
    }
    assert_eq!(open(&mut table, &at, OpenMode::ReadWrite, &all), Ok(()));
    assert_eq!(open(&mut table, &at, OpenMode::Execute, &all), refused(Errno::EACCES), "nobody may run it");
    let program = file(&mut table, "p", 0o711, &user(1000));
    assert_eq!(open(&mut table, &program, OpenMode::Execute, &user(1001)), Ok(()));
    assert_eq!(open(&mut table, &program, OpenMode::Read, &user(1001)), refused(Errno::EACCES));
}

#[test]
fn capabilities_in_a_namespace_stop_at_its_ids() {
    let mut table = ReferenceTable::new();
    set(&mut table, &At::Inode(ROOT), mode(0o1777), &root()).unwrap();
    let (inside, outside) = (file(&mut table, "i", 0o600, &user(1000)), file(&mut table, "o", 0o600, &user(2000)));
    let chown = in_container(Capability::Chown);
    assert_eq!(set(&mut table, &inside, owner(1005, 1007), &chown), Ok(Mode(0o600)));
    assert_eq!(set(&mut table, &inside, owner(2000, 1007), &chown), refused(Errno::EPERM), "to an id outside");
    assert_eq!(set(&mut table, &outside, owner(1005, 1007), &chown), refused(Errno::EPERM), "from an id outside");
    let fowner = in_container(Capability::Fowner);
    assert_eq!(set(&mut table, &inside, mode(0o640), &fowner), Ok(Mode(0o640)));
    assert_eq!(set(&mut table, &outside, mode(0o640), &fowner), refused(Errno::EPERM));
    let Authority::Capabilities(mut own) = fowner.authority.clone() else { unreachable!() };
    own.effective |= 1 << Capability::Fsetid as u32;
    let fsetid = Credentials { authority: Authority::Capabilities(own), ..fowner.clone() };
    assert_eq!(set(&mut table, &inside, mode(0o2750), &fowner), Ok(Mode(0o750)), "not in the file's group");
    assert_eq!(set(&mut table, &inside, mode(0o2750), &fsetid), Ok(Mode(0o2750)));
    let take = |text| Unlink { parent: ROOT, name: name(text) };
    assert_eq!(table.run(&take("o"), &fowner).map(drop), refused(Errno::EPERM));
    assert_eq!(table.run(&take("i"), &fowner).map(drop), Ok(()));
}

#[test]
fn checked_calls_are_not_refused() {
    let mut table = ReferenceTable::new();
    let at = file(&mut table, "f", 0o600, &root());
    let kernel = checked();
    assert_eq!(open(&mut table, &at, OpenMode::ReadWrite, &kernel), Ok(()));
    assert_eq!(set(&mut table, &at, mode(0o2755), &kernel), Ok(Mode(0o2755)));
    assert_eq!(set(&mut table, &at, owner(5, 6), &kernel), Ok(Mode(0o755)));
    let made = create(&mut table, ROOT, "g", 0o2755, &Credentials { authority: Authority::Checked, ..user(1000) });
    assert_eq!(made.unwrap().attributes.uid, 1000);
    assert_eq!(table.run(&Unlink { parent: ROOT, name: name("f") }, &kernel).map(drop), Ok(()));
}

/// The value of file capabilities goes with their name at every write, root's too.
#[test]
fn content_and_owner_changes_remove_file_capabilities() {
    type Change = fn(&mut ReferenceTable, &At);
    let changes: [(&str, Change); 4] = [
        ("write", |table, at| {
            let open = Open { at: at.clone(), mode: OpenMode::Write, truncate: false, granted: Granted::Nothing };
            let node = table.run(&open, &root()).unwrap();
            assert!(matches!(node.content, NodeContent::Inline(_)));
            let generation = LayoutGeneration(node.generation.0);
            table.run(&WriteInline { at: at.clone(), generation, data: Bytes::new(), mtime: None }, &root()).unwrap();
        }),
        ("truncating open", |table, at| {
            let open = Open { at: at.clone(), mode: OpenMode::Read, truncate: true, granted: Granted::Nothing };
            table.run(&open, &root()).unwrap();
        }),
        ("size", |table, at| {
            set(table, at, SetAttributes { size: Some(3), ..Default::default() }, &root()).unwrap();
        }),
        ("owner", |table, at| {
            set(table, at, owner(5, 5), &root()).unwrap();
        }),
    ];
    for (what, change) in changes {
        let mut table = ReferenceTable::new();
        let at = At::Inode(file(&mut table, "f", 0o755, &root()).inode());
        let entry = At::Entry { parent: ROOT, name: name("f"), inode: at.inode() };
        let value = || Bytes::from_static(b"all");
        let mode = XattrMode::CreateOrReplace;
        let capabilities = Bytes::from_static(FILE_CAPABILITIES);
        let set_xattr = |at: &At, name: &Bytes| SetXattr { at: at.clone(), name: name.clone(), value: value(), mode };
        table.run(&set_xattr(&entry, &capabilities), &root()).unwrap();
        table.run(&set_xattr(&at, &Bytes::from_static(b"user.kept")), &root()).unwrap();
        change(&mut table, &at);
        let get = GetXattr { at: at.clone(), name: capabilities };
        assert_eq!(table.run(&get, &root()), refused(Errno::ENODATA), "{what}");
        assert_eq!(table.run(&ListXattrs { at }, &root()), Ok(vec![Bytes::from_static(b"user.kept")]), "{what}");
        table.run(&Unlink { parent: ROOT, name: name("f") }, &root()).unwrap();
        assert_eq!(table.rows.len(), 2, "{what}: no value is left");
    }
}
