//! A server against clients that violate the protocol above the ring: it cuts the link, and other clients are
//! unaffected.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::Error;
use tombolo_core::fs::{File, NodeId, OpenId};
use tombolo_host_links::EndReason;
use tombolo_host_links::client::{Line, LineError, Reply as Raw};
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::{Session, name};
use tombolo_vrpc_tests::site::{Plan, Site};
use tombolo_wire_vrpc::{
    Body, CallerId, Data, Destination, FrameBuf, Groups, Header, Kind, Reference, Reply, Request, Status,
};

/// Returns the introduction of the superuser.
fn superuser() -> Request<'static> {
    Request::Caller { uid: 0, gid: 0, groups: Groups::new(&[]) }
}

/// A client that sends arbitrary requests.
struct HostilePeer {
    host: Arc<Site>,
    line: Line,
}

impl HostilePeer {
    fn new() -> Self {
        Self::over(Plan::default())
    }

    fn over(plan: Plan) -> Self {
        let host = Site::serving(Arc::new(Memory::default()), plan);
        let ends = host.ends().expect("a link");
        let line = Line::start(&ends, "hostile", Mode::Event).expect("a line");
        Self { host, line }
    }

    /// Connects a client that has introduced itself as the superuser.
    fn introduced() -> Self {
        let hostile = Self::new();
        hostile.ask(&superuser()).expect("an answer");
        hostile
    }

    fn ask(&self, request: &Request<'_>) -> Result<Raw, LineError> {
        let (mut body, mut memory) = ([0; 48], [0; 4096]);
        let mut frame = FrameBuf::new(&mut memory);
        request.encode(&Header::default(), &mut body, &mut frame).expect("a request");
        self.send(request.kind().number(), body, frame.as_bytes())
    }

    fn send(&self, kind: u32, body: Body, frame: &[u8]) -> Result<Raw, LineError> {
        let mut call = self.line.call(kind, body, |writer| writer.put(frame));
        loop {
            if let Some(outcome) = call.now() {
                return outcome;
            }
            // Without a socket, the test reports the link's end.
            if let Some(end) = self.host.end() {
                self.line.cut(end);
            }
            std::thread::yield_now();
        }
    }

    /// Asserts that a request cuts the link for this reason and that another client is still served.
    fn is_cut_by(&self, send: impl FnOnce(&Self) -> Result<Raw, LineError>, reason: &str) {
        let outcome = send(self);
        assert!(matches!(outcome, Err(LineError::Lost { .. })), "{outcome:?}");
        match self.host.end() {
            Some(EndReason::ProtocolError(error)) => assert!(error.to_string().contains(reason), "{error}"),
            other => panic!("the link ended so: {other:?}"),
        }
        Session::attach(&self.host.export()).lookup(NodeId::ROOT).expect("others are served");
    }
}

/// Encodes a request that fits into its body.
fn encoded(request: &Request<'_>, header: &Header) -> Body {
    let mut body = [0; 48];
    request.encode(header, &mut body, &mut FrameBuf::new(&mut [])).expect("a request");
    body
}

fn no_file() -> File {
    File { node: NodeId::ROOT, open: OpenId(9) }
}

#[test]
fn an_unknown_caller_cuts_the_link() {
    let request = Request::Getattr { node: NodeId::ROOT, open: None };
    HostilePeer::new().is_cut_by(|peer| peer.ask(&request), "unknown caller 0");
}

#[test]
fn a_caller_beyond_the_limit_cuts_the_link() {
    let body = encoded(&superuser(), &Header { caller: CallerId(u16::MAX), ..Header::default() });
    HostilePeer::new().is_cut_by(|peer| peer.send(Kind::Caller.number(), body, &[]), "beyond the limit");
}

#[test]
fn a_quiet_request_without_the_extension_cuts_the_link() {
    let body = encoded(&Request::Null, &Header { quiet: true, ..Header::default() });
    let hostile = HostilePeer::over(Plan { quiet: false, ..Plan::default() });
    hostile.is_cut_by(|peer| peer.send(Kind::Null.number(), body, &[]), "without the extension");
}

#[test]
fn an_unknown_kind_cuts_the_link() {
    HostilePeer::introduced().is_cut_by(|peer| peer.send(4711, [0; 48], &[]), "kind 4711");
}

#[test]
fn meaningless_bytes_cut_the_link() {
    HostilePeer::introduced().is_cut_by(|peer| peer.send(Kind::Null.number(), [0xff; 48], &[]), "unknown");
}

#[test]
fn a_name_with_a_slash_cuts_the_link() {
    let request = Request::Lookup { parent: NodeId::ROOT, name: name("aXb") };
    let mut body = encoded(&request, &Header::default());
    let at = body.iter().position(|&byte| byte == b'X').expect("the name is in the body");
    body[at] = b'/';
    HostilePeer::introduced().is_cut_by(|peer| peer.send(Kind::Lookup.number(), body, &[]), "slash");
}

/// Returns a read into this memory.
fn read_into(address: u64, len_bytes: u32) -> Request<'static> {
    let destination = Destination::One(Reference::new(address, len_bytes).expect("a reference"));
    Request::Read { file: no_file(), offset: 0, destination }
}

#[test]
fn read_into_other_than_bulk_memory_cuts_link() {
    for address in [0, 1 << 48, (1 << 48) + 4096, 7 << 48, (1 << 48) + (1 << 40)] {
        let request = read_into(address, 4096);
        HostilePeer::introduced().is_cut_by(|peer| peer.ask(&request), "invalid memory reference");
    }
}

#[test]
fn write_from_other_than_bulk_memory_cuts_link() {
    for address in [0, 4096, 7 << 48, 1 << 40] {
        let data = Data::One(Reference::new(address, 4096).expect("a reference"));
        let request = Request::Write { file: no_file(), how: Default::default(), data };
        HostilePeer::introduced().is_cut_by(|peer| peer.ask(&request), "invalid memory reference");
    }
}

#[test]
fn data_beyond_request_limit_cut_link() {
    let request = read_into(1 << 48, 5 << 20);
    HostilePeer::introduced().is_cut_by(|peer| peer.ask(&request), "more data");
}

#[test]
fn invalid_requests_get_error_and_keep_link() {
    let hostile = HostilePeer::introduced();
    let destination = Destination::Inline { len_bytes: 100 };
    let requests = [
        (Request::Read { file: no_file(), offset: u64::MAX, destination }, Error::BadOpen),
        (Request::Getattr { node: NodeId(u64::MAX), open: None }, Error::Stale),
        (Request::Release { file: no_file() }, Error::Stale),
    ];
    for (request, error) in requests {
        let raw = hostile.ask(&request).expect("an answer");
        let outcome = Reply::decode(request.kind(), raw.kind, &raw.body, &raw.frame).expect("an answer");
        match (request, outcome) {
            (Request::Release { .. }, outcome) => assert!(matches!(outcome, Ok(Reply::Done)), "{outcome:?}"),
            (_, outcome) => assert_eq!(outcome.err(), Some(Status::from(&error))),
        }
    }
    // Unused request ids and unknown nodes.
    hostile.ask(&Request::Interrupt { id: u32::MAX }).expect("an answer");
    let forgets = tombolo_wire_vrpc::Forgets::one(NodeId(77), u64::MAX);
    hostile.ask(&Request::Forget { forgets }).expect("an answer");
    hostile.ask(&Request::Null).expect("the link goes on");
}
