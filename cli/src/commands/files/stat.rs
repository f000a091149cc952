//! `tombolo stat`: prints file attributes.

use clap::Args;
use libtombolo::Last;
use serde::Serialize;
use tombolo_core::fs::{Attr, FileType};

use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

use super::open_path::{OpenPath, Opener, WaitArgs, own_name};
use super::problem::Failures;
use super::shown;

/// Show the attributes of files on NFS servers and on this host.
///
/// Symbolic links are not followed; their target is shown. Times are in UTC, and owners are numbers, since
/// names are known only to the server.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Print JSON, one array for all.
    #[arg(long)]
    json: bool,
    /// Files: nfs://HOST[:PORT]/NAME[/PATH], nfs+ssh://HOST/PATH, shm:SOCKET/NAME[/PATH], dir:PATH, or a
    /// path.
    #[arg(required = true, value_name = "LOCATION", value_parser = Location::word_parser())]
    names: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo stat nfs://server/export/file
  tombolo stat --json nfs://server/export | jq .[0].mtime";

impl StatArgs {
    /// Shows all files in order, as far as possible.
    pub fn run(&self) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut failures = Failures::default();
        let mut facts = Vec::new();
        for name in &self.names {
            let found = opener.open(name, End::Name).and_then(|place| Facts::of(name, &place));
            match failures.told(found) {
                Some(found) if self.json => facts.push(found),
                Some(found) => super::ls::print(&found.text())?,
                None => {}
            }
        }
        if self.json {
            super::ls::print_json(&facts)?;
        }
        failures.outcome()
    }
}

/// Attributes of a file, printed as JSON.
#[derive(Serialize)]
pub struct Facts {
    /// File name, or the location as given if it has none. Bytes that are not text are escaped.
    pub name: String,
    /// Location as given, with the path below it.
    pub path: String,
    #[serde(rename = "type")]
    pub file_type: &'static str,
    pub size: u64,
    pub mode: String,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub fileid: u64,
    pub fsid: u64,
    /// Unit: 512 bytes.
    pub blocks: u64,
    pub atime: String,
    pub mtime: String,
    pub ctime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    #[serde(skip)]
    letters: String,
}

impl Facts {
    fn of(location: &Location, place: &OpenPath) -> Result<Self, Failure> {
        let cannot = |error: &_| place.cannot("get attributes of", error);
        let node = place.find_or_fail(Last::Keep)?;
        let attr = node.attr_now().wait().map_err(|error| cannot(&error))?;
        let target = match attr.file_type {
            FileType::Symlink => Some(node.read_link().wait().map_err(|error| cannot(&error))?),
            _ => None,
        };
        Ok(Self::new(given_name(location, place), place.word.clone(), &attr, target.as_deref()))
    }

    pub fn new(name: String, path: String, attr: &Attr, target: Option<&[u8]>) -> Self {
        let is_device = matches!(attr.file_type, FileType::BlockDevice | FileType::CharDevice);
        Self {
            name,
            path,
            file_type: shown::file_type(attr.file_type),
            size: attr.size,
            mode: format!("{:04o}", attr.mode.bits()),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            fileid: attr.fileid,
            fsid: attr.fsid,
            blocks: attr.blocks,
            atime: shown::exact_time(attr.atime),
            mtime: shown::exact_time(attr.mtime),
            ctime: shown::exact_time(attr.ctime),
            target: target.map(shown::name),
            device: is_device.then_some((attr.rdev.major, attr.rdev.minor)),
            letters: shown::mode(attr),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            self.target
                .as_ref()
                .map_or_else(|| self.path.clone(), |target| format!("{} -> {target}", self.path)),
            format!("  type      {}", self.file_type),
            format!("  size      {} ({} blocks of 512 bytes)", self.size, self.blocks),
            format!("  mode      {} {}", self.mode, self.letters),
            format!("  owner     {}:{}", self.uid, self.gid),
            format!("  links     {}", self.nlink),
            format!("  inode     {}, file system {:x}", self.fileid, self.fsid),
            format!("  accessed  {}", self.atime),
            format!("  modified  {}", self.mtime),
            format!("  changed   {}", self.ctime),
        ];
        lines.extend(self.device.map(|(major, minor)| format!("  device    {major}:{minor}")));
        lines.join("\n")
    }
}

pub fn given_name(location: &Location, place: &OpenPath) -> String {
    own_name(location).map_or_else(|| place.word.clone(), |name| shown::name(name.as_name().as_bytes()))
}
