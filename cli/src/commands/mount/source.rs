//! Source of a mount: validated, opened and named.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_nfs_client::NfsExport;
use tombolo_back_vrpc_client::LinkLossPolicy;
use tombolo_core::fs::Export;
use tombolo_host_links::bell::BellSource;
use tombolo_host_links::shared_memory::MemoryLocation;
use tombolo_host_service::sandbox::Needs;
use tombolo_sys::open::Reopen;

use crate::failure::{Failure, OrCannot, Reason};
use crate::location::{
    self, Backoff, LinkOptions, Location, NfsOption, NfsOptions, NfsShmUrl, NotMounted, OpenOptions,
    Reachability, ShmEndpoint, ShmParts,
};

use super::Mount;
use super::options::{Locks, MountOptions};
use crate::assembly::options::bell::BellArg;
use crate::assembly::options::coherence::Coherence;
use crate::assembly::plan::needs;
use crate::mount_point::MountTable;

pub struct Source {
    pub export: Arc<dyn Export>,
    pub nfs: Option<Arc<NfsExport>>,
}

/// Makes the location absolute, and resolves the symbolic links of a directory; fails if the directory does
/// not exist or the options do not apply. Servers are not contacted.
pub fn checked(location: Location, options: &MountOptions) -> Result<Location, Failure> {
    match &location {
        Location::Nfs(_) | Location::NfsShm(_) | Location::Shm(_) if options.submounts.is_some() => Err(
            Failure::usage("mount option submounts=… is for local directories: a server decides by itself"),
        ),
        Location::Nfs(_) | Location::NfsShm(_) | Location::Shm(_) if !options.ask.is_empty() => {
            let problem = "mount option ask=… is for local directories";
            Err(Failure::usage(problem).remedy("for shared-memory servers use `tombolo serve --ask PATTERN`"))
        }
        Location::Nfs(_) | Location::NfsShm(_) if options.coherence == Some(Coherence::Push) => {
            let problem = "mount option coherence=push is for directories (dir:) and shared memory (shm:)";
            Err(Failure::usage(problem).remedy("use coherence=auto or coherence=strict"))
        }
        Location::Nfs(_) | Location::NfsShm(_) if options.locks == Some(Locks::Shared) => {
            Err(Failure::usage(
                "mount option locks=shared: not supported with NFS version 3, where locks are local",
            ))
        }
        Location::Nfs(_) | Location::Dir(_) if options.doorbell.is_some() => {
            Err(Failure::usage("mount option doorbell=… is for shared memory: write shm:SOCKET/NAME"))
        }
        _ if options.bell != BellArg::Found && !is_over_memory(&location) => {
            let problem = "mount option bell=… is for memory shared with a guest or its host";
            Err(Failure::usage(problem)
                .remedy("write shm+file:FILE/NAME, shm+pci:/NAME or shm+mmapper:/NAME"))
        }
        Location::Nfs(_) => Ok(location),
        Location::NfsShm(url) => {
            location::check_over_shm(&options.nfs)
                .map_err(|wrong| Failure::usage(format!("mount {wrong}")))?;
            url.absolute().map(Location::NfsShm).or_cannot(format_args!("mount {url}"))
        }
        // A restarted server has another working directory.
        Location::Shm(place) => {
            patience(&options.nfs).map_err(Failure::usage)?;
            place.absolute().map(Location::Shm).or_cannot(format_args!("mount {place}"))
        }
        Location::Dir(_) if options.nfs.words().next().is_some() => {
            let foreign: Vec<_> = options.nfs.words().collect();
            Err(Failure::usage(format!(
                "mount option {} is for servers, not for local directories",
                foreign.join(",")
            )))
        }
        Location::Dir(_) if options.no_kernel_checks => Err(Failure::usage(
            "mount option noperm is for servers: in a local directory only the kernel checks permissions",
        )),
        Location::Dir(path) => directory(path).map(Location::Dir),
    }
}

/// Returns how long a shared-memory client waits for an absent server, from the options of nfs(5).
fn patience(options: &NfsOptions) -> Result<LinkLossPolicy, String> {
    let foreign = options.iter().zip(options.words()).filter_map(|(option, word)| match option {
        NfsOption::Hard(_) | NfsOption::Timeout(_) => None,
        _ => Some(word),
    });
    let foreign: Vec<_> = foreign.collect();
    if !foreign.is_empty() {
        let foreign = foreign.join(",");
        return Err(format!("mount option {foreign} is for NFS servers, not for shared memory"));
    }
    let hard = |option| if let NfsOption::Hard(is_hard) = option { Some(is_hard) } else { None };
    let timeout = |option| if let NfsOption::Timeout(time) = option { Some(time) } else { None };
    Ok(match options.last(hard).unwrap_or(true) {
        true => LinkLossPolicy::Hard,
        false => LinkLossPolicy::Soft(options.last(timeout).unwrap_or(SOFT_TIMEOUT)),
    })
}

/// Default wait of a soft mount over shared memory: the default of `timeo=` over TCP.
const SOFT_TIMEOUT: Duration = Duration::from_secs(60);

