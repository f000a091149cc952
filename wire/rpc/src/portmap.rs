//! The portmapper, version 2 (RFC 1833 §3), which maps programs to ports. This module has only a client's
//! request.

use tombolo_wire_xdr::{Encode, Encoder};

/// Port of the portmapper, for TCP and UDP.
pub const PORT: u16 = 111;
/// RPC program number of the portmapper.
pub const PROGRAM: u32 = 100_000;
/// The version supported by every portmapper.
pub const VERSION: u32 = 2;
/// The procedure that takes a [`Mapping`] and returns its port as an unsigned integer; 0 if there is none.
pub const GETPORT: u32 = 3;

/// The transport of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `IPPROTO_TCP`.
    Tcp,
    /// `IPPROTO_UDP`.
    Udp,
}

/// A query: a version of a program over a transport (`mapping`, without its port).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// RPC program number of the service to be found.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Transport over which the program is to be reached.
    pub protocol: Protocol,
}

impl Encode for Mapping {
    fn encode(&self, xdr: &mut Encoder<'_>) {
        let protocol = match self.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
        };
        // The port is used by SET only.
        xdr.u32(self.program).u32(self.version).u32(protocol).u32(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_four_words() {
        let nfs = Mapping { program: 100_003, version: 3, protocol: Protocol::Tcp };
        assert_eq!(tombolo_wire_xdr::encoded(&nfs), [0, 1, 0x86, 0xa3, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0]);
    }
}
