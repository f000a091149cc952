//! Mount of a disk as a file of this host.

use std::path::PathBuf;
use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::Name;
use tombolo_core::{Identity, SessionId};
use tombolo_front_fuse::dev::{Mount as FuseMount, Options as FuseOptions};
use tombolo_front_fuse::session::Coherence;
use tombolo_layer_disk_files::DiskFiles;
use tombolo_sys::creds;

use crate::assembly::plan::disk::{DiskPlan, DiskSource};
use crate::assembly::sandbox::Sandbox;
use crate::commands::mount::reason;
use crate::failure::{Code, Failure, OrCannot, Outcome};
use crate::mount_point::MountPoint;
use crate::service::status::EndpointStatus;

/// Checked parameters of a disk mount.
pub struct PreparedDiskMount {
    point: PathBuf,
    options: FuseOptions,
    /// Name of the file and of the disk.
    name: String,
    ends_at_failed_write: bool,
}

/// Session of the mount; guests have lower numbers.
const SESSION: SessionId = SessionId(u64::MAX);

/// Kernel read-ahead of the file, for a local disk and for others. A file mapped as memory is accessed at
/// random, so read-ahead mostly wastes requests and host memory. It pays off only where each request crosses
/// a network (docs/decisions/clones.md).
const NEAR_READ_AHEAD_BYTES: u32 = 0;
const FAR_READ_AHEAD_BYTES: u32 = 128 << 10;

fn read_ahead_bytes(plan: &DiskPlan) -> u32 {
    match &plan.source {
        // Only accessed pages are read: a record needs the order of accesses, and a cache behind shared
        // memory reads ahead by itself, in the background.
        DiskSource::Overlay(overlay) if overlay.is_recorded() => 0,
        source @ DiskSource::Overlay(_) if source.is_behind_memory() => 0,
        source if source.is_of_this_host() => NEAR_READ_AHEAD_BYTES,
        _ => FAR_READ_AHEAD_BYTES,
    }
}

impl PreparedDiskMount {
    /// Checks the mount point and the file name; returns `None` if no mount is configured.
    pub fn of(plan: &DiskPlan, ends_at_failed_write: bool) -> Result<Option<Self>, Failure> {
        let Some(point) = &plan.options.mount else { return Ok(None) };
        Name::new(plan.name.as_bytes()).map_err(|error| {
            Failure::usage(format!("{:?} is not a valid file name: {error}", plan.name))
                .remedy("add --name NAME")
        })?;
        let options = FuseOptions {
            source: plan.source.to_string(),
            allow_other: false,
            read_only: plan.options.read_only,
            exec: false,
            // Writes by other front ends are not announced to the mount, as with a block device.
            coherence: Coherence::Always,
            xattrs: false,
            read_ahead_bytes: Some(read_ahead_bytes(plan)),
            ..FuseOptions::default()
        };
        let MountPoint { path, .. } = MountPoint::checked(point)?;
        Ok(Some(Self { point: path, options, name: plan.name.clone(), ends_at_failed_write }))
    }

    /// Starts a helper that mounts outside the sandbox, if there is a sandbox.
    pub fn mounts_outside(&mut self, sandbox: &mut Sandbox<'_>) -> Outcome {
        let mounters = sandbox.mounters(&[(&*self.point, self.options.clone())])?;
        if let Some(mounter) = mounters.into_iter().flatten().next() {
            self.options.mounter = mounter;
        }
        Ok(())
    }

    pub fn start(self, disk: Arc<dyn BlockDevice>) -> Result<DiskMount, Failure> {
        let mounting = format!("mount at {}", self.point.display());
        let (uid, gid) = creds::own_ids();
        let name = Name::new(self.name.as_bytes()).or_cannot(&mounting)?;
        let files = DiskFiles::new([(name.to_owned(), disk)], Identity { uid, gid, groups: None });
        if self.ends_at_failed_write {
            // Once the server has exited, accesses to missing pages of the mapped file fail (SIGBUS).
            files.when_failed(|| std::process::exit(Code::Failed as i32));
        }
        let mount = FuseMount::start(&files, SESSION, &self.point, &self.options)
            .map_err(|error| Failure::cannot(&mounting, reason(&error)))?;
        Ok(DiskMount { mount, files, name: self.name })
    }
}

/// A disk mounted as a file, until [`end`](Self::end).
pub struct DiskMount {
    mount: FuseMount,
    files: DiskFiles,
    name: String,
}

impl DiskMount {
    /// Returns the path of the disk's file, which is below the mount point.
    pub fn path(&self) -> PathBuf {
        self.mount.path().join(&self.name)
    }

    pub fn status(&self) -> EndpointStatus {
        EndpointStatus::new("fuse", &self.mount.path().display(), &self.name)
    }

    /// Unmounts the file, and waits for its last user, because pages that the kernel has not written back
    /// would be lost. Fails if a write failed.
    pub fn end(&self) -> Outcome {
        let ending = format!("unmount the file {}", self.path().display());
        match self.mount.unmount() {
            Ok(true) => {}
            Ok(false) => tracing::warn!(file = %self.path().display(), "busy: waiting for its last user"),
            Err(error) => return Err(Failure::cannot(ending, &error)),
        }
        self.mount.wait();
        if self.files.has_failed() {
            return Err(Failure::cannot(ending, "a write failed; its contents are incomplete"));
        }
        Ok(())
    }
}
