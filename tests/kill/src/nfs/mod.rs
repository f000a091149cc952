//! `nfs`: clients work while the server is killed at random moments and restarted; at the end all
//! acknowledged state must be present.

pub mod client;
mod probe;
mod server;
pub mod trace;
pub mod tree;
pub mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_wire_nfs3::mount::{self, DirPath, MntReply};
use tombolo_wire_nfs3::{FileHandleBuf, Reply};

use crate::args::{Args, rng};
use crate::failure::{Failure, Result, wrong};
use crate::nfs::client::{Behaviour, Client};
use crate::nfs::probe::Probe;
use crate::nfs::server::Server;
use crate::nfs::worker::Worker;
use fastrand::Rng;

/// Maximum life of a server, and maximum time without one.
const LIFE_MAX_MS: u64 = 250;
const DEATH_MAX_MS: u64 = 30;

/// Runs the test and returns a summary.
pub fn run(args: &Args) -> Result<String> {
    println!("seed {}", args.seed);
    let mut server = Server::new(&args.program, &args.place)?;
    let outcome = rounds(args, &mut server);
    if outcome.is_err() {
        server.home.keep();
    }
    outcome
}

fn rounds(args: &Args, server: &mut Server) -> Result<String> {
    let began = Instant::now();
    let mut random = rng(args.seed, 0);
    server.start(&[])?;
    let mut client = Client::new(server.address(), rng(args.seed, 1), Behaviour::Plain);
    let root = root(&mut client)?;
    let mut workers = Vec::new();
    for number in 0..args.clients {
        let random = |stream| rng(args.seed, (2 * number + stream) as u64);
        let client = Client::new(server.address(), random(2), Behaviour::Rude);
        workers.push(Worker::new(number, root.as_handle(), client, random(3))?);
    }

    let stop = Arc::new(AtomicBool::new(false));
    let at_work: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            let stop = stop.clone();
            thread::spawn(move || {
                let outcome = worker.run(&stop);
                (worker, outcome)
            })
        })
        .collect();
    let mut probe = Probe::new(client, root.as_handle())?;
    let killed = kill_again_and_again(args, server, &mut random, &mut probe, &stop);
    stop.store(true, Ordering::Relaxed);
    let mut workers = Vec::new();
    let (mut stories, mut first) = (Vec::new(), None);
    for thread in at_work {
        let (worker, outcome) = thread.join().map_err(|_| Failure::Wrong("a worker panicked".into()))?;
        if let Err(failure) = outcome {
            stories.push(format!("{}: {failure}\n{}", worker.name, worker.story()));
            first.get_or_insert(failure);
        }
        workers.push(worker);
    }
    // Without a server no worker is answered: its own failure explains more.
    killed?;
    stories.iter().for_each(|story| eprintln!("{story}"));
    first.map_or(Ok(()), Err)?;

    // A fresh server must accept every handle, and the host's tree must match the acknowledged state.
    server.kill()?;
    server.start(&[])?;
    for worker in &mut workers {
        tree::compare(worker, &server.tree())?;
        tree::compare_numbers(&worker.numbers()?, &server.tree())?;
    }
    server.stop()?;
    summary(args, &workers, began.elapsed())
}

fn kill_again_and_again(
    args: &Args,
    server: &mut Server,
    random: &mut Rng,
    probe: &mut Probe,
    stop: &AtomicBool,
) -> Result<()> {
    for _ in 0..args.rounds {
        probe.is_another()?;
        thread::sleep(Duration::from_millis(random.u64(..LIFE_MAX_MS)));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        server.kill()?;
        thread::sleep(Duration::from_millis(random.u64(..DEATH_MAX_MS)));
        server.start(&[])?;
    }
    Ok(())
}

/// Requests the handle of the export's root.
pub fn root(client: &mut Client) -> Result<FileHandleBuf> {
    let path = DirPath::new(Server::EXPORT.as_bytes()).ok_or_else(|| Failure::Wrong("a long path".into()))?;
    let call = client.mount(&mount::Call::Mnt(path));
    let answer = client.exchange(&call)?;
    match answer.results::<MntReply<'_>>()? {
        Reply::Ok(ok) => Ok(ok.handle.to_owned()),
        Reply::Failed(status, ()) => wrong(format!("MNT {}: {status:?}", Server::EXPORT)),
    }
}

fn summary(args: &Args, workers: &[Worker], took: Duration) -> Result<String> {
    let sum = |count: fn(&Worker) -> u64| workers.iter().map(count).sum::<u64>();
    let answered = sum(|worker| worker.client().answered);
    let resent = sum(|worker| worker.client().resent);
    let doubled = sum(|worker| worker.client().doubled);
    let repeated = sum(|worker| worker.repeated);
    if args.rounds >= 5 && (resent == 0 || doubled == 0 || repeated == 0) {
        return wrong("no call was repeated, so nothing was tested");
    }
    Ok(format!(
        "{} kills in {:.1} s: {answered} calls answered, {resent} of them sent again over a new connection, {doubled} sent twice at once, \
         {repeated} sent again after their answer; in the end {}, all as acknowledged",
        args.rounds,
        took.as_secs_f64(),
        tree::census(workers)
    ))
}
