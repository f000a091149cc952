//! Null servers, which show the cost of network and callers alone. Each runs in its own process,
//! `tombolo-bench limit KIND ADDRESS`, so that it is placed and measured like any server.
//!
//! [`Limit::Swap`] exchanges requests and replies of fixed sizes over bare TCP, such as those of a call and
//! its reply, or a whole file and one byte that confirms it: an upper bound for any protocol. [`null`] is the
//! null server of NFS.

use std::fs::{File, OpenOptions};
use std::io;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;

use clap::ValueEnum;
pub use null::READ_PREFIX;

use crate::error::{Doing, Result};
use crate::measure::{Laps, Work};
use crate::nfs::{Stream, Wait};

mod null;

/// Kind of null server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Limit {
    /// Answers a number of bytes with another number, as the client chooses, and drops or stores them: a bare
    /// echo, stream or file transfer.
    Swap,
    /// Answers NFS calls with constant replies, drops written data, and returns zeros.
    Null,
}

impl Limit {
    /// Returns the name on the command line and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Swap => "swap",
            Limit::Null => "null",
        }
    }
}

/// Serves connections, each on its own thread, for ever. Readers spin briefly and then sleep, like Tombolo's
/// NFS server. Stored files go to `folder`.
pub fn serve(limit: Limit, address: SocketAddr, folder: &Path) -> Result<()> {
    let listener = TcpListener::bind(address).doing(|| format!("listen at {address}"))?;
    for stream in listener.incoming() {
        let stream = stream.doing(|| "accept a connection".to_owned())?;
        let folder = folder.to_owned();
        // Errors are ignored: every client disconnects in the end.
        std::thread::spawn(move || drop(converse(limit, stream, &folder)));
    }
    Ok(())
}

fn converse(limit: Limit, stream: TcpStream, folder: &Path) -> io::Result<()> {
    let stream = Stream::new(stream, Wait::SpinBriefly)?;
    match limit {
        Limit::Swap => converse_swap(stream, folder),
        Limit::Null => null::converse(stream),
    }
}

const READ_BYTES: usize = 256 << 10;
/// Maximum size of a batch of small requests or replies that are sent together.
const BATCH_BYTES: usize = 64 << 10;
/// Maximum number of bytes of a reply that are sent by one call.
const PIECE_BYTES: usize = 1 << 20;
/// Name of the file in which requests are stored, in the server's folder.
const FILE: &str = "swap";

/// Answers requests until the client disconnects. The client's first nine bytes are the sizes of requests and
/// replies, and 1 if each request is to be stored in a file of `folder`.
fn converse_swap(mut stream: Stream, folder: &Path) -> io::Result<()> {
    let mut terms = [0; 9];
    let mut have = 0;
    while have < terms.len() {
        match stream.read(&mut terms[have..])? {
            0 => return Ok(()),
            count => have += count,
        }
    }
    let [a, b, c, d, e, f, g, h, stores] = terms;
    let request_bytes = (u32::from_be_bytes([a, b, c, d]) as usize).max(1);
    let reply_bytes = u32::from_be_bytes([e, f, g, h]) as usize;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    let file: Option<File> = (stores == 1).then(|| options.open(folder.join(FILE))).transpose()?;
    let replies = vec![0x5a; reply_bytes.clamp(BATCH_BYTES, PIECE_BYTES)];
    let mut buffer = vec![0; READ_BYTES];
    let mut unanswered_bytes = 0;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        if let Some(file) = &file {
            file.write_all_at(&buffer[..count], unanswered_bytes as u64)?;
        }
        unanswered_bytes += count;
        let mut left_bytes = unanswered_bytes / request_bytes * reply_bytes;
        unanswered_bytes %= request_bytes;
        while left_bytes > 0 {
            let now = left_bytes.min(replies.len());
            stream.write_all(&replies[..now])?;
            left_bytes -= now;
        }
    }
}

