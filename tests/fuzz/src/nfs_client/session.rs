//! The client's operations, one after the other, each driven by this thread until it ends.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tombolo_back_nfs_client::{NfsExport, Options};
use tombolo_core::fs::{
    AccessMask, Client, Cookie, Create, DirBudget, DirPage, Exclusive, Export, File, FileSystem, LockOwner,
    Mode, Name, NewMode, NodeId, OpenFlags, PermissionCheck, RenameFlags, SetAttr, SyncScope, Write,
};
use tombolo_core::{Answer, Ctx, Result, SessionId};
use tombolo_host_rpc::client::{Engine, Options as RpcOptions, Recovery, RpcClient, Target, Transport};
use tombolo_mem::{Buffer, Source};
use tombolo_wire_nfs3::{FileHandle, PROGRAM, VERSION};

use super::wire::Fuzzed;

/// Maximum number of turns of an operation whose server ends or falls silent.
const TURNS_MAX: usize = 100_000;
const ROOM: usize = 4096;
/// Number of turns without a call after which no more are expected.
const QUIET_TURNS: usize = 8;

/// The client and its engine.
struct Turned {
    wire: Arc<Fuzzed>,
    engine: Engine,
}

/// Runs all operations with a server that answers with these bytes.
pub fn run(bytes: &[u8]) {
    let wire = Arc::new(Fuzzed::new(bytes));
    let address = ([127, 0, 0, 1], 2049).into();
    let target = Target { address, transport: Transport::Tcp, program: PROGRAM, version: VERSION };
    let options = Options {
        rpc: RpcOptions {
            recovery: Recovery::Soft,
            timeout: Duration::from_secs(1),
            retries: 1,
            reply_bytes_max: 1 << 16,
            label: "host:/name".to_owned(),
            ..RpcOptions::default()
        },
        ..Options::default()
    };
    let (rpc, engine) = RpcClient::over(wire.clone(), target, options.rpc.clone());
    let mut client = Turned { wire, engine };
    let root = FileHandle::new(b"root").expect("a handle").to_owned();
    if let Ok(export) = client.turn(Box::pin(NfsExport::over(rpc.clone(), root, options))) {
        session(&mut client, &export);
    }
    client.finish(&rpc);
}

/// Runs one session of an export.
fn session(client: &mut Turned, export: &NfsExport) {
    let session = SessionId(1);
    let attached = Client { session, label: "fuzz".to_owned(), checks: PermissionCheck::BackEnd };
    let Ok(fs) = export.attach(&attached) else { return };
    operations(client, &*fs, &Ctx::root(session));
}

fn operations(client: &mut Turned, fs: &dyn FileSystem, cx: &Ctx) {
    let name = |text: &'static str| Name::new(text.as_bytes()).expect("a name");
    let root = NodeId::ROOT;
    let _ = client.wait(fs.getattr(cx, root, None));
    if let Ok(entry) = client.wait(fs.lookup(cx, root, name("file"))) {
        let _ = client.wait(fs.access(cx, entry.node, AccessMask::READ));
        if let Ok(opened) = client.wait(fs.open(cx, entry.node, OpenFlags::READ)) {
            let file = File { node: entry.node, open: opened.open };
            for offset in [0, ROOM as u64, 1 << 20] {
                client.read(fs, cx, file, offset);
            }
            fs.release(cx, file);
        }
        let _ = client.wait(fs.readlink(cx, entry.node));
        fs.forget(cx, &[(entry.node, 1)]);
    }
    client.list(fs, cx);
    let how = Create {
        mode: NewMode::settled(Mode::new(0o644)),
        flags: OpenFlags::READ | OpenFlags::WRITE,
        exclusive: Exclusive::Yes,
    };
    if let Ok(created) = client.wait(fs.create(cx, root, name("new"), &how)) {
        let file = File { node: created.entry.node, open: created.open };
        for offset in [0, 5000, 100] {
            let how = Write { offset, ..Write::default() };
            let _ = client.wait(fs.write(cx, file, &how, Source::from(vec![7; 3000])));
        }
        client.read(fs, cx, file, 50);
        let _ = client.wait(fs.fsync(cx, file, SyncScope::All));
        let set = SetAttr { size: Some(100), ..SetAttr::default() };
        let _ = client.wait(fs.setattr(cx, file.node, Some(file), &set));
        let _ = client.wait(fs.unlink(cx, root, name("new")));
        let _ = client.wait(fs.flush(cx, file, LockOwner(1)));
        fs.release(cx, file);
    }
    let _ = client.wait(fs.mkdir(cx, root, name("dir"), how.mode));
    let _ = client.wait(fs.symlink(cx, root, name("link"), b"target"));
    let _ = client.wait(fs.rename(cx, root, name("link"), root, name("moved"), RenameFlags::empty()));
    let _ = client.wait(fs.rmdir(cx, root, name("dir")));
    let _ = client.wait(fs.statfs(cx, root));
    let _ = client.wait(fs.syncfs(cx));
}

