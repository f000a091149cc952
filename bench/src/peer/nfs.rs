//! NFS version 3 servers of a directory over TCP on this host.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{GANESHA, RPCBIND, Requests, Server, TOMBOLO, find, this_program};
use crate::error::{Doing, Result};
use crate::nfs::client::Mounted;
use crate::nfs::{Limit, Link, Network, Wait};

/// An NFS server with its addresses.
#[derive(Debug)]
pub struct Nfs {
    // Fields drop in order: the server before its registry.
    pub server: Server,
    _registry: Option<Server>,
    state: Option<TempDir>,
    pub nfs: SocketAddr,
    pub mount: SocketAddr,
    pub export: String,
}

impl Nfs {
    pub fn tombolo(shared: &Path, beside: &Path) -> Result<Self> {
        Self::tombolo_at(Link::Loopback, shared, beside)
    }

    /// Starts our server at the other end of a link.
    pub fn tombolo_at(link: Link, shared: &Path, beside: &Path) -> Result<Self> {
        let mut command = Network::command(link, find(TOMBOLO)?);
        command.arg("serve").arg(shared);
        Self::by_command(command, free_port_at(link)?, shared, beside)?.ready()
    }

    /// Starts a command of ours that serves `shared`, which is its last argument. It may run in another
    /// network, and listens on return.
    pub fn by_command(
        mut command: Command,
        address: SocketAddr,
        shared: &Path,
        beside: &Path,
    ) -> Result<Self> {
        let state = state(beside)?;
        command.arg("--nfs").arg(address.to_string()).args(["--squash", "none"]);
        command.arg("--control").arg(state.path().join("control"));
        command.env("XDG_STATE_HOME", state.path());
        let server = Server::listening(TOMBOLO, &mut command, &[address.port()])?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy();
        let export = format!("/{name}");
        Ok(Self { server, _registry: None, state: Some(state), nfs: address, mount: address, export })
    }

    /// Starts nfs-ganesha, with transfers of up to 1 MiB and version 3 over TCP only, and before it the
    /// rpcbind that it requires: the network must not have one yet.
    pub fn ganesha(shared: &Path, beside: &Path) -> Result<Self> {
        Self::ganesha_in("/proc/self/ns/net", shared, beside, (free_port()?.port(), free_port()?.port()))?
            .ready()
    }

    /// Starts nfs-ganesha in a network, at these ports for NFS and MOUNT, with all else as
    /// [`ganesha`](Self::ganesha) has it. It listens on return, but may not have its export yet.
    pub fn ganesha_in(network: &str, shared: &Path, beside: &Path, (nfs, mount): (u16, u16)) -> Result<Self> {
        let within = |program: PathBuf| {
            let mut command = Command::new("nsenter");
            command.arg(format!("--net={network}")).arg("--").arg(program);
            command
        };
        let program = find(GANESHA)?;
        let registry = rpcbind(within(find(RPCBIND)?))?;
        let state = state(beside)?;
        let configuration = state.path().join("ganesha.conf");
        fs::write(&configuration, configured(shared, state.path(), nfs, mount))
            .doing_to("write", &configuration)?;
        let mut command = within(program);
        command.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(state.path().join("log"));
        command.arg("-p").arg(state.path().join("pid")).args(["-N", "EVENT"]);
        let server = Server::listening(GANESHA, &mut command, &[nfs, mount])?;
        let export = shared.to_string_lossy().into_owned();
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Self {
            server,
            _registry: Some(registry),
            state: Some(state),
            nfs: at(nfs),
            mount: at(mount),
            export,
        })
    }

    /// Starts a null server, `limit` of this program, at the other end of a link, which stores in `folder`.
    pub fn limit_at(link: Link, limit: Limit, folder: &Path) -> Result<Self> {
        let address = free_port_at(link)?;
        let mut command = Network::command(link, this_program()?);
        command.args(["limit", limit.name(), &address.to_string(), "--within"]).arg(folder);
        let server = Server::listening(limit.name(), &mut command, &[address.port()])?;
        let export = "/null".to_owned();
        Ok(Self { server, _registry: None, state: None, nfs: address, mount: address, export })
    }

    /// Waits until the export can be mounted. A server may listen before it has its exports.
    pub fn ready(mut self) -> Result<Self> {
        let (addresses, export) = ((self.nfs, self.mount), &self.export);
        self.server.wait_until("export", || Mounted::at(addresses, export, Wait::Sleep).is_ok())?;
        Ok(self)
    }

    pub fn url(&self) -> String {
        format!("nfs://{}{}", self.nfs, self.export)
    }

    /// Returns the requests that our server has answered; none for a peer.
    pub fn requests(&self) -> Result<Requests> {
        let control = |state: &TempDir| Requests::ask(&state.path().join("control"));
        self.state.as_ref().map_or_else(|| Ok(Requests::default()), control)
    }
}

