//! NFS over shared memory: `nfs+shm:SOCKET/NAME[?OPTION[=VALUE]&…]`, and variants for the other schemes of
//! [`ShmLocation`].
//!
//! The messages are those of NFS version 3, carried by a link. The NFS client behaves as over a network: it
//! waits for an absent server and retransmits unanswered requests.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use tombolo_back_nfs_client::NfsExport;
use tombolo_back_vrpc_client::Connected;
use tombolo_core::lock;
use tombolo_host_rpc::link::{Dial, DialError, Dialed, Route};
use tombolo_shm::link::Protocol;

use super::nfs_options::{NfsOption, NfsOptions};
use super::shm::{ShmLocation, ShmParts};
use super::shm_link::{Connector, LinkOptions, longest};
use super::url::parsed_options;
use super::{NotMounted, OpenOptions, Opened, nfs};

/// An export of an NFS server over shared memory, or a path in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsShmUrl {
    /// Endpoint of the server and name of the export.
    pub place: ShmLocation,
    pub options: NfsOptions,
}

/// Prefix of a shared-memory scheme, for NFS over it.
const FRONT: &str = "nfs+";

impl NfsShmUrl {
    /// Returns `true` if the word before the `:` is a scheme of such locations.
    pub fn is_scheme(word: &str) -> bool {
        word.strip_prefix(FRONT).is_some_and(ShmLocation::is_scheme)
    }

    /// Parses `text`, which followed `scheme:`. Options follow the last question mark.
    pub fn new(scheme: &str, text: &str) -> Result<Self, String> {
        let inner = scheme.strip_prefix(FRONT).unwrap_or(scheme);
        let (path, options) = text.rsplit_once('?').unwrap_or((text, ""));
        let place = ShmLocation::new(inner, path)
            .map_err(|wrong| wrong.replace(&format!("{inner}:"), &format!("{scheme}:")))?;
        let options = parsed_options(options).map_err(|reason| format!("{scheme}:{text}: {reason}"))?;
        check(&options).map_err(|reason| format!("{scheme}:{text}: {reason}"))?;
        Ok(Self { place, options })
    }

    /// Returns the location with the path of its socket or file made absolute.
    pub fn absolute(&self) -> io::Result<Self> {
        Ok(Self { place: self.place.absolute()?, options: self.options.clone() })
    }
}

impl fmt::Display for NfsShmUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FRONT}{}", self.place)?;
        for (index, option) in self.options.words().enumerate() {
            write!(f, "{}{option}", if index == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// Refuses options that apply to networks only.
pub fn check(options: &NfsOptions) -> Result<(), String> {
    let of_networks = |option: &NfsOption| {
        matches!(
            option,
            NfsOption::Transport(_)
                | NfsOption::Port(_)
                | NfsOption::MountPort(_)
                | NfsOption::Connections(_)
                | NfsOption::ReservedPort(_)
                | NfsOption::Security(_)
                | NfsOption::TlsDir(_)
                | NfsOption::SshCommand(_)
                | NfsOption::RemoteProgram(_)
        )
    };
    match options.iter().zip(options.words()).find(|(option, _)| of_networks(option)) {
        Some((_, word)) => Err(format!("option {word} does not apply to shared memory")),
        None => Ok(()),
    }
}

/// Opens the export that contains the location: the longest name known to the server.
pub fn open(url: &NfsShmUrl, options: &OpenOptions) -> Result<Opened, NotMounted> {
    let found = find(&url.place, &LinkOptions::default())?;
    let export = Arc::new(found.mount(&found.name, url, options)?);
    Ok(Opened { export: export.clone(), path: found.within.into_bytes(), nfs: Some(export) })
}

/// Mounts the location: an export, or a directory in it.
pub fn mount(url: &NfsShmUrl, link: &LinkOptions, options: &OpenOptions) -> Result<NfsExport, NotMounted> {
    let found = find(&url.place, link)?;
    let path = match &*found.within {
        "" => found.name.clone(),
        within => format!("{}/{within}", found.name.trim_end_matches('/')),
    };
    found.mount(&path, url, options)
}

/// An export of the server at a location, and the links to it.
struct Found {
    route: Arc<Route>,
    /// Name of the export.
    name: String,
    /// Path in the export, without slashes at its ends.
    within: String,
}

impl Found {
    fn mount(&self, path: &str, url: &NfsShmUrl, options: &OpenOptions) -> Result<NfsExport, NotMounted> {
        let asked = url.options.clone().then(&options.nfs);
        check(&asked).map_err(NotMounted::new)?;
        let asked = options.limited(asked);
        let client = nfs::client_options(&asked, options.read_only);
        NfsExport::mount_over(&self.route, path, client).map_err(|error| NotMounted::from(&error))
    }
}

fn find(place: &ShmLocation, link: &LinkOptions) -> Result<Found, NotMounted> {
    let ShmParts { at, rest } = place.parts()?;
    let ((name, connector, first), within) = longest(&rest, |name| {
        let connector = Connector::new(at.clone(), name, Protocol::OncRpc, link)?;
        let first = connector.link()?;
        Ok((name.to_owned(), connector, first))
    })?;
    let label = format!("{FRONT}{place}");
    let label = label.trim_end_matches('/').strip_suffix(rest.trim_end_matches('/')).unwrap_or(&label);
    let dial = LinkDoor { connector, first: Mutex::new(Some(first)) };
    let route = Route::start(dial, label).map_err(|error| NotMounted::unreachable(error.to_string()))?;
    Ok(Found { route, name, within: within.trim_end_matches('/').to_owned() })
}

/// Maker of the links that carry calls of the NFS client.
struct LinkDoor {
    connector: Connector,
    /// Link that was made to find the export; used first.
    first: Mutex<Option<Connected>>,
}

impl Dial for LinkDoor {
    fn dial(&self) -> Result<Dialed, DialError> {
        let first = lock(&self.first).take();
        let linked = first.map_or_else(|| self.connector.link().map_err(|no| no.failed.reason), Ok);
        let Connected { line, keep } = linked?;
        Ok(Dialed { line, keep })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_written_as_it_is_read() {
        for (scheme, text) in [
            ("nfs+shm", "/run/x.sock/src"),
            ("nfs+shm", "x.sock/src/sub?soft&rsize=64k"),
            ("nfs+shm+file", "region/src?noac"),
            ("nfs+shm+pci", "/src"),
        ] {
            assert!(NfsShmUrl::is_scheme(scheme), "{scheme}");
            let url = NfsShmUrl::new(scheme, text).expect(text);
            assert_eq!(url.to_string(), format!("{scheme}:{text}"));
        }
        for other in ["nfs", "shm", "nfs+tcp", "nfs+shm+usb", ""] {
            assert!(!NfsShmUrl::is_scheme(other), "{other}");
        }
    }

    #[test]
    fn mistakes_are_one_line_with_remedy() {
        let mistake = |text: &str| NfsShmUrl::new("nfs+shm", text).expect_err(text);
        assert_eq!(mistake("x.sock"), "nfs+shm:x.sock: the name is missing: write nfs+shm:SOCKET/NAME");
        assert_eq!(mistake("s/a?sofd"), "nfs+shm:s/a?sofd: unknown option \"sofd\": did you mean soft?");
        for option in ["proto=udp", "port=7", "mountport=7", "nconnect=2", "resvport"] {
            let wrong = mistake(&format!("s/a?hard&{option}"));
            assert!(wrong.ends_with(&format!("option {option} does not apply to shared memory")), "{wrong}");
        }
    }
}
