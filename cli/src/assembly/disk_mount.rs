//! A disk as a file of this host.

use std::path::PathBuf;
use std::sync::Arc;

use tombolo_core::block::BlockDevice;
use tombolo_core::fs::Name;
use tombolo_core::{Identity, SessionId};
use tombolo_front_fuse::dev::{Mount as FuseMount, Options as FuseOptions};
use tombolo_front_fuse::session::Coherence;
use tombolo_host_service::sandbox::Needs;
use tombolo_layer_disk_files::DiskFiles;
use tombolo_sys::creds;

use crate::assembly::plan::disk::{DiskPlan, DiskSource};
use crate::assembly::plan::needs::{join, of_mounts};
use crate::assembly::sandbox::Sandbox;
use crate::commands::mount::reason;
use crate::failure::{Code, Failure, Outcome};
use crate::mount_point::MountPoint;
use crate::service::status::EndpointStatus;

/// Where a disk is to be a file.
pub struct PreparedDiskMount {
    point: PathBuf,
    options: FuseOptions,
    /// The file's, and the disk's.
    name: String,
    ends_at_failed_write: bool,
}

/// A session of its own: guests have those behind it.
const SESSION: SessionId = SessionId(u64::MAX);

/// How far the kernel reads around what is touched. A file that is used as memory is touched at random, and
/// what is read ahead is mostly for nothing, and takes memory of the host: none of it, but where each answer
/// comes from afar, and a request less is worth it (docs/decisions/clones.md).
const NEAR_READ_AHEAD_BYTES: u32 = 0;
const FAR_READ_AHEAD_BYTES: u32 = 128 << 10;

fn read_ahead_bytes(plan: &DiskPlan) -> u32 {
    match &plan.source {
        // Just what is touched. A cache behind shared memory brings what lies around it by itself, and
        // nothing waits for that.
        DiskSource::Overlay(overlay) if overlay.is_recorded() => 0,
        source @ DiskSource::Overlay(_) if source.is_behind_memory() => 0,
        source if source.is_of_this_host() => NEAR_READ_AHEAD_BYTES,
        _ => FAR_READ_AHEAD_BYTES,
    }
}

impl PreparedDiskMount {
    /// Looks whether it can be one there, if it is to be.
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
            // Users of the disk that come another way are told of nothing, as with a block device.
            coherence: Coherence::Always,
            xattrs: false,
            read_ahead_bytes: Some(read_ahead_bytes(plan)),
            ..FuseOptions::default()
        };
        let MountPoint { path, .. } = MountPoint::checked(point)?;
        Ok(Some(Self { point: path, options, name: plan.name.clone(), ends_at_failed_write }))
    }

    /// What serving it goes on to need.
    pub fn need(needs: &mut Needs) {
        join(needs, of_mounts());
    }

    /// Has it mounted from outside of the sandbox, where there is one.
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
        let name = Name::new(self.name.as_bytes()).map_err(|error| Failure::cannot(&mounting, &error))?;
        let files = DiskFiles::new([(name.to_owned(), disk)], Identity { uid, gid, groups: None });
        if self.ends_at_failed_write {
            // The kernel then tells all that have it mapped (SIGBUS).
            files.when_failed(|| std::process::exit(Code::Failed as i32));
        }
        let mount = FuseMount::start(&files, SESSION, &self.point, &self.options)
            .map_err(|error| Failure::cannot(&mounting, reason(&error)))?;
        Ok(DiskMount { mount, files, name: self.name })
    }
}

/// A disk that is a file.
pub struct DiskMount {
    mount: FuseMount,
    files: DiskFiles,
    name: String,
}

impl DiskMount {
    /// The file.
    pub fn path(&self) -> PathBuf {
        self.mount.path().join(&self.name)
    }

    pub fn status(&self) -> EndpointStatus {
        let at = self.mount.path().display().to_string();
        EndpointStatus { kind: "fuse".into(), at, export: self.name.clone() }
    }

    /// Waits for the last of its users: what they have written and the kernel still holds would be lost. A
    /// failure if some of it is.
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
