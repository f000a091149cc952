//! Event loop of a run: network, server, clients and faults.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tombolo_host_rpc::client::Engine;
use tombolo_host_rpc::server::Service;
use tombolo_nfs_client_tests::wire::{ClientWire, Conditions, Fault, Happening, Network, Rng, ServerSide};

/// Number of events without progress of time that counts as a livelock.
const STEPS_MAX: u32 = 200_000;

/// Restarts the server's program.
pub trait Host<S> {
    /// Simulates a failure that loses `lost` thousandths of unstable data.
    fn fails(&mut self, lost: u32);
    /// Restarts the service.
    fn starts(&mut self) -> Arc<S>;
}

/// Schedule of faults.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Faults in the order of time.
    pub faults: Vec<(Duration, Fault)>,
    /// Time at which all faults end.
    pub heals_at: Duration,
}

impl Plan {
    /// Samples some faults and a later time of recovery. `restarts` thousandths of them are restarts.
    pub fn draw(rng: &mut Rng, restarts: u32) -> Self {
        let spread = *rng.pick(&[100_000, 2_000_000, 60_000_000]);
        let mut at = Duration::ZERO;
        let mut faults = Vec::new();
        for _ in 0..rng.below(6) {
            at += rng.between((Duration::ZERO, Duration::from_micros(spread)));
            let fault = if rng.chance(restarts) { Fault::draw_restart(rng) } else { Fault::draw(rng) };
            faults.push((at, fault));
        }
        let heals_at = at + rng.between((Duration::ZERO, Duration::from_secs(200)));
        Self { faults, heals_at }
    }

    /// Returns variants with one fault less each.
    pub fn smaller(&self) -> Vec<Self> {
        let without = |index| {
            let mut smaller = self.clone();
            smaller.faults.remove(index);
            smaller
        };
        (0..self.faults.len()).map(without).collect()
    }
}

/// Reason why a run does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No event is pending.
    Dead,
    /// Events without progress of time.
    Spinning,
    /// Not done long after the faults have ended.
    Late,
}

/// A network with a server and clients, in one thread.
pub struct Driver<S, H> {
    pub network: Network,
    pub server: ServerSide<S>,
    pub host: H,
    clients: Vec<(Arc<ClientWire>, Engine)>,
    faults: VecDeque<(Duration, Fault)>,
    heals_at: Option<Duration>,
    /// End of the server's downtime.
    starts_at: Option<Duration>,
    steps: (Duration, u32),
}

/// Source of the next event.
#[derive(Clone, Copy)]
enum Next {
    Network,
    Engine(usize),
    Fault,
    Start,
    Heal,
}

impl<S: Service, H: Host<S>> Driver<S, H> {
    /// Creates a driver at the start of a run.
    pub fn new(network: &Network, mut host: H, plan: Plan) -> Self {
        let server = ServerSide::new(network, host.starts());
        Self {
            network: network.clone(),
            server,
            host,
            clients: Vec::new(),
            faults: plan.faults.into(),
            heals_at: Some(plan.heals_at),
            starts_at: None,
            steps: (Duration::ZERO, 0),
        }
    }

    /// Adds a client; its number is that of its wire.
    pub fn add(&mut self, wire: Arc<ClientWire>, engine: Engine) {
        self.clients.push((wire, engine));
    }

    /// Runs until done, for at most `patience` after recovery.
    pub fn run(&mut self, patience: Duration, mut is_done: impl FnMut() -> bool) -> Result<(), Stuck> {
        let mut ends_at = None;
        while !is_done() {
            let Some((at, next)) = self.next() else { return Err(Stuck::Dead) };
            if self.heals_at.is_none() && at > *ends_at.get_or_insert(at + patience) {
                return Err(Stuck::Late);
            }
            self.count_step(at)?;
            self.act(at, next);
            self.server.turn();
        }
        Ok(())
    }

    fn count_step(&mut self, at: Duration) -> Result<(), Stuck> {
        let (time, steps) = &mut self.steps;
        if *time == at {
            *steps += 1;
        } else {
            self.steps = (at, 0);
        }
        if self.steps.1 > STEPS_MAX { Err(Stuck::Spinning) } else { Ok(()) }
    }

    fn next(&self) -> Option<(Duration, Next)> {
        let now = self.network.now();
        let engines = self.clients.iter().enumerate().filter_map(|(index, (_, engine))| {
            let at = self.network.time_of(engine.next_deadline()?);
            Some((at, Next::Engine(index)))
        });
        let others = [
            self.network.next_at().map(|at| (at, Next::Network)),
            self.faults.front().map(|(at, _)| (*at, Next::Fault)),
            self.starts_at.map(|at| (at, Next::Start)),
            self.heals_at.map(|at| (at, Next::Heal)),
        ];
        // Among events due at the same time the first wins: an engine with work runs at once.
        let next = engines.chain(others.into_iter().flatten()).min_by_key(|(at, _)| *at);
        next.map(|(at, next)| (at.max(now), next))
    }

    fn act(&mut self, at: Duration, next: Next) {
        self.network.advance(at);
        match next {
            Next::Network => match self.network.step() {
                Some(Happening::Client(socket, ready)) => {
                    for (wire, engine) in &mut self.clients {
                        if let Some((token, event)) = wire.event(socket, ready) {
                            engine.ready(token, event);
                        }
                    }
                }
                Some(happening) => self.server.take(happening),
                None => {}
            },
            Next::Engine(index) => self.clients[index].1.expire(),
            Next::Fault => {
                if let Some((_, fault)) = self.faults.pop_front() {
                    self.strike(fault);
                }
            }
            Next::Start => self.start_server(),
            Next::Heal => self.heal(),
        }
    }

    fn strike(&mut self, fault: Fault) {
        self.network.strike(fault);
        match fault {
            Fault::Freeze(time) => self.server.freeze(time),
            Fault::Restart { down, power, lost } if self.server.is_up() => {
                // First, since dropping the server would be an orderly end.
                self.host.fails(lost);
                self.server.stop(power.then_some(down));
                self.starts_at = Some(self.network.now() + down);
            }
            _ => {}
        }
    }

    fn start_server(&mut self) {
        if self.starts_at.take().is_some() {
            self.network.note(2, || "the server starts again".into());
            self.server.start(self.host.starts());
        }
    }

    /// Ends all faults.
    fn heal(&mut self) {
        self.heals_at = None;
        self.faults.clear();
        self.network.note(3, || "all is well".into());
        self.network.set_weather(Conditions::CALM);
        self.network.heal();
        self.server.freeze(Duration::ZERO);
        self.start_server();
    }
}
