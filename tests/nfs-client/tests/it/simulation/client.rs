//! The whole client against the whole server: all results are correct under any faults of network and server.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_back_nfs_client::{AttributeTimes, NfsExport, Options};
use tombolo_core::fs::{Client, Export, NodeId, PermissionCheck};
use tombolo_front_nfs_server::NfsService;
use tombolo_host_rpc::client::{InFlight, Options as RpcOptions, RpcClient, Transport};
use tombolo_host_runtime::task;
use tombolo_nfs_client_tests::wire::{ClientWire, Conditions, Network, Rng};
use tombolo_test_support::Session;
use tombolo_test_support::history::{SILLY, Shown, tree};
use tombolo_wire_nfs3 as nfs3;

use crate::simulation::caller::{Caller, SESSION, World};
use crate::simulation::disk::Disk;
use crate::simulation::driver::{Driver, Host, Plan};
use crate::simulation::engine::target;
use crate::simulation::nfs_host::NfsHost;
use crate::simulation::second_machine::{Baton, SecondMachine};
use crate::simulation::seeds::{Scenario, Telling, run_seeds};
use crate::simulation::shared::{Shared, Sharer};

/// Longer than any wait of a client after the faults have ended.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A run of the client over streams or datagrams.
#[derive(Clone, Debug)]
struct ClientRun<const STREAMS: bool> {
    seed: u64,
    callers: u64,
    steps: u64,
    /// Callers that share names and blocks, in addition to those with a directory of their own.
    sharers: u64,
    /// Turns of this and a second machine at one file.
    visits: u64,
    conditions: Conditions,
    plan: Plan,
    options: Options,
}

impl<const STREAMS: bool> Scenario for ClientRun<STREAMS> {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let transport = if STREAMS { Transport::Tcp } else { Transport::Udp };
        let callers = rng.below(3) + 1;
        let steps = *rng.pick(&[10, 50, 100]);
        let (sharers, visits) = (*rng.pick(&[0, 0, 2, 4]), *rng.pick(&[0, 0, 8]));
        let (conditions, plan) = (Conditions::draw(&mut rng), Plan::draw(&mut rng, 300));
        let options = draw_options(&mut rng, transport);
        Self { seed, callers, steps, sharers, visits, conditions, plan, options }
    }

    fn smaller(&self) -> Vec<Self> {
        let plans = self.plan.smaller().into_iter().map(|plan| Self { plan, ..self.clone() });
        let callers = (0..self.callers).map(|callers| Self { callers, ..self.clone() });
        let sharers = (0..self.sharers).map(|sharers| Self { sharers, ..self.clone() });
        let visits = (0..self.visits.min(3)).map(|visits| Self { visits, ..self.clone() });
        let steps = [self.steps / 2, self.steps * 3 / 4, self.steps.saturating_sub(1)];
        let steps = steps.into_iter().filter(|steps| *steps < self.steps);
        let steps = steps.map(|steps| Self { steps, ..self.clone() });
        let calmer = self.conditions.calmer();
        let calmer = calmer.into_iter().map(|conditions| Self { conditions, ..self.clone() });
        plans.chain(callers).chain(sharers).chain(visits).chain(steps).chain(calmer).collect()
    }

    fn run(&self, telling: Telling) {
        run(self, telling);
    }
}

fn draw_options(rng: &mut Rng, transport: Transport) -> Options {
    let rpc = RpcOptions {
        connections: rng.up_to(3),
        in_flight: *rng.pick(&[InFlight::Fixed(1), InFlight::Fixed(4), InFlight::Adaptive { max: 64 }]),
        timeout: *rng.pick(&[Duration::from_secs(60), Duration::from_millis(1100)]),
        label: "server:/simulated".into(),
        ..RpcOptions::of(transport)
    };
    let sizes = [1024, 4096, 32 << 10];
    Options {
        rpc,
        read_size_max: *rng.pick(&sizes),
        write_size_max: *rng.pick(&sizes),
        attributes: *rng.pick(&[AttributeTimes::default(), AttributeTimes::NONE]),
        read_ahead_bytes: *rng.pick(&[0, 8 << 10, 4 << 20]),
        dirty_bytes_max: *rng.pick(&[8 << 10, 64 << 20]),
        ..Options::default()
    }
}

/// Progress of a run.
#[derive(Clone, Default)]
struct Progress {
    /// Trees of the callers that have finished.
    models: Arc<Mutex<BTreeMap<u64, BTreeMap<String, Shown>>>>,
    shared: Arc<Shared>,
    others_done: Arc<AtomicU64>,
}

impl Progress {
    fn done(&self) -> u64 {
        let callers = self.models.lock().expect("one thread").len() as u64;
        callers + self.others_done.load(Ordering::Relaxed)
    }
}

