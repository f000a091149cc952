//! Looks up groups, users and hosts, as this machine is set up for it (nsswitch.conf(5)).
//!
//! The C library's functions for that load modules into the process. In a program without libraries they are
//! loaded all the same, and crash; and a module that waits for a directory service stops its caller for as
//! long. So `/etc/passwd` and `/etc/group` are read by this module, and whatever else nsswitch.conf names is
//! asked by getent(1): a process for each look-up, few at once, killed when its time is over. A process in a
//! sandbox starts none: another one looks up for it ([`delegate`]).

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

/// The time a look-up of a user or a group may take, all services together.
const USER_TIME_MAX: Duration = Duration::from_secs(10);
/// After a service did not answer, users and groups are not asked of any for so long: look-ups that wait in a
/// queue do not each take their time.
const SILENCE: Duration = Duration::from_secs(10);
/// The time a look-up of a host may take. Resolvers ask a silent name server twice, 5 s each, and then the
/// next one (resolv.conf(5)).
const HOST_TIME_MAX: Duration = Duration::from_secs(30);
/// Longer names are no hosts' (RFC 1035 §2.3.4), in bytes.
const HOST_BYTES_MAX: usize = 253;
/// Groups of a user beyond this are an error.
const GROUPS_MAX: usize = 4096;

/// The reason that a look-up failed.
#[derive(Debug, ThisError)]
pub enum LookUpError {
    /// A file of this machine is not readable.
    #[error("{} cannot be read", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// The program that asks services is missing.
    #[error("getent is missing, which looks up names (Debian: libc-bin)")]
    NoGetent,
    /// The program that asks services does not run.
    #[error("getent cannot be started")]
    Start(#[source] io::Error),
    /// A service does not answer.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// Other look-ups took all the time: none was made.
    #[error("{0:?} were not enough for the look-ups before this one: try again")]
    Busy(Duration),
    /// A service did not answer a moment ago, and was not asked.
    #[error("there was no answer to a look-up a moment ago")]
    Silent,
    /// A service failed.
    #[error("getent {0} failed: {1}")]
    Failed(&'static str, ExitStatus),
    /// An answer makes no sense, or is longer than any that does.
    #[error("getent {0} gave an answer that is not understood")]
    Answer(&'static str),
    /// The user is in more groups than are supported.
    #[error("the user is in more than {GROUPS_MAX} groups")]
    Groups,
    /// No host has the name.
    #[error("Name or service not known")]
    NoHost,
    /// The process that looks up for this one failed.
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
    /// The primary one too, in ascending order.
    pub groups: Vec<u32>,
    /// The reason that groups may be missing: a service besides `/etc/group` failed.
    pub lacking: Option<String>,
}

/// Looks up for this process.
pub trait LookUp: Send + Sync {
    /// See [`groups_of`].
    fn groups_of(&self, uid: u32) -> Result<Option<UserGroups>, LookUpError>;
    /// See [`addresses_of`].
    fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, LookUpError>;
}

/// Process-wide, as a sandbox is: a look-up that went past it would fail, wherever it is made.
static DELEGATE: OnceLock<Arc<dyn LookUp>> = OnceLock::new();

/// Has all later look-ups of this process done by `look_up`. The first call counts.
pub fn delegate(look_up: Arc<dyn LookUp>) {
    let _ = DELEGATE.set(look_up);
}

/// Returns the number of a group. Waits for directory services, a bounded time.
pub fn group_id(name: &str) -> Result<Option<u32>, LookUpError> {
    Names::of_system().group_id(name)
}

/// Returns the groups of a user, `None` for a user that is not known. Waits for directory services, a bounded
/// time.
pub fn groups_of(uid: u32) -> Result<Option<UserGroups>, LookUpError> {
    DELEGATE.get().map_or_else(|| Names::of_system().groups_of(uid), |delegate| delegate.groups_of(uid))
}

/// Returns the addresses of a host, in the order in which the system has them tried; never none. An address
/// stands for itself. Waits for name servers, a bounded time.
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
    /// Set when a service of users did not answer.
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
                // A user of this machine keeps the groups of this machine.
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

    /// Asks the services of users and groups.
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
        // The name may be one that a process in a sandbox asks for.
        let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.starts_with('-') || !is_name {
            return Err(LookUpError::NoHost);
        }
        let addresses = match self.getent.ask("ahosts", host, self.deadline(HOST_TIME_MAX)) {
            Ok(lines) => in_first_column(&lines.unwrap_or_default()),
            // As in an initial file system: names that are written down there do without.
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

/// The end of a look-up's time.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    allowed: Duration,
}

impl Deadline {
    /// Returns the time that is left.
    fn left(self) -> Result<Duration, LookUpError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(LookUpError::TimedOut(self.allowed)) } else { Ok(left) }
    }
}

/// Returns each address once. Those with a zone (`fe80::1%eth0`) are of no use without it.
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
