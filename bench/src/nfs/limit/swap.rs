//! Exchange of requests and replies of fixed sizes.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use super::super::{Stream, Wait};
use crate::error::{Doing, Result};
use crate::measure::{Clock, Work};

const READ_BYTES: usize = 256 << 10;
/// Maximum size of a batch of small replies that are sent together.
const BATCH_BYTES: usize = 64 << 10;

/// Answers requests until the client disconnects. Its first eight bytes are the sizes of requests and
/// replies.
pub fn converse(mut stream: Stream) -> io::Result<()> {
    let mut sizes = [0; 8];
    let mut have = 0;
    while have < sizes.len() {
        match stream.read(&mut sizes[have..])? {
            0 => return Ok(()),
            count => have += count,
        }
    }
    let [a, b, c, d, e, f, g, h] = sizes;
    let request_bytes = (u32::from_be_bytes([a, b, c, d]) as usize).max(1);
    let reply_bytes = u32::from_be_bytes([e, f, g, h]) as usize;
    let at_once = (BATCH_BYTES / reply_bytes.max(1)).max(1);
    let replies = vec![0x5a; reply_bytes * at_once];
    let mut buffer = vec![0; READ_BYTES];
    let mut unanswered_bytes = 0;
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => unanswered_bytes += count,
        }
        let mut whole = unanswered_bytes / request_bytes;
        unanswered_bytes %= request_bytes;
        while whole > 0 {
            let now = whole.min(at_once);
            stream.write_all(&replies[..now * reply_bytes])?;
            whole -= now;
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
    let mut client = Swap::connect(address, wait, sizes, outstanding.into())?;
    let one_by_one = outstanding == 1;
    let run = move |count, clock: &mut Clock| {
        clock.start();
        let lap = || {
            if one_by_one {
                clock.lap();
            }
        };
        client.exchange(count, lap).doing(|| "exchange bytes".to_owned())?;
        if !one_by_one {
            clock.lap_of(count);
        }
        Ok(())
    };
    Ok(Work::new(run).bytes(data_bytes).per_second(!one_by_one))
}

/// Client of such a server.
struct Swap {
    stream: Stream,
    requests: Vec<u8>,
    request_bytes: usize,
    reply_bytes: usize,
    outstanding: u64,
    buffer: Vec<u8>,
}

impl Swap {
    fn connect(
        address: SocketAddr,
        wait: Wait,
        (request_bytes, reply_bytes): (usize, usize),
        outstanding: u64,
    ) -> Result<Self> {
        let mut stream = Stream::connect(address, wait).doing(|| format!("connect to {address}"))?;
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        let sizes = [size(request_bytes), size(reply_bytes)].concat();
        stream.write_all(&sizes).doing(|| "send the sizes".to_owned())?;
        let at_once = (BATCH_BYTES / request_bytes.max(1)).max(1);
        let requests = vec![0xa5; request_bytes * at_once];
        Ok(Self { stream, requests, request_bytes, reply_bytes, outstanding, buffer: vec![0; READ_BYTES] })
    }

    fn exchange(&mut self, count: u64, mut lap: impl FnMut()) -> io::Result<()> {
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
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_request_gets_one_reply_of_requested_size() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || converse(Stream::new(stream, Wait::SpinBriefly).unwrap()));
            }
        });
        for (sizes, outstanding) in
            [((100, 116), 1), ((100, 116), 32), ((92, 1 << 20), 8), ((1 << 20, 160), 8)]
        {
            let mut work = swap(address, Wait::Sleep, sizes, outstanding, None).unwrap();
            let mut clock = Clock::new();
            work.run(50, &mut clock).unwrap();
            assert_eq!(clock.count(), 50);
        }
    }
}
