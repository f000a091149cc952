//! `tombolo mv`: moves and renames files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use clap::Args;
use libtombolo::{Last, Node, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{Attr, FileType, NameBuf, RenameFlags};

use crate::cli::LogArgs;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::{End, Location};

use super::cp::CpArgs;
use super::open_path::{OpenPath, Opener, WaitArgs, label_of, own_name};
use super::problem::Failures;
use super::rm::RmArgs;
use super::{shown, stop};

/// Move and rename files on and between NFS servers and this host.
///
/// Within an export or a local file system this is a rename. Otherwise everything is copied as by `tombolo cp
/// -a`, and the source is removed if nothing failed and it has not changed meanwhile. Either way a DST that
/// is a symbolic link is replaced, not followed. A pipe, socket or device is only replaced by a rename.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct MvArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Do not overwrite existing files.
    #[arg(short, long)]
    no_clobber: bool,
    /// Treat DST as the new name, not as a directory to move into.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Files to move: nfs://HOST[:PORT]/NAME/PATH, nfs+ssh://HOST/PATH, shm:SOCKET/NAME/PATH, dir:PATH,
    /// or a path.
    #[arg(required = true, value_name = "SRC", value_parser = Location::word_parser())]
    sources: Vec<Location>,
    /// Destination: a directory to move into, or a new name.
    #[arg(required = true, value_name = "DST", value_parser = Location::word_parser())]
    target: Location,
}

const EXAMPLES: &str = "\
Examples:
  tombolo mv nfs://server/export/old nfs://server/export/new
  tombolo mv result.tar nfs://server/export/results";

/// Reason that a file was not renamed.
enum NotRenamed {
    /// The target is on another file system: the file must be copied to this location.
    OtherFileSystem(Location),
    Failed(Failure),
}

