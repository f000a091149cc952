//! Allocation-free inline path: a request needs no memory beyond its slot.

use std::sync::Arc;
use tombolo_allocations::of_this_thread;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_front_fuse::session::{Exchange, Options, Session, Slot};
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::init::Capabilities;
use tombolo_wire_fuse::layout::attr::{EntryOut, GetattrIn};
use tombolo_wire_fuse::layout::dir::ForgetIn;
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::InitIn;
use tombolo_wire_fuse::layout::open::{CreateIn, FlushIn, OpenOut};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn};
use zerocopy::{FromBytes, IntoBytes};

/// Requester in this process, with data in a buffer and access to its last reply.
struct Memory {
    data: Buffer,
    reply: [u8; 512],
    reply_bytes: usize,
}

impl Exchange for Memory {
    fn payload(&mut self, len_bytes: usize) -> Source {
        self.data.source(0..len_bytes)
    }

    fn reply_space(&mut self, len_bytes: usize) -> Sink {
        self.data.sink(0..len_bytes)
    }

    fn send(&mut self, reply: &[u8]) -> bool {
        self.reply[..reply.len()].copy_from_slice(reply);
        self.reply_bytes = reply.len();
        true
    }

    fn send_data(&mut self, header: &[u8], _data_bytes: usize) -> bool {
        self.send(header)
    }

    fn send_nothing(&mut self) {
        self.reply_bytes = 0;
    }

    fn retire(self, _slot: Box<Slot>) {
        panic!("a request of this test was not answered at once");
    }
}

/// A session with a single requester.
struct Client1 {
    session: Arc<Session>,
    parts: Option<(Box<Slot>, Memory)>,
}

impl Client1 {
    fn ask(&mut self, opcode: Opcode, node: u64, args: &[&[u8]], payload_bytes: usize) -> i32 {
        let (mut slot, memory) = self.parts.take().unwrap();
        let args_bytes: usize = args.iter().map(|part| part.len()).sum();
        let head_bytes = size_of::<InHeader>() + args_bytes;
        let len = u32::try_from(head_bytes + payload_bytes).unwrap();
        let header = InHeader { len, opcode: opcode as u32, unique: 2, nodeid: node, ..Default::default() };
        slot.fill(head_bytes, |bytes| {
            let (head, mut rest) = bytes.split_at_mut(size_of::<InHeader>());
            head.copy_from_slice(header.as_bytes());
            for part in args {
                let (place, after) = rest.split_at_mut(part.len());
                place.copy_from_slice(part);
                rest = after;
            }
        });
        self.parts = self.session.handle(slot, memory);
        let memory = &self.parts.as_ref().expect("answered at once").1;
        OutHeader::read_from_prefix(&memory.reply[..memory.reply_bytes]).map_or(0, |(head, _)| head.error)
    }

    fn body<T: FromBytes>(&self, at: usize) -> T {
        T::read_from_prefix(&self.parts.as_ref().unwrap().1.reply[16 + at..]).unwrap().0
    }
}

#[test]
fn common_requests_allocate_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = LocalDir::open(dir.path(), DirOptions::default()).unwrap();
    let file_system = export
        .attach(&Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller })
        .unwrap();
    let session = Session::new(SessionId(1), file_system, Options::default());
    let memory = Memory { data: Buffer::new(1 << 20), reply: [0; 512], reply_bytes: 0 };
    let mut client = Client1 { session, parts: Some((Box::default(), memory)) };
    let init = InitIn { major: 7, minor: 31, flags: Capabilities::all().bits() as u32, ..Default::default() };
    assert_eq!(client.ask(Opcode::Init, 0, &[&init.as_bytes()[..16]], 0), 0);
    let how = CreateIn { flags: 2, mode: 0o100_644, ..Default::default() };
    assert_eq!(client.ask(Opcode::Create, 1, &[how.as_bytes(), b"file\0"], 0), 0);
    let (entry, open): (EntryOut, OpenOut) = (client.body(0), client.body(size_of::<EntryOut>()));

    let write = WriteIn { fh: open.fh, size: 8192, ..Default::default() };
    let read = ReadIn { fh: open.fh, size: 8192, ..Default::default() };
    let flush = FlushIn { fh: open.fh, ..Default::default() };
    let getattr = GetattrIn::default();
    let forget = ForgetIn { nlookup: 1 };
    let node = entry.nodeid;
    let rows: [(Opcode, u64, Vec<&[u8]>, usize); 7] = [
        (Opcode::Getattr, node, vec![getattr.as_bytes()], 0),
        (Opcode::Lookup, 1, vec![b"file\0"], 0),
        (Opcode::Forget, node, vec![forget.as_bytes()], 0),
        (Opcode::Lookup, 1, vec![b"missing\0"], 0),
        (Opcode::Write, node, vec![write.as_bytes()], 8192),
        (Opcode::Read, node, vec![read.as_bytes()], 0),
        (Opcode::Flush, node, vec![flush.as_bytes()], 0),
    ];
    // The first round fills caches.
    for (opcode, node, args, payload) in &rows {
        client.ask(*opcode, *node, args, *payload);
    }
    for (opcode, node, args, payload) in &rows {
        let before = of_this_thread();
        let error = client.ask(*opcode, *node, args, *payload);
        let allocations = of_this_thread() - before;
        assert!(error == 0 || *node == 1, "{opcode:?}: {error}");
        assert_eq!(allocations, 0, "{opcode:?}");
    }
}
