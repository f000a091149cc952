//! Limits of a session.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_core::{Limits, SessionId};
use tombolo_front_fuse::session::{Exchange, Options, Session, Slot};
use tombolo_layer_basic::delay;
use tombolo_mem::{Sink, Source};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::layout::attr::GetattrIn;
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::InitIn;
use zerocopy::{FromBytes, IntoBytes};

/// Requester that reports number and error of each reply.
struct Requester(Sender<(u64, i32)>);

impl Exchange for Requester {
    fn payload(&mut self, _len_bytes: usize) -> Source {
        Source::new()
    }

    fn reply_space(&mut self, _len_bytes: usize) -> Sink {
        Sink::new()
    }

    fn send(&mut self, reply: &[u8]) -> bool {
        let (head, _) = OutHeader::read_from_prefix(reply).expect("a header");
        self.0.send((head.unique, head.error)).is_ok()
    }

    fn send_data(&mut self, header: &[u8], _data_bytes: usize) -> bool {
        self.send(header)
    }

    fn send_nothing(&mut self) {}

    fn retire(self, _slot: Box<Slot>) {}
}

fn ask(session: &Arc<Session>, unique: u64, opcode: Opcode, args: &[u8], to: &Sender<(u64, i32)>) {
    let len = size_of::<InHeader>() + args.len();
    let header = InHeader { len: len as u32, opcode: opcode as u32, unique, nodeid: 1, ..Default::default() };
    let mut slot = Box::<Slot>::default();
    slot.fill(len, |bytes| {
        bytes[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        bytes[size_of::<InHeader>()..].copy_from_slice(args);
    });
    session.handle(slot, Requester(to.clone()));
}

/// Expects EBUSY; EINTR would be wrong, because there was no signal.
#[test]
fn requests_beyond_the_limit_are_busy() {
    let export = delay::over(Arc::new(Memory::default()), Duration::from_millis(300)).expect("a timer");
    let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
    let limits = Limits { pending: 2, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let session = Session::new(SessionId(1), export.attach(&client).expect("attached"), options);
    let (to, replies) = channel();
    let init = InitIn { major: 7, minor: 31, ..Default::default() };
    ask(&session, 2, Opcode::Init, &init.as_bytes()[..16], &to);
    assert_eq!(replies.recv(), Ok((2, 0)));
    for unique in [4, 6, 8] {
        ask(&session, unique, Opcode::Getattr, GetattrIn::default().as_bytes(), &to);
    }
    let mut told: Vec<_> = (0..3).map(|_| replies.recv().expect("a reply")).collect();
    assert_eq!(told.remove(0), (8, -16), "EBUSY, at once");
    told.sort_unstable();
    assert_eq!(told, [(4, 0), (6, 0)]);
}
