//! Client addresses that may call.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use thiserror::Error;

/// A network such as `10.0.0.0/8` or `fd00::/16`, or a single address.
///
/// An IPv4-mapped IPv6 address (`::ffff:10.1.2.3`) is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// Error of parsing a [`Network`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is neither an address nor a network like 10.0.0.0/8")]
pub struct NetworkError(String);

impl Network {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let net: IpNet = match text.parse::<IpAddr>() {
            Ok(address) => address.into(),
            Err(_) => text.parse().map_err(|_| wrong())?,
        };
        // 10.0.0.1/8 is ambiguous: a host or a network.
        if net.trunc() != net {
            return Err(wrong());
        }
        Ok(Self(plain(net)))
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The client addresses that may call: all, or those of some networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Network>);

impl AllowList {
    /// Creates a list of these networks; an empty one admits all addresses.
    #[must_use]
    pub fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    /// Returns `true` if calls from this address are served.
    #[must_use]
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.is_empty() || self.0.iter().any(|network| network.contains(address))
    }

    /// Returns `true` if all addresses may call.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the networks.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.0.iter()
    }
}

/// Converts an IPv4-mapped IPv6 network to the IPv4 network.
fn plain(net: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(six) = net else { return net };
    let four: Option<Ipv4Addr> = six.network().to_ipv4_mapped();
    let bits = six.prefix_len().checked_sub(MAPPED_BITS);
    four.zip(bits).and_then(|(four, bits)| Ipv4Net::new(four, bits).ok()).map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(networks: &[&str]) -> AllowList {
        AllowList::new(networks.iter().map(|text| text.parse().expect("a network")).collect())
    }

    fn admits(networks: &[&str], address: &str) -> bool {
        list(networks).admits(address.parse().expect("an address"))
    }

    #[test]
    fn address_is_matched_to_its_network() {
        assert!(admits(&["10.0.0.0/8"], "10.255.0.1"));
        assert!(!admits(&["10.0.0.0/8"], "11.0.0.1"));
        assert!(admits(&["192.168.1.7"], "192.168.1.7"));
        assert!(!admits(&["192.168.1.7"], "192.168.1.8"));
        assert!(admits(&["10.0.0.0/8", "fd00::/16"], "fd00::1"));
        assert!(!admits(&["10.0.0.0/8", "fd00::/16"], "fd01::1"));
        assert!(!admits(&["10.0.0.0/8"], "::1"));
        assert!(admits(&["0.0.0.0/0"], "8.8.8.8") && !admits(&["0.0.0.0/0"], "2001:db8::1"));
        assert!(admits(&["::/0"], "2001:db8::1") && !admits(&["::/0"], "8.8.8.8"));
    }

    #[test]
    fn an_ipv4_address_is_one_however_it_is_written() {
        assert!(admits(&["10.0.0.0/8"], "::ffff:10.1.2.3"));
        assert!(!admits(&["10.0.0.0/8"], "::ffff:11.1.2.3"));
        assert!(admits(&["::ffff:10.0.0.0/104"], "10.1.2.3"));
        assert!(admits(&["::ffff:10.1.2.3"], "10.1.2.3"));
        assert!(!admits(&["::ffff:10.1.2.3"], "10.1.2.4"));
    }

    #[test]
    fn an_empty_allow_list_admits_all() {
        assert!(list(&[]).is_open() && admits(&[], "203.0.113.5") && admits(&[], "2001:db8::1"));
    }

    #[test]
    fn invalid_networks_are_refused() {
        for text in ["", "10.0.0.1/8", "10.0.0.0/33", "10.0.0", "host", "10.0.0.0/-1", "fd00::1/16", "*"] {
            let error = text.parse::<Network>().expect_err(text);
            assert!(error.to_string().contains("10.0.0.0/8"), "{error}");
        }
    }
}
