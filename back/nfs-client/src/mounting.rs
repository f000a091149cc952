//! Resolution of a server and a path to a handle (portmapper, MOUNT), and the export's parameters.

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use thiserror::Error as ThisError;
use tombolo_core::fs::{PermissionCheck, Profile};
use tombolo_host_rpc::client::{
    Call, CallError, Interrupts, Options as RpcOptions, Recovery, RpcClient, Target, Transport, Tunnel,
};
use tombolo_host_rpc::link::Route;
use tombolo_wire_nfs3::mount::{self, DirPath, ExportReply, MntReply};
use tombolo_wire_nfs3::results::FsinfoOk;
use tombolo_wire_nfs3::{FATTR_BYTES, Fattr3, FileHandleBuf, Reply};
use tombolo_wire_rpc::portmap::{self, Mapping, Protocol};
use tombolo_wire_rpc::{AuthFlavor, Credential};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use crate::caller::Caller;
use crate::calls::{Nfs, Sizes, answered};
use crate::options::{DATAGRAM_SIZE_MAX, Options, SIZE_MAX};
use crate::server::{Endpoint, Ports, Server};

/// Timeout of a mount's calls over TCP or links, short enough to report failures promptly. For the same time,
/// a mount repeats calls that the server answers with JUKEBOX.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a mount's calls through a program that must first connect and authenticate.
const TUNNEL_PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason for which an export cannot be mounted. Displayed with its sources, each of which adds only what the
/// preceding ones lack, it is one line.
#[derive(Debug, ThisError)]
pub enum MountError {
    /// A call was not answered, or was rejected. The source names the server.
    #[error("call to {what} failed")]
    Unreachable {
        /// Description of the server's program.
        what: &'static str,
        /// The cause.
        source: CallError,
    },
    /// The portmapper has no such program.
    #[error("{server}: the portmapper has no {what} over {transport:?}; specify the port")]
    NotRegistered {
        /// The server.
        server: String,
        /// Description of the program.
        what: &'static str,
        /// The transport.
        transport: Transport,
    },
    /// The MOUNT service refuses the path.
    #[error("{server}:{path}: {}", refusal(*.status))]
    Refused {
        /// The server.
        server: String,
        /// The export.
        path: String,
        /// The server's status.
        status: mount::Status,
    },
    /// The server requires other credentials.
    #[error("{server}:{path}: server does not accept AUTH_SYS credentials (sec=sys)")]
    Credentials {
        /// The server.
        server: String,
        /// The export.
        path: String,
    },
    /// The path exceeds the limit of MOUNT.
    #[error("{server}: the path of an export has at most {} bytes", mount::PATH_BYTES_MAX)]
    PathTooLong {
        /// The server.
        server: String,
    },
    /// The server's reply is invalid.
    #[error("{server}: invalid reply from {what}")]
    Malformed {
        /// The server.
        server: String,
        /// Description of its program.
        what: &'static str,
        /// The fault.
        source: tombolo_wire_xdr::Error,
    },
    /// The root cannot be used.
    #[error("{server}:{path}: cannot use the export's root")]
    Root {
        /// The server.
        server: String,
        /// The export.
        path: String,
        /// The cause.
        source: tombolo_core::Error,
    },
    /// The RPC client cannot be started, for instance because this host lacks resources.
    #[error("cannot start the RPC client")]
    Start(#[source] io::Error),
}

fn refusal(status: mount::Status) -> &'static str {
    match status {
        mount::Status::NoEnt => "no such export",
        mount::Status::Acces | mount::Status::Perm => {
            "access denied: this host is not allowed, or the server requires a port below 1024 (resvport)"
        }
        mount::Status::NotDir => "not a directory",
        mount::Status::NameTooLong => "path too long for the server",
        mount::Status::Inval => "invalid path",
        mount::Status::NotSupp => "not supported by the server",
        mount::Status::Io | mount::Status::ServerFault => "server failure",
    }
}

/// Parameters of an export's file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub profile: Profile,
    pub sizes: Sizes,
    pub fattr: Fattr3,
    pub has_side_program: bool,
}

