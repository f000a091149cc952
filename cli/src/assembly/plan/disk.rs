//! Sources of disks, as the user writes them, and how they are opened.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;
use std::time::Instant;

use libtombolo::block_on;
use tombolo_back_image_file::{ImageFile, OpenError, Qcow2Image};
use tombolo_back_nbd_client::{Address, NbdDisk};
use tombolo_back_nfs_client::NfsExport;
use tombolo_core::block::{BlockDevice, OpenOptions as DiskOpenOptions};
use tombolo_core::fs::{Client, PermissionCheck};
use tombolo_core::{Ctx, SessionId};
use tombolo_host_runtime::thread_pool::ThreadPool;
use tombolo_host_service::sandbox::Needs;
use tombolo_layer_file_disk::FileDisk;
use tombolo_sys::creds;

use crate::assembly::options::disk::{DiskOptions, HostCache, ImageFormat, ImageOptions};
use crate::assembly::options::nbd::{NbdTls, NbdUrl};
use crate::assembly::plan::needs;
use crate::assembly::plan::overlay::OverlaySource;
use crate::assembly::plan::tree::Tree;
use crate::commands::files::{own_name, user::Myself};
use crate::failure::{Failure, OrCannot};
use crate::location::{Location, NfsShmUrl, OpenOptions};

#[derive(Clone, Debug)]
pub enum DiskSource {
    /// Raw image or block device of this host, with or without the page cache.
    Raw { path: PathBuf, cache: HostCache },
    /// qcow2 image, and an additional directory for backing files.
    Qcow2 { path: PathBuf, backing_dir: Option<PathBuf> },
    /// Changes over another disk.
    Overlay(OverlaySource),
    /// Disk of an NBD server.
    Nbd(NbdUrl),
    /// File at a location, such as one of an NFS server.
    File(Location),
}

#[derive(Clone, Debug)]
pub struct DiskPlan {
    pub name: String,
    pub source: DiskSource,
    pub options: DiskOptions,
}

impl DiskPlan {
    pub fn new(options: DiskOptions) -> Result<Self, Failure> {
        let source = DiskSource::of_word(&options.file, &options.image())?.with_cache(options.cache)?;
        let name = options.name.clone().unwrap_or_else(|| source.name());
        let is_served =
            !(options.vhost_user.is_empty() && options.nbd.is_empty() && options.nbd_tls.is_empty());
        if !is_served && options.mount.is_none() {
            let problem = format!("no endpoint given for disk {name}");
            return Err(
                Failure::usage(problem).remedy("add --vhost-user SOCKET, --nbd ADDR or --nbd-tls ADDR")
            );
        }
        Ok(Self { name, source, options })
    }

    /// Checks several disks of one server, whose names must differ. A read-only server makes them all
    /// read-only.
    pub fn all(disks: Vec<DiskOptions>, read_only: bool) -> Result<Vec<Self>, Failure> {
        let mut plans: Vec<Self> = Vec::with_capacity(disks.len());
        for options in disks {
            let plan = Self::new(DiskOptions { read_only: options.read_only || read_only, ..options })?;
            if plans.iter().any(|other| other.name == plan.name) {
                let clash = format!("cannot serve {}: duplicate disk name {}", plan.source, plan.name);
                return Err(Failure::usage(clash).remedy("rename one of them"));
            }
            plans.push(plan);
        }
        Ok(plans)
    }
}

/// A disk opened by [`DiskSource::open`].
pub struct OpenedDisk {
    pub disk: Arc<dyn BlockDevice>,
    /// NFS client that reads the disk, for its counters; `None` if no file of the disk is on an NFS server.
    pub client: Option<Arc<NfsExport>>,
}

impl DiskSource {
    /// Parses a disk argument: a URL, a location, or a local file. The format of a file is given explicitly
    /// or by its name, never guessed from the contents: the guest of a raw image could write the header of an
    /// image with a backing file there.
    pub fn of_word(word: &Path, options: &ImageOptions) -> Result<Self, Failure> {
        let source = Self::of_any_word(word, options)?;
        if !options.base.is_empty() && !matches!(source, Self::Overlay(_)) {
            return Err(Failure::usage(format!("--base requires an overlay, and {source} is not one"))
                .remedy("create one: tombolo disk create NAME.overlay --base DISK"));
        }
        Ok(source)
    }

