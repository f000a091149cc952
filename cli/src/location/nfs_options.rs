//! What can be asked of an NFS client: the options of nfs(5) by their names there, and a few of our own.

use std::path::PathBuf;
use std::time::Duration;

use tombolo_host_rpc::client::{InFlight, Options as RpcOptions, Transport};
use tombolo_host_tls::Presents;

use crate::certificates::tls_dir;

use crate::setting::Setting;

/// Options as they were written, each known and checked. Later ones count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfsOptions(Vec<(String, NfsOption)>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsOption {
    Transport(Transport),
    /// `port=`: of NFS; and of MOUNT, where nothing else is said.
    Port(u16),
    MountPort(u16),
    ReadSize(u32),
    WriteSize(u32),
    /// `timeo=`, in tenths of a second there.
    Timeout(Duration),
    Retries(u32),
    Hard(bool),
    Interruptible(bool),
    Connections(usize),
    /// At least so many, whatever was said before.
    ConnectionsMin(usize),
    KeepAttributes(bool),
    /// `actimeo=` and its four parts: from when to when attributes are cached.
    AttributeTime(AttributeTime, Duration),
    ReservedPort(bool),
    ReadAhead(usize),
    InFlight(InFlight),
    /// `bg`, `fg`: whether the mount command returns when the server is not there, and goes on trying in the
    /// background.
    Background(bool),
    /// `xprtsec=`: what secures the connections; none is `none`.
    Security(Option<Presents>),
    /// `tlsdir=`: where the certificates for that are.
    TlsDir(PathBuf),
    /// `ssh=`: the program that leads to another host, and words in front of ours.
    SshCommand(String),
    /// `tombolo=`: the program there, as its shell takes it.
    RemoteProgram(String),
    /// `retry=`, in minutes there: for so long a server that is not there is tried again.
    Retry(Duration),
    /// Accepted for what it says: it is so anyway.
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
    /// Adds an option. False if NFS has none of that name.
    ///
    /// # Errors
    /// `NAME=VALUE: what is wrong with it`.
    pub fn add(&mut self, setting: Setting<'_>) -> Result<bool, String> {
        let Some(option) = parsed(&setting)? else { return Ok(false) };
        self.0.push((setting.text.into(), option));
        Ok(true)
    }

    /// The names of all options, and whether a value belongs to each.
    pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
        let flags = FLAGS.iter().map(|(name, _)| (*name, false));
        flags.chain(WITH_VALUE.iter().map(|(name, _)| (*name, true)))
    }

    /// The options, in the order in which they count.
    pub fn iter(&self) -> impl Iterator<Item = NfsOption> + '_ {
        self.0.iter().map(|(_, option)| option.clone())
    }

    /// As they were written.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(text, _)| text.as_str())
    }

    /// `noac`.
    pub fn without_attributes() -> Self {
        Self(vec![("noac".into(), NfsOption::KeepAttributes(false))])
    }

    /// What the client is to leave to a cache over it: it keeps no attributes, and reads nothing ahead. A
    /// second connection has what moves much.
    pub fn for_cache() -> Self {
        let mut options = Self::without_attributes();
        options.0.push(("readahead=0".into(), NfsOption::ReadAhead(0)));
        options.0.push(("nconnect=2".into(), NfsOption::ConnectionsMin(2)));
        options
    }

    /// For what can be had elsewhere: a server that does not answer is not waited for.
    pub fn fails_soon() -> Self {
        let timeout = Duration::from_secs(2);
        Self(vec![
            ("soft".into(), NfsOption::Hard(false)),
            ("timeo=20".into(), NfsOption::Timeout(timeout)),
            ("retrans=0".into(), NfsOption::Retries(0)),
        ])
    }

    /// The same with a limit for what a server leaves unanswered, unless they say themselves what is waited
    /// for.
    pub fn limited(mut self, limit: Duration) -> Self {
        let says_so = |option| matches!(option, NfsOption::Hard(_)).then_some(());
        if self.last(says_so).is_some() {
            return self;
        }
        self.0.push(("soft".into(), NfsOption::Hard(false)));
        let counts = |option| matches!(option, NfsOption::Timeout(_) | NfsOption::Retries(_)).then_some(());
        if self.last(counts).is_none() {
            let over_udp = |option| matches!(option, NfsOption::Transport(Transport::Udp)).then_some(());
            // Of datagrams each time-out is twice the one before, from a second on at most.
            let (timeout, retries) = match self.last(over_udp) {
                Some(()) => (limit / 64, 5),
                None => (limit, 0),
            };
            self.0.push((format!("timeo={}", timeout.as_millis() / 100), NfsOption::Timeout(timeout)));
            self.0.push((format!("retrans={retries}"), NfsOption::Retries(retries)));
        }
        self
    }

    /// What the last option that says something of it says.
    pub fn last<T>(&self, said: impl FnMut(NfsOption) -> Option<T>) -> Option<T> {
        self.iter().filter_map(said).last()
    }

    /// What the client shows, and where its certificates are or why nowhere, if TLS is asked for.
    pub fn security(&self) -> Option<(Presents, Result<PathBuf, String>)> {
        let said = |option| if let NfsOption::Security(security) = option { Some(security) } else { None };
        let presents = self.last(said).flatten()?;
        let dir = self.last(|option| if let NfsOption::TlsDir(dir) = option { Some(dir) } else { None });
        Some((presents, dir.map_or_else(tls_dir, Ok)))
    }

    /// Whether attributes are cached for any time at all, if anything is said about it.
    pub fn attributes_kept(&self) -> Option<bool> {
        use NfsOption::{AttributeTime as Time, KeepAttributes};
        self.last(|option| match option {
            KeepAttributes(cached) => Some(cached),
            Time(AttributeTime::All | AttributeTime::FileMax, time) => Some(!time.is_zero()),
            // A least time alone says nothing: it is cut to the most.
            Time(AttributeTime::FileMin | AttributeTime::DirMin, _) => None,
            Time(AttributeTime::DirMax, _) => Some(true),
            _ => None,
        })
    }

    /// `bg`.
    pub fn in_background(&self) -> bool {
        let said = |option| if let NfsOption::Background(said) = option { Some(said) } else { None };
        self.last(said).unwrap_or(false)
    }

    /// `retry=`, if anything is said about it.
    pub fn retry(&self) -> Option<Duration> {
        self.last(|option| if let NfsOption::Retry(time) = option { Some(time) } else { None })
    }

    /// These, and then `later` ones.
    pub fn then(mut self, later: &Self) -> Self {
        self.0.extend_from_slice(&later.0);
        self
    }
}

