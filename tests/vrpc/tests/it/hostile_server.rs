//! A client against servers that violate the protocol above the ring: the call fails, the link is cut, and
//! every later call fails. No violation is taken for data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_back_vrpc_client::{LinkLossPolicy, VrpcExport, VrpcFileSystem};
use tombolo_core::Error;
use tombolo_core::fs::{
    Attr, Change, Cookie, Create, Created, DirBudget, DirPage, Entry, File, FileSystem, FileType,
    Mode as FileMode, Name, NodeId, OpenFlags, OpenId, Opened,
};
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Service, Session};
use tombolo_mem::Buffer;
use tombolo_vrpc_tests::made_up::{Dial, said, terms};
use tombolo_vrpc_tests::site::{client, root};
use tombolo_wire_vrpc::{Body, FrameBuf, Kind, Reply, Returned, Session as Terms};

/// Reply of a hostile peer to a kind of request: number, body, frame.
type HostileReply = fn(Kind) -> (u32, Body, Vec<u8>);

/// Service that opens a session with these terms and then violates the protocol.
#[derive(Clone, Copy)]
struct HostilePeer {
    terms: Terms,
    reply: HostileReply,
}

impl Service for HostilePeer {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(*self))
    }
}

impl Session for HostilePeer {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let kind = Kind::from_number(request.kind).expect("the client is honest");
        let (number, body, frame) = match kind {
            Kind::Profile => said(kind, &Reply::Session(self.terms)),
            Kind::Caller => said(kind, &Reply::Done),
            Kind::Open => said(kind, &Reply::Opened(Opened { open: OpenId(1), attr: None }, false)),
            _ => (self.reply)(kind),
        };
        responder.send(number, body, &frame);
    }
}

fn attr() -> Attr {
    Attr {
        file_type: FileType::Regular,
        mode: FileMode::new(0o644),
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

fn facing(reply: HostileReply) -> Arc<VrpcFileSystem> {
    let export = VrpcExport::new(Dial(Arc::new(HostilePeer { terms: terms(), reply })));
    export.with_link_loss_policy(LinkLossPolicy::None).attach_session(&client()).expect("a session")
}

/// Asserts that the call failed and that the link is unusable.
fn is_lost<T: std::fmt::Debug>(fs: &VrpcFileSystem, result: &Result<T, Error>) {
    assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    assert!(fs.end().is_some(), "the link goes on");
    let next = fs.getattr(&root(), NodeId::ROOT, None).wait();
    assert!(matches!(next, Err(Error::Disconnected)), "{next:?}");
}

fn file(fs: &VrpcFileSystem) -> File {
    let opened = fs.open(&root(), NodeId::ROOT, OpenFlags::READ).wait().expect("an opening");
    File { node: NodeId::ROOT, open: opened.open }
}

fn read(fs: &VrpcFileSystem, len: usize) -> Result<usize, Error> {
    let mut buffer = Buffer::new(len);
    let result = fs.read(&root(), file(fs), 0, buffer.sink(0..len)).wait().map(|done| done.count);
    assert!(result.is_ok() || buffer.as_slice().is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0)));
    result
}

fn list(fs: &VrpcFileSystem, size_bytes: usize) -> Result<DirPage, Error> {
    let page = DirPage::new(DirBudget { size_bytes, entry_bytes: 24, align: 8, plus: false });
    fs.readdir(&root(), file(fs), Cookie::START, page).wait()
}

#[test]
fn a_promise_without_the_extension_is_a_violation() {
    let fs = facing(|kind| {
        let entry = Entry { node: NodeId(2), attr: attr() };
        let created = Created { entry, open: OpenId(1), dir: Change::default() };
        said(kind, &Reply::Created(created, None, true))
    });
    let name = Name::new(b"file").expect("a name");
    let created = fs.create(&root(), NodeId::ROOT, name, &Create::default()).wait();
    is_lost(&fs, &created);
}

#[test]
fn limits_that_let_nothing_through_are_no_limits() {
    let bad = [Terms { transfer_bytes_max: 0, ..terms() }, Terms { callers_max: 0, ..terms() }];
    for terms in bad {
        let reply = |kind| said(kind, &Reply::Done);
        let refused = VrpcExport::new(Dial(Arc::new(HostilePeer { terms, reply }))).attach_session(&client());
        assert!(refused.is_err(), "a session in which nothing could be read");
    }
}

#[test]
fn reply_of_another_kind_is_refused() {
    let fs = facing(|_| said(Kind::Lookup, &Reply::Entry(Entry { node: NodeId(2), attr: attr() }, None)));
    let result = fs.getattr(&root(), NodeId::ROOT, None).wait();
    is_lost(&fs, &result);
}

#[test]
fn out_of_range_attributes_are_refused() {
    let fs = facing(|kind| {
        let (number, body, mut frame) = said(kind, &Reply::Attr(attr()));
        frame.iter_mut().for_each(|byte| *byte = 0xff);
        (number, body, frame)
    });
    let result = fs.getattr(&root(), NodeId::ROOT, None).wait();
    is_lost(&fs, &result);
}

