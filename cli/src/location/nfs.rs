//! Exports of NFS servers.
//!
//! Only the server knows which part of a URL's path names an export. Therefore its list of exports is
//! fetched, and the longest export that is a prefix of the path is mounted, so that links within it resolve.
//! If there is no list, or no match in it, or the match is refused, the whole path and its parents are tried
//! (`docs/decisions/libtombolo.md`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tombolo_back_nfs_client::{
    AttributeTimes, MountError, NfsExport, Options as ClientOptions, Ports, Server, Transport,
};
use tombolo_core::Error;
use tombolo_host_rpc::client::{CallError, Interrupts, Options as RpcOptions, Recovery};
use tombolo_host_tls::{BadHostName, ClientTls};

use crate::failure::Reason;

use super::nfs_options::{AttributeTime, NfsOption, NfsOptions};
use super::{End, NfsUrl, NotMounted, OpenOptions, Opened, Reachability, nfs_ssh};

/// Opens the export that contains the URL's path.
pub fn open(url: &NfsUrl, options: &OpenOptions) -> Result<Opened, NotMounted> {
    if let Some(ssh) = &url.ssh {
        return nfs_ssh::open(url, ssh, options);
    }
    let path = text(&url.path).map_err(NotMounted::new)?;
    let settings = Settings::of(url, options)?;
    let (export, length) = at_any_address(url, &settings, |server| {
        let exports = list(server, &settings)?;
        first(tries(&exports, path, options.end), |length| {
            let export = NfsExport::mount(server, at_least_root(&path[..length]), settings.client.clone());
            export.map(|export| (export, length))
        })
    })?;
    let within = path[length..].trim_start_matches('/').as_bytes().to_vec();
    let export = Arc::new(export);
    Ok(Opened { export: export.clone(), path: within, nfs: Some(export) })
}

/// Returns the paths of the server's exports.
pub fn exports(url: &NfsUrl) -> Result<Vec<Vec<u8>>, NotMounted> {
    let settings = Settings::of(url, &OpenOptions::default())?;
    let reserved_port = settings.client.rpc.reserved_port;
    at_any_address(url, &settings, |server| NfsExport::exports_of(server, reserved_port))
}

/// Mounts exactly the URL's path, as mount.nfs(8) does: an export, or a directory in it if the server
/// permits.
pub fn mount(url: &NfsUrl, options: &OpenOptions) -> Result<NfsExport, NotMounted> {
    if let Some(ssh) = &url.ssh {
        return nfs_ssh::mount(url, ssh, options);
    }
    let path = text(&url.path).map_err(NotMounted::new)?;
    let settings = Settings::of(url, options)?;
    at_any_address(url, &settings, |server| NfsExport::mount(server, path, settings.client.clone()))
}

impl From<&MountError> for NotMounted {
    fn from(error: &MountError) -> Self {
        let reason = Reason::from(error);
        match error {
            error if is_unreachable(error) => Self::unreachable(reason),
            // A starting server registers with the portmapper only when ready.
            MountError::NotRegistered { .. } => Self::unreachable(reason),
            _ => Self::new(reason),
        }
    }
}

/// Returns `true` if the server may respond later; a busy server also counts as unreachable.
fn is_unreachable(error: &MountError) -> bool {
    use CallError::{NoLink, TimedOut, Unreachable};
    matches!(
        error,
        MountError::Unreachable { source: Unreachable { .. } | TimedOut { .. } | NoLink { .. }, .. }
            | MountError::Root { source: Error::TimedOut, .. }
    )
}

/// Converts a path to text; MOUNT permits any bytes.
fn text(path: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(path).map_err(|_| "the path on the server is not UTF-8".into())
}

/// Effective settings of URL and options.
struct Settings {
    ports: Vec<Ports>,
    transport: Transport,
    tls: Option<Arc<ClientTls>>,
    client: ClientOptions,
}

/// Default port of NFS (RFC 1813, RFC 2224 §2).
const NFS_PORT: u16 = 2049;

