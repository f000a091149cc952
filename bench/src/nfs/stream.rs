//! TCP connection with a choice of waiting.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use serde::Deserialize;
use tombolo_host_runtime::polling::PollWindow;
use tombolo_sys::moment::Moment;

/// Way in which a reader waits. It matters more than processing the bytes: a sleeper must be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    #[default]
    Sleep,
    /// Poll for a while, then sleep, like Tombolo's server ([`tombolo_host_runtime::polling`]).
    SpinBriefly,
    /// Poll until data arrive.
    Spin,
}

/// Time without data after which a peer counts as dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection with one of three ways to read, and complete writes.
#[derive(Debug)]
pub struct Stream {
    inner: TcpStream,
    wait: Wait,
    window: PollWindow,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Stream {
    pub fn connect(address: SocketAddr, wait: Wait) -> io::Result<Self> {
        let stream = Self::new(TcpStream::connect(address)?, wait)?;
        stream.inner.set_read_timeout(Some(PATIENCE))?;
        stream.inner.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Wraps an accepted connection; only with [`Wait::Spin`] it has a time limit for its peer.
    pub fn new(inner: TcpStream, wait: Wait) -> io::Result<Self> {
        inner.set_nodelay(true)?;
        inner.set_nonblocking(wait != Wait::Sleep)?;
        Ok(Self { inner, wait, window: PollWindow::default() })
    }

    /// Reads available data or waits; returns 0 at the end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.wait == Wait::Sleep {
            return self.inner.read(into);
        }
        let mut since = None;
        loop {
            if let Some(count) = self.try_read(into)? {
                return Ok(count);
            }
            let since = *since.get_or_insert_with(Moment::now);
            if self.wait == Wait::Spin {
                if since.elapsed() > PATIENCE {
                    return Err(ErrorKind::TimedOut.into());
                }
                std::hint::spin_loop();
            } else if !self.window.is_open() || !self.window.pause(since) {
                break;
            }
        }
        let begun = Moment::now();
        let done = self.asleep(|stream| stream.read(into));
        self.window.slept(begun.elapsed());
        done
    }

    /// Reads available data; `None` if there are none.
    pub fn try_read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.inner.read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            done => done.map(Some),
        }
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_parts(&mut [IoSlice::new(bytes)])
    }

    /// Writes all parts with as few calls as the socket's buffer allows. Sleeps when it is full, regardless
    /// of the reader's mode.
    pub fn write_parts(&mut self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let written = match self.inner.write_vectored(parts) {
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.wait != Wait::Sleep => {
                    self.asleep(|stream| stream.write_vectored(parts))?
                }
                done => done?,
            };
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut parts, written);
        }
        Ok(())
    }

    /// Runs one operation that may sleep, on a non-blocking socket.
    fn asleep<T>(&mut self, operation: impl FnOnce(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        self.inner.set_nonblocking(false)?;
        let done = operation(&mut self.inner);
        self.inner.set_nonblocking(true)?;
        done
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Reads all that an accepted connection writes, so many bytes at a time.
    fn written(
        [writes, reads]: [Wait; 2],
        piece_bytes: usize,
        write: impl FnOnce(Stream) -> io::Result<()> + Send + 'static,
    ) -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let writer = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            write(Stream::new(stream, writes).unwrap()).unwrap();
        });
        let mut stream = Stream::connect(address, reads).unwrap();
        let (mut got, mut some) = (Vec::new(), vec![0; piece_bytes]);
        loop {
            match stream.read(&mut some).unwrap() {
                0 => break,
                count => got.extend_from_slice(&some[..count]),
            }
        }
        writer.join().unwrap();
        got
    }

    #[test]
    fn every_wait_mode_receives_bytes_and_end() {
        for wait in [Wait::Sleep, Wait::SpinBriefly, Wait::Spin] {
            let got = written([wait, wait], 3, |mut stream| {
                // Longer than the brief polling.
                std::thread::sleep(Duration::from_millis(5));
                stream.write_parts(&mut [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cd")])
            });
            assert_eq!(got, b"abcd");
        }
    }

    #[test]
    fn write_exceeding_socket_buffers_is_complete() {
        const MUCH: usize = 32 << 20;
        let write = |mut stream: Stream| stream.write_all(&vec![7; MUCH]);
        let got = written([Wait::SpinBriefly, Wait::Sleep], 1 << 16, write);
        assert_eq!(got.len(), MUCH);
    }
}
