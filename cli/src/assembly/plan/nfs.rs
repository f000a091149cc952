//! NFS front end: addresses, exports, and permitted clients.

use std::mem;
use std::net::SocketAddr;
use std::path::PathBuf;

use tombolo_front_nfs_server::{AllowList, Claims, Durability, ExportId, LeaseHolders, NO_ID, Squash};

use super::PlannedExport;
use crate::assembly::options::ServerOptions;
use crate::assembly::options::export::ExportName;
use crate::assembly::options::nfs::{LeasesArg, NfsArg};
use crate::assembly::options::tls_users;
use crate::certificates::tls_dir;
use crate::failure::Failure;

#[derive(Clone, Debug, Default)]
pub struct NfsPlan {
    pub ports: Vec<PlannedPort>,
    /// `true` for `--stdio`: all exports are offered over standard input and output.
    pub over_stdio: bool,
    /// Addresses whose calls without TLS are accepted at TLS ports, if any.
    pub plain: Option<AllowList>,
    /// Directory of the certificates of TLS ports.
    pub tls_dir: Option<PathBuf>,
    /// Users that clients with certificates may act as.
    pub claims: Option<Claims>,
    /// Users of clients that become the anonymous user.
    pub squash: Squash,
    pub allow: AllowList,
    /// Clients that may hold leases.
    pub lease_holders: LeaseHolders,
    /// `true` if groups are looked up on this host.
    pub manage_gids: bool,
    pub durability: Durability,
    pub threads: Option<usize>,
    pub udp: bool,
}

#[derive(Clone, Debug)]
pub struct PlannedPort {
    pub address: SocketAddr,
    /// `true` if calls without TLS are refused, except from the addresses of `--allow-plain`.
    pub over_tls: bool,
    /// Indices of the offered exports in the server's plan.
    pub exports: Vec<usize>,
}

impl NfsPlan {
    pub fn is_any(&self) -> bool {
        self.over_stdio || !self.ports.is_empty()
    }

    pub fn offers(&self, export: usize) -> bool {
        self.over_stdio || self.ports.iter().any(|port| port.exports.contains(&export))
    }

    /// Validates the NFS options. Shared-memory links (`over_shm`) carry NFS too, without a port.
    pub fn new(
        options: &mut ServerOptions,
        exports: &[PlannedExport],
        over_shm: bool,
    ) -> Result<Self, Failure> {
        if options.nfs.is_empty()
            && options.nfs_tls.is_empty()
            && let Some(option) = given(options, over_shm || options.stdio)
        {
            let problem = format!("{option} requires --nfs");
            return Err(Failure::usage(problem).remedy("add --nfs PORT"));
        }
        let default = Squash::default();
        let squash = Squash {
            mode: options.squash.unwrap_or_default().into(),
            anonymous_uid: options.anonuid.unwrap_or(default.anonymous_uid),
            anonymous_gid: options.anongid.unwrap_or(default.anonymous_gid),
        };
        if squash.anonymous_uid == NO_ID || squash.anonymous_gid == NO_ID {
            return Err(
                Failure::usage(format!("{NO_ID} is not a valid user or group")).remedy("choose another id")
            );
        }
        let mut ports: Vec<PlannedPort> = Vec::with_capacity(options.nfs.len());
        let plain = mem::take(&mut options.nfs).into_iter().map(|arg| (arg, false));
        let secure = mem::take(&mut options.nfs_tls).into_iter().map(|arg| (arg, true));
        for (NfsArg { address, exports: names }, over_tls) in plain.chain(secure) {
            let serving = format!("serve NFS at {address}");
            let offered = offered(names, exports, &serving)?;
            for address in address.resolve()? {
                if address.port() != 0 && ports.iter().any(|other| other.address == address) {
                    return Err(Failure::usage(format!("cannot {serving}: the address is given twice")));
                }
                ports.push(PlannedPort { address, over_tls, exports: offered.clone() });
            }
        }
        Ok(Self {
            claims: claims_of(options, &ports)?,
            plain: plain_of(options, &ports)?,
            tls_dir: tls_dir_of(options, &ports)?,
            ports,
            over_stdio: options.stdio,
            squash,
            allow: AllowList::new(mem::take(&mut options.allow)),
            lease_holders: lease_holders(&options.leases)?,
            manage_gids: options.manage_gids.unwrap_or(false),
            durability: match options.async_names {
                Some(true) => Durability::Relaxed,
                Some(false) | None => Durability::Stable,
            },
            threads: options.nfs_threads.map(usize::from),
            udp: !options.nfs_no_udp.unwrap_or(false),
        })
    }
}

