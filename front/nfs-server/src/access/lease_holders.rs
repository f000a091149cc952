//! Clients that may hold leases.

use std::net::{IpAddr, Ipv4Addr};

use tombolo_host_rpc::server::{Origin, Peer, Transport};

use super::allow::Network;

/// The clients that may hold leases. A holder can make all other clients wait for up to a term, so it must be
/// trusted to answer recalls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolders {
    /// Clients of this host: at loopback addresses, and processes with links whose user the kernel reports.
    pub loopback: bool,
    /// Clients that have presented a certificate.
    pub certificates: bool,
    /// Clients with addresses in these networks.
    pub networks: Vec<Network>,
}

impl Default for LeaseHolders {
    fn default() -> Self {
        Self { loopback: true, certificates: true, networks: Vec::new() }
    }
}

impl LeaseHolders {
    /// The empty set: no client may hold a lease.
    pub const NONE: Self = Self { loopback: false, certificates: false, networks: Vec::new() };

    /// Returns `true` if this client may hold leases.
    pub(crate) fn admits(&self, peer: &Peer) -> bool {
        if peer.certificate.get().is_some() && self.certificates {
            return true;
        }
        match &peer.origin {
            // The source address of a datagram may be forged, to get a lease in another client's name.
            Origin::Network(address) => {
                let address = address.ip().to_canonical();
                self.admits_address(address) && (peer.transport != Transport::Udp || address.is_loopback())
            }
            Origin::Link(link) => link.user.is_some() && self.admits_address(Ipv4Addr::LOCALHOST.into()),
        }
    }

    fn admits_address(&self, address: IpAddr) -> bool {
        let is_named = self.networks.iter().any(|network| network.contains(address));
        is_named || self.loopback && address.is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tombolo_host_tls::PeerCertificate;

    use super::*;

    fn peer(address: &str, transport: Transport) -> Arc<Peer> {
        let address: IpAddr = address.parse().expect("an address");
        Peer::new((address, 700).into(), transport)
    }

    #[test]
    fn by_default_this_host_and_certificates_hold_leases() {
        let holders = LeaseHolders::default();
        for address in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            assert!(holders.admits(&peer(address, Transport::Tcp)), "{address}");
            assert!(!LeaseHolders::NONE.admits(&peer(address, Transport::Tcp)), "{address}");
        }
        let other = peer("10.0.0.1", Transport::Tcp);
        assert!(!holders.admits(&other));
        let certificate = PeerCertificate { subject: "one".into(), serial: "1".into() };
        other.certificate.set(Box::new(certificate)).expect("the first");
        assert!(holders.admits(&other) && !LeaseHolders::NONE.admits(&other));
    }

    #[test]
    fn named_networks_hold_leases_over_connections_alone() {
        let networks = vec!["10.0.0.0/8".parse().expect("a network")];
        let holders = LeaseHolders { networks, ..LeaseHolders::NONE };
        assert!(holders.admits(&peer("10.1.2.3", Transport::Tcp)));
        assert!(!holders.admits(&peer("10.1.2.3", Transport::Udp)), "a sender may claim any address");
        for other in ["11.0.0.1", "127.0.0.1", "::1"] {
            assert!(!holders.admits(&peer(other, Transport::Tcp)), "{other}");
        }
    }
}
