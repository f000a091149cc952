//! `tombolo-chaos`: what a client over shared memory keeps when either side of its link is killed, stopped and started.
//!
//! - [`run`]: the harness. A server ([`server`]) and a client in processes of their own; one is disturbed, and when the client has gone on
//!   for a while the next disturbance comes. In the end [`check`] holds the tree against the log.
//! - [`client`]: what the client does, through one of two [`doer`]s: the library over a socket, or system calls on a mount.
//! - [`log`]: what was asked and answered, in a file that survives its writer; [`model`]: what must be there by that.
//!
//! Not here: lying peers (`tests/vrpc`, `fuzz`), guests (`tests/guests`), power loss.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the report is what the program is for")]

mod args;
mod check;
mod client;
mod doer;
mod failure;
mod log;
mod model;
mod random;
mod records;
mod run;
mod server;

use std::process::ExitCode;

use args::{Command, USAGE};

fn main() -> ExitCode {
    let Some(command) = Command::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match &command {
        Command::Run(args) => run::run(args).map(|report| println!("{report}")),
        Command::Client(args) => client::work(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}
