//! Addresses that NBD is served at, and URLs of disks on NBD servers.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tombolo_back_nbd_client::Address;
use tombolo_host_tls::{ClientTls, HostName};

use super::address::ListenAddress;
use crate::certificates;
use crate::failure::{Failure, OrCannot};
use crate::location::{Host, decoded, encoded};

/// NBD's port (IANA).
const PORT: u16 = 10809;

/// An address to accept NBD clients at: a word with a slash is a UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdListen {
    Unix(PathBuf),
    Tcp(ListenAddress),
}

impl FromStr for NbdListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let wrong =
            |_| format!("{text:?} is neither an address (PORT, :PORT, IP:PORT) nor a socket (./NAME, /PATH)");
        text.parse().map(Self::Tcp).map_err(wrong)
    }
}

/// Disk of an NBD server: `nbd://HOST[:PORT][/EXPORT]` or `nbd+unix:///[EXPORT]?socket=PATH`, as in libnbd
/// and QEMU, or `nbds://HOST[:PORT][/EXPORT][?tlsdir=DIR]` over TLS. `tlsdir` is named as in `nfs:` URLs,
/// because the directory has the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUrl {
    pub server: Address,
    pub export: String,
    pub tls: Option<NbdTls>,
}

/// TLS parameters of an `nbds:` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdTls {
    /// Name that the server's certificate must match.
    host: HostName,
    /// Directory of certificates from `?tlsdir=`; by default the user's (see [`certificates`]).
    dir: Option<PathBuf>,
}

impl NbdTls {
    /// Returns the directory of certificates, which are read again after a change.
    pub fn dir(&self) -> Result<PathBuf, Failure> {
        let failed = |why| Failure::cannot("speak TLS", why);
        self.dir.clone().map_or_else(|| certificates::tls_dir().map_err(failed), Ok)
    }

    pub fn open(&self) -> Result<ClientTls, Failure> {
        let remedy = "give the directory of ca.pem, cert.pem and key.pem with ?tlsdir=DIR (tombolo keys issue makes one)";
        let opened = ClientTls::open_for_nbd(&self.dir()?, self.host.clone()).or_cannot("speak TLS");
        opened.map_err(|failure| failure.remedy(remedy))
    }
}

impl NbdUrl {
    /// Returns `true` if the server's addresses have to be looked up.
    pub fn is_by_name(&self) -> bool {
        matches!(&self.server, Address::Tcp(host, _) if host.parse::<IpAddr>().is_err())
    }

    /// Parses a URL; `None` if the text is a file name.
    pub fn parse(file: &Path) -> Option<Result<Self, String>> {
        let text = file.to_str()?;
        let wrong =
            || format!("{text:?}: write nbd[s]://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH");
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let parts = rest.split_once("?socket=").filter(|(_, socket)| !socket.is_empty());
            return Some(parts.ok_or_else(wrong).map(|(export, socket)| Self {
                server: Address::Unix(plain(socket).into()),
                export: plain(export),
                tls: None,
            }));
        }
        let over_tls = text.strip_prefix("nbds://");
        let rest = over_tls.or(text.strip_prefix("nbd://"))?;
        let (rest, dir) = match over_tls.and_then(|rest| rest.split_once('?')) {
            None => (rest, None),
            Some((rest, option)) => match option.strip_prefix("tlsdir=").filter(|dir| !dir.is_empty()) {
                Some(dir) => (rest, Some(PathBuf::from(plain(dir)))),
                None => {
                    return Some(Err(format!("{text:?}: unknown option {option:?}: write ?tlsdir=DIR")));
                }
            },
        };
        let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
        let parsed = Host::cut(server).and_then(|(host, port)| {
            let port = match port.strip_prefix(':') {
                Some(port) => port.parse().map_err(|_| wrong())?,
                None => PORT,
            };
            let host = host.to_string();
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            let tls = match over_tls {
                Some(_) => Some(NbdTls { host: host.parse().map_err(|_| wrong())?, dir }),
                None => None,
            };
            Ok(Self { server: Address::Tcp(host, port), export: plain(export), tls })
        });
        Some(parsed.map_err(|_| wrong()))
    }
}

/// Decodes percent-escapes in a part of a URL; a part that is not valid text stays as written.
fn plain(part: &str) -> String {
    decoded(part).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| part.to_owned())
}

impl fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, export, tls } = self;
        let encoded_path = |path: &Path| encoded(path.as_os_str().as_bytes());
        let export = encoded(export.as_bytes());
        let scheme = if tls.is_some() { "nbds" } else { "nbd" };
        match server {
            Address::Unix(socket) => write!(f, "nbd+unix:///{export}?socket={}", encoded_path(socket))?,
            Address::Tcp(host, port) if host.contains(':') => {
                write!(f, "{scheme}://[{host}]:{port}/{export}")?;
            }
            Address::Tcp(host, port) => write!(f, "{scheme}://{host}:{port}/{export}")?,
        }
        match tls.as_ref().and_then(|tls| tls.dir.as_ref()) {
            Some(dir) => write!(f, "?tlsdir={}", encoded_path(dir)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_urls_are_recognised_and_others_are_files() {
        let parsed = |text: &str| NbdUrl::parse(Path::new(text));
        let shown = |text: &str| parsed(text).map(|url| url.map(|url| url.to_string()));
        for (text, wanted) in [
            ("nbd://ship/disk", "nbd://ship:10809/disk"),
            ("nbd://ship:1", "nbd://ship:1/"),
            ("nbd://[::1]:5/a b%3f%25", "nbd://[::1]:5/a%20b%3F%25"),
            ("nbds://ship/disk?tlsdir=/etc/a b", "nbds://ship:10809/disk?tlsdir=/etc/a%20b"),
            ("nbd+unix:///disk?socket=/run/s", "nbd+unix:///disk?socket=/run/s"),
            ("nbd+unix:///a%3fsocket=b?socket=/a%25", "nbd+unix:///a%3Fsocket%3Db?socket=/a%25"),
        ] {
            assert_eq!(shown(text), Some(Ok(wanted.to_owned())));
            assert_eq!(parsed(text), parsed(wanted));
        }
        for bad in [
            "nbd://",
            "nbd://ship:x/disk",
            "nbds://ship/disk?tlsdir=",
            "nbds://ship/disk?x=1",
            "nbd+unix:///disk",
            "nbd+unix:///disk?socket=",
        ] {
            assert!(shown(bad).is_some_and(|url| url.is_err()), "{bad}");
        }
        assert_eq!(shown("nbd.img"), None);
    }

    #[test]
    fn nbd_address_with_slash_is_socket() {
        assert_eq!("./s".parse(), Ok(NbdListen::Unix("./s".into())));
        assert!(matches!("10809".parse(), Ok(NbdListen::Tcp(_))));
        assert!("disk".parse::<NbdListen>().is_err());
    }
}
