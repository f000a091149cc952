//! `tombolo-kill`: what clients keep when their server is killed, stopped and started.
//!
//! - [`nfs`]: NFS clients ([`nfs::client`], [`nfs::worker`]) work while the server is killed and restarted; [`nfs::tree`] compares in the end.
//!   [`nfs::trace`]: each kind of call alone, with the server's system calls between the call and its answer.
//! - [`links`]: a server and a client over shared memory in processes of their own; one is disturbed, and when the client has gone on for a
//!   while the next disturbance comes. In the end [`links::check`] holds the tree against the log ([`links::log`], [`links::model`]).
//!
//! Not here: lying peers (`tests/vrpc`, `fuzz`), hostile calls and single procedures (`tests/nfs`), guests (`tests/guests`), power loss.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the report is what the program is for")]

mod links;
mod nfs;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words = || std::env::args().skip(1);
    let outcome = if let Some(command) = links::args::Command::read(words()) {
        match &command {
            links::args::Command::Run(args) => links::run(args).map(|report| println!("{report}")),
            links::args::Command::Client(args) => links::client::work(args),
        }
        .map_err(|failure| failure.to_string())
    } else if let Some(command) = nfs::args::Command::read(words()) {
        match &command {
            nfs::args::Command::Kill(args) => {
                println!("seed {}", args.seed);
                nfs::run(args)
            }
            nfs::args::Command::Trace(args) => nfs::trace::run(args),
        }
        .map(|report| println!("{report}"))
        .map_err(|failure| failure.to_string())
    } else {
        eprintln!("{}\n{}", nfs::args::USAGE, links::args::USAGE);
        return ExitCode::from(2);
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("FAILED: {failure}");
            ExitCode::FAILURE
        }
    }
}
