//! Mounter of a sandboxed server: a second process of this program, outside the sandbox. Mount points and
//! their options are fixed at its start, except the kernel's permission checks and read-ahead. A request of
//! the server selects a mount point, by its index, and an operation.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use clap::Args;
use serde::{Deserialize, Serialize};
use tombolo_front_fuse::dev::{DirectMounter, MountError, Mounter, Options};
use tombolo_host_runtime::signals;
use tombolo_host_service::sandbox::helper::{Helper, answer_all, sockets};
use tombolo_sys::mounts::{self, MountId};
use tombolo_sys::open::open_root;
use tombolo_sys::{Errno, Result as SysResult};

use super::beside;
use crate::failure::{Failure, OrCannot, Outcome};

/// Mount and unmount for the server that started this process.
#[derive(Args)]
pub struct MounterArgs {
    /// Mount points and options: a JSON `MountSpec` each.
    places: Vec<String>,
}

const NAME: &str = "mounter";

/// A permitted mount and its options.
#[derive(Debug, Serialize, Deserialize)]
struct MountSpec {
    target: PathBuf,
    source: String,
    allow_other: bool,
    read_only: bool,
    devices: bool,
    set_id: bool,
    exec: bool,
}

/// Request for one of the mount points.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Request {
    Prepare,
    Mount { kernel_checks: bool },
    Unmount { by_helper: bool, detach: bool },
    ReadAhead { bytes: u32 },
}

/// Answer to a [`Request`]. With `Mounted` the descriptor of the FUSE device is passed; `by_helper` is `true`
/// if fusermount3 has mounted, which must then unmount too.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Prepared { path: PathBuf, was_dead: bool },
    Mounted { by_helper: bool },
    Failed(RemoteError),
}

/// An error that can be sent to another process.
#[derive(Debug, Serialize, Deserialize)]
struct RemoteError {
    /// `true` if the device failed, not the mount point.
    is_device: bool,
    errno: Option<i32>,
    text: String,
}

/// Starts the mounter; returns one handle per mount point, in order.
pub fn start(places: &[(&Path, Options)], log: Option<&File>) -> Result<Vec<Arc<dyn Mounter>>, Failure> {
    let word = |place: &(&Path, Options)| Ok(serde_json::to_string(&MountSpec::new(place.0, &place.1)?)?);
    let words = places.iter().map(word).collect::<io::Result<Vec<_>>>();
    let started = words.and_then(|words| Helper::start(beside(NAME, log)?.arg("--").args(words), 1));
    let started = started.map(Arc::new).or_cannot("start the mounter of the sandboxed server")?;
    let one = |place| Arc::new(RemoteMounter { helper: Arc::clone(&started), place }) as Arc<dyn Mounter>;
    Ok((0..places.len()).map(one).collect())
}

impl MounterArgs {
    /// Serves the socket at standard input.
    pub fn run(self) -> Outcome {
        const MOUNTING: &str = "mount for a server";
        let places = self.places.iter().map(|word| serde_json::from_str(word).map(MountState::of));
        let places = places.collect::<Result<Vec<_>, _>>().map_err(io::Error::from);
        let mut places = places.or_cannot(MOUNTING)?;
        let socket = io::stdin().as_fd().try_clone_to_owned().or_cannot(MOUNTING)?;
        // A terminal's signals reach this process too. It ignores them, because it must end after the server.
        signals::on_stop(|_| {}).or_cannot(MOUNTING)?;
        let sockets = sockets(socket).or_cannot(MOUNTING)?;
        let mut answer = |request: &[u8], _: &[OwnedFd]| {
            let asked: Option<(usize, Request)> = serde_json::from_slice(request).ok();
            let place = asked.and_then(|(place, request)| Some((places.get_mut(place)?, request)));
            let (answer, device) = match place.map(|(place, request)| place.perform(&request)) {
                Some(Ok(done)) => done,
                Some(Err(failed)) => (Answer::Failed(failed), None),
                None => (Answer::Failed(RemoteError::of(&Errno::INVAL.into())), None),
            };
            (serde_json::to_vec(&answer).unwrap_or_default(), device)
        };
        sockets.iter().try_for_each(|socket| answer_all(socket, &mut answer)).or_cannot(MOUNTING)
    }
}

