//! Why there is no session.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};
use thiserror::Error as ThisError;

/// Why there is no session, or no more.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum TlsError {
    /// The peer answers the probe as one that has no TLS (RFC 9289 §4.1).
    #[error("the server does not offer TLS at this port; name the port of its --nfs-tls")]
    NotOffered,
    /// The peer's certificate.
    #[error("the peer's certificate has expired; issue it a new one (tombolo keys issue)")]
    Expired,
    /// The peer's certificate.
    #[error("the peer's certificate is not valid yet; see to the clocks of both machines")]
    NotYetValid,
    /// The peer's certificate.
    #[error(
        "the peer's certificate is revoked; issue it a new one if it may still connect (tombolo keys issue)"
    )]
    Revoked,
    /// The peer's certificate.
    #[error(
        "the peer's certificate is not of a CA that is trusted here; add its CA to ca.pem if it should be"
    )]
    UnknownIssuer,
    /// No revocation list is from the CA of the peer's certificate.
    #[error("crl.pem has no list of the CA that issued the peer's certificate; add that, or remove crl.pem")]
    NoRevocationList,
    /// The server's certificate.
    #[error(
        "the server's certificate is not for this host name; issue it one with --host NAME (tombolo keys issue)"
    )]
    WrongName,
    /// The peer's certificate.
    #[error("the peer's certificate is not for this use: one of a server needs --host (tombolo keys issue)")]
    WrongPurpose,
    /// Something else is wrong with the peer's certificate.
    #[error("the peer's certificate is not accepted")]
    BadCertificate(#[source] Error),
    /// The client shows no certificate.
    #[error("the client shows no certificate; mount with xprtsec=mtls")]
    NoCertificate,
    /// The peer does not take our certificate, or asks for one.
    #[error("the peer refuses our certificate: {}", reason(*.0))]
    Refused(AlertDescription),
    /// The peer speaks TLS, but not for RPC (RFC 9289 §5).
    #[error("the peer does not speak RPC over TLS (no ALPN sunrpc)")]
    NoAlpn,
    /// The peer speaks something else, or an older version.
    #[error("the peer does not speak TLS 1.3")]
    NotTls13,
    /// Everything else that breaks the protocol.
    #[error("TLS failed")]
    Protocol(#[source] Error),
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidCertificate(ref why) => match why {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::Revoked => Self::Revoked,
                // A CA of the same name and another key is another CA.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer,
                CertificateError::UnknownRevocationStatus => Self::NoRevocationList,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Self::WrongName
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    Self::WrongPurpose
                }
                _ => Self::BadCertificate(error),
            },
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::NoApplicationProtocol => Self::NoAlpn,
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::NoAlpn,
            Error::AlertReceived(alert) if is_about_certificates(alert) => Self::Refused(alert),
            Error::AlertReceived(AlertDescription::ProtocolVersion) | Error::InvalidMessage(_) => {
                Self::NotTls13
            }
            Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled) => Self::NotTls13,
            Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired) => Self::NotTls13,
            error => Self::Protocol(error),
        }
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    !reason(alert).is_empty()
}

/// What its alert says of a certificate, and what to do (RFC 8446 §6.2).
fn reason(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateExpired => "it has expired; issue a new one (tombolo keys issue)",
        AlertDescription::CertificateRevoked => "it is revoked; issue a new one (tombolo keys issue)",
        // A CA of the same name and another key makes signatures that are wrong.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is not of a CA that is trusted there; have it issued by that of the peer"
        }
        AlertDescription::CertificateRequired => "none was shown; mount with xprtsec=mtls",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => "the peer's log says why",
        _ => "",
    }
}
