//! `tombolo bench`: figures, beside those of the peers.

use std::io;

use tombolo_bench::BenchArgs;

use crate::failure::{Failure, Outcome};

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Outcome {
    tombolo_bench::run(args, &mut io::stdout().lock()).map_err(|error| Failure::cannot("measure", &error))
}
