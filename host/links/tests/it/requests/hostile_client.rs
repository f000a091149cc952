//! A violating client loses its link, and other links are not affected.

use std::sync::Arc;

use tombolo_host_links::server::{LinkHandle, Request, Responder, Server, Session};
use tombolo_host_links::{EndReason, ProtocolError};
use tombolo_shm::address::{AddressError, Domain, GlobalAddress};
use tombolo_shm::doorbell::{Mode, Ringer};
use tombolo_shm::link::{Ends, Role};
use tombolo_shm::ring::{Consumer, Message, Producer};

use crate::requests::test_host::{
    ECHO, FORGET, HOLD, PANIC, TestHost, TestService, TestSession, body, eventually, found, layout, peer,
    shaky_ends,
};

const SLOTS: u32 = 8;
/// Reads from the address and length in the body.
const READ: u32 = 10;
/// Writes to the address and length in the body.
const WRITE: u32 = 11;

/// A client that sends arbitrary messages.
struct HostileClient {
    ends: Ends,
    producer: Producer,
    answers: Consumer,
    ringer: Ringer,
    handle: LinkHandle,
    session: Arc<TestSession>,
    server: Server,
}

impl HostileClient {
    fn new() -> HostileClient {
        HostileClient::over(Ends::in_memory(layout(SLOTS)), Arc::new(TestSession::default()), None)
    }

    fn over(
        (client, server_ends): (Ends, Ends),
        session: Arc<TestSession>,
        other: Option<Arc<dyn Session>>,
    ) -> HostileClient {
        let server = Server::new(Arc::new(TestService(session.clone())));
        let opened = other.unwrap_or_else(|| session.clone());
        let handle = server.serve(&server_ends, &peer("client"), opened, Mode::Event).expect("a link");
        let at = client.layout.ring_offset();
        let producer = Producer::at(&client.own, at, SLOTS, client.epoch).expect("a ring");
        let answers = Consumer::at(&client.peer, at, SLOTS, client.epoch).expect("a ring");
        let ringer = Ringer::of(&client).expect("a doorbell");
        HostileClient { ends: client, producer, answers, ringer, handle, session, server }
    }

    fn push(&mut self, id: u32, frame_len: u32, kind: u32, body: [u8; 48]) {
        self.producer.push(&Message { id, frame_len, kind, body });
        self.ringer.ring();
    }

    /// Sends a request, and waits for the answer.
    fn ask(&mut self, id: u32, kind: u32) -> Message {
        self.push(id, 0, kind, body(id.into()));
        found("an answer", || self.answers.pop())
    }

    fn end(&self) -> EndReason {
        found("the link is cut", || self.handle.end())
    }

    /// Checks that the link was cut for that error and its memory freed, and that a correct client of the
    /// same server is not affected.
    fn ends_for(self, error: ProtocolError) {
        let memory = Arc::downgrade(&self.session);
        let (client, ends) = Ends::in_memory(layout(SLOTS));
        let session = self.session.clone();
        let other = self.server.serve(&ends, &peer("other"), session, Mode::Event).expect("a link");
        let line = tombolo_host_links::client::Line::start(&client, "other", Mode::Event).expect("a line");
        assert_eq!(self.end(), EndReason::ProtocolError(error));
        self.session.held.lock().unwrap().clear();
        eventually("the memory is back", || self.handle.counts().is_none());
        for number in 0..10 {
            assert_eq!(line.call(ECHO, body(number), |_| {}).wait().expect("an answer").body, body(number));
        }
        assert_eq!(other.end(), None);
        let counts = self.server.counts();
        assert_eq!((counts.links, counts.links_total, counts.cut), (1, 2, 1));
        drop((line, other, self));
        assert!(memory.upgrade().is_none(), "the session is dropped");
    }
}

#[test]
fn an_honest_client_of_another_make_is_served() {
    let mut client = HostileClient::new();
    for id in 0..100 {
        assert_eq!(client.ask(id, ECHO).id, id);
    }
    assert_eq!(client.handle.end(), None);
}

#[test]
fn a_length_of_all_ones() {
    for len_bytes in [4097, 1 << 31, u32::MAX] {
        let mut client = HostileClient::new();
        client.push(3, len_bytes, ECHO, body(1));
        client.ends_for(ProtocolError::FrameTooLong { id: 3, len_bytes });
    }
}

#[test]
fn a_request_in_a_buffer_in_use() {
    for id in [3, u32::MAX - 4] {
        let mut client = HostileClient::new();
        client.push(3, 0, HOLD, body(1));
        client.push(id, 0, ECHO, body(1));
        client.ends_for(ProtocolError::StillOutstanding { id });
    }
}

#[test]
fn more_requests_than_slots() {
    let mut client = HostileClient::new();
    for id in 0..SLOTS {
        client.push(id, 0, HOLD, body(1));
    }
    eventually("all are there", || client.session.held.lock().unwrap().len() == SLOTS as usize);
    assert_eq!(client.handle.end(), None);
    // Its buffer is in use, whatever the id.
    client.push(77 * SLOTS, 0, HOLD, body(1));
    client.ends_for(ProtocolError::StillOutstanding { id: 77 * SLOTS });
}

