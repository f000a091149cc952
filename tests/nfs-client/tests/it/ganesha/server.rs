//! rpcbind and nfs-ganesha.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_back_nfs_client::{NfsExport, Options, Ports, Server};
use tombolo_host_rpc::client::Transport;

const NFS_PORT: u16 = 12_049;
const MOUNT_PORT: u16 = 12_048;
/// RFC 1833 §1.
const RPCBIND_PORT: u16 = 111;
/// Maximum time until the server can be mounted.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// An nfs-ganesha serving a directory on disk.
pub struct Ganesha {
    process: Child,
    _rpcbind: Child,
    pub tree: TempDir,
    state: TempDir,
}

impl Ganesha {
    /// Starts the server.
    pub fn start() -> Self {
        for folder in ["/run/rpcbind", "/run/ganesha", "/run/sendsigs.omit.d"] {
            fs::create_dir_all(folder).expect("a directory in /run");
        }
        let rpcbind = spawn(Command::new("rpcbind").args(["-f", "-w"]));
        wait_for(RPCBIND_PORT);
        let tree = tempfile::tempdir().expect("a scratch directory");
        let state = tempfile::tempdir().expect("a scratch directory");
        fs::write(state.path().join("conf"), configured(tree.path(), state.path())).expect("written");
        let process = started(state.path());
        let ganesha = Self { process, _rpcbind: rpcbind, tree, state };
        ganesha.wait();
        ganesha
    }

    /// Kills the server, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("reaped");
    }

    /// Restarts the server.
    pub fn restart(&mut self) {
        self.process = started(self.state.path());
    }

    /// Returns the server's address for these ports.
    pub fn address(&self, ports: Ports) -> Server {
        let name = "localhost".to_owned();
        Server { name, address: Ipv4Addr::LOCALHOST.into(), ports, transport: Transport::Tcp, tls: None }
    }

    /// Returns the server's two ports.
    pub fn ports(&self) -> Ports {
        Ports::Two { nfs: NFS_PORT, mount: MOUNT_PORT }
    }

    /// Returns the exported path.
    pub fn export(&self) -> &str {
        self.tree.path().to_str().expect("a path of plain letters")
    }

    /// Mounts the export.
    pub fn mount(&self, options: Options) -> NfsExport {
        NfsExport::mount(&self.address(self.ports()), self.export(), options).expect("mounted")
    }

    /// Waits until the export can be mounted: the server listens before it has loaded its exports.
    fn wait(&self) {
        let begun = Instant::now();
        wait_for(NFS_PORT);
        wait_for(MOUNT_PORT);
        let server = self.address(self.ports());
        while let Err(error) = NfsExport::mount(&server, self.export(), Options::default()) {
            let log = || fs::read_to_string(self.state.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "nfs-ganesha is not ready: {error}\n{}", log());
            std::thread::sleep(PAUSE);
        }
    }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

fn started(state: &Path) -> Child {
    let mut command = Command::new("ganesha.nfsd");
    command.arg("-F").arg("-f").arg(state.join("conf")).arg("-L").arg(state.join("log"));
    spawn(command.arg("-p").arg(state.join("pid")).args(["-N", "EVENT"]))
}

fn wait_for(port: u16) {
    let begun = Instant::now();
    while TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_err() {
        assert!(begun.elapsed() < PATIENCE, "no server answers at port {port}");
        std::thread::sleep(PAUSE);
    }
}

fn configured(tree: &Path, state: &Path) -> String {
    const PLUGINS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/ganesha", "/usr/lib/aarch64-linux-gnu/ganesha"];
    let plugins = PLUGINS.into_iter().find(|folder| Path::new(folder).exists()).unwrap_or("/usr/lib/ganesha");
    let (tree, recovery) = (tree.display(), state.join("recovery"));
    let recovery = recovery.display();
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {NFS_PORT}; MNT_Port = {MOUNT_PORT}; NFS_Protocols = 3; mount_path_pseudo = false; \
         Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; fsid_device = false; \
         Plugins_Dir = \"{plugins}\"; }}\n\
         NFSV4 {{ Graceless = true; RecoveryRoot = \"{recovery}\"; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{tree}\"; Pseudo = /exp; Protocols = 3; Transports = TCP; Access_Type = RW; \
         Squash = No_Root_Squash; SecType = sys; MaxRead = 1048576; MaxWrite = 1048576; PrefRead = 1048576; \
         PrefWrite = 1048576; FSAL {{ Name = VFS; }} }}\n"
    )
}
