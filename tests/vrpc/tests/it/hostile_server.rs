//! A client against servers that violate the protocol above the ring: the call fails, the link is cut, and
//! every later call fails. No violation is taken for data.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_back_vrpc_client::{LinkLossPolicy, VrpcExport, VrpcFileSystem};
use tombolo_core::Error;
use tombolo_core::fs::{
    Attr, Change, Cookie, Created, DirBudget, DirEntry, DirPage, Entry, FileType, Mode, NodeId, OpenId,
    Opened, Written,
};
use tombolo_mem::Buffer;
use tombolo_test_support::{Session, budget, plain};
use tombolo_vrpc_tests::made_up::{Dial, MadeUp, Said, said, terms};
use tombolo_vrpc_tests::site::client;
use tombolo_wire_vrpc::listing::ListingWriter;
use tombolo_wire_vrpc::{FrameBuf, Kind, Reply, Returned, Session as Terms};

/// Reply of a hostile peer to a kind of request.
type HostileReply = fn(Kind) -> Said;

/// Returns an export of a peer that opens a session with these terms, and then violates the protocol.
fn hostile(terms: Terms, reply: HostileReply) -> VrpcExport {
    let service = MadeUp::replying(move |kind| match kind {
        Kind::Profile => said(kind, &Reply::Session(terms)),
        Kind::Caller => said(kind, &Reply::Done),
        Kind::Open => said(kind, &Reply::Opened(Opened { open: OpenId(1), attr: None }, false)),
        _ => reply(kind),
    });
    VrpcExport::new(Dial(service)).with_link_loss_policy(LinkLossPolicy::None)
}

fn attr() -> Attr {
    Attr {
        file_type: FileType::Regular,
        mode: Mode::new(0o644),
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 5,
        blocks: 1,
        block_size: 4096,
        rdev: Default::default(),
        fsid: 1,
        fileid: 2,
        generation: 0,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        btime: None,
        volatile: false,
    }
}

fn facing(reply: HostileReply) -> (Arc<VrpcFileSystem>, Session) {
    let fs = hostile(terms(), reply).attach_session(&client()).expect("a session");
    (fs.clone(), Session::of(fs))
}

/// Asserts that a call fails which gets this reply, and that the link is unusable.
fn is_refused<T: Debug>(reply: HostileReply, call: impl FnOnce(&Session) -> Result<T, Error>) {
    let (fs, session) = facing(reply);
    let result = call(&session);
    assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    assert!(fs.end().is_some(), "the link goes on");
    let next = session.lookup(NodeId::ROOT);
    assert!(matches!(next, Err(Error::Disconnected)), "{next:?}");
}

fn read(session: &Session, len: usize) -> Result<usize, Error> {
    let mut buffer = Buffer::new(len);
    let file = session.reader(NodeId::ROOT);
    let result = session.fs.read(&session.cx, file, 0, buffer.sink(0..len)).wait().map(|done| done.count);
    assert!(result.is_ok() || buffer.as_slice().is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0)));
    result
}

fn list(session: &Session, size_bytes: usize) -> Result<DirPage, Error> {
    session.readdir(session.reader(NodeId::ROOT), Cookie::START, budget(size_bytes, false))
}

#[test]
fn a_promise_without_the_extension_is_a_violation() {
    let reply = |kind| {
        let entry = Entry { node: NodeId(2), attr: attr() };
        let created = Created { entry, open: OpenId(1), dir: Change::default() };
        said(kind, &Reply::Created(created, None, true))
    };
    is_refused(reply, |session| session.create("file", &plain()));
}

#[test]
fn limits_that_let_nothing_through_are_no_limits() {
    let bad = [Terms { transfer_bytes_max: 0, ..terms() }, Terms { callers_max: 0, ..terms() }];
    for terms in bad {
        let refused = hostile(terms, |kind| said(kind, &Reply::Done)).attach_session(&client());
        assert!(refused.is_err(), "a session in which nothing could be read");
    }
}

#[test]
fn reply_of_another_kind_is_refused() {
    let reply = |_| said(Kind::Lookup, &Reply::Entry(Entry { node: NodeId(2), attr: attr() }, None));
    is_refused(reply, |session| session.lookup(NodeId::ROOT));
}

#[test]
fn out_of_range_attributes_are_refused() {
    let reply = |kind| {
        let (number, body, mut frame) = said(kind, &Reply::Attr(attr()));
        frame.fill(0xff);
        (number, body, frame)
    };
    is_refused(reply, |session| session.lookup(NodeId::ROOT));
}

