//! `tombolo man`: manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::failure::{Failure, Outcome};
use crate::mount::Helper;

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
                let written = write_pages(dir);
                written.map_err(|error| {
                    Failure::cannot(format_args!("write manual pages to {}", dir.display()), &error)
                })
            }
        }
    }
}

/// One page for the program, one for each command, and mount.tombolo(8).
fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)?;
    Man::new(Helper::command()).section("8").generate_to(dir)?;
    Ok(())
}
