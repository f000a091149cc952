//! Options of the NFS client: those of nfs(5) under the same names, and a few more.

use std::path::PathBuf;
use std::time::Duration;

use tombolo_host_rpc::client::{InFlight, Options as RpcOptions, Transport};
use tombolo_host_tls::Presents;

use crate::certificates::tls_dir;

use crate::setting::Setting;

/// Options as written, known and validated. Later ones win.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfsOptions(Vec<(String, NfsOption)>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsOption {
    Transport(Transport),
    /// `port=`: port of NFS, and of MOUNT by default.
    Port(u16),
    MountPort(u16),
    ReadSize(u32),
    WriteSize(u32),
    /// `timeo=`, in tenths of a second on the command line.
    Timeout(Duration),
    /// `retrans=`: number of time-outs before the one that fails a call, with `soft`.
    Retries(u32),
    /// `hard`, `soft`: `true` if calls are retried for ever.
    Hard(bool),
    /// `intr`, `nointr`: `true` if an interrupt ends a call at once.
    Interruptible(bool),
    Connections(usize),
    /// Minimum number of connections, whatever was set before.
    ConnectionsMin(usize),
    /// `ac`, `noac`: `true` if attributes are cached.
    KeepAttributes(bool),
    /// `actimeo=` and its four parts: attribute cache times.
    AttributeTime(AttributeTime, Duration),
    /// `resvport`, `noresvport`: `true` if calls are made from a port below 1024.
    ReservedPort(bool),
    /// `readahead=`, in bytes.
    ReadAhead(usize),
    InFlight(InFlight),
    /// `bg`, `fg`: `true` if the mount command returns while the server is unreachable and retries in the
    /// background.
    Background(bool),
    /// `xprtsec=`: transport security; `None` for `none`.
    Security(Option<Presents>),
    /// `tlsdir=`: directory of the certificates.
    TlsDir(PathBuf),
    /// `ssh=`: program to reach the other host, with its first arguments.
    SshCommand(String),
    /// `tombolo=`: program on the other host, interpreted by its shell.
    RemoteProgram(String),
    /// `retry=`, in minutes on the command line: time to retry an unreachable server.
    Retry(Duration),
    /// `vers=3`, `sec=sys`, `nolock`: accepted without effect, because they always apply.
    SoAnyway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeTime {
    All,
    FileMin,
    FileMax,
    DirMin,
    DirMax,
}

impl NfsOptions {
    /// Adds an option. Returns `false` if NFS has no option of that name.
    ///
    /// # Errors
    /// `NAME=VALUE: problem`.
    pub fn add(&mut self, setting: Setting<'_>) -> Result<bool, String> {
        let Some(option) = parsed(&setting)? else { return Ok(false) };
        self.0.push((setting.text.into(), option));
        Ok(true)
    }

