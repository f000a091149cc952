//! A model server of one file, for tests: the test decides when it executes a request, and when it replies.

mod cases;
mod random;
mod world;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tombolo_core::fs::ReadDone;
use tombolo_core::{Error, Result, Stability};
use tombolo_mem::{Sink, Source};
use tombolo_wire_nfs3::{Procedure, WriteVerifier};

use super::{Budget, FileData, Server, Sizes, Wrote};
use crate::caller::Caller;

/// The one file of a model server.
#[derive(Debug, Default)]
pub(super) struct File(FileData);

impl AsRef<FileData> for File {
    fn as_ref(&self) -> &FileData {
        &self.0
    }
}

/// A request to the server.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    Read {
        offset: u64,
        into: Sink,
    },
    Write {
        offset: u64,
        bytes: Vec<u8>,
        stability: Stability,
    },
    Commit,
    /// SETATTR of the size.
    Cut(u64),
}

/// A reply of the server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    Read(ReadDone),
    Wrote(Wrote),
    Committed(WriteVerifier),
    Cut,
}

/// Faults of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Quirk {
    /// Limit of the bytes taken or returned.
    pub(super) bytes_max: Option<usize>,
    /// `true` to fail with NOSPC.
    pub(super) fails: bool,
    /// `true` to claim less stability than requested, or no bytes.
    pub(super) falls_short: bool,
}

type Answer = Arc<Mutex<(Option<Result<Said>>, Option<Waker>)>>;

/// A call between its request and its reply.
pub(super) struct Outstanding {
    pub(super) asked: Asked,
    said: Option<Result<Said>>,
    answer: Answer,
}

pub(super) struct State {
    pub(super) stable: Vec<u8>,
    pub(super) cache: Vec<u8>,
    pub(super) boot: u64,
    /// Pending calls in the order of sending.
    pub(super) calls: VecDeque<Outstanding>,
    pub(super) in_flight_max: usize,
    /// `true` for a new verifier in each reply.
    pub(super) is_fickle: bool,
    pub(super) commits: usize,
    waiting_for_room: Vec<Waker>,
}

pub(super) struct Model {
    state: Arc<Mutex<State>>,
    budget: Arc<Budget>,
    sizes: Sizes,
    began: Instant,
}

