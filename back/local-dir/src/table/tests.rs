use super::*;

fn identity(inode: u64, birth: u64) -> Identity {
    Identity { key: Key { inode, device: 1, mount: 0 }, birth, kind: 0 }
}

#[test]
fn node_id_lives_with_its_look_ups() {
    let table = NodeTable::new();
    let first = table.adopt(identity(7, 1), None, Anchor::None).node;
    assert_eq!(table.hit(&identity(7, 1)), Some(first));
    assert_eq!(table.forget(first, 1).nodes, 0);
    assert!(table.find(first).is_ok());
    assert_eq!(table.forget(first, 99).nodes, 1);
    assert!(matches!(table.find(first), Err(Error::Stale)));
    assert_eq!(table.forget(first, 1).nodes, 0);
    let second = table.adopt(identity(7, 1), None, Anchor::None).node;
    assert_ne!(first, second);
    assert!(matches!(table.find(first), Err(Error::Stale)));
}

/// Returns a syntactically valid handle.
fn handle() -> Anchor {
    Anchor::Handle(FileHandle::from_parts(1, &[7; 8]).expect("a handle"))
}

#[test]
fn inode_number_alone_identifies_only_open_files() {
    let table = NodeTable::new();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let born_now = identity(7, since_1970.as_nanos() as u64);
    let node = table.adopt(born_now, None, handle()).node;
    assert_eq!(table.hit(&born_now), None, "removed, its number and birth may be another's within a tick");
    table.opens(node);
    table.opens(node);
    assert_eq!(table.hit(&born_now), Some(node));
    table.closes(node);
    assert_eq!(table.hit(&born_now), Some(node));
    table.closes(node);
    assert_eq!(table.hit(&born_now), None);

    // An open file that outlives its node does not protect a later node.
    table.opens(node);
    table.forget(node, 9);
    assert_eq!(table.adopt(born_now, None, handle()).node, node);
    assert_eq!(table.hit(&born_now), None);
}

#[test]
fn number_is_retained_for_its_forgotten_file_only() {
    let table = NodeTable::new();
    let first = table.adopt(identity(7, 1), None, handle()).node;
    assert_eq!(table.forget(first, 1).nodes, 1);
    assert!(matches!(table.find(first), Err(Error::Stale)) && table.hit(&identity(7, 1)).is_none());
    assert_eq!(table.forgotten(first).map(|(identity, _)| identity), Some(identity(7, 1)));
    let again = table.adopt(identity(7, 1), None, handle());
    assert!(again.node == first && again.is_new);
    assert!(table.find(first).is_ok() && table.forgotten(first).is_none());

    assert_eq!(table.forget(first, 1).nodes, 1);
    let other = table.adopt(identity(7, 2), None, handle()).node;
    assert_ne!(other, first);
    assert!(table.forgotten(first).is_some_and(|(identity, _)| identity.birth == 1));
    table.forget(other, 1);
}

#[test]
fn numbers_of_forgotten_files_are_bounded() {
    let table = NodeTable::new();
    let nodes: Vec<_> = (0..2 * SHARDS * FORGOTTEN_MAX)
        .map(|inode| table.adopt(identity(inode as u64, 1), None, handle()).node)
        .collect();
    assert_eq!(nodes.iter().map(|&node| table.forget(node, 1).nodes).sum::<u64>(), nodes.len() as u64);
    let kept = nodes.iter().filter(|&&node| table.forgotten(node).is_some()).count();
    assert!(kept <= SHARDS * FORGOTTEN_MAX, "{kept}");
    assert!(table.shards.iter().all(|shard| shard.lock().expect("sound").index.len() <= FORGOTTEN_MAX));
    // Their slots are reused without being counted twice.
    let again = nodes.iter().map(|node| table.forget(*node, 1).nodes).sum::<u64>();
    assert_eq!(again, 0);
}

#[test]
fn reused_inode_number_becomes_another_node() {
    let table = NodeTable::new();
    let old = table.adopt(identity(7, 1), None, Anchor::None).node;
    assert_eq!(table.hit(&identity(7, 2)), None);
    let new = table.adopt(identity(7, 2), None, Anchor::None).node;
    assert_ne!(old, new);
    table.forget(old, 1);
    assert_eq!(table.hit(&identity(7, 2)), Some(new));
}

#[test]
fn anchor_node_outlives_its_dependants() {
    let table = NodeTable::new();
    let parent = table.adopt(identity(1, 1), None, Anchor::None).node;
    let name = Name::new(b"child").expect("a name").to_owned();
    let child = table.adopt(identity(2, 1), None, Anchor::Name(Box::new((parent, name)))).node;
    assert_eq!(table.forget(parent, 1).nodes, 0);
    assert!(table.find(parent).is_ok());
    assert_eq!(table.forget(child, 1).nodes, 2);
    assert!(table.find(parent).is_err());
}

#[test]
fn a_hundred_thousand_nodes_stay_small() {
    assert!(size_of::<NodeSlot>() <= 96, "{}", size_of::<NodeSlot>());
}
