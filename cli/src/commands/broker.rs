//! The broker of a server in a sandbox: this program once more, which opens what the server may not.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use tombolo_host_runtime::signals;
use tombolo_host_service::sandbox::Strictness;
use tombolo_host_service::sandbox::broker::{self, Broker};

use crate::assembly::plan::Plan;
use crate::failure::{Failure, Outcome};

/// Opens files for a server that has started this.
#[derive(Args)]
pub struct BrokerArgs {
    /// How much of it has to be confined.
    #[arg(long)]
    sandbox: Strictness,
    /// The directories that it serves.
    exports: Vec<PathBuf>,
}

const NAME: &str = "broker";

impl BrokerArgs {
    /// Serves what is its standard input.
    pub fn run(self) -> Outcome {
        const OPENING: &str = "open files for a server";
        let cannot = |error: std::io::Error| Failure::cannot(OPENING, &error);
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(cannot)?;
        // The server's signals come here too, where they come from a terminal. It ends when the server has ended.
        signals::on_stop(|_| {}).map_err(cannot)?;
        broker::serve(&socket, &self.exports, self.sandbox).map_err(|error| Failure::cannot(OPENING, &error))
    }
}

/// Starts the broker of a server that finds files by handle.
pub fn start(plan: &Plan) -> Result<Broker, Failure> {
    let dirs = plan.exports.iter().filter_map(|export| export.tree.dir());
    let how = if plan.sandbox == Strictness::Strict { "strict" } else { "auto" };
    let mut command = Command::new("/proc/self/exe");
    command.args(["-q", NAME, "--sandbox", how, "--"]).args(dirs);
    Broker::start(&mut command).map_err(|error| Failure::cannot("start the broker of the sandbox", &error))
}
