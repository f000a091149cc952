//! A relay between a client and the server, which repeats calls: those without an answer over a new
//! connection, some twice at once, some long after their answer.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tombolo_nfs_tests::client::{Caller, Message, Stream, fresh_xid};
use tombolo_wire_nfs3::{Call, FileHandle, PROGRAM, Procedure, Status};
use tombolo_wire_rpc::{Accepted, CallHeader, ReplyHeader};
use tombolo_wire_xdr::Decoder;

use crate::failure::{Failure, Result, wrong};

/// Time for which a call is repeated. The server is down for a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(5);

/// Mean numbers of calls between two repetitions of an older one, and between two losses of a reply.
const REPEAT_ONCE_IN: u32 = 25;
const LOSE_ONCE_IN: u32 = 300;
/// Number of calls that may be repeated after their answer.
const KEPT: usize = 8;

/// A relay, which listens until its process ends.
#[derive(Clone)]
pub struct Relay {
    /// Address of the relay.
    pub address: SocketAddr,
    line: Arc<Mutex<Line>>,
}

/// Numbers of calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Answered.
    pub answered: u64,
    /// Successful changes of names among them.
    pub changes: u64,
    /// Sent again because a connection broke.
    pub resent: u64,
    /// Sent twice at once.
    pub doubled: u64,
    /// Sent again after the answer.
    pub repeated: u64,
}

/// The connection to the server.
struct Line {
    server: SocketAddr,
    stream: Option<Stream>,
    random: Rng,
    /// Records of successful calls that must not be executed again.
    kept: VecDeque<(Procedure, Vec<u8>)>,
    counts: Counts,
    failure: Option<Failure>,
}