impl Model {
    pub(super) fn new(sizes: Sizes, dirty_bytes_max: usize, in_flight_max: usize) -> Arc<Self> {
        let state = State {
            stable: Vec::new(),
            cache: Vec::new(),
            boot: 1,
            calls: VecDeque::new(),
            in_flight_max,
            is_fickle: false,
            commits: 0,
            waiting_for_room: Vec::new(),
        };
        let budget = Budget::new(dirty_bytes_max);
        Arc::new(Self { state: Arc::new(Mutex::new(state)), budget, sizes, began: Instant::now() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    /// Sends a request directly, past the code under test.
    pub(super) async fn ask(self: Arc<Self>, asked: Asked) -> Result<Said> {
        let answer: Answer = Arc::default();
        self.state().calls.push_back(Outstanding { asked, said: None, answer: answer.clone() });
        poll_fn(move |context| {
            let mut answer = answer.lock().expect("not poisoned");
            match answer.0.take() {
                Some(said) => Poll::Ready(said),
                None => {
                    answer.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Executes a request without replying yet.
    pub(super) fn work(&self, which: usize, quirk: Quirk) {
        let mut state = self.state();
        let undone: Vec<usize> =
            (0..state.calls.len()).filter(|index| state.calls[*index].said.is_none()).collect();
        if undone.is_empty() {
            return;
        }
        let index = undone[which % undone.len()];
        let asked = state.calls[index].asked.clone();
        let said = state.perform(&asked, quirk);
        state.calls[index].said = Some(said);
    }

    /// Sends the reply of one executed request.
    pub(super) fn tell(&self, which: usize) {
        let mut state = self.state();
        let done: Vec<usize> =
            (0..state.calls.len()).filter(|index| state.calls[*index].said.is_some()).collect();
        if done.is_empty() {
            return;
        }
        let call = state.calls.remove(done[which % done.len()]).expect("it is there");
        let room = match state.in_flight() * 4 <= state.in_flight_max * 3 {
            true => std::mem::take(&mut state.waiting_for_room),
            false => Vec::new(),
        };
        drop(state);
        let waker = {
            let mut answer = call.answer.lock().expect("not poisoned");
            answer.0 = call.said;
            answer.1.take()
        };
        waker.into_iter().chain(room).for_each(Waker::wake);
    }

    /// Discards unstable data. If `forgets`, requests executed but not answered are executed again, because
    /// clients resend them.
    pub(super) fn restart(&self, forgets: bool) {
        let mut state = self.state();
        state.boot += 1;
        state.cache = state.stable.clone();
        if forgets {
            for call in &mut state.calls {
                call.said = None;
            }
        }
    }
}

impl State {
    pub(super) fn in_flight(&self) -> usize {
        let bulk = |call: &&Outstanding| matches!(call.asked, Asked::Read { .. } | Asked::Write { .. });
        self.calls.iter().filter(bulk).count()
    }

    fn verifier(&mut self) -> WriteVerifier {
        self.boot += u64::from(self.is_fickle);
        WriteVerifier(self.boot.to_be_bytes())
    }

    fn perform(&mut self, asked: &Asked, quirk: Quirk) -> Result<Said> {
        if quirk.fails {
            return Err(Error::NoSpace);
        }
        let bytes_max = quirk.bytes_max.unwrap_or(usize::MAX).max(1);
        match asked {
            Asked::Read { offset, into } => {
                let start = (*offset as usize).min(self.cache.len());
                let count = into.len().min(bytes_max).min(self.cache.len() - start);
                into.write_at(0, &self.cache[start..start + count]);
                let eof = start + count == self.cache.len();
                Ok(Said::Read(ReadDone {
                    count: if quirk.falls_short { 0 } else { count },
                    eof: eof && !quirk.falls_short,
                }))
            }
            Asked::Write { offset, bytes, stability } => {
                let count = bytes.len().min(bytes_max);
                let kept = if quirk.falls_short { Stability::Unstable } else { *stability };
                put(&mut self.cache, *offset, &bytes[..count]);
                if kept > Stability::Unstable {
                    put(&mut self.stable, *offset, &bytes[..count]);
                }
                let count = if quirk.falls_short && *stability == Stability::Unstable { 0 } else { count };
                Ok(Said::Wrote(Wrote { count, stability: kept, verifier: self.verifier() }))
            }
            Asked::Commit => {
                self.commits += 1;
                self.stable = self.cache.clone();
                Ok(Said::Committed(self.verifier()))
            }
            Asked::Cut(size) => {
                self.cache.resize(*size as usize, 0);
                self.stable.resize(*size as usize, 0);
                Ok(Said::Cut)
            }
        }
    }
}

fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    file.resize(file.len().max(end), 0);
    file[start..end].copy_from_slice(bytes);
}

impl Server for Model {
    type Node = File;

    fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    fn sizes(&self) -> Sizes {
        self.sizes
    }

    fn has_permit(&self) -> bool {
        let state = self.state();
        state.in_flight() < state.in_flight_max
    }

    fn permit(&self) -> impl Future<Output = ()> + Send + 'static {
        let state = self.state.clone();
        poll_fn(move |context| {
            let mut state = state.lock().expect("not poisoned");
            if state.in_flight() < state.in_flight_max {
                return Poll::Ready(());
            }
            state.waiting_for_room.push(context.waker().clone());
            Poll::Pending
        })
    }

    fn now(&self) -> Instant {
        self.began
    }

    fn known_size(&self, _: &File) -> u64 {
        self.state().cache.len() as u64
    }

    fn interruption(&self, caller: &Caller) -> impl Future<Output = ()> + Send + 'static {
        caller.interrupt.raised()
    }

    async fn read(self: Arc<Self>, _: Caller, _: Arc<File>, offset: u64, into: Sink) -> Result<ReadDone> {
        match self.ask(Asked::Read { offset, into }).await? {
            Said::Read(done) => Ok(done),
            _ => Err(Error::InvalidArgument),
        }
    }

    async fn write(
        self: Arc<Self>,
        _: Caller,
        _: Arc<File>,
        offset: u64,
        from: Source,
        stability: Stability,
    ) -> Result<Wrote> {
        let bytes = from.to_vec(from.len());
        match self.ask(Asked::Write { offset, bytes, stability }).await? {
            Said::Wrote(wrote) => Ok(wrote),
            _ => Err(Error::InvalidArgument),
        }
    }

    async fn commit(self: Arc<Self>, _: Caller, _: Arc<File>) -> Result<WriteVerifier> {
        match self.ask(Asked::Commit).await? {
            Said::Committed(verifier) => Ok(verifier),
            _ => Err(Error::InvalidArgument),
        }
    }

    fn invalid_reply(&self, procedure: Procedure, what: &'static str) -> Error {
        Error::io(format!("model: {procedure:?}: {what}"))
    }
}

/// Limits of 16 bytes for READ and WRITE.
pub(super) const SIZES: Sizes =
    Sizes { read_max: 16, write_max: 16, read_ahead_max: 48, read_ahead_time: Duration::from_secs(9) };
