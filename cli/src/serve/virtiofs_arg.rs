//! `SOCKET[,tag=TAG][,export=/NAME][,queues=N]`: a vhost-user socket.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::export_arg::ExportName;

/// One way in by virtio-fs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct VirtioFsArg {
    /// Where the VMM connects.
    pub socket: PathBuf,
    /// What the guest calls it.
    pub tag: String,
    /// Which export it leads to.
    pub export: Option<ExportName>,
    /// How many queues take requests.
    pub request_queues: u16,
}

const DEFAULT_TAG: &str = "tombolo";

/// VIRTIO 1.2 §5.11.4: `tag` has 36 bytes.
const TAG_LIMIT_BYTES: usize = 36;

impl FromStr for VirtioFsArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let socket = parts.next().unwrap_or_default();
        if socket.is_empty() {
            return Err("the socket is missing: write SOCKET[,tag=TAG][,export=/NAME]".into());
        }
        let mut arg =
            Self { socket: socket.into(), tag: DEFAULT_TAG.into(), export: None, request_queues: 1 };
        for part in parts {
            match part.split_once('=') {
                Some(("tag", tag)) => arg.tag = checked_tag(tag)?,
                Some(("export", name)) => arg.export = Some(name.parse()?),
                Some(("queues", count)) => arg.request_queues = queue_count(count)?,
                _ => return Err(format!("{part:?} is none of tag=TAG, export=/NAME, queues=N")),
            }
        }
        Ok(arg)
    }
}

const QUEUES_MAX: u16 = 64;

fn queue_count(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| (1..=QUEUES_MAX).contains(count));
    count.ok_or_else(|| format!("queues={text}: a number from 1 to {QUEUES_MAX}"))
}

fn checked_tag(tag: &str) -> Result<String, String> {
    let plain = tag.chars().all(|c| c.is_ascii_graphic());
    if plain && (1..=TAG_LIMIT_BYTES).contains(&tag.len()) {
        Ok(tag.into())
    } else {
        Err(format!("{tag:?} is not a tag: 1 to {TAG_LIMIT_BYTES} visible ASCII characters"))
    }
}

impl TryFrom<String> for VirtioFsArg {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_with_its_options() {
        let arg: VirtioFsArg = "/run/x.sock,tag=src,export=/a".parse().expect("good");
        assert_eq!((arg.socket.to_str(), arg.tag.as_str()), (Some("/run/x.sock"), "src"));
        assert_eq!(arg.export.map(|name| name.to_string()).as_deref(), Some("/a"));
        assert_eq!("x".parse::<VirtioFsArg>().expect("good").tag, "tombolo");
        let long = format!("s,tag={}", "t".repeat(37));
        for bad in
            ["", ",tag=x", "s,tag=", "s,tag=a b", "s,export=a", "s,queues=0", "s,readonly", "s,", &long]
        {
            assert!(bad.parse::<VirtioFsArg>().is_err(), "{bad:?}");
        }
    }
}