#[test]
fn truncated_frame_is_refused() {
    let reply = |kind| {
        let (number, body, mut frame) =
            said(kind, &Reply::Entry(Entry { node: NodeId(2), attr: attr() }, None));
        frame.truncate(40);
        (number, body, frame)
    };
    is_refused(reply, |session| session.lookup("file"));
}

#[test]
fn more_or_other_data_than_requested_are_refused() {
    let replies: [(usize, HostileReply); 4] = [
        (100, |kind| said(kind, &Reply::Read(Returned::Inline(&[1; 101]), false))),
        (8192, |kind| said(kind, &Reply::Read(Returned::Placed { len_bytes: 8193 }, false))),
        // In bulk memory where the frame was meant, and the other way round.
        (100, |kind| said(kind, &Reply::Read(Returned::Placed { len_bytes: 10 }, true))),
        (8192, |kind| said(kind, &Reply::Read(Returned::Inline(&[1; 10]), true))),
    ];
    for (len, reply) in replies {
        is_refused(reply, |session| read(session, len));
    }
}

#[test]
fn more_written_than_was_sent_is_refused() {
    let reply = |kind| {
        let written = Written { count: 101, stability: Default::default(), file: Default::default() };
        said(kind, &Reply::Written(written))
    };
    is_refused(reply, |session| session.write(session.reader(NodeId::ROOT), 0, &[1; 100]));
}

/// Encodes a listing with one entry of this name.
fn listing(kind: Kind, name: &[u8]) -> Said {
    let mut memory = [0; 512];
    let mut frame = FrameBuf::new(&mut memory);
    let placeholder = vec![b'x'; name.len()];
    let mut writer = ListingWriter::new(&mut frame);
    let entry = DirEntry { name: &placeholder, fileid: 3, file_type: None, cookie: Cookie(1), entry: None };
    assert!(writer.push(&entry));
    let mut bytes = frame.as_bytes().to_vec();
    let at = bytes.len() - name.len();
    bytes[at..].copy_from_slice(name);
    said(kind, &Reply::Readdir(Returned::Inline(&bytes), true))
}

#[test]
fn listed_names_with_slash_or_nul_are_refused() {
    is_refused(|kind| listing(kind, b"a/b"), |session| list(session, 4096));
    is_refused(|kind| listing(kind, b"a\0b"), |session| list(session, 4096));
    // Control: the same listing with a valid name is accepted.
    let (_, session) = facing(|kind| listing(kind, b"a-b"));
    assert_eq!(list(&session, 4096).expect("a page").len(), 1);
}

#[test]
fn overlong_listing_is_truncated_and_not_at_end() {
    let (_, session) = facing(|kind| match kind {
        Kind::Readdir => listing(kind, &[b'n'; 200]),
        _ => said(kind, &Reply::Done),
    });
    let page = list(&session, 100).expect("a page");
    assert!(page.is_empty() && !page.is_end());
}

/// Encodes sixteen entries with new nodes.
fn endless(kind: Kind) -> Said {
    static LAST: AtomicU64 = AtomicU64::new(1000);
    let mut memory = [0; 4096];
    let mut frame = FrameBuf::new(&mut memory);
    let mut writer = ListingWriter::new(&mut frame);
    for _ in 0..16 {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { node: NodeId(number), attr: attr() };
        let (cookie, name) = (Cookie(number), number.to_string());
        assert!(writer.push(&DirEntry {
            name: name.as_bytes(),
            fileid: number,
            file_type: None,
            cookie,
            entry: Some(&entry),
        }));
    }
    let bytes = frame.as_bytes().to_vec();
    said(kind, &Reply::Readdir(Returned::Inline(&bytes), false))
}

/// Bounds the nodes of one listing: the kernel retains each until its own memory runs short.
#[test]
fn endless_directory_returns_few_nodes() {
    let reply = |kind| match kind {
        Kind::Readdir => endless(kind),
        _ => said(kind, &Reply::Done),
    };
    let mut nodes = 0;
    // Beyond the bound the client requested names only, but the server sent nodes.
    is_refused::<()>(reply, |session| {
        let file = session.reader(NodeId::ROOT);
        loop {
            let budget = DirBudget { size_bytes: 4096, entry_bytes: 128, align: 8, plus: true };
            nodes += session.readdir(file, Cookie::START, budget)?.len();
            assert!(nodes <= 200_000, "there is no end to it");
        }
    });
    assert!((100_000..=131_072 + 16).contains(&nodes), "{nodes}");
}

#[test]
fn unknown_error_number_is_refused() {
    let reply = |kind: Kind| {
        let (_, mut body, _) = said(Kind::Null, &Reply::Done);
        body[0] = 200;
        (kind.reply_number(), body, Vec::new())
    };
    is_refused(reply, |session| session.fs.syncfs(&session.cx).wait());
}
