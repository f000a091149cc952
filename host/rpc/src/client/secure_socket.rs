//! A TCP stream that carries calls only once it has TLS (RFC 9289): it sends the probe, performs the
//! handshake, and never falls back.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_core::lock;

use super::error::Fault;
use super::options::Target;
use super::system_wire::shut_down;
use super::wire::Socket;
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, recv};
use tombolo_host_tls::{Session, TlsError};
use tombolo_mem::Sink;
use tombolo_sys::gather::Gather;
use tombolo_sys::{Errno, Result, tcp};
use tombolo_wire_rpc::{Mark, Probe, Xid};
use tombolo_wire_xdr::Encoder;

/// Maximum length of an answer to a probe: RFC 5531 bounds the answer's verifier to 400 bytes.
const ANSWER_MAX_BYTES: usize = 512;

pub(super) struct SecureSocket {
    fd: OwnedFd,
    session: Session,
    target: Target,
    probe: Probe,
    stage: Mutex<ConnectStage>,
    /// `true` once calls can be sent.
    is_up: AtomicBool,
}

/// Progress of connecting.
enum ConnectStage {
    Connecting,
    /// The probe's record is being sent; the number is that of the bytes already sent.
    SendingProbe(Vec<u8>, usize),
    /// The answer to the probe is being received. No byte after the answer may be read, because it belongs to
    /// the TLS session.
    ReceivingAnswer(Vec<u8>),
    Handshaking,
    /// The server does not offer TLS, or its answer is too long or fragmented.
    Refused,
}

impl SecureSocket {
    pub(super) fn new(fd: OwnedFd, session: Session, target: &Target, random: u64) -> Self {
        let probe = Probe { xid: Xid(random as u32), program: target.program, version: target.version };
        let stage = Mutex::new(ConnectStage::Connecting);
        Self { fd, session, target: *target, probe, stage, is_up: AtomicBool::new(false) }
    }

    fn probe_record(&self) -> Vec<u8> {
        let mut probe_record =
            Mark::whole(Probe::BYTES).map_or_else(Vec::new, |mark| mark.to_bytes().to_vec());
        Encoder::new(&mut probe_record).value(&self.probe);
        probe_record
    }

    /// Advances by one step, if the socket is ready.
    fn advance(&self, stage: &mut ConnectStage) -> Result<()> {
        match stage {
            ConnectStage::Connecting => {
                tcp::connected(&self.fd)?;
                *stage = ConnectStage::SendingProbe(self.probe_record(), 0);
            }
            ConnectStage::SendingProbe(probe_record, sent) => {
                let mut gather = Gather::new(*sent);
                gather.bytes(probe_record);
                if gather.len_bytes() > 0 {
                    *sent += tcp::send(self.fd.as_fd(), &mut gather)?;
                } else {
                    *stage = ConnectStage::ReceivingAnswer(Vec::new());
                }
            }
            ConnectStage::ReceivingAnswer(answer) => match missing(answer) {
                Some(0) => {
                    let body = answer.get(Mark::BYTES..).unwrap_or_default();
                    let accepted = self.probe.is_accepted_by(body);
                    *stage = if accepted { ConnectStage::Handshaking } else { ConnectStage::Refused };
                }
                Some(missing) => {
                    let at = answer.len();
                    answer.resize(at + missing, 0);
                    let into = answer.get_mut(at..).unwrap_or_default();
                    let received = retry_on_intr(|| recv(&self.fd, &mut *into, RecvFlags::DONTWAIT));
                    let received = received.map(|(_, received)| received);
                    answer.truncate(at + received.unwrap_or(0));
                    if received? == 0 {
                        return Err(Errno::CONNRESET);
                    }
                }
                None => *stage = ConnectStage::Refused,
            },
            ConnectStage::Handshaking => {
                self.session.handshake(self.fd.as_fd())?;
                let server = self.session.peer().map(|peer| peer.to_string());
                tracing::info!(address = %self.target.address, server, "TLS session");
                self.is_up.store(true, Ordering::Release);
            }
            ConnectStage::Refused => return Err(Errno::PROTO),
        }
        Ok(())
    }

    fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }
}

/// Returns the number of bytes of the answer still to be received; `None` if it is too long or fragmented.
fn missing(answer: &[u8]) -> Option<usize> {
    let Some((mark, body)) = answer.split_first_chunk() else { return Some(Mark::BYTES - answer.len()) };
    let mark = Mark::from_bytes(*mark);
    let len = mark.len_bytes as usize;
    (mark.last && len <= ANSWER_MAX_BYTES).then(|| len.saturating_sub(body.len()))
}

impl Socket for SecureSocket {
    fn finish_connecting(&self) -> Result<()> {
        let mut stage = lock(&self.stage);
        while !self.is_up() {
            self.advance(&mut stage)?;
        }
        Ok(())
    }

    fn send(&self, gather: &mut Gather<'_>) -> Result<usize> {
        if self.is_up() { self.session.send(self.fd.as_fd(), gather) } else { Err(Errno::AGAIN) }
    }

    fn receive(&self, into: &[&Sink]) -> Result<usize> {
        if self.is_up() { self.session.receive(self.fd.as_fd(), into) } else { Err(Errno::AGAIN) }
    }

    fn fault(&self) -> Option<Fault> {
        let fault = match *lock(&self.stage) {
            ConnectStage::Refused => Some(TlsError::NotOffered),
            _ => self.session.fault(),
        };
        fault.map(Fault::Tls)
    }

    fn shut_down(&self) {
        shut_down(&self.fd);
    }
}
