//! Duplicate requests: executed once, with the same reply for each copy.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::Export;
use tombolo_host_runtime::signing_keys::Keys;
use tombolo_layer_basic::delay;
use tombolo_layer_replies as replies;
use tombolo_nfs_tests::client::{Answer, Datagrams, Expect, Message, Stream, dir_op_args as at, mode};
use tombolo_nfs_tests::fixture::{Fixture, local_dir, scratch};
use tombolo_nfs_tests::on_each;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_wire_nfs3::args::{
    CreateArgs, CreateHow, LinkArgs, MkdirArgs, RenameArgs, SetattrArgs, StableHow, SymlinkArgs,
};
use tombolo_wire_nfs3::{Call, Sattr3, Status};

/// Serves a tree through the reply layer.
fn once_over(inner: Arc<dyn Export>) -> Fixture {
    let export = replies::over(inner, &replies::Options::default());
    Fixture::new(Plan::over(Arc::new(export)), None)
}

fn on_each(test: impl Fn(&Fixture)) {
    test(&once_over(Arc::new(Memory::default())));
    let tree = scratch();
    test(&once_over(local_dir(tree.path())));
}

/// Sends a message over a connection of its own.
fn over_new_connection(fixture: &Fixture, message: &Message) -> Answer {
    send_over(&mut fixture.server.stream(), message)
}

fn send_over(stream: &mut Stream, message: &Message) -> Answer {
    stream.send(&message.to_bytes()).expect("sent");
    stream.answer()
}

/// Asserts that the call succeeds, and that its repetition from another port returns the same reply and
/// changes nothing.
#[track_caller]
fn assert_once(fixture: &Fixture, call: &Call<'_>) {
    let message = fixture.nfs.message(call, b"");
    let first = over_new_connection(fixture, &message);
    assert_eq!(first.status(), Ok(()), "{call:?}");
    let names = fixture.names();
    for _ in 0..2 {
        let again = over_new_connection(fixture, &message);
        assert_eq!((again.xid, again.status()), (message.xid, Ok(())), "{call:?}, again");
    }
    assert_eq!(fixture.names(), names, "{call:?}");
}

on_each!(non_idempotent_calls_are_executed_once_from_any_port, |fixture| {
    let (file, dir) = (fixture.file("file", b"12345"), fixture.dir("dir"));
    let root = &fixture.root;
    let attributes = mode(0o700);
    assert_once(fixture, &Call::Mkdir(MkdirArgs { location: at(root, b"made"), attributes }));
    let how = CreateHow::Guarded(attributes);
    assert_once(fixture, &Call::Create(CreateArgs { location: at(root, b"created"), how }));
    let target = &b"target"[..];
    assert_once(fixture, &Call::Symlink(SymlinkArgs { location: at(root, b"symlink"), attributes, target }));
    assert_once(fixture, &Call::Link(LinkArgs { file: file.as_handle(), link: at(&dir, b"linked") }));
    let (from, to) = (at(root, b"created"), at(root, b"renamed"));
    assert_once(fixture, &Call::Rename(RenameArgs { from, to }));
    assert_once(fixture, &Call::Remove(at(root, b"renamed")));
    assert_once(fixture, &Call::Rmdir(at(root, b"made")));
    let guard = Some(fixture.attr(&file).ctime);
    let attributes = Sattr3 { size: Some(2), ..Sattr3::default() };
    assert_once(fixture, &Call::Setattr(SetattrArgs { object: file.as_handle(), attributes, guard }));
    assert_eq!(fixture.attr(&file).nlink, 2);
});

on_each!(a_created_node_is_replayed_with_its_handle, |fixture| {
    let attributes = mode(0o755);
    let call = Call::Mkdir(MkdirArgs { location: at(&fixture.root, b"dir"), attributes });
    let message = fixture.nfs.message(&call, b"");
    let [first, again] = [(); 2].map(|()| over_new_connection(fixture, &message));
    let handle = fixture.nfs.lookup(&fixture.root, b"dir").done().handle;
    let bytes = handle.as_handle().as_bytes();
    for answer in [first, again] {
        assert!(answer.bytes().windows(bytes.len()).any(|window| window == bytes));
    }
});

// Repeats a datagram, as a client does over UDP after a time-out.
on_each!(a_datagram_that_is_sent_again_is_done_once, |fixture| {
    let call = Call::Mkdir(MkdirArgs { location: at(&fixture.root, b"dir"), attributes: mode(0o755) });
    let bytes = fixture.nfs.message(&call, b"").to_bytes();
    let datagrams = Datagrams::connect(fixture.server.address()).expect("a socket");
    for _ in 0..3 {
        datagrams.send(&bytes).expect("sent");
    }
    for _ in 0..3 {
        assert_eq!(Answer::new(datagrams.receive().expect("a reply")).status(), Ok(()));
    }
    let elsewhere = Datagrams::connect(fixture.server.address()).expect("a socket");
    elsewhere.send(&bytes).expect("sent");
    assert_eq!(Answer::new(elsewhere.receive().expect("a reply")).status(), Ok(()));
});

on_each!(a_failure_is_replayed, |fixture| {
    fixture.dir("dir");
    let call = Call::Mkdir(MkdirArgs { location: at(&fixture.root, b"dir"), attributes: mode(0o755) });
    let message = fixture.nfs.message(&call, b"");
    assert_eq!(over_new_connection(fixture, &message).status(), Err(Status::Exist));
    fixture.nfs.rmdir(&fixture.root, b"dir").done();
    assert_eq!(over_new_connection(fixture, &message).status(), Err(Status::Exist), "the same request");
    assert_eq!(fixture.names(), Vec::<String>::new());
});

