//! TLS start-up of a connection (RFC 9289 §4.1): the probe, and refusal of another first call where TLS is
//! required.

use std::fmt::Display;

use super::common::Common;
use super::options::Options;
use super::service::{Outcome, Peer};
use tombolo_host_tls::Session;
use tombolo_mem::Source;
use tombolo_wire_rpc::{AuthStat, CallFault, CallHeader, Probe, Rejected, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

/// Length of the examined prefix of a first call, in bytes: more than the longest call header (RFC 5531 §9),
/// whose credential and verifier have at most 400 bytes each.
const HEAD_BYTES: usize = 1 << 10;

/// TLS state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
    /// TLS is not required of this connection.
    Plain,
    /// The client has not sent the TLS probe yet.
    Unprobed,
    /// The probe was accepted; the handshake is in progress.
    Handshaking,
    /// Calls are received through a TLS session.
    Secured,
}

impl Security {
    pub(super) fn of(options: &Options) -> Self {
        if options.tls.is_some() { Self::Unprobed } else { Self::Plain }
    }
}

/// Classification of the first call of a connection that requires TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstCall {
    /// A probe for TLS.
    Probe(Probe),
    /// Any other call, with its refusal.
    Refused(ReplyHeader<'static>),
    /// The bytes are not a call.
    NotACall,
}

impl FirstCall {
    pub(super) fn of(record: &Source) -> Self {
        let head = record.to_vec(HEAD_BYTES);
        if let Some(probe) = Probe::receive(&head) {
            return Self::Probe(probe);
        }
        let refusal = match CallHeader::receive(&mut Decoder::new(&head)) {
            // RFC 5531 §9: the client must use stronger authentication.
            Ok(call) => Some(ReplyHeader::reject(call.xid, Rejected::Auth(AuthStat::TooWeak))),
            // A flavor that this server does not know, such as RPCSEC_GSS: TLS is the remedy, too.
            Err(CallFault::Refused { xid, why: Rejected::Auth(AuthStat::RejectedCred) }) => {
                Some(ReplyHeader::reject(xid, Rejected::Auth(AuthStat::TooWeak)))
            }
            Err(fault) => fault.reply(),
        };
        refusal.map_or(Self::NotACall, Self::Refused)
    }

    /// Encodes the reply to the first call. Returns `Silent` if it gets none.
    pub(super) fn answer(&self, reply: &mut Vec<u8>) -> Outcome {
        let mut reply = Encoder::new(reply);
        match self {
            Self::Probe(probe) => reply.value(&probe.accept()),
            Self::Refused(refusal) => reply.value(refusal),
            Self::NotACall => return Outcome::Silent,
        };
        Outcome::Reply
    }
}

/// Returns `true` if a message is a probe for TLS. Cheaper than [`FirstCall::of`]: others are
/// recognized by their length.
pub(super) fn is_probe(record: &Source) -> bool {
    record.len() == Probe::BYTES && Probe::receive(&record.to_vec(Probe::BYTES)).is_some()
}

/// Records and logs the certificate of a peer whose handshake is complete.
pub(super) fn record_certificate(peer: &Peer, session: &Session) {
    let Some(certificate) = session.peer() else { return };
    tracing::info!(?peer, %certificate, "TLS session");
    let _ = peer.certificate.set(Box::new(certificate));
}

/// Counts and logs a connection that is closed because TLS was required and not established; `why` is the
/// reason.
pub(super) fn log_insecure(common: &Common, peer: &Peer, why: &dyn Display) {
    common.counters.closed_insecure.increment();
    if let Some(suppressed) = common.lines.insecure.allow() {
        tracing::warn!(?peer, suppressed, "closing connection: {why}");
    }
}
