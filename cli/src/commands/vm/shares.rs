//! Shares of a VM: each is served by its own `tombolo serve`, next to the servers of memory and disk.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tombolo_host_vmm::Monitor;
use tombolo_host_vmm::shares::SHARES_MAX;

use super::home::{Run, checked_name};
use super::whole;
use crate::assembly::plan::disk::DiskSource;
use crate::failure::{Failure, OrCannot, Outcome};

/// Mount tag in the guest, and a local directory or a URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    pub tag: String,
    from: PathBuf,
}

/// Maximum length of a mount tag (VIRTIO 1.2 §5.11.4).
const TAG_BYTES_MAX: usize = 36;

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (tag, from) = text.split_once('=').ok_or("write TAG=DIR or TAG=URL")?;
        let tag = checked_name(tag).map_err(|why| format!("TAG: {why}"))?;
        if tag.len() > TAG_BYTES_MAX || from.is_empty() {
            return Err(format!(
                "write TAG=DIR or TAG=URL, with a TAG of at most {TAG_BYTES_MAX} characters"
            ));
        }
        Ok(Self { tag, from: from.into() })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.tag, self.from.display())
    }
}

/// Validates shares, and makes their paths absolute.
pub fn checked(shares: &[Share]) -> Result<Vec<Share>, Failure> {
    let tags: std::collections::HashSet<_> = shares.iter().map(|share| &share.tag).collect();
    if shares.len() > SHARES_MAX || tags.len() < shares.len() {
        let reason = format!("--share: at most {SHARES_MAX}, each with its own tag");
        return Err(Failure::usage(&reason));
    }
    let absolute = |share: &Share| {
        let elsewhere = DiskSource::is_elsewhere(&share.from);
        let from = if elsewhere { share.from.clone() } else { whole(&share.from)? };
        Ok(Share { from, ..share.clone() })
    };
    shares.iter().map(absolute).collect()
}

/// Adds the arguments of `tombolo serve` for a share.
pub fn add_words(command: &mut Command, share: &Share, run: &Run, number: usize) {
    let mut socket = run.share(number).into_os_string();
    socket.push(format!(",tag={}", share.tag));
    // The explicit export name protects paths that contain `=/`.
    let mut export = share.from.clone().into_os_string();
    export.push(format!("=/{}", share.tag));
    command.arg(export).arg("--virtiofs").arg(socket).arg("--control").arg(run.share_control(number));
}

pub fn connect(shares: &[Share], run: &Run, monitor: &mut Monitor) -> Outcome {
    each(shares, |number, _| monitor.connect_share(number, &run.share(number)))
}

/// Plugs the shares into the guest. Must be called before [`Monitor::plug_identity`]: a guest detects the
/// shares when the identity disk appears.
pub fn plug(shares: &[Share], monitor: &mut Monitor) -> Outcome {
    each(shares, |number, share| monitor.plug_share(number, &share.tag))
}

fn each(
    shares: &[Share],
    mut act: impl FnMut(usize, &Share) -> Result<(), tombolo_host_vmm::MonitorError>,
) -> Outcome {
    let act = |(number, share)| act(number, share).or_cannot(format_args!("share {share}"));
    shares.iter().enumerate().map(act).fold(Ok(()), Outcome::and)
}

/// Returns the files of all servers of shares that a VM may have had.
pub fn files(run: &Run) -> impl Iterator<Item = PathBuf> + use<'_> {
    (0..SHARES_MAX).flat_map(|number| [run.share(number), run.share_control(number)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_tag_and_a_place() {
        for text in ["src=/srv/src", "home=nfs://ship/home?a=b"] {
            assert_eq!(text.parse::<Share>().expect("good").to_string(), text);
        }
        for bad in ["", "src", "=/srv", "src=", "a,b=/srv", "../x=/srv", &format!("{}=/srv", "t".repeat(37))]
        {
            assert!(bad.parse::<Share>().is_err(), "{bad:?}");
        }
        let share: Share = "src=here".parse().expect("good");
        assert!(checked(std::slice::from_ref(&share)).expect("good")[0].from.is_absolute());
        assert!(checked(&[share.clone(), share]).is_err());
    }
}