on_each!(a_replayed_unchecked_create_returns_the_same_file, |fixture| {
    let file = fixture.file("file", b"12345");
    let cut = Sattr3 { size: Some(0), ..Sattr3::default() };
    let how = CreateHow::Unchecked(cut);
    let call = Call::Create(CreateArgs { location: at(&fixture.root, b"file"), how });
    let message = fixture.nfs.message(&call, b"");
    let holds = |answer: &Answer| {
        let bytes = file.as_handle().as_bytes();
        answer.status() == Ok(()) && answer.bytes().windows(bytes.len()).any(|window| window == bytes)
    };
    assert!(holds(&over_new_connection(fixture, &message)));
    fixture.nfs.write(&file, 0, b"since", StableHow::FileSync).done();
    fixture.nfs.rename(&fixture.root, b"file", &fixture.root, b"moved").done();
    fixture.dir("file");
    assert!(holds(&over_new_connection(fixture, &message)), "the same request");
    assert_eq!(fixture.contents(&file), b"since", "it is cut once");
    fixture.nfs.rmdir(&fixture.root, b"file").done();
    assert!(holds(&over_new_connection(fixture, &message)));
    fixture.nfs.remove(&fixture.root, b"moved").done();
    assert_eq!(over_new_connection(fixture, &message).status(), Err(Status::Stale));
    assert_eq!(fixture.names(), Vec::<String>::new());
});

// Repeats a call after the file that the call named was removed.
on_each!(failed_link_is_replayed_after_its_file_is_removed, |fixture| {
    let file = fixture.file("file", b"");
    fixture.file("taken", b"");
    let link = |name| Call::Link(LinkArgs { file: file.as_handle(), link: at(&fixture.root, name) });
    let refused = fixture.nfs.message(&link(b"taken"), b"");
    assert_eq!(over_new_connection(fixture, &refused).status(), Err(Status::Exist));
    fixture.nfs.remove(&fixture.root, b"file").done();
    fixture.nfs.remove(&fixture.root, b"taken").done();
    assert_eq!(over_new_connection(fixture, &refused).status(), Err(Status::Exist), "the same request");
    let another = fixture.nfs.message(&link(b"new"), b"");
    assert_eq!(over_new_connection(fixture, &another).status(), Err(Status::Stale));
    assert_eq!(fixture.names(), Vec::<String>::new());
});

on_each!(another_request_with_the_same_xid_is_another_request, |fixture| {
    let call = |name| Call::Mkdir(MkdirArgs { location: at(&fixture.root, name), attributes: mode(0o755) });
    let one = fixture.nfs.message(&call(b"one"), b"");
    let other = Message { xid: one.xid, ..fixture.nfs.message(&call(b"two"), b"") };
    assert_eq!(over_new_connection(fixture, &one).status(), Ok(()));
    assert_eq!(over_new_connection(fixture, &other).status(), Ok(()));
    assert_eq!(fixture.names(), ["one", "two"]);
});

on_each!(another_client_with_the_same_xid_is_another_client, |fixture| {
    let call = Call::Mkdir(MkdirArgs { location: at(&fixture.root, b"dir"), attributes: mode(0o755) });
    let message = fixture.nfs.message(&call, b"");
    assert_eq!(over_new_connection(fixture, &message).status(), Ok(()));
    let elsewhere = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let mut other = Stream::connect_from(elsewhere, fixture.server.address()).expect("a connection");
    assert_eq!(send_over(&mut other, &message).status(), Err(Status::Exist));
});

#[test]
fn a_duplicate_waits_for_the_pending_reply() {
    let slow = delay::over(Arc::new(Memory::default()), Duration::from_millis(60)).expect("a timer");
    let export = replies::over(Arc::new(slow), &replies::Options::default());
    let counters = export.counters();
    let fixture = Fixture::new(Plan::over(Arc::new(export)), None);
    let call = Call::Mkdir(MkdirArgs { location: at(&fixture.root, b"dir"), attributes: mode(0o755) });
    let message = fixture.nfs.message(&call, b"");
    let mut streams: Vec<_> = (0..4).map(|_| fixture.server.stream()).collect();
    for stream in &mut streams {
        stream.send(&message.to_bytes()).expect("sent");
    }
    for stream in &mut streams {
        assert_eq!(stream.answer().status(), Ok(()));
    }
    let seen = counters.read();
    assert_eq!(seen.hits_in_progress + seen.hits_done, 3, "{seen:?}");
}

/// Starts a server as after a crash, with its predecessor's state file.
fn restarted(tree: &Path, state: &Path, keys: &Keys) -> Fixture {
    let path = state.join("replies");
    let export = replies::open(local_dir(tree), &replies::Options::default(), &path).expect("the state file");
    Fixture::new(Plan { keys: keys.clone(), ..Plan::over(Arc::new(export)) }, None)
}

#[test]
fn duplicate_is_recognized_after_restart() {
    let (tree, state) = (scratch(), scratch());
    let keys = Keys::random().expect("a key");
    let before = restarted(tree.path(), state.path(), &keys);
    let root = before.root;
    before.file("file", b"");
    let calls = [
        Call::Mkdir(MkdirArgs { location: at(&root, b"dir"), attributes: mode(0o755) }),
        Call::Remove(at(&root, b"file")),
    ];
    let messages = calls.map(|call| before.nfs.message(&call, b""));
    for message in &messages {
        assert_eq!(over_new_connection(&before, message).status(), Ok(()));
    }
    drop(before);
    let after = restarted(tree.path(), state.path(), &keys);
    for message in &messages {
        assert_eq!(over_new_connection(&after, message).status(), Ok(()), "as before the restart");
    }
    assert_eq!(after.names(), ["dir"]);
    after.nfs.mkdir(&root, b"dir", mode(0o755)).failed(Status::Exist);
}
