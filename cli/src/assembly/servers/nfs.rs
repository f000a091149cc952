//! NFS front end of a server.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tombolo_front_nfs_server::{AllowList, NfsServer, NfsService};
use tombolo_host_rpc::server::{Admit, BindError, Bound, Listeners, Options as TransportOptions, StartError};
use tombolo_host_runtime::descriptors::{DescriptorBudget, Share};
use tombolo_host_tls::ServerTls;

use crate::assembly::plan::Plan;
use crate::assembly::plan::nfs::{NfsPlan, PlannedPort};
use crate::assembly::servers::state::DurableState;
use crate::certificates;
use crate::failure::{Failure, OrCannot};
use crate::service::NfsCounts;

/// Sockets for NFS clients, bound early to detect a busy port. Connections are refused until they are served.
pub struct BoundPorts(Vec<Bound>);

/// Minimum number of connections for serving NFS: one client address may use half of them.
const CONNECTIONS_MIN: usize = 32;

const RAISE_LIMIT: &str =
    "raise the limit on open files: ulimit -Hn 524288, or LimitNOFILE=524288 in the unit";

pub struct NfsServers {
    ports: Vec<Port>,
    stdio: Option<Served>,
}

/// Name of the endpoint of `--stdio` in messages, status and counters; other endpoints have an address.
pub const STDIO: &str = "stdio";

/// A server with its share of descriptors.
struct Served {
    server: Arc<NfsServer>,
    _descriptors: Share,
}

pub struct Port {
    pub address: SocketAddr,
    /// `true` if calls without TLS are refused, except from the addresses of `--allow-plain`.
    pub over_tls: bool,
    /// Indices of the offered exports in the plan.
    pub exports: Vec<usize>,
    served: Served,
}

impl Port {
    /// Returns the kind of the endpoint in the status and in `ready` lines.
    pub fn kind(&self) -> &'static str {
        if self.over_tls { "nfs-tls" } else { "nfs" }
    }
}

impl BoundPorts {
    pub fn take(plan: &NfsPlan) -> Result<Self, Failure> {
        let take = |port: &PlannedPort| {
            let tcp = vec![port.address];
            let udp = if plan.udp && !port.over_tls { tcp.clone() } else { Vec::new() };
            Listeners { tcp, udp }.bind().map_err(|error| not_served(port.address, &error))
        };
        plan.ports.iter().map(take).collect::<Result<_, _>>().map(Self)
    }
}

impl NfsServers {
    pub fn start(plan: &Plan, bound_ports: BoundPorts, state: &DurableState) -> Result<Self, Failure> {
        let tls = tls(&plan.front_ends.nfs)?;
        let mut ports = Vec::with_capacity(plan.front_ends.nfs.ports.len());
        for (port, bound) in plan.front_ends.nfs.ports.iter().zip(bound_ports.0) {
            let address = bound.tcp_addresses().next().unwrap_or(port.address);
            let service = state.service(&port.exports)?;
            let mut options = transport(plan);
            options.tls = tls.clone().filter(|_| port.over_tls);
            options.admit_plain = plan.front_ends.nfs.plain.clone().map(admit);
            let served = Served::start(&address, bound, options, &service)?;
            if plan.front_ends.nfs.allow.is_open() && !address.ip().is_loopback() && !port.over_tls {
                tracing::warn!(%address, "serving all clients that reach this address; restrict them with --allow CIDR");
            }
            let (over_tls, exports) = (port.over_tls, port.exports.clone());
            ports.push(Port { address, over_tls, exports, served });
        }
        let stdio = plan.front_ends.nfs.over_stdio.then(|| {
            let all: Vec<_> = (0..plan.exports.len()).collect();
            Served::start(&STDIO, Bound::default(), transport(plan), &state.service(&all)?)
        });
        Ok(Self { ports, stdio: stdio.transpose()? })
    }

    /// Returns the server of `--stdio`, which accepts no connections itself; `None` without that option.
    pub fn stdio(&self) -> Option<Arc<NfsServer>> {
        self.stdio.as_ref().map(|served| Arc::clone(&served.server))
    }

    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns access to the counters, which does not keep the servers alive.
    pub fn counts(&self) -> Vec<NfsCounts> {
        let of = |(at, served): (String, &Served)| {
            let server = Arc::downgrade(&served.server);
            let counts = move || server.upgrade().map(|server| server.counts());
            (at, Box::new(counts) as _)
        };
        let ports = self.ports.iter().map(|port| (port.address.to_string(), &port.served));
        ports.chain(self.stdio.iter().map(|stdio| (STDIO.into(), stdio))).map(of).collect()
    }
}

impl Served {
    /// Starts a server. `at` is its address in messages.
    fn start(
        at: &dyn Display,
        bound: Bound,
        mut options: TransportOptions,
        service: &Arc<NfsService>,
    ) -> Result<Self, Failure> {
        let serving = format!("serve NFS at {at}");
        let descriptors = for_connections(options.connections_max).ok_or_else(|| {
            let why = format!("fewer than {CONNECTIONS_MIN} descriptors are available for connections");
            Failure::cannot(&serving, why).remedy(RAISE_LIMIT)
        })?;
        options.connections_max = descriptors.guaranteed();
        let server = NfsServer::start(bound, options, service).map_err(|error| match error {
            StartError::Bind(error) => not_served(error.address, &error),
            error @ StartError::Thread(_) => Failure::cannot(&serving, &error),
        })?;
        Ok(Self { server: Arc::new(server), _descriptors: descriptors })
    }
}

/// Loads the certificates of the TLS ports, if there are any.
fn tls(plan: &NfsPlan) -> Result<Option<Arc<ServerTls>>, Failure> {
    let open = |dir: &PathBuf| ServerTls::open(dir).map(Arc::new);
    let opened = plan.tls_dir.as_ref().map(open).transpose().or_cannot("serve NFS over TLS");
    opened.map_err(|failure| failure.remedy(certificates::GIVE_TLS_DIR))
}

/// Reserves descriptors: a share of the free ones, or [`CONNECTIONS_MIN`] if few are free. Returns `None` if
/// not even these are.
fn for_connections(wanted: usize) -> Option<Share> {
    let account = DescriptorBudget::of_process();
    let share = account.cache(wanted);
    if share.guaranteed() >= CONNECTIONS_MIN {
        return Some(share);
    }
    drop(share);
    account.share(CONNECTIONS_MIN)
}

fn not_served(address: SocketAddr, error: &BindError) -> Failure {
    let transport = error.transport.name();
    let failure = Failure::cannot(format_args!("serve NFS at {address} over {transport}"), &error.source);
    let is_taken = error.source.kind() == std::io::ErrorKind::AddrInUse;
    failure.remedy_if(is_taken, "choose another port, or 0 for a free one")
}

fn admit(list: AllowList) -> Admit {
    Arc::new(move |address| list.admits(address))
}

fn transport(plan: &Plan) -> TransportOptions {
    let default = TransportOptions::default();
    TransportOptions { threads: plan.front_ends.nfs.threads.unwrap_or(default.threads), ..default }
}