/// Program and version of NFS.
pub(crate) const NFS: (u32, u32) = (tombolo_wire_nfs3::PROGRAM, tombolo_wire_nfs3::VERSION);
const MOUNT: (u32, u32) = (mount::PROGRAM, mount::VERSION);

/// Name of the MOUNT program in errors, by which [`ask`] chooses the credentials too.
const MOUNT_SERVICE: &str = "the MOUNT service";

/// Returns the endpoint of NFS or MOUNT. Asks the portmapper for its port if that is not configured.
pub(crate) async fn endpoint_of(
    endpoint: &Endpoint,
    program: (u32, u32),
) -> Result<ProgramEndpoint<'_>, MountError> {
    match endpoint {
        Endpoint::Network(server) => Ok(ProgramEndpoint::Port(server, port(server, program).await?)),
        Endpoint::Links(route) => Ok(ProgramEndpoint::Links(route)),
        Endpoint::Tunnel(tunnel) => Ok(ProgramEndpoint::Tunnel(tunnel)),
    }
}

/// Endpoint of one of a server's programs.
#[derive(Clone, Copy)]
pub(crate) enum ProgramEndpoint<'a> {
    /// A port of the server.
    Port(&'a Server, u16),
    /// Links, which carry all programs of the server.
    Links(&'a Arc<Route>),
    /// The streams of a program, which carry all programs of the server.
    Tunnel(&'a Arc<Tunnel>),
}

impl ProgramEndpoint<'_> {
    /// Creates a client of a program with these options.
    pub(crate) fn start(
        self,
        (program, version): (u32, u32),
        options: RpcOptions,
    ) -> Result<RpcClient, MountError> {
        let started = match self {
            ProgramEndpoint::Port(server, port) => {
                let (address, transport) = (server.at(port), server.transport);
                let options = RpcOptions { tls: server.tls.clone(), ..options };
                RpcClient::start(Target { address, transport, program, version }, options)
            }
            ProgramEndpoint::Links(route) => {
                RpcClient::over_links(route.clone(), (program, version), options)
            }
            ProgramEndpoint::Tunnel(tunnel) => {
                let address = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                let target = Target { address, transport: Transport::Tcp, program, version };
                RpcClient::start(target, RpcOptions { tunnel: Some(tunnel.clone()), ..options })
            }
        };
        started.map_err(MountError::Start)
    }

    /// Creates a client with the short timeouts of a mount's calls.
    pub(crate) fn start_probe(
        self,
        program: (u32, u32),
        reserved_port: Option<bool>,
    ) -> Result<RpcClient, MountError> {
        match self {
            ProgramEndpoint::Port(server, _) => {
                let label = server.to_string();
                self.start(program, RpcOptions { reserved_port, label, ..probe_options(server.transport) })
            }
            ProgramEndpoint::Links(route) => {
                let label = route.label().to_string();
                self.start(program, RpcOptions { label, ..probe_options(Transport::Tcp) })
            }
            ProgramEndpoint::Tunnel(tunnel) => {
                let (label, timeout) = (tunnel.label().to_owned(), TUNNEL_PROBE_TIMEOUT);
                self.start(program, RpcOptions { label, timeout, ..probe_options(Transport::Tcp) })
            }
        }
    }

    /// Creates a client with the short timeouts of a mount's calls, over the connection of `mount` if that is
    /// a tunnel or leads to this program's port.
    pub(crate) fn start_probe_after(
        self,
        mount: &RpcClient,
        program: (u32, u32),
        reserved_port: Option<bool>,
    ) -> Result<RpcClient, MountError> {
        match self {
            ProgramEndpoint::Tunnel(_) => Ok(mount.of_program(program)),
            ProgramEndpoint::Port(server, port) if mount.target().address == server.at(port) => {
                Ok(mount.of_program(program))
            }
            _ => self.start_probe(program, reserved_port),
        }
    }
}

fn probe_options(transport: Transport) -> RpcOptions {
    let (timeout, retries) = match transport {
        Transport::Udp => (Duration::from_millis(700), 3),
        Transport::Tcp => (PROBE_TIMEOUT, 0),
    };
    let (recovery, interrupts) = (Recovery::Soft, Interrupts::Always);
    RpcOptions { recovery, timeout, retries, interrupts, ..RpcOptions::of(transport) }
}

/// Returns the port of NFS or MOUNT: the configured one, or the portmapper's.
async fn port(server: &Server, program: (u32, u32)) -> Result<u16, MountError> {
    match (server.ports, program) {
        (Ports::One(port), _)
        | (Ports::Two { mount: port, .. }, MOUNT)
        | (Ports::Two { nfs: port, .. } | Ports::Portmapper { nfs: Some(port) }, NFS) => Ok(port),
        (_, MOUNT) => ask_portmapper(server, MOUNT, "MOUNT").await,
        _ => ask_portmapper(server, NFS, "NFS").await,
    }
}

/// Calls GETPORT (RFC 1833 §3).
async fn ask_portmapper(
    server: &Server,
    (program, version): (u32, u32),
    what: &'static str,
) -> Result<u16, MountError> {
    let protocol = match server.transport {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
    };
    let endpoint = ProgramEndpoint::Port(server, portmap::PORT);
    let rpc = endpoint.start_probe((portmap::PROGRAM, portmap::VERSION), Some(false))?;
    let mapping = Mapping { program, version, protocol };
    let results = ask(&rpc, "the portmapper", portmap::GETPORT, |xdr| {
        xdr.value(&mapping);
    })
    .await?;
    let port: u32 = decoded(server, "the portmapper", &results)?;
    match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(MountError::NotRegistered { server: server.to_string(), what, transport: server.transport }),
    }
}

