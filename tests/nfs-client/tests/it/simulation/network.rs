//! The simulated network itself, used by a client that does nothing but try again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tombolo_nfs_client_tests::wire::{
    Conditions, End, Fault, Happening, Network, Rng, ServerSide, SocketId, noise,
};
use tombolo_wire_rpc::{CallHeader, Credential, Mark, RecordAssembler, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decode, Decoder, Encoder};

use crate::simulation::echo::{ECHO, Echo, PROGRAM, VERSION, digest, encode_arguments, sent_data};

const CALLS: u64 = 20;

/// Sends all calls, and those that are not answered again after a while.
struct Plain {
    network: Network,
    socket: Option<SocketId>,
    outbox: Vec<u8>,
    records: RecordAssembler,
    received: Vec<u8>,
    unanswered: BTreeSet<u64>,
}

fn message(number: u64) -> Vec<u8> {
    let mut message = Vec::new();
    let mut xdr = Encoder::new(&mut message);
    xdr.value(&CallHeader::new(Xid(number as u32), PROGRAM, VERSION, ECHO, Credential::None));
    let data = sent_data(number, number as usize * 37);
    encode_arguments(&mut xdr, number, number as u32 * 91, data.len() as u32);
    xdr.fixed(&data);
    message
}

impl Plain {
    fn new(network: &Network) -> Self {
        Self {
            network: network.clone(),
            socket: None,
            outbox: Vec::new(),
            records: RecordAssembler::new(1 << 20),
            received: Vec::new(),
            unanswered: (1..=CALLS).collect(),
        }
    }

    fn hang_up(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.network.close(socket, End::Client);
        }
    }

    fn begin_again(&mut self) {
        self.hang_up();
        (self.records, self.received) = (RecordAssembler::new(1 << 20), Vec::new());
        self.outbox.clear();
        for number in &self.unanswered {
            let message = message(*number);
            self.outbox.extend(Mark::whole(message.len()).expect("short").to_bytes());
            self.outbox.extend(message);
        }
        self.socket = Some(self.network.connect(1));
    }

    /// False once the connection is of no use any more.
    fn look(&mut self, socket: SocketId) -> bool {
        if self.socket != Some(socket) {
            return true;
        }
        if self.network.is_connected(socket).is_err() {
            return false;
        }
        while !self.outbox.is_empty() {
            match self.network.send(socket, End::Client, &self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(tombolo_sys::Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        match self.network.receive(socket, End::Client, 10_000) {
            Ok(bytes) if bytes.is_empty() => return false,
            Ok(bytes) => self.received.extend(bytes),
            Err(tombolo_sys::Errno::AGAIN) => {}
            Err(_) => return false,
        }
        let mut left = self.received.as_slice();
        while let Some(record) = self.records.next(&mut left).expect("records") {
            check(record, &mut self.unanswered);
        }
        self.received = left.to_vec();
        self.network.looked_at(socket, End::Client);
        true
    }
}

fn check(record: &[u8], unanswered: &mut BTreeSet<u64>) {
    let mut results = Decoder::new(record);
    let xid = ReplyHeader::decode(&mut results).expect("a reply").xid;
    let number = results.u64().expect("a number");
    assert_eq!(u64::from(xid.0), number);
    let sent = sent_data(number, number as usize * 37);
    assert_eq!(results.u64().expect("a digest"), digest(&sent));
    let len = results.u32().expect("a length") as usize;
    assert!(results.fixed(len).expect("data") == noise(number, number as usize * 91));
    unanswered.remove(&number);
}

/// How long the client waits for answers.
const PATIENCE: Duration = Duration::from_secs(100);

/// One run over streams; its digest.
fn run_streams(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let network = Network::new(seed, Conditions::draw(&mut rng), false);
    let echo = Arc::new(Echo::default());
    let mut server = ServerSide::new(&network, echo.clone());
    let mut client = Plain::new(&network);
    client.begin_again();
    let mut again_at = PATIENCE;
    network.nudge(again_at);
    let mut fault = Some((rng.between((Duration::ZERO, Duration::from_secs(1))), Fault::draw(&mut rng)));
    while !client.unanswered.is_empty() {
        assert!(network.now() < Duration::from_secs(10_000), "seed {seed} never ends");
        let usable = match network.step() {
            Some(Happening::Client(socket, _)) => client.look(socket),
            Some(happening) => {
                server.take(happening);
                true
            }
            None => true,
        };
        server.turn();
        if let Some((_, fault)) = fault.take_if(|(at, _)| *at <= network.now()) {
            strike(&network, &mut server, fault);
        }
        if !usable {
            client.hang_up();
            again_at = network.now() + Duration::from_millis(100);
            network.nudge(again_at);
        }
        if network.now() >= again_at {
            if network.now() > Duration::from_secs(1000) {
                network.set_weather(Conditions::CALM);
            }
            client.begin_again();
            again_at = network.now() + PATIENCE;
            network.nudge(again_at);
        }
    }
    assert!((1..=CALLS).all(|number| echo.times(number) > 0), "seed {seed}: an answer without a call");
    network.digest()
}

fn strike(network: &Network, server: &mut ServerSide<Echo>, fault: Fault) {
    match fault {
        Fault::Restart { down, power, .. } => {
            let echo = server.stop(power.then_some(down)).expect("it ran");
            server.start(echo);
        }
        Fault::Freeze(time) => server.freeze(time),
        other => network.strike(other),
    }
}

#[test]
fn streams_bring_every_byte_in_order_or_break() {
    for seed in 0..60 {
        run_streams(seed);
    }
}

#[test]
fn a_seed_gives_the_same_run_again() {
    for seed in [3, 14, 159] {
        assert_eq!(run_streams(seed), run_streams(seed));
    }
    assert_ne!(run_streams(3), run_streams(4));
}

#[test]
fn datagrams_come_whole_or_not_at_all() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let network = Network::new(seed, Conditions::draw(&mut rng), false);
        let mut server = ServerSide::new(&network, Arc::new(Echo::default()));
        let socket = network.open_datagrams(1);
        let mut unanswered: BTreeSet<u64> = (1..=CALLS).collect();
        for round in 0.. {
            assert!(round < 100, "seed {seed} never ends");
            for number in &unanswered {
                network.send_datagram(socket, End::Client, &message(*number)).expect("room");
            }
            while let Some(happening) = network.step() {
                server.take(happening);
                server.turn();
                while let Ok(reply) = network.receive_datagram(socket) {
                    check(&reply, &mut unanswered);
                }
            }
            if unanswered.is_empty() {
                break;
            }
        }
    }
}
