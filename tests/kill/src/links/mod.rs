//! The harness for links: one disturbance after the other.

pub mod client;
mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{Args, rng};
use crate::failure::{Failure, Result, wrong};
use crate::links::client::{BEGUN, ENDED};
use crate::links::site::{Site, wait_until_free};
use crate::load::{is_partly_written, tree_at};
use crate::process::{PATIENCE, Process};

/// Maximum pause of a stopped process.
const PAUSE_MAX_MS: u64 = 300;

/// Maximum number of requests answered before the next disturbance.
const REQUESTS_MAX: usize = 40;

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

/// The running client, and the logs of all clients.
struct Clients {
    running: Process,
    logs: Vec<PathBuf>,
}

fn disturb(site: &Site, args: &Args) -> Result<String> {
    let mut random = rng(args.seed, u64::MAX);
    let mut server = site.serve()?;
    site.mount()?;
    let mut clients = Clients::start(site, args.seed)?;
    let mut done = BTreeMap::<&str, u64>::new();
    for _ in 0..args.rounds {
        clients.wait_for(1 + random.usize(..REQUESTS_MAX))?;
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
                clients.running.pause(Duration::from_millis(random.u64(..PAUSE_MAX_MS)))?;
                "client stopped"
            }
            _ => {
                clients.replace(site, args.seed)?;
                "client killed"
            }
        };
        *done.entry(what).or_default() += 1;
    }
    clients.wait_for(1 + random.usize(..REQUESTS_MAX))?;
    let logs = clients.stop()?;
    site.unmount()?;
    leave(site, server)?;
    let (mut answered, mut in_doubt) = (0, 0);
    for log in &logs {
        let (begun, ended) = check(site, args.seed, log)?;
        (answered, in_doubt) = (answered + ended, in_doubt + begun - ended);
    }
    let done: Vec<String> = done.iter().map(|(what, times)| format!("{what} {times}")).collect();
    Ok(format!("{}: {answered} operations, each once; {in_doubt} in doubt", done.join(", ")))
}

/// Returns the numbers of operations that a client has begun and ended.
fn counts(log: &Path) -> Result<(usize, usize)> {
    let bytes = fs::read(log)?;
    let count = |what| bytes.iter().filter(|byte| **byte == what).count();
    Ok((count(BEGUN), count(ENDED)))
}

/// Checks that a client's directory has what was answered. The last operation of a killed client may have
/// been performed or not, or a part of its data written.
fn check(site: &Site, seed: u64, log: &Path) -> Result<(usize, usize)> {
    let (begun, ended) = counts(log)?;
    let mut plan = client::plan(seed, log);
    for _ in 0..ended {
        let _ = plan.next();
    }
    let dir = site.home.tree().join(log.file_name().unwrap_or_default());
    match plan.compare(&dir) {
        Err(_) if begun > ended => {
            let before = plan.tree();
            let _ = plan.next();
            if !is_partly_written(&tree_at(&dir)?, &before, &plan.tree()) {
                plan.compare(&dir)?;
            }
        }
        Err(_) if begun == 0 => {}
        compared => compared?,
    }
    Ok((begun, ended))
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

impl Clients {
    fn start(site: &Site, seed: u64) -> Result<Self> {
        let log = site.home.path("client.0");
        Ok(Self { running: started(site, seed, &log)?, logs: vec![log] })
    }

    /// Kills the client, and starts another.
    fn replace(&mut self, site: &Site, seed: u64) -> Result<()> {
        self.running.kill()?;
        let log = site.home.path(&format!("client.{}", self.logs.len()));
        self.running = started(site, seed, &log)?;
        self.logs.push(log);
        Ok(())
    }

    /// Waits until `more` operations of the running client have ended.
    fn wait_for(&mut self, more: usize) -> Result<()> {
        let log = self.logs.last().map(PathBuf::as_path).unwrap_or(Path::new(""));
        let ended = || counts(log).map_or(0, |(_, ended)| ended);
        let wanted = ended() + more;
        let until = Instant::now() + PATIENCE;
        while ended() < wanted {
            self.running.is_alive()?;
            if Instant::now() > until {
                return Err(Failure::Process("the client makes no progress".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Stops the client through its input, and waits until it has; returns the logs.
    fn stop(mut self) -> Result<Vec<PathBuf>> {
        drop(self.running.child.stdin.take());
        self.running.ended()?;
        Ok(self.logs)
    }
}

fn started(site: &Site, seed: u64, log: &Path) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("client").arg(log).arg(site.at());
    command.arg(if site.is_mount() { "mount" } else { "library" }).arg(seed.to_string());
    Process::start("client", command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(site.home.log()?))
}
