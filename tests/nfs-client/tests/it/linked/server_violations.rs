//! Protocol violations by a server: the call fails, the link is cut, and no wrong data get through.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tombolo_core::Interrupt;
use tombolo_host_links::EndReason;
use tombolo_host_links::client::Line;
use tombolo_host_links::server::{Peer, Refusal, Request, Responder, Service, Session};
use tombolo_host_rpc::client::{
    Call, CallError, DataLocation, InvalidReply, Options, ReceiveBuffer, Recovery, Reply, RpcClient,
};
use tombolo_host_rpc::link::{Dial, DialError, Dialed, ReplyMessage, Route};
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::until;
use tombolo_wire_rpc::{Credential, ReplyHeader, Xid};
use tombolo_wire_xdr::Encoder;

/// Reply to the call with this xid: kind, body, frame.
type FaultyReply = fn(Xid) -> (u32, [u8; 48], Vec<u8>);

struct InvalidServer(FaultyReply);

impl Service for InvalidServer {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(Self(self.0)))
    }
}

impl Session for InvalidServer {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let xid = request.frame.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let (kind, body, frame) = (self.0)(Xid(xid.expect("the client is honest")));
        responder.send(kind, body, &frame);
    }
}

fn said(said: ReplyMessage, frame: &[u8]) -> (u32, [u8; 48], Vec<u8>) {
    let (kind, body) = said.encode();
    (kind, body, frame.to_vec())
}

fn success(xid: Xid) -> Vec<u8> {
    let mut reply = Vec::new();
    Encoder::new(&mut reply).value(&ReplyHeader::success(xid));
    reply
}

const FRAME: ReplyMessage = ReplyMessage::Reply { placed_bytes: 0 };

/// Calls the violating server; returns the outcome and the reason of the link's end.
fn ask(reply: FaultyReply, call: Call<'_>) -> (Result<Reply, CallError>, Option<EndReason>) {
    let server = LinkServer::of(Arc::new(InvalidServer(reply)), LinkPlan::default());
    let options =
        Options { recovery: Recovery::Soft, timeout: Duration::from_secs(20), ..Options::default() };
    let client = RpcClient::over_links(server.route(), (7, 1), options).expect("a client");
    (client.call(call, |_| ()).wait(), server.client_end())
}

