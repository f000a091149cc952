//! Reference client with a thread per request, like SunOS's biods: the program hands over its data, and a
//! thread sends it and waits for the reply. [`Queue`] is between them, bounded.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tombolo_wire_rpc::Mark;
use tombolo_wire_xdr::padding;

use crate::drive::codec::{Codec, Moved};
use crate::drive::{Client, Direction, DriveArgs, Job, content};
use crate::error::{Doing, Error, Result};
use crate::nfs::Wait;
use crate::nfs::client::{Handle, Mounted, Reply, commit, committed};

/// The client, with the threads for the file of its last job.
pub struct Biods {
    mounted: Mounted,
    nfs: SocketAddr,
    file: String,
    codec: Codec,
    team: Option<Team>,
    /// The program's own memory, the source and destination of data.
    memory: Vec<u8>,
}

impl Biods {
    pub fn new(args: &DriveArgs, codec: Codec) -> Result<Self> {
        let mounted = Mounted::at((args.nfs, args.mount), &args.export, Wait::Sleep)?;
        let (nfs, file) = (args.nfs, args.file.clone());
        Ok(Self { mounted, nfs, file, codec, team: None, memory: Vec::new() })
    }

    /// Starts as many threads as requests in flight, for one file.
    fn team(&mut self, file: Handle, limit: u32) -> Result<Team> {
        match self.team.take() {
            Some(team) if team.file == file && team.biods.len() == limit as usize => Ok(team),
            _ => Team::start(self.nfs, file, self.codec, limit),
        }
    }
}

impl Client for Biods {
    fn transfer(&mut self, job: &Job) -> Result<Duration> {
        let name = job.file_name(&self.file);
        let file = self.mounted.walk(&name)?;
        let team = self.team(file, job.limit)?;
        self.memory(job.file_bytes);
        let begun = Instant::now();
        match job.direction {
            Direction::Write => {
                team.write(job, &self.memory)?;
                let mut reply = Reply::default();
                self.mounted.connection.call(&mut commit(&file), &mut reply)?;
                committed(&reply)?;
            }
            Direction::Read => team.read(job, &mut self.memory)?,
            Direction::WriteStable => {
                return Err(Error::Absent("a thread per request writes unstable only".to_owned()));
            }
        }
        let took = begun.elapsed();
        self.team = Some(team);
        Ok(took)
    }

    fn memory(&mut self, file_bytes: usize) -> &[u8] {
        if self.memory.len() < file_bytes {
            self.memory = content(file_bytes);
        }
        &self.memory
    }
}

/// Threads that work on one file.
struct Team {
    file: Handle,
    queue: Arc<Queue>,
    biods: Vec<JoinHandle<()>>,
}

impl Team {
    fn start(nfs: SocketAddr, file: Handle, codec: Codec, limit: u32) -> Result<Self> {
        let queue = Arc::new(Queue::new(limit as usize));
        let mut team = Self { file, queue: Arc::clone(&queue), biods: Vec::new() };
        for number in 0..limit {
            let (mut biod, queue) = (Biod::connect(nfs, file, codec, number)?, Arc::clone(&queue));
            team.biods.push(std::thread::spawn(move || {
                while let Some(mut request) = queue.take() {
                    let done = biod.perform(&mut request);
                    queue.finish(request, done);
                }
            }));
        }
        Ok(team)
    }

    fn write(&self, job: &Job, memory: &[u8]) -> Result<()> {
        for (at, bytes) in job.each() {
            let mut request = self.queue.spare();
            (request.offset, request.wanted) = (at as u64, false);
            request.data.clear();
            // The program may change its memory meanwhile, so the request needs a copy.
            request.data.extend_from_slice(memory.get(at..at + bytes).unwrap_or_default());
            self.queue.put(request);
        }
        self.queue.drain()
    }

