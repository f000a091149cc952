//! Reference client with a thread per request, like SunOS's biods: the program hands over its data, and a
//! thread sends it and waits for the reply.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tombolo_wire_rpc::Mark;
use tombolo_wire_xdr::padding;

use super::codec::{Codec, Moved};
use super::queue::{Queue, Request};
use super::{Client, Direction, DriveArgs, Job, content};
use crate::error::{Doing, Error, Result};
use crate::nfs::Wait;
use crate::nfs::client::{Handle, Mounted, Reply, commit, committed};

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
        let name = if job.direction == Direction::Read { job.read_name() } else { self.file.clone() };
        let file = self.mounted.walk(&name)?;
        let team = self.team(file, job.limit)?;
        self.memory(job.file_bytes);
        let begun = Instant::now();
        match job.direction {
            Direction::Write => {
                team.write(job, &self.memory)?;
                let mut reply = Reply::default();
                self.mounted.connection().call(&mut commit(&file), &mut reply)?;
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
            // Copied from the buffer that a thread filled to the program's memory.
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
            // Its failure was reported already.
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
