//! TCP connections: records and arbitrary bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::message::Answer;

/// Maximum wait for a reply before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
}

impl Stream {
    /// Connects.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect(address)?)
    }

    /// Connects from an address of one's own: all of 127.0.0.0/8 is.
    pub fn connect_from(from: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::new(from, 0))?;
        connect(&socket, &address)?;
        Self::over(TcpStream::from(socket))
    }

    /// Uses an existing connection.
    pub fn over(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }

    /// Returns the socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Sends a record in one fragment.
    pub fn send(&mut self, record: &[u8]) -> io::Result<()> {
        self.send_bytes(&fragment(record, true))
    }

    /// Sends a record in fragments of `size` bytes.
    pub fn send_in_fragments(&mut self, record: &[u8], size: usize) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (index, piece) in record.chunks(size).enumerate() {
            bytes.extend(fragment(piece, (index + 1) * size >= record.len()));
        }
        self.send_bytes(&bytes)
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Shuts down the sending direction.
    pub fn finish(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    /// Receives the next reply.
    ///
    /// # Panics
    /// If the connection is closed.
    pub fn answer(&mut self) -> Answer {
        Answer::new(self.receive().expect("a reply").expect("an open connection"))
    }

    /// Receives the next record; `None` if the connection is closed in any way.
    pub fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut record = Vec::new();
        loop {
            let mut mark = [0; 4];
            if !self.fill(&mut mark)? {
                return Ok(None);
            }
            let mark = u32::from_be_bytes(mark);
            let start = record.len();
            record.resize(start + (mark & 0x7fff_ffff) as usize, 0);
            if !self.fill(&mut record[start..])? {
                return Ok(None);
            }
            if mark >> 31 == 1 {
                return Ok(Some(record));
            }
        }
    }

    /// Fills `bytes`; returns `false` if the connection is closed first.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        match self.socket.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if closes(error.kind()) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Returns `true` if the error kind means that the peer has closed the connection.
pub fn closes(kind: ErrorKind) -> bool {
    [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
        ErrorKind::BrokenPipe,
    ]
    .contains(&kind)
}

/// Encodes one fragment with its record mark (RFC 5531 §11).
pub fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | u32::from(last) << 31;
    [&mark.to_be_bytes(), bytes].concat()
}
