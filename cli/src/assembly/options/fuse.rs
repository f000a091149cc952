//! `MOUNTPOINT[,export=/NAME][,allow_other]`: a mount on this host by the same server.

use std::path::PathBuf;
use std::str::FromStr;

use super::export::ExportName;
use crate::setting::behind_word;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseArg {
    pub mountpoint: PathBuf,
    pub export: Option<ExportName>,
    /// `true` if users other than the server's have access.
    pub allow_other: bool,
}

impl FromStr for FuseArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mountpoint, settings) = behind_word(text);
        if mountpoint.is_empty() {
            return Err("the mount point is missing: write MOUNTPOINT[,export=/NAME][,allow_other]".into());
        }
        let mut arg = Self { mountpoint: mountpoint.into(), export: None, allow_other: false };
        for setting in settings {
            match (setting.name, setting.value) {
                ("export", Some(_)) => arg.export = Some(setting.parsed()?),
                ("allow_other", None) => arg.allow_other = true,
                _ => return Err(setting.is_none_of("export=/NAME, allow_other")),
            }
        }
        Ok(arg)
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