fn directory(path: &Path) -> Result<std::path::PathBuf, Failure> {
    let mounting = format!("mount dir:{}", path.display());
    let path = path.canonicalize().or_cannot(&mounting)?;
    if !path.is_dir() {
        return Err(Failure::cannot(&mounting, "it is not a directory"));
    }
    Ok(path)
}

pub fn name(location: &Location) -> String {
    match location {
        Location::Nfs(url) => url.mount_word(),
        Location::NfsShm(_) | Location::Shm(_) => location.to_string(),
        Location::Dir(path) => path.display().to_string(),
    }
}

/// Returns the resources needed after the sandbox is entered.
pub fn needs(mount: &Mount) -> Needs {
    let mut needs = match &mount.source {
        Location::Dir(dir) => needs::of_directory(dir, mount.options.is_read_only()),
        Location::Nfs(url) => {
            let certificates = needs::certificates(&url.options.clone().then(&mount.options.nfs));
            let needs = needs::of_client(url);
            Needs { reads: [needs.reads, certificates].concat(), ..needs }
        }
        Location::NfsShm(NfsShmUrl { place, .. }) | Location::Shm(place) => needs::of_shm_client(place),
    };
    needs::join(&mut needs, needs::of_mounts());
    needs
}

/// Returns `true` if the location is reached over a guest's memory or a shared file, without a link control
/// socket.
fn is_over_memory(location: &Location) -> bool {
    match location {
        Location::Nfs(_) | Location::Dir(_) => false,
        Location::NfsShm(NfsShmUrl { place, .. }) | Location::Shm(place) => !place.is_at_socket(),
    }
}

/// Opens the bell of a mount over memory, which the sandbox would prevent. A failure is only logged if the
/// bell was found in this guest and not named, or if the mount is made `again`, because programs wait for the
/// mount. `None` for other mounts, and without a bell.
pub fn open_bell(mount: &Mount, again: bool) -> Result<Option<Arc<BellSource>>, Failure> {
    let (Location::Shm(place) | Location::NfsShm(NfsShmUrl { place, .. })) = &mount.source else {
        return Ok(None);
    };
    let memory = match place.parts() {
        Ok(ShmParts { at: ShmEndpoint::Socket(_), .. }) => return Ok(None),
        Ok(ShmParts { at: ShmEndpoint::Memory(memory), .. }) => memory,
        // The file does not exist yet, so the end of its path is unknown. For the bell it matters only that
        // the memory is a file.
        Err(_) => MemoryLocation::File(place.to_string().into()),
    };
    let bell = mount.options.bell.source(&memory);
    match (bell.as_ref().map(|bell| bell.open()), &mount.options.bell) {
        (Some(Err(error)), BellArg::At(path)) if again => {
            tracing::warn!(%error, bell = %path.display(), "cannot open the bell; polling at intervals");
        }
        (Some(Err(error)), BellArg::At(path)) => {
            return Err(Failure::cannot(format_args!("open the bell {}", path.display()), &error));
        }
        (Some(Err(error)), _) => tracing::info!(%error, "no bell"),
        (Some(Ok(_)) | None, _) => {}
    }
    Ok(bell)
}

impl Source {
    /// Opens the source. Retries while its server is unreachable: for as long as the options say, or, if this
    /// process replaces one that was killed, for as long as `again` lists the dead mount. With `bg`, calls
    /// `leave` after the first failure, so that the command returns.
    pub fn open(
        mount: &Mount,
        bell: Option<&Arc<BellSource>>,
        again: Option<&MountTable>,
        leave: &dyn Fn() -> io::Result<()>,
        broker: Option<Arc<dyn Reopen>>,
    ) -> Result<Self, Failure> {
        let doing = format!("mount {}", mount.source);
        let link = || {
            let mode = mount.options.doorbell.unwrap_or_default().mode().map_err(Failure::usage)?;
            Ok::<_, Failure>(LinkOptions { mode, bell: bell.cloned() })
        };
        let nfs_options = |asked: &NfsOptions| OpenOptions {
            read_only: mount.options.is_read_only(),
            nfs: mount.options.nfs_options(asked),
            ..OpenOptions::default()
        };
        let nfs = match &mount.source {
            Location::Shm(place) => {
                let (link, patience) = (link()?, patience(&mount.options.nfs).map_err(Failure::usage)?);
                let waiting =
                    Waiting { again, leave: None, retry: Duration::ZERO, pause_max: NEAR_PAUSE_MAX };
                let linked = with_retries(mount, &waiting, || location::mount_shm(place, &link, patience));
                let export = linked.map_err(|failed| failed.while_doing(&doing))?;
                let is_strict = mount.options.coherence == Some(Coherence::Strict);
                return Ok(Self { export: Arc::new(export.with_writes_behind(!is_strict)), nfs: None });
            }
            Location::NfsShm(url) => {
                let (link, options) = (link()?, nfs_options(&url.options));
                let asked = url.options.clone().then(&options.nfs);
                let waiting = Waiting::new(again, leave, &asked, Duration::ZERO, NEAR_PAUSE_MAX);
                with_retries(mount, &waiting, || location::mount_nfs_shm(url, &link, &options))
            }
            Location::Nfs(url) => {
                let options = nfs_options(&url.options);
                let asked = url.options.clone().then(&options.nfs);
                let waiting = Waiting::new(again, leave, &asked, RETRY, FAR_PAUSE_MAX);
                with_retries(mount, &waiting, || location::mount(url, &options))
            }
            Location::Dir(path) => {
                let options = DirOptions {
                    read_only: mount.options.is_read_only(),
                    submounts: mount.options.submounts.unwrap_or_default().into(),
                    watch_host: mount.options.coherence == Some(Coherence::Push),
                    ask: mount.options.ask.clone(),
                    help: broker,
                    ..DirOptions::default()
                };
                let opened = LocalDir::open(path, options).or_cannot(&doing)?;
                return Ok(Self { export: Arc::new(opened), nfs: None });
            }
        };
        let nfs = Arc::new(nfs.map_err(|failed| failed.while_doing(&doing))?);
        Ok(Self { export: nfs.clone(), nfs: Some(nfs) })
    }
}