/// The largest READ or WRITE.
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
        (None, Some(_)) => Err(setting.wrong(format_args!("it needs a value: {}=…", setting.name))),
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
        _ => Err(setting.wrong("it is one of tcp, udp")),
    }),
    ("xprtsec", |setting, value| match value {
        "none" => Ok(NfsOption::Security(None)),
        "tls" => Ok(NfsOption::Security(Some(Presents::Nothing))),
        "mtls" => Ok(NfsOption::Security(Some(Presents::Certificate))),
        _ => Err(setting.wrong("it is one of none, tls, mtls")),
    }),
    ("tlsdir", |_, value| Ok(NfsOption::TlsDir(value.into()))),
    ("ssh", |setting, value| named(setting, value).map(NfsOption::SshCommand)),
    ("tombolo", |setting, value| named(setting, value).map(NfsOption::RemoteProgram)),
    ("vers", version_3),
    ("nfsvers", version_3),
    ("mountvers", version_3),
    ("sec", |setting, value| match value {
        "sys" => Ok(NfsOption::SoAnyway),
        _ => Err(setting.wrong("only sys is spoken")),
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
        _ => Err(setting.wrong("only version 3 is spoken")),
    }
}

fn named(setting: &Setting<'_>, value: &str) -> Result<String, String> {
    match value.trim() {
        "" => Err(setting.wrong("a program is missing")),
        program => Ok(program.into()),
    }
}

fn port(setting: &Setting<'_>) -> Result<u16, String> {
    setting.number("a port", 1..=u16::MAX.into()).map(|port| port as u16)
}

/// In whole KiB.
fn transfer(setting: &Setting<'_>) -> Result<u32, String> {
    setting.bytes_in(TRANSFER_BYTES_MIN..=TRANSFER_BYTES_MAX).map(|bytes| narrow(bytes & !1023))
}

fn attribute_time(setting: &Setting<'_>, which: AttributeTime) -> Result<NfsOption, String> {
    let seconds = setting.number("a number of seconds", 0..=DAY_S)?;
    Ok(NfsOption::AttributeTime(which, Duration::from_secs(seconds)))
}

/// All limits above fit.
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
    fn a_limit_holds_unless_options_say_what_is_waited_for() {
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
        assert_eq!(mistake("proto=rdma"), "proto=rdma: it is one of tcp, udp");
        assert_eq!(mistake("vers=4.1"), "vers=4.1: only version 3 is spoken");
        assert_eq!(mistake("timeo"), "timeo: it needs a value: timeo=…");
        assert_eq!(mistake("sec=krb5p"), "sec=krb5p: only sys is spoken");
        assert_eq!(mistake("xprtsec=ssl"), "xprtsec=ssl: it is one of none, tls, mtls");
    }
}
