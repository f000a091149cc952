//! The borrowing side: one connection to the owner of a cache, re-established when it ends. Answers are
//! awaited for a short time only.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tombolo_core::fs::Volume;
use tombolo_core::{Identity, lock};
use tombolo_host_runtime::descriptors::{DescriptorBudget, Share};
use tombolo_host_runtime::promise::Promise;
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::packet::{self, Packet};
use tombolo_sys::{Errno, socket};

use super::message::{Ask, Lent, MESSAGE_BYTES_MAX, Reply, Request, Welcome};
use super::{is_own, socket_in};
use crate::data::Data;
use crate::object::Object;

/// Time limits of borrowing.
#[derive(Clone, Copy, Debug)]
pub struct BorrowOptions {
    /// Timeout of the owner's answers, after which data are read from the origin.
    pub patience: Duration,
    /// Time without reads after which a file is returned; up to twice as long in practice.
    pub idle: Duration,
}

impl Default for BorrowOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(1), idle: Duration::from_secs(60) }
    }
}

/// A borrower from the cache in one directory. Dropping it returns all borrowed descriptors.
#[derive(Debug)]
pub(crate) struct Borrower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    volume: Volume,
    /// Event that wakes the thread: on stop, and when a request is made while no other one is pending, so
    /// that the thread waits no longer than the request's timeout.
    wakeup: EventFd,
    is_stopping: AtomicBool,
    state: Mutex<State>,
    options: BorrowOptions,
    /// Share of the process's descriptors for borrowed files.
    share: Share,
}

#[derive(Debug, Default)]
struct State {
    /// Connection whose owner has accepted the handshake.
    connection: Option<Arc<Connection>>,
    /// Pending requests by number, so the oldest first.
    pending: BTreeMap<u64, Pending>,
    last_id: u64,
    /// After a timeout: end of the pause without requests, and its length, which doubles.
    quiet: Option<(Instant, Duration)>,
    /// Data with borrowed descriptors, the oldest first.
    lent: VecDeque<Weak<Data>>,
}

/// A request without an answer: its timeout, and the file's size and [`Ask::has`] to check the answer by.
#[derive(Debug)]
struct Pending {
    until: Instant,
    size: u64,
    has: u64,
    answer: Arc<Promise<Option<Answer>>>,
}

/// A reply of the owner, with the descriptor if it has one.
#[derive(Clone, Debug)]
struct Answer {
    lent: Lent,
    loan: Option<Arc<Loan>>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    is_open: AtomicBool,
}

/// A borrowed descriptor. Dropping it returns it to the owner.
#[derive(Debug)]
pub(super) struct Loan {
    pub file: File,
    pub generation: u64,
    connection: Arc<Connection>,
}

/// Cause of a connection's end.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The owner has disconnected.
    Lost,
    /// The owner has sent an invalid message.
    Violated,
}

/// Shortest and longest pause, before another attempt to connect or a request to an owner that did not answer
/// in time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Maximum range of a request, in bytes; it begins with the part that is needed now.
const ASK_BYTES: u64 = 64 << 20;

/// Maximum number of pending requests; further data are read from the origin.
const PENDING_MAX: usize = 128;

/// Maximum number of borrowed descriptors.
const LOANS_MAX: usize = 768;

const WAKEUP: u64 = 0;
const SOCKET: u64 = 1;

