//! What may be said about serving NFS, on the command line and in the configuration.

use clap::Args;
use tombolo_front_nfs_server::{AllowList, Durability, ExportId, NO_ID, Squash};

use crate::assembly::options::export::ExportName;
use crate::assembly::options::nfs::{AllowArg, NfsArg, SquashArg};
use crate::assembly::plan::{PlannedExport, position};
use crate::failure::Failure;

/// The options about NFS.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "NFS")]
pub struct NfsOptions {
    /// Serve NFS version 3 (and MOUNT, at the same port) over TCP and UDP; repeatable.
    ///
    /// PORT alone is for this host and for guests on QEMU's user network; :PORT for all IPv4 interfaces, as elsewhere ([::]:PORT for
    /// those of IPv6 too); IP:PORT or NAME:PORT for the addresses of one. The line that begins with `ready` says which it is. NFS
    /// believes whoever calls: name those who may with --allow. All directories are offered, or those named.
    #[arg(long, value_name = "ADDR[,export=/NAME]...")]
    pub nfs: Vec<NfsArg>,
    /// Which users of clients are taken for the anonymous one (by default root).
    #[arg(long, value_name = "WHOM")]
    pub squash: Option<SquashArg>,
    /// The anonymous user (by default 65534).
    #[arg(long, value_name = "UID")]
    pub anonuid: Option<u32>,
    /// The anonymous group (by default 65534).
    #[arg(long, value_name = "GID")]
    pub anongid: Option<u32>,
    /// Serve clients with these addresses only; repeatable (by default all).
    #[arg(long, value_name = "CIDR")]
    pub allow: Vec<AllowArg>,
    /// Look up here which groups a user is in, instead of believing the client, which can name sixteen at most.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub manage_gids: Option<bool>,
    /// Answer changes of names and attributes before they are on stable storage. Faster on disks; a loss of power, but no end
    /// of the server, may then take back what was answered. Data that is to be stable is, either way.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub async_names: Option<bool>,
    /// How many threads wait for calls (by default half as many as there are cores, and four at most).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub nfs_threads: Option<u16>,
    /// Take calls over TCP only.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "true|false")]
    pub nfs_no_udp: Option<bool>,
}

/// How NFS is served.
#[derive(Debug, Default)]
pub struct NfsPlan {
    /// Where, and what.
    pub places: Vec<PlannedPlace>,
    /// Whom callers are taken for.
    pub squash: Squash,
    /// Who may call.
    pub allow: AllowList,
    /// Whether groups are looked up here.
    pub manage_gids: bool,
    /// What is stable when it is answered.
    pub durability: Durability,
    /// How many threads wait for calls, if somebody said so.
    pub threads: Option<usize>,
    /// Whether calls are taken over UDP too.
    pub udp: bool,
}

/// A port.
#[derive(Debug)]
pub struct PlannedPlace {
    /// Where to listen.
    pub address: std::net::SocketAddr,
    /// Where in the plan's exports those are that are offered.
    pub exports: Vec<usize>,
}

impl NfsOptions {
    /// These options, and the others' where these say nothing.
    pub fn over(self, other: Self) -> Self {
        let list = |own: Vec<_>, others| if own.is_empty() { others } else { own };
        Self {
            nfs: if self.nfs.is_empty() { other.nfs } else { self.nfs },
            squash: self.squash.or(other.squash),
            anonuid: self.anonuid.or(other.anonuid),
            anongid: self.anongid.or(other.anongid),
            allow: list(self.allow, other.allow),
            manage_gids: self.manage_gids.or(other.manage_gids),
            async_names: self.async_names.or(other.async_names),
            nfs_threads: self.nfs_threads.or(other.nfs_threads),
            nfs_no_udp: self.nfs_no_udp.or(other.nfs_no_udp),
        }
    }

    /// Checks the whole. Over memory in common (`over_shm`) NFS may be asked for without a port of its own.
    pub fn plan(self, exports: &[PlannedExport], over_shm: bool) -> Result<NfsPlan, Failure> {
        if self.nfs.is_empty()
            && let Some(option) = self.said(over_shm)
        {
            let problem = format!("{option} is about NFS, which is not served");
            return Err(Failure::usage(problem).remedy("add --nfs PORT"));
        }
        let default = Squash::default();
        let squash = Squash {
            whom: self.squash.unwrap_or_default().into(),
            anonymous_uid: self.anonuid.unwrap_or(default.anonymous_uid),
            anonymous_gid: self.anongid.unwrap_or(default.anonymous_gid),
        };
        if squash.anonymous_uid == NO_ID || squash.anonymous_gid == NO_ID {
            return Err(Failure::usage(format!("{NO_ID} is no user and no group")).remedy("name another one"));
        }
        let mut places: Vec<PlannedPlace> = Vec::with_capacity(self.nfs.len());
        for NfsArg { address, exports: names } in self.nfs {
            let serving = format!("serve NFS at {address}");
            let offered = offered(names, exports, &serving)?;
            for address in address.resolve()? {
                if address.port() != 0 && places.iter().any(|other| other.address == address) {
                    return Err(Failure::usage(format!("cannot {serving}: the address is given twice")));
                }
                places.push(PlannedPlace { address, exports: offered.clone() });
            }
        }
        Ok(NfsPlan {
            places,
            squash,
            allow: AllowList::new(self.allow.into_iter().map(|AllowArg(network)| network).collect()),
            manage_gids: self.manage_gids.unwrap_or(false),
            durability: match self.async_names {
                Some(true) => Durability::Relaxed,
                Some(false) | None => Durability::Stable,
            },
            threads: self.nfs_threads.map(usize::from),
            udp: !self.nfs_no_udp.unwrap_or(false),
        })
    }

    /// An option other than `--nfs` that was given, and means nothing without that.
    fn said(&self, over_shm: bool) -> Option<&'static str> {
        let said = [
            (self.squash.is_some() && !over_shm, "--squash"),
            (self.anonuid.is_some() && !over_shm, "--anonuid"),
            (self.anongid.is_some() && !over_shm, "--anongid"),
            (!self.allow.is_empty(), "--allow"),
            (self.manage_gids.is_some() && !over_shm, "--manage-gids"),
            (self.async_names.is_some() && !over_shm, "--async-names"),
            (self.nfs_threads.is_some(), "--nfs-threads"),
            (self.nfs_no_udp.is_some(), "--nfs-no-udp"),
        ];
        said.into_iter().find_map(|(said, option)| said.then_some(option))
    }
}

/// Where in the plan's exports those are that are named; all if none is.
fn offered(names: Vec<ExportName>, exports: &[PlannedExport], serving: &str) -> Result<Vec<usize>, Failure> {
    let offered: Vec<usize> = if names.is_empty() {
        (0..exports.len()).collect()
    } else {
        let find = |name: ExportName| position(Some(name), exports, serving);
        names.into_iter().map(find).collect::<Result<_, _>>()?
    };
    let names: Vec<String> = offered.iter().map(|&index| exports[index].name.to_string()).collect();
    if names.iter().enumerate().any(|(index, name)| names[..index].contains(name)) {
        return Err(Failure::usage(format!("cannot {serving}: an export is named twice")));
    }
    ExportId::check(names.iter().map(String::as_str))
        .map_err(|alike| Failure::usage(format!("cannot {serving}: {alike}")))?;
    Ok(offered)
}