    fn of_any_word(word: &Path, options: &ImageOptions) -> Result<Self, Failure> {
        let format = options.format;
        if let Some(url) = NbdUrl::parse(word) {
            return url.map(Self::Nbd).map_err(Failure::usage);
        }
        if !Self::is_elsewhere(word) {
            let path = word.to_owned();
            return Ok(match format.unwrap_or_else(|| ImageFormat::of_name(word)) {
                ImageFormat::Raw => Self::Raw { path, cache: HostCache::Host },
                ImageFormat::Qcow2 => Self::Qcow2 { path, backing_dir: options.backing_dir.clone() },
                ImageFormat::Overlay => Self::Overlay(OverlaySource::new(path, options)),
            });
        }
        let location = Location::of_word(word.as_os_str()).map_err(Failure::usage)?;
        let source = Self::File(location.clone());
        let says_overlay = || ImageFormat::of_name(Path::new(&source.name())) == ImageFormat::Overlay;
        match format {
            Some(ImageFormat::Qcow2) => Err(Failure::usage("--format qcow2 requires a local file")),
            Some(ImageFormat::Overlay) => Ok(location),
            None if says_overlay() => Ok(location),
            None | Some(ImageFormat::Raw) => return Ok(source),
        }
        .map(|location| Self::Overlay(OverlaySource::elsewhere(word.to_owned(), location, options)))
    }

    /// Returns the disk with this host cache mode. Only raw images and block devices support `none`.
    pub fn with_cache(self, cache: HostCache) -> Result<Self, Failure> {
        match self {
            Self::Raw { path, .. } => Ok(Self::Raw { path, cache }),
            other if cache == HostCache::Host => Ok(other),
            _ => Err(Failure::usage("--cache none requires a local raw image or block device")),
        }
    }

    /// Returns `true` if the argument is a URL or a location with a scheme (`dir:` included), not a plain
    /// path.
    pub fn is_elsewhere(word: &Path) -> bool {
        NbdUrl::parse(word).is_some() || Tree::is_location(word)
    }