/// Returns the bare form of a row: calls and replies of these sizes, with this many outstanding. `data_bytes`
/// is the file data in each, if the figure is a rate.
pub fn swap(
    address: SocketAddr,
    wait: Wait,
    sizes: (usize, usize),
    outstanding: u32,
    data_bytes: Option<u64>,
) -> Result<Work<'static>> {
    let mut client = Swap::connect(address, wait, sizes, outstanding.into(), false)?;
    let exchange = move |count, laps: &mut Laps<'_>| {
        client.exchange(count, || laps.lap()).doing(|| "exchange bytes".to_owned())
    };
    Ok(Work::pipelined(outstanding, exchange).bytes(data_bytes))
}

/// Client of a [`Limit::Swap`] server.
pub struct Swap {
    stream: Stream,
    requests: Vec<u8>,
    request_bytes: usize,
    reply_bytes: usize,
    outstanding: u64,
    buffer: Vec<u8>,
}

impl Swap {
    /// Connects to a server that stores requests, or drops them.
    pub fn connect(
        address: SocketAddr,
        wait: Wait,
        (request_bytes, reply_bytes): (usize, usize),
        outstanding: u64,
        is_stored: bool,
    ) -> Result<Self> {
        let mut stream = Stream::connect(address, wait).doing(|| format!("connect to {address}"))?;
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        let terms = [&size(request_bytes)[..], &size(reply_bytes), &[u8::from(is_stored)]].concat();
        stream.write_all(&terms).doing(|| "send the sizes".to_owned())?;
        let at_once = (BATCH_BYTES / request_bytes.max(1)).max(1);
        let requests = vec![0xa5; request_bytes * at_once];
        Ok(Self { stream, requests, request_bytes, reply_bytes, outstanding, buffer: vec![0; READ_BYTES] })
    }

    pub fn exchange(&mut self, count: u64, mut lap: impl FnMut()) -> io::Result<()> {
        let mut sent = self.send(self.outstanding.min(count))?;
        let mut done = 0;
        let mut bytes = 0;
        while done < count {
            match self.stream.read(&mut self.buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                got => bytes += got,
            }
            let replies = (bytes / self.reply_bytes) as u64;
            bytes %= self.reply_bytes;
            done += replies;
            (0..replies).for_each(|_| lap());
            sent += self.send(replies.min(count - sent))?;
        }
        Ok(())
    }

    fn send(&mut self, count: u64) -> io::Result<u64> {
        let mut bytes = count as usize * self.request_bytes;
        while bytes > 0 {
            let now = bytes.min(self.requests.len());
            self.stream.write_all(&self.requests[..now])?;
            bytes -= now;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Clock;

    fn served(folder: &Path) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, folder) = (listener.local_addr().unwrap(), folder.to_owned());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let folder = folder.clone();
                std::thread::spawn(move || {
                    converse_swap(Stream::new(stream, Wait::SpinBriefly).unwrap(), &folder)
                });
            }
        });
        address
    }

    #[test]
    fn each_request_gets_one_reply_of_requested_size() {
        let address = served(Path::new("/nowhere"));
        for (sizes, outstanding) in
            [((100, 116), 1), ((100, 116), 32), ((92, 1 << 20), 8), ((1 << 20, 160), 8), ((1, 5 << 20), 1)]
        {
            let mut work = swap(address, Wait::Sleep, sizes, outstanding, None).unwrap();
            let mut clock = Clock::new();
            work.run(50, &mut clock).unwrap();
            assert_eq!(clock.count(), 50);
        }
    }

    #[test]
    fn stored_requests_are_complete() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = 3 * READ_BYTES + 5;
        let mut client = Swap::connect(served(folder.path()), Wait::Sleep, (bytes, 1), 1, true).unwrap();
        client.exchange(2, || {}).unwrap();
        assert!(std::fs::read(folder.path().join(FILE)).unwrap() == vec![0xa5; bytes]);
    }
}
