//! Caches of images on NFS servers: one proxy per tree and cache directory, shared by all VMs of this user.
//! The first command that needs a proxy starts it, supervisors of VMs restart it, and it ends by itself when
//! unused.

use std::env;
use std::fs::{DirBuilder, File};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf, absolute};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use libtombolo::block_on;
use serde::{Deserialize, Serialize};
use tombolo_back_vrpc_client::{LinkLossPolicy, VrpcExport};
use tombolo_core::block::OpenOptions as DiskOpenOptions;
use tombolo_core::mem::Buffer;
use tombolo_core::{Ctx, SessionId};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_host_service::control::{self, Client};
use tombolo_sys::{creds, packet, process};
use tombolo_wire_image::digest;

use super::supervisor::see;
use crate::assembly::options::cache::Size;
use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::commands::beside;
use crate::failure::{Failure, OrCannot, Reason};
use crate::location::{Backoff, LinkOptions, Location, NfsUrl, ShmLocation, mount_shm};
use crate::service::status::{self, Status};

/// Caching of images on NFS servers.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheArgs {
    /// Directory of caches for images on NFS servers (by default $XDG_CACHE_HOME/tombolo, for root
    /// /var/cache/tombolo).
    ///
    /// VMs of images in the same directory of a server share a cache, if the server lets that directory be
    /// mounted. The proxy of a cache ends five minutes after the last VM that uses it.
    #[arg(long = "cache", value_name = "DIR", help_heading = CACHE)]
    #[serde(rename = "dir", skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
    /// Do not cache the image.
    #[arg(long, help_heading = CACHE, conflicts_with_all = ["dir", "cache_size", "data_from"])]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    no_cache: bool,
    /// Maximum size of cached data and their index in bytes; K, M, G and T are powers of 1024 (by default
    /// 8G). Applies when the proxy is started.
    #[arg(long, value_name = "SIZE", value_parser = checked::<Size>, help_heading = CACHE)]
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_size: Option<String>,
    /// Read data from the cache of another host, whose proxy of the same tree is served as
    /// nfs://HOST[:PORT]/NAME. That host need not be trusted. Applies when the proxy is started.
    #[arg(long, value_name = "URL", value_parser = checked::<NfsUrl>, help_heading = CACHE)]
    #[serde(skip_serializing_if = "Option::is_none")]
    data_from: Option<String>,
}

const CACHE: &str = "Cache";

/// Validates a word that is passed to another command.
fn checked<T: FromStr<Err = String>>(text: &str) -> Result<String, String> {
    text.parse::<T>().map(|_| text.into())
}