    /// Returns the local file of the disk: an image, a block device or a redo log; `None` for other disks.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Raw { path, .. }
            | Self::Qcow2 { path, .. }
            | Self::Overlay(OverlaySource { path, location: None, .. }) => Some(path),
            Self::Overlay(_) | Self::Nbd(_) | Self::File(_) => None,
        }
    }

    /// Returns the location of a disk or redo log that is a file at one; `None` for others.
    pub fn location(&self) -> Option<&Location> {
        match self {
            Self::File(location) | Self::Overlay(OverlaySource { location: Some(location), .. }) => {
                Some(location)
            }
            _ => None,
        }
    }

    /// Returns the default name: the file's, or that of the NBD export; `disk` if neither is usable.
    pub fn name(&self) -> String {
        let of_file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = match self {
            Self::Nbd(url) => Some(url.export.clone()).filter(|name| !name.is_empty() && !name.contains('/')),
            _ if self.location().is_some() => self
                .location()
                .and_then(own_name)
                .map(|name| String::from_utf8_lossy(name.as_name().as_bytes()).into_owned()),
            _ => self.file().and_then(of_file),
        };
        name.unwrap_or_else(|| "disk".into())
    }

    /// Returns the name of the format: as for `--format`, or `nbd` or `file` for a disk of a server.
    pub fn format(&self) -> &'static str {
        match self {
            Self::Raw { .. } => "raw",
            Self::Qcow2 { .. } => "qcow2",
            Self::Overlay(_) => "overlay",
            Self::Nbd(_) => "nbd",
            Self::File(_) => "file",
        }
    }

    /// Returns the source as shown by `status`.
    pub fn shown(&self) -> String {
        format!("disk:{self}")
    }

    /// Returns `true` if opening the disk only opens local files, which starts no thread.
    pub fn is_of_this_host(&self) -> bool {
        match self {
            Self::Raw { .. } | Self::Qcow2 { .. } => true,
            Self::Overlay(overlay) => {
                overlay.location.is_none() && overlay.base().is_ok_and(|base| base.is_of_this_host())
            }
            Self::Nbd(_) | Self::File(_) => false,
        }
    }

    /// Returns `true` if the disk, or a layer of an overlay, is a file at a `shm:` location.
    pub fn is_behind_memory(&self) -> bool {
        match self {
            Self::Overlay(overlay) => overlay.is_behind_memory(),
            other => matches!(other, Self::File(Location::Shm(_))),
        }
    }

    /// Returns the needs of serving the disk, besides open files.
    pub fn needs(&self) -> Needs {
        match self {
            Self::Raw { cache, .. } => Needs { has_ring: *cache == HostCache::None, ..Needs::default() },
            Self::Qcow2 { .. } => Needs::default(),
            Self::Overlay(overlay) => overlay.needs(),
            Self::File(Location::Dir(path)) => {
                // A symbolic link is followed: the directory of its target is the one needed.
                let target = path.canonicalize().or_else(|_| absolute(path)).unwrap_or_else(|_| path.clone());
                let dir = target.parent().unwrap_or(&target).to_owned();
                Needs { changes: vec![dir], ..Needs::default() }
            }
            Self::File(Location::Nfs(url)) => needs::of_client(url),
            Self::File(Location::Shm(place) | Location::NfsShm(NfsShmUrl { place, .. })) => {
                needs::of_shm_client(place)
            }
            Self::Nbd(url) => {
                let mut needs = Needs { connects: true, looks_up: url.is_by_name(), ..Needs::default() };
                let dir = url.tls.as_ref().and_then(|tls| tls.dir().ok());
                needs.reads.extend(dir.iter().flat_map(|dir| needs::with_targets(dir)));
                if let Address::Unix(socket) = &url.server {
                    needs.reaches.push(socket.clone());
                }
                needs
            }
        }
    }

    /// Opens the disk. The pool performs blocking operations on local disks.
    pub fn open(&self, options: &DiskOpenOptions, pool: &ThreadPool) -> Result<OpenedDisk, Failure> {
        let disk: Arc<dyn BlockDevice> = match self {
            Self::Raw { path, cache: HostCache::Host } => {
                ImageFile::open(path, options, pool.lane()).or_cannot("use a disk")?
            }
            Self::Raw { path, cache: HostCache::None } => ImageFile::open_direct(path, options, pool.lane())
                .map_err(|error| {
                    let is_refused = matches!(error, OpenError::NotDirect { .. });
                    Failure::cannot("use a disk", &error).remedy_if(is_refused, "omit --cache none")
                })?,
            Self::Qcow2 { path, backing_dir } => {
                Qcow2Image::open(path, options, backing_dir.as_deref(), pool.lane())
                    .or_cannot("use a disk")?
            }
            Self::Overlay(overlay) => return overlay.open(options, pool),
            Self::Nbd(url) => {
                let tls = url.tls.as_ref().map(NbdTls::open).transpose()?;
                NbdDisk::connect(url.server.clone(), tls, &url.export)
                    .or_cannot(format_args!("open disk {url}"))?
            }
            Self::File(location) => return open_file(location, options),
        };
        Ok(OpenedDisk { disk, client: None })
    }
}

/// Session in which a disk that is a file is opened.
const SESSION: SessionId = SessionId(0);

pub fn open_file(location: &Location, options: &DiskOpenOptions) -> Result<OpenedDisk, Failure> {
    let DiskOpenOptions { read_only, .. } = *options;
    let Myself { identity, .. } = Myself::ask();
    let opened =
        location.open(&OpenOptions { read_only, since: Some(Instant::now()), ..OpenOptions::default() })?;
    // As in the file commands, the back end checks permissions, except in a local directory for a process
    // that may not assume identities: there the kernel does.
    let is_own = matches!(location, Location::Dir(_)) && !creds::may_assume();
    let checks = if is_own { PermissionCheck::Caller } else { PermissionCheck::BackEnd };
    let client = Client { session: SESSION, label: "disk".into(), checks };
    let serving = format!("use {location} as a disk");
    let fs = opened.export.attach(&client).or_cannot(&serving)?;
    let cx = Ctx { identity, ..Ctx::root(SESSION) };
    let disk = block_on(FileDisk::open(fs, cx, &opened.path, options)).or_cannot(&serving)?;
    Ok(OpenedDisk { disk, client: opened.nfs })
}

impl fmt::Display for DiskSource {
    /// Formats the source as a URL, a location or an absolute path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlay(OverlaySource { location: Some(location), .. }) => location.fmt(f),
            Self::Raw { path, .. } | Self::Qcow2 { path, .. } | Self::Overlay(OverlaySource { path, .. }) => {
                absolute(path).unwrap_or_else(|_: io::Error| path.clone()).display().fmt(f)
            }
            Self::Nbd(url) => url.fmt(f),
            Self::File(location) => location.fmt(f),
        }
    }
}
