//! The harness: one disturbance after the other.

pub mod args;
pub mod check;
pub mod client;
mod doer;
mod failure;
pub mod log;
pub mod model;
mod random;
mod records;
mod server;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::links::args::RunArgs;
use crate::links::check::check;
use crate::links::failure::{Failure, Result};
use crate::links::log::History;
use crate::links::random::Random;
use crate::links::server::{Home, PATIENCE, Server, pause};

/// Nobody is stopped for longer.
const PAUSE_MAX_MS: u64 = 300;

/// So many requests are answered at most before the next disturbance.
const REQUESTS_MAX: u64 = 40;

/// Runs it all, and says what it was.
pub fn run(args: &RunArgs) -> Result<String> {
    println!("seed {}, {:?}", args.seed, args.way);
    let mut folder = tempfile::Builder::new().prefix("tombolo-chaos.").tempdir_in(&args.place)?;
    let home = Home::new(folder.path(), args)?;
    let done = disturb(&home, args);
    if done.is_err() {
        home.unmount().ok();
        folder.disable_cleanup(true);
        println!("what is left is in {}", folder.path().display());
    }
    done
}

/// A client that runs.
struct Worker {
    child: Child,
}

/// How far the log is.
struct Progress {
    log: std::path::PathBuf,
    lines: usize,
}

fn disturb(home: &Home, args: &RunArgs) -> Result<String> {
    let mut random = Random::new(args.seed, u64::MAX);
    let mut server = home.serve()?;
    home.mount()?;
    let mut worker = Worker::start(home, args.seed)?;
    let mut progress = Progress { log: home.path.join("log"), lines: 0 };
    let mut done = BTreeMap::<&str, u64>::new();
    for _ in 0..args.rounds {
        progress.wait_for(1 + random.below(REQUESTS_MAX), &mut worker)?;
        thread::sleep(Duration::from_micros(random.below(2000)));
        let what = match random.below(10) {
            0..=4 => {
                server.kill()?;
                server = home.serve()?;
                "server killed"
            }
            5 | 6 => {
                server.pause(Duration::from_millis(random.below(PAUSE_MAX_MS)))?;
                "server stopped"
            }
            7 => {
                pause(&worker.child, Duration::from_millis(random.below(PAUSE_MAX_MS)))?;
                "client stopped"
            }
            _ => {
                worker.kill()?;
                worker = Worker::start(home, args.seed)?;
                "client killed"
            }
        };
        *done.entry(what).or_default() += 1;
    }
    progress.wait_for(1 + random.below(REQUESTS_MAX), &mut worker)?;
    worker.stop()?;
    home.unmount()?;
    leave(home, server)?;
    let history = History::read(&progress.log)?;
    check(&home.tree(), &history.model)?;
    let done: Vec<String> = done.iter().map(|(what, times)| format!("{what} {times}")).collect();
    Ok(format!(
        "{}: {} requests answered, each once; {} in doubt",
        done.join(", "),
        history.answered,
        history.model.doubts.len()
    ))
}

/// The server ends in order, and nothing is left of any link.
fn leave(home: &Home, server: Server) -> Result<()> {
    server.wait_until_free()?;
    home.run(&["links"])?;
    server.stop()?;
    let left = files_below(&home.path.join("run"))?;
    if home.path.join("links").exists() || !left.is_empty() {
        return Err(Failure::Left(format!("the socket, or of the list of links: {left:?}")));
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

impl Worker {
    fn start(home: &Home, seed: u64) -> Result<Self> {
        let said = File::options().create(true).append(true).open(home.path.join("said"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("client").arg(home.path.join("log")).arg(home.at());
        command.arg(if home.is_mount() { "mount" } else { "library" }).arg(seed.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(said).spawn()?;
        Ok(Self { child })
    }

    fn kill(&mut self) -> Result<()> {
        self.is_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn is_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(Failure::Process(format!("the client ended: {status}"))),
        }
    }

    /// Tells it to leave, and waits until it has.
    fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let until = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(Failure::Process(format!("the client ended: {status}"))),
                None if Instant::now() > until => {
                    return Err(Failure::Process("the client does not end".into()));
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.child.kill().and_then(|()| self.child.wait()).ok();
        }
    }
}

impl Progress {
    /// Waits until so many more requests were answered.
    fn wait_for(&mut self, requests: u64, worker: &mut Worker) -> Result<()> {
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
                return Err(Failure::Process("the client does not go on".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}