impl Turned {
    /// Reads into the middle of a buffer, of which the other parts must stay unchanged.
    fn read(&mut self, fs: &dyn FileSystem, cx: &Ctx, file: File, offset: u64) {
        let mut buffer = Buffer::new(3 * ROOM);
        let read = self.wait(fs.read(cx, file, offset, buffer.sink(ROOM..2 * ROOM)));
        assert!(read.map_or(0, |done| done.count) <= ROOM);
        let bytes = buffer.as_slice().expect("the buffer is free after the answer");
        let (before, after) = (&bytes[..ROOM], &bytes[2 * ROOM..]);
        assert!(before.iter().chain(after).all(|&byte| byte == 0), "written outside the reader's memory");
    }

    /// Lists the root, up to a hundred pages.
    fn list(&mut self, fs: &dyn FileSystem, cx: &Ctx) {
        let Ok(opened) = self.wait(fs.open(cx, NodeId::ROOT, OpenFlags::READ | OpenFlags::DIRECTORY)) else {
            return;
        };
        let file = File { node: NodeId::ROOT, open: opened.open };
        let mut cookie = Cookie::START;
        for round in 0..100 {
            let budget = DirBudget { size_bytes: 4096, entry_bytes: 24, align: 8, plus: round % 2 == 0 };
            let Ok(page) = self.wait(fs.readdir(cx, file, cookie, DirPage::new(budget))) else { break };
            for entry in page.iter() {
                let dots = entry.name == b"." || entry.name == b"..";
                assert!(dots || Name::new(entry.name).is_ok(), "a name that is none");
                if let Some(entry) = entry.entry {
                    fs.forget(cx, &[(entry.node, 1)]);
                }
                cookie = entry.cookie;
            }
            if page.is_end() || page.is_empty() {
                break;
            }
        }
        fs.release(cx, file);
    }

    fn wait<T>(&mut self, answer: Answer<T>) -> Result<T> {
        match answer {
            Answer::Done(result) => result,
            Answer::Later(later) => self.turn(later),
        }
    }

    /// Runs the engine until the answer arrives. Waiting or turning forever is a finding.
    fn turn<T>(&mut self, mut later: Pin<Box<dyn Future<Output = Result<T>> + Send + '_>>) -> Result<T> {
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..TURNS_MAX {
            if let Poll::Ready(result) = later.as_mut().poll(&mut context) {
                return result;
            }
            assert!(self.step(), "nothing is under way that could end this");
        }
        panic!("an operation without an end");
    }

    /// Makes the engine process the next socket event or deadline; `false` if there is none.
    fn step(&mut self) -> bool {
        let ready = self.wire.ready();
        if ready.is_empty() {
            let Some(deadline) = self.engine.next_deadline() else { return false };
            self.wire.sleep_until(deadline);
            self.engine.expire();
        }
        for (token, event) in ready {
            self.engine.ready(token, event);
        }
        true
    }

    /// Runs the engine until no abandoned call is in flight.
    fn finish(&mut self, rpc: &RpcClient) {
        let mut quiet = 0;
        for _ in 0..TURNS_MAX {
            let counts = rpc.counts();
            quiet = if counts.outstanding + counts.waiting == 0 { quiet + 1 } else { 0 };
            if quiet > QUIET_TURNS || !self.step() {
                return;
            }
        }
        panic!("calls without an end");
    }
}
