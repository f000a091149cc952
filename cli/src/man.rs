//! `tombolo man`: manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::failure::{Failure, Outcome};

/// Print the manual page tombolo(1), or write all pages to a directory.
#[derive(Args)]
pub struct ManArgs {
    /// Where to write the pages: one for the program, one for each command.
    dir: Option<PathBuf>,
}

impl ManArgs {
    /// Prints or writes them.
    pub fn run(&self) -> Outcome {
        match &self.dir {
            None => {
                let mut page = Vec::new();
                let rendered = Man::new(Cli::command()).render(&mut page);
                let printed = rendered.and_then(|()| io::stdout().write_all(&page));
                printed.map_err(|error| Failure::cannot("print the manual page", &error))
            }
            Some(dir) => {
                let written =
                    fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
                written.map_err(|error| {
                    Failure::cannot(format_args!("write manual pages to {}", dir.display()), &error)
                })
            }
        }
    }
}
