//! Options after `-o`.

use std::str::FromStr;

use clap::ValueEnum;
use tombolo_host_service::sandbox::Strictness;
use tombolo_sys::pattern::Pattern;

use crate::assembly::options::bell::BellArg;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::options::doorbell::Doorbell;
use crate::assembly::options::submounts::Submounts;
use crate::assembly::options::xattrs::Xattrs;
use crate::location::NfsOptions;
use crate::setting::{self, Setting};
use crate::suggestion::unknown;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    pub remount: bool,
    /// `ro`: the mount refuses changes, and so does the back end of a directory or an NFS server. `None`: not
    /// specified, as for all optional fields.
    pub read_only: Option<bool>,
    /// `allow_other`: users other than the mounting one have access.
    pub allow_other: bool,
    /// `noperm`: only the server checks permissions, even where the kernel could.
    pub no_kernel_checks: bool,
    pub coherence: Option<Coherence>,
    /// `ask=PATTERN`: files that are never cached.
    pub ask: Vec<Pattern>,
    pub locks: Option<Locks>,
    /// `threads=N`: number of threads that serve the mount's requests.
    pub threads: Option<usize>,
    pub submounts: Option<Submounts>,
    pub doorbell: Option<Doorbell>,
    /// `bell=`: means of waking the server over memory.
    pub bell: BellArg,
    /// `xattrs=`: extended attributes as in the source, or none.
    pub xattrs: Xattrs,
    pub nfs: NfsOptions,
    /// `fsname=NAME`: source in the list of mounts.
    pub fsname: Option<String>,
    /// `dev`: honour device nodes.
    pub devices: Option<bool>,
    /// `suid`: honour set-user-id bits.
    pub set_id: Option<bool>,
    /// `noexec`: refuse execution.
    pub no_exec: Option<bool>,
    /// `sandbox=`: confinement of the server.
    pub sandbox: Strictness,
}

const FLAGS: &[&str] = &[
    "allow_other",
    "dev",
    "exec",
    "nodev",
    "noexec",
    "noperm",
    "nosuid",
    "perm",
    "remount",
    "ro",
    "rw",
    "suid",
];

const TAKES_VALUE: &[&str] =
    &["ask", "bell", "coherence", "doorbell", "fsname", "locks", "sandbox", "submounts", "threads", "xattrs"];

/// Scope of file locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Locks {
    /// All users of the directory or export, through this mount or not
    #[default]
    Shared,
    /// Users of this mount: the kernel manages locks itself
    Local,
}

/// Options that are accepted and ignored. Only `noperm` determines if the kernel checks permissions, and a
/// FUSE mount maintains no access times of its own.
const WITHOUT_EFFECT: &[&str] = &[
    "async",
    "atime",
    "default_permissions",
    "diratime",
    "noatime",
    "nodiratime",
    "norelatime",
    "nostrictatime",
    "relatime",
    "strictatime",
];

/// Options that mount(8) and systemd handle themselves and pass on.
const OF_MOUNT_PROGRAMS: &[&str] = &[
    "_netdev", "auto", "defaults", "group", "loud", "noauto", "nofail", "nogroup", "noowner", "nouser",
    "owner", "silent", "user", "users",
];

impl MountOptions {
    /// Adds a list as written after `-o`; later settings win.
    pub fn add(&mut self, list: &str) -> Result<(), String> {
        setting::list(list).try_for_each(|setting| self.add_one(setting))
    }

    fn add_one(&mut self, setting: Setting<'_>) -> Result<(), String> {
        let Setting { name, value, .. } = setting;
        let in_mount = |reason| format!("mount option {reason}");
        match (name, value) {
            ("remount", None) => self.remount = true,
            ("ro", None) => self.read_only = Some(true),
            ("rw", None) => self.read_only = Some(false),
            ("allow_other", None) => self.allow_other = true,
            ("dev" | "nodev", None) => self.devices = Some(name == "dev"),
            ("suid" | "nosuid", None) => self.set_id = Some(name == "suid"),
            ("exec" | "noexec", None) => self.no_exec = Some(name == "noexec"),
            ("perm" | "noperm", None) => self.no_kernel_checks = name == "noperm",
            ("ask", Some(value)) => {
                let pattern = value.parse::<Pattern>().map_err(|error| in_mount(setting.wrong(error)))?;
                self.ask.push(pattern);
            }
            ("coherence", Some(_)) => self.coherence = Some(setting.one_of().map_err(in_mount)?),
            ("locks", Some(_)) => self.locks = Some(setting.one_of().map_err(in_mount)?),
            ("sandbox", Some(how)) => {
                self.sandbox = how.parse().map_err(|what: String| in_mount(setting.wrong(what)))?;
            }
            ("submounts", Some(_)) => self.submounts = Some(setting.one_of().map_err(in_mount)?),
            ("doorbell", Some(_)) => self.doorbell = Some(setting.one_of().map_err(in_mount)?),
            ("bell", Some(_)) => self.bell = BellArg::parse(&setting).map_err(in_mount)?.absolute(),
            ("xattrs", Some(_)) => self.xattrs = setting.one_of().map_err(in_mount)?,
            ("threads", Some(_)) => {
                let count = setting.number("a number", 1..=THREADS_MAX).map_err(in_mount)?;
                self.threads = Some(count as usize);
            }
            ("fsname", Some(value)) if !value.is_empty() => self.fsname = Some(value.into()),
            (name, None) if WITHOUT_EFFECT.contains(&name) || OF_MOUNT_PROGRAMS.contains(&name) => {}
            (name, _) if name.starts_with("x-") || name.starts_with("X-") => {}
            ("user" | "comment", Some(_)) => {}
            _ if self.nfs.add(setting).map_err(in_mount)? => {}
            _ => return Err(misunderstood(setting)),
        }
        Ok(())
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only.unwrap_or(false)
    }