#[test]
fn truncated_frame_is_refused() {
    let fs = facing(|kind| {
        let (number, body, mut frame) =
            said(kind, &Reply::Entry(Entry { node: NodeId(2), attr: attr() }, None));
        frame.truncate(40);
        (number, body, frame)
    });
    let result = fs.lookup(&root(), NodeId::ROOT, Name::new(b"file").expect("a name")).wait();
    is_lost(&fs, &result);
}

#[test]
fn frame_longer_than_requested_is_refused() {
    let fs = facing(|kind| said(kind, &Reply::Read(Returned::Inline(&[1; 101]), false)));
    let result = read(&fs, 100);
    is_lost(&fs, &result);
}

#[test]
fn bulk_data_longer_than_requested_are_refused() {
    let fs = facing(|kind| said(kind, &Reply::Read(Returned::Placed { len_bytes: 8193 }, false)));
    let result = read(&fs, 8192);
    is_lost(&fs, &result);
}

#[test]
fn bulk_data_at_another_place_are_refused() {
    let placed = |kind| said(kind, &Reply::Read(Returned::Placed { len_bytes: 10 }, true));
    let fs = facing(placed);
    let result = read(&fs, 100);
    is_lost(&fs, &result);
    let fs = facing(|kind| said(kind, &Reply::Read(Returned::Inline(&[1; 10]), true)));
    let result = read(&fs, 8192);
    is_lost(&fs, &result);
}

#[test]
fn more_written_than_was_sent_is_refused() {
    let fs = facing(|kind| {
        let written =
            tombolo_core::fs::Written { count: 101, stability: Default::default(), file: Default::default() };
        said(kind, &Reply::Written(written))
    });
    let source = tombolo_mem::Source::from(vec![1; 100]);
    let result =
        fs.write(&root(), file(&fs), &Default::default(), source).wait().map(|written| written.count);
    is_lost(&fs, &result);
}

/// Encodes a listing with one entry of this name.
fn listing(kind: Kind, name: &[u8]) -> (u32, Body, Vec<u8>) {
    let mut memory = [0; 512];
    let mut frame = FrameBuf::new(&mut memory);
    let placeholder = vec![b'x'; name.len()];
    let mut writer = tombolo_wire_vrpc::listing::ListingWriter::new(&mut frame);
    let entry = tombolo_core::fs::DirEntry {
        name: &placeholder,
        fileid: 3,
        file_type: None,
        cookie: Cookie(1),
        entry: None,
    };
    assert!(writer.push(&entry));
    let mut bytes = frame.as_bytes().to_vec();
    let at = bytes.len() - name.len();
    bytes[at..].copy_from_slice(name);
    said(kind, &Reply::Readdir(Returned::Inline(&bytes), true))
}

#[test]
fn listed_names_with_slash_or_nul_are_refused() {
    let fs = facing(|kind| listing(kind, b"a/b"));
    let result = list(&fs, 4096);
    is_lost(&fs, &result);
    let fs = facing(|kind| listing(kind, b"a\0b"));
    let result = list(&fs, 4096);
    is_lost(&fs, &result);
    // Control: the same listing with a valid name is accepted.
    let fs = facing(|kind| listing(kind, b"a-b"));
    assert_eq!(list(&fs, 4096).expect("a page").len(), 1);
}

#[test]
fn overlong_listing_is_truncated_and_not_at_end() {
    let fs = facing(|kind| match kind {
        Kind::Readdir => listing(kind, &[b'n'; 200]),
        _ => said(kind, &Reply::Done),
    });
    let page = list(&fs, 100).expect("a page");
    assert!(page.is_empty() && !page.is_end());
}

/// Encodes sixteen entries with new nodes.
fn endless(kind: Kind) -> (u32, Body, Vec<u8>) {
    static LAST: AtomicU64 = AtomicU64::new(1000);
    let mut memory = [0; 4096];
    let mut frame = FrameBuf::new(&mut memory);
    let mut writer = tombolo_wire_vrpc::listing::ListingWriter::new(&mut frame);
    for _ in 0..16 {
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { node: NodeId(number), attr: attr() };
        let (cookie, name) = (Cookie(number), number.to_string());
        assert!(writer.push(&tombolo_core::fs::DirEntry {
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
    let fs = facing(|kind| match kind {
        Kind::Readdir => endless(kind),
        _ => said(kind, &Reply::Done),
    });
    let file = file(&fs);
    let mut nodes = 0;
    let refused = loop {
        let page = DirPage::new(DirBudget { size_bytes: 4096, entry_bytes: 128, align: 8, plus: true });
        match fs.readdir(&root(), file, Cookie::START, page).wait() {
            Ok(page) => nodes += page.len(),
            Err(error) => break Err::<(), _>(error),
        }
        assert!(nodes <= 200_000, "there is no end to it");
    };
    // Beyond the bound the client requested names only, but the server sent nodes.
    is_lost(&fs, &refused);
    assert!((100_000..=131_072 + 16).contains(&nodes), "{nodes}");
}

#[test]
fn unknown_error_number_is_refused() {
    let fs = facing(|kind| {
        let (number, mut body, _) = said(Kind::Null, &Reply::Done);
        body[0] = 200;
        let _ = number;
        (kind.reply_number(), body, Vec::new())
    });
    let result = fs.null(&root()).wait();
    is_lost(&fs, &result);
}