impl Borrower {
    /// Starts borrowing from the owner of the cache in `dir`, now or whenever one appears.
    pub(crate) fn start(dir: &Path, volume: Volume, options: BorrowOptions) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            path: socket_in(dir),
            volume,
            wakeup: EventFd::new()?,
            is_stopping: AtomicBool::new(false),
            state: Mutex::default(),
            options,
            share: DescriptorBudget::of_process().cache(LOANS_MAX),
        });
        let (first, tried) = mpsc::channel();
        let thread = {
            let shared = shared.clone();
            thread::Builder::new().name("cache-borrow".into()).spawn(move || shared.run(first))?
        };
        // The first attempt to connect is awaited, so that the first reads can borrow.
        let _ = tried.recv_timeout(options.patience);
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn is_connected(&self) -> bool {
        lock(&self.shared.state).connection.is_some()
    }

    /// Requests the owner's data of a range of a file, on behalf of a user. Returns the number of bytes lent
    /// for the first time.
    pub(crate) async fn borrow(
        &self,
        object: &Object,
        data: &Arc<Data>,
        user: &Identity,
        range: &Range<u64>,
    ) -> u64 {
        let has = data.borrowed().map_or(0, |borrowed| borrowed.generation());
        let size = data.version().size;
        let ask = Ask {
            id: 0,
            handle: object.handle.clone(),
            version: data.version(),
            range: range.start..range.start.saturating_add(ASK_BYTES).min(size),
            user: user.clone(),
            has,
        };
        let Some(answer) = self.shared.ask(ask) else { return 0 };
        let Some(Answer { lent, loan }) = answer.kept().await else { return 0 };
        let (bytes, is_new) = data.take_in(loan, &lent);
        if is_new {
            self.shared.note(data);
        }
        bytes
    }
}

impl Drop for Borrower {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.wakeup.notify();
        // The thread itself may drop the borrower, in a task that it has woken; it cannot join itself.
        if let Some(thread) = self.thread.take().filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Data {
    /// Returns the borrowed data, if there are any and their owner is still connected.
    pub(crate) fn borrowed(&self) -> Option<Arc<super::Borrowed>> {
        lock(&self.borrowed).as_ref().filter(|borrowed| borrowed.holds()).cloned()
    }

    pub(super) fn give_back(&self) {
        let _borrowed = lock(&self.borrowed).take();
    }

    /// Stores borrowed extents. Returns the number of new bytes, and `true` if the descriptor is new.
    fn take_in(&self, loan: Option<Arc<Loan>>, lent: &Lent) -> (u64, bool) {
        let mut place = lock(&self.borrowed);
        let is_same = place.as_ref().is_some_and(|it| it.holds() && it.generation() == lent.generation);
        let is_new = !is_same && loan.is_some();
        if is_new {
            *place = loan.map(super::Borrowed::new).map(Arc::new);
        }
        // If the descriptor is neither the present one nor new, it was returned meanwhile.
        let borrowed = place.as_ref().filter(|_| is_same || is_new);
        (borrowed.map_or(0, |borrowed| borrowed.add(&lent.extents)), is_new)
    }
}

impl Loan {
    pub(super) fn holds(&self) -> bool {
        self.connection.is_open.load(Ordering::Acquire)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let release = Request::Release(self.generation).encoded();
        if self.holds() && packet::send(&self.connection.socket, &release, &[]).is_err() {
            // The owner would retain the file for ever: disconnecting releases all files.
            let _ = socket::shut_down(&self.connection.socket);
        }
    }
}

impl Shared {
    /// Sends a request to the owner. Returns `None` if none is connected or it has not answered lately, too
    /// many requests are pending, or sending fails.
    fn ask(&self, ask: Ask) -> Option<Arc<Promise<Option<Answer>>>> {
        let mut state = lock(&self.state);
        let connection = state.connection.clone()?;
        let is_quiet = state.quiet.is_some_and(|(until, _)| Instant::now() < until);
        if is_quiet || state.pending.len() >= PENDING_MAX {
            return None;
        }
        state.last_id += 1;
        let (id, size, has) = (state.last_id, ask.version.size, ask.has);
        let request = Request::Borrow(Ask { id, ..ask }).encoded();
        if request.len() > MESSAGE_BYTES_MAX || packet::send(&connection.socket, &request, &[]).is_err() {
            return None;
        }
        let answer = Arc::<Promise<_>>::default();
        let was_idle = state.pending.is_empty();
        let until = Instant::now() + self.options.patience;
        state.pending.insert(id, Pending { until, size, has, answer: answer.clone() });
        if was_idle {
            self.wakeup.notify();
        }
        Some(answer)
    }