/// Returns the handle of an export's root (RFC 1813 appendix I, MNT), and the client that has requested it.
pub(crate) async fn root(
    endpoint: &Endpoint,
    path: &str,
    reserved_port: Option<bool>,
) -> Result<(FileHandleBuf, RpcClient), MountError> {
    let name = || endpoint.to_string();
    let Some(dir) = DirPath::new(path.as_bytes()) else {
        return Err(MountError::PathTooLong { server: name() });
    };
    let rpc = endpoint_of(endpoint, MOUNT).await?.start_probe(MOUNT, reserved_port)?;
    let procedure = mount::Procedure::Mnt.number();
    let results = ask(&rpc, MOUNT_SERVICE, procedure, |xdr| {
        xdr.value(&mount::Call::Mnt(dir));
    })
    .await?;
    match decoded::<MntReply<'_>>(endpoint, MOUNT_SERVICE, &results)? {
        Reply::Failed(status, ()) => {
            Err(MountError::Refused { server: name(), path: path.to_owned(), status })
        }
        Reply::Ok(ok) if ok.flavors.is_empty() || ok.flavors.contains(&AuthFlavor::SYS) => {
            Ok((ok.handle.to_owned(), rpc))
        }
        Reply::Ok(_) => Err(MountError::Credentials { server: name(), path: path.to_owned() }),
    }
}

/// Notifies the server, which maintains a list of mounts for administrators, of the unmount (UMNT).
pub(crate) async fn leave(
    endpoint: &Endpoint,
    path: &str,
    reserved_port: Option<bool>,
) -> Result<(), MountError> {
    let Some(dir) = DirPath::new(path.as_bytes()) else { return Ok(()) };
    let rpc = endpoint_of(endpoint, MOUNT).await?.start_probe(MOUNT, reserved_port)?;
    ask(&rpc, MOUNT_SERVICE, mount::Procedure::Umnt.number(), |xdr| {
        xdr.value(&mount::Call::Umnt(dir));
    })
    .await
    .map(drop)
}

/// Returns the paths that a server exports (EXPORT), in its order.
pub(crate) async fn exports(
    endpoint: &Endpoint,
    reserved_port: Option<bool>,
) -> Result<Vec<Vec<u8>>, MountError> {
    let rpc = endpoint_of(endpoint, MOUNT).await?.start_probe(MOUNT, reserved_port)?;
    let results = ask(&rpc, MOUNT_SERVICE, mount::Procedure::Export.number(), |_| ()).await?;
    let list: ExportReply<'_> = decoded(endpoint, MOUNT_SERVICE, &results)?;
    Ok(list.into_iter().map(|export| export.path.as_bytes().to_vec()).collect())
}

