//! Protocol violations by a client: its link is cut, and other clients are not affected.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Client, Export, NodeId, PermissionCheck};
use tombolo_core::{Ctx, SessionId};
use tombolo_host_links::EndReason;
use tombolo_host_links::client::{Line, LineError, Reply as Raw};
use tombolo_host_rpc::link::{CallMessage, Part, ReplyMessage};
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::hard;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::doorbell::Mode;
use tombolo_wire_rpc::{CallHeader, Credential, Xid};
use tombolo_wire_xdr::Encoder;

/// A client that sends arbitrary messages.
struct InvalidClient {
    server: Arc<LinkServer>,
    line: Line,
}

impl InvalidClient {
    fn new() -> Self {
        let server = LinkServer::new(Plan::over(Arc::new(Memory::default())), LinkPlan::default());
        let ends = server.ends().expect("a link");
        let line = Line::start(&ends, "client", Mode::Event).expect("a line");
        Self { server, line }
    }

    fn say(&self, kind: u32, body: [u8; 48], frame: &[u8]) -> Result<Raw, LineError> {
        let mut call = self.line.call(kind, body, |writer| writer.put(frame));
        loop {
            if let Some(outcome) = call.now() {
                return outcome;
            }
            // Without a control socket, the test reports the link's end.
            if let Some(end) = self.server.end() {
                self.line.cut(end);
            }
            std::thread::yield_now();
        }
    }

    fn ask(&self, asked: CallMessage, frame: &[u8]) -> Result<Raw, LineError> {
        let (kind, body) = asked.encode();
        self.say(kind, body, frame)
    }

    /// Asserts that the link was cut for this reason and that other clients are served.
    fn is_cut(&self, outcome: &Result<Raw, LineError>, reason: &str) {
        assert!(matches!(outcome, Err(LineError::Lost { .. })), "{outcome:?}");
        match self.server.end() {
            Some(EndReason::ProtocolError(violation)) => {
                assert!(violation.to_string().contains(reason), "{violation}")
            }
            other => panic!("the link ended so: {other:?}"),
        }
        let export = self.server.mounted(hard());
        let client = Client { session: SessionId(1), label: "x".into(), checks: PermissionCheck::BackEnd };
        let fs = export.attach(&client).expect("a session");
        fs.getattr(&Ctx::root(SessionId(1)), NodeId::ROOT, None).wait().expect("others are served");
    }
}

/// Encodes an NFS NULL call.
fn null() -> Vec<u8> {
    let mut call = Vec::new();
    Encoder::new(&mut call).value(&CallHeader::new(Xid(77), 100_003, 3, 0, Credential::None));
    call
}

fn part(bits: u64, len_bytes: u32) -> Option<Part> {
    Some(Part { address: GlobalAddress::from_bits(bits), len_bytes })
}

#[test]
fn a_call_is_answered_in_its_frame() {
    let client = InvalidClient::new();
    let raw = client.ask(CallMessage::default(), &null()).expect("an answer");
    assert_eq!(ReplyMessage::decode(raw.kind, &raw.body), Ok(ReplyMessage::Reply { placed_bytes: 0 }));
    assert_eq!(raw.frame.len(), 24);
    assert_eq!(raw.frame[..4], 77_u32.to_be_bytes());
}

#[test]
fn another_kind_cuts_the_link() {
    let client = InvalidClient::new();
    let outcome = client.say(2, CallMessage::default().encode().1, &null());
    client.is_cut(&outcome, "kind 0x2");
}

#[test]
fn undecodable_bytes_cut_the_link() {
    let client = InvalidClient::new();
    let outcome = client.say(1, [0xff; 48], &null());
    client.is_cut(&outcome, "zero");
}

#[test]
fn a_frame_that_is_no_call_cuts_the_link() {
    for frame in [&[][..], &[1; 8]] {
        let client = InvalidClient::new();
        let outcome = client.ask(CallMessage::default(), frame);
        client.is_cut(&outcome, "malformed RPC call");
    }
}

#[test]
fn data_outside_bulk_memory_cut_link() {
    for address in [0, 4096, 1 << 40, 7 << 48, u64::MAX] {
        let client = InvalidClient::new();
        let outcome = client.ask(CallMessage { data: part(address, 4096), reply_buffer: None }, &null());
        client.is_cut(&outcome, "invalid memory reference");
    }
    let client = InvalidClient::new();
    let span = client.line.out_area().take(4096).expect("memory");
    let address = client.line.out_address(&span).bits();
    let outcome = client.ask(CallMessage { data: part(address, u32::MAX), reply_buffer: None }, &null());
    client.is_cut(&outcome, "invalid memory reference");
}

#[test]
fn reply_buffer_outside_server_memory_cuts_link() {
    let own = |client: &InvalidClient| {
        client.line.out_address(&client.line.out_area().take(4096).expect("memory")).bits()
    };
    let buffers: [fn(&InvalidClient) -> u64; 4] =
        [|_| 1 << 48, |_| (1 << 48) + 4096, |_| (1 << 48) + (1 << 40), |_| 7 << 48];
    for buffer in buffers {
        let client = InvalidClient::new();
        // It is not even needed.
        let outcome =
            client.ask(CallMessage { data: None, reply_buffer: part(buffer(&client), 4096) }, &null());
        client.is_cut(&outcome, "invalid memory reference");
    }
    let client = InvalidClient::new();
    let outcome = client.ask(CallMessage { data: None, reply_buffer: part(own(&client), 4096) }, &null());
    client.is_cut(&outcome, "invalid memory reference");
}

#[test]
fn a_call_that_is_too_long_cuts_the_link() {
    let client = InvalidClient::new();
    let span = client.line.out_area().take(2 << 20).expect("memory");
    let data = Some(Part { address: client.line.out_address(&span), len_bytes: 2 << 20 });
    let outcome = client.ask(CallMessage { data, reply_buffer: None }, &null());
    client.is_cut(&outcome, "call of");
}
