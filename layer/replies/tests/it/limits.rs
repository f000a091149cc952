//! Limits of the number and age of outcomes.

use std::time::Duration;

use tombolo_core::Error;
use tombolo_layer_replies::{Limits, Options};

use crate::fixture::{Bottom, Fixture, keyed, rpc};

fn fixture(limits: Limits) -> Fixture {
    Fixture::with(Bottom::Memory, &Options { durable: limits, ..Options::default() }, |export| export)
}

fn mkdir(fixture: &Fixture, client: u64, xid: u32) -> bool {
    match keyed(fixture, rpc(client, xid)).mkdir(&format!("{client}.{xid}")) {
        Ok(_) => true,
        Err(Error::Exists) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_client_keeps_its_newest() {
    let fixture = fixture(Limits { entries: 5, entries_per_client: 4, ..Limits::default() });
    assert!(mkdir(&fixture, 2, 0), "another client");
    (0..10).for_each(|xid| assert!(mkdir(&fixture, 1, xid)));
    let known: Vec<_> = (6..10).map(|xid| mkdir(&fixture, 1, xid)).collect();
    assert_eq!(known, [true; 4]);
    assert!(mkdir(&fixture, 2, 0), "the other client's is untouched");
    assert!(!mkdir(&fixture, 1, 5), "this one was forgotten, and gets the plain answer");
    assert_eq!(fixture.export.counters().read().evicted, 7);
}

#[test]
fn client_may_exceed_its_share_while_space_remains() {
    let fixture = fixture(Limits { entries: 64, entries_per_client: 4, ..Limits::default() });
    (0..64).for_each(|xid| assert!(mkdir(&fixture, 1, xid)));
    assert!((0..64).all(|xid| mkdir(&fixture, 1, xid)), "all are known");
    assert_eq!(fixture.export.counters().read().evicted, 0);
}

/// Checks that clients keep their entries in any shard although another client has filled the table.
#[test]
fn late_client_does_not_evict_its_own_entries() {
    let fixture = fixture(Limits { entries: 256, ..Limits::default() });
    (0..256).for_each(|xid| assert!(mkdir(&fixture, 0, xid)));
    for client in 1..=16 {
        assert!((0..4).all(|xid| mkdir(&fixture, client, xid)));
        assert!((0..4).all(|xid| mkdir(&fixture, client, xid)), "client {client}");
    }
    assert!(mkdir(&fixture, 0, 255), "the oldest made room");
}

#[test]
fn all_clients_together_keep_so_many() {
    let fixture = fixture(Limits { entries: 64, ..Limits::default() });
    for client in 0..1000 {
        assert!(mkdir(&fixture, client, 0));
    }
    // From the newest on, because an unknown request creates an entry, for its refusal, and evicts another.
    let is_known = |client: &u64| {
        let before = fixture.ran("mkdir");
        mkdir(&fixture, *client, 0);
        fixture.ran("mkdir") == before
    };
    let known = (0..1000).rev().take_while(is_known).count();
    assert!((1..=64).contains(&known), "the {known} newest are known");
    let counted = fixture.export.counters().read();
    assert_eq!(counted.recorded - counted.evicted, 64);
    assert!(mkdir(&fixture, 2000, 0) && mkdir(&fixture, 2000, 0), "the newest is known");
}

#[test]
fn an_outcome_is_forgotten_after_its_time() {
    let fixture = fixture(Limits { age: Duration::from_millis(400), ..Limits::default() });
    assert!(mkdir(&fixture, 1, 0) && mkdir(&fixture, 1, 0));
    std::thread::sleep(Duration::from_millis(450));
    assert!(!mkdir(&fixture, 1, 0));
    (1..6).for_each(|xid| assert!(mkdir(&fixture, 1, xid)));
    std::thread::sleep(Duration::from_millis(450));
    assert!(!mkdir(&fixture, 1, 5), "not the oldest, but too old");
    assert!(mkdir(&fixture, 1, 100));
    assert_eq!(fixture.export.counters().read().evicted, 7, "what is too old goes as others come");
}

#[test]
fn writes_do_not_evict_durable_outcomes() {
    let limits = Limits { entries: 4, ..Limits::default() };
    let fixture =
        Fixture::with(Bottom::Memory, &Options { durable: limits, fleeting: limits }, |export| export);
    assert!(mkdir(&fixture, 1, 0));
    let file = fixture.file("file");
    for xid in 0..100 {
        keyed(&fixture, rpc(1, xid)).write(file, 0, &[0; 10]).expect("write");
    }
    assert!(mkdir(&fixture, 1, 0));
}

#[test]
fn without_room_a_request_runs_all_the_same() {
    let fixture = fixture(Limits { entries: 0, entries_per_client: 0, ..Limits::default() });
    assert!(mkdir(&fixture, 1, 0));
    assert!(!mkdir(&fixture, 1, 0));
    assert_eq!(fixture.export.counters().read().unremembered, 2);
}