impl From<Failure> for NotRenamed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl MvArgs {
    /// Moves all sources in order, as far as possible.
    pub fn run(&self, log: LogArgs) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        self.must_take_all(&mut opener)?;
        let mut failures = Failures::default();
        for source in &self.sources {
            let renamed = match (source, &self.target) {
                (Location::Dir(from), Location::Dir(to)) => self.rename_here(from, to),
                _ => self.rename_there(source, &mut opener),
            };
            let moved = match renamed {
                Ok(()) => Ok(()),
                Err(NotRenamed::Failed(failure)) => Err(failure),
                Err(NotRenamed::OtherFileSystem(target)) => {
                    self.copy_and_remove(source, target, &mut opener, log)
                }
            };
            // A signal ends the command.
            if moved.as_ref().is_err_and(Failure::is_stop) {
                return moved;
            }
            if failures.told(moved).is_some() && log.verbose > 0 {
                super::ls::print(&format!("{} -> {}", word(source), word(&self.target)))?;
            }
        }
        failures.outcome()
    }

    /// Renames on this host.
    fn rename_here(&self, from: &Path, to: &Path) -> Result<(), NotRenamed> {
        let target = match from.file_name() {
            Some(name) if to.is_dir() && !self.no_target_directory => to.join(name),
            _ => to.to_owned(),
        };
        // rename(2) does not follow a symbolic link to a directory either.
        let onto_dir = || target.symlink_metadata().is_ok_and(|found| found.is_dir());
        if self.no_clobber && target.symlink_metadata().is_ok() {
            return Ok(());
        }
        match fs::rename(from, &target) {
            Err(error) if error.kind() == ErrorKind::CrossesDevices => {
                Err(self.other_file_system(from.is_dir(), onto_dir(), Location::Dir(target))?)
            }
            outcome => Ok(outcome.or_cannot(format_args!("move {}", word(&Location::Dir(from.into()))))?),
        }
    }

    /// Renames where a server is involved.
    fn rename_there(&self, source: &Location, opener: &mut Opener) -> Result<(), NotRenamed> {
        let from = opener.open(source, End::Name)?;
        let node = from.find_or_fail(Last::Keep)?;
        let to = opener.open(&self.target, End::Name)?;
        let (dir, name, target) = self.target_of(&to, own_name(source))?;
        let found = dir.find(name.as_name()).wait();
        if self.no_clobber && found.is_ok() {
            return Ok(());
        }
        let is_dir =
            |node: &Node| block_on(node.attr()).is_ok_and(|attr| attr.file_type == FileType::Directory);
        if !from.tree.is_same_session(&to.tree) {
            return Err(self.other_file_system(
                is_dir(&node),
                found.is_ok_and(|found| is_dir(&found)),
                target,
            )?);
        }
        let (from_dir, from_name) = from.parent().map_err(|error| match error {
            Error::InvalidArgument => Failure::cannot(
                format_args!("move {}", from.word),
                "it is the root of an export, or has no name",
            ),
            error => from.cannot("move", &error),
        })?;
        let renamed = from_dir.rename(from_name.as_name(), &dir, name.as_name(), RenameFlags::empty()).wait();
        match renamed {
            Err(Error::CrossDevice) => {
                Err(self.other_file_system(is_dir(&node), found.is_ok_and(|found| is_dir(&found)), target)?)
            }
            outcome => Ok(outcome.map_err(|error| from.cannot("move", &error))?),
        }
    }

    /// Returns the target's directory and name, and both as a location.
    fn target_of(&self, to: &OpenPath, own: Option<NameBuf>) -> Result<(Node, NameBuf, Location), Failure> {
        let found = to.find(Last::Follow).ok();
        let into = found.filter(|node| !self.no_target_directory && is_dir(node));
        match (into, own) {
            (Some(dir), Some(own)) => match self.target.below(own.as_name().as_bytes()) {
                Some(target) => Ok((dir, own, target)),
                None => Err(to.cannot("move into", &Error::InvalidArgument)),
            },
            (Some(_), None) => Err(Failure::cannot(format_args!("move into {}", to.word), "it has no name")),
            (None, _) => {
                let (dir, name) = to.parent().map_err(|error| to.cannot("find the directory of", &error))?;
                Ok((dir, name, self.target.clone()))
            }
        }
    }

    /// Fails if several sources are given and the target is not a directory.
    fn must_take_all(&self, opener: &mut Opener) -> Outcome {
        let [first, _, ..] = self.sources.as_slice() else { return Ok(()) };
        // Opened before the target, so that a target in the same export shares the session.
        let _ = opener.open(first, End::Name);
        let is_dir = match &self.target {
            Location::Dir(path) => path.is_dir(),
            target => opener.open(target, End::Name)?.find(Last::Follow).is_ok_and(|node| is_dir(&node)),
        };
        if is_dir && !self.no_target_directory {
            return Ok(());
        }
        let failure =
            Failure::cannot(format_args!("move to {}", word(&self.target)), "it is not a directory");
        Err(failure.remedy("several sources need a directory"))
    }

    /// Returns [`NotRenamed::OtherFileSystem`] with the location to copy to; fails if that is a directory.
    /// Directories never replace directories, because that would merge them.
    fn other_file_system(
        &self,
        is_dir: bool,
        onto_dir: bool,
        target: Location,
    ) -> Result<NotRenamed, Failure> {
        match onto_dir {
            true if is_dir => Err(Failure::cannot(format_args!("move to {}", word(&target)), "it exists")
                .remedy("copy into it with `tombolo cp -a`, or remove it first")),
            true => Err(Failure::cannot(format_args!("move to {}", word(&target)), "it is a directory")),
            false => Ok(NotRenamed::OtherFileSystem(target)),
        }
    }

    /// Copies, then removes the source if it has not changed. Fails beforehand if the target is the same
    /// file: a file may be reachable by two routes (a mount of an export and its URL, two names of a host),
    /// and the copy would replace the source.
    fn copy_and_remove(
        &self,
        source: &Location,
        target: Location,
        opener: &mut Opener,
        log: LogArgs,
    ) -> Outcome {
        let moving = format!("move {}", word(source));
        let before = look_at(source, opener)?;
        let at_target = opener.open(&target, End::Name)?.find(Last::Keep).ok();
        if at_target.is_some_and(|node| block_on(node.attr()).is_ok_and(|attr| is_unchanged(&before, &attr)))
        {
            return Err(Failure::cannot(moving, format!("{} is the same file", word(&target))));
        }
        let quiet = LogArgs { quiet: log.quiet.max(1), verbose: 0 };
        CpArgs::to_name(source.clone(), target, self.wait).run(quiet)?;
        if !is_unchanged(&before, &look_at(source, opener)?) {
            let failure = Failure::cannot(moving, "it was copied, but the source has changed since");
            return Err(failure.remedy("the source was not removed"));
        }
        RmArgs::of_tree(source.clone(), self.wait).run()?;
        // The current move is complete; no further one is started.
        stop::came().map_or(Ok(()), |signal| Err(Failure::stopped(signal)))
    }
}

fn look_at(source: &Location, opener: &mut Opener) -> Result<Attr, Failure> {
    let place = opener.open(source, End::Name)?;
    let node = place.find_or_fail(Last::Keep)?;
    block_on(node.attr()).map_err(|error| place.cannot("get attributes of", &error))
}

/// Returns `true` for the same file, unchanged. File system numbers differ between routes; ctime cannot be
/// set.
fn is_unchanged(one: &Attr, other: &Attr) -> bool {
    let of = |attr: &Attr| (attr.file_type, attr.fileid, attr.size, attr.mtime, attr.ctime);
    of(one) == of(other)
}

fn is_dir(node: &Node) -> bool {
    block_on(node.attr()).is_ok_and(|attr| attr.file_type == FileType::Directory)
}

fn word(location: &Location) -> String {
    shown::name(&label_of(location))
}