/// Calls FSINFO, PATHCONF and GETATTR of a root concurrently.
pub(crate) async fn about(
    nfs: &Nfs,
    caller: &Caller,
    handle: FileHandleBuf,
    options: &Options,
) -> Result<About, tombolo_core::Error> {
    let (fsinfo, pathconf) = (nfs.fsinfo(caller, handle), nfs.pathconf(caller, handle));
    let fattr = nfs.getattr(caller, handle);
    let ((fsinfo, pathconf), fattr) = both(both(fsinfo, pathconf), fattr).await;
    let fsinfo = answered(fsinfo?)?;
    // A server may refuse PATHCONF (NFS3ERR_NOTSUPP); another failure of the call fails the mount.
    let pathconf = answered(pathconf?).ok();
    let fattr = answered(fattr?)?;
    let profile = Profile {
        permission_check: PermissionCheck::BackEnd,
        read_only: options.read_only,
        name_max: pathconf.map_or(255, |limits| limits.name_max.clamp(1, 255)),
        file_size_max: fsinfo.file_size_max.min(i64::MAX as u64),
        time_granularity_ns: granularity(&fsinfo),
        writes_by_owner: false,
    };
    let has_side_program = false;
    Ok(About { profile, sizes: sizes(&fsinfo, most(nfs.rpc()), options), fattr, has_side_program })
}

/// Runs both futures concurrently, and waits for both.
pub(crate) async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let mut done = (None, None);
    poll_fn(|context| {
        if done.0.is_none()
            && let Poll::Ready(result) = one.as_mut().poll(context)
        {
            done.0 = Some(result);
        }
        if done.1.is_none()
            && let Poll::Ready(result) = other.as_mut().poll(context)
        {
            done.1 = Some(result);
        }
        match std::mem::take(&mut done) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            part => {
                done = part;
                Poll::Pending
            }
        }
    })
    .await
}

fn granularity(fsinfo: &FsinfoOk) -> u32 {
    let delta = fsinfo.time_delta;
    if delta.seconds > 0 { 1_000_000_000 } else { delta.nseconds.clamp(1, 1_000_000_000) }
}

/// Returns the maximum payload of a call on its transport.
fn most(rpc: &RpcClient) -> u32 {
    match (rpc.route(), rpc.target().transport) {
        (Some(route), _) => route.data_bytes_max().min(SIZE_MAX),
        (None, Transport::Tcp) => SIZE_MAX,
        (None, Transport::Udp) => DATAGRAM_SIZE_MAX,
    }
}

fn sizes(fsinfo: &FsinfoOk, most: u32, options: &Options) -> Sizes {
    // Servers that report 0 get the size of version 2.
    let size = |server: u32, wanted: u32| {
        let server = if server == 0 { 8 << 10 } else { server };
        server.min(wanted).clamp(512, most)
    };
    Sizes {
        read_max: size(fsinfo.read_max, options.read_size_max),
        write_max: size(fsinfo.write_max, options.write_size_max),
        listing: size(fsinfo.readdir_preferred.max(LISTING_BYTES), most),
    }
}

/// Size of a listing page in bytes (some 350 entries), unless the server prefers more or the transport
/// carries less.
const LISTING_BYTES: u32 = 64 << 10;
const _: () = assert!(LISTING_BYTES as usize > FATTR_BYTES);

async fn ask(
    rpc: &RpcClient,
    what: &'static str,
    procedure: u32,
    arguments: impl FnOnce(&mut Encoder<'_>),
) -> Result<Vec<u8>, MountError> {
    let caller = Caller::default();
    let credential = match what {
        MOUNT_SERVICE => caller.credential(0, b""),
        _ => Credential::None,
    };
    // The reply to EXPORT has all exports at once, so it may be longer than others.
    let call = Call { results_bytes: LISTING_BYTES as usize, ..Call::new(procedure, credential) };
    let reply = rpc.call(call, arguments).await;
    reply.map(|reply| reply.results).map_err(|source| MountError::Unreachable { what, source })
}

fn decoded<'a, T: Decode<'a>>(
    server: &impl Display,
    what: &'static str,
    results: &'a [u8],
) -> Result<T, MountError> {
    Decoder::new(results).value().map_err(|source| MountError::Malformed {
        server: server.to_string(),
        what,
        source,
    })
}
