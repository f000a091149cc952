//! Before the first call of a connection that must have TLS (RFC 9289 §4.1): what is a probe, and what is
//! answered to everything else.

use std::fmt::Display;

use super::common::Common;
use super::options::Options;
use super::service::{Outcome, Peer};
use tombolo_host_tls::Session;
use tombolo_mem::Source;
use tombolo_wire_rpc::{AuthStat, CallFault, CallHeader, Probe, Rejected, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

/// So much of a first call is looked at.
const HEAD_BYTES: usize = 1 << 10;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// It needs no TLS.
    Plain,
    /// The client has to ask for TLS.
    Unprobed,
    /// It has, and shows who it is.
    Handshaking,
    /// Calls come through a session.
    Secured,
}

impl Security {
    pub(super) fn of(options: &Options) -> Self {
        if options.tls.is_some() { Self::Unprobed } else { Self::Plain }
    }
}

/// The first call of a connection that must have TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstCall {
    /// It asks for TLS.
    Probe(Probe),
    /// It does not.
    Refused(ReplyHeader<'static>),
    /// It is none.
    None,
}

impl FirstCall {
    pub(super) fn of(record: &Source) -> Self {
        let head = record.to_vec(HEAD_BYTES);
        if let Some(probe) = Probe::receive(&head) {
            return Self::Probe(probe);
        }
        let refusal = match CallHeader::receive(&mut Decoder::new(&head)) {
            // RFC 5531 §9: the caller is to come with something stronger.
            Ok(call) => Some(ReplyHeader::reject(call.xid, Rejected::Auth(AuthStat::TooWeak))),
            Err(CallFault::Refused { xid, why: Rejected::Auth(AuthStat::RejectedCred) }) => {
                Some(ReplyHeader::reject(xid, Rejected::Auth(AuthStat::TooWeak)))
            }
            Err(fault) => fault.reply(),
        };
        refusal.map_or(Self::None, Self::Refused)
    }

    /// Writes the answer.
    pub(super) fn answer(&self, reply: &mut Vec<u8>) -> Outcome {
        let mut reply = Encoder::new(reply);
        match self {
            Self::Probe(probe) => reply.value(&probe.accept()),
            Self::Refused(refusal) => reply.value(refusal),
            Self::None => return Outcome::Silent,
        };
        Outcome::Reply
    }
}

/// Whether a message asks for TLS.
pub(super) fn is_probe(record: &Source) -> bool {
    record.len() == Probe::BYTES && Probe::receive(&record.to_vec(Probe::BYTES)).is_some()
}

/// The peer has shown who it is.
pub(super) fn secured(peer: &Peer, session: &Session) {
    let Some(certificate) = session.peer() else { return };
    tracing::info!(?peer, %certificate, "TLS session");
    let _ = peer.certificate.set(Box::new(certificate));
}

/// The connection is closed without TLS.
pub(super) fn refused(common: &Common, peer: &Peer, why: &dyn Display) {
    common.counters.closed_insecure.add(1);
    if let Some(suppressed) = common.lines.insecure.allow() {
        tracing::warn!(?peer, suppressed, "closing connection: {why}");
    }
}