    /// Records data with a new descriptor. Returns the oldest ones beyond the share of descriptors to the
    /// owner.
    fn note(&self, data: &Arc<Data>) {
        let mut state = lock(&self.state);
        state.lent.push_back(Arc::downgrade(data));
        if state.lent.len() <= self.share.guaranteed() {
            return;
        }
        state.lent.retain(|data| data.strong_count() > 0);
        let too_many = state.lent.len().saturating_sub(self.share.guaranteed());
        let oldest: Vec<_> = state.lent.drain(..too_many).collect();
        drop(state);
        oldest.iter().filter_map(Weak::upgrade).for_each(|data| data.give_back());
    }

    fn run(&self, first: Sender<()>) {
        let (mut first, mut pause) = (Some(first), PAUSES.0);
        while !self.is_stopping.load(Ordering::SeqCst) {
            match self.connect() {
                Ok((connection, epoll)) => {
                    tracing::info!(socket = %self.path.display(), "borrowing data from another proxy's cache");
                    lock(&self.state).connection = Some(connection.clone());
                    first = None;
                    pause = match self.serve(&connection, &epoll) {
                        Ended::Lost => PAUSES.0,
                        Ended::Violated => PAUSES.1,
                    };
                    self.lost(&connection);
                    tracing::info!(socket = %self.path.display(), "borrowing has ended: reading data from the origin");
                }
                Err(error) => {
                    if first.take().is_some() {
                        tracing::warn!(
                            socket = %self.path.display(), %error,
                            "cannot borrow data at present: reading them from the origin"
                        );
                    }
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
            self.rest(pause);
        }
    }

    /// Connects to the owner, and waits until it has accepted the handshake.
    fn connect(&self) -> io::Result<(Arc<Connection>, Epoll)> {
        let socket = packet::connect(&self.path)?;
        if !is_own(socket.as_fd()) {
            return Err(io::Error::other("the socket belongs to another user"));
        }
        packet::send(&socket, &Request::Hello(self.volume).encoded(), &[])?;
        let epoll = Epoll::new()?;
        epoll.add(&socket, SOCKET, Interest::Readable)?;
        epoll.wait(&mut Vec::new(), Some(self.options.patience))?;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let packet = packet::receive(&socket, &mut buffer)?;
        match buffer.get(..packet.len).and_then(Reply::decoded) {
            Some(Reply::Hello(Welcome::Yes)) => {}
            Some(Reply::Hello(Welcome::OtherOrigin)) => {
                return Err(io::Error::other("the cache is of another file system"));
            }
            _ => return Err(io::Error::other("invalid reply from the socket: not the owner of a cache")),
        }
        epoll.add(&self.wakeup, WAKEUP, Interest::Readable)?;
        Ok((Arc::new(Connection { socket, is_open: AtomicBool::new(true) }), epoll))
    }

    /// Receives replies until the connection ends.
    fn serve(&self, connection: &Arc<Connection>, epoll: &Epoll) -> Ended {
        let (mut events, mut buffer) = (Vec::new(), [0; MESSAGE_BYTES_MAX]);
        let mut look_at = Instant::now() + self.options.idle;
        loop {
            let next = lock(&self.state).pending.first_key_value().map(|(_, pending)| pending.until);
            let next = next.map_or(look_at, |until| until.min(look_at));
            let timeout = Some(next.saturating_duration_since(Instant::now()));
            if epoll.wait(&mut events, timeout).is_err() || self.is_stopping.load(Ordering::SeqCst) {
                return Ended::Lost;
            }
            self.wakeup.clear();
            loop {
                match packet::receive(&connection.socket, &mut buffer) {
                    Err(Errno::AGAIN) => break,
                    Ok(packet) if packet.len > 0 => {
                        let message = buffer.get(..packet.len).unwrap_or_default();
                        if self.take(connection, message, packet).is_none() {
                            tracing::warn!(socket = %self.path.display(), "invalid message from the owner of the cache: disconnecting");
                            return Ended::Violated;
                        }
                    }
                    _ => return Ended::Lost,
                }
            }
            let now = Instant::now();
            self.expire(now);
            if now >= look_at {
                look_at = now + self.options.idle;
                self.give_back_idle();
            }
        }
    }

    /// Returns descriptors of data not read since the last call, so that the owner may evict the data.
    fn give_back_idle(&self) {
        let all: Vec<_> = lock(&self.state).lent.iter().filter_map(Weak::upgrade).collect();
        for data in all {
            if data.borrowed().is_some_and(|borrowed| !borrowed.was_used()) {
                data.give_back();
            }
        }
        lock(&self.state).lent.retain(|data| data.upgrade().is_some_and(|data| data.borrowed().is_some()));
    }

    /// Processes a reply. Returns `None` if it is invalid.
    fn take(&self, connection: &Arc<Connection>, message: &[u8], packet: Packet) -> Option<()> {
        let Reply::Lent(lent) = Reply::decoded(message).filter(|_| !packet.truncated)? else { return None };
        let mut descriptors = packet.descriptors.into_iter();
        let loan = descriptors.next().map(|descriptor| {
            let (file, generation) = (File::from(descriptor), lent.generation);
            Arc::new(Loan { file, generation, connection: connection.clone() })
        });
        if descriptors.next().is_some() {
            return None;
        }
        let pending = {
            let mut state = lock(&self.state);
            state.quiet = None;
            // If the request has timed out, the descriptor is returned to the owner at once, by dropping it.
            state.pending.remove(&lent.id)
        };
        let Some(Pending { size, has, answer, .. }) = pending else { return Some(()) };
        let makes_sense = is_possible(&lent, loan.as_deref(), size, has);
        answer.keep((makes_sense && !lent.extents.is_empty()).then_some(Answer { lent, loan }));
        makes_sense.then_some(())
    }

    /// Fails the requests that have timed out.
    fn expire(&self, now: Instant) {
        let late = {
            let mut state = lock(&self.state);
            let late: Vec<u64> = {
                let late = state.pending.iter().take_while(|(_, pending)| pending.until <= now);
                late.map(|(id, _)| *id).collect()
            };
            if !late.is_empty() {
                let pause = state.quiet.map_or(PAUSES.0, |(_, pause)| (pause * 2).min(PAUSES.1));
                state.quiet = Some((now + pause, pause));
            }
            late.iter().filter_map(|id| state.pending.remove(id)).collect::<Vec<_>>()
        };
        late.iter().for_each(|pending| pending.answer.keep(None));
    }

    /// Treats all data borrowed over a connection as returned.
    fn lost(&self, connection: &Connection) {
        connection.is_open.store(false, Ordering::Release);
        let (pending, lent) = {
            let mut state = lock(&self.state);
            state.connection = None;
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.lent))
        };
        let _ = socket::shut_down(&connection.socket);
        lent.iter().filter_map(Weak::upgrade).for_each(|data| data.give_back());
        pending.values().for_each(|pending| pending.answer.keep(None));
    }

    /// Sleeps for `pause`, or until the borrower is stopped.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let Ok(epoll) = Epoll::new() else { return thread::sleep(pause) };
        let _ = epoll.add(&self.wakeup, WAKEUP, Interest::Readable);
        while !self.is_stopping.load(Ordering::SeqCst) && Instant::now() < until {
            let _ = epoll.wait(&mut Vec::new(), Some(until.saturating_duration_since(Instant::now())));
            self.wakeup.clear();
        }
    }
}

/// Returns `true` if a reply is possible for its request: extents in order, within the file, and in a
/// descriptor that the borrower has.
fn is_possible(lent: &Lent, loan: Option<&Loan>, size: u64, has: u64) -> bool {
    let mut last = 0;
    let are_in_order = lent.extents.iter().all(|extent| {
        let fits = last <= extent.start && extent.start < extent.end;
        last = extent.end;
        fits
    });
    let is_there = match loan {
        Some(loan) => loan.file.metadata().is_ok_and(|file| file.is_file() && file.len() >= last),
        None => lent.extents.is_empty() || (lent.generation == has && has != 0),
    };
    are_in_order && last <= size && is_there
}
