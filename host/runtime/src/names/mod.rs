//! Look-ups of groups, users and hosts, as configured by nsswitch.conf(5).
//!
//! The C library's functions for such look-ups load modules into the process. In a statically linked program
//! they may crash; while a module waits for a directory service, its caller is blocked. This module therefore
//! reads `/etc/passwd` and `/etc/group` itself, and queries all other services of nsswitch.conf through
//! getent(1): a process for each look-up, few at a time, killed at its time-out. Hosts are always looked up
//! by getent(1); `/etc/hosts` is read only where that program is missing. A process in a sandbox starts none,
//! and delegates its look-ups of users' groups and of hosts to another one ([`delegate`]).

mod databases;
mod getent;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use databases::{Databases, Services, User};
use getent::Getent;
use thiserror::Error as ThisError;

use crate::lock;

/// Time-out for the look-up of a user or group, over all services.
const USER_TIME_MAX: Duration = Duration::from_secs(10);
/// Time after a look-up that timed out during which no service is queried for users and groups, so that
/// queued look-ups do not time out one after another.
const SILENCE: Duration = Duration::from_secs(10);
/// Time-out for the look-up of a host. Resolvers query a silent name server twice, 5 s each, and then the
/// next one (resolv.conf(5)).
const HOST_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum length of a host name (RFC 1035 §2.3.4), in bytes.
const HOST_BYTES_MAX: usize = 253;
/// Maximum number of a user's groups.
const GROUPS_MAX: usize = 4096;

