//! `tombolo du`: disk usage of trees.

use std::collections::HashSet;

use clap::Args;
use libtombolo::{Above, Last, Node, block_on};
use tombolo_core::Error;
use tombolo_core::fs::{Attr, FileType, NameBuf};

use crate::failure::Outcome;
use crate::location::{End, Location};

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::problem::{self, Failures};
use super::shown;

/// Show the disk usage of directories on NFS servers and this host.
///
/// In allocated KiB, each directory including its subdirectories. Files with several names are counted once
/// for each argument.
#[derive(Args)]
#[command(after_help = EXAMPLES, disable_help_flag = true)]
pub struct DuArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Show only the total of each argument.
    #[arg(short, long)]
    summarize: bool,
    /// Print sizes like 1.5K, 234M, 2G.
    #[arg(short, long)]
    human_readable: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Directories: nfs://HOST[:PORT]/NAME[/PATH], nfs+ssh://HOST/PATH, shm:SOCKET/NAME[/PATH], dir:PATH, or
    /// a path.
    #[arg(value_name = "LOCATION", default_value = ".", value_parser = Location::word_parser())]
    locations: Vec<Location>,
}

const EXAMPLES: &str = "\
Examples:
  tombolo du -sh nfs://server/export/home";

/// A directory whose total is incomplete.
struct OpenTotal {
    /// Name in the parent directory; `None` for the directory named by the user.
    name: Option<NameBuf>,
    bytes: u64,
}

/// A directory not yet listed.
struct Unlisted {
    name: Option<NameBuf>,
    node: Node,
    attr: Attr,
    depth: usize,
}

struct Walk<'a> {
    args: &'a DuArgs,
    place: &'a OpenPath,
    open: Vec<OpenTotal>,
    /// Files with several names that have been counted: file system and file number.
    counted: HashSet<(u64, u64)>,
    failures: Failures,
}

impl DuArgs {
    /// Prints the usage of all locations, in order.
    pub fn run(&self) -> Outcome {
        let mut opener = Opener::new().limited(self.wait);
        let mut failures = Failures::default();
        for location in &self.locations {
            failures.told(opener.open(location, End::Name).and_then(|place| {
                let (open, counted) = (Vec::new(), HashSet::new());
                let failures = Failures::default();
                Walk { args: self, place: &place, open, counted, failures }.run()
            }));
        }
        failures.outcome()
    }
}

impl Walk<'_> {
    fn run(&mut self) -> Outcome {
        let node = self.place.find_or_fail(Last::Keep)?;
        let attr = block_on(node.attr()).map_err(|error| self.place.cannot("get attributes of", &error))?;
        if attr.file_type != FileType::Directory {
            return self.print(allocated(&attr), &self.place.word);
        }
        let mut above = Above::default();
        let mut pending = vec![Unlisted { name: None, node, attr, depth: 0 }];
        while let Some(Unlisted { name, node, attr, depth }) = pending.pop() {
            self.close(depth)?;
            self.open.push(OpenTotal { name, bytes: allocated(&attr) });
            let listed = above.enter(depth, &node).and_then(|()| self.list(&node, depth, &mut pending));
            let listed = listed.map_err(|error| {
                problem::cannot(format_args!("list {}", self.path()), &error, &self.place.tree)
            });
            self.failures.told(listed);
        }
        self.close(0).and(self.failures.outcome())
    }

    /// Counts a directory's entries, and pushes its subdirectories onto `pending`.
    fn list(&mut self, dir: &Node, depth: usize, pending: &mut Vec<Unlisted>) -> Result<(), Error> {
        let mut listing = block_on(dir.list(true))?;
        while let Some(item) = block_on(listing.next())? {
            let node = match item.node {
                Some(node) => node,
                None => match dir.find(item.name.as_name()).wait() {
                    // The name was removed after it was listed.
                    Err(Error::NotFound) => continue,
                    found => found?,
                },
            };
            let attr = block_on(node.attr())?;
            if attr.file_type == FileType::Directory {
                pending.push(Unlisted { name: Some(item.name), node, attr, depth: depth + 1 });
            } else if (attr.nlink < 2 || self.counted.insert((attr.fsid, attr.fileid)))
                && let Some(open) = self.open.last_mut()
            {
                open.bytes = open.bytes.saturating_add(allocated(&attr));
            }
        }
        Ok(())
    }

    /// Completes the directories from this depth on.
    fn close(&mut self, depth: usize) -> Outcome {
        while self.open.len() > depth {
            let path = (self.open.len() == 1 || !self.args.summarize).then(|| self.path());
            let Some(done) = self.open.pop() else { break };
            if let Some(above) = self.open.last_mut() {
                above.bytes = above.bytes.saturating_add(done.bytes);
            }
            if let Some(path) = path {
                self.print(done.bytes, &path)?;
            }
        }
        Ok(())
    }

    /// Returns the path of the directory being summed up.
    fn path(&self) -> String {
        let mut path = self.place.word.clone();
        for name in self.open.iter().filter_map(|open| open.name.as_ref()) {
            if !path.ends_with('/') {
                path.push('/');
            }
            path.push_str(&shown::name(name.as_name().as_bytes()));
        }
        path
    }

    fn print(&self, bytes: u64, path: &str) -> Outcome {
        let size = match self.args.human_readable {
            true => shown::short_size(bytes),
            false => bytes.div_ceil(1024).to_string(),
        };
        super::ls::print(&format!("{size}\t{path}"))
    }
}

fn allocated(attr: &Attr) -> u64 {
    attr.blocks.saturating_mul(512)
}
