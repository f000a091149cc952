//! Operations of the `ring` tables, each as a [`Work`]. Over a link: [`linked`] makes requests through a
//! [`Session`] of `back/vrpc-client`, [`alone`] and [`outstanding`] on the link itself. Limits without a
//! link: [`native`] makes system calls on the same file, [`bare`] passes a number between two threads.

use std::any::Any;
use std::collections::VecDeque;
use std::fs;
use std::hint::{black_box, spin_loop};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::result::Result as StdResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tombolo_back_vrpc_client::{Connect, ConnectError, Connected, VrpcExport, VrpcFileSystem};
use tombolo_core::fs::{Client, File, FileSystem, Name, NodeId, OpenFlags, PermissionCheck, Write};
use tombolo_core::{Answer, Ctx, SessionId};
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::client::{Call, Line};
use tombolo_host_links::connect::{ConnectOptions, connect};
use tombolo_host_links::control_socket::Watcher;
use tombolo_host_links::rendezvous;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_host_rpc::link::{Dial, DialError, Dialed};
use tombolo_mem::{Buffer, WordMut};
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::{Incarnation, Protocol};
use tombolo_shm::region::sealed::Sealed;
use tombolo_sys::{affinity, futex};
use tombolo_wire_vrpc::{BODY_BYTES, CallerId, FrameBuf, Groups, Header, Kind, Reply, Request};

use crate::error::{Doing, Error, OrWrong, Result, same};
use crate::measure::{Clock, Work, spare_cores};
use crate::peer::AtSocket;
use crate::table::ring::{AT_ONCE, FILE, at_once, rated, timed_by, wrong};

/// Endpoint of a server, and the way to wait for it.
#[derive(Clone)]
pub struct Endpoint {
    pub at: At,
    pub mode: Mode,
    /// Bell of [`At::Memory`], if the client is woken by one.
    pub bell: Option<Arc<BellSource>>,
}

/// Place at which a link is established.
#[derive(Clone)]
pub enum At {
    /// A control socket, over which each side passes its own memory and a doorbell.
    Socket(PathBuf),
    /// Memory that both sides can write; without a doorbell, except for [`Endpoint::bell`].
    Memory(MemoryLocation),
}

impl Endpoint {
    /// Returns the endpoint of a server at a socket.
    pub fn of(server: &AtSocket, mode: Mode) -> Self {
        Self { at: At::Socket(server.place.clone()), mode, bell: None }
    }

    /// Creates a link, which ends when the second value is dropped.
    pub fn link(&self) -> StdResult<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        self.link_as(Incarnation([1; 16]), Protocol::Vrpc)
    }

    fn link_as(
        &self,
        incarnation: Incarnation,
        protocol: Protocol,
    ) -> StdResult<(Line, Box<dyn Any + Send + Sync>), ConnectError> {
        let options = ConnectOptions { protocol, ..ConnectOptions::new("", "bench", incarnation)? };
        match &self.at {
            At::Socket(socket) => {
                let watcher = Watcher::start()?;
                let (line, control_socket) =
                    connect(socket, &options)?.start(&watcher, "bench", self.mode)?;
                Ok((line, Box::new((control_socket, watcher))))
            }
            At::Memory(place) => {
                let memory = SharedMemory::to_use(place)?.with_bell(self.bell.clone());
                let (line, watcher) = rendezvous::join(memory, &options, "bench", self.mode)?;
                Ok((line, Box::new(watcher)))
            }
        }
    }
}

impl Connect for Endpoint {
    fn connect(&self, _client: &Client, incarnation: Incarnation) -> StdResult<Connected, ConnectError> {
        let (line, keep) = self.link_as(incarnation, Protocol::Vrpc)?;
        Ok(Connected { line, keep })
    }
}

impl Dial for Endpoint {
    fn dial(&self) -> StdResult<Dialed, DialError> {
        let (line, keep) = self.link_as(Incarnation([2; 16]), Protocol::OncRpc)?;
        Ok(Dialed { line, keep })
    }
}

/// Operation over the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    #[default]
    Null,
    /// Attributes of an open file.
    Getattr,
    /// Read of N bytes into the program's memory.
    Read(usize),
    /// Read of N bytes that stay in the link's memory.
    ReadInPlace(usize),
    /// Write of N bytes from the program's memory.
    Write(usize),
    /// Write of N bytes assembled in the link's memory.
    WriteInPlace(usize),
}

impl Operation {
    pub fn bytes(self) -> usize {
        match self {
            Operation::Null | Operation::Getattr => 0,
            Operation::Read(bytes) | Operation::ReadInPlace(bytes) => bytes,
            Operation::Write(bytes) | Operation::WriteInPlace(bytes) => bytes,
        }
    }
}

