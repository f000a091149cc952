//! Protocol violations by a client: its link is cut, and other clients are not affected.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_core::fs::NodeId;
use tombolo_host_links::EndReason;
use tombolo_host_links::client::{Line, LineError, Reply as Raw};
use tombolo_host_rpc::link::{CallMessage, Part, ReplyMessage};
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::hard;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_shm::address::GlobalAddress;
use tombolo_shm::doorbell::Mode;
use tombolo_test_support::Session;
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

    /// Returns the bits of an address in the client's own memory with room for `len` bytes.
    fn own(&self, len: u64) -> u64 {
        self.line.out_address(&self.line.out_area().take(len).expect("memory")).bits()
    }

    /// Asserts that a message cuts the link for this reason and that other clients are served.
    fn is_cut_by(say: impl FnOnce(&Self) -> Result<Raw, LineError>, reason: &str) {
        let client = Self::new();
        let outcome = say(&client);
        assert!(matches!(outcome, Err(LineError::Lost { .. })), "{outcome:?}");
        match client.server.end() {
            Some(EndReason::ProtocolError(violation)) => {
                assert!(violation.to_string().contains(reason), "{violation}")
            }
            other => panic!("the link ended so: {other:?}"),
        }
        Session::attach(&*client.server.mounted(hard())).lookup(NodeId::ROOT).expect("others are served");
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
    let body = CallMessage::default().encode().1;
    InvalidClient::is_cut_by(|client| client.say(2, body, &null()), "kind 0x2");
}

#[test]
fn undecodable_bytes_cut_the_link() {
    InvalidClient::is_cut_by(|client| client.say(1, [0xff; 48], &null()), "zero");
}

#[test]
fn a_frame_that_is_no_call_cuts_the_link() {
    for frame in [&[][..], &[1; 8]] {
        InvalidClient::is_cut_by(|client| client.ask(CallMessage::default(), frame), "malformed RPC call");
    }
}

#[test]
fn data_outside_bulk_memory_cut_link() {
    let sends = |data: fn(&InvalidClient) -> Option<Part>| {
        let ask = |client: &InvalidClient| {
            client.ask(CallMessage { data: data(client), reply_buffer: None }, &null())
        };
        InvalidClient::is_cut_by(ask, "invalid memory reference");
    };
    sends(|_| part(0, 4096));
    sends(|_| part(4096, 4096));
    sends(|_| part(1 << 40, 4096));
    sends(|_| part(7 << 48, 4096));
    sends(|_| part(u64::MAX, 4096));
    sends(|client| part(client.own(4096), u32::MAX));
}

#[test]
fn reply_buffer_outside_server_memory_cuts_link() {
    let buffers: [fn(&InvalidClient) -> u64; 5] = [
        |_| 1 << 48,
        |_| (1 << 48) + 4096,
        |_| (1 << 48) + (1 << 40),
        |_| 7 << 48,
        |client| client.own(4096),
    ];
    for buffer in buffers {
        // It is not even needed.
        let ask = |client: &InvalidClient| {
            client.ask(CallMessage { data: None, reply_buffer: part(buffer(client), 4096) }, &null())
        };
        InvalidClient::is_cut_by(ask, "invalid memory reference");
    }
}

#[test]
fn a_call_that_is_too_long_cuts_the_link() {
    let ask = |client: &InvalidClient| {
        client.ask(CallMessage { data: part(client.own(2 << 20), 2 << 20), reply_buffer: None }, &null())
    };
    InvalidClient::is_cut_by(ask, "call of");
}
