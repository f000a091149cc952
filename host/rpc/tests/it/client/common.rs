//! A program whose procedures do as a test requires, served by this crate's own server, and its clients.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::client::{
    Call, CallError, DataLocation, Options, Pending, ReceiveBuffer, Reply, RpcClient, Target, Transport,
};
use tombolo_host_rpc::server::{Exchange, Options as ServerOptions, Outcome, Peer, ReplyData, Service};
use tombolo_mem::{Buffer, Source};
use tombolo_wire_rpc::{CallHeader, Credential, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

pub use crate::server::common::eventually;
use crate::server::common::{Host, Player as Holder};

pub const PROGRAM: u32 = 400_100;
pub const VERSION: u32 = 3;

/// Returns the arguments.
pub const ECHO: u32 = 1;
/// Arguments: length and fill. Returns a word, the length, and that many bytes.
pub const READ: u32 = 2;
/// Arguments: data. Returns their length and sum.
pub const WRITE: u32 = 3;
/// As [`ECHO`], once released.
pub const HOLD: u32 = 4;
/// An unknown procedure.
pub const UNKNOWN: u32 = 99;

/// The service.
#[derive(Default)]
pub struct Player {
    /// Pending calls of [`HOLD`].
    pub held: Holder,
    /// Number of calls begun.
    pub begun: AtomicUsize,
}

impl Service for Player {
    async fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> (Box<Exchange>, Outcome) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let record = exchange.record.to_vec(usize::MAX);
        let mut arguments = Decoder::new(&record);
        let call = match CallHeader::receive(&mut arguments) {
            Ok(call) => call,
            Err(_) => return (exchange, Outcome::Close),
        };
        let mut reply = Encoder::new(&mut exchange.reply);
        reply.value(&ReplyHeader::success(call.xid));
        match call.procedure {
            HOLD => {
                self.held.hold().await;
                exchange.reply.extend_from_slice(arguments.rest());
            }
            READ => {
                let (len, fill) = (arguments.u32().unwrap(), arguments.u32().unwrap());
                reply.u32(7).u32(len);
                if len > 0 {
                    let lease = exchange.buffers.take(len as usize).expect("a buffer");
                    lease.sink(0..len as usize).write_at(0, &pattern(fill, len as usize));
                    exchange.data = Some(ReplyData::new(lease, len as usize));
                }
            }
            WRITE => {
                let data = arguments.opaque(usize::MAX).unwrap();
                let sum = data.iter().map(|byte| u64::from(*byte)).sum();
                reply.u32(data.len() as u32).u64(sum);
                assert!(arguments.finish().is_ok(), "padding is there");
            }
            UNKNOWN => {
                exchange.reply.clear();
                let status = tombolo_wire_rpc::Accepted::ProcUnavail;
                Encoder::new(&mut exchange.reply).value(&ReplyHeader::accept(call.xid, status));
            }
            _ => exchange.reply.extend_from_slice(arguments.rest()),
        }
        (exchange, Outcome::Reply)
    }
}

/// Returns bytes derived from `fill` and position.
pub fn pattern(fill: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 * 31 + fill * 17 + at as u32 / 251) as u8).collect()
}

pub type TestHost = Host<Player>;

impl Default for TestHost {
    fn default() -> Self {
        Self::with(ServerOptions::default())
    }
}

impl TestHost {
    /// Starts a server that does not wait for calls when it ends.
    pub fn with(options: ServerOptions) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), ServerOptions { grace: Duration::ZERO, ..options })
    }

    pub fn target(&self, transport: Transport) -> Target {
        let address = match transport {
            Transport::Tcp => self.server.tcp_addresses()[0],
            Transport::Udp => self.server.udp_addresses()[0],
        };
        target(address, transport)
    }

    pub fn client(&self, options: Options) -> RpcClient {
        RpcClient::start(self.target(Transport::Tcp), options).expect("the client starts")
    }
}

pub fn target(address: SocketAddr, transport: Transport) -> Target {
    Target { address, transport, program: PROGRAM, version: VERSION }
}

/// Locates the data of a [`READ`].
pub fn find_data(results: &[u8], _: usize) -> DataLocation {
    match results.get(4..8).and_then(|len| len.first_chunk()) {
        None => DataLocation::More,
        Some(len) => DataLocation::Data(8..8 + u32::from_be_bytes(*len) as usize),
    }
}

pub fn echo(client: &RpcClient, procedure: u32, bytes: &[u8]) -> Pending {
    client.call(Call::new(procedure, Credential::None), |xdr| {
        xdr.raw(bytes);
    })
}

/// Reads into the buffer.
pub fn read(client: &RpcClient, fill: u32, len: usize, buffer: &Buffer) -> Pending {
    let receive_buffer = Some(ReceiveBuffer { sink: buffer.sink(0..buffer.len()), find: find_data });
    client.call(Call { receive_buffer, bulk: true, ..Call::new(READ, Credential::None) }, |xdr| {
        xdr.u32(len as u32).u32(fill);
    })
}

pub fn write(client: &RpcClient, data: Vec<u8>) -> Pending {
    let data = Source::from(data);
    let len = data.len() as u32;
    client.call(Call { data: Some(data), bulk: true, ..Call::new(WRITE, Credential::None) }, |xdr| {
        xdr.u32(len);
    })
}

/// Returns the results of a [`WRITE`].
pub fn written(data: &[u8]) -> Vec<u8> {
    let sum: u64 = data.iter().map(|byte| u64::from(*byte)).sum();
    [&(data.len() as u32).to_be_bytes()[..], &sum.to_be_bytes()].concat()
}

/// Waits for the outcome, with a time-out.
pub fn wait(mut pending: Pending) -> Result<Reply, CallError> {
    let end = Instant::now() + Duration::from_secs(30);
    while !pending.is_ready() {
        assert!(Instant::now() < end, "no answer");
        let mut context = std::task::Context::from_waker(Waker::noop());
        if let Poll::Ready(outcome) = std::pin::Pin::new(&mut pending).poll(&mut context) {
            return outcome;
        }
        thread::sleep(Duration::from_micros(200));
    }
    pending.wait()
}
