//! Files, ports and signals, by landlock(7).

use std::fmt;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use super::Needs;

/// The kernel of 6.12 has all that is asked for here.
const WANTED: ABI = ABI::V6;

/// How far files and ports are confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confined {
    Wholly,
    /// An older kernel does not know some of it: ports (before 6.7), signals and abstract sockets (before 6.12).
    Partly,
    Not,
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wholly => "on",
            Self::Partly => "partly",
            Self::Not => "off",
        })
    }
}

/// What every program may read: its own limits, and the kernel's sources of nothing and of chance.
const ALWAYS: [&str; 5] = [
    "/proc/self/status",
    "/proc/self/cgroup",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu/online",
    "/dev/urandom",
];

/// What reading takes. Nothing is executed.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// All but executing, and making devices.
fn changing() -> BitFlags<AccessFs> {
    AccessFs::from_all(WANTED) & !(AccessFs::Execute | AccessFs::MakeChar | AccessFs::MakeBlock)
}

/// Confines this thread and those that it starts. A path that is not there is left out: it cannot be opened later either.
pub(super) fn confine(needs: &Needs, is_strict: bool) -> Result<Confined, RulesetError> {
    let level = if is_strict { CompatLevel::HardRequirement } else { CompatLevel::BestEffort };
    let mut rules = Ruleset::default()
        .set_compatibility(level)
        .handle_access(AccessFs::from_all(WANTED))?
        // What listens does so by now.
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(WANTED))?;
    if !needs.connects {
        rules = rules.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut rules = rules.create()?;
    rules = beneath(rules, &ALWAYS.map(PathBuf::from), reading())?;
    rules = beneath(rules, &needs.reads, reading())?;
    rules = beneath(rules, &needs.changes, changing())?;
    rules = beneath(rules, &needs.removes, AccessFs::RemoveFile.into())?;
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Wholly,
        RulesetStatus::PartiallyEnforced => Confined::Partly,
        RulesetStatus::NotEnforced => Confined::Not,
    })
}

fn beneath(
    rules: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let opened = |path: &PathBuf| match PathFd::new(path) {
        Ok(opened) => Some(opened),
        Err(PathFdError::OpenCall { source, .. }) => {
            tracing::debug!(path = %path.display(), %source, "not there: left out of the sandbox");
            None
        }
        Err(_) => None,
    };
    // A file has no rights of directories.
    let rules_of = paths.iter().filter_map(|path| {
        let allowed = if path.is_dir() { access } else { access & AccessFs::from_file(WANTED) };
        opened(path).map(|place| Ok::<_, RulesetError>(PathBeneath::new(place, allowed)))
    });
    rules.add_rules(rules_of)
}
