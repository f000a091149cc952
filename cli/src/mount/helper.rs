//! `mount.tombolo`, as mount(8) calls it.

use std::path::PathBuf;

use clap::Parser;
use tombolo_host::logging::Destination;

use crate::cli::{LogArgs, start_log};
use crate::failure::{Failure, Outcome};
use crate::location::Location;

use super::options::MountOptions;
use super::{Mount, background};

/// Mount a directory, or an export of an NFS server, on this host through FUSE, for mount(8) and /etc/fstab.
#[derive(Parser)]
#[command(name = "mount.tombolo", version)]
pub struct Helper {
    /// What to mount: `nfs://HOST[:PORT]/NAME`, `HOST:/NAME`, `shm:SOCKET/NAME` or `dir:PATH`.
    source: Location,
    /// Where.
    mountpoint: PathBuf,
    /// Mount options.
    #[arg(short, value_name = "OPTION[,OPTION]…")]
    options: Vec<String>,
    /// Ignore unknown options.
    #[arg(short)]
    sloppy: bool,
    /// Check everything, and do not mount.
    #[arg(short)]
    fake: bool,
    /// Do not write /etc/mtab (there is none any more).
    #[arg(short)]
    no_mtab: bool,
    /// Log more.
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// The type, as fstab has it.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

impl Helper {
    /// Mounts.
    pub fn run(self) -> Outcome {
        let log = LogArgs { verbose: self.verbose, quiet: 0 };
        start_log(log, Destination::StandardError)?;
        let mut options = MountOptions::default();
        let mut lists = Vec::new();
        for option in self.options.iter().flat_map(|list| list.split(',')) {
            match options.add(option) {
                Ok(()) => lists.push(option.to_owned()),
                Err(reason) if self.sloppy => tracing::warn!(reason, "ignored"),
                Err(reason) => return Err(Failure::usage(reason)),
            }
        }
        let mount = Mount::checked(self.source, &self.mountpoint, options, None)?;
        if self.fake { Ok(()) } else { background::start(&mount, &lists, log) }
    }
}
