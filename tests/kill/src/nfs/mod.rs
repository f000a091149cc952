//! `nfs`: clients work while the server is killed at random moments and restarted; at the end all
//! acknowledged state must be present.

mod probe;
mod relay;
mod server;
pub mod trace;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tombolo_back_nfs_client::{AttributeTimes, NfsExport, Options, Ports, Server as Address, Transport};
use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, PermissionCheck};
use tombolo_host_rpc::client::{Options as RpcOptions, Recovery};

use crate::args::{Args, rng};
use crate::failure::{Failure, Result, wrong};
use crate::load::{Kind, Load, Plan};
use crate::nfs::probe::Probe;
use crate::nfs::relay::{Counts, Relay};
use crate::nfs::server::Server;

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

/// A client and its relay.
struct Worker {
    dir: String,
    load: Load,
    relay: Relay,
    /// Retains the connection.
    _export: NfsExport,
}

impl Worker {
    fn new(number: usize, server: &Server, args: &Args) -> Result<Self> {
        let random = |stream| rng(args.seed, (2 * number + stream) as u64);
        let relay = Relay::start(server.address(), random(2))?;
        let address = Address {
            name: "relay".into(),
            address: relay.address.ip(),
            ports: Ports::One(relay.address.port()),
            transport: Transport::Tcp,
            tls: None,
        };
        // Without cached attributes every look is a call.
        let mut options = Options { attributes: AttributeTimes::NONE, ..Options::default() };
        // A call fails after 60 s, as the server may not start again.
        options.rpc = RpcOptions { recovery: Recovery::Soft, retries: 0, ..options.rpc };
        let export = NfsExport::mount(&address, Server::EXPORT, options)
            .map_err(|error| Failure::Wrong(format!("mounting: {error}")))?;
        let client =
            Client { session: SessionId(1), label: "worker".into(), checks: PermissionCheck::BackEnd };
        let fs = export.attach(&client).map_err(|error| Failure::Wrong(format!("attaching: {error}")))?;
        let dir = format!("worker-{number}");
        let load = Load::new(fs, &dir, Plan::new(random(3), Kind::Nfs))?;
        Ok(Self { dir, load, relay, _export: export })
    }

    /// Performs steps until `stop` is set; then makes everything stable.
    fn work(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.perform(|load| {
                let step = load.plan.next();
                load.perform(step)
            })?;
        }
        self.perform(Load::release_all).map(drop)
    }

    /// Compares the worker's tree on the host, and all that it knows of it.
    fn check(&mut self, server: &Server) -> Result<Counts> {
        let counts = self.perform(Load::check_nodes)?;
        self.load.plan.compare(&server.tree().join(&self.dir))?;
        Ok(counts)
    }

    /// Performs operations. A failure of the relay explains theirs, so it is reported first.
    fn perform(&mut self, operations: impl FnOnce(&mut Load) -> Result<()>) -> Result<Counts> {
        let performed = operations(&mut self.load);
        let counts = self.relay.counts()?;
        performed.map(|()| counts)
    }
}

fn rounds(args: &Args, server: &mut Server) -> Result<String> {
    let began = Instant::now();
    server.start(&[])?;
    let mut workers =
        (0..args.clients).map(|number| Worker::new(number, server, args)).collect::<Result<Vec<_>>>()?;
    let mut probe = Probe::new(server.address(), Server::EXPORT)?;
    let stop = AtomicBool::new(false);
    let (killed, worked) = thread::scope(|scope| {
        let at_work: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                scope.spawn(|| {
                    worker.work(&stop).inspect_err(|failure| {
                        eprintln!("{}: {failure}", worker.dir);
                        stop.store(true, Ordering::Relaxed);
                    })
                })
            })
            .collect();
        let killing = scope.spawn(|| kill_again_and_again(args, server, &mut probe, &stop));
        let killed = killing.join().unwrap_or_else(|_| wrong("the probe panicked"));
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| wrong("a worker panicked");
        let worked = at_work.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        (killed, worked.collect::<Vec<_>>())
    });
    // Without a server no worker is answered: its own failure explains more.
    killed?;
    worked.into_iter().collect::<Result<()>>()?;

    // A fresh server must accept every handle, and the host's tree must match the acknowledged state.
    server.kill()?;
    server.start(&[])?;
    let counts = workers.iter_mut().map(|worker| worker.check(server)).collect::<Result<Vec<_>>>()?;
    let steps = workers.iter().map(|worker| worker.load.steps).sum();
    drop(workers);
    server.stop()?;
    summary(args, &counts, steps, began.elapsed())
}

fn kill_again_and_again(
    args: &Args,
    server: &mut Server,
    probe: &mut Probe,
    stop: &AtomicBool,
) -> Result<()> {
    let mut random = rng(args.seed, 0);
    let mut some = |most_ms| thread::sleep(Duration::from_millis(Rng::u64(&mut random, ..most_ms)));
    for _ in 0..args.rounds {
        probe.is_another()?;
        some(LIFE_MAX_MS);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        server.kill()?;
        some(DEATH_MAX_MS);
        server.start(&[])?;
    }
    Ok(())
}

fn summary(args: &Args, counts: &[Counts], steps: u64, took: Duration) -> Result<String> {
    let sum = |count: fn(&Counts) -> u64| counts.iter().map(count).sum::<u64>();
    let answered = sum(|counts| counts.answered);
    let changes = sum(|counts| counts.changes);
    let resent = sum(|counts| counts.resent);
    let doubled = sum(|counts| counts.doubled);
    let repeated = sum(|counts| counts.repeated);
    if args.rounds >= 5 && (resent == 0 || doubled == 0 || repeated == 0) {
        return wrong("no call was repeated, so nothing was tested");
    }
    Ok(format!(
        "{} kills in {:.1} s: {steps} operations, {answered} calls answered, of them {changes} changes of names; {resent} sent \
         again over a new connection, {doubled} sent twice at once, {repeated} sent again after their answer; in the end all as acknowledged",
        args.rounds,
        took.as_secs_f64(),
    ))
}