impl Settings {
    fn of(url: &NfsUrl, options: &OpenOptions) -> Result<Self, NotMounted> {
        let asked = url.options.clone().then(&options.nfs);
        url.check(&asked).map_err(NotMounted::new)?;
        let asked = options.limited(asked);
        let said = |option| if let NfsOption::Transport(transport) = option { Some(transport) } else { None };
        let transport = asked.last(said).unwrap_or(Transport::Tcp);
        let mut client = ClientOptions { rpc: RpcOptions::of(transport), ..ClientOptions::default() };
        fill(&mut client, &asked, options.read_only);
        let tls = tls(url, &asked, transport)?;
        let ports = ports(url.port, &asked, tls.is_some());
        Ok(Self { ports, transport, tls, client })
    }

    fn server(&self, url: &NfsUrl, address: IpAddr, ports: Ports) -> Server {
        let (transport, tls) = (self.transport, self.tls.clone());
        Server { name: url.host.to_string(), address, ports, transport, tls }
    }
}

/// Returns the client's options for connections over shared memory or ssh, without those of a network.
pub(super) fn client_options(asked: &NfsOptions, read_only: bool) -> ClientOptions {
    let mut client = ClientOptions::default();
    fill(&mut client, asked, read_only);
    client
}

fn fill(client: &mut ClientOptions, asked: &NfsOptions, read_only: bool) {
    client.read_only = read_only;
    asked.iter().for_each(|option| apply(client, &option));
    client.attributes = attributes(asked);
}

/// Returns the TLS settings, if requested.
fn tls(url: &NfsUrl, asked: &NfsOptions, transport: Transport) -> Result<Option<Arc<ClientTls>>, NotMounted> {
    let Some((presents, dir)) = asked.security() else { return Ok(None) };
    if transport == Transport::Udp {
        return Err(NotMounted::new("xprtsec= requires TCP: TLS is not available over UDP"));
    }
    let dir = dir.map_err(NotMounted::new)?;
    let host = url.host.to_string();
    let host = host
        .trim_matches(['[', ']'])
        .parse()
        .map_err(|error: BadHostName| NotMounted::new(Reason::from(&error)))?;
    let tls = ClientTls::open(&dir, host, presents).map_err(|error| NotMounted {
        remedy: Some("give the directory of ca.pem, cert.pem and key.pem with tlsdir=DIR (tombolo keys issue makes one)"),
        ..NotMounted::new(Reason::from(&error))
    })?;
    Ok(Some(Arc::new(tls)))
}

/// Returns the ports to try, in order: a given port serves both protocols, as with Tombolo, unless
/// `mountport=` is given too; without one the portmapper is queried and, if it does not respond or knows no
/// server, the default port is tried, since a Tombolo server does not register. Portmappers have no TLS.
fn ports(url: Option<u16>, asked: &NfsOptions, over_tls: bool) -> Vec<Ports> {
    let port = asked.last(|option| if let NfsOption::Port(port) = option { Some(port) } else { None });
    let mount = asked.last(|option| if let NfsOption::MountPort(port) = option { Some(port) } else { None });
    match (port.or(url), mount) {
        (nfs, Some(mount)) => vec![Ports::Two { nfs: nfs.unwrap_or(NFS_PORT), mount }],
        (Some(port), None) => vec![Ports::One(port)],
        (None, None) if over_tls => vec![Ports::One(NFS_PORT)],
        (None, None) => vec![Ports::Portmapper { nfs: None }, Ports::One(NFS_PORT)],
    }
}

