//! The engine alone: every call gets its own reply once, and its memory is not accessed afterwards.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_core::Interrupt;
use tombolo_host_rpc::client::{
    Call, CallError, DataLocation, InFlight, Interrupts, Options, ReceiveBuffer, Recovery, Reply, RpcClient,
    Target, Transport,
};
use tombolo_host_runtime::task;
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::wire::{ClientWire, Conditions, Network, Rng, noise};
use tombolo_wire_rpc::Credential;
use tombolo_wire_xdr::Decoder;

use crate::simulation::driver::{Driver, Host, Plan};
use crate::simulation::echo::{self, ECHO, Echo, PROGRAM, VERSION, encode_arguments, sent_data};
use crate::simulation::seeds::{Scenario, Telling, run_seeds};

/// Longer than any wait of a client after the faults have ended.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Properties of a run's calls.
#[derive(Clone, Copy, Debug)]
struct Profile {
    transport: Transport,
    recovery: Recovery,
    interrupts: Interrupts,
    calls: u64,
    /// Maximum number of concurrent calls.
    together: u64,
    bytes_max: usize,
    /// Shares of interrupted and of abandoned calls, in thousandths.
    interrupted: u32,
    dropped: u32,
}

/// Host of an echo service, which survives restarts unchanged.
struct Same(Arc<Echo>);

impl Host<Echo> for Same {
    fn fails(&mut self, _: u32) {}
    fn starts(&mut self) -> Arc<Echo> {
        self.0.clone()
    }
}

/// Memory of a call, and its expected content after the call's end.
struct Kept {
    number: u64,
    source: Buffer,
    sink: Buffer,
    expected: Vec<u8>,
}

#[derive(Default)]
struct Outcomes {
    finished: AtomicU64,
    kept: Mutex<Vec<Kept>>,
}

fn find_data(results: &[u8], _: usize) -> DataLocation {
    let mut results = Decoder::new(results);
    let (Ok(_), Ok(_), Ok(len)) = (results.u64(), results.u64(), results.u32()) else {
        return DataLocation::More;
    };
    if len == 0 { DataLocation::None } else { DataLocation::Data(20..20 + len as usize) }
}

/// Samples the size of a call's or a reply's data.
fn draw_size(rng: &mut Rng, max: usize) -> usize {
    let most = *rng.pick(&[0, 0, 10, 1000, max]);
    rng.below(most.min(max) as u64 + 1) as usize
}

