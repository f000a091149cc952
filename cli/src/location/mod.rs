//! Locations: exports of NFS servers, of shared-memory servers, and local directories.
//!
//! A [`Location`] is what users write; [`nfs`], [`shm`] and [`local`] open it. Reading order: this file,
//! [`url`], [`nfs`].

mod backoff;
mod host;
mod local;
mod nfs;
mod nfs_options;
mod nfs_shm;
mod nfs_ssh;
mod not_mounted;
mod percent;
mod shm;
mod shm_link;
mod url;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::builder::{OsStringValueParser, TypedValueParser};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::fs::Export;

use crate::failure::Failure;
use crate::suggestion::nearest;

pub use backoff::Backoff;
pub use host::Host;
pub use nfs::{exports, mount};
pub use nfs_options::{NfsOption, NfsOptions};
pub use nfs_shm::{NfsShmUrl, check as check_over_shm, mount as mount_nfs_shm};
pub use not_mounted::{NotMounted, Reachability};
pub use percent::{decoded, encoded};
pub use shm::{ShmEndpoint, ShmLocation, ShmParts};
pub use shm_link::{LinkOptions, mount as mount_shm};
pub use url::{NfsUrl, Ssh};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// `nfs://HOST[:PORT]/NAME[/PATH][?OPTION[=VALUE]&…]`, `nfs+ssh://[USER@]HOST[:PORT]/PATH…`, or
    /// `HOST:/NAME[/PATH]` as in mount.nfs(8).
    Nfs(NfsUrl),
    /// `nfs+shm:SOCKET/NAME[/PATH]` and variants: an export of an NFS server over shared memory.
    NfsShm(NfsShmUrl),
    /// `shm:SOCKET/NAME[/PATH]` and variants: an export over shared memory.
    Shm(ShmLocation),
    /// `dir:PATH`; a plain path where a command accepts paths.
    Dir(PathBuf),
}

#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub read_only: bool,
    pub nfs: NfsOptions,
    pub end: End,
    /// Start of the wait for an unreachable server; `None`: no wait.
    pub since: Option<Instant>,
    /// Maximum time that a request waits for an unresponsive server, unless the location sets it. `None`: for
    /// ever.
    pub limit: Option<Duration>,
}

/// Maximum time that requests of this process wait for an unresponsive server, if neither the location nor
/// the opener sets it (see [`OpenOptions::limit`]).
static LIMIT: OnceLock<Duration> = OnceLock::new();

/// Sets the default of [`OpenOptions::limit`] for this process. Only the first call has an effect.
pub fn limit_waits(limit: Duration) {
    let _ = LIMIT.set(limit);
}

impl Default for OpenOptions {
    fn default() -> Self {
        let (nfs, limit) = (NfsOptions::default(), LIMIT.get().copied());
        Self { read_only: false, nfs, end: End::default(), since: None, limit }
    }
}

impl OpenOptions {
    /// Returns the options of the NFS client, with the limit applied.
    fn limited(&self, asked: NfsOptions) -> NfsOptions {
        match self.limit {
            Some(limit) => asked.limited(limit),
            None => asked,
        }
    }
}

/// Default wait for a server that is just starting, overridden by `retry=`.
const STARTING: Duration = Duration::from_secs(2);

/// Maximum delay of a command after the server has become reachable.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Interpretation of a path's last component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// The target, following a link. For a directory the path within the opened tree may be empty.
    #[default]
    Target,
    /// The name itself, to be created, moved or removed: the tree is opened above it, if possible.
    Name,
}

pub struct Opened {
    pub export: Arc<dyn Export>,
    /// Path within the export: components separated by `/`; empty for its root.
    pub path: Vec<u8>,
    /// The export, if it is an NFS server's, for its counters and the check that the server responds.
    pub nfs: Option<Arc<NfsExport>>,
}

impl Location {
    /// Parses a word where paths are accepted too: a location, otherwise a path.
    ///
    /// A path that has the syntax of a location, such as `host:/a`, must begin with `./`, as for scp(1).
    pub fn of_word(word: &OsStr) -> Result<Self, String> {
        match word.to_str() {
            _ if word.is_empty() => Err("the path is missing".into()),
            Some(text) if is_marked(text) => text.parse(),
            _ => Ok(Self::Dir(word.into())),
        }
    }

