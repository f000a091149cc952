//! Opening of the locations on a command line, for the file commands and for other commands that read files
//! of servers: an [`Opener`] opens a [`Location`] as an [`OpenPath`], a path in an attached tree.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use libtombolo::{Last, Node, Tree, User, block_on};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::Error;
use tombolo_core::fs::{Attr, Name, NameBuf};
use tombolo_sys::{creds, process};

use crate::failure::{Failure, OrCannot};
use crate::location::{self, End, Location, NfsOptions, NfsUrl, OpenOptions};

use crate::setting::Setting;

use super::problem;
use super::user::Myself;

/// Opener of locations, which reuses open exports: two files of one export share a connection.
pub struct Opener {
    myself: Myself,
    /// Default options of NFS clients, overridden by the URL.
    unless_asked: &'static [&'static str],
    servers: Vec<OpenExport>,
    /// Start of the command: a server that is starting is waited for only once.
    since: Instant,
    /// Maximum time that a request waits for an unresponsive server.
    limit: Option<Duration>,
    watched: Vec<Watched>,
}

/// Handling of unresponsive servers.
#[derive(Args, Clone, Copy, Debug)]
pub struct WaitArgs {
    /// Maximum time that a request waits for an unresponsive server, in seconds, or `forever`. Overridden for
    /// one server by `hard` and `soft` in its URL.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = limit)]
    wait: Limit,
}

impl WaitArgs {
    /// Makes the option the default of all requests of this process ([`location::limit_waits`]).
    pub fn limit_all(self) {
        let Limit(limit) = self.wait;
        limit.into_iter().for_each(location::limit_waits);
    }
}

/// Maximum wait of a request, if any.
#[derive(Clone, Copy, Debug)]
struct Limit(Option<Duration>);

fn limit(text: &str) -> Result<Limit, String> {
    match text.parse() {
        _ if text == "forever" => Ok(Limit(None)),
        Ok(seconds @ 1..=86_400) => Ok(Limit(Some(Duration::from_secs(seconds)))),
        _ => Err("a number of seconds from 1 to 86400, or forever".into()),
    }
}

/// Server of an open export, for the display of a copy's progress.
#[derive(Clone)]
pub struct Watched {
    pub host: String,
    export: Arc<NfsExport>,
}

impl Watched {
    /// Returns `true` if the server has left requests unanswered for some seconds.
    pub fn is_unresponsive(&self) -> bool {
        !self.export.counts().unresponsive.is_zero()
    }
}

/// An attached export of a server.
struct OpenExport {
    /// Key from [`on_server`].
    server: String,
    /// Path of the export on the server.
    path: Vec<u8>,
    tree: Tree,
}

/// Realm ([`User::realm`]) of this host's files.
const LOCAL: &str = "local";

/// A path in an attached tree. The file need not exist.
#[derive(Clone, Debug)]
pub struct OpenPath {
    pub tree: Tree,
    /// Path in the tree: components separated by `/`; empty for the root.
    pub path: Vec<u8>,
    /// Location as the user wrote it.
    pub label: Vec<u8>,
    /// `label` for messages, with control characters escaped.
    pub word: String,
    pub is_remote: bool,
}

/// Returns a file's current attributes from its server.
pub fn attr_of(location: &Location) -> Result<Attr, Failure> {
    let place = Opener::new().open(location, End::Target)?;
    let node = place.find_or_fail(Last::Follow)?;
    node.attr_now().wait().map_err(|error| place.cannot("get attributes of", &error))
}

impl Opener {
    pub fn new() -> Self {
        // Every open directory and every file being copied takes some descriptors.
        if let Err(errno) = process::raise_open_file_limit() {
            tracing::debug!(%errno, "cannot raise the limit of open files");
        }
        Self {
            myself: Myself::ask(),
            unless_asked: &[],
            servers: Vec::new(),
            since: Instant::now(),
            limit: OpenOptions::default().limit,
            watched: Vec::new(),
        }
    }

    /// Returns an opener for copies, which limit their own concurrency: an adaptive limit would delay the
    /// writes of many small files, and two connections use two threads of most servers.
    pub fn for_copies() -> Self {
        Self { unless_asked: &["inflight=64", "nconnect=2"], ..Self::new() }
    }

    /// Returns the opener with the limit of `--wait` for unresponsive servers.
    pub fn limited(self, WaitArgs { wait: Limit(limit) }: WaitArgs) -> Self {
        Self { limit, ..self }
    }