async fn one_call(
    client: &RpcClient,
    network: &Network,
    number: u64,
    profile: Profile,
    mut rng: Rng,
    outcomes: &Outcomes,
) {
    let (out, back) = (draw_size(&mut rng, profile.bytes_max), draw_size(&mut rng, profile.bytes_max));
    let (mut source, sink) = (Buffer::new(out.max(1)), Buffer::new(back.max(1)));
    source.as_mut_slice().expect("ours")[..out].copy_from_slice(&sent_data(number, out));
    let interrupt = Interrupt::new();
    let lands = rng.chance(700);
    let mut call = Call::new(ECHO, Credential::None);
    call.data = Some(source.source(0..out));
    call.receive_buffer = lands.then(|| ReceiveBuffer { sink: sink.sink(0..back), find: find_data });
    call.bulk = rng.chance(500);
    call.interrupt = interrupt.clone();
    let is_bulk = call.bulk;
    let pending = client.call(call, |xdr| encode_arguments(xdr, number, back as u32, out as u32));
    network.note(number, || {
        format!("call {number} of {out} bytes, bulk: {is_bulk}, for {back}, receive_buffer: {lands}")
    });
    if rng.chance(profile.interrupted) {
        let (network, delay) = (network.clone(), rng.between((Duration::ZERO, Duration::from_secs(20))));
        task::spawn(async move {
            network.sleep(delay).await;
            interrupt.raise();
        });
    }
    if rng.chance(profile.dropped) {
        drop(pending);
        outcomes.finished.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let answer = pending.await;
    network.note(number ^ 1 << 60, || format!("call {number} has come to {:?}", answer.as_ref().map(|_| ())));
    let mut kept = Kept { number, source, sink, expected: Vec::new() };
    match answer {
        Ok(reply) => check_reply(&mut kept, &reply, out, back, lands),
        Err(error) => check_error(&error, profile, number),
    }
    // The memory is the caller's again.
    let sink = kept.sink.source(0..back).to_vec(usize::MAX);
    kept.expected = sink;
    kept.source.sink(0..out).write_at(0, &vec![0xee; out]);
    outcomes.kept.lock().expect("one thread").push(kept);
    outcomes.finished.fetch_add(1, Ordering::Relaxed);
}

fn check_reply(kept: &mut Kept, reply: &Reply, out: usize, back: usize, lands: bool) {
    let mut results = Decoder::new(&reply.results);
    let number = kept.number;
    assert_eq!(results.u64().expect("a number"), number, "the answer to another call");
    assert_eq!(results.u64().expect("a digest"), echo::digest(&sent_data(number, out)));
    assert_eq!(results.u32().expect("a length") as usize, back);
    let answer = if lands {
        assert_eq!(reply.data_bytes, back, "call {number}: data that did not land");
        kept.sink.source(0..back).to_vec(usize::MAX)
    } else {
        results.fixed(back).expect("data").to_vec()
    };
    assert!(answer == noise(number, back), "call {number}: other data than the server sent");
}

fn check_error(error: &CallError, profile: Profile, number: u64) {
    let may_be = match error {
        CallError::Unreachable { .. } | CallError::TimedOut { .. } => profile.recovery == Recovery::Soft,
        CallError::Interrupted { .. } => profile.interrupted > 0 && profile.interrupts != Interrupts::Never,
        _ => false,
    };
    assert!(may_be, "call {number}: {error}");
}

fn draw_profile(rng: &mut Rng, transport: Transport) -> Profile {
    Profile {
        transport,
        recovery: *rng.pick(&[Recovery::Hard, Recovery::Hard, Recovery::Soft]),
        interrupts: *rng.pick(&[Interrupts::Always, Interrupts::WhenSilent, Interrupts::Never]),
        calls: rng.below(60) + 1,
        together: rng.below(20) + 1,
        bytes_max: *rng.pick(match transport {
            Transport::Tcp => &[0, 200, 9_000, 70_000],
            Transport::Udp => &[0, 200, 1_400, 30_000],
        }),
        interrupted: *rng.pick(&[0, 0, 200]),
        dropped: *rng.pick(&[0, 0, 100]),
    }
}

fn draw_options(rng: &mut Rng, profile: Profile) -> Options {
    Options {
        connections: rng.up_to(4),
        in_flight: *rng.pick(&[InFlight::Fixed(1), InFlight::Fixed(4), InFlight::Adaptive { max: 64 }]),
        timeout: *rng.pick(&[Duration::from_secs(60), Duration::from_millis(1100)]),
        retries: 3,
        recovery: profile.recovery,
        interrupts: profile.interrupts,
        reply_bytes_max: 1 << 20,
        label: "server:/simulated".into(),
        ..Options::of(profile.transport)
    }
}

/// Returns the server's address and program.
pub fn target(transport: Transport, program: u32, version: u32) -> Target {
    Target { address: SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 2049)), transport, program, version }
}

/// A run of the engine over streams or datagrams.
#[derive(Clone, Debug)]
struct EngineRun<const STREAMS: bool> {
    seed: u64,
    profile: Profile,
    conditions: Conditions,
    plan: Plan,
    options: Options,
}

impl<const STREAMS: bool> Scenario for EngineRun<STREAMS> {
    fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let profile = draw_profile(&mut rng, if STREAMS { Transport::Tcp } else { Transport::Udp });
        let (conditions, plan) = (Conditions::draw(&mut rng), Plan::draw(&mut rng, 0));
        let options = draw_options(&mut rng, profile);
        Self { seed, profile, conditions, plan, options }
    }

    fn smaller(&self) -> Vec<Self> {
        let plans = self.plan.smaller().into_iter().map(|plan| Self { plan, ..self.clone() });
        let calls = [1, self.profile.calls / 2, self.profile.calls - 1];
        let fewer = calls.into_iter().filter(|calls| (1..self.profile.calls).contains(calls));
        let fewer = fewer.map(|calls| Self { profile: Profile { calls, ..self.profile }, ..self.clone() });
        let calmer = self.conditions.calmer();
        let calmer = calmer.into_iter().map(|conditions| Self { conditions, ..self.clone() });
        plans.chain(fewer).chain(calmer).collect()
    }

    fn run(&self, telling: Telling) {
        run(self, telling);
    }
}

