//! Errors of TLS sessions.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};
use thiserror::Error as ThisError;

/// Reason why a session failed or could not be established.
#[derive(Clone, Debug, PartialEq, ThisError)]
pub enum TlsError {
    /// The peer does not accept the probe (RFC 9289 §4.1), usually because it serves without TLS.
    #[error("the server does not offer TLS at this port; use the port of its --nfs-tls")]
    NotOffered,
    /// The peer's certificate has expired.
    #[error("the peer's certificate has expired; issue it a new one (tombolo keys issue)")]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("the peer's certificate is not valid yet; check the clocks of both machines")]
    NotYetValid,
    /// The peer's certificate is revoked.
    #[error(
        "the peer's certificate is revoked; issue it a new one if it may still connect (tombolo keys issue)"
    )]
    Revoked,
    /// The issuer of the peer's certificate is not trusted.
    #[error("the peer's certificate is of an untrusted CA; add the CA to ca.pem to trust it")]
    UnknownIssuer,
    /// There is no revocation list of the peer's CA.
    #[error("crl.pem has no list of the CA that issued the peer's certificate; add it, or remove crl.pem")]
    NoRevocationList,
    /// The server's certificate is for another host name.
    #[error(
        "the server's certificate is not for this host name; issue it one with --host NAME (tombolo keys issue)"
    )]
    WrongName,
    /// The peer's certificate does not permit this use.
    #[error("the peer's certificate is not for this use: one of a server needs --host (tombolo keys issue)")]
    WrongPurpose,
    /// The peer's certificate is invalid for another reason.
    #[error("the peer's certificate is not accepted")]
    BadCertificate(#[source] Error),
    /// The client presents no certificate.
    #[error("the client presents no certificate; mount with xprtsec=mtls")]
    NoCertificate,
    /// The peer rejects the local certificate, or requires one.
    #[error("the peer refuses our certificate: {}", reason(*.0))]
    Refused(AlertDescription),
    /// The peer speaks TLS, but not for RPC (RFC 9289 §5).
    #[error("the peer does not speak RPC over TLS (no ALPN sunrpc)")]
    NoAlpn,
    /// The peer speaks another protocol, or an older version.
    #[error("the peer does not speak TLS 1.3")]
    NotTls13,
    /// Any other protocol error.
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
                // A CA of the same name with another key is a different CA.
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

/// Returns the meaning of an alert about certificates, and the remedy (RFC 8446 §6.2); empty for another
/// alert.
fn reason(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateExpired => "it has expired; issue a new one (tombolo keys issue)",
        AlertDescription::CertificateRevoked => "it is revoked; issue a new one (tombolo keys issue)",
        // A CA of the same name with another key makes signatures invalid.
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the peer does not trust its CA; have it issued by the peer's CA"
        }
        AlertDescription::CertificateRequired => "none was presented; mount with xprtsec=mtls",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => "the peer's log says why",
        _ => "",
    }
}