/// A mount point, on the mounter's side.
struct MountState {
    target: PathBuf,
    /// Set by [`Request::Prepare`], which precedes all other requests.
    prepared: Option<Prepared>,
    stage: Stage,
    options: Options,
}

/// State of a mount point. A compromised server could place symbolic links on its path, or have another mount
/// moved there; therefore a mount point is prepared at most once, one mount is attempted, and only that mount
/// is unmounted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unmounted,
    Mounted(MountId),
    /// An unmount was attempted, and may have failed because the mount is in use; it can still be detached.
    Busy(MountId),
    /// Unmounted again, or the mount failed: all further requests are refused.
    Over,
}

/// A mount point as it was at the start.
struct Prepared {
    /// Path without symbolic links.
    path: PathBuf,
    /// Parent directory.
    dir: OwnedFd,
}

impl Prepared {
    fn new(path: PathBuf) -> io::Result<Self> {
        let dir = open_root(path.parent().ok_or(Errno::INVAL)?)?;
        Ok(Self { path, dir })
    }

    fn name(&self) -> &[u8] {
        self.path.file_name().unwrap_or_default().as_bytes()
    }

    fn mounted(&self) -> SysResult<MountId> {
        mounts::mounted_at(self.dir.as_fd(), self.name())
    }

    fn unmount(&self, mount: MountId, by_helper: bool, detach: bool) -> io::Result<()> {
        if !by_helper {
            return Ok(mounts::unmount_if(self.dir.as_fd(), self.name(), mount, detach)?);
        }
        if self.mounted()? != mount {
            return Err(Errno::INVAL.into());
        }
        DirectMounter.unmount(&self.path, by_helper, detach)
    }
}

impl MountState {
    fn of(place: MountSpec) -> Self {
        let MountSpec { target, source, allow_other, read_only, devices, set_id, exec } = place;
        let options = Options { source, allow_other, read_only, devices, set_id, exec, ..Options::default() };
        Self { target, prepared: None, stage: Stage::Unmounted, options }
    }

    fn perform(&mut self, request: &Request) -> Result<(Answer, Option<OwnedFd>), RemoteError> {
        let refused = || RemoteError::of(&Errno::PERM.into());
        let prepared = match (&self.prepared, request) {
            (None, Request::Prepare) => {
                let (path, was_dead) = DirectMounter.prepare(&self.target)?;
                self.prepared = Some(Prepared::new(path.clone()).map_err(|error| RemoteError::of(&error))?);
                return Ok((Answer::Prepared { path, was_dead }, None));
            }
            (Some(_), Request::Prepare) | (None, _) => return Err(refused()),
            (Some(prepared), _) => prepared,
        };
        let done = match (*request, self.stage) {
            (Request::Mount { kernel_checks }, Stage::Unmounted) => {
                // A mount is attempted once, even if it fails or a symbolic link redirects it.
                self.stage = Stage::Over;
                let (device, by_helper) =
                    DirectMounter.mount(&prepared.path, &self.options, kernel_checks)?;
                self.stage =
                    Stage::Mounted(prepared.mounted().map_err(|errno| RemoteError::of(&errno.into()))?);
                return Ok((Answer::Mounted { by_helper }, Some(device)));
            }
            (Request::Unmount { by_helper, detach: false }, Stage::Mounted(mount)) => {
                self.stage = Stage::Busy(mount);
                prepared.unmount(mount, by_helper, false).inspect(|()| self.stage = Stage::Over)
            }
            (Request::Unmount { by_helper, detach: true }, Stage::Mounted(mount) | Stage::Busy(mount)) => {
                prepared.unmount(mount, by_helper, true).inspect(|()| self.stage = Stage::Over)
            }
            (Request::ReadAhead { bytes }, Stage::Mounted(_)) => {
                DirectMounter.read_ahead(&prepared.path, bytes)
            }
            _ => return Err(refused()),
        };
        done.map(|()| (Answer::Done, None)).map_err(|error| RemoteError::of(&error))
    }
}

