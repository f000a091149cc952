//! `tombolo upgrade`: another program serves, and guests notice nothing.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use tombolo_host_service::control::Client;

use crate::assembly::keeper::directory;
use crate::failure::{Failure, Outcome};

/// Replace the program that serves a disk, while guests use it.
///
/// For servers with --keep: this program, or another, is started beside the one that serves, and takes over;
/// guests see a pause of some milliseconds. If it cannot, the one before serves on, and the command says so.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct UpgradeArgs {
    /// The disk's name, as the ready line has it.
    name: String,
    /// What is to serve, instead of this program.
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
        let program = self.to.clone().map_or_else(env::current_exe, |program| program.canonicalize());
        let program = program.map_err(|error| Failure::cannot(&upgrading, &error))?;
        let socket = directory().join(format!("{}.sock", self.name));
        let Ok(mut keeper) = Client::connect(&socket) else {
            let failure = Failure::cannot(&upgrading, "no keeper of this user has a server of that name");
            return Err(failure.remedy("start it with --keep"));
        };
        let answer = keeper.set(&format!("upgrade={}", program.display()));
        let answer = answer.map_err(|error| Failure::cannot(&upgrading, &error))?;
        let took_ms = answer.get("took_ms").and_then(serde_json::Value::as_u64).unwrap_or_default();
        let mut out = io::stdout().lock();
        let said = writeln!(out, "{} is served by {}, after {took_ms} ms", self.name, program.display());
        said.map_err(|error| Failure::cannot("say that it is done", &error))
    }
}