    /// Returns the names of all options, with `true` if the option takes a value.
    pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
        let flags = FLAGS.iter().map(|(name, _)| (*name, false));
        flags.chain(WITH_VALUE.iter().map(|(name, _)| (*name, true)))
    }

    /// Returns the options in order of precedence, the strongest last.
    pub fn iter(&self) -> impl Iterator<Item = NfsOption> + '_ {
        self.0.iter().map(|(_, option)| option.clone())
    }

    /// Returns the options as text, `NAME` or `NAME=VALUE`.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(text, _)| text.as_str())
    }

    /// Returns `noac` alone, with which the client caches no attributes.
    pub fn without_attributes() -> Self {
        Self(vec![("noac".into(), NfsOption::KeepAttributes(false))])
    }

    /// Returns options for a client below a cache: no attribute cache, no read-ahead, and a second connection
    /// for bulk data.
    pub fn for_cache() -> Self {
        let mut options = Self::without_attributes();
        options.0.push(("readahead=0".into(), NfsOption::ReadAhead(0)));
        options.0.push(("nconnect=2".into(), NfsOption::ConnectionsMin(2)));
        options
    }

    /// Returns options that fail soon, for data that are available elsewhere.
    pub fn fails_soon() -> Self {
        let timeout = Duration::from_secs(2);
        Self(vec![
            ("soft".into(), NfsOption::Hard(false)),
            ("timeo=20".into(), NfsOption::Timeout(timeout)),
            ("retrans=0".into(), NfsOption::Retries(0)),
        ])
    }

    /// Adds a limit for unanswered requests, unless the options set it themselves.
    pub fn limited(mut self, limit: Duration) -> Self {
        let says_so = |option| matches!(option, NfsOption::Hard(_)).then_some(());
        if self.last(says_so).is_some() {
            return self;
        }
        self.0.push(("soft".into(), NfsOption::Hard(false)));
        let counts = |option| matches!(option, NfsOption::Timeout(_) | NfsOption::Retries(_)).then_some(());
        if self.last(counts).is_none() {
            let over_udp = |option| matches!(option, NfsOption::Transport(Transport::Udp)).then_some(());
            // UDP time-outs double from attempt to attempt: six of them, from `limit / 64` on, last for about
            // `limit`.
            let (timeout, retries) = match self.last(over_udp) {
                Some(()) => (limit / 64, 5),
                None => (limit, 0),
            };
            self.0.push((format!("timeo={}", timeout.as_millis() / 100), NfsOption::Timeout(timeout)));
            self.0.push((format!("retrans={retries}"), NfsOption::Retries(retries)));
        }
        self
    }

    /// Returns the value of the last option for which `said` returns one.
    pub fn last<T>(&self, said: impl FnMut(NfsOption) -> Option<T>) -> Option<T> {
        self.iter().filter_map(said).last()
    }

    /// Returns the client's credentials and the directory of its certificates (or why there is none), if TLS
    /// is requested.
    pub fn security(&self) -> Option<(Presents, Result<PathBuf, String>)> {
        let said = |option| if let NfsOption::Security(security) = option { Some(security) } else { None };
        let presents = self.last(said).flatten()?;
        let dir = self.last(|option| if let NfsOption::TlsDir(dir) = option { Some(dir) } else { None });
        Some((presents, dir.map_or_else(tls_dir, Ok)))
    }

    /// Returns `true` if attributes are cached for any time; `None` if no option determines it.
    pub fn attributes_kept(&self) -> Option<bool> {
        use NfsOption::{AttributeTime as Time, KeepAttributes};
        self.last(|option| match option {
            KeepAttributes(cached) => Some(cached),
            Time(AttributeTime::All | AttributeTime::FileMax, time) => Some(!time.is_zero()),
            // A minimum alone has no effect: it is limited by the maximum.
            Time(AttributeTime::FileMin | AttributeTime::DirMin, _) => None,
            Time(AttributeTime::DirMax, time) => (!time.is_zero()).then_some(true),
            _ => None,
        })
    }

    /// Returns `true` for `bg`.
    pub fn in_background(&self) -> bool {
        let said = |option| if let NfsOption::Background(said) = option { Some(said) } else { None };
        self.last(said).unwrap_or(false)
    }

    /// Returns the time of `retry=`, if given.
    pub fn retry(&self) -> Option<Duration> {
        self.last(|option| if let NfsOption::Retry(time) = option { Some(time) } else { None })
    }

    /// Returns these options followed by `later`.
    pub fn then(mut self, later: &Self) -> Self {
        self.0.extend_from_slice(&later.0);
        self
    }
}

/// Limits of the size of a READ or WRITE, in bytes.
const TRANSFER_BYTES_MAX: u64 = 1 << 20;
const TRANSFER_BYTES_MIN: u64 = 1 << 10;
const CONNECTIONS_MAX: u64 = 16;
const IN_FLIGHT_MAX: u64 = 1024;
const READ_AHEAD_BYTES_MAX: u64 = 1 << 30;
const DAY_S: u64 = 24 * 60 * 60;
const YEAR_MIN: u64 = 365 * 24 * 60;

fn parsed(setting: &Setting<'_>) -> Result<Option<NfsOption>, String> {
    let flag = || FLAGS.iter().find_map(|(name, option)| (*name == setting.name).then(|| option.clone()));
    let parse = WITH_VALUE.iter().find_map(|(name, parse)| (*name == setting.name).then_some(*parse));
    match (setting.value, parse) {
        (None, Some(_)) => Err(setting.wrong(format_args!("requires a value: {}=…", setting.name))),
        (None, None) => Ok(flag()),
        (Some(value), Some(parse)) => parse(setting, value).map(Some),
        (Some(_), None) => Ok(None),
    }
}