/// Repeats one operation over a link. Each turn has a link of its own, which ends with the turn, because a
/// server that polls a link occupies a core.
pub fn linked(endpoint: Endpoint, operation: Operation) -> Work<'static> {
    let bytes = operation.bytes();
    let run = move |count, clock: &mut Clock| {
        let session = Session::begin(&endpoint, bytes)?;
        timed_by(at_once(bytes), count, clock, || session.ask(operation))
    };
    Work::new(run).bytes(rated(bytes))
}

/// A client of a server of links, with [`FILE`] open.
pub struct Session {
    pub files: Arc<VrpcFileSystem>,
    pub cx: Ctx,
    pub file: File,
    buffer: Buffer,
}

impl Session {
    /// Starts a session over its own link, with `bytes` of memory for data.
    pub fn begin(endpoint: &Endpoint, bytes: usize) -> Result<Self> {
        let (session, label) = (SessionId(1), "bench".to_owned());
        let client = Client { session, label, checks: PermissionCheck::BackEnd };
        let files = VrpcExport::new(endpoint.clone()).attach_session(&client).or_wrong("attach")?;
        let cx = Ctx::root(session);
        let name = Name::new(FILE.as_bytes()).or_wrong("a name")?;
        let node = done(files.lookup(&cx, NodeId::ROOT, name), "lookup")?.node;
        let opened = done(files.open(&cx, node, OpenFlags::READ | OpenFlags::WRITE), "open")?;
        Ok(Self { files, cx, file: File { node, open: opened.open }, buffer: Buffer::new(bytes) })
    }

    /// Makes one request, and checks that all bytes were transferred.
    #[inline]
    pub fn ask(&self, operation: Operation) -> Result<()> {
        let Self { files, cx, file, buffer } = self;
        let bytes = operation.bytes();
        let count = match operation {
            Operation::Null => done(files.null(cx), "null").map(|()| 0)?,
            Operation::Getattr => done(files.getattr(cx, file.node, Some(*file)), "getattr").map(|_| 0)?,
            Operation::Read(_) => done(files.read(cx, *file, 0, buffer.sink(0..bytes)), "read")?.count,
            Operation::ReadInPlace(_) => {
                done(files.read_in_place(cx, *file, 0, bytes), "read in place")?.data().len()
            }
            Operation::Write(_) => {
                let from = buffer.source(0..bytes);
                done(files.write(cx, *file, &Write::default(), from), "write")?.count
            }
            Operation::WriteInPlace(_) => {
                let lent = files.lend(bytes).or_wrong("lend memory")?;
                let answer = files.write_in_place(cx, *file, &Write::default(), lent, bytes);
                done(answer, "write in place")?.count
            }
        };
        same("an operation over a link", count, bytes)
    }
}

#[inline]
fn done<T>(answer: Answer<T>, what: &str) -> Result<T> {
    answer.wait().or_wrong(what)
}

/// Repeats null requests on a link, without a file system client.
pub fn alone(endpoint: Endpoint) -> Work<'static> {
    Work::new(move |count, clock| {
        let (line, _keep) = endpoint.link().map_err(|error| wrong("a link", error.as_ref()))?;
        timed_by(AT_ONCE, count, clock, || check(Kind::Null, send(&line, &Request::Null)?))
    })
}

/// Keeps `depth` GETATTR requests in flight on a link, without a file system client.
pub fn outstanding(endpoint: Endpoint, depth: usize) -> Work<'static> {
    let run = move |count: u64, clock: &mut Clock| {
        let (line, _keep) = endpoint.link().map_err(|error| wrong("a link", error.as_ref()))?;
        // Defines caller 0, the superuser, in whose name the requests are made.
        check(Kind::Caller, send(&line, &Request::Caller { uid: 0, gid: 0, groups: Groups::new(&[]) })?)?;
        let getattr = Request::Getattr { node: NodeId::ROOT, open: None };
        let calls: Result<VecDeque<Call>> = (0..depth).map(|_| send(&line, &getattr)).collect();
        let mut calls = calls?;
        let batch = depth as u64;
        clock.start();
        for _ in 0..count.div_ceil(batch).max(1) {
            for _ in 0..batch {
                if let Some(first) = calls.pop_front() {
                    check(Kind::Getattr, first)?;
                }
                calls.push_back(send(&line, &getattr)?);
            }
            clock.lap_of(batch);
        }
        calls.into_iter().try_for_each(|call| check(Kind::Getattr, call))
    };
    Work::new(run).per_second(true)
}