    /// Returns a command-line parser for [`Location::of_word`].
    pub fn word_parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(|word: OsString| Self::of_word(&word))
    }

    /// Returns the location of a name in this one; `None` if it cannot be expressed.
    pub fn below(&self, name: &[u8]) -> Option<Self> {
        let mut below = self.clone();
        match &mut below {
            Self::Nfs(url) => append(&mut url.path, name),
            Self::NfsShm(url) => url.place.append(str::from_utf8(name).ok()?),
            Self::Shm(place) => place.append(str::from_utf8(name).ok()?),
            Self::Dir(path) => path.push(OsStr::from_bytes(name)),
        }
        Some(below)
    }

    /// Opens the location. Blocks on name look-ups and server requests, but not for long unless `retry=` says
    /// so: an unreachable server is an error, even with the option `hard`.
    pub fn open(&self, options: &OpenOptions) -> Result<Opened, Failure> {
        let opened = match self {
            Self::Nfs(url) => {
                let patience = url.options.clone().then(&options.nfs).retry().unwrap_or(STARTING);
                retry_until_reachable(options.since, patience, || nfs::open(url, options))
            }
            Self::NfsShm(url) => {
                let patience = url.options.clone().then(&options.nfs).retry().unwrap_or_default();
                retry_until_reachable(options.since, patience, || nfs_shm::open(url, options))
            }
            Self::Shm(place) => shm_link::open(place, options.limit),
            Self::Dir(path) => return local::open(path, options),
        };
        opened.map_err(|failed| failed.while_doing(&format!("open {self}")))
    }
}

/// Retries until the server is reachable, or `patience` has passed since `since`. Without `since` makes one
/// attempt.
pub fn retry_until_reachable<T>(
    since: Option<Instant>,
    patience: Duration,
    attempt: impl Fn() -> Result<T, NotMounted>,
) -> Result<T, NotMounted> {
    let until = since.map_or_else(Instant::now, |since| since + patience);
    let mut backoff = Backoff::new(PAUSE_MAX, Some(until));
    loop {
        match attempt() {
            Err(failed) if failed.server == Reachability::Unreachable && backoff.wait() => {
                tracing::debug!(reason = failed.reason, "server unreachable: retrying");
            }
            outcome => return outcome,
        }
    }
}

fn append(path: &mut Vec<u8>, name: &[u8]) {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Returns `true` if the word has the syntax of a location.
fn is_marked(text: &str) -> bool {
    text.split_once(':').is_some_and(|(front, rest)| {
        (front == "dir"
            || ShmLocation::is_scheme(front)
            || NfsShmUrl::is_scheme(front)
            || rest.starts_with('/'))
            && !front.is_empty()
            && !front.contains('/')
            || (front.starts_with('[') && text.contains("]:/"))
    })
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("dir", "")) => Err("dir: the path is missing: write dir:PATH".into()),
            Some(("dir", path)) => Ok(Self::Dir(path.into())),
            Some((scheme, place)) if ShmLocation::is_scheme(scheme) && !place.starts_with("//") => {
                ShmLocation::new(scheme, place).map(Self::Shm)
            }
            Some((scheme, place)) if NfsShmUrl::is_scheme(scheme) && !place.starts_with("//") => {
                NfsShmUrl::new(scheme, place).map(Self::NfsShm)
            }
            Some(("nfs" | "nfs+ssh", rest)) if rest.starts_with("//") => text.parse().map(Self::Nfs),
            Some((scheme, rest)) if rest.starts_with("//") => Err(match meant(text) {
                Some(meant) => format!("unknown scheme {scheme}://: did you mean {meant}?"),
                None => format!("unknown scheme {scheme}://: write {EXAMPLES}"),
            }),
            _ if is_marked(text) => NfsUrl::of_mount_word(text).map(Self::Nfs),
            Some(_) if let Some(meant) = meant(text) => {
                Err(format!("{text:?} is not a valid source: did you mean {meant}?"))
            }
            _ => Err(format!(
                "{text:?} is not a valid source: for a local directory write dir:{text}, otherwise \
                 nfs://HOST[:PORT]/NAME or shm:SOCKET/NAME"
            )),
        }
    }
}