const FLAGS: &[(&str, NfsOption)] = &[
    ("ac", NfsOption::KeepAttributes(true)),
    ("bg", NfsOption::Background(true)),
    ("fg", NfsOption::Background(false)),
    ("hard", NfsOption::Hard(true)),
    ("intr", NfsOption::Interruptible(true)),
    ("noac", NfsOption::KeepAttributes(false)),
    ("nointr", NfsOption::Interruptible(false)),
    ("nolock", NfsOption::SoAnyway),
    ("noresvport", NfsOption::ReservedPort(false)),
    ("resvport", NfsOption::ReservedPort(true)),
    ("soft", NfsOption::Hard(false)),
    ("tcp", NfsOption::Transport(Transport::Tcp)),
    ("udp", NfsOption::Transport(Transport::Udp)),
];

type Parse = fn(&Setting<'_>, &str) -> Result<NfsOption, String>;

const WITH_VALUE: &[(&str, Parse)] = &[
    ("proto", |setting, value| match value {
        "tcp" => Ok(NfsOption::Transport(Transport::Tcp)),
        "udp" => Ok(NfsOption::Transport(Transport::Udp)),
        _ => Err(setting.wrong("must be one of tcp, udp")),
    }),
    ("xprtsec", |setting, value| match value {
        "none" => Ok(NfsOption::Security(None)),
        "tls" => Ok(NfsOption::Security(Some(Presents::Nothing))),
        "mtls" => Ok(NfsOption::Security(Some(Presents::Certificate))),
        _ => Err(setting.wrong("must be one of none, tls, mtls")),
    }),
    ("tlsdir", |_, value| Ok(NfsOption::TlsDir(value.into()))),
    ("ssh", |setting, value| named(setting, value).map(NfsOption::SshCommand)),
    ("tombolo", |setting, value| named(setting, value).map(NfsOption::RemoteProgram)),
    ("vers", version_3),
    ("nfsvers", version_3),
    ("mountvers", version_3),
    ("sec", |setting, value| match value {
        "sys" => Ok(NfsOption::SoAnyway),
        _ => Err(setting.wrong("only sys is supported")),
    }),
    ("port", |setting, _| port(setting).map(NfsOption::Port)),
    ("mountport", |setting, _| port(setting).map(NfsOption::MountPort)),
    ("rsize", |setting, _| transfer(setting).map(NfsOption::ReadSize)),
    ("wsize", |setting, _| transfer(setting).map(NfsOption::WriteSize)),
    ("timeo", |setting, _| {
        let tenths = setting.number("a number of tenths of a second", 1..=10 * DAY_S)?;
        Ok(NfsOption::Timeout(Duration::from_millis(100 * tenths)))
    }),
    ("retrans", |setting, _| Ok(NfsOption::Retries(narrow(setting.number("a number", 0..=1000)?)))),
    ("nconnect", |setting, _| {
        Ok(NfsOption::Connections(setting.number("a number", 1..=CONNECTIONS_MAX)? as usize))
    }),
    ("actimeo", |setting, _| attribute_time(setting, AttributeTime::All)),
    ("acregmin", |setting, _| attribute_time(setting, AttributeTime::FileMin)),
    ("acregmax", |setting, _| attribute_time(setting, AttributeTime::FileMax)),
    ("acdirmin", |setting, _| attribute_time(setting, AttributeTime::DirMin)),
    ("acdirmax", |setting, _| attribute_time(setting, AttributeTime::DirMax)),
    ("readahead", |setting, _| {
        Ok(NfsOption::ReadAhead(setting.bytes_in(0..=READ_AHEAD_BYTES_MAX)? as usize))
    }),
    ("inflight", |setting, value| match value {
        "auto" => Ok(NfsOption::InFlight(RpcOptions::default().in_flight)),
        _ => {
            let count = setting.number("auto or a number", 1..=IN_FLIGHT_MAX)?;
            Ok(NfsOption::InFlight(InFlight::Fixed(narrow(count))))
        }
    }),
    ("retry", |setting, _| {
        let minutes = setting.number("a number of minutes", 0..=YEAR_MIN)?;
        Ok(NfsOption::Retry(Duration::from_secs(60 * minutes)))
    }),
];

fn version_3(setting: &Setting<'_>, value: &str) -> Result<NfsOption, String> {
    match value {
        "3" => Ok(NfsOption::SoAnyway),
        _ => Err(setting.wrong("only version 3 is supported")),
    }
}

fn named(setting: &Setting<'_>, value: &str) -> Result<String, String> {
    match value.trim() {
        "" => Err(setting.wrong("the program is missing")),
        program => Ok(program.into()),
    }
}

fn port(setting: &Setting<'_>) -> Result<u16, String> {
    setting.number("a port", 1..=u16::MAX.into()).map(|port| port as u16)
}

/// Parses the size of a READ or WRITE, rounded down to whole KiB.
fn transfer(setting: &Setting<'_>) -> Result<u32, String> {
    setting.bytes_in(TRANSFER_BYTES_MIN..=TRANSFER_BYTES_MAX).map(|bytes| narrow(bytes & !1023))
}

fn attribute_time(setting: &Setting<'_>, which: AttributeTime) -> Result<NfsOption, String> {
    let seconds = setting.number("a number of seconds", 0..=DAY_S)?;
    Ok(NfsOption::AttributeTime(which, Duration::from_secs(seconds)))
}

/// Converts a number to 32 bits, in which the limits of all options fit.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(word: &str) -> Result<Option<NfsOption>, String> {
        let mut options = NfsOptions::default();
        options.add(word.into()).map(|known| known.then(|| options.iter().next().expect("added")))
    }

    #[test]
    fn wait_limit_yields_to_explicit_options() {
        for (said, limited) in [
            (&[][..], &["soft", "timeo=600", "retrans=0"][..]),
            (&["hard"], &["hard"]),
            (&["soft", "timeo=50"], &["soft", "timeo=50"]),
            (&["timeo=50"], &["timeo=50", "soft"]),
            (&["proto=udp"], &["proto=udp", "soft", "timeo=9", "retrans=5"]),
        ] {
            let mut options = NfsOptions::default();
            for word in said {
                assert_eq!(options.add((*word).into()), Ok(true), "{word}");
            }
            let options = options.limited(Duration::from_secs(60));
            assert!(options.words().eq(limited.iter().copied()), "{said:?}: {options:?}");
        }
    }

    #[test]
    fn options_mean_what_they_mean_elsewhere() {
        use NfsOption as Is;
        for (word, meaning) in [
            ("proto=udp", Is::Transport(Transport::Udp)),
            ("tcp", Is::Transport(Transport::Tcp)),
            ("timeo=600", Is::Timeout(Duration::from_secs(60))),
            ("rsize=1048576", Is::ReadSize(1 << 20)),
            ("wsize=5000", Is::WriteSize(4096)),
            ("soft", Is::Hard(false)),
            ("nointr", Is::Interruptible(false)),
            ("noac", Is::KeepAttributes(false)),
            ("bg", Is::Background(true)),
            ("acregmax=7", Is::AttributeTime(AttributeTime::FileMax, Duration::from_secs(7))),
            ("readahead=4M", Is::ReadAhead(4 << 20)),
            ("inflight=auto", Is::InFlight(RpcOptions::default().in_flight)),
            ("inflight=32", Is::InFlight(InFlight::Fixed(32))),
            ("retry=3", Is::Retry(Duration::from_secs(180))),
            ("vers=3", Is::SoAnyway),
            ("nolock", Is::SoAnyway),
            ("xprtsec=mtls", Is::Security(Some(Presents::Certificate))),
            ("xprtsec=none", Is::Security(None)),
            ("tlsdir=/etc/pki/nfs", Is::TlsDir("/etc/pki/nfs".into())),
            ("ssh=ssh -p 7", Is::SshCommand("ssh -p 7".into())),
            ("tombolo=sudo tombolo", Is::RemoteProgram("sudo tombolo".into())),
        ] {
            assert_eq!(one(word), Ok(Some(meaning)), "{word}");
        }
        assert_eq!(one("ro"), Ok(None));
        assert_eq!(one("colour=blue"), Ok(None));
    }

    #[test]
    fn a_mistake_says_what_would_do() {
        let mistake = |word| one(word).expect_err(word);
        assert_eq!(mistake("nconnect=17"), "nconnect=17: a number from 1 to 16");
        assert_eq!(mistake("rsize=2M"), "rsize=2M: a number of bytes from 1024 to 1048576");
        assert_eq!(mistake("inflight=some"), "inflight=some: auto or a number from 1 to 1024");
        assert_eq!(mistake("proto=rdma"), "proto=rdma: must be one of tcp, udp");
        assert_eq!(mistake("vers=4.1"), "vers=4.1: only version 3 is supported");
        assert_eq!(mistake("timeo"), "timeo: requires a value: timeo=…");
        assert_eq!(mistake("sec=krb5p"), "sec=krb5p: only sys is supported");
        assert_eq!(mistake("xprtsec=ssl"), "xprtsec=ssl: must be one of none, tls, mtls");
    }
}
