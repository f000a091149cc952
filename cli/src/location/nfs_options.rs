//! What can be asked of an NFS client: the options of nfs(5) by their names there, and a few of our own.

use std::time::Duration;

use crate::setting::Setting;

/// Options as they were written, each known and checked. Later ones count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NfsOptions(Vec<(String, NfsOption)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfsOption {
    Transport(Proto),
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
    KeepAttributes(bool),
    /// `actimeo=` and its four parts: from when to when attributes are cached.
    AttributeTime(AttributeTime, Duration),
    ReservedPort(bool),
    ReadAhead(usize),
    InFlight(Limit),
    /// `bg`, `fg`: whether the mount command returns when the server is not there, and goes on trying in the background.
    Background(bool),
    /// `retry=`, in minutes there: for so long a server that is not there is tried again.
    Retry(Duration),
    /// Accepted for what it says: it is so anyway.
    SoAnyway,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeTime {
    All,
    FileMin,
    FileMax,
    DirMin,
    DirMax,
}

/// How many reads and writes may be outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Fixed(u32),
    /// As many as are of use.
    Auto,
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
        let flags = FLAGS.iter().map(|name| (*name, false));
        flags.chain([TAKES_WORD, TAKES_NUMBER].concat().into_iter().map(|name| (name, true)))
    }

    /// The options, in the order in which they count.
    pub fn iter(&self) -> impl Iterator<Item = NfsOption> + '_ {
        self.0.iter().map(|(_, option)| *option)
    }

    /// As they were written.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(text, _)| text.as_str())
    }

    /// `noac`.
    pub fn without_attributes() -> Self {
        Self(vec![("noac".into(), NfsOption::KeepAttributes(false))])
    }

    /// Whether attributes are cached for any time at all, if anything is said about it.
    pub fn attributes_kept(&self) -> Option<bool> {
        let said = self.iter().filter_map(|option| match option {
            NfsOption::KeepAttributes(cached) => Some(cached),
            NfsOption::AttributeTime(AttributeTime::All | AttributeTime::FileMax, time) => {
                Some(!time.is_zero())
            }
            // A least time alone says nothing: it is cut to the most.
            NfsOption::AttributeTime(AttributeTime::FileMin | AttributeTime::DirMin, _) => None,
            NfsOption::AttributeTime(..) => Some(true),
            _ => None,
        });
        said.last()
    }

    /// `bg`.
    pub fn in_background(&self) -> bool {
        let said = self.iter().filter_map(|option| match option {
            NfsOption::Background(said) => Some(said),
            _ => None,
        });
        said.last().unwrap_or(false)
    }

    /// `retry=`, if anything is said about it.
    pub fn retry(&self) -> Option<Duration> {
        self.iter()
            .filter_map(|option| if let NfsOption::Retry(time) = option { Some(time) } else { None })
            .last()
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
    use NfsOption as Is;
    let name = setting.name;
    let option = match (name, setting.value) {
        ("tcp", None) | ("proto", Some("tcp")) => Is::Transport(Proto::Tcp),
        ("udp", None) | ("proto", Some("udp")) => Is::Transport(Proto::Udp),
        ("proto", Some(_)) => return Err(setting.wrong("it is one of tcp, udp")),
        ("hard" | "soft", None) => Is::Hard(name == "hard"),
        ("intr" | "nointr", None) => Is::Interruptible(name == "intr"),
        ("bg" | "fg", None) => Is::Background(name == "bg"),
        ("ac" | "noac", None) => Is::KeepAttributes(name == "ac"),
        ("resvport" | "noresvport", None) => Is::ReservedPort(name == "resvport"),
        ("nolock", None) | ("vers" | "nfsvers" | "mountvers", Some("3")) | ("sec", Some("sys")) => {
            Is::SoAnyway
        }
        ("vers" | "nfsvers" | "mountvers", Some(_)) => return Err(setting.wrong("only version 3 is spoken")),
        ("sec", Some(_)) => return Err(setting.wrong("only sys is spoken")),
        ("inflight", Some("auto")) => Is::InFlight(Limit::Auto),
        (_, Some(_)) => return with_number(setting),
        (name, None) if TAKES_NUMBER.contains(&name) || TAKES_WORD.contains(&name) => {
            return Err(setting.wrong(format_args!("it needs a value: {name}=…")));
        }
        _ => return Ok(None),
    };
    Ok(Some(option))
}

