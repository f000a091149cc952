//! TLS session of one connection.

use std::io::{self, IoSlice, Write};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, recv};
use rustls::Connection;
use tombolo_host_runtime::lock;
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result, tcp};

use crate::{ALPN, PeerCertificate, TlsError};

/// Maximum number of bytes received in one system call, and encrypted before they are sent: the data of four
/// full records.
const CHUNK_BYTES: usize = 64 << 10;

/// A client's or server's side of a session over one stream. It never blocks. Threads may send and receive
/// concurrently, but only one at a time sends.
///
/// A failure of the session is returned as EPROTO, with details in [`fault`](Self::fault).
pub struct Session(Mutex<SessionState>);

struct SessionState {
    tls: Connection,
    /// Data received from the socket, and the number of bytes decrypted. The buffer is not allocated while it
    /// and the socket are empty.
    received: Vec<u8>,
    taken: usize,
    /// `true` once the peer has stopped sending.
    ended: bool,
    /// `true` if the socket was full after the last send: the last encrypted byte was then not counted as
    /// sent. The next send begins with this byte, and must not encrypt it again.
    is_one_ahead: bool,
    /// `true` if the session fails unless both sides negotiate the protocol name of RPC (RFC 9289 §5).
    requires_rpc: bool,
    fault: Option<TlsError>,
}

impl Session {
    pub(crate) fn new(mut tls: Connection, requires_rpc: bool) -> Self {
        // `send` bounds the amount of encrypted data.
        tls.set_buffer_limit(None);
        Self(Mutex::new(SessionState {
            tls,
            received: Vec::new(),
            taken: 0,
            ended: false,
            is_one_ahead: false,
            requires_rpc,
            fault: None,
        }))
    }

    /// Advances the handshake. Returns EAGAIN while it is incomplete; the caller retries once the stream is
    /// readable or writable.
    pub fn handshake(&self, stream: BorrowedFd<'_>) -> Result<()> {
        let mut state = lock(&self.0);
        loop {
            state.flush(stream)?;
            if !state.tls.is_handshaking() {
                let is_named = !state.requires_rpc || state.tls.alpn_protocol() == Some(ALPN);
                return if is_named { Ok(()) } else { state.fail(TlsError::NoAlpn) };
            }
            state.advance(stream)?;
            if state.ended {
                return Err(Errno::CONNRESET);
            }
        }
    }

    /// Returns the peer's certificate after the handshake, if it has presented one.
    #[must_use]
    pub fn peer(&self) -> Option<PeerCertificate> {
        let state = lock(&self.0);
        state.tls.peer_certificates()?.first().and_then(PeerCertificate::of)
    }

    /// Returns the failure of the session, or `None` if it has not failed.
    #[must_use]
    pub fn fault(&self) -> Option<TlsError> {
        lock(&self.0).fault.clone()
    }

    /// Sends a prefix of the list and returns its length. Returns EAGAIN if the socket is full. The next send
    /// must begin with the unsent remainder, some of which may be encrypted already.
    pub fn send(&self, stream: BorrowedFd<'_>, gather: &Gather<'_>) -> Result<usize> {
        let mut state = lock(&self.0);
        if state.fault.is_some() {
            return Err(Errno::PROTO);
        }
        state.flush(stream)?;
        // The last byte of `plain` may be encrypted but not counted as sent. It must not be the first byte of
        // a message, because a caller may withdraw a message of which nothing was sent.
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

    /// Receives into the sinks in order, and returns the number of bytes: 0 only at the end of the stream or
    /// without space. Returns EAGAIN if nothing is available; until then there may be more data, whatever the
    /// socket's readiness.
    pub fn receive(&self, stream: BorrowedFd<'_>, into: &[&Sink]) -> Result<usize> {
        let mut state = lock(&self.0);
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
                // The next call returns the error.
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
            }
        }
    }
}

impl SessionState {
    /// Copies decrypted data to the sinks, starting at offset `from`.
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

    /// Decrypts some of the received data, after receiving more if none are left.
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
        // Sends the answer to a key update. If data wait for a full socket (`is_one_ahead`), the answer waits
        // with them for the next send.
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

    /// Sends encrypted data. Returns EAGAIN if the socket does not accept all of it.
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

    /// Fails the session, sending an alert if the socket accepts it.
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
