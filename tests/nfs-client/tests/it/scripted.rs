//! The scripted server itself.

use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::client::{Expect, Nfs, Stream, Transport};
use tombolo_nfs_tests::test_server::{PATH, TestServer};
use tombolo_wire_nfs3::results::GetattrReply;
use tombolo_wire_nfs3::{Call, Fattr3, Procedure, Status};

/// Offset of the mode in the results of GETATTR, behind status and type.
const MODE_AT: usize = 8;

#[test]
fn unscripted_replies_pass_through_over_both_transports() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |_| ScriptedReply::Forward);
    for transport in [Transport::Tcp, Transport::Udp] {
        let nfs = Nfs::connect(transport, server.address()).expect("a connection");
        assert_eq!(nfs.root(PATH), honest.nfs().root(PATH));
    }
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn scripted_replies_apply_to_their_calls_only() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |asked: &ReceivedCall<'_>| match asked.nth {
        2 if asked.is(Procedure::Getattr) => asked.results(&GetattrReply::Failed(Status::Io, ())),
        3 if asked.is(Procedure::Getattr) => ScriptedReply::patched(MODE_AT, &0o7123_u32.to_be_bytes()),
        _ => ScriptedReply::Forward,
    });
    let nfs = Nfs::connect(Transport::Tcp, server.address()).expect("a connection");
    let root = nfs.root(PATH);
    let truth = nfs.getattr(&root).done();
    nfs.getattr(&root).failed(Status::Io);
    let changed = Fattr3 { mode: 0o7123, ..truth };
    assert_eq!(nfs.getattr(&root).done(), changed);
    assert_eq!(nfs.getattr(&root).done(), truth);
    assert_eq!(server.count_of(Procedure::Getattr), 4);
}

#[test]
fn script_closes_one_connection_and_others_stay() {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), |asked: &ReceivedCall<'_>| match asked.connection {
        0 => ScriptedReply::Reset,
        1 => ScriptedReply::Silence,
        _ => ScriptedReply::Close,
    });
    let ask = || {
        let mut stream = Stream::connect(server.address()).expect("a connection");
        let call = honest.nfs().message(&Call::Null, &[]);
        stream.send(&call.to_bytes()).expect("the call is sent");
        stream
    };
    let mut reset = ask();
    assert_eq!(reset.receive().expect("an end"), None);
    let mut silent = ask();
    assert!(silent.is_quiet_for(Duration::from_millis(100)));
    let mut closed = ask();
    assert_eq!(closed.receive().expect("an end"), None);
    server.reset_all();
    assert_eq!(silent.receive().expect("an end"), None);
}
