//! `tombolo cache`: inspects and maintains a cache directory that no proxy uses.

mod fill;
mod list;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use tombolo_layer_cache::store::Store;

use crate::assembly::options::cache::Size;
use crate::assembly::plan::cache::not_opened;
use crate::assembly::plan::write_back::refuse_what_is_kept;
use crate::commands::files::shown;
use crate::failure::{Failure, OrCannot, Outcome};

/// Inspect and maintain the cache of a proxy that is not running.
///
/// For a running proxy use `tombolo top`, and `tombolo session show` for changes not yet at the origin.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CacheArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Fetch a tree, or parts of it, in advance. Cached data are not fetched again, so the same command
    /// resumes after an interruption.
    ///
    /// The proxy must not be running.
    Fill(fill::FillArgs),
    /// Show the origin and the amount of cached data.
    ///
    /// The proxy must not be running.
    Info(OfDir),
    /// List cached files.
    ///
    /// The proxy must not be running.
    List(list::ListArgs),
    /// Check all data against their checksums; the data of damaged files are dropped, and fetched again when
    /// needed.
    ///
    /// The proxy must not be running.
    Verify(OfDir),
    /// Evict data, those not used recently first, until at most SIZE is left.
    ///
    /// The proxy must not be running.
    Trim {
        #[command(flatten)]
        of: OfDir,
        /// Amount of data to retain in bytes; K, M, G and T are powers of 1024.
        #[arg(value_name = "SIZE")]
        size: Size,
    },
    /// Remove the whole cache.
    ///
    /// Refused if it has changes that the origin lacks. The proxy must not be running.
    Drop(OfDir),
}

#[derive(Args)]
struct OfDir {
    /// Cache directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo cache fill nfs://far.example/src --cache /var/cache/tombolo/src include lib
  tombolo cache info /var/cache/tombolo/src
  tombolo cache list /var/cache/tombolo/src include
  tombolo cache verify /var/cache/tombolo/src
  tombolo cache trim /var/cache/tombolo/src 1G";

impl CacheArgs {
    pub fn run(self) -> Outcome {
        match self.action {
            Action::Fill(fill) => fill.run(),
            Action::Info(OfDir { dir }) => info(&dir),
            Action::List(list) => list.run(),
            Action::Verify(OfDir { dir }) => verify(&dir),
            Action::Trim { of: OfDir { dir }, size } => {
                open(&dir)?.trim(size.0);
                info(&dir)
            }
            Action::Drop(OfDir { dir }) => {
                // Opening verifies that this is a cache and not in use.
                drop(open(&dir)?);
                let removing = format!("remove {}", dir.display());
                let remedy = "start its proxy with --mode write-back again, or remove the directory manually";
                refuse_what_is_kept(&removing, &dir, remedy)?;
                let sessions = std::fs::read_dir(dir.join("sessions")).into_iter().flatten().flatten();
                for session in sessions {
                    let remedy = "start its proxy again, or remove the directory manually";
                    refuse_what_is_kept(&removing, &session.path(), remedy)?;
                }
                std::fs::remove_dir_all(&dir).or_cannot(removing)
            }
        }
    }
}

fn open(dir: &Path) -> Result<Arc<Store>, Failure> {
    let opening = format!("use {}", dir.display());
    if !dir.join("cache").is_file() {
        return Err(Failure::cannot(&opening, "it is not a cache directory"));
    }
    Store::open_existing(dir).map_err(|error| not_opened(&opening, &error))
}

fn info(dir: &Path) -> Outcome {
    let info = open(dir)?.info();
    say(format_args!(
        "origin   {}\nobjects  {}\nfiles    {} with {} of data\n",
        info.origin,
        info.objects,
        info.files,
        shown::short_size(info.kept_bytes)
    ))
}

fn verify(dir: &Path) -> Outcome {
    let store = open(dir)?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{pos} of {len} files {wide_bar} {eta}") {
        bar.set_style(style);
    }
    let (blocks, damaged) = store.verify(|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    match damaged {
        0 => say(format_args!("{blocks} blocks checked, none damaged\n")),
        _ => {
            let problem =
                format!("{damaged} of {blocks} blocks were damaged; the data of their files were dropped");
            Err(Failure::cannot(format_args!("verify {}", dir.display()), problem))
        }
    }
}

fn say(text: std::fmt::Arguments<'_>) -> Outcome {
    io::stdout().write_fmt(text).or_cannot("write")
}