#[test]
fn a_slot_that_is_a_lap_ahead() {
    let client = HostileClient::new();
    // Nothing delays the server's thread, so it may still see some of them: only the last lap matters.
    let ring = client.ends.layout.ring_offset();
    let ahead = client.ends.epoch.number() << 16 | 5;
    client.ends.own.write_at(ring, &ahead.to_le_bytes()).expect("inside");
    // It is not the awaited stamp, so the ring wakes no thread; the server checks before it sleeps, and once
    // a second.
    client.ringer.ring();
    let end = client.end();
    assert!(
        matches!(&end, EndReason::ProtocolError(ProtocolError::Slot(fault)) if fault.found == ahead),
        "{end}"
    );
}

#[test]
fn unread_answers_are_lost_and_block_no_other() {
    let mut client = HostileClient::new();
    for id in 0..10_000u32 {
        client.push(id, 0, ECHO, body(id.into()));
        // The server took it, or the requests would exceed the slots.
        eventually("it is answered", || {
            client.handle.counts().is_some_and(|counts| counts.answers == u64::from(id) + 1)
        });
    }
    assert_eq!(client.handle.end(), None);
}

#[test]
fn a_region_that_is_truncated() {
    let (client, server, file) = shaky_ends(Role::Client, layout(SLOTS));
    let mut client = HostileClient::over((client, server), Arc::default(), None);
    assert_eq!(client.ask(1, ECHO).id, 1);
    file.set_len(0).expect("truncated");
    // No doorbell is needed: the server checks by itself.
    client.ends_for(ProtocolError::MemoryGone);
}

/// A session that reads or writes where requested.
struct Referring;

impl Session for Referring {
    fn serve(&self, request: Request<'_>, responder: Responder) {
        let number = |at: usize| u64::from_le_bytes(request.body[at..at + 8].try_into().expect("8 bytes"));
        let (address, len) = (GlobalAddress::from_bits(number(0)), number(8));
        let checked = match request.kind {
            READ => responder.source(address, len).map(|source| assert_eq!(source.len() as u64, len)),
            _ => responder.sink(address, len).map(|sink| assert_eq!(sink.len() as u64, len)),
        };
        match checked {
            Ok(()) => responder.send(request.kind, request.body, &[]),
            Err(error) => responder.cut(error),
        }
    }
}

fn refer(kind: u32, address: GlobalAddress, len: u64) -> (HostileClient, Option<AddressError>) {
    let mut client =
        HostileClient::over(Ends::in_memory(layout(SLOTS)), Arc::default(), Some(Arc::new(Referring)));
    let mut body = [0; 48];
    body[..8].copy_from_slice(&address.bits().to_le_bytes());
    body[8..16].copy_from_slice(&len.to_le_bytes());
    client.push(1, 0, kind, body);
    eventually("it is answered or cut", || client.answers.is_ready() || client.handle.end().is_some());
    let error = match client.handle.end() {
        None => None,
        Some(EndReason::ProtocolError(ProtocolError::Reference(error))) => Some(error),
        Some(end) => panic!("{end}"),
    };
    (client, error)
}

#[test]
fn references_out_of_range_overflowing_or_to_unknown_domains() {
    let layout = layout(SLOTS);
    let (bulk, bytes) = (layout.bulk_offset(), layout.bytes());
    let at = |domain, offset| GlobalAddress::new(domain, offset).expect("48 bits");
    for (kind, domain) in [(READ, Domain::CLIENT), (WRITE, Domain::SERVER)] {
        let (_, error) = refer(kind, at(domain, bulk), bytes - bulk);
        assert_eq!(error, None);
        for (offset, len_bytes) in [(bulk - 1, 2), (bytes - 1, 2), (bulk, u64::MAX - bulk + 1)] {
            let (client, error) = refer(kind, at(domain, offset), len_bytes);
            assert_eq!(error, Some(AddressError::Range { domain, offset, len_bytes }));
            client.ends_for(ProtocolError::Reference(AddressError::Range { domain, offset, len_bytes }));
        }
        let (_, error) = refer(kind, at(Domain(2), bulk), 1);
        assert_eq!(error, Some(AddressError::Domain { domain: Domain(2) }));
        let (_, error) = refer(kind, GlobalAddress::from_bits(u64::MAX), 1);
        assert_eq!(error, Some(AddressError::Domain { domain: Domain(u16::MAX) }));
    }
    let (_, error) = refer(WRITE, at(Domain::CLIENT, bulk), 1);
    assert_eq!(error, Some(AddressError::NotOurs { domain: Domain::CLIENT }));
}

#[test]
fn panicking_session_loses_only_its_link() {
    for kind in [PANIC, FORGET] {
        let mut client = HostileClient::new();
        client.push(1, 0, kind, body(1));
        assert!(matches!(client.end(), EndReason::Failed(_)));
        eventually("the memory is back", || client.handle.counts().is_none());
    }
}

#[test]
fn the_ends_of_a_client_are_not_served() {
    let host = TestHost::new(8, Mode::Event, Mode::Event);
    let (client, _) = Ends::in_memory(layout(SLOTS));
    assert_eq!(client.role, Role::Client);
    assert!(host.server.serve(&client, &peer("x"), host.session.clone(), Mode::Event).is_err());
}
