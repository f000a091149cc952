//! `tombolo-crash`: what the NFS server's clients keep when the server dies, and that what it calls stable is.
//!
//! - [`kill`]: clients ([`client`], [`worker`]) work while the server ([`server`]) is killed and restarted; [`tree`] compares in the end.
//! - [`trace`]: each kind of call alone, with the server's system calls between the call and its answer.
//!
//! Not here: hostile calls and single procedures (`tests/nfs`), the kernel's client (`tests/guests`).
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the report is what the program is for")]

mod args;
mod client;
mod failure;
mod kill;
mod probe;
mod random;
mod server;
mod trace;
mod tree;
mod worker;

use std::process::ExitCode;

use args::{Command, USAGE};

fn main() -> ExitCode {
    let Some(command) = Command::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match &command {
        Command::Kill(args) => {
            println!("seed {}", args.seed);
            kill::run(args)
        }
        Command::Trace(args) => trace::run(args),
    };
    match outcome {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}