impl Relay {
    /// Starts a relay to a server.
    pub fn start(server: SocketAddr, random: Rng) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let line = Line {
            server,
            stream: None,
            random,
            kept: VecDeque::new(),
            counts: Counts::default(),
            failure: None,
        };
        let relay = Self { address: listener.local_addr()?, line: Arc::new(Mutex::new(line)) };
        let ours = relay.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let ours = ours.clone();
                thread::spawn(move || ours.serve(Stream::over(client)?));
            }
        });
        Ok(relay)
    }

    /// Returns the numbers of calls so far, or the first failure.
    pub fn counts(&self) -> Result<Counts> {
        let mut line = self.line();
        line.failure.take().map_or(Ok(line.counts), Err)
    }

    /// Answers the calls of a connection. A failure ends it, and is reported by [`counts`](Self::counts).
    fn serve(&self, mut client: Stream) -> io::Result<()> {
        while let Some(call) = client.receive()? {
            let mut line = self.line();
            match line.relayed(&call) {
                // The client repeats the call over its next connection; not those of the mount protocol.
                Ok(_) if line.counts.changes > 0 && line.random.u32(..LOSE_ONCE_IN) == 0 => return Ok(()),
                Ok(reply) => client.send(&reply)?,
                Err(failure) => {
                    line.failure.get_or_insert(failure);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn relayed(&mut self, call: &[u8]) -> Result<Vec<u8>> {
        let reply = self.exchange(call)?;
        let header = received_header(&mut Decoder::new(call))?;
        let procedure = Procedure::from_number(header.procedure).filter(|_| header.program == PROGRAM);
        if let Some(procedure) = procedure.filter(|procedure| is_change_of_names(*procedure))
            && status(&reply)? == 0
        {
            self.counts.changes += 1;
            self.kept.push_back((procedure, call.to_vec()));
            self.kept.drain(..self.kept.len().saturating_sub(KEPT));
        }
        if self.random.u32(..REPEAT_ONCE_IN) == 0 {
            self.repeat_older_call()?;
        }
        Ok(reply)
    }

    /// Repeats a call that was answered earlier, like a network that delays packets. It must get the same
    /// answer and have no effect: its object may be gone by now, or exist again.
    fn repeat_older_call(&mut self) -> Result<()> {
        let Some((procedure, call)) = self.random.choice(&self.kept).cloned() else { return Ok(()) };
        let status = status(&self.exchange(&call)?)?;
        self.counts.repeated += 1;
        let returns_handle =
            matches!(procedure, Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Link);
        match Status::from_number(status) {
            _ if status == 0 => Ok(()),
            // Its directory is gone, or its object, so that no handle is left to return.
            Some(Status::Stale | Status::NoEnt) if returns_handle => Ok(()),
            Some(Status::Stale) if self.is_any_stale(&dirs(procedure, &call)?)? => Ok(()),
            _ => wrong(format!("{procedure:?}, sent again after its answer: status {status}")),
        }
    }

    /// Returns `true` if one of the nodes is gone.
    fn is_any_stale(&mut self, nodes: &[FileHandle<'_>]) -> Result<bool> {
        for node in nodes {
            let getattr = Message::nfs(fresh_xid(), &Caller::ROOT, &Call::Getattr(*node), &[]);
            if status(&self.exchange(&getattr.to_bytes())?)? == Status::Stale.number() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends a call until it is answered.
    fn exchange(&mut self, call: &[u8]) -> Result<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut sends = 0;
        loop {
            match self.attempt(call, &mut sends) {
                Ok(reply) => {
                    self.counts.answered += 1;
                    self.counts.resent += u64::from(sends > 1);
                    return Ok(reply);
                }
                Err(Failure::Io(error)) if Instant::now() > deadline => return Err(Failure::Silent(error)),
                Err(Failure::Io(_)) => {
                    self.stream = None;
                    thread::sleep(PAUSE);
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn attempt(&mut self, call: &[u8], sends: &mut u32) -> Result<Vec<u8>> {
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => Stream::connect(self.server)?,
        };
        let stream = self.stream.insert(stream);
        *sends += 1;
        stream.send(call)?;
        if self.random.u32(..100) == 0 {
            thread::sleep(Duration::from_micros(self.random.u64(..300)));
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "broken by the test").into());
        }
        // An earlier copy may still be executing; a second one certainly is.
        if self.random.u32(..if *sends > 1 { 3 } else { 50 }) != 0 {
            return received(stream, call);
        }
        self.counts.doubled += 1;
        stream.send(call)?;
        let replies = [received(stream, call)?, received(stream, call)?];
        let [first, second] = [status(&replies[0])?, status(&replies[1])?];
        if first != second {
            return wrong(format!("one call, sent twice at once, was answered {first} and {second}"));
        }
        let [first, _] = replies;
        Ok(first)
    }
}

fn is_change_of_names(procedure: Procedure) -> bool {
    use Procedure as P;
    matches!(procedure, P::Create | P::Mkdir | P::Symlink | P::Link | P::Rename | P::Remove | P::Rmdir)
}

/// Returns the directories of a call that removes or moves a name.
fn dirs(procedure: Procedure, call: &[u8]) -> Result<Vec<FileHandle<'_>>> {
    let mut xdr = Decoder::new(call);
    received_header(&mut xdr)?;
    Ok(match Call::decode(procedure, &mut xdr, call.len())? {
        Call::Remove(at) | Call::Rmdir(at) => vec![at.dir],
        Call::Rename(args) => vec![args.from.dir, args.to.dir],
        _ => Vec::new(),
    })
}

/// Decodes the header of a call; the arguments follow.
fn received_header<'a>(xdr: &mut Decoder<'a>) -> Result<CallHeader<'a>> {
    CallHeader::receive(xdr).map_err(|_| Failure::Wrong("a malformed call of the client".into()))
}

/// Receives the reply to a call, skipping replies to abandoned calls.
fn received(stream: &mut Stream, call: &[u8]) -> Result<Vec<u8>> {
    loop {
        let reply = stream.receive()?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        // Both begin with the xid.
        if reply.first_chunk::<4>() == call.first_chunk() {
            return Ok(reply);
        }
    }
}

/// Returns the first word of the results: the status in all but those of NULL, which has none.
fn status(reply: &[u8]) -> Result<u32> {
    let mut xdr = Decoder::new(reply);
    let header: ReplyHeader<'_> = xdr.value()?;
    match header.accepted() {
        Some(Accepted::Success) => Ok(xdr.u32().unwrap_or(0)),
        _ => wrong(format!("the call was not accepted: {:?}", header.body)),
    }
}
