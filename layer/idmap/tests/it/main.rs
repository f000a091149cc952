//! Ids mapped in both directions, and a client's view of a tree with mapped owners.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{
    Client, Create, Export, FileSystem, Mode, Name, NewMode, NodeId, PermissionCheck, SetAttr,
};
use tombolo_core::{Ctx, Identity, Result, SessionId};
use tombolo_layer_idmap::{IdMap, IdRange, Ids, MapError, over};

const NOBODY: u32 = 65_534;

fn ids(ranges: &[&str]) -> Ids {
    Ids::new(ranges.iter().map(|range| range.parse().unwrap()).collect(), NOBODY).unwrap()
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    for bad in
        ["", "1", "1:2:0", "1:2:3:4", "a:1", "-1:2", "4294967295:1", "1:4294967295", "4294967000:1:400"]
    {
        assert!(matches!(bad.parse::<IdRange>(), Err(MapError::Malformed(_))), "{bad}");
    }
    let overlap = |one: &str, other: &str| {
        let ranges = vec![one.parse().unwrap(), other.parse().unwrap()];
        matches!(Ids::new(ranges, NOBODY), Err(MapError::Overlap(..)))
    };
    assert!(overlap("1000:5000:10", "1009:6000"), "one client's id would be two here");
    assert!(overlap("1000:5000:10", "2000:5009"), "two clients' ids would be one here");
    assert!(!overlap("1000:5000:10", "1010:5010"));
}

#[test]
fn ids_outside_ranges_map_without_affecting_root() {
    let none = ids(&[]);
    assert_eq!((none.inward(7), none.outward(7)), (Some(7), Some(7)));
    let some = ids(&["1000:5000:2"]);
    assert_eq!(
        [0, 1000, 1001, 1002, 5000].map(|id| some.inward(id)),
        [Some(0), Some(5000), Some(5001), None, None]
    );
    assert_eq!([0, 5001, 1000].map(|id| some.outward(id)), [Some(0), Some(1001), None]);
    let with_root = ids(&["0:100000:65536"]);
    assert_eq!((with_root.inward(0), with_root.outward(0)), (Some(100_000), None));
}

proptest! {
    #[test]
    fn id_mapping_is_invertible(
        ranges in proptest::collection::vec((0..5000_u32, 0..5000_u32, 1..400_u32), 1..6),
        probes in proptest::collection::vec(0..6000_u32, 1..60),
    ) {
        let ranges: Vec<IdRange> = ranges
            .iter()
            .map(|(client, here, count)| format!("{client}:{here}:{count}").parse().unwrap())
            .collect();
        // Overlapping ranges would be refused, so they are skipped.
        let ids = ranges.iter().fold(Vec::new(), |mut taken, range| {
            taken.push(*range);
            if Ids::new(taken.clone(), NOBODY).is_err() {
                taken.pop();
            }
            taken
        });
        let ids = Ids::new(ids, NOBODY).unwrap();
        let mut seen = std::collections::HashMap::new();
        for id in probes {
            if let Some(here) = ids.inward(id) {
                prop_assert_eq!(ids.outward(here), Some(id));
                prop_assert_eq!(*seen.entry(here).or_insert(id), id);
            }
            if let Some(client) = ids.outward(id) {
                prop_assert_eq!(ids.inward(client), Some(id));
            }
        }
    }
}

/// Creates a tree, seen by its clients and by the host.
fn tree() -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>) {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    let client = |session| Client {
        session: SessionId(session),
        label: "test".into(),
        checks: PermissionCheck::BackEnd,
    };
    let map = IdMap { users: ids(&["1000:5000:10"]), groups: ids(&["100:600", "101:601"]) };
    let mapped = over(memory.clone(), map).attach(&client(1)).unwrap();
    (mapped, memory.attach(&client(2)).unwrap())
}

fn of(session: u64, uid: u32, gid: u32, groups: &[u32]) -> Ctx {
    let groups = (!groups.is_empty()).then(|| groups.into());
    Ctx { identity: Identity { uid, gid, groups }, ..Ctx::root(SessionId(session)) }
}

/// Formats a result for comparison.
fn shown<T: std::fmt::Debug>(outcome: &Result<T>) -> String {
    format!("{outcome:?}")
}

