//! `tombolo completions`: completions for a shell.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::{Failure, Outcome};

/// Print completions for a shell: `source <(tombolo completions bash)`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// Which shell.
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints them.
    pub fn run(&self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tombolo", &mut script);
        io::stdout().write_all(&script).map_err(|error| Failure::cannot("print the completions", &error))
    }
}