    /// Reads with as many requests ahead as there are threads.
    fn read(&self, job: &Job, memory: &mut [u8]) -> Result<()> {
        let ask = |(at, bytes): (usize, usize)| {
            let mut request = self.queue.spare();
            (request.offset, request.wanted) = (at as u64, true);
            request.data.resize(bytes, 0);
            self.queue.put(request);
        };
        let mut ahead = job.each();
        ahead.by_ref().take(self.biods.len()).for_each(ask);
        for (at, bytes) in job.each() {
            let request = self.queue.wait_for(at as u64)?;
            ahead.next().into_iter().for_each(ask);
            // This copy, from a thread's buffer to the program's memory, is a cost of the design.
            if let (Some(place), Some(data)) = (memory.get_mut(at..at + bytes), request.data.get(..bytes)) {
                place.copy_from_slice(data);
            }
            self.queue.give_back(request);
        }
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.queue.close();
        for biod in self.biods.drain(..) {
            // A failed request was reported by `drain` or `wait_for`, a panic by its thread.
            let _panicked = biod.join();
        }
    }
}

/// A thread's connection, with at most one call on it.
struct Biod {
    stream: TcpStream,
    file: Handle,
    codec: Codec,
    xid: u32,
    call: Vec<u8>,
    reply: Vec<u8>,
}

impl Biod {
    fn connect(nfs: SocketAddr, file: Handle, codec: Codec, number: u32) -> Result<Self> {
        let stream = TcpStream::connect(nfs).doing(|| format!("connect to {nfs}"))?;
        stream.set_nodelay(true).doing(|| "set TCP_NODELAY".to_owned())?;
        // A random start: a server may take equal calls with equal xids of one client for repetitions.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let xid = now.subsec_nanos() ^ number.wrapping_mul(0x0100_0000);
        Ok(Self { stream, file, codec, xid, call: Vec::new(), reply: Vec::new() })
    }

    /// Makes a call and waits for its reply.
    fn perform(&mut self, request: &mut Request) -> Result<()> {
        self.xid = self.xid.wrapping_add(1);
        self.call.clear();
        let done = if request.wanted { self.read(request) } else { self.write(request) };
        match done.doing(|| "exchange a call for a reply".to_owned())? {
            Some(moved) if moved.count as usize == request.data.len() => Ok(()),
            other => {
                let what = if request.wanted { "READ" } else { "WRITE" }.to_owned();
                Err(Error::Wrong { what, answer: format!("{other:?}") })
            }
        }
    }

    fn write(&mut self, request: &Request) -> std::io::Result<Option<Moved>> {
        let data = &request.data;
        let copied = self.codec.write_call(&mut self.call, self.xid, &self.file, request.offset, data);
        let (data, pad) = if copied { (&[][..], 0) } else { (&data[..], padding(data.len())) };
        let mut parts = [IoSlice::new(&self.call), IoSlice::new(data), IoSlice::new(&[0; 3][..pad])];
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match self.stream.write_vectored(parts)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => IoSlice::advance_slices(&mut parts, count),
            }
        }
        self.receive(0)?;
        Ok(self.codec.write_reply(&self.reply, self.xid))
    }

    fn read(&mut self, request: &mut Request) -> std::io::Result<Option<Moved>> {
        let count = request.data.len();
        self.codec.read_call(&mut self.call, self.xid, &self.file, request.offset, count as u32);
        self.stream.write_all(&self.call)?;
        self.receive(count)?;
        let moved = self.codec.read_reply(&self.reply, self.xid);
        // The destination of the data is known only after the head is parsed.
        if let Some(data) = moved.as_ref().and_then(|moved| self.reply.get(moved.data.clone())) {
            request.data.clear();
            request.data.extend_from_slice(data);
        }
        Ok(moved)
    }

    /// Receives a record of one fragment.
    fn receive(&mut self, data_bytes: usize) -> std::io::Result<()> {
        /// Maximum length of a reply without its data.
        const HEAD_BYTES: usize = 512;
        let most = HEAD_BYTES + data_bytes + padding(data_bytes);
        self.reply.resize(most, 0);
        let mut have = 0;
        loop {
            match self.stream.read(&mut self.reply[have..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => have += count,
            }
            let Some(mark) = self.reply[..have].first_chunk().map(|bytes| Mark::from_bytes(*bytes)) else {
                continue;
            };
            let whole = Mark::BYTES + mark.len_bytes as usize;
            if !mark.last || whole > most || have > whole {
                return Err(ErrorKind::InvalidData.into());
            }
            if have == whole {
                self.reply.truncate(have);
                return Ok(());
            }
        }
    }
}

