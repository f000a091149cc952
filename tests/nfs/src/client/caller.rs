//! Callers and their credentials.

use tombolo_wire_xdr::Encoder;

use super::message::Auth;

/// A caller as its credential describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Anonymous: AUTH_NONE.
    Anonymous,
    /// Superuser with AUTH_SYS and this stamp, which distinguishes clients behind one address.
    Stamped(u32),
    /// A user: AUTH_SYS.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups. The protocol carries at most 16; tests may pass more.
        groups: Vec<u32>,
    },
}

impl Caller {
    /// The superuser.
    pub const ROOT: Self = Self::User { uid: 0, gid: 0, groups: Vec::new() };

    /// Returns a user whose group has the same number.
    pub const fn user(id: u32) -> Self {
        Self::User { uid: id, gid: id, groups: Vec::new() }
    }

    /// Returns a user with supplementary groups.
    pub fn with_groups(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self::User { uid, gid, groups: groups.to_vec() }
    }

    /// Encodes the credential (RFC 5531 §10.1 and appendix A).
    pub fn credential(&self) -> Auth {
        let (stamp, uid, gid, groups) = match self {
            Self::Anonymous => return Auth::NONE,
            Self::Stamped(stamp) => (*stamp, &0, &0, &Vec::new()),
            Self::User { uid, gid, groups } => (0, uid, gid, groups),
        };
        let mut body = Vec::new();
        let mut xdr = Encoder::new(&mut body);
        xdr.u32(stamp).opaque(b"test").u32(*uid).u32(*gid).u32(groups.len() as u32);
        for group in groups {
            xdr.u32(*group);
        }
        Auth { flavor: 1, body }
    }
}
