use super::*;

fn identity(inode: u64, birth: u64) -> Identity {
    Identity { key: Key { inode, device: 1, mount: 0 }, birth, kind: 0 }
}

#[test]
fn a_reference_lives_as_long_as_its_look_ups_and_is_never_given_out_again() {
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
fn an_open_file_is_known_by_its_number_alone_and_a_closed_one_is_not() {
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
fn a_number_is_kept_for_a_forgotten_file_and_for_no_other() {
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
fn a_reused_inode_number_is_another_node_and_spares_the_old_one() {
    let table = NodeTable::new();
    let old = table.adopt(identity(7, 1), None, Anchor::None).node;
    assert_eq!(table.hit(&identity(7, 2)), None);
    let new = table.adopt(identity(7, 2), None, Anchor::None).node;
    assert_ne!(old, new);
    table.forget(old, 1);
    assert_eq!(table.hit(&identity(7, 2)), Some(new));
}

#[test]
fn a_node_that_others_are_anchored_to_goes_with_the_last_of_them() {
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
