//! `mount.tombolo`, as called by mount(8).

use std::path::PathBuf;

use clap::Parser;
use tombolo_host_service::logging::Destination;

use crate::cli::{LogArgs, start_log};
use crate::failure::{Failure, Outcome};
use crate::location::Location;

use super::options::MountOptions;
use super::remount::remount;
use super::{Mount, OPTIONS_HELP, background};

/// Mount an NFS export, a directory or a server reached through shared memory, for mount(8) and /etc/fstab.
#[derive(Parser)]
#[command(name = "mount.tombolo", version, after_help = after_help())]
pub struct Helper {
    /// Source: `nfs://HOST[:PORT]/NAME`, `HOST:/NAME`, `shm:SOCKET/NAME` or `dir:PATH`.
    source: Location,
    /// Mount point.
    mountpoint: PathBuf,
    /// Mount options.
    #[arg(short, value_name = "OPTION[,OPTION]…")]
    options: Vec<String>,
    /// Ignore unknown options.
    #[arg(short)]
    sloppy: bool,
    /// Check everything, but do not mount.
    #[arg(short)]
    fake: bool,
    /// Ignored: /etc/mtab is no longer written.
    #[arg(short)]
    no_mtab: bool,
    /// Log more.
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// File system type, as in fstab.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Returns the help of the options, shared with `tombolo mount`.
fn after_help() -> String {
    let options = OPTIONS_HELP.split_once("Mount options:").map_or(OPTIONS_HELP, |(_, options)| options);
    format!("{EXAMPLES}\n\nMount options:{options}\n\n{EXIT_CODES}")
}

const EXAMPLES: &str = "\
Examples:
  mount -t tombolo nfs://nas.example/export/src /mnt/src -o ro
  dir:/srv/src /mnt/src tombolo ro,nofail,allow_other 0 0
  nfs://nas:2049/src /mnt/src tombolo allow_other,_netdev,nofail,bg 0 0";

const EXIT_CODES: &str = "\
Exit codes:
  0   mounted
  1   invalid command line
  32  failure; one line on standard error states the reason";

impl Helper {
    pub fn run(self) -> Outcome {
        let log = LogArgs { verbose: self.verbose, quiet: 0 };
        start_log(log, Destination::StandardError)?;
        let mut options = MountOptions::default();
        let mut lists = Vec::new();
        for option in self.options.iter().flat_map(|list| list.split(',')) {
            match options.add(option) {
                Ok(()) => lists.push(option.to_owned()),
                Err(reason) if self.sloppy => tracing::warn!(reason, "mount option ignored"),
                Err(reason) => return Err(Failure::usage(reason)),
            }
        }
        if options.remount && !self.fake {
            return remount(&self.mountpoint, &options);
        }
        let mount = Mount::checked(self.source, &self.mountpoint, options, None)?;
        if self.fake { Ok(()) } else { background::start(&mount, &lists, log) }
    }
}