fn violation_of(reply: FaultyReply) -> InvalidReply {
    let (outcome, end) = ask(reply, Call { results_bytes: 100, ..Call::new(1, Credential::None) });
    assert!(matches!(end, Some(EndReason::ProtocolError(_))), "the link goes on: {end:?}");
    match outcome {
        Err(CallError::InvalidReply { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_message_that_is_no_reply_cuts_the_link() {
    let replies: [FaultyReply; 5] = [
        |xid| (5, said(FRAME, &success(xid)).1, success(xid)),
        |xid| (said(FRAME, &[]).0, [0xff; 48], success(xid)),
        |xid| said(ReplyMessage::Reply { placed_bytes: 101 }, &success(xid)),
        |xid| said(ReplyMessage::Reply { placed_bytes: u32::MAX }, &success(xid)),
        |xid| {
            let (kind, mut body, frame) = said(FRAME, &success(xid));
            body[47] = 1;
            (kind, body, frame)
        },
    ];
    for reply in replies {
        assert_eq!(violation_of(reply), InvalidReply::Link);
    }
}

#[test]
fn invalid_reply_is_refused() {
    let replies: [(FaultyReply, InvalidReply); 6] = [
        (|xid| said(FRAME, &success(Xid(xid.0.wrapping_add(1)))), InvalidReply::OtherCall),
        // Not even a number.
        (|_| said(FRAME, &[]), InvalidReply::OtherCall),
        (|_| said(ReplyMessage::Silence, &[]), InvalidReply::Silence),
        (|_| said(ReplyMessage::BufferTooSmall { needed_bytes: 50 }, &[]), InvalidReply::BufferTooSmall),
        // The same length each time, which the second call provides.
        (|_| said(ReplyMessage::BufferTooSmall { needed_bytes: 8192 }, &[]), InvalidReply::BufferTooSmall),
        (
            |_| said(ReplyMessage::BufferTooSmall { needed_bytes: u32::MAX }, &[]),
            InvalidReply::BufferTooSmall,
        ),
    ];
    for (reply, why) in replies {
        assert_eq!(violation_of(reply), why);
    }
    assert!(matches!(violation_of(|xid| said(FRAME, &success(xid)[..20])), InvalidReply::Header(_)));
}

#[test]
fn ever_larger_buffer_requests_are_refused() {
    static WANTED: AtomicU32 = AtomicU32::new(1000);
    let more: FaultyReply =
        |_| said(ReplyMessage::BufferTooSmall { needed_bytes: WANTED.fetch_add(1, Ordering::SeqCst) }, &[]);
    assert_eq!(violation_of(more), InvalidReply::BufferTooSmall);
    assert_eq!(WANTED.load(Ordering::SeqCst), 1002, "it was asked twice");
}

/// Service that withholds the first reply and answers other calls with `BufferTooSmall`.
struct Withholding {
    kept: Mutex<Option<Responder>>,
    refused: Sender<()>,
}

impl Service for Withholding {
    fn open(&self, _peer: &Peer) -> Result<Arc<dyn Session>, Refusal> {
        Ok(Arc::new(Self { kept: Mutex::default(), refused: self.refused.clone() }))
    }
}

impl Session for Withholding {
    fn serve(&self, _request: Request<'_>, responder: Responder) {
        let mut kept = self.kept.lock().expect("no test panics here");
        if kept.is_none() {
            *kept = Some(responder);
            return;
        }
        let (kind, body) = ReplyMessage::BufferTooSmall { needed_bytes: 4096 }.encode();
        responder.send(kind, body, &[]);
        let _ = self.refused.send(());
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_waiter_for_a_permit_does_not_wake_itself() {
    let (refused, refusals) = channel();
    let plan = LinkPlan { bulk_bytes: 64 << 10, ..LinkPlan::default() };
    let server = LinkServer::of(Arc::new(Withholding { kept: Mutex::default(), refused }), plan);
    let client = RpcClient::over_links(server.route(), (7, 1), Options::default()).expect("a client");
    // This call's reply takes all of the server's bulk memory.
    let _kept = client.call(Call { results_bytes: 1 << 20, ..Call::new(1, Credential::None) }, |_| ());
    let data = Some(vec![1; 4096].into());
    let mut write = pin!(client.call(Call { data, ..Call::new(2, Credential::None) }, |_| ()));
    refusals.recv().expect("the server goes on");
    // The call now waits for reply space in addition to its data, and none is free.
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(flag.clone());
    for polls in 1.. {
        assert!(write.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if !flag.0.swap(false, Ordering::SeqCst) {
            break;
        }
        assert!(polls < 100, "nothing happens, and it is woken for ever");
    }
}

#[test]
fn reply_data_land_in_the_receive_buffer_or_fail() {
    let mut buffer = Buffer::new(100);
    let finds = [
        |_: &[u8], _: usize| DataLocation::Data(0..101),
        |_: &[u8], bytes: usize| DataLocation::Data(0..bytes + 1),
        |_: &[u8], _: usize| DataLocation::Data(usize::MAX - 1..usize::MAX),
    ];
    for find in finds {
        let receive_buffer = Some(ReceiveBuffer { sink: buffer.sink(0..100), find });
        let reply: FaultyReply =
            |xid| said(ReplyMessage::Reply { placed_bytes: 4 }, &[&*success(xid), &[1; 200]].concat());
        let (outcome, end) = ask(reply, Call { receive_buffer, ..Call::new(1, Credential::None) });
        assert!(
            matches!(outcome, Err(CallError::InvalidReply { why: InvalidReply::Data { .. }, .. })),
            "{outcome:?}"
        );
        assert!(matches!(end, Some(EndReason::ProtocolError(_))), "the link goes on: {end:?}");
    }
    assert!(buffer.as_slice().is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0)), "nothing was copied");
}

#[test]
fn a_reply_may_be_divided_in_any_way() {
    // The last byte of the header and all data are in the reply buffer.
    let reply: FaultyReply = |xid| said(ReplyMessage::Reply { placed_bytes: 100 }, &success(xid)[..23]);
    let (outcome, end) = ask(reply, Call { results_bytes: 100, ..Call::new(1, Credential::None) });
    assert_eq!(outcome.expect("a reply").results, [0; 99]);
    assert_eq!(end, None);
}

#[test]
fn call_that_outlives_its_client_ends() {
    let (refused, _refusals) = channel();
    let server =
        LinkServer::of(Arc::new(Withholding { kept: Mutex::default(), refused }), LinkPlan::default());
    // With and without a time at which the call checks for its interrupt.
    for interrupt in [Interrupt::new(), Interrupt::default()] {
        let client = RpcClient::over_links(server.route(), (7, 1), Options::default()).expect("a client");
        // The server withholds the reply.
        let call = Call { interrupt, ..Call::new(1, Credential::None) };
        let mut pending = pin!(client.call(call, |_| ()));
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(flag.clone());
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(client);
        until("the call is woken", || flag.0.load(Ordering::SeqCst));
        let outcome = pending.poll(&mut Context::from_waker(&waker));
        assert!(matches!(outcome, Poll::Ready(Err(CallError::Ended { .. }))), "{outcome:?}");
    }
}

/// Dialer of links whose token shows if they are in use.
struct Token(Arc<LinkServer>, Arc<()>);

impl Dial for Token {
    fn dial(&self) -> Result<Dialed, DialError> {
        let line = Line::start(&self.0.ends()?, "server", Mode::Adaptive)?;
        Ok(Dialed { line, keep: Box::new(self.1.clone()) })
    }
}

#[test]
fn abandoned_calls_do_not_keep_the_link() {
    let (refused, _refusals) = channel();
    let server =
        LinkServer::of(Arc::new(Withholding { kept: Mutex::default(), refused }), LinkPlan::default());
    let token = Arc::new(());
    let route = Route::start(Token(server, token.clone()), "server").expect("a link");
    let client = RpcClient::over_links(route, (7, 1), Options::default()).expect("a client");
    // The server withholds the reply.
    drop(client.call(Call { results_bytes: 1 << 20, ..Call::new(1, Credential::None) }, |_| ()));
    drop(client);
    until("none holds the link", || Arc::strong_count(&token) == 1);
}