    pub fn watched(&self) -> Vec<Watched> {
        self.watched.clone()
    }

    /// Opens the export that contains a location, or reuses one opened earlier on the same server.
    pub fn open(&mut self, location: &Location, end: End) -> Result<OpenPath, Failure> {
        let label = label_of(location);
        let word = super::shown::name(&label);
        let nfs = self.options(location);
        let options =
            OpenOptions { end, nfs, since: Some(self.since), limit: self.limit, ..OpenOptions::default() };
        let Some((server, whole)) = on_server(location) else {
            let opened = location.open(&options)?;
            let tree = self.attach(&*opened.export, LOCAL.into(), &word)?;
            return Ok(OpenPath { tree, path: opened.path, label, word, is_remote: false });
        };
        let known = self.servers.iter().find_map(|export| {
            let path = (export.server == server).then(|| within(&export.path, &whole)).flatten()?;
            Some((export.tree.clone(), path.to_vec()))
        });
        if let Some((tree, path)) = known {
            return Ok(OpenPath { tree, path, label, word, is_remote: true });
        }
        let opened = location.open(&options)?;
        let export = export_of(&whole, &opened.path);
        let realm = match location {
            Location::Nfs(url) => {
                let host = url.host.to_string();
                self.watched.extend(opened.nfs.map(|export| Watched { host, export }));
                format!("{}:{}", url.host, url.port.map_or(String::new(), |port| port.to_string()))
            }
            _ => String::from_utf8_lossy(export.unwrap_or(&whole)).into_owned(),
        };
        let tree = self.attach(&*opened.export, realm, &word)?;
        // Not reused if the whole path is the export: a later location below it may be in a nested export.
        if let Some(path) = export.filter(|_| !opened.path.is_empty()) {
            self.servers.push(OpenExport { server, path: path.to_vec(), tree: tree.clone() });
        }
        Ok(OpenPath { tree, path: opened.path, label, word, is_remote: true })
    }

    fn options(&self, location: &Location) -> NfsOptions {
        let mut options = NfsOptions::default();
        let Location::Nfs(url) = location else { return options };
        let said: Vec<_> = url.options.words().map(Setting::from).collect();
        // UDP uses a single socket, and its losses determine the limit.
        if said.iter().any(|said| matches!(said.text, "udp" | "proto=udp")) {
            return options;
        }
        for setting in self.unless_asked.iter().map(|text| Setting::from(*text)) {
            if !said.iter().any(|said| said.name == setting.name)
                && let Err(reason) = options.add(setting)
            {
                tracing::debug!(setting = setting.text, reason, "default option refused");
            }
        }
        options
    }

    fn attach(
        &self,
        export: &dyn tombolo_core::fs::Export,
        realm: String,
        word: &str,
    ) -> Result<Tree, Failure> {
        let Myself { identity, umask } = self.myself.clone();
        // The kernel checks permissions for files of this host, unless this process may act as other users.
        let is_own = realm == LOCAL && !creds::may_assume();
        let attach = if is_own { Tree::attach_own } else { Tree::attach };
        attach(export, User { identity, umask, realm }).or_cannot(format_args!("open {word}"))
    }
}

impl OpenPath {
    /// Returns the same path, which messages then name by `location`.
    pub fn called(self, location: &Location) -> Self {
        let label = label_of(location);
        Self { word: super::shown::name(&label), label, ..self }
    }

    /// Looks up the node at this path; `last` determines if a symbolic link at its end is followed.
    pub fn find(&self, last: Last) -> Result<Node, Error> {
        block_on(self.tree.find(&self.path, last))
    }

    /// Looks up the node as [`OpenPath::find`] does. The failure names the path.
    pub fn find_or_fail(&self, last: Last) -> Result<Node, Failure> {
        self.find(last).map_err(|error| self.cannot("find", &error))
    }

    pub fn parent(&self) -> Result<(Node, NameBuf), Error> {
        block_on(self.tree.find_parent(&self.path))
    }

    /// Returns a failure that names this path.
    pub fn cannot(&self, what: &str, error: &Error) -> Failure {
        problem::cannot(format_args!("{what} {}", self.word), error, &self.tree)
    }
}

