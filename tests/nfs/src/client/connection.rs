//! Calls and their replies over one connection, TCP or UDP.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::datagrams::Datagrams;
use super::message::{Answer, Message};
use super::stream::Stream;

/// Transport of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Records in a stream.
    Tcp,
    /// A datagram each.
    Udp,
}

/// A connection that waits for the reply to each call.
#[derive(Debug)]
pub enum Connection {
    /// Over TCP.
    Tcp(Stream),
    /// Over UDP.
    Udp(Datagrams),
}

impl Connection {
    /// Connects.
    pub fn new(transport: Transport, address: SocketAddr) -> io::Result<Self> {
        Ok(match transport {
            Transport::Tcp => Self::Tcp(Stream::connect(address)?),
            Transport::Udp => Self::Udp(Datagrams::connect(address)?),
        })
    }

    /// Sends a call and waits for its reply.
    ///
    /// # Panics
    /// If no reply arrives or it has another xid: only one call is outstanding on a connection.
    pub fn call(&mut self, message: &Message) -> Answer {
        let bytes = message.to_bytes();
        let answer = match self {
            Self::Tcp(stream) => {
                stream.send(&bytes).expect("the call is sent");
                stream.answer()
            }
            Self::Udp(datagrams) => {
                datagrams.send(&bytes).expect("the call is sent");
                Answer::new(datagrams.receive().expect("a reply"))
            }
        };
        assert_eq!(answer.xid, message.xid, "the reply answers another call");
        answer
    }
}

/// Returns an xid that no other call of this process uses.
pub fn fresh_xid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x7000_0001);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
