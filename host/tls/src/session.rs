//! One connection's TLS.

use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};
use rustls::Connection;
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result, tcp};

use crate::{ALPN, PeerCertificate, TlsError};

/// So much is received from the socket in one system call, and so much is encrypted before it is sent: four
/// records and their heads.
const CHUNK_BYTES: usize = 64 << 10;

/// A client's or a server's side of a session over one stream, which never waits. Threads may send and
/// receive at the same time, but no two of them send.
///
/// What breaks the session is told as EPROTO, and in words by [`fault`](Self::fault).
pub struct Session(Mutex<State>);

struct State {
    tls: Connection,
    /// What the socket had, and how much of it was decrypted. It has no memory while it is empty and the
    /// socket is.
    received: Vec<u8>,
    taken: usize,
    /// The peer sends no more.
    ended: bool,
    /// The last byte that was to be sent is encrypted, but the socket has not taken all before it, so it
    /// counts as not sent. It is the first of what is to be sent next.
    is_one_ahead: bool,
    /// Both sides have to name RPC (RFC 9289 §5: neither goes on with one that does not).
    names_rpc: bool,
    fault: Option<TlsError>,
}

impl Session {
    pub(crate) fn new(mut tls: Connection, names_rpc: bool) -> Self {
        // What is encrypted is bounded by what `send` takes.
        tls.set_buffer_limit(None);
        Self(Mutex::new(State {
            tls,
            received: Vec::new(),
            taken: 0,
            ended: false,
            is_one_ahead: false,
            names_rpc,
            fault: None,
        }))
    }

    /// Goes on with the handshake. EAGAIN while it is not done: then again once the stream is readable or
    /// writable.
    pub fn handshake(&self, stream: BorrowedFd<'_>) -> Result<()> {
        let mut state = self.lock();
        loop {
            state.flush(stream)?;
            if !state.tls.is_handshaking() {
                let is_named = !state.names_rpc || state.tls.alpn_protocol() == Some(ALPN);
                return if is_named { Ok(()) } else { state.fail(TlsError::NoAlpn) };
            }
            state.advance(stream)?;
            if state.ended {
                return Err(Errno::CONNRESET);
            }
        }
    }

    /// The peer, once the handshake is done and it has shown a certificate.
    #[must_use]
    pub fn peer(&self) -> Option<PeerCertificate> {
        let state = self.lock();
        state.tls.peer_certificates()?.first().and_then(PeerCertificate::of)
    }

    /// What broke the session.
    #[must_use]
    pub fn fault(&self) -> Option<TlsError> {
        self.lock().fault.clone()
    }

    /// Sends the beginning of the list; returns how many bytes went. EAGAIN when there is no room. What was
    /// not sent must be the beginning of what is sent next: some of it may be encrypted already.
    pub fn send(&self, stream: BorrowedFd<'_>, gather: &Gather<'_>) -> Result<usize> {
        let mut state = self.lock();
        if state.fault.is_some() {
            return Err(Errno::PROTO);
        }
        state.flush(stream)?;
        // A message of which nothing was sent may be taken back, so its first byte alone is not encrypted.
        let plain = gather.to_vec(CHUNK_BYTES - usize::from(gather.begins_at(CHUNK_BYTES - 1)));
        let new = plain.get(usize::from(state.is_one_ahead)..).unwrap_or_default();
        state.tls.writer().write_all(new).map_err(|_| Errno::PROTO)?;
        match state.flush(stream) {
            Ok(()) => state.is_one_ahead = false,
            Err(Errno::AGAIN) => state.is_one_ahead = true,
            Err(error) => return Err(error),
        }
        match plain.len() - usize::from(state.is_one_ahead) {
            0 if !plain.is_empty() => Err(Errno::AGAIN),
            sent => Ok(sent),
        }
    }