/// Starts rpcbind by a command that begins with its program, in a network without one.
fn rpcbind(mut command: Command) -> Result<Server> {
    /// Port of rpcbind (RFC 1833 §1).
    const PORT: u16 = 111;
    for folder in ["/run/rpcbind", "/run/ganesha", "/run/sendsigs.omit.d"] {
        fs::create_dir_all(folder).doing_to("make", Path::new(folder))?;
    }
    Server::listening(RPCBIND, command.args(["-f", "-w"]), &[PORT])
}

fn state(beside: &Path) -> Result<TempDir> {
    tempfile::Builder::new().prefix("state.").tempdir_in(beside).doing_to("make a directory in", beside)
}

fn configured(shared: &Path, state: &Path, nfs: u16, mount: u16) -> String {
    const PLUGINS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/ganesha", "/usr/lib/aarch64-linux-gnu/ganesha"];
    let plugins = PLUGINS.into_iter().find(|folder| Path::new(folder).exists()).unwrap_or("/usr/lib/ganesha");
    let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/ganesha.conf"));
    let text = text.replace("{nfs}", &nfs.to_string()).replace("{mount}", &mount.to_string());
    let text = text.replace("{plugins}", plugins).replace("{shared}", &shared.to_string_lossy());
    text.replace("{recovery}", &state.join("recovery").to_string_lossy())
}

/// Returns a free port on this host's loopback.
pub fn free_port() -> Result<SocketAddr> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TcpListener::bind(address)
        .and_then(|listener| listener.local_addr())
        .doing(|| "find a free port".to_owned())
}

/// Returns an address for a server of a link, with a port that is free on this network's loopback. In the
/// servers' network, if it is another, the port is not checked.
fn free_port_at(link: Link) -> Result<SocketAddr> {
    Ok(SocketAddr::new(link.server(), free_port()?.port()))
}

/// Returns `true` if a process listens at a TCP port of any address in the network of `process`. It reads the
/// kernel's table, since a test connection would count as a client.
pub(super) fn is_listening_in(process: &str, port: u16) -> bool {
    /// State TCP_LISTEN in /proc/net/tcp.
    const LISTENS: &str = "0A";
    let suffix = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|address| address.ends_with(&suffix)) && fields.nth(1) == Some(LISTENS)
    };
    ["tcp", "tcp6"].into_iter().any(|table| {
        let path = Path::new("/proc").join(process).join("net").join(table);
        fs::read_to_string(path).unwrap_or_default().lines().any(listens)
    })
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_port_counts_only_while_it_is_listened_on() {
        let address = free_port().unwrap();
        let listener = TcpListener::bind(address).unwrap();
        assert!(is_listening_in("self", address.port()));
        drop(listener);
        // A child that another test is starting has the socket for a moment, too.
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_listening_in("self", address.port()) {
            assert!(Instant::now() < deadline, "it is listened on for ever");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
