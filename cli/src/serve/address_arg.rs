//! Where something is served.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::Deserialize;

/// An address to listen at; a port alone means this host only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ListenAddress(pub SocketAddr);

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = text.strip_prefix("localhost").unwrap_or(text);
        let port = port.strip_prefix(':').unwrap_or(port);
        if let Ok(port) = port.parse() {
            return Ok(Self(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
        }
        text.parse().map(Self).map_err(|_| format!("{text:?} is not an address: write PORT or IP:PORT"))
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_stays_on_this_host() {
        let parsed = |text: &str| text.parse::<ListenAddress>().map(|address| address.to_string());
        for text in ["9464", ":9464", "localhost:9464", "127.0.0.1:9464"] {
            assert_eq!(parsed(text).as_deref(), Ok("127.0.0.1:9464"));
        }
        assert_eq!(parsed("[::]:1").as_deref(), Ok("[::]:1"));
        for bad in ["", "example.org:1", "127.0.0.1", "99999"] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }
}