    /// Returns the kernel's cache policy. With `noac` or times of 0 neither the client nor the kernel caches,
    /// unless `coherence=` says otherwise.
    pub fn coherence(&self, url: &NfsOptions) -> Coherence {
        let keeps = || url.clone().then(&self.nfs).attributes_kept() != Some(false);
        self.coherence.unwrap_or_else(|| if keeps() { Coherence::default() } else { Coherence::Strict })
    }

    /// Returns the NFS options to apply after those of the URL: those of `-o`, and before them `noac` for
    /// coherence=strict if neither says how long attributes are cached.
    pub fn nfs_options(&self, url: &NfsOptions) -> NfsOptions {
        let said = url.clone().then(&self.nfs).attributes_kept();
        match self.coherence {
            Some(Coherence::Strict) if said.is_none() => NfsOptions::without_attributes().then(&self.nfs),
            _ => self.nfs.clone(),
        }
    }
}

fn misunderstood(Setting { text, name, .. }: Setting<'_>) -> String {
    if TAKES_VALUE.contains(&name) {
        return format!("mount option {name:?} needs a value: {name}=…");
    }
    let flags = [FLAGS, WITHOUT_EFFECT, OF_MOUNT_PROGRAMS].concat().into_iter().map(|name| (name, false));
    let known = flags.chain(TAKES_VALUE.iter().map(|name| (*name, true))).chain(NfsOptions::names());
    unknown("mount option", text, known)
}

impl FromStr for MountOptions {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut options = Self::default();
        options.add(list)?;
        Ok(options)
    }
}

const THREADS_MAX: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_is_understood() {
        let options: MountOptions =
            "rw,noatime,nodev,noexec,_netdev,nofail,x-systemd.automount,user=joe,ro,coherence=strict,threads=4,,fsname=a b"
                .parse()
                .expect("good");
        assert!(options.is_read_only() && !options.allow_other);
        assert_eq!((options.no_exec, options.devices, options.set_id), (Some(true), Some(false), None));
        assert_eq!((options.coherence, options.threads), (Some(Coherence::Strict), Some(4)));
        assert_eq!(options.fsname.as_deref(), Some("a b"));
    }

    #[test]
    fn without_attributes_nothing_is_cached() {
        let options = |list: &str| list.parse::<MountOptions>().expect("good");
        let url = NfsOptions::default();
        assert_eq!(options("noac").coherence(&url), Coherence::Strict);
        assert_eq!(options("actimeo=0").coherence(&url), Coherence::Strict);
        assert_eq!(options("noac,coherence=auto").coherence(&url), Coherence::Auto);
        assert_eq!(options("noac,actimeo=3").coherence(&url), Coherence::Auto);
        assert_eq!(options("noac,acregmin=3").coherence(&url), Coherence::Strict);
        assert_eq!(options("hard").coherence(&options("noac").nfs), Coherence::Strict);
        assert_eq!(options("coherence=strict").nfs_options(&url).attributes_kept(), Some(false));
        assert_eq!(options("coherence=strict,actimeo=3").nfs_options(&url).attributes_kept(), Some(true));
        assert_eq!(options("noac,acdirmax=0").nfs_options(&url).attributes_kept(), Some(false));
    }

    #[test]
    fn unknown_options_are_named() {
        let mistake = |list: &str| list.parse::<MountOptions>().expect_err("a mistake");
        assert_eq!(
            mistake("ro,cohernce=strict"),
            "unknown mount option \"cohernce=strict\": did you mean coherence=…?"
        );
        assert_eq!(
            mistake("coherence=never"),
            "mount option coherence=never: must be one of strict, auto, always, push"
        );
        assert_eq!(mistake("ask="), "mount option ask=: the pattern is empty");
        assert_eq!(mistake("threads=0"), "mount option threads=0: a number from 1 to 64");
        assert_eq!(mistake("submounts"), "mount option \"submounts\" needs a value: submounts=…");
        assert_eq!(mistake("sync"), "unknown mount option \"sync\": did you mean async?");
        assert_eq!(mistake("colour=blue"), "unknown mount option \"colour=blue\"");
        assert_eq!(mistake("nconect=4"), "unknown mount option \"nconect=4\": did you mean nconnect=…?");
        assert_eq!(mistake("locks=none"), "mount option locks=none: must be one of shared, local");
        assert_eq!(mistake("rsize=7"), "mount option rsize=7: a number of bytes from 1024 to 1048576");
        assert_eq!(mistake("ro=1"), "unknown mount option \"ro=1\": did you mean ro?");
    }
}