/// Returns the text with the scheme that is most similar to its unknown one, if any is.
fn meant(text: &str) -> Option<String> {
    let (written, rest) = text.split_once(':')?;
    let scheme = nearest(written, SCHEMES.iter().copied()).filter(|scheme| *scheme != written)?;
    Some(format!("{scheme}:{rest}"))
}

/// Schemes, the text before the first `:` of a location.
const SCHEMES: &[&str] = &[
    "dir",
    "nfs",
    "nfs+shm",
    "nfs+shm+file",
    "nfs+shm+mmapper",
    "nfs+shm+pci",
    "nfs+ssh",
    "shm",
    "shm+file",
    "shm+mmapper",
    "shm+pci",
];

const EXAMPLES: &str = "nfs://HOST[:PORT]/NAME, shm:SOCKET/NAME or dir:PATH";

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nfs(url) => url.fmt(f),
            Self::NfsShm(url) => url.fmt(f),
            Self::Shm(place) => place.fmt(f),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_place_or_a_path() {
        let shown = |word: &str| Location::of_word(word.as_ref()).map(|location| location.to_string());
        for (word, place) in [
            ("nfs://host/a", "nfs://host/a"),
            ("host:/a b", "nfs://host/a%20b"),
            ("[::1]:/a", "nfs://[::1]/a"),
            ("dir:/srv", "dir:/srv"),
            ("shm:/run/x.sock/src", "shm:/run/x.sock/src"),
            ("shm:x.sock/src", "shm:x.sock/src"),
            ("shm+pci:/src", "shm+pci:/src"),
            ("nfs+shm:x.sock/src?soft", "nfs+shm:x.sock/src?soft"),
            ("nfs+shm+pci:/src", "nfs+shm+pci:/src"),
            ("nfs+ssh://joe@host/a", "nfs+ssh://joe@host/a"),
            ("shm+file:region/src", "shm+file:region/src"),
            ("./shm:x", "dir:./shm:x"),
            ("/srv/x:/y", "dir:/srv/x:/y"),
            ("./host:/a", "dir:./host:/a"),
            ("a:b", "dir:a:b"),
            ("plain", "dir:plain"),
        ] {
            assert_eq!(shown(word).as_deref(), Ok(place), "{word}");
        }
        assert!(shown("").is_err());
        assert_eq!(
            shown("http://host/a").expect_err("another protocol"),
            "unknown scheme http://: write nfs://HOST[:PORT]/NAME, shm:SOCKET/NAME or dir:PATH"
        );
    }

    #[test]
    fn each_scheme_is_understood() {
        for scheme in SCHEMES {
            let text =
                format!("{scheme}:{}/a", if matches!(*scheme, "nfs" | "nfs+ssh") { "//h" } else { "" });
            let place = text.parse::<Location>().or_else(|_| format!("{scheme}:x/a").parse());
            assert!(
                place.is_ok_and(|place| place.to_string().starts_with(&format!("{scheme}:"))),
                "{scheme}"
            );
        }
    }

    #[test]
    fn where_only_places_are_taken_paths_are_not() {
        let mistake = |text: &str| text.parse::<Location>().expect_err(text);
        assert_eq!(
            mistake("/srv"),
            "\"/srv\" is not a valid source: for a local directory write dir:/srv, otherwise \
             nfs://HOST[:PORT]/NAME or shm:SOCKET/NAME"
        );
        assert_eq!(mistake("nsf://h/a"), "unknown scheme nsf://: did you mean nfs://h/a?");
        assert_eq!(mistake("shmm:x/y"), "\"shmm:x/y\" is not a valid source: did you mean shm:x/y?");
        assert_eq!(mistake("dir:"), "dir: the path is missing: write dir:PATH");
        assert_eq!(mistake("shm:x.sock"), "shm:x.sock: the name is missing: write shm:SOCKET/NAME");
        assert!(mistake("shm://x/y").contains("unknown scheme shm://"));
        for host in ["host:/a", "nfs:/a"] {
            assert!(host.parse::<Location>().is_ok(), "{host}");
        }
    }
}
