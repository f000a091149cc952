//! `SOCKET[,tag=TAG][,export=/NAME][,queues=N]`: a vhost-user socket, by path or as an inherited descriptor.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::export::ExportName;
use crate::setting::{Setting, behind_word};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtioFsArg {
    pub socket: VirtioFsSocket,
    /// Mount tag in the guest.
    pub tag: String,
    pub export: Option<ExportName>,
    pub request_queues: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VirtioFsSocket {
    Path(PathBuf),
    /// Listening socket inherited as this descriptor.
    Inherited(i32),
}

impl fmt::Display for VirtioFsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Inherited(fd) => write!(f, "descriptor {fd}"),
        }
    }
}

const DEFAULT_TAG: &str = "tombolo";

/// VIRTIO 1.2 §5.11.4: `tag` has 36 bytes.
const TAG_LIMIT_BYTES: usize = 36;

impl FromStr for VirtioFsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (socket, settings) = behind_word(text);
        if socket.is_empty() {
            return Err("the socket is missing: write SOCKET[,tag=TAG][,export=/NAME]".into());
        }
        Self::new(VirtioFsSocket::Path(socket.into()), settings)
    }
}

impl VirtioFsArg {
    /// Parses `FD[,tag=TAG][,export=/NAME][,queues=N]`.
    pub fn inherited(text: &str) -> Result<Self, String> {
        let (fd, settings) = behind_word(text);
        // 0 to 2 are the standard streams.
        let fd = fd.parse().ok().filter(|fd| *fd > 2);
        let fd =
            fd.ok_or("the descriptor is missing: write FD[,tag=TAG][,export=/NAME], FD being 3 or more")?;
        Self::new(VirtioFsSocket::Inherited(fd), settings)
    }

    fn new<'a>(socket: VirtioFsSocket, settings: impl Iterator<Item = Setting<'a>>) -> Result<Self, String> {
        let mut arg = Self { socket, tag: DEFAULT_TAG.into(), export: None, request_queues: 1 };
        for setting in settings {
            match (setting.name, setting.value) {
                ("tag", Some(tag)) => arg.tag = checked_tag(tag)?,
                ("export", Some(_)) => arg.export = Some(setting.parsed()?),
                ("queues", Some(_)) => {
                    arg.request_queues = setting.number("a number", 1..=QUEUES_MAX)? as u16;
                }
                _ => return Err(setting.is_none_of("tag=TAG, export=/NAME, queues=N")),
            }
        }
        Ok(arg)
    }
}

/// Permission bits, in octal as for chmod(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777);
        bits.map(Self).ok_or_else(|| format!("{text:?} is not a mode: write it in octal, such as 0660"))
    }
}

const QUEUES_MAX: u64 = 64;

fn checked_tag(tag: &str) -> Result<String, String> {
    let plain = tag.chars().all(|c| c.is_ascii_graphic());
    if plain && (1..=TAG_LIMIT_BYTES).contains(&tag.len()) {
        Ok(tag.into())
    } else {
        Err(format!("{tag:?} is not a tag: 1 to {TAG_LIMIT_BYTES} visible ASCII characters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_with_its_options() {
        let arg: VirtioFsArg = "/run/x.sock,tag=src,export=/a".parse().expect("good");
        assert_eq!((arg.socket.to_string().as_str(), arg.tag.as_str()), ("/run/x.sock", "src"));
        assert_eq!(arg.export.map(|name| name.to_string()).as_deref(), Some("/a"));
        assert_eq!("x".parse::<VirtioFsArg>().expect("good").tag, "tombolo");
        let long = format!("s,tag={}", "t".repeat(37));
        for bad in
            ["", ",tag=x", "s,tag=", "s,tag=a b", "s,export=a", "s,queues=0", "s,readonly", "s,", &long]
        {
            assert!(bad.parse::<VirtioFsArg>().is_err(), "{bad:?}");
        }
        let arg = VirtioFsArg::inherited("3,tag=src").expect("good");
        assert_eq!((arg.socket, arg.tag.as_str()), (VirtioFsSocket::Inherited(3), "src"));
        for bad in ["", "2", "-1", "x", "3,", "3,tug=x", "/run/x.sock"] {
            assert!(VirtioFsArg::inherited(bad).is_err(), "{bad:?}");
        }
    }
}
