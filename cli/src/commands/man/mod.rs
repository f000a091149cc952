//! `tombolo man`: manual pages, generated from the help and from text of their own.

mod page;
mod references;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};

use crate::cli::Cli;
use crate::commands::mount::Helper;
use crate::failure::{OrCannot, Outcome};
use page::Page;

/// Print tombolo(1), or write all manual pages to a directory.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Output directory, for one page per command and for mount.tombolo.8, which belongs in man8.
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo man | man -l -
  tombolo man /usr/local/share/man/man1";

impl ManArgs {
    pub fn run(&self) -> Outcome {
        match &self.dir {
            None => {
                let mut page = Vec::new();
                let rendered = Page::new(program(), "1").write(&mut page);
                rendered.and_then(|()| io::stdout().write_all(&page)).or_cannot("print the manual page")
            }
            Some(dir) => write_pages(dir).or_cannot(format_args!("write manual pages to {}", dir.display())),
        }
    }
}

/// Returns the command line, with the full names of its commands.
fn program() -> Command {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    program
}

/// Writes a page for the program, one for each command, and mount.tombolo(8).
fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    write_all(program(), dir)?;
    write_page(&Page::new(Helper::command(), "8"), dir)
}

fn write_all(command: Command, dir: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_all(command.clone(), dir)?;
    }
    write_page(&Page::new(command, "1"), dir)
}

fn write_page(page: &Page, dir: &Path) -> io::Result<()> {
    let mut file = File::create(dir.join(page.file_name()))?;
    page.write(&mut file)?;
    file.flush()
}
