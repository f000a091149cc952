//! `tombolo upgrade`: replaces a running server without disturbing its guests.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use tombolo_host_service::control::Client;

use crate::assembly::keeper::{REPLY_TIMEOUT, directory};
use crate::failure::{Failure, OrCannot, Outcome};

/// Replace the program of a --keep server while guests use it.
///
/// This program, or another, is started next to the old one and takes over. Guests see a pause of some
/// milliseconds. If the new program fails, the old one continues or is started again, and the command
/// reports it.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UpgradeArgs {
    /// Name of the server: that of its disk, or of its first export without the first slash (with - for the
    /// other slashes; root for `/`).
    name: String,
    /// Program to start instead of this one.
    #[arg(long, value_name = "PROGRAM")]
    to: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo upgrade vm.img
  tombolo upgrade vm.img --to /opt/tombolo-next/bin/tombolo";

impl UpgradeArgs {
    pub fn run(&self) -> Outcome {
        let upgrading = format!("upgrade {}", self.name);
        let program = self
            .to
            .clone()
            .map_or_else(env::current_exe, |program| program.canonicalize())
            .or_cannot(&upgrading)?;
        let socket = directory().join(format!("{}.sock", self.name));
        let Ok(mut keeper) = Client::connect_for(&socket, REPLY_TIMEOUT) else {
            let failure = Failure::cannot(&upgrading, "no keeper of this user runs a server with that name");
            return Err(failure.remedy("start it with --keep"));
        };
        let answer = keeper.set(&format!("upgrade={}", program.display())).or_cannot(&upgrading)?;
        let took_ms = answer.get("took_ms").and_then(serde_json::Value::as_u64).unwrap_or_default();
        let mut out = io::stdout().lock();
        writeln!(out, "{} is now served by {}, after {took_ms} ms", self.name, program.display())
            .or_cannot("report success")
    }
}
