//! `MOUNTPOINT[,export=/NAME][,allow_other]`: a mount on this host, by the server of the guests.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use crate::assembly::options::export::ExportName;

/// One way in by FUSE.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FuseArg {
    /// Where to mount.
    pub mountpoint: PathBuf,
    /// Which export it leads to.
    pub export: Option<ExportName>,
    /// Whether users other than the server's may enter.
    pub allow_other: bool,
}

impl FromStr for FuseArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let mountpoint = parts.next().unwrap_or_default();
        if mountpoint.is_empty() {
            return Err("the mount point is missing: write MOUNTPOINT[,export=/NAME][,allow_other]".into());
        }
        let mut arg = Self { mountpoint: mountpoint.into(), export: None, allow_other: false };
        for part in parts {
            match part.split_once('=') {
                Some(("export", name)) => arg.export = Some(name.parse()?),
                None if part == "allow_other" => arg.allow_other = true,
                _ => return Err(format!("{part:?} is none of export=/NAME, allow_other")),
            }
        }
        Ok(arg)
    }
}

impl TryFrom<String> for FuseArg {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_with_its_options() {
        let arg: FuseArg = "/mnt,allow_other,export=/a".parse().expect("good");
        assert_eq!((arg.mountpoint.to_str(), arg.allow_other), (Some("/mnt"), true));
        assert_eq!(arg.export.map(|name| name.to_string()).as_deref(), Some("/a"));
        for bad in ["", ",allow_other", "/mnt,ro", "/mnt,allow_other=1", "/mnt,export=a"] {
            assert!(bad.parse::<FuseArg>().is_err(), "{bad:?}");
        }
    }
}