const FLAGS: &[&str] = &[
    "ac",
    "bg",
    "fg",
    "hard",
    "intr",
    "noac",
    "nointr",
    "nolock",
    "noresvport",
    "resvport",
    "soft",
    "tcp",
    "udp",
];
const TAKES_WORD: &[&str] = &["proto", "vers", "nfsvers", "mountvers", "sec"];
const TAKES_NUMBER: &[&str] = &[
    "port",
    "mountport",
    "rsize",
    "wsize",
    "timeo",
    "retrans",
    "nconnect",
    "actimeo",
    "acregmin",
    "acregmax",
    "acdirmin",
    "acdirmax",
    "readahead",
    "inflight",
    "retry",
];

fn with_number(setting: &Setting<'_>) -> Result<Option<NfsOption>, String> {
    use NfsOption as Is;
    let transfer =
        || setting.bytes_in(TRANSFER_BYTES_MIN..=TRANSFER_BYTES_MAX).map(|bytes| narrow(bytes & !1023));
    let port = || setting.number("a port", 1..=u16::MAX.into()).map(|port| port as u16);
    let time = |which| {
        let seconds = setting.number("a number of seconds", 0..=DAY_S)?;
        Ok::<_, String>(Is::AttributeTime(which, Duration::from_secs(seconds)))
    };
    let option = match setting.name {
        "port" => Is::Port(port()?),
        "mountport" => Is::MountPort(port()?),
        "rsize" => Is::ReadSize(transfer()?),
        "wsize" => Is::WriteSize(transfer()?),
        "timeo" => {
            let tenths = setting.number("a number of tenths of a second", 1..=10 * DAY_S)?;
            Is::Timeout(Duration::from_millis(100 * tenths))
        }
        "retrans" => Is::Retries(narrow(setting.number("a number", 0..=1000)?)),
        "nconnect" => Is::Connections(narrow(setting.number("a number", 1..=CONNECTIONS_MAX)?) as usize),
        "actimeo" => time(AttributeTime::All)?,
        "acregmin" => time(AttributeTime::FileMin)?,
        "acregmax" => time(AttributeTime::FileMax)?,
        "acdirmin" => time(AttributeTime::DirMin)?,
        "acdirmax" => time(AttributeTime::DirMax)?,
        "readahead" => Is::ReadAhead(narrow(setting.bytes_in(0..=READ_AHEAD_BYTES_MAX)?) as usize),
        "retry" => {
            let minutes = setting.number("a number of minutes", 0..=YEAR_MIN)?;
            Is::Retry(Duration::from_secs(60 * minutes))
        }
        "inflight" => {
            Is::InFlight(Limit::Fixed(narrow(setting.number("auto or a number", 1..=IN_FLIGHT_MAX)?)))
        }
        _ => return Ok(None),
    };
    Ok(Some(option))
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
    fn options_mean_what_they_mean_elsewhere() {
        use NfsOption as Is;
        for (word, meaning) in [
            ("proto=udp", Is::Transport(Proto::Udp)),
            ("tcp", Is::Transport(Proto::Tcp)),
            ("timeo=600", Is::Timeout(Duration::from_secs(60))),
            ("rsize=1048576", Is::ReadSize(1 << 20)),
            ("wsize=5000", Is::WriteSize(4096)),
            ("soft", Is::Hard(false)),
            ("nointr", Is::Interruptible(false)),
            ("noac", Is::KeepAttributes(false)),
            ("bg", Is::Background(true)),
            ("acregmax=7", Is::AttributeTime(AttributeTime::FileMax, Duration::from_secs(7))),
            ("readahead=4M", Is::ReadAhead(4 << 20)),
            ("inflight=auto", Is::InFlight(Limit::Auto)),
            ("inflight=32", Is::InFlight(Limit::Fixed(32))),
            ("retry=3", Is::Retry(Duration::from_secs(180))),
            ("vers=3", Is::SoAnyway),
            ("nolock", Is::SoAnyway),
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
    }
}