#[inline]
fn send(line: &Line, request: &Request<'_>) -> Result<Call> {
    let header = Header { caller: CallerId(0), ..Header::default() };
    let mut body = [0; BODY_BYTES];
    // These requests fit in the body.
    let mut none = FrameBuf::new(&mut []);
    let kind = request.encode(&header, &mut body, &mut none).or_wrong("encode")?;
    Ok(line.call(kind.number(), body, |_| {}))
}

/// Waits for the reply, and checks it.
#[inline]
fn check(kind: Kind, call: Call) -> Result<()> {
    let reply = call.wait().or_wrong("a call")?;
    let outcome = Reply::decode(kind, reply.kind, &reply.body, &reply.frame);
    match outcome.or_wrong("decode")? {
        Ok(_) => Ok(()),
        Err(status) => Err(Error::Wrong { what: format!("{kind:?}"), answer: format!("{status:?}") }),
    }
}

/// Returns the closest system call: `statx`, `pread` or `pwrite`.
pub fn native(path: &Path, operation: Operation) -> Result<Work<'static>> {
    let file = fs::File::options().read(true).write(true).open(path).doing_to("open", path)?;
    let whole = operation.bytes();
    // Not zeroes: unwritten memory is a single page of the kernel, whatever its length.
    let mut memory = vec![b'x'; whole];
    let mut call = move || {
        let count = match operation {
            Operation::Read(_) | Operation::ReadInPlace(_) => file.read_at(&mut memory, 0),
            Operation::Write(_) | Operation::WriteInPlace(_) => file.write_at(&memory, 0),
            Operation::Null | Operation::Getattr => file.metadata().map(|found| {
                black_box(found);
                whole
            }),
        };
        let count = count.doing(|| format!("{operation:?} by a system call"))?;
        same("a system call", count, whole)
    };
    let run = move |count, clock: &mut Clock| timed_by(at_once(whole), count, clock, &mut call);
    Ok(Work::new(run).bytes(rated(whole)))
}

/// Size of the memory that two threads share.
const WORDS_BYTES: u64 = 4096;
/// Offset of the answer. The number is at 0: they are in cache lines that are not adjacent.
const ANSWER: usize = 256;
/// Interval at which a sleeper checks whether the other thread is alive.
const NAP: Duration = Duration::from_millis(100);

/// Passes a number to another thread and back. Both threads wait with a futex if `sleeps`, and poll
/// otherwise. The other thread is started for each turn.
pub fn bare(sleeps: bool) -> Work<'static> {
    Work::new(move |count, clock| {
        let memory = Sealed::create("bench", WORDS_BYTES).or_wrong("memory to share")?;
        let word = |at| WordMut::new(memory.region(), at).or_wrong("a word in shared memory");
        let (there, back, over) = (word(0)?, word(ANSWER)?, AtomicBool::new(false));
        let core = spare_cores().get(1).copied();
        thread::scope(|scope| {
            scope.spawn(|| {
                // Without a second spare core, both threads share one.
                let _alone = core.map(|core| affinity::pin(None, &[core]));
                let mut number: u32 = 1;
                while hear(&there, number, sleeps, &over) {
                    say(&back, number, sleeps);
                    number = number.wrapping_add(1);
                }
            });
            let mut last: u32 = 0;
            let done = timed_by(AT_ONCE, count, clock, || {
                last = last.wrapping_add(1);
                say(&there, last, sleeps);
                hear(&back, last, sleeps, &over);
                Ok(())
            });
            over.store(true, Ordering::Relaxed);
            done
        })
    })
}

#[inline]
fn say(word: &WordMut, number: u32, sleeps: bool) {
    word.store(number, Ordering::Release);
    if sleeps {
        // Cannot fail for mapped words.
        let _woken = futex::wake(word);
    }
}

/// Waits until the word is `number`. Returns `false` if the turn ends before.
#[inline]
fn hear(word: &WordMut, number: u32, sleeps: bool, over: &AtomicBool) -> bool {
    loop {
        let seen = word.load(Ordering::Acquire);
        if seen == number {
            return true;
        }
        if over.load(Ordering::Relaxed) {
            return false;
        }
        if sleeps {
            // Woken or not, the word is read again.
            let _woken = futex::wait(word, seen, Some(NAP));
        } else {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_travel_both_ways_until_the_peer_ends() {
        for sleeps in [false, true] {
            let mut clock = Clock::new();
            bare(sleeps).run(20, &mut clock).unwrap();
            assert!(clock.count() >= 20, "sleeps: {sleeps}");
        }
    }
}