fn tls_dir_of(options: &mut ServerOptions, ports: &[PlannedPort]) -> Result<Option<PathBuf>, Failure> {
    let asked = options.tls_dir.take();
    match (ports.iter().any(|port| port.over_tls), asked) {
        (false, None) => Ok(None),
        (false, Some(_)) => Err(Failure::usage("--tls-dir requires --nfs-tls").remedy("add --nfs-tls ADDR")),
        (true, Some(dir)) => Ok(Some(dir)),
        (true, None) => tls_dir().map(Some).map_err(|why| {
            Failure::cannot("serve NFS over TLS", why).remedy("give the directory with --tls-dir")
        }),
    }
}

fn plain_of(options: &mut ServerOptions, ports: &[PlannedPort]) -> Result<Option<AllowList>, Failure> {
    if options.allow_plain.is_empty() {
        return Ok(None);
    }
    if !ports.iter().any(|port| port.over_tls) {
        let problem = "--allow-plain requires --nfs-tls";
        return Err(Failure::usage(problem).remedy("for --nfs, which has no TLS, use --allow"));
    }
    Ok(Some(AllowList::new(mem::take(&mut options.allow_plain))))
}

fn lease_holders(args: &[LeasesArg]) -> Result<LeaseHolders, Failure> {
    if args.is_empty() {
        return Ok(LeaseHolders::default());
    }
    if args.contains(&LeasesArg::Off) && args.iter().any(|arg| *arg != LeasesArg::Off) {
        let problem = "--leases off contradicts another --leases";
        return Err(Failure::usage(problem).remedy("omit one of them"));
    }
    let mut holders = LeaseHolders::NONE;
    for arg in args {
        match arg {
            LeasesArg::Network(network) => holders.networks.push(*network),
            LeasesArg::Tls => holders.certificates = true,
            LeasesArg::Off => {}
        }
    }
    Ok(holders)
}

fn claims_of(options: &mut ServerOptions, ports: &[PlannedPort]) -> Result<Option<Claims>, Failure> {
    let Some(path) = options.tls_users.take() else { return Ok(None) };
    if ports.is_empty() || ports.iter().any(|port| !port.over_tls) {
        let problem = "--tls-users requires --nfs-tls and excludes --nfs, whose clients have no certificates";
        return Err(Failure::usage(problem).remedy("use another server for NFS without TLS"));
    }
    tls_users::read(&path).map(Some)
}

/// Returns the first option that was given and has no effect without `--nfs`, if any. Some options also apply
/// to links and streams, which have no port (`without_port`).
fn given(options: &ServerOptions, without_port: bool) -> Option<&'static str> {
    let given = [
        (options.squash.is_some() && !without_port, "--squash"),
        (options.anonuid.is_some() && !without_port, "--anonuid"),
        (options.anongid.is_some() && !without_port, "--anongid"),
        (!options.allow.is_empty(), "--allow"),
        (!options.leases.is_empty() && !without_port, "--leases"),
        (options.manage_gids.is_some() && !without_port, "--manage-gids"),
        (options.async_names.is_some() && !without_port, "--async-names"),
        (options.nfs_threads.is_some(), "--nfs-threads"),
        (options.nfs_no_udp.is_some(), "--nfs-no-udp"),
    ];
    given.into_iter().find_map(|(given, option)| given.then_some(option))
}

/// Returns the indices of the named exports; of all if none is named. Fails if a name is unknown, or if two
/// of the exports have the same name or id.
fn offered(names: Vec<ExportName>, exports: &[PlannedExport], serving: &str) -> Result<Vec<usize>, Failure> {
    let offered = super::offered(names, exports, serving)?;
    let names: Vec<String> = offered.iter().map(|&index| exports[index].name.to_string()).collect();
    if names.iter().enumerate().any(|(index, name)| names[..index].contains(name)) {
        return Err(Failure::usage(format!("cannot {serving}: an export is listed twice")));
    }
    ExportId::check(names.iter().map(String::as_str))
        .map_err(|alike| Failure::usage(format!("cannot {serving}: {alike}")))?;
    Ok(offered)
}
