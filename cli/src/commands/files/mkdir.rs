//! `tombolo mkdir`: creates directories.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use clap::Args;
use libtombolo::{Last, Tree, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{FileType, Mode, SetAttr};

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

use super::open_path::{Opener, WaitArgs, label_of};
use super::problem::Failures;
use super::shown;

/// Create directories on NFS servers and on this host.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct MkdirArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Create parent directories too, and ignore existing ones.
    #[arg(short, long)]
    parents: bool,
    /// Permission bits in octal (by default 0777 minus the umask).
    #[arg(short, long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// Directories: nfs://HOST[:PORT]/NAME/PATH, nfs+ssh://HOST/PATH, shm:SOCKET/NAME/PATH, dir:PATH, or a
    /// path.
    #[arg(required = true, value_name = "LOCATION", value_parser = Location::word_parser())]
    names: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo mkdir nfs://server/export/new
  tombolo mkdir -p -m 750 nfs://server/export/a/b/c";

impl MkdirArgs {
    /// Creates all directories in order, as far as possible.
    pub fn run(&self, log: LogArgs) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut failures = Failures::default();
        for name in &self.names {
            let made = match name {
                Location::Dir(path) => self.make_here(path),
                _ => self.make_there(name, &mut opener),
            };
            if failures.told(made) == Some(true) && log.verbose > 0 {
                super::ls::print(&shown::name(&label_of(name)))?;
            }
        }
        failures.outcome()
    }

    /// Creates a directory on this host. Returns `false` if it existed, which only `--parents` permits.
    fn make_here(&self, path: &Path) -> Result<bool, Failure> {
        let make = || {
            if let Some(above) = path.parent().filter(|_| self.parents) {
                fs::create_dir_all(above)?;
            }
            match fs::create_dir(path) {
                Err(_) if self.parents && path.is_dir() => return Ok(false),
                made => made?,
            }
            if let Some(mode) = self.mode {
                fs::set_permissions(path, Permissions::from_mode(mode.bits()))?;
            }
            Ok(true)
        };
        let word = shown::name(path.as_os_str().as_bytes());
        make().map_err(|error: io::Error| Failure::cannot(format_args!("create {word}"), &error))
    }

    /// Creates a directory on a server. Returns `false` if it existed, which only `--parents` permits.
    fn make_there(&self, location: &Location, opener: &mut Opener) -> Result<bool, Failure> {
        let place = opener.open(location, End::Name)?;
        let cannot = |error: &Error| place.cannot("create", error);
        if !self.parents {
            return match self.make_in(&place.tree, &place.path, true) {
                // The path is the root of an export, which exists.
                Err(Error::InvalidArgument) => Err(cannot(&Error::Exists)),
                made => made.map(|()| true).map_err(|error| cannot(&error)),
            };
        }
        let ends = place.path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut is_made = false;
        for end in ends.chain([place.path.len()]).filter(|end| *end > 0) {
            let path = place.path.get(..end).unwrap_or_default();
            is_made = match block_on(place.tree.find(path, Last::Follow)) {
                Ok(found) => match block_on(found.attr()) {
                    Ok(attr) if attr.file_type == FileType::Directory => false,
                    Ok(_) => return Err(cannot(&Error::NotDirectory)),
                    Err(error) => return Err(cannot(&error)),
                },
                Err(Error::NotFound) => {
                    let is_last = end == place.path.len();
                    self.make_in(&place.tree, path, is_last).map_err(|error| cannot(&error))?;
                    true
                }
                Err(error) => return Err(cannot(&error)),
            };
        }
        Ok(is_made)
    }

    fn make_in(&self, tree: &Tree, path: &[u8], is_last: bool) -> Result<(), Error> {
        let (dir, name) = block_on(tree.find_parent(path))?;
        let made = dir.make_dir(name.as_name(), Mode::new(0o777)).wait()?;
        // The umask does not apply to an explicit mode (mkdir(1)).
        if let Some(mode) = self.mode.filter(|_| is_last) {
            made.set_attr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).wait()?;
        }
        Ok(())
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| bits & !Mode::MASK == 0);
    bits.map(Mode::new).ok_or_else(|| "octal digits from 0 to 7777".into())
}
