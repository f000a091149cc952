//! Execution of scripted replies.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use tombolo_nfs_tests::client::fragment;
use tombolo_wire_rpc::Mark;

use super::upstream::Upstream;
use super::{ReceivedCall, ScriptedReply};

/// Reads the next record of a stream; fails at its end.
pub(super) fn record(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    loop {
        let mut mark = [0; Mark::BYTES];
        stream.read_exact(&mut mark)?;
        let mark = Mark::from_bytes(mark);
        let start = message.len();
        message.resize(start + mark.len_bytes as usize, 0);
        stream.read_exact(message.get_mut(start..).unwrap_or_default())?;
        if mark.last {
            return Ok(message);
        }
    }
}

/// Destination of replies.
pub(super) trait ReplySink {
    /// Sends a message as a record or datagram.
    fn record(&mut self, message: &[u8]) -> io::Result<()>;
    /// Sends arbitrary bytes.
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Closes the connection, with RST if `reset`.
    fn close(&mut self, reset: bool) -> io::Result<()>;
}

/// Executes a scripted reply. An error ends the connection.
pub(super) fn carry_out(
    say: ScriptedReply,
    asked: &ReceivedCall<'_>,
    behind: &mut Upstream,
    sink: &mut dyn ReplySink,
) -> io::Result<()> {
    match say {
        ScriptedReply::Forward => sink.record(&behind.ask(asked.message())?),
        ScriptedReply::Edited(edit) => sink.record(&behind.ask_and_edit(asked.message(), edit)?),
        ScriptedReply::Results(results) => sink.record(&asked.reply(&results)),
        ScriptedReply::Record(message) => sink.record(&message),
        ScriptedReply::Bytes(bytes) => sink.bytes(&bytes),
        ScriptedReply::Repeated(bytes, times) => (0..times).try_for_each(|_| sink.bytes(&bytes)),
        ScriptedReply::Silence => Ok(()),
        ScriptedReply::Close => sink.close(false),
        ScriptedReply::Reset => sink.close(true),
        ScriptedReply::Dropped => behind.ask(asked.message()).map(drop),
        ScriptedReply::After(time, say) => {
            std::thread::sleep(time);
            carry_out(*say, asked, behind, sink)
        }
        ScriptedReply::All(all) => all.into_iter().try_for_each(|say| carry_out(say, asked, behind, sink)),
    }
}

impl ReplySink for &TcpStream {
    fn record(&mut self, message: &[u8]) -> io::Result<()> {
        self.write_all(&fragment(message, true))
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn close(&mut self, reset: bool) -> io::Result<()> {
        if reset {
            // Dropping the socket now sends RST instead of FIN.
            set_socket_linger(*self, Some(Duration::ZERO))?;
        } else {
            self.shutdown(Shutdown::Both)?;
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

/// A socket and the peer's address.
pub(super) struct Datagrams<'a>(pub(super) &'a UdpSocket, pub(super) SocketAddr);

impl ReplySink for Datagrams<'_> {
    fn record(&mut self, message: &[u8]) -> io::Result<()> {
        self.bytes(message)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.send_to(bytes, self.1).map(drop)
    }

    /// Ignores the request: datagram sockets have no connection.
    fn close(&mut self, _reset: bool) -> io::Result<()> {
        Ok(())
    }
}