    /// Receives into the sinks, one after the other; returns how many bytes came, 0 only at the end of the
    /// stream or when there is no room. EAGAIN when nothing is there; until then there may be more, whatever
    /// the stream says of itself.
    pub fn receive(&self, stream: BorrowedFd<'_>, into: &[&Sink]) -> Result<usize> {
        let mut state = self.lock();
        let room: usize = into.iter().map(|sink| sink.len()).sum();
        let mut filled = 0;
        loop {
            filled += state.decrypted(into, filled)?;
            let is_used_up = state.taken == state.received.len();
            if filled == room || state.ended || filled > 0 && is_used_up {
                return Ok(filled);
            }
            match state.advance(stream) {
                Ok(()) => {}
                // It comes again when this was taken.
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Copies what is decrypted, from there on in the sinks.
    fn decrypted(&mut self, into: &[&Sink], from: usize) -> Result<usize> {
        let (mut skip, mut copied) = (from, 0);
        let mut plain = self.tls.reader();
        for sink in into {
            let mut at = skip.min(sink.len());
            skip -= at;
            while at < sink.len() {
                let chunk = match io::BufRead::fill_buf(&mut plain) {
                    Ok([]) => return Ok(copied),
                    Ok(chunk) => chunk,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(copied),
                    Err(error) => return Err(errno(&error)),
                };
                let len = sink.write_at(at, chunk);
                io::BufRead::consume(&mut plain, len);
                (at, copied) = (at + len, copied + len);
            }
        }
        Ok(copied)
    }

    /// Decrypts some of what was received, or receives more.
    fn advance(&mut self, stream: BorrowedFd<'_>) -> Result<()> {
        if self.fault.is_some() {
            return Err(Errno::PROTO);
        }
        if self.taken == self.received.len() {
            self.refill(stream)?;
        }
        let mut rest = self.received.get(self.taken..).unwrap_or_default();
        let before = rest.len();
        let outcome = if before > 0 { self.tls.read_tls(&mut rest).map(drop) } else { Ok(()) };
        self.taken += before - rest.len();
        outcome.map_err(|error| errno(&error))?;
        match self.tls.process_new_packets() {
            Ok(now) => self.ended |= now.peer_has_closed(),
            Err(error) => return self.fail_with_alert(stream, error.into()),
        }
        // The answer to a change of keys. What is waited for with `is_one_ahead` goes when the stream is
        // writable.
        if self.tls.wants_write() && !self.is_one_ahead && !self.tls.is_handshaking() {
            match self.flush(stream) {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn refill(&mut self, stream: BorrowedFd<'_>) -> Result<()> {
        self.received.clear();
        self.taken = 0;
        self.received.reserve_exact(CHUNK_BYTES);
        let outcome = loop {
            match recv(stream, spare_capacity(&mut self.received), RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                outcome => break outcome,
            }
        };
        if self.received.is_empty() {
            self.received = Vec::new();
        }
        self.ended |= outcome.map(|received| received.0)? == 0;
        Ok(())
    }

    /// Sends what is encrypted. EAGAIN when the socket does not take all.
    fn flush(&mut self, stream: BorrowedFd<'_>) -> Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Outgoing(stream)).map_err(|error| errno(&error))?;
        }
        Ok(())
    }

    fn fail<T>(&mut self, fault: TlsError) -> Result<T> {
        self.fault = Some(fault);
        Err(Errno::PROTO)
    }

    /// The peer is told why, if the socket takes it.
    fn fail_with_alert<T>(&mut self, stream: BorrowedFd<'_>, fault: TlsError) -> Result<T> {
        let _ = self.flush(stream);
        self.fail(fault)
    }
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::from_io_error(error).unwrap_or(Errno::PROTO),
    }
}

/// The socket's sending side, for [`Connection::write_tls`].
struct Outgoing<'a>(BorrowedFd<'a>);

impl Write for Outgoing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut gather = Gather::new(0);
        slices.iter().for_each(|slice| gather.bytes(slice));
        Ok(tcp::send(self.0, &mut gather)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
