//! Site cache ([`Middle`]): an untrusted cache on the network. The origin's digests verify its data.
//!
//! The origin determines a file's version and content; the site cache only saves bandwidth of the origin's
//! connection. The connection to the site cache must have a timeout of its own, as nothing else bounds a
//! reader's wait for it. On any failure the origin is read.

use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Attr, DIGESTED_BYTES, FileSystem, WeakAttr, within};
use tombolo_core::{Error, Result, lock};
use tombolo_mem::Buffer;

use crate::cache::Cache;
use crate::data::Data;
use crate::object::Object;
use crate::origin::OriginFile;

/// Function that connects to the site cache. May block for a bounded time.
pub type Connect = Box<dyn Fn() -> Result<Arc<dyn FileSystem>> + Send + Sync>;

/// First and longest pause after a failed attempt to connect, or a failed request.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// First and longest pause after data that failed verification.
const PAUSES_OF_LIARS: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(3600));

/// Length of a read below which the origin is read, as requesting a digest from it would take as long.
const BYTES_MIN: u64 = 4096;

/// A site cache: its connection, and the pauses after failures.
pub(crate) struct Middle {
    name: String,
    connect: Arc<Connect>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    fs: Option<Arc<dyn FileSystem>>,
    is_connecting: bool,
    /// End and length of the current or last pause; the next is twice as long.
    quiet: Option<(Instant, Duration)>,
    /// `true` once the origin provides no digests any more.
    is_over: bool,
}

impl Middle {
    /// Starts connecting and waits up to `first_wait`, so that the first reads already use the site cache.
    pub(crate) fn new(name: &str, connect: Connect, first_wait: Duration) -> Self {
        let middle = Self { name: name.to_owned(), connect: Arc::new(connect), state: Arc::default() };
        let (first, tried) = mpsc::channel();
        middle.begin_to_connect(&mut lock(&middle.state), Some(first));
        let _ = tried.recv_timeout(first_wait);
        middle
    }

    /// Returns the verified data of a range from the site cache, and the origin's attributes of the file;
    /// `None` if the origin must be read.
    pub(crate) async fn bring(
        &self,
        cache: &Cache,
        object: &Object,
        data: &Data,
        from: &OriginFile,
        range: &Range<u64>,
    ) -> Option<(Buffer, Attr)> {
        let (version, is_written) = (data.version(), data.was_written() || object.state().is_written_here());
        if is_written || range.end.saturating_sub(range.start) < BYTES_MIN {
            return None;
        }
        let fs = self.connected()?;
        let start = range.start / DIGESTED_BYTES * DIGESTED_BYTES;
        let end = range.end.next_multiple_of(DIGESTED_BYTES).min(version.size);
        let mut lent = Buffer::new(end.saturating_sub(start) as usize);
        let sink = lent.sink(0..lent.len());
        let asked =
            within(fs.lending(), |lending| lending.lend(&from.cx, &object.handle, &version, start, sink));
        match asked.resolve().await {
            Ok(()) => {}
            // The site cache lacks the data, or does not let this user read them.
            Err(Error::NotFound | Error::AccessDenied | Error::NotPermitted | Error::WouldBlock) => {
                return None;
            }
            Err(Error::Interrupted) => return None,
            Err(error) => {
                self.lost(&error);
                return None;
            }
        }
        let digests = match cache.origin.fs.digests() {
            Some(digests) => digests.digests(&from.cx, from.file.node, start..end).resolve().await,
            None => Err(Error::NotSupported),
        };
        let (attr, digests) = match digests {
            Ok(told) => told,
            Err(error) => {
                self.not_proved(&error);
                return None;
            }
        };
        if WeakAttr::from(&attr) != version {
            return None;
        }
        if !is_right(&mut lent, &digests) {
            cache.counters.refused_bytes.add_len(lent.len());
            self.lied();
            return None;
        }
        self.answered();
        cache.counters.borrowed_bytes.add(range.end.min(version.size) - range.start);
        Some((part(lent, (range.start - start) as usize, (range.end.min(end) - range.start) as usize)?, attr))
    }