const DONE: &str = "Ok(())";

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn owners_are_those_of_each_side_and_rights_follow() {
    let (clients, here) = tree();
    let root = of(1, 0, 0, &[]);
    let open = SetAttr { mode: Some(Mode::new(0o777)), ..SetAttr::default() };
    clients.setattr(&root, NodeId::ROOT, None, &open).wait().unwrap();
    let make = |cx: &Ctx, file: &str, mode| {
        let how = Create { mode: NewMode::settled(Mode::new(mode)), ..Create::default() };
        clients.create(cx, NodeId::ROOT, name(file), &how).wait()
    };
    let made = make(&of(1, 1003, 101, &[]), "hers", 0o640).unwrap();
    assert_eq!((made.entry.attr.uid, made.entry.attr.gid), (1003, 101));
    let look = |file: &str| here.lookup(&of(2, 0, 0, &[]), NodeId::ROOT, name(file)).wait().unwrap().attr;
    assert_eq!((look("hers").uid, look("hers").gid), (5003, 601));
    // In the group by the client's id, but not by the host's.
    let node = made.entry.node;
    let may_read = |cx: &Ctx| clients.access(cx, node, tombolo_core::fs::AccessMask::READ).wait();
    assert_eq!(shown(&may_read(&of(1, 1004, 100, &[101]))), DONE);
    assert_eq!(shown(&may_read(&of(1, 1004, 100, &[601]))), "Err(AccessDenied)");
    assert_eq!(shown(&may_read(&of(1, 5003, 100, &[]))), "Err(AccessDenied)", "the number that she has here");
    // A user without a mapping creates files of the anonymous user.
    let made = make(&of(1, 3000, 3000, &[]), "nobodys", 0o600).unwrap();
    assert_eq!((made.entry.attr.uid, look("nobodys").uid, look("nobodys").gid), (NOBODY, NOBODY, NOBODY));
    let give = |uid| {
        let set = SetAttr { uid: Some(uid), ..SetAttr::default() };
        clients.setattr(&root, node, None, &set).wait().map(|(attr, _)| attr.uid)
    };
    assert_eq!(shown(&give(1009)), "Ok(1009)");
    assert_eq!(look("hers").uid, 5009);
    assert_eq!(shown(&give(3000)), "Err(InvalidArgument)");
    // An owner unknown to clients.
    let set = SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() };
    let entry = here.lookup(&of(2, 0, 0, &[]), NodeId::ROOT, name("hers")).wait().unwrap();
    here.setattr(&of(2, 0, 0, &[]), entry.node, None, &set).wait().unwrap();
    let attr = clients.getattr(&root, node, None).wait().unwrap();
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));
}

#[test]
fn access_lists_name_the_users_of_each_side() {
    use tombolo_core::fs::{XattrName, XattrSet};
    let (clients, here) = tree();
    let root = of(1, 0, 0, &[]);
    let how = Create { mode: NewMode::settled(Mode::new(0o640)), ..Create::default() };
    let node = clients.create(&root, NodeId::ROOT, name("file"), &how).wait().unwrap().entry.node;
    let entry =
        |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let list = |user: u32, group: u32| {
        let entries =
            [entry(1, u32::MAX), entry(2, user), entry(4, u32::MAX), entry(8, group), entry(16, u32::MAX)];
        [&2_u32.to_le_bytes()[..], &entries.concat(), &entry(32, u32::MAX)].concat()
    };
    let acl = XattrName::new(b"system.posix_acl_access").unwrap();
    let set =
        |value: &[u8]| clients.xattrs().unwrap().set(&root, node, acl, value, XattrSet::Any, false).wait();
    assert_eq!(shown(&set(&list(1001, 100))), DONE);
    assert_eq!(clients.xattrs().unwrap().get(&root, node, acl, 1000).wait().unwrap(), list(1001, 100));
    let inner = here.lookup(&of(2, 0, 0, &[]), NodeId::ROOT, name("file")).wait().unwrap().node;
    let list_here = here.xattrs().unwrap().get(&of(2, 0, 0, &[]), inner, acl, 1000).wait();
    assert_eq!(list_here.unwrap(), list(5001, 600));
    assert_eq!(shown(&set(&list(3000, 100))), "Err(InvalidArgument)");
}
