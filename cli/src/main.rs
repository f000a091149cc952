//! The program `tombolo`: assembles front ends, layers and back ends. It implements no protocol and no file
//! system itself.
//!
//! Reading order: [`cli`], [`commands::serve`], [`assembly`], [`commands::mount`].
#![forbid(unsafe_code)]

mod assembly;
mod certificates;
mod cli;
mod commands;
mod failure;
mod invocation;
mod location;
mod mount_point;
mod progress;
mod service;
mod setting;
mod suggestion;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    invocation::run(std::env::args_os().collect())
}