/// Executes a run; returns a digest of its events.
fn run<const STREAMS: bool>(scenario: &EngineRun<STREAMS>, telling: Telling) -> u64 {
    let EngineRun { profile, plan, options, .. } = scenario.clone();
    let mut rng = Rng::new(scenario.seed ^ 1 << 63);
    let network = Network::new(rng.next_u64(), scenario.conditions, telling == Telling::Aloud);
    let _told = telling.at_end(&network);
    let mut driver = Driver::new(&network, Same(Arc::new(Echo)), plan);
    let wire = ClientWire::new(&network, 1, rng.fork());
    let (client, engine) =
        RpcClient::over(wire.clone(), target(profile.transport, PROGRAM, VERSION), options);
    driver.add(wire, engine);
    let outcomes = Arc::new(Outcomes::default());
    let lanes = profile.together.min(profile.calls);
    for lane in 0..lanes {
        let (client, network, outcomes) = (client.clone(), network.clone(), outcomes.clone());
        let mut rng = rng.fork();
        let numbers = (lane + 1..=profile.calls).step_by(lanes as usize);
        task::spawn(async move {
            for number in numbers {
                let call_rng = rng.fork();
                one_call(&client, &network, number, profile, call_rng, &outcomes).await;
                if rng.chance(200) {
                    network.sleep(rng.between((Duration::ZERO, Duration::from_secs(5)))).await;
                }
            }
        });
    }
    let finished = || outcomes.finished.load(Ordering::Relaxed);
    if let Err(stuck) = driver.run(PATIENCE, || finished() == profile.calls) {
        panic!("{stuck:?}: {} of {} calls answered; {:?}", finished(), profile.calls, client.counts());
    }
    check_end(driver, client, &outcomes);
    network.digest()
}

/// Verifies that no call is outstanding and that returned buffers are unchanged.
fn check_end(mut driver: Driver<Echo, Same>, client: RpcClient, outcomes: &Outcomes) {
    // Waits for replies to abandoned calls and for data in flight.
    let outcome = driver.run(PATIENCE, || client.counts().outstanding == 0);
    assert_eq!(outcome, Ok(()), "calls are left: {:?}", client.counts());
    let _ = driver.run(Duration::from_secs(100), || false);
    let counts = client.counts();
    assert_eq!((counts.outstanding, counts.waiting, counts.garbage), (0, 0, 0), "{counts:?}");
    assert!(counts.calls >= counts.replies, "more answers than calls: {counts:?}");
    for Kept { number, source, sink, expected } in &mut *outcomes.kept.lock().expect("one thread") {
        assert!(source.as_slice().is_some(), "call {number}: its data are still held");
        let Some(bytes) = sink.as_slice() else { panic!("call {number}: its receive buffer is held") };
        assert!(
            bytes.starts_with(expected),
            "call {number}: its receive buffer was written to after its end"
        );
    }
    drop(client);
    let network = driver.network.clone();
    let _ = driver.run(Duration::from_secs(100), || network.open_clients() == 0);
    assert_eq!(network.open_clients(), 0, "sockets are left");
}

#[test]
fn every_stream_call_gets_its_own_reply_once() {
    run_seeds::<EngineRun<true>>(40);
}

#[test]
fn every_datagram_call_gets_its_own_reply_once() {
    run_seeds::<EngineRun<false>>(40);
}

#[test]
fn a_seed_repeats_itself_to_the_last_byte() {
    for seed in 0..8 {
        let (streams, datagrams) = (EngineRun::<true>::draw(seed), EngineRun::<false>::draw(seed));
        assert_eq!(run(&streams, Telling::Quiet), run(&streams, Telling::Quiet), "seed {seed}");
        assert_eq!(run(&datagrams, Telling::Quiet), run(&datagrams, Telling::Quiet), "seed {seed}");
    }
}