    /// Returns the connection; `None` in a pause, and while there is none, in which case an attempt to
    /// connect is started.
    fn connected(&self) -> Option<Arc<dyn FileSystem>> {
        let mut state = lock(&self.state);
        let is_quiet = state.quiet.is_some_and(|(until, _)| Instant::now() < until);
        if is_quiet || state.is_over {
            return None;
        }
        if state.fs.is_none() && !state.is_connecting {
            self.begin_to_connect(&mut state, None);
        }
        state.fs.clone()
    }

    /// Starts a thread that connects. `first` is dropped after the attempt, which wakes its receiver.
    fn begin_to_connect(&self, state: &mut State, first: Option<Sender<()>>) {
        let (connect, shared, name) = (self.connect.clone(), self.state.clone(), self.name.clone());
        let begun = thread::Builder::new().name("cache-middle".into()).spawn(move || {
            // Dropped at the end, also on a panic.
            let _first = first;
            let connected = connect();
            let mut state = lock(&shared);
            state.is_connecting = false;
            match connected {
                Ok(fs) => {
                    tracing::info!(name, "reading data from the intermediate cache, verified by the origin's digests");
                    state.fs = Some(fs);
                }
                Err(error) => {
                    if state.quiet.is_none() {
                        tracing::warn!(name, %error, "intermediate cache unreachable: reading data from the origin");
                    }
                    state.pause(PAUSES);
                }
            }
        });
        state.is_connecting = begun.is_ok();
    }

    /// Records a valid answer: unless a pause is in progress, the next pause is again the shortest.
    fn answered(&self) {
        let mut state = lock(&self.state);
        // A reply to an earlier request does not end a pause.
        state.quiet = state.quiet.filter(|(until, _)| Instant::now() < *until);
    }

    /// Records a timeout or an invalid answer. A new connection follows, possibly to another server.
    fn lost(&self, error: &Error) {
        let mut state = lock(&self.state);
        if state.fs.is_some() {
            tracing::warn!(name = self.name, %error, "intermediate cache not responding: reading data from the origin for a while");
        }
        let fs = state.fs.take();
        state.pause(PAUSES);
        drop(state);
        drop(fs);
    }

    fn lied(&self) {
        tracing::warn!(
            name = self.name,
            "data from the intermediate cache do not match the origin's digests: reading from the origin for a while"
        );
        lock(&self.state).pause(PAUSES_OF_LIARS);
    }

    /// Records a failed request for digests. If the origin provides none, the site cache is not used any
    /// more.
    fn not_proved(&self, error: &Error) {
        if matches!(error, Error::NotSupported) && !std::mem::replace(&mut lock(&self.state).is_over, true) {
            tracing::warn!(
                name = self.name,
                "the origin provides no digests any more: the intermediate cache is not used"
            );
        }
    }
}

impl State {
    fn pause(&mut self, (first, longest): (Duration, Duration)) {
        let now = Instant::now();
        // Concurrent requests may report the same failure.
        if self.quiet.is_some_and(|(until, pause)| now < until && pause >= first) {
            return;
        }
        let pause = self.quiet.map_or(first, |(_, pause)| (pause * 2).clamp(first, longest));
        self.quiet = Some((now + pause, pause));
    }
}

/// Returns `true` if all data match their digests.
fn is_right(data: &mut Buffer, digests: &[u8]) -> bool {
    let Some(data) = data.as_slice() else { return false };
    let (digests, rest) = digests.as_chunks::<{ blake3::OUT_LEN }>();
    let chunks = data.chunks(DIGESTED_BYTES as usize);
    rest.is_empty()
        && chunks.len() == digests.len()
        && chunks.zip(digests).all(|(chunk, digest)| blake3::hash(chunk) == *digest)
}

fn part(whole: Buffer, start: usize, len: usize) -> Option<Buffer> {
    if (start, len) == (0, whole.len()) {
        return Some(whole);
    }
    let part = Buffer::new(len);
    let copied = whole.source(start..start + len).copy_to_sink(&part.sink(0..len));
    (copied == len).then_some(part)
}