/// A request with the data to write, or the buffer to read into.
#[derive(Debug, Default)]
pub struct Request {
    pub offset: u64,
    /// Buffer with the length of the request.
    pub data: Vec<u8>,
    /// `true` if the program waits for the data.
    pub wanted: bool,
}

/// Queue of requests, and of finished ones.
#[derive(Debug)]
pub struct Queue {
    state: Mutex<State>,
    /// Signalled when a request is queued.
    work: Condvar,
    /// Signalled when there is space, or a request has finished.
    news: Condvar,
    /// Maximum number of queued requests.
    length_max: usize,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Request>,
    unfinished: usize,
    /// Finished requests whose data are wanted, in any order.
    finished: Vec<Request>,
    /// Finished requests with free buffers.
    spare: Vec<Request>,
    error: Option<Error>,
    closed: bool,
}

impl Queue {
    /// Creates a queue for this many requests.
    pub fn new(length_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            news: Condvar::new(),
            length_max: length_max.max(1),
        }
    }

    /// Queues a request; waits while the queue is full, unless a request has failed.
    pub fn put(&self, request: Request) {
        let mut state = self.lock();
        while state.waiting.len() >= self.length_max && state.error.is_none() {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.push_back(request);
        state.unfinished += 1;
        drop(state);
        self.work.notify_one();
    }

    /// Takes the next request, or waits for it; `None` once the queue is empty and closed.
    pub fn take(&self) -> Option<Request> {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                drop(state);
                self.news.notify_one();
                return Some(request);
            }
            if state.closed {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records a request that was executed or has failed.
    pub fn finish(&self, request: Request, outcome: Result<()>) {
        let mut state = self.lock();
        state.unfinished -= 1;
        let to = if request.wanted { &mut state.finished } else { &mut state.spare };
        to.push(request);
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        drop(state);
        self.news.notify_one();
    }

    /// Returns a request with a reusable buffer.
    pub fn spare(&self) -> Request {
        self.lock().spare.pop().unwrap_or_default()
    }

    /// Returns a request whose data are no longer needed to the pool.
    pub fn give_back(&self, request: Request) {
        self.lock().spare.push(request);
    }

    /// Waits until the request at an offset has finished; fails as soon as any request has failed.
    pub fn wait_for(&self, offset: u64) -> Result<Request> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let at = state.finished.iter().position(|request| request.offset == offset);
            if let Some(at) = at {
                return Ok(state.finished.swap_remove(at));
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all requests have finished; fails with the first error.
    pub fn drain(&self) -> Result<()> {
        let mut state = self.lock();
        while state.unfinished > 0 {
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Closes the queue: threads that wait for work end.
    pub fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_finish_and_are_found_by_offset() {
        let queue = Arc::new(Queue::new(2));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    while let Some(request) = queue.take() {
                        queue.finish(request, Ok(()));
                    }
                })
            })
            .collect();
        for offset in 0..100 {
            queue.put(Request { offset, data: Vec::new(), wanted: true });
        }
        queue.drain().unwrap();
        assert_eq!(queue.wait_for(42).unwrap().offset, 42);
        queue.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }

    #[test]
    fn a_request_that_failed_ends_the_wait() {
        let queue = Queue::new(1);
        queue.put(Request::default());
        let request = queue.take().unwrap();
        queue.finish(request, Err(Error::Absent("no luck".to_owned())));
        assert!(queue.drain().unwrap_err().to_string().contains("no luck"));
    }
}
