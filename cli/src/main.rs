//! The program `tombolo`: it puts front ends, layers and back ends together, and knows nothing that they know.
//!
//! One module per command, each with its arguments and its `run`. Reading order: [`cli`], [`serve`], [`mount`].
#![forbid(unsafe_code)]

mod bench;
mod cli;
mod coherence;
mod completions;
mod counters;
mod doctor;
mod doorbell;
mod failure;
mod files;
mod invocation;
mod keys;
mod links;
#[allow(dead_code, reason = "the commands that name places come next")]
mod location;
mod man;
mod mount;
mod prometheus;
mod serve;
mod service;
mod status;
mod submounts;
mod suggestion;
mod table;
mod top;
mod tune;
mod umount;

use std::process::ExitCode;

fn main() -> ExitCode {
    invocation::run(std::env::args_os().collect())
}
