//! `tombolo rm`: removes files and trees.

use clap::Args;
use libtombolo::{block_on, remove_tree};
use tombolo_core::Error;
use tombolo_core::fs::FileType;

use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::problem::{self, Failures};
use super::shown;

/// Remove files and trees on NFS servers and on this host.
///
/// The names in a tree are removed concurrently. Symbolic links are removed, not followed. The root of an
/// export cannot be removed.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Remove directories and their contents.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Ignore nonexistent names.
    #[arg(short, long)]
    force: bool,
    /// Names to remove: nfs://HOST[:PORT]/NAME/PATH, nfs+ssh://HOST/PATH, shm:SOCKET/NAME/PATH, dir:PATH, or
    /// a path.
    #[arg(required = true, value_name = "LOCATION", value_parser = Location::word_parser())]
    names: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo rm nfs://server/export/old.log
  tombolo rm -r nfs://server/export/build";

impl RmArgs {
    /// Returns the arguments of `rm -r NAME`.
    pub fn of_tree(name: Location, wait: WaitArgs) -> Self {
        Self { wait, recursive: true, force: false, names: vec![name] }
    }

    /// Removes all names in order, as far as possible.
    pub fn run(&self) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut failures = Failures::default();
        for name in &self.names {
            failures.told(opener.open(name, End::Name).and_then(|place| self.remove(&place)));
        }
        failures.outcome()
    }

    /// Removes a name. Parts of a tree that cannot be removed are reported.
    fn remove(&self, place: &OpenPath) -> Outcome {
        let cannot = |error: &Error| place.cannot("remove", error);
        let (dir, name) = match place.parent() {
            Ok(found) => found,
            Err(Error::NotFound) if self.force => return Ok(()),
            Err(Error::InvalidArgument) => {
                let what = format!("remove {}", place.word);
                return Err(Failure::cannot(what, "it is the root of an export, or has no name"));
            }
            Err(error) => return Err(cannot(&error)),
        };
        let found = match dir.find(name.as_name()).wait() {
            Err(Error::NotFound) if self.force => return Ok(()),
            found => found.map_err(|error| cannot(&error))?,
        };
        let is_dir = found.attr_found().is_some_and(|attr| attr.file_type == FileType::Directory);
        if is_dir && !self.recursive {
            let failure = Failure::cannot(format_args!("remove {}", place.word), "it is a directory");
            return Err(failure.remedy("use -r to remove it and its contents"));
        }
        drop(found);
        let mut failed = |path: &[u8], error: &Error| {
            let what = format!("remove {}", shown::name(path));
            problem::cannot(what, error, &place.tree).print();
        };
        let removal = block_on(remove_tree(&dir, name.as_name(), &place.label, &mut failed));
        if removal.failed == 0 { Ok(()) } else { Err(Failure::silent()) }
    }
}
