//! `tombolo cache fill`: fetches trees in advance.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use clap::Args;
use indicatif::ProgressBar;
use libtombolo::{Above, Last, Node, StreamError, Tree, User, block_on};
use tombolo_back_local_dir::Options as DirOptions;
use tombolo_core::fs::{FileType, OpenFlags};
use tombolo_core::{Error, Result as FsResult, lock};

use crate::assembly::options::cache::{CacheOptions, ContractArg, Size};
use crate::assembly::plan::cache::CachePlan;
use crate::assembly::plan::tree::Tree as PlannedTree;
use crate::commands::files::user::Myself;
use crate::commands::files::{problem, shown, stop};
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::NfsOptions;
use crate::progress::bar;

#[derive(Args)]
pub struct FillArgs {
    /// Origin: nfs://HOST/NAME, nfs+ssh://HOST/PATH, shm:SOCKET/NAME or a directory, as for `tombolo proxy`.
    #[arg(value_name = "LOCATION")]
    tree: PathBuf,
    /// Paths within the tree (by default all of it).
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Cache directory, created if it is missing.
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Maximum size of the cached data and their index in bytes; K, M, G and T are powers of 1024 (by default
    /// 8G). If the files are larger, later ones evict earlier ones, and the command fails.
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<Size>,
    /// Unit of fetching and checking, a power of two from 4K to 1M (by default 64K).
    #[arg(long, value_name = "SIZE")]
    block_size: Option<Size>,
    /// Number of files fetched concurrently, from 1 to 1024.
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
}

/// State of a fill, shared by its threads: totals, and the request to stop.
struct Fill {
    bar: ProgressBar,
    files: AtomicU64,
    failed: AtomicU64,
    /// Total size of the files.
    bytes: AtomicU64,
    has_to_stop: AtomicBool,
}

impl FillArgs {
    pub fn run(self) -> Outcome {
        let Self { tree: word, paths, cache, cache_size, block_size, jobs } = self;
        let contract = Some(ContractArg(tombolo_layer_cache::Contract::Exclusive));
        // No client is served from the cache meanwhile, so the cache needs no lease.
        let options =
            CacheOptions { cache_size, block_size, contract, no_lease: true, ..CacheOptions::default() };
        let plan = CachePlan::new(cache, options)?;
        let planned = PlannedTree::of_word(&word)?;
        let opened = planned.open(DirOptions::default(), NfsOptions::for_cache())?;
        let cache = plan.over(&planned, &*opened.export)?;
        let Myself { identity, umask } = Myself::ask();
        let user = User { identity, umask, realm: planned.to_string() };
        let tree = Tree::attach(&*cache, user).or_cannot(format_args!("open {planned}"))?;
        let fill = Arc::new(Fill {
            bar: bar(),
            files: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            has_to_stop: AtomicBool::new(false),
        });
        let stopping = fill.clone();
        stop::on_signal(move |_| stopping.has_to_stop.store(true, Ordering::Relaxed))
            .or_cannot("watch for signals")?;
        let wanted = if paths.is_empty() { vec![String::new()] } else { paths };
        fill.all(&tree, &wanted, usize::from(jobs));
        cache.flush();
        fill.bar.finish_and_clear();
        let [files, failed, bytes] =
            [&fill.files, &fill.failed, &fill.bytes].map(|count| count.load(Ordering::Relaxed));
        let fetched = shown::short_size(cache.counts().fetched_bytes);
        if files > 0 || failed == 0 {
            super::say(format_args!(
                "{files} files with {}, {fetched} fetched now\n",
                shown::short_size(bytes)
            ))?;
        }
        if let Some(signal) = stop::came() {
            return Err(Failure::stopped(signal));
        }
        if bytes > plan.capacity_bytes() {
            let problem = format!("the cache is limited to {}", shown::short_size(plan.capacity_bytes()));
            return Err(Failure::cannot("cache all files", problem).remedy("increase --cache-size"));
        }
        if failed == 0 { Ok(()) } else { Err(Failure::silent()) }
    }
}

impl Fill {
    /// Reads all files below these paths, `jobs` at a time.
    fn all(&self, tree: &Tree, paths: &[String], jobs: usize) {
        // The channel is bounded: names listed ahead of the readers take little memory.
        let (found, files) = mpsc::sync_channel::<(Node, String)>(4096);
        let files = Mutex::new(files);
        thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some((node, path)) = next(&files) {
                        if let Err(error) = self.read(&node) {
                            self.complain("read", &path, &error, tree);
                        }
                    }
                });
            }
            for path in paths {
                match block_on(tree.find(path.trim_matches('/').as_bytes(), Last::Keep)) {
                    Ok(node) => self.walk(node, path, &found),
                    Err(error) => self.complain("find", path, &error, tree),
                }
            }
            drop(found);
        });
    }

    /// Sends all files and links below a node to the threads that read them.
    fn walk(&self, top: Node, path: &str, found: &mpsc::SyncSender<(Node, String)>) {
        let mut above = Above::default();
        let mut ahead = vec![(0, top, path.trim_matches('/').to_owned())];
        while let Some((depth, node, path)) = ahead.pop() {
            if self.has_to_stop.load(Ordering::Relaxed) {
                return;
            }
            let listed = block_on(self.list(&node, depth, &path, &mut above, &mut ahead));
            match listed {
                Ok(true) => {}
                Ok(false) => {
                    if found.send((node, path)).is_err() {
                        return;
                    }
                }
                Err(error) => self.complain("list", &path, &error, node.tree()),
            }
        }
    }

    /// Pushes a directory's entries onto `ahead`. Returns `false` for a file or a link, which the caller has
    /// to read.
    async fn list(
        &self,
        node: &Node,
        depth: usize,
        path: &str,
        above: &mut Above,
        ahead: &mut Vec<(usize, Node, String)>,
    ) -> FsResult<bool> {
        let attr = node.attr().await?;
        match attr.file_type {
            FileType::Directory => {}
            FileType::Regular => {
                self.bar.inc_length(attr.size);
                return Ok(false);
            }
            FileType::Symlink => return Ok(false),
            _ => return Ok(true),
        }
        above.enter(depth, node)?;
        let mut listing = node.list(true).await?;
        while let Some(item) = listing.next().await? {
            let below = match item.node {
                Some(below) => below,
                None => match node.find(item.name.as_name()).resolve().await {
                    // The name was removed after it was listed.
                    Err(Error::NotFound) => continue,
                    found => found?,
                },
            };
            let name = String::from_utf8_lossy(item.name.as_name().as_bytes()).into_owned();
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            ahead.push((depth + 1, below, path));
        }
        Ok(true)
    }

    /// Reads a file to its end, or a link, so that the cache stores it.
    fn read(&self, node: &Node) -> FsResult<()> {
        if self.has_to_stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if node.attr_found().is_some_and(|attr| attr.file_type == FileType::Symlink) {
            return node.read_link().wait().map(drop);
        }
        let file = block_on(node.open(OpenFlags::READ))?;
        let read = block_on(file.read_to(0, &mut self.bar.wrap_write(io::sink()), Default::default()));
        let bytes = read.map_err(|error| match error {
            StreamError::File(error) => error,
            StreamError::Stream(source) => Error::io(source),
        })?;
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn complain(&self, what: &str, path: &str, error: &Error, tree: &Tree) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.bar.suspend(|| problem::cannot(format_args!("{what} {path}"), error, tree).print());
    }
}

fn next(files: &Mutex<mpsc::Receiver<(Node, String)>>) -> Option<(Node, String)> {
    lock(files).recv().ok()
}
