//! Numbers of callers: in whose name a request is performed.

use std::sync::{Arc, Mutex};

use tombolo_back_vrpc_client::VrpcExport;
use tombolo_core::fs::{FileSystem, NodeId, StatFs};
use tombolo_core::{Ctx, Error, Identity};
use tombolo_host_links::server::Responder;
use tombolo_test_support::until;
use tombolo_vrpc_tests::made_up::{Dial, MadeUp, said, terms};
use tombolo_vrpc_tests::site::{client, root};
use tombolo_wire_vrpc::{Kind, Reply, Session as Terms};

fn say(responder: Responder, kind: Kind, reply: &Reply<'_>) {
    let (number, body, frame) = said(kind, reply);
    responder.send(number, body, &frame);
}

/// Abandons a pending request. Its caller number must not be reused before the reply: the server could
/// execute the request for the wrong user.
#[test]
fn the_number_of_an_abandoned_request_is_not_reused() {
    let held = Arc::<Mutex<Vec<Responder>>>::default();
    let holds = held.clone();
    // A server with one number, which takes its time for SYNCFS.
    let server = MadeUp::serving(move |kind, responder| match kind {
        Kind::Profile => say(responder, kind, &Reply::Session(Terms { callers_max: 1, ..terms() })),
        Kind::Syncfs => holds.lock().expect("no panics").push(responder),
        Kind::Statfs => say(responder, kind, &Reply::StatFs(StatFs::default())),
        _ => say(responder, kind, &Reply::Done),
    });
    let fs = VrpcExport::new(Dial(server)).attach_session(&client()).expect("a session");
    let other = Ctx { identity: Identity { uid: 5, ..Identity::default() }, ..root() };
    let as_other = || fs.statfs(&other, NodeId::ROOT).wait();
    fs.statfs(&root(), NodeId::ROOT).wait().expect("the server knows root by its number");
    as_other().expect("nothing is under way");
    fs.statfs(&root(), NodeId::ROOT).wait().expect("nothing is under way");
    let asked = fs.syncfs(&root());
    assert!(!asked.is_done());
    drop(asked);
    assert!(matches!(as_other(), Err(Error::WouldBlock)), "the only number is in use");
    until("the number is free again", || {
        held.lock().expect("no panics").drain(..).for_each(|held| say(held, Kind::Syncfs, &Reply::Done));
        as_other().is_ok()
    });
}
