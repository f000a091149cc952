//! The harness for links: one disturbance after the other.

pub mod check;
pub mod client;
mod doer;
pub mod log;
pub mod model;
mod records;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, rng};
use crate::failure::{Failure, Result, wrong};
use crate::links::check::check;
use crate::links::log::History;
use crate::links::site::{Site, wait_until_free};
use crate::process::{PATIENCE, Process};

/// Maximum pause of a stopped process.
const PAUSE_MAX_MS: u64 = 300;

/// Maximum number of requests answered before the next disturbance.
const REQUESTS_MAX: u64 = 40;

/// Runs the test and returns a summary.
pub fn run(args: &Args) -> Result<String> {
    println!("seed {}, {:?}", args.seed, args.way);
    let mut site = Site::new(args)?;
    let done = disturb(&site, args);
    if done.is_err() {
        site.unmount().ok();
        site.home.keep();
    }
    done
}

/// Progress of the log.
struct Progress {
    log: PathBuf,
    lines: usize,
}

fn disturb(site: &Site, args: &Args) -> Result<String> {
    let mut random = rng(args.seed, u64::MAX);
    let mut server = site.serve()?;
    site.mount()?;
    let mut worker = client(site, args.seed)?;
    let mut progress = Progress { log: site.home.path("asked"), lines: 0 };
    let mut done = BTreeMap::<&str, u64>::new();
    for _ in 0..args.rounds {
        progress.wait_for(1 + random.u64(..REQUESTS_MAX), &mut worker)?;
        thread::sleep(Duration::from_micros(random.u64(..2000)));
        let what = match random.u64(..10) {
            0..=4 => {
                server.kill()?;
                server = site.serve()?;
                "server killed"
            }
            5 | 6 => {
                server.pause(Duration::from_millis(random.u64(..PAUSE_MAX_MS)))?;
                "server stopped"
            }
            7 => {
                worker.pause(Duration::from_millis(random.u64(..PAUSE_MAX_MS)))?;
                "client stopped"
            }
            _ => {
                worker.kill()?;
                worker = client(site, args.seed)?;
                "client killed"
            }
        };
        *done.entry(what).or_default() += 1;
    }
    progress.wait_for(1 + random.u64(..REQUESTS_MAX), &mut worker)?;
    leave_when_told(worker)?;
    site.unmount()?;
    leave(site, server)?;
    let history = History::read(&progress.log)?;
    check(&site.home.tree(), &history.model)?;
    let done: Vec<String> = done.iter().map(|(what, times)| format!("{what} {times}")).collect();
    Ok(format!(
        "{}: {} requests answered, each once; {} in doubt",
        done.join(", "),
        history.answered,
        history.model.doubts.len()
    ))
}

/// Stops the server in order, and checks that no link left anything.
fn leave(site: &Site, server: Process) -> Result<()> {
    wait_until_free(&server)?;
    site.home.run(&["links"])?;
    server.stop()?;
    let left = files_below(&site.home.path("run"))?;
    if site.home.path("links").exists() || !left.is_empty() {
        return wrong(format!("left over: the socket, or links in the list: {left:?}"));
    }
    Ok(())
}

fn files_below(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.extend(files_below(&entry.path())?);
        } else {
            found.push(entry.path().display().to_string());
        }
    }
    Ok(found)
}

fn client(site: &Site, seed: u64) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("client").arg(site.home.path("asked")).arg(site.at());
    command.arg(if site.is_mount() { "mount" } else { "library" }).arg(seed.to_string());
    Process::start("client", command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(site.home.log()?))
}

/// Stops the client through its input, and waits until it has.
fn leave_when_told(mut client: Process) -> Result<()> {
    drop(client.child.stdin.take());
    let until = Instant::now() + PATIENCE;
    loop {
        match client.child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Failure::Process(format!("the client ended: {status}"))),
            None if Instant::now() > until => {
                return Err(Failure::Process("the client does not end".into()));
            }
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
}

impl Progress {
    /// Waits until `requests` more requests are answered.
    fn wait_for(&mut self, requests: u64, worker: &mut Process) -> Result<()> {
        let wanted = self.lines + 2 * requests as usize;
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read(&self.log).unwrap_or_default();
            self.lines = text.iter().filter(|byte| **byte == b'\n').count();
            if self.lines >= wanted {
                return Ok(());
            }
            worker.is_alive()?;
            if Instant::now() > until {
                return Err(Failure::Process("the client makes no progress".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
