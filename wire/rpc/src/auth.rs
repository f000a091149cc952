//! Credentials and verifiers (RFC 5531 §8.2, §10, appendix A).

use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, Error, Few, Result, xdr_as};

/// Maximum length of the body of a credential or verifier, in bytes (RFC 5531 §8.2).
pub const BODY_BYTES_MAX: usize = 400;
/// Maximum length of AUTH_SYS's machine name, in bytes (appendix A).
pub const MACHINE_BYTES_MAX: usize = 255;
/// Maximum number of AUTH_SYS's supplementary groups (appendix A).
pub const GIDS_MAX: usize = 16;

/// The type of a credential or verifier, possibly unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuthFlavor(pub u32);

impl AuthFlavor {
    /// No authentication: the caller is anonymous.
    pub const NONE: Self = Self(0);
    /// User and groups, as claimed by the client.
    pub const SYS: Self = Self(1);
    /// A server's shorthand for an AUTH_SYS credential. Never issued by us.
    pub const SHORT: Self = Self(2);
    /// RPCSEC_GSS (RFC 2203).
    pub const GSS: Self = Self(6);
    /// The probe for RPC over TLS (RFC 9289).
    pub const TLS: Self = Self(7);
}

xdr_as! { AuthFlavor: Self, |flavor: &Self| flavor.0; }

/// A verifier, or a credential before its flavor is examined: uninterpreted bytes of some flavor. The
/// verifiers of AUTH_NONE and AUTH_SYS have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verifier<'a> {
    /// Type of the credential or verifier, which determines the format of the body.
    pub flavor: AuthFlavor,
    /// Body, at most [`BODY_BYTES_MAX`] bytes; its format depends on the flavor.
    pub body: &'a [u8],
}

impl Verifier<'_> {
    /// The empty verifier of AUTH_NONE.
    pub const NONE: Self = Self { flavor: AuthFlavor::NONE, body: &[] };
}

impl<'a> Decode<'a> for Verifier<'a> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        Ok(Self { flavor: xdr.value()?, body: xdr.opaque(BODY_BYTES_MAX)? })
    }
}

impl Encode for Verifier<'_> {
    #[inline]
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.value(&self.flavor).opaque(self.body);
    }
}

/// The caller's credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential<'a> {
    /// AUTH_NONE. The contents of its body are undefined (§10.1), and ignored.
    None,
    /// AUTH_SYS: user and groups, as claimed by the client.
    Sys(AuthSys<'a>),
}

/// An AUTH_SYS credential (appendix A). No server can verify its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number chosen by the client. Our servers distinguish the holders of leases by it.
    pub stamp: u32,
    /// The caller's machine name as claimed, at most [`MACHINE_BYTES_MAX`] bytes.
    pub machine: &'a [u8],
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary groups.
    pub gids: Gids,
}

impl<'a> Decode<'a> for AuthSys<'a> {
    #[inline]
    fn decode(xdr: &mut Decoder<'a>) -> Result<Self> {
        Ok(Self {
            stamp: xdr.u32()?,
            machine: xdr.opaque(MACHINE_BYTES_MAX)?,
            uid: xdr.u32()?,
            gid: xdr.u32()?,
            gids: xdr.value()?,
        })
    }
}

impl Encode for AuthSys<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        xdr.u32(self.stamp).opaque(self.machine).u32(self.uid).u32(self.gid).value(&self.gids);
    }
}

/// Group ids of a credential.
pub type Gids = Few<u32, GIDS_MAX>;

pub(crate) enum CredentialFault {
    /// The bytes are not a credential of the stated flavor.
    Malformed,
    /// The flavor is not supported.
    Unknown,
}

impl<'a> Credential<'a> {
    pub(crate) fn receive(xdr: &mut Decoder<'a>) -> std::result::Result<Self, CredentialFault> {
        let malformed = |_: Error| CredentialFault::Malformed;
        let raw: Verifier<'a> = xdr.value().map_err(malformed)?;
        match raw.flavor {
            AuthFlavor::NONE => Ok(Self::None),
            AuthFlavor::SYS => {
                let mut body = Decoder::new(raw.body);
                let sys = body.value().map_err(malformed)?;
                body.finish().map_err(malformed)?;
                Ok(Self::Sys(sys))
            }
            _ => Err(CredentialFault::Unknown),
        }
    }
}

impl Encode for Credential<'_> {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        match self {
            Self::None => {
                xdr.value(&Verifier::NONE);
            }
            Self::Sys(sys) => {
                xdr.value(&AuthFlavor::SYS);
                let len_at = xdr.position();
                xdr.u32(0);
                let body_at = xdr.position();
                xdr.value(sys);
                let len = xdr.position() - body_at;
                xdr.patch_u32(len_at, u32::try_from(len).unwrap_or(u32::MAX));
            }
        }
    }
}
