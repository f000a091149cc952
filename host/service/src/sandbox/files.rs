//! Confinement of files, ports and signals by landlock(7).

use std::fmt;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// Requested ABI, complete since Linux 6.12.
const WANTED: ABI = ABI::V6;

/// Extent to which files and ports are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confined {
    Full,
    /// The kernel supports only a part: it lacks, for instance, rules for ports (before 6.7), or for signals
    /// and abstract sockets (before 6.12).
    Partial,
    Off,
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "on",
            Self::Partial => "partly",
            Self::Off => "off",
        })
    }
}

/// Files that every program may read: the kernel's information about the program, its limits, and random
/// bytes.
pub(super) const ALWAYS: [&str; 6] = [
    "/proc/self",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/random/boot_id",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu/online",
    "/dev/urandom",
];

/// Returns the rights for reading, without execution.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Returns all rights but execution and making devices.
fn changing() -> BitFlags<AccessFs> {
    AccessFs::from_all(WANTED) & !(devices() | AccessFs::Execute)
}

fn devices() -> BitFlags<AccessFs> {
    AccessFs::MakeChar | AccessFs::MakeBlock
}

/// Returns the rights for making and removing sockets, and for opening and locking their directory meanwhile.
fn listening() -> BitFlags<AccessFs> {
    AccessFs::MakeSock | AccessFs::RemoveFile | AccessFs::ReadDir
}

/// Confines this thread and those that it starts. Missing paths get no rule of their own, so they cannot be
/// opened later either, unless they are in a directory with a rule.
pub(super) fn confine(needs: &Needs, is_strict: bool) -> Result<Confined, RulesetError> {
    let mut rules = Ruleset::default();
    if !needs.changes.is_empty() {
        // Before Linux 5.19 a confined process could not rename between directories; no rules are better than
        // that.
        let whole = if is_strict { CompatLevel::HardRequirement } else { CompatLevel::SoftRequirement };
        rules = rules.set_compatibility(whole).handle_access(AccessFs::Refer)?;
    }
    let level = if is_strict { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    rules = rules
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(WANTED))?
        .scope(Scope::from_all(WANTED))?;
    // Listening sockets are bound already. A process that connects may have to bind a source port, so its
    // ports are not confined.
    if !needs.connects {
        rules = rules.handle_access(AccessNet::ConnectTcp | AccessNet::BindTcp)?;
    }
    let mut rules = rules.create()?;
    rules = beneath(rules, &ALWAYS.map(PathBuf::from), reading())?;
    rules = beneath(rules, &["/dev/null".into()], AccessFs::ReadFile | AccessFs::WriteFile)?;
    rules = beneath(rules, &needs.reads, reading())?;
    rules = beneath(rules, &needs.lists, AccessFs::ReadDir.into())?;
    let makes = if needs.serves_users { devices() } else { BitFlags::EMPTY };
    rules = beneath(rules, &needs.changes, changing() | makes)?;
    rules = beneath(rules, &needs.listens_in, listening())?;
    rules = beneath(rules, &needs.removes, AccessFs::RemoveFile.into())?;
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Full,
        RulesetStatus::PartiallyEnforced => Confined::Partial,
        RulesetStatus::NotEnforced => Confined::Off,
    })
}

fn beneath(
    rules: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let opened = |path: &PathBuf| match PathFd::new(path) {
        // A rule is tied to an inode, and proc recreates unused inodes, so the opened files are never closed.
        Ok(opened) => Some(&*Box::leak(Box::new(opened))),
        Err(PathFdError::OpenCall { source, .. }) => {
            tracing::debug!(path = %path.display(), %source, "missing path left out of the sandbox");
            None
        }
        Err(_) => None,
    };
    // Directory rights do not apply to files.
    let rules_of = paths.iter().filter_map(|path| {
        let allowed = if path.is_dir() { access } else { access & AccessFs::from_file(WANTED) };
        opened(path).map(|place| Ok::<_, RulesetError>(PathBeneath::new(place, allowed)))
    });
    rules.add_rules(rules_of)
}