/// Reason for the failure of a look-up.
#[derive(Debug, ThisError)]
pub enum LookUpError {
    /// A local file is not readable.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The look-up program is missing.
    #[error("getent, needed to look up names, is missing (Debian: libc-bin)")]
    NoGetent,
    /// The look-up program cannot be started.
    #[error("cannot start getent")]
    Start(#[source] io::Error),
    /// The output or the end of the look-up program cannot be awaited.
    #[error("cannot read the output of getent")]
    Read(#[source] io::Error),
    /// A service does not answer within this time.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// Other look-ups used most of the time, so this look-up was not made, or not given enough time.
    #[error("timed out after {0:?} behind other look-ups: try again")]
    Busy(Duration),
    /// A service recently did not answer, and was not queried.
    #[error("a recent look-up was not answered")]
    Silent,
    /// A look-up in this database failed, with this status of getent(1).
    #[error("getent {0} failed: {1}")]
    Failed(&'static str, ExitStatus),
    /// The answer from this database is malformed or too long.
    #[error("malformed output of getent {0}")]
    Answer(&'static str),
    /// The user is in more groups than supported.
    #[error("the user is in more than {GROUPS_MAX} groups")]
    Groups,
    /// The host does not exist.
    #[error("Name or service not known")]
    NoHost,
    /// The process that performs look-ups for this one failed.
    #[error("{0}")]
    Delegate(String),
}

impl From<LookUpError> for io::Error {
    fn from(error: LookUpError) -> Self {
        let kind = match &error {
            LookUpError::NoHost | LookUpError::NoGetent => io::ErrorKind::NotFound,
            LookUpError::TimedOut(_) | LookUpError::Busy(_) => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// The groups of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserGroups {
    /// Group ids in ascending order, including the primary group.
    pub groups: Vec<u32>,
    /// Reason why groups may be missing: a service other than `/etc/group` failed.
    pub lacking: Option<String>,
}

/// A provider of look-ups for this process.
pub trait LookUp: Send + Sync {
    /// Looks up groups as [`groups_of`] does.
    fn groups_of(&self, uid: u32) -> Result<Option<UserGroups>, LookUpError>;
    /// Looks up addresses as [`addresses_of`] does.
    fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, LookUpError>;
}

/// Delegate of the process's look-ups of users' groups and of hosts. It is process-wide, as a sandbox is:
/// in a sandbox a direct look-up would fail.
static DELEGATE: OnceLock<Arc<dyn LookUp>> = OnceLock::new();

/// Delegates all later look-ups of this process by [`groups_of`] and [`addresses_of`], but not by
/// [`group_id`]. Only the first call has an effect.
pub fn delegate(look_up: Arc<dyn LookUp>) {
    let _ = DELEGATE.set(look_up);
}

/// Returns the id of a group, or `None` for an unknown group. Blocks for directory services, with a
/// time-out.
pub fn group_id(name: &str) -> Result<Option<u32>, LookUpError> {
    Names::of_system().group_id(name)
}

/// Returns the groups of a user, or `None` for an unknown user. Blocks for directory services, with a
/// time-out.
pub fn groups_of(uid: u32) -> Result<Option<UserGroups>, LookUpError> {
    DELEGATE.get().map_or_else(|| Names::of_system().groups_of(uid), |delegate| delegate.groups_of(uid))
}

/// Returns the addresses of a host, at least one, in the system's order of preference. A host given by its
/// address is not looked up. Blocks for name servers, with a time-out.
pub fn addresses_of(host: &str) -> Result<Vec<IpAddr>, LookUpError> {
    match (host.parse(), DELEGATE.get()) {
        (Ok(address), _) => Ok(vec![address]),
        (Err(_), Some(delegate)) => delegate.addresses_of(host),
        (Err(_), None) => Names::of_system().addresses_of(host),
    }
}

/// The databases of a machine.
struct Names {
    databases: Databases,
    getent: Getent,
    /// End of the time in which services are not queried for users and groups, because one did not answer.
    silent_until: Mutex<Option<Instant>>,
}

impl Names {
    fn of_system() -> &'static Self {
        static SYSTEM: OnceLock<Names> = OnceLock::new();
        SYSTEM.get_or_init(|| Self::new("/etc".into(), Getent::of_system()))
    }

    fn new(etc: PathBuf, getent: Getent) -> Self {
        Self { databases: Databases::new(etc), getent, silent_until: Mutex::new(None) }
    }

    fn group_id(&self, name: &str) -> Result<Option<u32>, LookUpError> {
        let services = self.databases.services(&["group"])?;
        if services.files
            && let Some(id) = self.databases.group_id(name)?
        {
            return Ok(Some(id));
        }
        if !services.others {
            return Ok(None);
        }
        let line = self.ask("group", name, self.deadline(USER_TIME_MAX))?;
        line.map(|line| databases::id_of_group(line.as_bytes()).ok_or(LookUpError::Answer("group")))
            .transpose()
    }

    fn groups_of(&self, uid: u32) -> Result<Option<UserGroups>, LookUpError> {
        let deadline = self.deadline(USER_TIME_MAX);
        let Some(user) = self.user(uid, deadline)? else { return Ok(None) };
        let Services { files, others } = self.databases.services(&["initgroups", "group"])?;
        let mut found = UserGroups { groups: vec![user.group], lacking: None };
        if files {
            found.groups.extend(self.databases.groups_with(&user.name)?);
        }
        if others {
            match self.more_groups(&user, deadline) {
                Ok(groups) => found.groups.extend(groups),
                // A local user keeps its local groups.
                Err(error) => found.lacking = Some(error.to_string()),
            }
        }
        found.groups.sort_unstable();
        found.groups.dedup();
        if found.groups.len() > GROUPS_MAX { Err(LookUpError::Groups) } else { Ok(Some(found)) }
    }

    fn user(&self, uid: u32, deadline: Deadline) -> Result<Option<User>, LookUpError> {
        let services = self.databases.services(&["passwd"])?;
        if services.files
            && let Some(user) = self.databases.user(uid)?
        {
            return Ok(Some(user));
        }
        if !services.others {
            return Ok(None);
        }
        let line = self.ask("passwd", &uid.to_string(), deadline)?;
        let user = line.map(|line| User::parse(line.trim_end().as_bytes(), uid));
        user.map(|user| user.ok_or(LookUpError::Answer("passwd"))).transpose()
    }

    fn more_groups(&self, user: &User, deadline: Deadline) -> Result<Vec<u32>, LookUpError> {
        const DATABASE: &str = "initgroups";
        let Some(answer) = self.ask(DATABASE, &user.name, deadline)? else { return Ok(Vec::new()) };
        let groups = answer.strip_prefix(&user.name).ok_or(LookUpError::Answer(DATABASE))?;
        groups
            .split_whitespace()
            .map(|group| group.parse().map_err(|_| LookUpError::Answer(DATABASE)))
            .collect()
    }

    /// Queries the services of users and groups.
    fn ask(
        &self,
        database: &'static str,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<String>, LookUpError> {
        if lock(&self.silent_until).is_some_and(|until| Instant::now() < until) {
            return Err(LookUpError::Silent);
        }
        self.getent.ask(database, key, deadline).inspect_err(|error| {
            if matches!(error, LookUpError::TimedOut(_)) {
                *lock(&self.silent_until) = Some(Instant::now() + SILENCE);
            }
        })
    }

    fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, LookUpError> {
        // The name may have been sent by a sandboxed process, which is not trusted.
        let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.starts_with('-') || !is_name {
            return Err(LookUpError::NoHost);
        }
        let addresses = match self.getent.ask("ahosts", host, self.deadline(HOST_TIME_MAX)) {
            Ok(lines) => in_first_column(&lines.unwrap_or_default()),
            // A system without getent(1), such as an initial file system, still resolves names in hosts(5).
            Err(LookUpError::NoGetent) => match self.databases.addresses_of(host)? {
                found if found.is_empty() => return Err(LookUpError::NoGetent),
                found => found,
            },
            Err(error) => return Err(error),
        };
        if addresses.is_empty() { Err(LookUpError::NoHost) } else { Ok(addresses) }
    }

    fn deadline(&self, time_max: Duration) -> Deadline {
        let allowed = self.getent.time_max.unwrap_or(time_max).min(time_max);
        Deadline { at: Instant::now() + allowed, allowed }
    }
}

/// Deadline of a look-up.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Deadline {
    /// Returns the remaining time, or [`LookUpError::TimedOut`].
    fn left(self) -> Result<Duration, LookUpError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(LookUpError::TimedOut(self.allowed)) } else { Ok(left) }
    }
}

/// Returns each address in the first column once. Addresses with a zone (`fe80::1%eth0`) are skipped, as they
/// are useless without it.
fn in_first_column(lines: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in lines.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests;
