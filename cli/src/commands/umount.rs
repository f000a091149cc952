//! `tombolo umount`: ends a mount.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use tombolo_host_service::control::{self, Client};
use tombolo_sys::{Errno, fuse_dev};

use crate::failure::{Failure, Outcome};
use crate::mount_point::{KIND, existing};
use crate::service::status::{self, Status};

/// Unmount a mount of `tombolo mount`.
///
/// Returns when the server has ended, so that the directory behind it is no longer in use. If the mount was
/// made with --control, does not wait. If the server takes more than ten seconds, exits with 1; the mount is
/// gone all the same. umount(8) works too, but does not wait.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UmountArgs {
    /// Mount point.
    mountpoint: PathBuf,
    /// Detach the mount at once; its server ends with the last user.
    #[arg(short, long)]
    lazy: bool,
}

const EXAMPLES: &str = "\
Examples:
  tombolo umount /mnt/src
  tombolo umount --lazy /mnt/src";

impl UmountArgs {
    pub fn run(&self) -> Outcome {
        let unmounting = format!("unmount {}", self.mountpoint.display());
        let (point, entry) = existing(&self.mountpoint, &unmounting)?;
        if entry.kind != KIND {
            let other = format!("a file system of type {} is mounted there", entry.kind);
            return Err(Failure::cannot(&unmounting, other).remedy("use umount(8)"));
        }
        let server = server_of(&point);
        unmount(&point, self.lazy).map_err(|error| {
            Failure::cannot(&unmounting, &error)
                .remedy_if(error.kind() == io::ErrorKind::ResourceBusy, BUSY_REMEDY)
        })?;
        match server {
            Some((server, _)) if !self.lazy => wait_for_end(server).map_err(|()| {
                Failure::cannot(&unmounting, "it is unmounted, but its server is still running")
                    .remedy("try again later")
            }),
            _ => Ok(()),
        }
    }
}

const BUSY_REMEDY: &str = "close the files in use (see fuser -vm), or use --lazy";

/// Time for a server to finish outstanding requests.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Unmounts directly, or with the set-user-id helper for a user's own mounts.
fn unmount(point: &Path, lazy: bool) -> io::Result<()> {
    match fuse_dev::unmount(point, lazy) {
        Err(Errno::PERM) => {}
        outcome => return Ok(outcome?),
    }
    if fuse_dev::unmount_by_helper(point, lazy)? { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
}

/// Returns a connection to the server of this mount, and its status, under the conditions of
/// [`server_that`].
pub fn server_of(point: &Path) -> Option<(Client, Status)> {
    let at = point.display().to_string();
    server_that(|status| status.endpoints.iter().any(|endpoint| endpoint.kind == "fuse" && endpoint.at == at))
}

/// Returns the first of this user's servers that satisfies the predicate, among those with a control socket
/// in the default directory.
pub fn server_that(holds: impl Fn(&Status) -> bool) -> Option<(Client, Status)> {
    let sockets = control::sockets(&control::default_directory()).ok()?;
    sockets.iter().find_map(|socket| {
        let mut client = Client::connect(socket).ok()?;
        let status: Status = status::ask(&mut client, socket, "status").ok()?;
        holds(&status).then_some((client, status))
    })
}

/// Waits until the server closes its control connection, which it does after the mount has ended.
fn wait_for_end(mut server: Client) -> Result<(), ()> {
    let end = Instant::now() + END_TIMEOUT;
    while server.ask("status").is_ok() {
        if Instant::now() > end {
            return Err(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
