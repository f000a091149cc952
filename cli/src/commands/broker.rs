//! Broker of a sandboxed server: a second process of this program, which opens files that the server may not
//! open itself.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use tombolo_host_runtime::signals;
use tombolo_host_service::sandbox::Strictness;
use tombolo_host_service::sandbox::broker::{self, Broker};

use super::beside;
use crate::failure::{Failure, OrCannot, Outcome};

/// Open files for the server that started this process.
#[derive(Args)]
pub struct BrokerArgs {
    /// Required confinement of the broker.
    #[arg(long)]
    sandbox: Strictness,
    /// Directories of the server.
    exports: Vec<PathBuf>,
}

const NAME: &str = "broker";

impl BrokerArgs {
    /// Serves the socket at standard input.
    pub fn run(self) -> Outcome {
        const OPENING: &str = "open files for a server";
        let socket = std::io::stdin().as_fd().try_clone_to_owned().or_cannot(OPENING)?;
        // A terminal's signals reach this process too. It ignores them, because it must end after the server.
        let await_signals = || signals::on_stop(|_| {});
        broker::serve(socket, &self.exports, self.sandbox, await_signals).or_cannot(OPENING)
    }
}

/// Starts the broker of a server of these directories.
pub fn start(dirs: &[PathBuf], strictness: Strictness, log: Option<&File>) -> Result<Broker, Failure> {
    let how = if strictness == Strictness::Strict { "strict" } else { "auto" };
    beside(NAME, log)
        .and_then(|mut command| Broker::start(command.args(["--sandbox", how, "--"]).args(dirs)))
        .or_cannot("start the broker of the sandbox")
}