fn apply(client: &mut ClientOptions, option: &NfsOption) {
    let rpc = &mut client.rpc;
    match *option {
        NfsOption::ReadSize(bytes) => client.read_size_max = bytes,
        NfsOption::WriteSize(bytes) => client.write_size_max = bytes,
        NfsOption::ReadAhead(bytes) => client.read_ahead_bytes = bytes,
        NfsOption::Timeout(time) => rpc.timeout = time,
        NfsOption::Retries(count) => rpc.retries = count,
        NfsOption::Hard(true) => rpc.recovery = Recovery::Hard,
        NfsOption::Hard(false) => rpc.recovery = Recovery::Soft,
        NfsOption::Interruptible(true) => rpc.interrupts = Interrupts::Always,
        NfsOption::Interruptible(false) => rpc.interrupts = Interrupts::Never,
        NfsOption::Connections(count) => rpc.connections = count,
        NfsOption::ConnectionsMin(count) => rpc.connections = rpc.connections.max(count),
        NfsOption::ReservedPort(reserved) => rpc.reserved_port = Some(reserved),
        NfsOption::InFlight(limit) => rpc.in_flight = limit,
        NfsOption::Transport(_)
        | NfsOption::Port(_)
        | NfsOption::MountPort(_)
        | NfsOption::KeepAttributes(_)
        | NfsOption::AttributeTime(..)
        | NfsOption::Background(_)
        | NfsOption::Retry(_)
        | NfsOption::Security(_)
        | NfsOption::TlsDir(_)
        | NfsOption::SshCommand(_)
        | NfsOption::RemoteProgram(_)
        | NfsOption::SoAnyway => {}
    }
}

/// Returns the attribute cache times; of a contradictory pair the shorter applies.
fn attributes(asked: &NfsOptions) -> AttributeTimes {
    let mut times = AttributeTimes::default();
    for option in asked.iter() {
        match option {
            NfsOption::KeepAttributes(false) => times = AttributeTimes::NONE,
            NfsOption::KeepAttributes(true) => times = AttributeTimes::default(),
            NfsOption::AttributeTime(AttributeTime::All, time) => times = AttributeTimes::all(time),
            NfsOption::AttributeTime(which, time) => *time_of(&mut times, which) = time,
            _ => {}
        }
    }
    times.file_min = times.file_min.min(times.file_max);
    times.dir_min = times.dir_min.min(times.dir_max);
    times
}

fn time_of(times: &mut AttributeTimes, which: AttributeTime) -> &mut Duration {
    match which {
        AttributeTime::All | AttributeTime::FileMin => &mut times.file_min,
        AttributeTime::FileMax => &mut times.file_max,
        AttributeTime::DirMin => &mut times.dir_min,
        AttributeTime::DirMax => &mut times.dir_max,
    }
}

/// Tries the addresses of the host and the ports, until a server responds. If none does, the first failure is
/// returned.
fn at_any_address<T>(
    url: &NfsUrl,
    settings: &Settings,
    mut attempt: impl FnMut(&Server) -> Result<T, MountError>,
) -> Result<T, NotMounted> {
    let unknown = |reason: Reason| NotMounted {
        server: Reachability::Unresolved,
        ..NotMounted::new(format!("{}: {}", url.host, String::from(reason)))
    };
    let addresses = url.host.addresses().map_err(|error| unknown((&error).into()))?;
    let mut failed = None;
    for address in addresses {
        let mut is_unregistered = false;
        for ports in &settings.ports {
            match attempt(&settings.server(url, address, *ports)) {
                Ok(result) => return Ok(result),
                Err(error @ MountError::NotRegistered { .. }) => {
                    is_unregistered = true;
                    failed = failed.or(Some(NotMounted::from(&error)));
                }
                Err(error) if is_unreachable(&error) => {
                    failed = failed.or(Some(NotMounted::from(&error)));
                    use MountError::{Root, Unreachable};
                    if matches!(error, Root { .. } | Unreachable { source: CallError::TimedOut { .. }, .. }) {
                        // A host that is silent or busy on one port is so on the next.
                        break;
                    }
                }
                // The kernel's server responds at the default port before MOUNT is registered at another one.
                Err(MountError::Unreachable { source: CallError::NotServed { .. }, .. })
                    if is_unregistered => {}
                Err(error) => return Err(NotMounted::from(&error)),
            }
        }
    }
    Err(failed.unwrap_or_else(|| unknown("the host has no address".into())))
}

