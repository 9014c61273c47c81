use super::*;
use std::collections::BTreeMap;

const RANK: usize = 3;

fn element() -> Element {
    Element::new(true, 5000)
}

fn record(number: u64) -> ChunkRecord {
    ChunkRecord { address: 4096 * number, size: 100, mask: 0 }
}

/// Stores the changed nodes behind `end`, and returns how many there are.
fn store(tree: &mut Btree<u64>, end: &mut u64) -> u64 {
    let format = RecordFormat { element: element(), rank: RANK, coordinates: &|number| vec![*number, 0, 0] };
    let (expected, before) = (tree.changed_bytes(), *end);
    tree.store(&format, &mut |node| {
        *end += node.len() as u64;
        *end - node.len() as u64
    });
    assert_eq!(*end - before, expected);
    assert_eq!(tree.changed_bytes(), 0);
    (*end - before) / NODE_BYTES as u64
}

fn check(tree: &Btree<u64>, known: &BTreeMap<u64, ChunkRecord>) {
    fn walk(tree: &Btree<u64>, at: usize, level: usize, found: &mut Vec<u64>) {
        let node = &tree.nodes[at];
        assert!(node.records.len() as u64 <= tree.shape.levels[level].records_max);
        assert!(at == tree.root || !node.records.is_empty());
        assert_eq!(node.children.len(), if level == 0 { 0 } else { node.records.len() + 1 });
        let before = found.len();
        for (place, (key, _)) in node.records.iter().enumerate() {
            if level > 0 {
                walk(tree, node.children[place], level - 1, found);
            }
            found.push(*key);
        }
        if let Some(last) = node.children.last() {
            walk(tree, *last, level - 1, found);
        }
        assert_eq!(node.total, (found.len() - before) as u64);
    }
    let mut found = Vec::new();
    walk(tree, tree.root, tree.depth, &mut found);
    assert!(found.iter().eq(known.keys()), "all records, in order");
    assert!(known.iter().all(|(key, record)| tree.get(key) == Some(*record)));
    assert_eq!(tree.present().count(), known.len());
    assert!(tree.depth as u64 <= tree.shape.levels_max(known.len() as u64));
}

#[test]
fn records_are_found_in_any_order_of_insertion() {
    for step in [1, 7919, 99_991] {
        let (mut tree, mut known, mut end) = (Btree::new(&element(), RANK), BTreeMap::new(), 0);
        for number in 0..5000_u64 {
            let key = number * step % 100_003;
            assert_eq!(tree.set(key, record(key)), known.insert(key, record(key)));
            if number % 700 == 0 {
                store(&mut tree, &mut end);
                check(&tree, &known);
            }
        }
        assert_eq!(tree.set(7919, record(3)), known.insert(7919, record(3)));
        check(&tree, &known);
    }
}

/// A chunk in sequence changes the nodes on its path, whatever the number of chunks. Full nodes are not written again.
#[test]
fn nodes_are_written_once_they_change() {
    let (mut tree, mut end, mut most) = (Btree::new(&element(), RANK), 0, 0);
    for number in 0..20_000 {
        tree.set(number, record(number));
        most = most.max(store(&mut tree, &mut end));
    }
    assert!(most <= 2 * (tree.depth as u64 + 1), "{most} nodes");
    let superseded = tree.take_superseded();
    let lost: u64 = superseded.iter().map(|range| range.end - range.start).sum();
    assert_eq!(end - lost, tree.bytes(), "every other node belongs to the tree");
    let leaves = 20_000_u64.div_ceil(tree.shape.leaf_records());
    assert!(tree.bytes() < (leaves + leaves / 8 + 8) * NODE_BYTES as u64, "nodes are full");
    assert_eq!(tree.set(5, record(5)), Some(record(5)));
    assert_eq!(tree.changed_bytes(), 0, "nothing changed");
}
