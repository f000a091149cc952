//! NFS version 3 servers of a directory over TCP on this host.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Program, Requests, Server, find, this_program};
use crate::error::{Doing, Result};
use crate::nfs::client::Mounted;
use crate::nfs::{Limit, Link, Network, Wait};

/// Time limit between listening and mounting.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// An NFS server with its addresses.
#[derive(Debug)]
pub struct Nfs {
    // Fields drop in order: the server before its registry.
    server: Server,
    _registry: Option<Server>,
    state: Option<TempDir>,
    nfs: SocketAddr,
    mount: SocketAddr,
    export: String,
}

impl Nfs {
    pub fn tombolo(shared: &Path, beside: &Path) -> Result<Self> {
        Self::tombolo_at(Link::Loopback, shared, beside)
    }

    /// Starts our server at the other end of a link.
    pub fn tombolo_at(link: Link, shared: &Path, beside: &Path) -> Result<Self> {
        let mut command = Network::command(link, find(Program::Tombolo)?);
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
        let server = Server::start(Program::Tombolo.name(), &mut command)?;
        let name = shared.file_name().unwrap_or_default().to_string_lossy();
        let export = format!("/{name}");
        Self { server, _registry: None, state: Some(state), nfs: address, mount: address, export }.listening()
    }

    /// Starts nfs-ganesha, with transfers of up to 1 MiB and version 3 over TCP only. It requires rpcbind,
    /// hence a network without one.
    pub fn ganesha(shared: &Path, beside: &Path) -> Result<Self> {
        let program = find(Program::Ganesha)?;
        let registry = rpcbind()?;
        let (nfs, mount) = (free_port()?, free_port()?);
        let state = state(beside)?;
        let configuration = state.path().join("ganesha.conf");
        fs::write(&configuration, configured(shared, state.path(), nfs, mount))
            .doing_to("write", &configuration)?;
        let mut command = Command::new(program);
        command.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(state.path().join("log"));
        command.arg("-p").arg(state.path().join("pid")).args(["-N", "EVENT"]);
        let server = Server::start(Program::Ganesha.name(), &mut command)?;
        let export = shared.to_string_lossy().into_owned();
        Self { server, _registry: Some(registry), state: Some(state), nfs, mount, export }.ready()
    }

    /// Starts a null server: `limit` of this program.
    pub fn limit(limit: Limit) -> Result<Self> {
        Self::limit_at(Link::Loopback, limit, &std::env::temp_dir())
    }

    /// Starts a null server at the other end of a link; stored files go to `folder`.
    pub fn limit_at(link: Link, limit: Limit, folder: &Path) -> Result<Self> {
        let address = free_port_at(link)?;
        let mut command = Network::command(link, this_program()?);
        command.args(["limit", limit.name(), &address.to_string(), "--within"]).arg(folder);
        let server = Server::start(limit.name(), &mut command)?;
        let export = "/null".to_owned();
        Self { server, _registry: None, state: None, nfs: address, mount: address, export }.listening()
    }

    fn listening(mut self) -> Result<Self> {
        let (nfs, mount, network) = (self.nfs, self.mount, self.server.id().to_string());
        let answers = || is_listening_in(&network, nfs.port()) && is_listening_in(&network, mount.port());
        self.server.wait_until("answer", answers)?;
        Ok(self)
    }

    /// Waits until it can be mounted. A server may listen before it has its exports.
    pub fn ready(self) -> Result<Self> {
        let server = self.listening()?;
        let begun = Instant::now();
        loop {
            match Mounted::new(&server, Wait::Sleep) {
                Ok(_) => return Ok(server),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    pub fn nfs(&self) -> SocketAddr {
        self.nfs
    }

    pub fn mount(&self) -> SocketAddr {
        self.mount
    }

    pub fn export(&self) -> &str {
        &self.export
    }

    pub fn server(&self) -> u32 {
        self.server.id()
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

/// Starts rpcbind, in a network without one.
fn rpcbind() -> Result<Server> {
    /// Port of rpcbind (RFC 1833 §1).
    const PORT: u16 = 111;
    for folder in ["/run/rpcbind", "/run/ganesha", "/run/sendsigs.omit.d"] {
        fs::create_dir_all(folder).doing_to("make", Path::new(folder))?;
    }
    let mut command = Command::new(find(Program::Rpcbind)?);
    let mut server = Server::start(Program::Rpcbind.name(), command.args(["-f", "-w"]))?;
    server.wait_until("answer", || is_listening(PORT))?;
    Ok(server)
}

fn state(beside: &Path) -> Result<TempDir> {
    tempfile::Builder::new().prefix("state.").tempdir_in(beside).doing_to("make a directory in", beside)
}

fn configured(shared: &Path, state: &Path, nfs: SocketAddr, mount: SocketAddr) -> String {
    const PLUGINS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/ganesha", "/usr/lib/aarch64-linux-gnu/ganesha"];
    let plugins = PLUGINS.into_iter().find(|folder| Path::new(folder).exists()).unwrap_or("/usr/lib/ganesha");
    let (shared, recovery) = (shared.display(), state.join("recovery"));
    let (nfs, mount, recovery) = (nfs.port(), mount.port(), recovery.display());
    format!(
        "NFS_CORE_PARAM {{\n  NFS_Port = {nfs};\n  MNT_Port = {mount};\n  NFS_Protocols = 3;\n  \
         mount_path_pseudo = false;\n  Enable_NLM = false;\n  Enable_RQUOTA = false;\n  Enable_UDP = false;\n  \
         fsid_device = false;\n  Plugins_Dir = \"{plugins}\";\n}}\n\
         NFSV4 {{\n  Graceless = true;\n  RecoveryRoot = \"{recovery}\";\n}}\n\
         EXPORT {{\n  Export_Id = 1;\n  Path = \"{shared}\";\n  Pseudo = /exp;\n  Protocols = 3;\n  Transports = TCP;\n  \
         Access_Type = RW;\n  Squash = No_Root_Squash;\n  SecType = sys;\n  MaxRead = 1048576;\n  MaxWrite = 1048576;\n  \
         PrefRead = 1048576;\n  PrefWrite = 1048576;\n  FSAL {{ Name = VFS; }}\n}}\n"
    )
}

/// Returns a free port on this host's loopback.
pub fn free_port() -> Result<SocketAddr> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    TcpListener::bind(address)
        .and_then(|listener| listener.local_addr())
        .doing(|| "find a free port".to_owned())
}

/// Returns a free port in the network of a link's servers. Each network has its own ports; no port is
/// returned twice in one run.
fn free_port_at(link: Link) -> Result<SocketAddr> {
    Ok(SocketAddr::new(link.server(), free_port()?.port()))
}

/// Returns `true` if a process listens at a TCP port of any address; a test connection would count as a
/// client.
pub fn is_listening(port: u16) -> bool {
    is_listening_in("self", port)
}

/// Returns `true` if a process listens at a TCP port in the network of `process`.
pub fn is_listening_in(process: &str, port: u16) -> bool {
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
    use super::*;

    #[test]
    fn a_port_counts_only_while_it_is_listened_on() {
        let address = free_port().unwrap();
        assert!(!is_listening(address.port()));
        let listener = TcpListener::bind(address).unwrap();
        assert!(is_listening(address.port()));
        drop(listener);
        assert!(!is_listening(address.port()));
    }
}
