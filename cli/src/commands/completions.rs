//! `tombolo completions`: shell completions.

use std::io::{self, Write};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::{OrCannot, Outcome};

/// Print completions for a shell.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// Shell.
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  tombolo completions bash > /etc/bash_completion.d/tombolo
  tombolo completions fish > ~/.config/fish/completions/tombolo.fish";

impl CompletionsArgs {
    pub fn run(&self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut public(&Cli::command()), "tombolo", &mut script);
        io::stdout().write_all(&script).or_cannot("print the completions")
    }
}

/// Returns the command without hidden arguments and subcommands, which generators do not omit.
fn public(command: &Command) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned();
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(public);
    let about = command.get_about().cloned().unwrap_or_default();
    let bare = Command::new(command.get_name().to_owned())
        .about(about)
        .args(args)
        .subcommands(subcommands)
        .disable_help_flag(command.is_disable_help_flag_set());
    match command.get_version() {
        Some(version) => bare.version(version.to_owned()),
        None => bare,
    }
}
