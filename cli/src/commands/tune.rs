//! `tombolo tune`: changes an option of a mount in use.

use std::path::PathBuf;

use clap::Args;

use crate::commands::umount::server_of;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::mount_point::existing;
use crate::service::limit_of;

/// Change the limit on outstanding requests of an NFS mount in use.
///
/// `tombolo tune /mnt inflight=32` limits the number of outstanding reads and writes at the NFS server; with
/// `auto` the client adapts it. `tombolo top` shows the current limit. The setting lasts until the mount
/// ends, or its server is killed and restarted. Only mounts of this user without --control are found.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TuneArgs {
    /// Mount point.
    mountpoint: PathBuf,
    /// Setting to change: `inflight=N|auto`.
    #[arg(value_name = "OPTION=VALUE", value_parser = checked)]
    options: String,
}

const EXAMPLES: &str = "\
Examples:
  tombolo tune /mnt/src inflight=32
  tombolo tune /mnt/src inflight=auto";

impl TuneArgs {
    pub fn run(&self) -> Outcome {
        let tuning = format!("tune {}", self.mountpoint.display());
        let (point, _) = existing(&self.mountpoint, &tuning)?;
        let Some((mut server, _)) = server_of(&point) else {
            let reason = "no server found with a control socket in the default directory";
            return Err(Failure::cannot(&tuning, reason).remedy("mount it as this user, without --control"));
        };
        server.set(&self.options).map(drop).or_cannot(&tuning)
    }
}

fn checked(options: &str) -> Result<String, String> {
    limit_of(options).map(|_| options.to_owned())
}
