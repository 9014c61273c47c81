use super::*;

const DIRECTORY: InodeId = InodeId(10);
const FILE: InodeId = InodeId(20);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn saw(inodes: &Inodes, inode: InodeId, text: &str, by_inode: bool) {
    let name = name(text);
    inodes.saw(ObservedInode { inode, parent: DIRECTORY, name: &name, kind: FileKind::Regular, by_inode }, 1);
}

fn entry(text: &str) -> Locator {
    Locator::Entry { parent: DIRECTORY.0, name: text.as_bytes().to_vec(), inode: FILE.0 }
}

const ROW: Locator = Locator::Inode { inode: FILE.0 };

/// Promise: a file is located by the name under which it was last seen, and by its row once it has one or no name is
/// known.
#[test]
fn locator_follows_rename() {
    let inodes = Inodes::default();
    assert_eq!(inodes.locator(FILE), ROW);
    saw(&inodes, FILE, "a", false);
    assert_eq!(inodes.locator(FILE), entry("a"));
    inodes.renamed(FILE, DIRECTORY, &name("b"));
    assert_eq!(inodes.locator(FILE), entry("b"));
    assert_eq!(inodes.at(DIRECTORY, &name("b")), Some(FILE));
    assert_eq!(inodes.at(DIRECTORY, &name("a")), None);
    inodes.unlinked(DIRECTORY, &name("b"), FILE);
    assert_eq!(inodes.locator(FILE), ROW);
}

/// Promise: if a name was seen with its new inode before the reply to the call that took it from another file, the name
/// still leads to the new inode.
#[test]
fn newer_observation_wins() {
    let inodes = Inodes::default();
    let newer = InodeId(FILE.0 + 1);
    saw(&inodes, FILE, "a", false);
    saw(&inodes, newer, "a", false);
    inodes.unlinked(DIRECTORY, &name("a"), FILE);
    assert_eq!((inodes.locator(FILE), inodes.at(DIRECTORY, &name("a"))), (ROW, Some(newer)));
    assert!(matches!(inodes.locator(newer), Locator::Entry { .. }));
}

/// Promise: renaming an open file moves its attributes to an inode row, where the client then locates it.
#[test]
fn renamed_open_file_is_located_by_inode() {
    let inodes = Inodes::default();
    saw(&inodes, FILE, "a", false);
    inodes.opened(FILE);
    inodes.renamed(FILE, DIRECTORY, &name("b"));
    assert_eq!(inodes.locator(FILE), ROW);
    assert_eq!(inodes.name(FILE), Some((DIRECTORY, name("b"))));
}

/// Promise: an inode is kept while it has lookups or handles, and completely dropped afterwards.
#[test]
fn unreferenced_inode_is_forgotten() {
    let inodes = Inodes::default();
    saw(&inodes, FILE, "a", false);
    saw(&inodes, FILE, "a", false);
    inodes.opened(FILE);
    inodes.forget(FILE, 2);
    assert_eq!(inodes.locator(FILE), entry("a"));
    inodes.closed(FILE);
    assert_eq!(inodes.locator(FILE), ROW);
    assert!(inodes.stripes.iter().all(|stripe| stripe.lock().is_empty()));
    assert!(inodes.names.iter().all(|stripe| stripe.lock().is_empty()));
}

/// Promise: a name that now refers to another file does not lead to the old one, whichever is forgotten first.
#[test]
fn reused_name_refers_to_new_file() {
    let inodes = Inodes::default();
    saw(&inodes, FILE, "a", false);
    saw(&inodes, InodeId(21), "a", false);
    inodes.forget(FILE, 1);
    assert_eq!(inodes.at(DIRECTORY, &name("a")), Some(InodeId(21)));
}

/// Promise: a directory is known to be on disk only under the name under which it was synced.
#[test]
fn durability_is_per_name() {
    let inodes = Inodes::default();
    saw(&inodes, FILE, "a", false);
    inodes.set_durable(FILE, &(DIRECTORY, name("other")), inodes.moves());
    assert!(!inodes.is_durable(FILE));
    inodes.set_durable(FILE, &(DIRECTORY, name("a")), inodes.moves());
    assert!(inodes.is_durable(FILE));
    inodes.renamed(FILE, DIRECTORY, &name("b"));
    assert!(!inodes.is_durable(FILE));
}

/// Promise: if an ancestor of a directory was moved, the directory is not known to be durable, even if the move
/// happened during its sync.
#[test]
fn directory_move_clears_durability_below() {
    let inodes = Inodes::default();
    let (above, below) = (InodeId(30), InodeId(31));
    let see = |inode, parent, text: &str| {
        let seen = ObservedInode { inode, parent, name: &name(text), kind: FileKind::Directory, by_inode: true };
        inodes.saw(seen, 1);
    };
    see(above, DIRECTORY, "above");
    see(below, above, "below");
    let sync = |moves| inodes.set_durable(below, &(above, name("below")), moves);
    let before = inodes.moves();
    sync(before);
    assert!(inodes.is_durable(below));
    inodes.renamed(above, DIRECTORY, &name("elsewhere"));
    assert!(!inodes.is_durable(below));
    sync(before);
    assert!(!inodes.is_durable(below));
    sync(inodes.moves());
    assert!(inodes.is_durable(below));
}
