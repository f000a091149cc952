//! `SOCKET[,export=/NAME]…` and `MEMORY[,SETTING]…`: serving over shared memory.

use std::path::PathBuf;
use std::str::FromStr;

use tombolo_core::{NO_ID, Squash};
use tombolo_host_links::shared_memory::MemoryLocation;

use super::bell::BellArg;
use super::export::{ExportName, named_exports};
use super::nfs::SquashArg;
use crate::setting::{Setting, behind_word};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmArg {
    pub socket: PathBuf,
    /// Exports offered at this socket; all if empty.
    pub exports: Vec<ExportName>,
}

/// Memory that a server shares with one client at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmFileArg {
    pub place: MemoryLocation,
    /// Size in bytes, for memory without a size of its own.
    pub size_bytes: Option<u64>,
    /// Bell by which the two sides wake each other.
    pub bell: BellArg,
    /// Users of the client that become the anonymous user. The client is not authenticated: whoever maps the
    /// memory is the client.
    pub squash: Squash,
    /// Exports offered through this memory; all if empty.
    pub exports: Vec<ExportName>,
}

impl FromStr for ShmFileArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, settings) = behind_word(text);
        let place = match word {
            "" => return Err("the file is missing: write FILE,size=SIZE".into()),
            "mmapper:" => MemoryLocation::Mmapper("/dev/mmapper".into()),
            word => match word.strip_prefix("pci:") {
                Some("") => MemoryLocation::Pci(None),
                Some(address) => MemoryLocation::Pci(Some(address.into())),
                None => MemoryLocation::File(word.into()),
            },
        };
        let mut arg =
            Self { place, size_bytes: None, bell: BellArg::Found, squash: Squash::NONE, exports: Vec::new() };
        for setting in settings {
            match (setting.name, setting.value) {
                ("size", Some(_)) => arg.size_bytes = Some(size_bytes(&setting)?),
                ("bell", Some(_)) => arg.bell = BellArg::parse(&setting)?,
                ("export", Some(_)) => arg.exports.push(setting.parsed()?),
                ("squash", Some(_)) => arg.squash.mode = setting.one_of::<SquashArg>()?.into(),
                ("anonuid", Some(_)) => arg.squash.anonymous_uid = anonymous(&setting)?,
                ("anongid", Some(_)) => arg.squash.anonymous_gid = anonymous(&setting)?,
                _ => {
                    let known = "size=SIZE, bell=PATH|off, squash=none|root|all, anonuid=ID, anongid=ID, export=/NAME";
                    return Err(setting.is_none_of(known));
                }
            }
        }
        match (&arg.place, arg.size_bytes) {
            (MemoryLocation::Pci(_), Some(_)) => Err("the size of a PCI device is fixed".into()),
            (MemoryLocation::Mmapper(_), None) => Err("mmapper: needs a size: add ,size=SIZE".into()),
            _ => Ok(arg),
        }
    }
}

/// Parses the number of an anonymous user or group; refuses 2^32 - 1, which stands for no id (chown(2)).
fn anonymous(setting: &Setting<'_>) -> Result<u32, String> {
    let id = setting.value.unwrap_or_default().parse().map_err(|_| setting.wrong("must be a number"))?;
    if id == NO_ID { Err(setting.wrong("not a valid user or group")) } else { Ok(id) }
}

/// Parses a number of bytes, in whole pages.
fn size_bytes(setting: &Setting<'_>) -> Result<u64, String> {
    let bytes = setting.bytes().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(PAGE_BYTES));
    bytes.ok_or_else(|| setting.wrong("a number of bytes in whole pages, such as 64M"))
}

const PAGE_BYTES: u64 = 4096;

impl FromStr for ShmArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (socket, settings) = behind_word(text);
        if socket.is_empty() {
            return Err("the socket is missing: write SOCKET[,export=/NAME]".into());
        }
        Ok(Self { socket: socket.into(), exports: named_exports(settings)? })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use tombolo_core::SquashMode;

    #[test]
    fn memory_has_a_place_and_a_size() {
        let arg =
            |text: &str| text.parse::<ShmFileArg>().map(|arg| (arg.place, arg.size_bytes, arg.exports.len()));
        let file = |path: &str| MemoryLocation::File(path.into());
        assert_eq!(arg("/dev/shm/x,size=64M"), Ok((file("/dev/shm/x"), Some(64 << 20), 0)));
        assert_eq!(arg("x,export=/a,export=/b"), Ok((file("x"), None, 2)));
        assert_eq!(arg("pci:"), Ok((MemoryLocation::Pci(None), None, 0)));
        assert_eq!(arg("pci:00:03.0"), Ok((MemoryLocation::Pci(Some("00:03.0".into())), None, 0)));
        assert!(matches!(arg("mmapper:,size=8192"), Ok((MemoryLocation::Mmapper(_), Some(8192), 0))));
        for bad in [
            "",
            ",size=4096",
            "x,size=",
            "x,size=0",
            "x,size=5000",
            "x,size=M",
            "x,tag=y",
            "pci:,size=1M",
            "mmapper:",
        ] {
            assert!(arg(bad).is_err(), "{bad:?}");
        }
        let squash = |text: &str| text.parse::<ShmFileArg>().map(|arg| arg.squash);
        assert_eq!(squash("x"), Ok(Squash::NONE));
        let all = Squash { mode: SquashMode::All, anonymous_uid: 1000, anonymous_gid: 65_534 };
        assert_eq!(squash("x,squash=all,anonuid=1000"), Ok(all));
        for bad in ["x,squash=", "x,squash=some", "x,anonuid=-1", "x,anongid=4294967295"] {
            assert!(squash(bad).is_err(), "{bad:?}");
        }
        assert!(arg("x,size=99999999999999999999G").is_err() && arg("x,size=4ö").is_err());
    }

    #[test]
    fn a_socket_with_its_exports() {
        let arg: ShmArg = "/run/x.sock,export=/a,export=/b/c".parse().expect("good");
        assert_eq!(arg.socket.to_str(), Some("/run/x.sock"));
        let names: Vec<String> = arg.exports.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["/a", "/b/c"]);
        assert!("x".parse::<ShmArg>().expect("good").exports.is_empty());
        for bad in ["", ",export=/a", "s,export=a", "s,tag=x", "s,"] {
            assert!(bad.parse::<ShmArg>().is_err(), "{bad:?}");
        }
    }
}