/// Maximum pause between attempts for a server on another host, which many clients may wait for.
const FAR_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Maximum pause between attempts for a server on this host.
const NEAR_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Default time to retry an unreachable server on another host, as for foreground mounts in nfs(5)
/// (`retry=`).
const RETRY: Duration = Duration::from_secs(2 * 60);

/// Default time to retry in the background (`bg`): a week.
const BACKGROUND_RETRY: Duration = Duration::from_secs(10_000 * 60);

/// Policy of waiting for an unreachable server.
struct Waiting<'a> {
    /// Mount table, if this process replaces a killed server: then the only limit is the end of the dead
    /// mount.
    again: Option<&'a MountTable>,
    /// Detaches after the first failed attempt, so that the command returns.
    leave: Option<&'a dyn Fn() -> io::Result<()>>,
    retry: Duration,
    pause_max: Duration,
}

impl<'a> Waiting<'a> {
    /// Returns the policy from the options. `retry` is the default without `bg`.
    fn new(
        again: Option<&'a MountTable>,
        leave: &'a dyn Fn() -> io::Result<()>,
        asked: &NfsOptions,
        retry: Duration,
        pause_max: Duration,
    ) -> Self {
        let in_background = asked.in_background();
        let retry = asked.retry().unwrap_or(if in_background { BACKGROUND_RETRY } else { retry });
        Self { again, leave: in_background.then_some(leave), retry, pause_max }
    }

    /// Logs that the server will be retried, and for how long; nothing if it will not. With `bg` also
    /// detaches.
    fn log_retry(&self, reason: &str) -> Result<(), NotMounted> {
        match (self.again.is_some(), self.leave) {
            (true, _) => {
                tracing::warn!(reason, "server unreachable: retrying until it responds or the mount ends");
            }
            (false, None) if self.retry.is_zero() => {}
            (false, None) => {
                tracing::warn!(reason, "server unreachable: retrying for {}", minutes(self.retry));
            }
            (false, Some(leave)) => {
                let time = minutes(self.retry);
                tracing::warn!(reason, "server unreachable: retrying in the background for {time}");
                leave().map_err(|error| NotMounted::new(Reason::from(&error)))?;
            }
        }
        Ok(())
    }
}

/// Repeats the attempt while the server is unreachable (with `bg` and for a restarted server, also while its
/// name has no address), until the time is over. A restarted server gives up once its mount is unmounted.
fn with_retries<T>(
    mount: &Mount,
    waiting: &Waiting<'_>,
    attempt: impl Fn() -> Result<T, NotMounted>,
) -> Result<T, NotMounted> {
    let Waiting { again, leave, retry, pause_max } = *waiting;
    let until = again.is_none().then(|| Instant::now() + retry);
    let mut backoff = Backoff::new(pause_max, until);
    let mut is_logged = false;
    let is_patient = again.is_some() || leave.is_some();
    loop {
        // A dead server's mount is listed until it is unmounted.
        if again.is_some_and(|table| matches!(table.at(&mount.point.path), Ok(None))) {
            return Err(NotMounted::new("it was unmounted meanwhile"));
        }
        let failed = match attempt() {
            Err(failed) if failed.server == Reachability::Unreachable => failed,
            Err(failed) if failed.server == Reachability::Unresolved && is_patient => failed,
            outcome => return outcome,
        };
        if !std::mem::replace(&mut is_logged, true) {
            waiting.log_retry(&failed.reason)?;
        }
        if !backoff.wait() {
            let tried = if retry.is_zero() { String::new() } else { format!(", for {}", minutes(retry)) };
            return Err(NotMounted { reason: format!("{}{tried}", failed.reason), ..failed });
        }
    }
}

fn minutes(time: Duration) -> String {
    match time.as_secs() / 60 {
        1 => "a minute".into(),
        count => format!("{count} minutes"),
    }
}
