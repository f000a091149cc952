//! All tests, in one program.

mod cache;
mod common;
mod disk;
mod layers;
mod local_dir;
mod memory;
mod model;
mod mount;
mod passthrough;
mod planted;
mod replies;
mod simulation;
mod write_back;
