//! Command line of `tombolo`: its commands, and the options for logging that all of them have.

use clap::{Args, CommandFactory, Parser, Subcommand};
use tombolo_host_service::logging::{self, Destination, VARIABLE, Verbosity};

use crate::commands::broker::BrokerArgs;
use crate::commands::cache::CacheArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::disk::DiskArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::files::{CatArgs, CpArgs, DuArgs, LsArgs, MkdirArgs, MvArgs, RmArgs, StatArgs};
use crate::commands::image::ImageArgs;
use crate::commands::keys::KeysArgs;
use crate::commands::links::LinksArgs;
use crate::commands::man::ManArgs;
use crate::commands::mount::MountArgs;
use crate::commands::mounter::MounterArgs;
use crate::commands::names::NamesArgs;
use crate::commands::proxy::ProxyArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::session::SessionArgs;
use crate::commands::top::TopArgs;
use crate::commands::tune::TuneArgs;
use crate::commands::umount::UmountArgs;
use crate::commands::upgrade::UpgradeArgs;
use crate::commands::vm::{CloneArgs, VmArgs};
use crate::failure::{Failure, Outcome};

/// Files, disks and clones for virtual machines.
///
/// Shares directories with guests and with this host, serves disks, caches remote trees, clones VMs, and
/// mounts and copies from NFS servers.
#[derive(Parser)]
#[command(name = "tombolo", version, arg_required_else_help = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
    Proxy(Box<ProxyArgs>),
    Disk(Box<DiskArgs>),
    Vm(Box<VmArgs>),
    Clone(CloneArgs),
    Mount(MountArgs),
    Umount(UmountArgs),
    Ls(LsArgs),
    Cat(CatArgs),
    Cp(CpArgs),
    Mv(MvArgs),
    Mkdir(MkdirArgs),
    Stat(StatArgs),
    Du(DuArgs),
    Rm(RmArgs),
    Top(TopArgs),
    Links(LinksArgs),
    Cache(CacheArgs),
    Image(ImageArgs),
    Session(SessionArgs),
    Tune(TuneArgs),
    Upgrade(UpgradeArgs),
    Keys(KeysArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Broker(BrokerArgs),
    #[command(hide = true)]
    Mounter(MounterArgs),
    #[command(hide = true)]
    Names(NamesArgs),
}

/// Commands by purpose, as listed by `tombolo --help`.
const GROUPS: &[(&str, &[&str])] = &[
    ("Directories and disks", &["serve", "mount", "umount", "disk"]),
    ("Caches of remote trees", &["proxy", "session", "cache"]),
    ("Virtual machines", &["vm", "clone", "image"]),
    ("Files, without a mount", &["ls", "cat", "cp", "mv", "mkdir", "stat", "du", "rm"]),
    ("Running servers", &["top", "links", "tune", "upgrade", "keys"]),
    ("This program", &["doctor", "completions", "man"]),
];

/// Log verbosity.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LogArgs {
    /// Log more: -v events, -vv decisions, -vvv requests (cp, mv, mkdir: the first -v prints names).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log less: -q errors only, -qq nothing.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "verbose")]
    pub quiet: u8,
}

impl Command {
    /// Returns the log verbosity: the first -v of cp, mv and mkdir prints names, as in cp(1).
    fn logging(&self, log: LogArgs) -> LogArgs {
        let verbose = match self {
            Self::Cp(_) | Self::Mv(_) | Self::Mkdir(_) => log.verbose.saturating_sub(1),
            _ => log.verbose,
        };
        LogArgs { verbose, ..log }
    }
}

impl Cli {
    /// Returns the parser, whose help lists the commands in groups.
    pub fn program() -> clap::Command {
        let program = Self::command();
        let heading = *program.get_styles().get_header();
        let literal = *program.get_styles().get_literal();
        let mut groups = String::new();
        for (title, names) in GROUPS {
            groups += &format!("\n\n{heading}{title}:{heading:#}");
            for command in names.iter().filter_map(|name| program.find_subcommand(name)) {
                let (name, about) = (command.get_name(), command.get_about().cloned().unwrap_or_default());
                groups += &format!("\n  {literal}{name:<11}{literal:#}  {about}");
            }
        }
        program.help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}{groups}\n\n\
             `tombolo COMMAND --help` describes a command.\n\n\
             {heading}Options:{heading:#}\n{{options}}{{after-help}}"
        ))
    }

    pub fn run(self) -> Outcome {
        let destination = match &self.command {
            Command::Mount(args) => args.log_destination(),
            _ => Destination::StandardError,
        };
        start_log(self.command.logging(self.log), destination)?;
        match self.command {
            Command::Serve(args) => args.run(),
            Command::Proxy(args) => args.run(),
            Command::Disk(args) => args.run(self.log),
            Command::Vm(args) => args.run(),
            Command::Clone(args) => args.run(),
            Command::Mount(args) => args.run(self.log),
            Command::Umount(args) => args.run(),
            Command::Ls(args) => args.run(),
            Command::Cat(args) => args.run(),
            Command::Cp(args) => args.run(self.log),
            Command::Mv(args) => args.run(self.log),
            Command::Mkdir(args) => args.run(self.log),
            Command::Stat(args) => args.run(),
            Command::Du(args) => args.run(),
            Command::Rm(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Links(args) => args.run(),
            Command::Cache(args) => args.run(),
            Command::Image(args) => args.run(),
            Command::Session(args) => args.run(),
            Command::Tune(args) => args.run(),
            Command::Upgrade(args) => args.run(),
            Command::Keys(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Completions(args) => args.run(),
            Command::Man(args) => args.run(),
            Command::Broker(args) => args.run(),
            Command::Mounter(args) => args.run(),
            Command::Names(args) => args.run(),
        }
    }
}

/// Starts logging according to the command line and `TOMBOLO_LOG`.
pub fn start_log(args: LogArgs, destination: Destination) -> Outcome {
    let directives = std::env::var(VARIABLE).ok();
    logging::start(Verbosity::new(args.verbose, args.quiet), directives.as_deref(), destination)
        .map_err(|error| Failure::usage(error.to_string()).remedy("for example, set TOMBOLO_LOG=info"))
}

const AFTER_HELP: &str = "\
Examples:
  tombolo serve ~/src --virtiofs /run/vm1.sock,tag=src
  tombolo mount nfs://nas.example/export/src /mnt/src
  tombolo proxy nfs://far.example/src --cache /var/cache/src --fuse /mnt/src
  tombolo disk vm.img --vhost-user /run/vm1.sock
  tombolo clone nfs://ship/images/golden vm1
  tombolo cp -r -p src nfs://nas.example/export/backup

Environment:
  TOMBOLO_LOG  log filter, overrides -v and -q: a level (error, warn, info, debug, trace), or
               levels of modules by the beginning of the names in the log:
               `warn,tombolo_host=debug`

Documentation:
  docs/        of the source repository, in /usr/share/doc/tombolo/docs of the Debian package; begin
               with README.md. Help and messages name its files, such as docs/operating.md

Exit codes:
  0  success
  1  failure; one line on standard error states the reason
  2  invalid command line or configuration
  130, 143  a command was ended by SIGINT or SIGTERM; a server ended by them exits with 0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_groups_list_each_command_once() {
        let program = Cli::command();
        let visible = program.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<_> = visible.map(clap::Command::get_name).collect();
        let mut listed: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        visible.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, visible);
    }
}
