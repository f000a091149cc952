//! Stands between a client and a server of NFS, and counts what is called.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use tombolo_wire_nfs3::{PROGRAM, Procedure};
use tombolo_wire_rpc::CallHeader;
use tombolo_wire_xdr::Decoder;

use super::client::Records;
use crate::error::{Doing, Result};

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a call that are looked at: its header.
const HEAD_BYTES: usize = 512;

/// How often each procedure was called.
pub type Counts = BTreeMap<String, u64>;

/// A place that passes everything on to a server. It serves for as long as the process lives.
#[derive(Clone, Debug)]
pub struct Tap {
    port: u16,
    counts: Arc<Mutex<Counts>>,
}

impl Tap {
    /// Before a server that answers NFS and MOUNT at one port; listens at all addresses of this network.
    pub fn before(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).doing(|| "listen".to_owned())?;
        let port = listener.local_addr().doing(|| "listen".to_owned())?.port();
        let tap = Self { port, counts: Arc::default() };
        let counts = Arc::clone(&tap.counts);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || drop(pass_on(client, server, &counts)));
            }
        });
        Ok(tap)
    }

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What was called since this was asked last.
    pub fn take(&self) -> Counts {
        std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn pass_on(mut client: TcpStream, server: SocketAddr, counts: &Mutex<Counts>) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut replies_from, mut replies_to) = (server.try_clone()?, client.try_clone()?);
    std::thread::spawn(move || {
        // The end of either side is the end of both.
        let _copied = io::copy(&mut replies_from, &mut replies_to);
        let _gone = replies_to.shutdown(Shutdown::Both);
    });
    let mut records = Records::new(HEAD_BYTES);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let got = client.read(&mut buffer)?;
        if got == 0 {
            return server.shutdown(Shutdown::Both);
        }
        records.feed(&buffer[..got], |call| {
            if let Some(name) = procedure(call.head) {
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                *counts.entry(name).or_default() += 1;
            }
            Ok::<(), io::Error>(())
        })?;
        server.write_all(&buffer[..got])?;
    }
}

/// The procedure's name, of NFS only.
fn procedure(call: &[u8]) -> Option<String> {
    let header = CallHeader::receive(&mut Decoder::new(call)).ok()?;
    let procedure = Procedure::from_number(header.procedure).filter(|_| header.program == PROGRAM)?;
    Some(format!("{procedure:?}").to_uppercase())
}
