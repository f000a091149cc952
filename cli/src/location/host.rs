//! Host names and addresses in URLs (RFC 3986 §3.2.2).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use tombolo_host_runtime::names::{self, LookUpError};

/// A host name or address; IPv6 addresses in canonical form, without brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host(String);

impl Host {
    /// Splits a host off the front of `text`. Returns it and the remainder.
    pub fn cut(text: &str) -> Result<(Self, &str), String> {
        if let Some(bracketed) = text.strip_prefix('[') {
            let Some((address, rest)) = bracketed.split_once(']') else {
                return Err("missing ] after the IPv6 address".into());
            };
            let address: Ipv6Addr =
                address.parse().map_err(|_| format!("[{address}] is not an IPv6 address"))?;
            return Ok((Self(address.to_string()), rest));
        }
        let end = text.find([':', '/', '?', '#']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        match name {
            "" => Err("the host is missing".into()),
            _ if name.contains('@') => {
                Err(format!("{name:?} includes a user, which NFS URLs do not support"))
            }
            // A leading `-` could be taken for an option by other programs.
            _ if !name.starts_with('-')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) =>
            {
                Ok((Self(name.into()), rest))
            }
            _ => Err(format!("{name:?} is not a valid host name")),
        }
    }

    /// Returns the host for other programs: IPv6 addresses without brackets.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Resolves the addresses, in the system's order of preference.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, LookUpError> {
        names::addresses_of(&self.0)
    }

    /// Returns `true` if the addresses must be looked up.
    pub fn is_name(&self) -> bool {
        self.0.parse::<IpAddr>().is_err()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') { write!(f, "[{}]", self.0) } else { f.write_str(&self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_no_look_up() {
        let addresses = |text| Host::cut(text).expect("good").0.addresses().expect("addresses");
        assert_eq!(addresses("[::1]:2049"), ["::1".parse::<IpAddr>().expect("good")]);
        assert_eq!(addresses("127.0.0.2/a"), ["127.0.0.2".parse::<IpAddr>().expect("good")]);
    }
}