impl MountSpec {
    fn new(target: &Path, options: &Options) -> io::Result<Self> {
        let Options { allow_other, read_only, devices, set_id, exec, .. } = *options;
        let (target, source) = (absolute(target)?, options.source.clone());
        Ok(Self { target, source, allow_other, read_only, devices, set_id, exec })
    }
}

impl RemoteError {
    fn of(error: &io::Error) -> Self {
        Self { is_device: false, errno: error.raw_os_error(), text: error.to_string() }
    }

    fn into_io(self) -> io::Error {
        self.errno.map_or_else(|| io::Error::other(self.text), io::Error::from_raw_os_error)
    }
}

impl From<MountError> for RemoteError {
    fn from(error: MountError) -> Self {
        match error {
            MountError::Device(errno) => Self { is_device: true, ..Self::of(&errno.into()) },
            MountError::Target { source, .. }
            | MountError::Mount { source, .. }
            | MountError::Thread(source) => Self::of(&source),
            MountError::FileSystem(_) => Self::of(&Errno::INVAL.into()),
        }
    }
}

/// A mount point, on the server's side.
struct RemoteMounter {
    helper: Arc<Helper>,
    place: usize,
}

impl fmt::Debug for RemoteMounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMounter").field("place", &self.place).finish_non_exhaustive()
    }
}

impl RemoteMounter {
    fn ask(&self, request: Request) -> io::Result<Result<(Answer, Option<OwnedFd>), RemoteError>> {
        let request = serde_json::to_vec(&(self.place, request))?;
        let (answer, descriptor) = self.helper.ask(&request, &[])?;
        Ok(match serde_json::from_slice(&answer)? {
            Answer::Failed(failed) => Err(failed),
            answer => Ok((answer, descriptor)),
        })
    }

    /// Performs a request without a result.
    fn perform_remote(&self, request: Request) -> io::Result<()> {
        self.ask(request)?.map(drop).map_err(RemoteError::into_io)
    }
}

impl Mounter for RemoteMounter {
    fn prepare(&self, target: &Path) -> Result<(PathBuf, bool), MountError> {
        let fail = |source| MountError::Target { path: target.into(), source };
        match self.ask(Request::Prepare).map_err(fail)? {
            Ok((Answer::Prepared { path, was_dead }, _)) => Ok((path, was_dead)),
            Ok(_) => Err(fail(Errno::PROTO.into())),
            Err(failed) => Err(fail(failed.into_io())),
        }
    }

    fn mount(&self, path: &Path, _: &Options, kernel_checks: bool) -> Result<(OwnedFd, bool), MountError> {
        let fail = |source| MountError::Mount { path: path.into(), source };
        match self.ask(Request::Mount { kernel_checks }).map_err(fail)? {
            Ok((Answer::Mounted { by_helper }, Some(device))) => Ok((device, by_helper)),
            Ok(_) => Err(fail(Errno::PROTO.into())),
            Err(RemoteError { is_device: true, errno: Some(errno), .. }) => {
                Err(MountError::Device(Errno::from_raw_os_error(errno)))
            }
            Err(failed) => Err(fail(failed.into_io())),
        }
    }

    fn unmount(&self, _: &Path, by_helper: bool, detach: bool) -> io::Result<()> {
        self.perform_remote(Request::Unmount { by_helper, detach })
    }

    fn read_ahead(&self, _: &Path, bytes: u32) -> io::Result<()> {
        self.perform_remote(Request::ReadAhead { bytes })
    }
}
