//! `ADDR[,export=/NAME]…` and related options of the NFS server.

use std::str::FromStr;

use clap::ValueEnum;
use serde::Deserialize;
use tombolo_front_nfs_server::{Network, SquashMode};

use super::address::ListenAddress;
use super::export::{ExportName, named_exports};
use crate::setting::behind_word;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsArg {
    pub address: ListenAddress,
    /// Exports offered at this address; all if empty.
    pub exports: Vec<ExportName>,
}

impl FromStr for NfsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, settings) = behind_word(text);
        Ok(Self { address: address.parse()?, exports: named_exports(settings)? })
    }
}

/// Users of clients that become the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SquashArg {
    /// No user: a client's root is root on this host
    None,
    /// User 0 and group 0
    #[default]
    Root,
    /// All users
    All,
}

impl From<SquashArg> for SquashMode {
    fn from(arg: SquashArg) -> Self {
        match arg {
            SquashArg::None => Self::None,
            SquashArg::Root => Self::Root,
            SquashArg::All => Self::All,
        }
    }
}

pub fn squash_word(mode: SquashMode) -> &'static str {
    match mode {
        SquashMode::None => "none",
        SquashMode::Root => "root",
        SquashMode::All => "all",
    }
}

/// Clients that may hold leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasesArg {
    /// Clients of a network.
    Network(Network),
    /// Clients with certificates.
    Tls,
    /// None.
    Off,
}

impl FromStr for LeasesArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tls" => Ok(Self::Tls),
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::Network).map_err(|_| {
                format!("{text:?} is neither tls nor off, nor an address nor a network like 10.0.0.0/8")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_its_exports() {
        let arg: NfsArg = "0.0.0.0:2049,export=/a,export=/b/c".parse().expect("good");
        assert_eq!(arg.address.to_string(), "0.0.0.0:2049");
        let names: Vec<String> = arg.exports.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["/a", "/b/c"]);
        assert_eq!("2049".parse::<NfsArg>().expect("good").address.to_string(), "127.0.0.1:2049");
        for bad in ["", "host", "2049,export=a", "2049,ro", "2049,"] {
            assert!(bad.parse::<NfsArg>().is_err(), "{bad:?}");
        }
    }
}