/// Returns the last name of a location, for a copy. `None` for `.`, `..` and `/`, of which the contents are
/// copied.
pub fn own_name(location: &Location) -> Option<NameBuf> {
    let bytes = match location {
        Location::Nfs(url) => url.path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty())?.to_vec(),
        Location::Shm(place) => place.name()?.as_bytes().to_vec(),
        Location::NfsShm(url) => url.place.name()?.as_bytes().to_vec(),
        Location::Dir(path) => match path.components().next_back()? {
            Component::Normal(name) if !ends_with_dot(path) => name.as_bytes().to_vec(),
            _ => return None,
        },
    };
    Name::new(&bytes).ok().map(Name::to_owned)
}

/// Returns `true` if the path ends in `.`, which `Path` omits.
fn ends_with_dot(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/.") || bytes.ends_with(b"/./")
}

/// Returns the location as the user wrote it: without `dir:` if it is only a path.
pub fn label_of(location: &Location) -> Vec<u8> {
    match location {
        Location::Dir(path) => path.as_os_str().as_bytes().to_vec(),
        Location::Nfs(_) | Location::Shm(_) | Location::NfsShm(_) => location.to_string().into_bytes(),
    }
}

/// Returns the server, with the client's options, and a path on it that begins with an export; `None` for
/// this host.
fn on_server(location: &Location) -> Option<(String, Vec<u8>)> {
    match location {
        Location::Nfs(url) => {
            let server = NfsUrl { path: b"/".to_vec(), ..url.clone() };
            Some((server.to_string(), url.path.clone()))
        }
        Location::Shm(place) => Some(("shm".into(), place.to_string().into_bytes())),
        Location::NfsShm(url) => {
            let options: Vec<_> = url.options.words().collect();
            Some((format!("nfs+shm?{}", options.join("&")), url.place.to_string().into_bytes()))
        }
        Location::Dir(_) => None,
    }
}

/// Returns the part of `whole` before its suffix `path`; `None` if it does not end so.
fn export_of<'a>(whole: &'a [u8], path: &[u8]) -> Option<&'a [u8]> {
    let export = whole.strip_suffix(path)?;
    (path.is_empty() || export.ends_with(b"/")).then(|| export.strip_suffix(b"/").unwrap_or(export))
}

/// Returns the part of `path` within `export`; `None` if it is outside.
fn within<'a>(export: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let export = export.strip_suffix(b"/").unwrap_or(export);
    match path.strip_prefix(export)? {
        [] => Some(&[]),
        rest => rest.strip_prefix(b"/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_called_like_its_source() {
        let named = |word: &str| {
            let location = Location::of_word(word.as_ref()).expect(word);
            own_name(&location).map(|name| name.as_name().to_string())
        };
        for (word, name) in [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("dir:x", Some("x")),
            ("shm:x.sock/src/y", Some("y")),
            ("shm:x.sock/src/..", None),
            (".", None),
            ("a/..", None),
            ("a/.", None),
            ("/", None),
            ("nfs://host/srv/x", Some("x")),
            ("nfs://host/", None),
        ] {
            assert_eq!(named(word).as_deref(), name, "{word}");
        }
    }

    #[test]
    fn client_options_of_a_url_are_used() {
        let words = |url: &str| -> Vec<String> {
            let opener = Opener::for_copies();
            opener.options(&url.parse().expect(url)).words().map(str::to_owned).collect()
        };
        assert_eq!(words("nfs://h/a"), ["inflight=64", "nconnect=2"]);
        assert_eq!(words("nfs://h/a?inflight=auto&soft"), ["nconnect=2"]);
        assert!(words("nfs://h/a?proto=udp").is_empty() && words("dir:/a").is_empty());
    }

    #[test]
    fn paths_in_an_export_are_relative_to_its_path() {
        assert_eq!(within(b"/srv", b"/srv/a/b"), Some(&b"a/b"[..]));
        assert_eq!(within(b"/", b"/a"), Some(&b"a"[..]));
        assert_eq!(within(b"/srv", b"/srvx/a"), None);
        assert_eq!(within(b"/srv", b"/srv"), Some(&b""[..]));
        assert_eq!(export_of(b"shm:s/tree/a/b", b"a/b"), Some(&b"shm:s/tree"[..]));
        assert_eq!(export_of(b"/srv", b""), Some(&b"/srv"[..]));
        assert_eq!(export_of(b"/a", b"a"), Some(&b""[..]));
        assert_eq!(export_of(b"shm:s/tree//a//b", b"a/b"), None);
    }
}