impl CacheArgs {
    /// Makes the cache directory absolute, since other commands may run in another working directory.
    pub fn absolute(self) -> Result<Self, Failure> {
        let dir = self.dir.map(absolute).transpose().or_cannot("find the cache directory")?;
        Ok(Self { dir, ..self })
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn base(&self) -> Result<PathBuf, Failure> {
        let given = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let usual = || match (given("XDG_CACHE_HOME"), given("HOME")) {
            (Some(cache), _) => Some(cache.join("tombolo")),
            (None, _) if creds::own_ids().0 == 0 => Some("/var/cache/tombolo".into()),
            (None, home) => home.map(|home| home.join(".cache/tombolo")),
        };
        self.dir.clone().or_else(usual).ok_or_else(|| {
            Failure::cannot("cache the image", "neither XDG_CACHE_HOME nor HOME is set")
                .remedy("name a directory with --cache DIR, or use --no-cache")
        })
    }
}

/// Time after which an unused proxy ends, in seconds.
const UNUSED_SECONDS: &str = "300";

/// Maximum wait for a proxy that is just ending.
const END_TIMEOUT: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Size in bytes of the read that makes a proxy prefetch the trace of an image.
const PAGE_BYTES: usize = 4096;

/// Interval of checks that a link is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum pause between attempts to restart a proxy with an unreachable server.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A running proxy. While this value lives, the proxy is restarted when it ends; its users wait meanwhile.
pub struct ImageCache {
    /// Dropping this ends the restarts.
    _wanted: Arc<()>,
    url: NfsUrl,
    place: ShmLocation,
    control: PathBuf,
}

/// A connection to a running proxy, which keeps the proxy in use.
struct Link {
    process: OwnedFd,
    _link: VrpcExport,
}

impl ImageCache {
    /// Starts the proxy of an image on an NFS server, unless one runs already, and restarts it while the
    /// result lives. `None` for other images and with `--no-cache`.
    pub fn of_image(image: &Path, args: &CacheArgs) -> Result<Option<Self>, Failure> {
        let Some(url) = far(image).filter(|_| !args.no_cache) else { return Ok(None) };
        let mut proxies = proxies(url, args)?;
        let running = proxies.iter().position(|proxy| proxy.status().is_some());
        if let Some(running) = running {
            proxies.drain(..running);
        }
        let mut failed = None;
        for proxy in proxies {
            match proxy.linked() {
                Ok(link) => return proxy.kept(link).map(Some),
                Err(failure) => failed = Some(failure),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Starts the proxy of the image in whose directory the file is, as [`of_image`](Self::of_image) does.
    pub fn of_file(file: &Path, args: &CacheArgs) -> Result<Option<Self>, Failure> {
        let image = far(file).and_then(|url| above(&url));
        image.map_or(Ok(None), |image| Self::of_image(Path::new(&image.to_string()), args))
    }

    /// Returns the location by which a file is read through the proxy; `location` itself if it is outside
    /// of the proxy's tree.
    pub fn near(&self, location: &Path) -> PathBuf {
        let path = far(location).filter(|url| is_same_server(url, &self.url)).map(|url| url.path);
        let within = path.as_deref().and_then(|path| path.strip_prefix(&*self.url.path));
        let within = within.and_then(|within| str::from_utf8(within).ok());
        match within.filter(|within| within.is_empty() || within.starts_with('/')) {
            Some(within) => format!("{}{within}", self.place).into(),
            None => location.to_owned(),
        }
    }

    /// Returns the control socket of the proxy, for its counters.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Returns the control socket of the proxy of the image that contains the file, if that proxy is running.
    pub fn running(file: &Path, args: &CacheArgs) -> Option<PathBuf> {
        let image = far(file).and_then(|url| above(&url))?;
        let mut proxies = proxies(image, args).ok()?.into_iter();
        proxies.find(|proxy| proxy.status().is_some()).map(|proxy| proxy.control())
    }

    /// Starts prefetching a clone's first reads: a read of the image's memory triggers the sidecar's trace.
    pub fn look_ahead(&self, memory: &Path) {
        let near = self.near(memory);
        let look = move || {
            let pool = ThreadPool::new("ahead", ThreadPoolLimits::default());
            let options = DiskOpenOptions { read_only: true, ..DiskOpenOptions::default() };
            let source = DiskSource::of_word(&near, &ImageOptions::default());
            let Ok(opened) = source.and_then(|source| source.open(&options, &pool)) else { return };
            let page = Buffer::new(PAGE_BYTES);
            // Errors are reported to the actual readers.
            let _ =
                block_on(opened.disk.read(&Ctx::root(SessionId(0)), 0, page.sink(0..PAGE_BYTES)).resolve());
        };
        // The read-ahead may be abandoned at any time, because nothing waits for it.
        let _ = thread::Builder::new().name("ahead".into()).spawn(look);
    }
}

/// Restarts a proxy whenever it ends: always the same proxy, because readers have their links to it.
fn keep(link: Link, proxy: Proxy, wanted: Weak<()>) -> io::Result<()> {
    let keep = move || {
        let mut link = link;
        loop {
            while !packet::wait_for(&link.process, CHECK_INTERVAL).unwrap_or(true) {
                if wanted.strong_count() == 0 {
                    return;
                }
            }
            if wanted.strong_count() == 0 {
                return;
            }
            tracing::warn!(tree = %proxy.url, "image cache ended: restarting it");
            let mut backoff = Backoff::new(PAUSE_MAX, None);
            link = loop {
                match proxy.linked() {
                    Ok(again) => break again,
                    Err(_) if wanted.strong_count() == 0 => return,
                    Err(error) => tracing::warn!("{error}"),
                }
                backoff.wait();
            };
        }
    };
    thread::Builder::new().name("origin".into()).spawn(keep).map(drop)
}

/// Parses the URL of an NFS server over a network or ssh; `None` for any other location, and for a path that
/// is not UTF-8.
fn far(word: &Path) -> Option<NfsUrl> {
    match Location::of_word(word.as_os_str()) {
        Ok(Location::Nfs(url)) if str::from_utf8(&url.path).is_ok() => Some(url),
        _ => None,
    }
}

/// Returns the URL of the parent directory; `None` for a root.
fn above(url: &NfsUrl) -> Option<NfsUrl> {
    let end = url.path.iter().rposition(|byte| *byte == b'/')?;
    let path = url.path.get(..end.max(1)).filter(|path| path.len() < url.path.len())?.to_vec();
    Some(NfsUrl { path, ..url.clone() })
}

fn is_same_server(one: &NfsUrl, other: &NfsUrl) -> bool {
    NfsUrl { path: Vec::new(), ..one.clone() } == NfsUrl { path: Vec::new(), ..other.clone() }
}

/// Returns the possible proxies of the image at this URL. Unless the parent directory is a root, the first
/// serves that directory, so that images share equal blocks; not every server permits that.
fn proxies(image: NfsUrl, args: &CacheArgs) -> Result<Vec<Proxy>, Failure> {
    let trees = [above(&image).filter(|above| above.path != b"/"), Some(image)];
    trees.into_iter().flatten().map(|url| Proxy::new(url, args)).collect()
}

/// The proxy of a tree, running or not.
struct Proxy {
    url: NfsUrl,
    args: CacheArgs,
    /// Name of the proxy's cache, export and sockets.
    name: String,
    base: PathBuf,
}

impl Proxy {
    fn new(url: NfsUrl, args: &CacheArgs) -> Result<Self, Failure> {
        let base = args.base()?;
        let identity = [url.to_string().as_bytes(), base.as_os_str().as_encoded_bytes()].join(&0);
        let digest: String = digest(&identity).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { url, args: args.clone(), name: format!("images-{digest}"), base })
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.base.join(format!("{}{ending}", self.name))
    }

    /// Returns the directory of the sockets: that recorded by the login session that started the proxy,
    /// otherwise that of the present one.
    fn sockets(&self) -> PathBuf {
        let written = std::fs::read_to_string(self.file(".run")).ok().map(PathBuf::from);
        // A directory owned by another user could hold that user's sockets.
        written.filter(|usual| control::prepare(usual).is_ok()).unwrap_or_else(control::default_directory)
    }

    fn socket(&self) -> PathBuf {
        self.sockets().join(format!("{}.link", self.name))
    }

    fn control(&self) -> PathBuf {
        self.sockets().join(format!("{}.sock", self.name))
    }

    fn status(&self) -> Option<Status> {
        let control = self.control();
        control::prepare(control.parent()?).ok()?;
        let mut client = Client::connect(&control).ok()?;
        status::ask(&mut client, &control, "status").ok()
    }

    /// Returns a link to the proxy, which is started if necessary.
    fn linked(&self) -> Result<Link, Failure> {
        let end = Instant::now() + END_TIMEOUT;
        loop {
            let pid = self.started()?;
            let process = process::watched(pid).map_err(|error| self.cannot(&io::Error::from(error)))?;
            match mount_shm(&self.place()?, &LinkOptions::default(), LinkLossPolicy::Hard) {
                Ok(link) => return Ok(Link { process, _link: link }),
                Err(no) if Instant::now() > end => return Err(self.cannot(no.reason)),
                // The proxy is just ending.
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn place(&self) -> Result<ShmLocation, Failure> {
        let place = ShmLocation::new("shm", &format!("{}/{}", self.socket().display(), self.name));
        place.map_err(|reason| self.cannot(reason))
    }

    fn kept(self, link: Link) -> Result<ImageCache, Failure> {
        let (cache, cannot) = (
            ImageCache {
                _wanted: Arc::default(),
                url: self.url.clone(),
                place: self.place()?,
                control: self.control(),
            },
            self.cannot("cannot start a thread"),
        );
        keep(link, self, Arc::downgrade(&cache._wanted)).map_err(|_| cannot)?;
        Ok(cache)
    }

    fn cannot(&self, reason: impl Into<Reason>) -> Failure {
        Failure::cannot(format_args!("cache {}", self.url), reason)
    }

    /// Starts the proxy unless it is running, under a lock. Returns its process id.
    fn started(&self) -> Result<u32, Failure> {
        if let Some(status) = self.status() {
            return Ok(status.pid);
        }
        let cannot = |error: io::Error| self.cannot(&error);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.base).map_err(cannot)?;
        let log = File::options().create(true).append(true).open(self.file(".log")).map_err(cannot)?;
        log.lock().map_err(cannot)?;
        match self.status() {
            Some(status) => Ok(status.pid),
            None => self.start(),
        }
    }

    fn start(&self) -> Result<u32, Failure> {
        let usual = control::default_directory();
        // A directory created by another user could hold that user's sockets.
        control::prepare(&usual).map_err(|error| self.cannot(&error))?;
        let cannot = |error: io::Error| self.cannot(&error);
        std::fs::write(self.file(".run"), usual.as_os_str().as_encoded_bytes()).map_err(cannot)?;
        // The log gets a descriptor of its own, other than the locked one.
        let log = File::options().append(true).open(self.file(".log")).map_err(cannot)?;
        let mut command = beside("proxy", Some(&log)).map_err(cannot)?;
        command.arg(format!("{}=/{}", self.url, self.name)).arg("--cache").arg(self.file(""));
        command.args(["--mode", "read-only", "--end-when-unused", UNUSED_SECONDS]);
        command.arg("--shm").arg(self.socket()).arg("--control").arg(self.control());
        let sized = self.args.cache_size.iter().flat_map(|size| ["--cache-size", size]);
        command.args(sized.chain(self.args.data_from.iter().flat_map(|url| ["--data-from", url])));
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(cannot)?;
        let mut output =
            BufReader::new(child.stdout.take().ok_or_else(|| self.cannot("no output from the proxy"))?);
        let mut line = String::new();
        while !line.starts_with("ready control") {
            line.clear();
            if !matches!(output.read_line(&mut line), Ok(1..)) {
                let _ = child.wait();
                return Err(self.cannot(see(&self.file(".log"))));
            }
        }
        let pid = child.id();
        // Reaps the process.
        let reap = thread::Builder::new().name("reap".into()).spawn(move || child.wait());
        reap.map(|_| pid).map_err(cannot)
    }
}