/// Executes a run; returns a digest of its events.
fn run<const STREAMS: bool>(scenario: &ClientRun<STREAMS>, telling: Telling) -> u64 {
    let mut rng = Rng::new(scenario.seed ^ 1 << 63);
    let network = Network::new(rng.next_u64(), Conditions::CALM, telling == Telling::Aloud);
    let _told = telling.at_end(&network);
    let disk = Disk::new();
    let mut host = NfsHost::new(&network, disk.clone(), rng.fork());
    let root = NfsHost::root(&host.starts());
    network.set_weather(scenario.conditions);
    let world = World { network: network.clone(), disk, starts: host.starts_so_far(), lent: Arc::default() };
    let mut driver = Driver::new(&network, host, scenario.plan.clone());
    let (progress, baton) = (Progress::default(), Arc::<Baton>::default());
    let mut machines = Vec::new();
    for machine in 0..1 + u64::from(scenario.visits > 0) {
        let wire = ClientWire::new(&network, 1 + machine as u16, rng.fork());
        let transport = if STREAMS { Transport::Tcp } else { Transport::Udp };
        let target = target(transport, nfs3::PROGRAM, nfs3::VERSION);
        let (rpc, engine) = RpcClient::over(wire.clone(), target, scenario.options.rpc.clone());
        driver.add(wire, engine);
        let here = |users: u64| 0..if machine == 0 { users } else { 0 };
        let users = Users {
            second_machine: (scenario.visits > 0)
                .then(|| (machine, scenario.visits, rng.fork(), baton.clone())),
            callers: here(scenario.callers).map(|_| rng.fork()).collect(),
            sharers: here(scenario.sharers).map(|_| rng.fork()).collect(),
            steps: scenario.steps,
        };
        machines.push(rpc.clone());
        task::spawn(start(rpc, root, scenario.options.clone(), users, world.clone(), progress.clone()));
    }
    let all = scenario.callers + scenario.sharers + 2 * u64::from(scenario.visits > 0);
    if let Err(stuck) = driver.run(PATIENCE, || progress.done() == all) {
        let counts: Vec<_> = machines.iter().map(RpcClient::counts).collect();
        panic!("{stuck:?}: {} of {all} users have come to their end; {counts:?}", progress.done());
    }
    check_end(driver, machines, &world, &progress);
    network.digest()
}

/// The callers of a machine.
struct Users {
    callers: Vec<Rng>,
    sharers: Vec<Rng>,
    /// The second machine's number, turns, generator and baton.
    second_machine: Option<(u64, u64, Rng, Arc<Baton>)>,
    steps: u64,
}

/// Mounts the export on a machine and starts its users.
async fn start(
    rpc: RpcClient,
    root: nfs3::FileHandleBuf,
    options: Options,
    users: Users,
    world: World,
    progress: Progress,
) {
    let export = NfsExport::over(rpc, root, options).await.expect("an export");
    let client = Client { session: SESSION, label: "users".into(), checks: PermissionCheck::BackEnd };
    let fs = export.attach(&client).expect("a session");
    let steps = users.steps;
    for (number, rng) in (0..).zip(users.callers) {
        let (world, fs, progress) = (world.clone(), fs.clone(), progress.clone());
        task::spawn(async move {
            let mut caller = Caller::begin(world, fs, number, rng).await;
            for _ in 0..steps {
                caller.step().await;
            }
            let model = caller.end().await;
            progress.models.lock().expect("one thread").insert(number, model);
        });
    }
    for rng in users.sharers {
        let (world, fs, progress) = (world.clone(), fs.clone(), progress.clone());
        task::spawn(async move {
            let mut sharer = Sharer::begin(world, fs, progress.shared.clone(), rng).await;
            for _ in 0..steps {
                sharer.step().await;
            }
            sharer.end().await;
            progress.others_done.fetch_add(1, Ordering::Relaxed);
        });
    }
    if let Some((machine, visits, rng, baton)) = users.second_machine {
        let second_machine = SecondMachine { network: world.network.clone(), fs, rng, baton, machine };
        task::spawn(async move {
            second_machine.run(visits).await;
            progress.others_done.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// Ends the run and verifies that the server has the callers' trees, also after a power failure.
fn check_end(
    mut driver: Driver<NfsService, NfsHost>,
    machines: Vec<RpcClient>,
    world: &World,
    progress: &Progress,
) {
    // Background work is done as well.
    let _ = driver.run(Duration::from_secs(400), || false);
    for counts in machines.iter().map(RpcClient::counts) {
        assert_eq!((counts.outstanding, counts.waiting, counts.garbage), (0, 0, 0), "{counts:?}");
    }
    for lent in &mut *world.lent.lock().expect("one thread") {
        assert!(lent.as_slice().is_some(), "what was written is still held");
    }
    driver.host.fails(1000);
    let restarted = world.starts.load(Ordering::Relaxed) > 2;
    let mut server = Session::of(world.disk.tree());
    for (number, expected) in &*progress.models.lock().expect("one thread") {
        server.dir = NodeId::ROOT;
        server.dir = server.node(&format!("caller-{number}")).expect("the caller's directory");
        // After a restart a removed file may have left a name.
        let hidden = restarted.then_some(SILLY);
        assert_eq!(tree(&server, false, hidden), *expected, "the tree of caller {number}");
    }
    progress.shared.check_end(&*world.disk.tree());
    drop(machines);
    let _ = driver.run(Duration::from_secs(100), || world.network.open_clients() == 0);
    assert_eq!(world.network.open_clients(), 0, "sockets are left");
}

#[test]
fn replies_over_streams_match_the_model() {
    run_seeds::<ClientRun<true>>(20);
}

#[test]
fn replies_over_datagrams_match_the_model() {
    run_seeds::<ClientRun<false>>(20);
}

#[test]
fn a_seed_repeats_a_whole_client() {
    for seed in 0..4 {
        let (streams, datagrams) = (ClientRun::<true>::draw(seed), ClientRun::<false>::draw(seed));
        assert_eq!(run(&streams, Telling::Quiet), run(&streams, Telling::Quiet), "seed {seed}");
        assert_eq!(run(&datagrams, Telling::Quiet), run(&datagrams, Telling::Quiet), "seed {seed}");
    }
}
