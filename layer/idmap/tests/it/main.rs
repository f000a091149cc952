//! Ids mapped in both directions, and a client's view of a tree with mapped owners.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;
use tombolo_back_memory::Memory;
use tombolo_core::Error;
use tombolo_core::fs::{AccessMask, Create, Export, SetAttr};
use tombolo_layer_idmap::{IdMap, IdRange, Ids, MapError, over};
use tombolo_test_support::{Session, mode};

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
fn tree() -> (Session, Session) {
    let memory: Arc<dyn Export> = Arc::new(Memory::default());
    let map = IdMap { users: ids(&["1000:5000:10"]), groups: ids(&["100:600", "101:601"]) };
    (Session::attach(&over(memory.clone(), map)), Session::attach(&*memory))
}

#[test]
fn owners_are_those_of_each_side_and_rights_follow() {
    let (clients, here) = tree();
    clients.chmod("", 0o777).unwrap();
    let make = |uid, gid, file: &str, bits| {
        let how = Create { mode: mode(bits), ..Create::default() };
        clients.as_user(uid, gid, &[]).create(file, &how).unwrap().entry
    };
    let made = make(1003, 101, "hers", 0o640);
    assert_eq!((made.attr.uid, made.attr.gid), (1003, 101));
    let owners = |file: &str| (here.attr(file).uid, here.attr(file).gid);
    assert_eq!(owners("hers"), (5003, 601));
    // In the group by the client's id, but not by the host's.
    let may_read =
        |uid, groups: &[u32]| clients.as_user(uid, 100, groups).access(made.node, AccessMask::READ);
    may_read(1004, &[101]).unwrap();
    assert!(matches!(may_read(1004, &[601]), Err(Error::AccessDenied)));
    assert!(matches!(may_read(5003, &[]), Err(Error::AccessDenied)), "the number that she has here");
    // A user without a mapping creates files of the anonymous user.
    assert_eq!(make(3000, 3000, "nobodys", 0o600).attr.uid, NOBODY);
    assert_eq!(owners("nobodys"), (NOBODY, NOBODY));
    let give = |uid| clients.setattr(made.node, SetAttr { uid: Some(uid), ..SetAttr::default() });
    assert_eq!(give(1009).unwrap().0.uid, 1009);
    assert_eq!(owners("hers").0, 5009);
    assert!(matches!(give(3000), Err(Error::InvalidArgument)));
    // An owner unknown to clients.
    here.chown("hers", 7, 8).unwrap();
    let attr = clients.attr(made.node);
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));
}

#[test]
fn access_lists_name_the_users_of_each_side() {
    let (clients, here) = tree();
    let entry =
        |tag: u16, id: u32| [&tag.to_le_bytes()[..], &6_u16.to_le_bytes(), &id.to_le_bytes()].concat();
    let list = |user: u32, group: u32| {
        let entries =
            [entry(1, u32::MAX), entry(2, user), entry(4, u32::MAX), entry(8, group), entry(16, u32::MAX)];
        [&2_u32.to_le_bytes()[..], &entries.concat(), &entry(32, u32::MAX)].concat()
    };
    let acl = "system.posix_acl_access";
    clients.create("file", &Create { mode: mode(0o640), ..Create::default() }).unwrap();
    clients.set_xattr("file", acl, &list(1001, 100)).unwrap();
    assert_eq!(clients.xattr("file", acl).unwrap(), list(1001, 100));
    assert_eq!(here.xattr("file", acl).unwrap(), list(5001, 600));
    assert!(matches!(clients.set_xattr("file", acl, &list(3000, 100)), Err(Error::InvalidArgument)));
}
