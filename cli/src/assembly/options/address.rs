//! Addresses to listen at.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::failure::{Failure, OrCannot};
use crate::location::Host;

/// Address to listen at. A port alone is for this host only. With a `:` or `*:` in front it is for all
/// interfaces, as in most servers (QEMU's `-vnc :0` and `hostfwd=tcp::2222-:22`, Prometheus, nginx); IPv4
/// only, so that nothing is exposed by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    host: Host,
    port: u16,
}

const LOOPBACK: &str = "127.0.0.1";
const ALL_INTERFACES: &str = "0.0.0.0";

impl ListenAddress {
    /// Resolves the addresses; a name may have several. Blocks on name look-ups.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = self.host.addresses();
        let addresses = addresses.or_cannot(format_args!("find the address of {}", self.host));
        Ok(addresses?.into_iter().map(|ip| SocketAddr::new(ip, self.port)).collect())
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |_| format!("{text:?} is not an address: write PORT, :PORT, IP:PORT or NAME:PORT");
        let (host, port) = match text.strip_prefix("*:").or_else(|| text.strip_prefix(':')) {
            Some(port) => (ALL_INTERFACES, port),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => (LOOPBACK, text),
            None => {
                let (host, rest) = Host::cut(text).map_err(wrong)?;
                let port = rest.strip_prefix(':').ok_or_else(|| wrong(String::new()))?;
                // Resolvers return ::1 for `localhost` too; users mean one address.
                if host.to_string() != "localhost" {
                    let port = port.parse().map_err(|_| wrong(String::new()))?;
                    return Ok(Self { host, port });
                }
                (LOOPBACK, port)
            }
        };
        let (host, _) = Host::cut(host)?;
        Ok(Self { host, port: port.parse().map_err(|_| wrong(String::new()))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_port_is_loopback_and_colon_port_is_not() {
        let parsed = |text: &str| text.parse::<ListenAddress>().map(|address| address.to_string());
        for text in ["9464", "localhost:9464", "127.0.0.1:9464"] {
            assert_eq!(parsed(text).as_deref(), Ok("127.0.0.1:9464"));
        }
        for text in [":9464", "*:9464"] {
            assert_eq!(parsed(text).as_deref(), Ok("0.0.0.0:9464"));
        }
        assert_eq!(parsed("[::]:1").as_deref(), Ok("[::]:1"));
        assert_eq!(parsed("ship.example.org:1").as_deref(), Ok("ship.example.org:1"));
        for bad in ["", ":", "127.0.0.1", "ship", "ship:", "99999", "::1:5", "a b:1", "host:1:2"] {
            assert!(parsed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_are_found() {
        let found = |text: &str| text.parse::<ListenAddress>().expect("good").resolve();
        assert_eq!(found("[::1]:5").expect("an address"), ["[::1]:5".parse::<SocketAddr>().expect("good")]);
        let failure = found("no-such-host.invalid:5").expect_err("no such host").to_string();
        assert!(failure.starts_with("cannot find the address of no-such-host.invalid: "), "{failure}");
    }
}
