//! On whose behalf calls are made.

use tombolo_wire_xdr::Encoder;

use super::message::Auth;

/// A caller, as its credential tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Anonymous: AUTH_NONE.
    Anonymous,
    /// The superuser of a client that a stamp tells from others at its address: AUTH_SYS.
    Stamped(u32),
    /// A user: AUTH_SYS.
    User {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups. The protocol carries 16; nothing here stops more.
        groups: Vec<u32>,
    },
}

impl Caller {
    /// The superuser.
    pub const ROOT: Self = Self::User { uid: 0, gid: 0, groups: Vec::new() };

    /// A user with a group of the same number.
    pub const fn user(id: u32) -> Self {
        Self::User { uid: id, gid: id, groups: Vec::new() }
    }

    /// A user with groups.
    pub fn with_groups(uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self::User { uid, gid, groups: groups.to_vec() }
    }

    /// The credential (RFC 5531 §10.1 and appendix A).
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
