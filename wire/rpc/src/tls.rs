//! The probe for RPC over TLS, which precedes the handshake (RFC 9289 §4.1).

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

use crate::{Accepted, AuthFlavor, CALL, RPC_VERSION, ReplyBody, ReplyHeader, Verifier, Xid};

/// Verifier body of a server that supports TLS.
const STARTTLS: &[u8] = b"STARTTLS";

/// Number of the NULL procedure.
const NULL: u32 = 0;

/// A NULL call with AUTH_TLS, by which a client requests TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Identifier of the call.
    pub xid: Xid,
    /// A program of the server, which the client will call over TLS.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
}

impl Probe {
    /// Length, in bytes: ten words.
    pub const BYTES: usize = 40;

    /// Decodes a probe, whose credential and verifier must be empty. Returns `None` for any other message.
    #[must_use]
    pub fn receive(message: &[u8]) -> Option<Self> {
        let mut xdr = Decoder::new(message);
        let xid = Xid(xdr.u32().ok()?);
        let is_call = (xdr.u32().ok()?, xdr.u32().ok()?) == (CALL, RPC_VERSION);
        let (program, version, procedure) = (xdr.u32().ok()?, xdr.u32().ok()?, xdr.u32().ok()?);
        let (credential, verifier): (Verifier<'_>, Verifier<'_>) = (xdr.value().ok()?, xdr.value().ok()?);
        let is_probe = credential == Verifier { flavor: AuthFlavor::TLS, body: &[] }
            && verifier == Verifier::NONE
            && procedure == NULL;
        (is_call && is_probe && xdr.finish().is_ok()).then_some(Self { xid, program, version })
    }

    /// Returns the reply of a server that supports TLS.
    #[must_use]
    pub fn accept(&self) -> ReplyHeader<'static> {
        let verifier = Verifier { flavor: AuthFlavor::NONE, body: STARTTLS };
        ReplyHeader { xid: self.xid, body: ReplyBody::Accepted { verifier, status: Accepted::Success } }
    }

    /// Returns `true` if `message` is the reply that [`accept`](Self::accept) returns. Any other message
    /// means no TLS, or is no reply to this probe.
    #[must_use]
    pub fn is_accepted_by(&self, message: &[u8]) -> bool {
        let mut xdr = Decoder::new(message);
        ReplyHeader::decode(&mut xdr).is_ok_and(|reply| reply == self.accept()) && xdr.finish().is_ok()
    }
}

impl Encode for Probe {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.xid.0).u32(CALL).u32(RPC_VERSION).u32(self.program).u32(self.version).u32(NULL);
        xdr.value(&Verifier { flavor: AuthFlavor::TLS, body: &[] }).value(&Verifier::NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AuthStat, Rejected};
    use tombolo_wire_xdr::encoded;

    #[test]
    fn tls_probe_accepts_only_null_with_auth_tls() {
        let probe = Probe { xid: Xid(7), program: 100_003, version: 3 };
        let bytes = encoded(&probe);
        let words = [7, 0, 2, 100_003, 3, 0, 7, 0, 0, 0];
        assert_eq!(bytes, words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect::<Vec<_>>());
        assert_eq!(Probe::receive(&bytes), Some(probe));
        for (at, value) in [(1, 1), (2, 3), (5, 1), (6, 1), (7, 4), (8, 1), (9, 4)] {
            let mut other = bytes.clone();
            other[4 * at..4 * at + 4].copy_from_slice(&u32::to_be_bytes(value));
            assert_eq!(Probe::receive(&other), None, "word {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Probe::receive(&bytes[..len]), None);
        }
        assert_eq!(Probe::receive(&[&bytes[..], &[0; 4]].concat()), None);
    }

    #[test]
    fn only_starttls_verifier_means_tls() {
        let probe = Probe { xid: Xid(7), program: 1, version: 1 };
        let yes = encoded(&probe.accept());
        assert!(probe.is_accepted_by(&yes));
        assert!(!Probe { xid: Xid(8), ..probe }.is_accepted_by(&yes), "to another call");
        assert!(!probe.is_accepted_by(&encoded(&ReplyHeader::success(Xid(7)))), "as one that knows no TLS");
        let rejected = ReplyHeader::reject(Xid(7), Rejected::Auth(AuthStat::RejectedCred));
        assert!(!probe.is_accepted_by(&encoded(&rejected)));
        assert!((0..yes.len()).all(|len| !probe.is_accepted_by(&yes[..len])));
    }
}
