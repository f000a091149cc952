//! `tombolo-kill`: data that clients retain when their server is killed, stopped and restarted.
//!
//! - [`nfs`]: NFS clients work while the server is killed and restarted, each through a relay that repeats
//!   calls. [`nfs::trace`]: each kind of call alone, with the server's system calls between the call and its
//!   answer.
//! - [`links`]: a server and a client over shared memory in separate processes; one of them is disturbed,
//!   repeatedly, after some progress of the client.
//!
//! The operations of all clients are those of [`load`], which predicts every answer and the final tree.
//!
//! Non-goals: hostile peers (`tests/vrpc`, `fuzz`), hostile calls and single procedures (`tests/nfs`), guests
//! (`tests/guests`), power loss.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the report is what the program is for")]

mod args;
mod failure;
mod links;
mod load;
mod nfs;
mod process;

use std::process::ExitCode;

use args::{Command, USAGE};

fn main() -> ExitCode {
    let Some(command) = Command::read(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match &command {
        Command::Nfs(args) => nfs::run(args),
        Command::Trace(args) => nfs::trace::run(args),
        Command::Links(args) => links::run(args),
        Command::Client(args) => links::client::work(args),
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