/// Returns the server's exports; empty if it responds without listing them.
fn list(server: &Server, settings: &Settings) -> Result<Vec<Vec<u8>>, MountError> {
    match NfsExport::exports_of(server, settings.client.rpc.reserved_port) {
        Err(error) if is_unreachable(&error) => Err(error),
        Err(error) => {
            tracing::debug!(%server, %error, "cannot list exports");
            Ok(Vec::new())
        }
        listed => listed,
    }
}

/// Returns the lengths of path prefixes to try, in order.
fn tries(exports: &[Vec<u8>], path: &str, end: End) -> Vec<usize> {
    let begins = |export: &&Vec<u8>| {
        let export = export.strip_suffix(b"/").unwrap_or(export);
        path.as_bytes().strip_prefix(export).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    let lengths =
        exports.iter().filter(begins).map(|export| export.strip_suffix(b"/").unwrap_or(export).len());
    let listed = lengths.max();
    let above = path.match_indices('/').map(|(at, _)| at).collect::<Vec<_>>().into_iter().rev();
    let mut tries: Vec<usize> = listed.into_iter().collect();
    let whole = std::iter::once(path.len());
    let guesses: Vec<usize> = match end {
        End::Target => whole.chain(above).collect(),
        End::Name => above.chain(whole).collect(),
    };
    tries.extend(guesses.into_iter().filter(|length| Some(*length) != listed));
    tries
}

/// Returns the first successful mount. If all are refused, the first refusal is returned; another failure
/// ends the attempts.
fn first<T>(
    tries: Vec<usize>,
    mut attempt: impl FnMut(usize) -> Result<T, MountError>,
) -> Result<T, MountError> {
    let mut tries = tries.into_iter();
    let mut outcome = attempt(tries.next().unwrap_or_default());
    for length in tries {
        let Err(first @ MountError::Refused { .. }) = outcome else { break };
        outcome = match attempt(length) {
            Err(MountError::Refused { .. }) => Err(first),
            other => other,
        };
    }
    outcome
}

fn at_least_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use tombolo_host_rpc::client::InFlight;

    use super::*;

    fn asked(path: &str, exports: &[&str], end: End) -> Vec<String> {
        let exports: Vec<_> = exports.iter().map(|export| export.as_bytes().to_vec()).collect();
        tries(&exports, path, end)
            .into_iter()
            .map(|length| at_least_root(&path[..length]).to_owned())
            .collect()
    }

    #[test]
    fn longest_matching_export_is_tried_first() {
        let exports = ["/srv", "/srv/a", "/srv/ab", "/"];
        assert_eq!(asked("/srv/a/x", &exports, End::Target)[0], "/srv/a");
        assert_eq!(asked("/srv/abc", &exports, End::Target)[0], "/srv");
        assert_eq!(asked("/srv/ab", &exports, End::Name)[0], "/srv/ab");
        assert_eq!(asked("/other", &exports, End::Target)[0], "/");
    }

    #[test]
    fn unlisted_path_is_tried_from_its_end() {
        assert_eq!(asked("/srv/a", &[], End::Target), ["/srv/a", "/srv", "/"]);
        assert_eq!(asked("/srv/a", &["/other"], End::Name), ["/srv", "/", "/srv/a"]);
        assert_eq!(asked("/srv/a", &["/srv"], End::Target), ["/srv", "/srv/a", "/"]);
    }

    #[test]
    fn busy_server_counts_as_unreachable() {
        let busy = MountError::Root { server: "h".into(), path: "/a".into(), source: Error::TimedOut };
        assert!(matches!(NotMounted::from(&busy).server, Reachability::Unreachable));
    }

    fn settings(url: &str) -> Settings {
        Settings::of(&url.parse().expect(url), &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{}", error.reason))
    }

    #[test]
    fn ports_are_where_they_are_said_to_be() {
        let ports = |url| settings(url).ports;
        assert_eq!(ports("nfs://h:11/a"), [Ports::One(11)]);
        assert_eq!(ports("nfs://h:11/a?mountport=12"), [Ports::Two { nfs: 11, mount: 12 }]);
        assert_eq!(ports("nfs://h/a?mountport=12"), [Ports::Two { nfs: 2049, mount: 12 }]);
        assert_eq!(ports("nfs://h/a")[0], Ports::Portmapper { nfs: None });
    }

    fn opened_without_registration(
        at_default_port: impl Fn(&Server) -> Result<(), MountError>,
    ) -> Result<(), NotMounted> {
        let url = "nfs://127.0.0.1/a".parse().expect("good");
        at_any_address(&url, &settings("nfs://127.0.0.1/a"), |server| match server.ports {
            Ports::One(NFS_PORT) => at_default_port(server),
            _ => Err(MountError::NotRegistered {
                server: server.to_string(),
                what: "MOUNT",
                transport: server.transport,
            }),
        })
    }

    #[test]
    fn default_port_is_tried_if_portmapper_knows_no_server() {
        assert_eq!(opened_without_registration(|_| Ok(())), Ok(()));
        let refused = opened_without_registration(|_| Err(MountError::PathTooLong { server: "h".into() }));
        assert_eq!(refused.expect_err("refused").server, Reachability::Permanent);
    }

    #[test]
    fn default_port_without_mount_counts_as_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let port = listener.local_addr().expect("address").port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut call = [0; 8];
            stream.read_exact(&mut call).expect("record mark and transaction");
            // REPLY, MSG_ACCEPTED, an empty verifier, PROG_UNAVAIL (RFC 5531 §9).
            let reply = [1_u32, 0, 0, 0, 1].map(u32::to_be_bytes);
            let record = [&[0x80, 0, 0, 24], &call[4..], reply.as_flattened()].concat();
            stream.write_all(&record).expect("reply");
            stream.read_to_end(&mut Vec::new()).expect("end of the client");
        });
        let opened = opened_without_registration(|default| {
            let server = Server { ports: Ports::One(port), ..default.clone() };
            NfsExport::exports_of(&server, Some(false)).map(drop)
        });
        let failed = opened.expect_err("no MOUNT");
        assert_eq!(failed.server, Reachability::Unreachable);
        assert!(failed.reason.contains("the portmapper has no MOUNT"), "{}", failed.reason);
    }

    #[test]
    fn options_reach_the_client() {
        let client = settings("nfs://h/a?soft&timeo=50&rsize=64k&nconnect=4&inflight=7&acregmin=90").client;
        assert_eq!(client.rpc.recovery, Recovery::Soft);
        assert_eq!(client.rpc.timeout, Duration::from_secs(5));
        assert_eq!((client.read_size_max, client.rpc.connections), (64 << 10, 4));
        assert_eq!(client.rpc.in_flight, InFlight::Fixed(7));
        assert_eq!(client.attributes.file_min, client.attributes.file_max);
        assert_eq!(settings("nfs://h/a?actimeo=5&noac").client.attributes, AttributeTimes::NONE);
        assert_eq!(
            settings("nfs://h/a?noac&actimeo=5").client.attributes,
            AttributeTimes::all(Duration::from_secs(5))
        );
        assert_eq!(settings("nfs://h/a?udp").client.rpc.timeout, RpcOptions::of(Transport::Udp).timeout);
    }

    #[test]
    fn unknown_host_and_closed_port_fail_at_once() {
        let failed = |url: &str| {
            open(&url.parse().expect(url), &OpenOptions::default()).err().expect("no server there")
        };
        for url in ["nfs://no-such-host.invalid/a", "nfs://127.0.0.1:1/a"] {
            let text = failed(url).reason;
            assert!(
                text.contains(if url.contains("invalid") { "no-such-host" } else { "refused" }),
                "{text}"
            );
        }
    }
}
