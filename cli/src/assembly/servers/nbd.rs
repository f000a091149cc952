//! NBD front end of a disk, plain and with TLS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_front_nbd::{Exports, Listeners, Options, Server, StartError};
use tombolo_host_tls::ServerTls;

use crate::assembly::hints::nfs::host_name;
use crate::assembly::options::disk::DiskOptions;
use crate::assembly::options::nbd::NbdListen;
use crate::certificates;
use crate::failure::{Failure, OrCannot};
use crate::location::encoded;

/// Address of a served disk.
pub struct NbdPlace {
    /// `unix:PATH` or `IP:PORT`.
    pub address: String,
    /// Address for clients: with the name of this host if it listens on all interfaces.
    pub reached_at: String,
    pub url: String,
    pub is_secure: bool,
}

/// Listening sockets, not yet served.
pub struct NbdSockets {
    plain: Listeners,
    secure: Listeners,
    tls: Option<Arc<ServerTls>>,
    /// Directory of the certificates, whose files are read again when they change; `None` without TLS.
    pub tls_dir: Option<PathBuf>,
    pub places: Vec<NbdPlace>,
}

impl NbdSockets {
    /// Binds the sockets, and loads the certificates if any of them requires TLS.
    pub fn open(options: &DiskOptions, export: &str) -> Result<Self, Failure> {
        let is_secure = !options.nbd_tls.is_empty();
        let (tls, tls_dir) = is_secure.then(|| load_tls(options.tls_dir.clone())).transpose()?.unzip();
        let mode = options.socket_mode.as_ref().map_or(0o600, |mode| mode.0);
        let (plain, secure) = (Listeners::default(), Listeners::default());
        let mut sockets = Self { plain, secure, tls, tls_dir, places: Vec::new() };
        for (listens, is_secure) in [(&options.nbd, false), (&options.nbd_tls, true)] {
            for listen in listens {
                sockets.add(listen, is_secure, mode, export)?;
            }
        }
        Ok(sockets)
    }

    fn add(&mut self, listen: &NbdListen, is_secure: bool, mode: u32, export: &str) -> Result<(), Failure> {
        let (listeners, scheme) =
            if is_secure { (&mut self.secure, "nbds") } else { (&mut self.plain, "nbd") };
        let failed = |error: StartError| Failure::cannot("serve NBD", &error);
        match listen {
            NbdListen::Unix(_) if is_secure => {
                return Err(Failure::usage("--nbd-tls requires an address: UNIX sockets need no TLS"));
            }
            NbdListen::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                listeners.add_unix(&path, mode).map_err(failed)?;
                let url = format!(
                    "nbd+unix:///{}?socket={}",
                    encoded(export.as_bytes()),
                    encoded(path.as_os_str().as_encoded_bytes())
                );
                let address = format!("unix:{}", path.display());
                self.places.push(NbdPlace { reached_at: address.clone(), address, url, is_secure });
            }
            NbdListen::Tcp(address) => {
                for address in address.resolve()? {
                    let address = listeners.add_tcp(address).map_err(failed)?;
                    let reached_at = reached_at(address, &host_name());
                    let url = format!("{scheme}://{reached_at}/{}", encoded(export.as_bytes()));
                    self.places.push(NbdPlace { address: address.to_string(), reached_at, url, is_secure });
                }
            }
        }
        Ok(())
    }

    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        self.places.iter().filter_map(|place| place.address.strip_prefix("unix:").map(PathBuf::from))
    }

    /// Serves the disk until the servers are dropped.
    pub fn serve(
        self,
        export: &str,
        disk: &Arc<dyn BlockDevice>,
    ) -> Result<(Vec<Server>, Vec<NbdPlace>), Failure> {
        let mut exports = Exports::default();
        exports.add(export, Arc::clone(disk));
        let mut servers = Vec::new();
        if self.tls.is_some() {
            let options = Options { tls: self.tls, ..Options::default() };
            servers.push(Server::start(self.secure, exports.clone(), options));
        }
        if self.places.iter().any(|place| !place.is_secure) {
            servers.push(Server::start(self.plain, exports, Options::default()));
        }
        let servers = servers.into_iter().collect::<Result<Vec<_>, _>>().or_cannot("serve NBD")?;
        Ok((servers, self.places))
    }
}

/// Returns the address for clients; `host` is the name of this host.
fn reached_at(address: SocketAddr, host: &str) -> String {
    if address.ip().is_unspecified() { format!("{host}:{}", address.port()) } else { address.to_string() }
}

/// Loads the certificates; returns them and their directory.
fn load_tls(dir: Option<PathBuf>) -> Result<(Arc<ServerTls>, PathBuf), Failure> {
    let dir = dir.map_or_else(certificates::tls_dir, Ok);
    let dir = dir.map_err(|why| Failure::cannot("serve NBD over TLS", why))?;
    let tls = ServerTls::open_for_nbd(&dir).or_cannot("serve NBD over TLS");
    Ok((Arc::new(tls.map_err(|failure| failure.remedy(certificates::GIVE_TLS_DIR))?), dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unspecified_address_is_reached_by_host_name() {
        let reached = |address: &str| reached_at(address.parse().expect("an address"), "ship");
        assert_eq!((reached("0.0.0.0:7"), reached("[::]:7")), ("ship:7".into(), "ship:7".into()));
        assert_eq!(reached("[fd00::1]:7"), "[fd00::1]:7");
    }
}
